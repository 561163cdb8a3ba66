#include "bench/sweep/cells/cell_run.h"

#include <algorithm>
#include <cmath>

#include "bench/cli/environment.h"
#include "bench/cli/records.h"
#include "bench/records/json_members.h"
#include "bench/report_pages/statistics.h"
#include "streambp/model/weight_provider.h"
#include "streambp/ops/attention/attention_device.h"
#include "streambp/ops/backend.h"
#include "streambp/ops/cuda/library.h"
#include "streambp/runtime/failure.h"
#include "streambp/runtime/torch_private.h"

namespace streambp::bench {
namespace {

using nlohmann::json;

/// None where memory does not suffice for a batch.
std::optional<int64_t> tokens_of(const plan::TrainingStep& step, int64_t vocab_size) {
  try {
    return plan::make_batch(step, vocab_size).size();
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    return std::nullopt;
  }
}

/// Which weights are to blame for a loss that is not finite. Throws where memory does not suffice to look.
std::string non_finite_weights(const plan::Models& models) {
  const std::pair<const char*, const std::optional<Model>*> all[] = {
      {"--model", &models.policy}, {"--reference", &models.reference}, {"--teacher", &models.teacher}};
  for (const auto& [flag, model] : all) {
    if (!*model) continue;
    for (const auto& parameter : (*model)->parameters()) {
      // Of a layer whose weights are packed, or in the host's memory, they are there while it is run.
      std::optional<LayerWeights> weights;
      if (const auto layer = layer_of(parameter->name)) weights.emplace(**model, *layer);
      if (!parameter->value.isfinite().all().item<bool>())
        return fmt::format("{} of {} is not finite everywhere", parameter->name, flag);
    }
  }
  return "all weights are finite, but not what is computed of them; --dtype float64 has the widest range";
}

}  // namespace

void CellRun::prepare(plan::Models& models) {
  try {
    runner_.count_flops(models);
    count_work(models);
    runner_.ask_reference(models);
  } catch (const std::exception& error) {
    end(error);
  }
}

void CellRun::count_work(const plan::Models& models) {
  if (!is_for_cuda(bench_.device)) return;
  const plan::TrainingStep step = step_of(bench_, cell_);
  Batch batch = plan::make_batch(step, bench_.config.vocab_size);
  plan::fill_reference(step, batch);
  const auto objective =
      make_objective(step.objective, batch, plan::options_of(step.objective, step.options));
  work_ =
      work_of(*models.policy, batch, *objective, cell_.settings, models.teacher ? &*models.teacher : nullptr);
}

void CellRun::repeat(plan::Models& models) {
  std::optional<Recorder> recorder;
  if (bench_.device.is_cuda() && passes_.empty()) gpu_before_ = gpu_state(bench_.device.index());
  try {
    passes_.push_back(runner_.run(models, bench_.options.records_memory() ? &recorder : nullptr));
  } catch (const std::exception& error) {
    end(error);
  }
  if (bench_.device.is_cuda()) gpu_after_ = gpu_state(bench_.device.index());
  if (recorder) recording_ = std::make_shared<const Recording>(recorder->stop());
  // Only now, with the exception gone, is everything free that it or the pass kept alive.
  if (failed() && bench_.device.is_cuda()) torch_private::empty_cache(bench_.device);
  const bool predicted = bench_.device.is_meta();
  if (failed() || predicted || std::isfinite(passes_.back().outcome.loss)) return;
  fail(fmt::format("the loss is {}", passes_.back().outcome.loss));
  try {
    error_ += ": " + non_finite_weights(models);
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
  }
}

void CellRun::end(const std::exception& error) {
  is_out_of_memory(error) ? run_out(failure_of(error)) : fail(error.what());
}

void CellRun::run_out(const MemoryFailure& failure) {
  fail(failure.error);
  status_ = "oom";
  failure_ = failure;
}

void CellRun::fail(const std::string& error) {
  status_ = "error";
  error_ = error.substr(0, error.find('\n'));
}

std::vector<double> CellRun::seconds() const {
  std::vector<double> seconds;
  for (const plan::MeteredPass& pass : passes_) seconds.push_back(pass.seconds);
  return seconds;
}

int64_t CellRun::peak_bytes() const {
  int64_t most = 0;
  for (const plan::MeteredPass& pass : passes_) most = std::max(most, pass.memory.peak_bytes);
  return most;
}

json CellRun::record(const json& environment) const {
  const std::optional<int64_t> tokens = tokens_of(step_of(bench_, cell_), bench_.config.vocab_size);
  json record = cell_configuration(bench_, cell_);
  const bool predicted = bench_.device.is_meta();
  record.update(
      {{"schema", kRecordSchema},
       {"key", record_key(record)},
       {"kind", predicted ? "predicted" : "measured"},
       {"tokens", or_null(tokens)},
       {"model_flops", or_null(runner_.model_flops())},
       {"hardware_flops", or_null(runner_.hardware_flops())},
       {"gemm_flops_per_second", or_null(gemm_flops_per_second_)},
       {"percent_of_gemm", nullptr},
       {"chunk", positive_or_null(std::min(cell_.settings.chunk, tokens.value_or(cell_.settings.chunk)))},
       {"head_chunk", positive_or_null(cell_.settings.head_chunk)},
       {"peak_bytes", nullptr},
       {"resident_bytes", nullptr},
       {"peak_beyond_resident_bytes", nullptr},
       {"host_peak_bytes", nullptr},
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
  if (status_ == "oom") record["out_of_memory"] = out_of_memory_member(failure_);
  if (work_) record["work"] = work_member(*work_);
  if (bench_.device.is_cuda()) {
    record["environment"].update({{"gpu_before", gpu_state_member(gpu_before_)},
                                  {"gpu_after", gpu_state_member(gpu_after_)},
                                  {"own_kernels", cuda::kernels() != nullptr},
                                  {"attention_choices", attention_choices()},
                                  {"attention_tiles", tiled_attention()}});
  }
  if (!passes_.empty() && status_ != "oom") add_passes(record);
  return record;
}

void CellRun::add_passes(json& record) const {
  const plan::MeteredPass& most = *std::max_element(
      passes_.begin(), passes_.end(),
      [](const auto& a, const auto& b) { return a.beyond_resident() < b.beyond_resident(); });
  record.update({{"chunk", positive_or_null(most.outcome.chunk)},
                 {"head_chunk", positive_or_null(most.outcome.head_chunk)},
                 {"peak_bytes", most.memory.peak_bytes},
                 {"resident_bytes", most.resident_bytes},
                 {"peak_beyond_resident_bytes", most.beyond_resident()},
                 {"host_peak_bytes", most.memory.host_peak_bytes},
                 {"breakdown_at_peak", most.memory.at_peak}});
  if (bench_.device.is_meta()) return;
  const std::vector<double> seconds = this->seconds();
  std::vector<double> cpu_seconds, gpu_seconds;
  for (const plan::MeteredPass& pass : passes_) {
    cpu_seconds.push_back(pass.cpu_seconds);
    gpu_seconds.push_back(pass.gpu_seconds);
  }
  if (bench_.device.is_cuda()) {
    record.update({{"reserved_peak_bytes", most.memory.reserved_peak_bytes},
                   {"device_bytes", most.memory.device_bytes},
                   {"gpu_seconds", gpu_seconds},
                   {"gpu_seconds_median", median(gpu_seconds)}});
  }
  record.update({{"seconds", seconds},
                 {"seconds_median", median(seconds)},
                 {"cpu_seconds", cpu_seconds},
                 {"cpu_seconds_median", median(cpu_seconds)},
                 {"tokens_per_second", static_cast<double>(most.tokens) / median(seconds)},
                 {"loss", passes_.back().outcome.loss}});
  if (gemm_flops_per_second_) {
    record["percent_of_gemm"] = 100.0 * *runner_.hardware_flops() / median(seconds) / *gemm_flops_per_second_;
  }
}

}  // namespace streambp::bench
