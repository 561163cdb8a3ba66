#include "bench/cell.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "bench/model_flops.h"
#include "streambp/driver/failure.h"
#include "streambp/driver/records.h"
#include "streambp/error.h"
#include "streambp/model/tensor_file.h"

namespace streambp {
namespace {

using nlohmann::json;

template <typename T>
json or_null(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}

json or_auto(int64_t value) {
  return value > 0 ? json(value) : json("auto");
}

json positive_or_null(int64_t value) {
  return value > 0 ? json(value) : json(nullptr);
}

/// Kernels of a GPU run behind the program's back: a clock is read when they are done.
void synchronize(c10::Device device) {
  if (device.is_cuda()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

double process_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

std::vector<int64_t> sequence_lengths(const Bench& bench, const Cell& cell) {
  if (!bench.batch) return std::vector<int64_t>(static_cast<size_t>(cell.batch), cell.seq_len);
  std::vector<int64_t> lengths;
  const auto& offsets = bench.batch->offsets;
  for (size_t i = 0; i + 1 < offsets.size(); ++i) lengths.push_back(offsets[i + 1] - offsets[i]);
  return lengths;
}

}  // namespace

void check_objective(const std::string& name) {
  if (name != "sft") throw InputError("objective '{}': expected one of sft", name);
}

std::unique_ptr<Objective> make_objective(const std::string& name, const Batch& batch,
                                          std::optional<double> divisor) {
  check_objective(name);
  return make_sft(batch, divisor);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

Batch cell_batch(const Bench& bench, const Cell& cell) {
  if (bench.batch) return *bench.batch;
  return random_batch(sequence_lengths(bench, cell), bench.config.vocab_size, bench.options.seed);
}

json cell_configuration(const Bench& bench, const Cell& cell) {
  const SweepOptions& options = bench.options;
  const Settings& settings = cell.settings;
  const bool streambp = settings.method == Method::kStreambp;
  const json tokens_file = options.tokens ? json(options.tokens->string()) : json(nullptr);
  return {{"model", options.model},
          {"family", bench.config.family},
          {"parameters", parameter_count(bench.config)},
          {"objective", cell.objective},
          {"method", method_name(settings.method)},
          {"settings",
           {{"chunk", streambp ? or_auto(settings.chunk) : json(nullptr)},
            {"head", settings.streams_head() ? "streamed" : "full"},
            {"head_chunk", settings.streams_head() ? or_auto(settings.head_chunk) : json(nullptr)},
            {"gradient_dtype", dtype_name(options.gradient_dtype)},
            {"divisor", or_null(options.divisor)},
            {"freeze", options.freeze},
            {"threads", options.threads},
            {"repeats", options.repeats},
            {"seed", options.seed},
            {"memory_limit", or_null(options.memory_limit)},
            {"tokens_file", tokens_file},
            {"tokens_key", options.tokens ? json(bench.batch_key) : json(nullptr)}}},
          {"seq_len", cell.seq_len},
          {"batch", cell.batch},
          {"dtype", dtype_name(options.dtype)},
          {"device", options.device}};
}

CellRun::Pass CellRun::run_pass(Model& model) const {
  const Batch batch = cell_batch(bench_, cell_);
  const auto objective = make_objective(cell_.objective, batch, bench_.options.divisor);
  model.zero_gradients();
  Pass pass;
  synchronize(bench_.device);
  reset_peak(bench_.device);
  pass.resident_bytes = read_meter(bench_.device).live_bytes;
  const double cpu_start = process_seconds();
  const auto start = std::chrono::steady_clock::now();
  pass.outcome = backpropagate(model, batch, *objective, cell_.settings);
  synchronize(bench_.device);
  pass.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  pass.cpu_seconds = process_seconds() - cpu_start;
  pass.memory = read_meter(bench_.device);
  pass.outcome.log_probabilities.reset();
  return pass;
}

void CellRun::repeat(Model& model) {
  try {
    passes_.push_back(run_pass(model));
  } catch (const std::exception& error) {
    fail(is_out_of_memory(error) ? "oom" : "error", error.what());
  }
  // Only now, with the exception gone, is everything free that it or the pass kept alive.
  if (failed() && bench_.device.is_cuda()) c10::getDeviceAllocator(bench_.device.type())->emptyCache();
  const bool predicted = bench_.device.is_meta();
  if (!failed() && !predicted && !std::isfinite(passes_.back().outcome.loss)) {
    fail("error", fmt::format("the loss is {}", passes_.back().outcome.loss));
  }
}

void CellRun::fail(const std::string& status, const std::string& error) {
  status_ = status;
  error_ = error.substr(0, error.find('\n'));
}

json CellRun::record(const json& environment) const {
  const std::vector<int64_t> lengths = sequence_lengths(bench_, cell_);
  int64_t tokens = 0;
  for (const int64_t length : lengths) tokens += length;
  json record = cell_configuration(bench_, cell_);
  const bool predicted = bench_.device.is_meta();
  record.update({{"schema", kRecordSchema},
                 {"key", record_key(record)},
                 {"kind", predicted ? "predicted" : "measured"},
                 {"tokens", tokens},
                 {"model_flops", model_flops(bench_.config, lengths)},
                 {"chunk", positive_or_null(std::min(cell_.settings.chunk, tokens))},
                 {"head_chunk", positive_or_null(cell_.settings.head_chunk)},
                 {"peak_bytes", nullptr},
                 {"resident_bytes", nullptr},
                 {"peak_beyond_resident_bytes", nullptr},
                 {"breakdown_at_peak", json::object()},
                 {"seconds", json::array()},
                 {"seconds_median", nullptr},
                 {"cpu_seconds", json::array()},
                 {"cpu_seconds_median", nullptr},
                 {"tokens_per_second", nullptr},
                 {"loss", nullptr},
                 {"status", status_},
                 {"error", failed() ? json(error_) : json(nullptr)},
                 {"environment", environment}});
  if (passes_.empty() || status_ == "oom") return record;

  const auto worst = std::max_element(passes_.begin(), passes_.end(), [](const Pass& a, const Pass& b) {
    return a.memory.peak_bytes - a.resident_bytes < b.memory.peak_bytes - b.resident_bytes;
  });
  record.update({{"chunk", positive_or_null(worst->outcome.chunk)},
                 {"head_chunk", positive_or_null(worst->outcome.head_chunk)},
                 {"peak_bytes", worst->memory.peak_bytes},
                 {"resident_bytes", worst->resident_bytes},
                 {"peak_beyond_resident_bytes", worst->memory.peak_bytes - worst->resident_bytes},
                 {"breakdown_at_peak", worst->memory.at_peak}});
  if (predicted) return record;
  std::vector<double> seconds, cpu_seconds;
  for (const Pass& pass : passes_) {
    seconds.push_back(pass.seconds);
    cpu_seconds.push_back(pass.cpu_seconds);
  }
  record.update({{"seconds", seconds},
                 {"seconds_median", median(seconds)},
                 {"cpu_seconds", cpu_seconds},
                 {"cpu_seconds_median", median(cpu_seconds)},
                 {"tokens_per_second", static_cast<double>(tokens) / median(seconds)},
                 {"loss", passes_.back().outcome.loss}});
  return record;
}

}  // namespace streambp
