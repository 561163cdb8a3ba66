#include "bench/predict.h"

#include <ATen/Parallel.h>

#include "streambp/cli/records.h"
#include "streambp/error.h"
#include "streambp/memory/meter.h"

namespace streambp::bench {

nlohmann::json prediction_record(const Bench& bench, const Cell& cell, const Prediction& prediction) {
  const auto positive_or_null = [](int64_t value) { return value > 0 ? nlohmann::json(value) : nullptr; };
  nlohmann::json record = cell_configuration(bench, cell);
  record.update({{"schema", kRecordSchema},
                 {"key", record_key(record)},
                 {"kind", "predicted"},
                 {"tokens", prediction.tokens},
                 {"model_flops", prediction.model_flops},
                 {"hardware_flops", prediction.hardware_flops},
                 {"chunk", positive_or_null(prediction.chunk)},
                 {"head_chunk", positive_or_null(prediction.head_chunk)},
                 {"peak_bytes", prediction.peak_bytes},
                 {"resident_bytes", prediction.resident_bytes},
                 {"peak_beyond_resident_bytes", prediction.peak_bytes - prediction.resident_bytes},
                 {"host_peak_bytes", prediction.host_peak_bytes},
                 {"breakdown_at_peak", prediction.breakdown},
                 {"status", "ok"},
                 {"error", nullptr}});
  return record;
}

Predictor::Predictor(const Bench& bench) : bench_(bench), models_(open_models(bench)) {
  if (!bench.device.is_meta()) throw InputError("device '{}': only meta predicts", bench.options.device);
  at::set_num_threads(1);  // nothing is computed: other threads would only wait
  // A reference that is released before the passes takes no part in them.
  if (!bench.options.reference.empty() && !bench.options.release_reference)
    models_.reference = open_reference(bench);
}

Prediction Predictor::predict(const Cell& cell) {
  CellRun run(bench_, cell);
  run.prepare(models_);
  if (!run.failed()) run.repeat(models_);
  if (run.failed()) throw InputError("{}", run.error());
  const CellRun::Pass& pass = *run.worst();
  return {cell.seq_len,           pass.tokens,          pass.outcome.chunk,  pass.outcome.head_chunk,
          pass.memory.peak_bytes, pass.resident_bytes,  pass.memory.at_peak, pass.memory.host_peak_bytes,
          *run.model_flops(),     *run.hardware_flops()};
}

Prediction Predictor::floor() const {
  reset_peak(bench_.device);
  const MemoryReading reading = read_meter(bench_.device);
  Prediction floor;
  floor.peak_bytes = floor.resident_bytes = reading.peak_bytes;
  floor.breakdown = reading.at_peak;
  return floor;
}

}  // namespace streambp::bench
