#include "streambp/plan/predict.h"

#include <algorithm>
#include <fmt/ranges.h>
#include <vector>

#include <ATen/Parallel.h>

#include "streambp/error.h"
#include "streambp/plan/metered_pass.h"
#include "streambp/runtime/bytes.h"
#include "streambp/runtime/failure.h"

namespace streambp::plan {
namespace {

Prediction dry_run(Models& models, const TrainingStep& step, const Settings& settings) {
  StepRunner runner(step, settings);
  runner.count_flops(models);
  runner.ask_reference(models);
  const MeteredPass pass = runner.run(models);
  return {.seq_len = step.seq_len,
          .tokens = pass.tokens,
          .chunk = pass.outcome.chunk,
          .head_chunk = pass.outcome.head_chunk,
          .peak_bytes = pass.memory.peak_bytes,
          .resident_bytes = pass.resident_bytes,
          .breakdown = pass.memory.at_peak,
          .host_peak_bytes = pass.memory.host_peak_bytes,
          .model_flops = *runner.model_flops(),
          .hardware_flops = *runner.hardware_flops()};
}

}  // namespace

DryRunScope::DryRunScope(c10::Device device)
    : threads_(at::get_num_threads()), memory_limit_(memory_limit(c10::DeviceType::Meta)) {
  install_meters();
  if (!device.is_meta()) stand_in_.emplace(device.type());
  set_memory_limit(c10::DeviceType::Meta, 0);  // a dry run that goes beyond it says by how much
  at::set_num_threads(1);                      // others would only wait
}

DryRunScope::~DryRunScope() {
  set_memory_limit(c10::DeviceType::Meta, memory_limit_);
  at::set_num_threads(threads_);
}

Predictor::Predictor(const ModelSetup& setup, c10::Device device)
    : device_(device), scope_(device), models_(open_models(setup, at::kMeta)) {
  // A reference that is released before the passes takes no part in them.
  if (!setup.reference.empty() && !setup.release_reference)
    models_.reference = open_reference(setup, at::kMeta);
}

Prediction Predictor::predict(const TrainingStep& step, const Settings& settings) {
  if (watcher_) watcher_(done_);
  ++done_;
  try {
    return dry_run(models_, step, settings);
  } catch (const std::exception& error) {
    if (is_out_of_memory(error)) throw;  // this machine's, for the batch
    const std::string text = error.what();
    throw InputError("{}", text.substr(0, text.find('\n')));
  }
}

Prediction Predictor::floor() const {
  reset_peak(at::kMeta);
  const MemoryReading reading = read_meter(at::kMeta);
  Prediction floor;
  floor.peak_bytes = floor.resident_bytes = reading.peak_bytes;
  floor.breakdown = reading.at_peak;
  return floor;
}

ModelSetup complete_setup(const Workload& workload) {
  ModelSetup setup = workload.setup;
  setup.value_head = setup.value_head || needs_value_head(workload.step.objective);
  return setup;
}

Prediction predict(const Workload& workload, const Settings& settings) {
  return Predictor(complete_setup(workload), workload.device).predict(workload.step, settings);
}

std::string describe(const std::map<std::string, int64_t>& breakdown) {
  std::vector<std::pair<std::string, int64_t>> parts(breakdown.begin(), breakdown.end());
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  int64_t total = 0;
  std::vector<std::string> texts;
  for (const auto& [scope, bytes] : parts) {
    total += bytes;
    texts.push_back(scope + " " + format_bytes(bytes));
  }
  return fmt::format("{}: {}", format_bytes(total), fmt::join(texts, ", "));
}

}  // namespace streambp::plan
