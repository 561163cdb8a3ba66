#include "bench/cell.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <limits>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "streambp/plan/hardware_flops.h"
#include "streambp/plan/model_flops.h"
#include "bench/models.h"
#include "streambp/backprop/embeddings.h"
#include "streambp/runtime/failure.h"
#include "streambp/runtime/gpu.h"
#include "streambp/data/objective_inputs.h"
#include "streambp/cli/records.h"
#include "streambp/error.h"
#include "streambp/model/tensor_file.h"
#include "streambp/objective/terms.h"
#include "streambp/ops/attention_device.h"
#include "streambp/ops/cuda/library.h"

namespace streambp::bench {
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

/// Time on a GPU's own clock, from construction on; nothing elsewhere.
class GpuTimer {
 public:
  explicit GpuTimer(c10::Device device) : device_(device) {
    if (device.is_cuda()) mark(start_);
  }

  double stop() {
    if (!device_.is_cuda()) return 0.0;
    mark(end_);
    end_->synchronize();
    return 1e-3 * start_->elapsedTime(*end_);
  }

 private:
  void mark(std::optional<c10::Event>& event) const {
    event.emplace(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }

  c10::Device device_;
  std::optional<c10::Event> start_, end_;
};

double process_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

json lora_settings(const SweepOptions& options) {
  if (options.adapter) return options.adapter->string();
  if (!options.lora) return nullptr;
  return {{"r", options.lora->r},
          {"lora_alpha", options.lora->lora_alpha},
          {"use_rslora", options.lora->use_rslora},
          {"target_modules", options.lora->target_modules}};
}

/// Puts "auto" where an automatic cell leaves the choice open, and what the choice has to fit.
void leave_open(const SweepOptions& options, json& configuration) {
  configuration["method"] = "auto";
  json& settings = configuration["settings"];
  const auto open_unless_fixed = [&](const char* flag, const char* member, const json& fixed) {
    settings[member] = options.fixed.contains(flag) ? fixed : json("auto");
  };
  open_unless_fixed("--keep-attention", "keep_attention", options.keep_attention);
  open_unless_fixed("--every", "every", options.every);
  open_unless_fixed("--offload", "offload", options.offload == Offload::kHost ? "host" : "none");
  settings["chunk"] = json::array();
  for (const int64_t chunk : options.chunks) settings["chunk"].push_back(or_auto(chunk));
  settings["order"] = options.order == Order::kForward ? "forward" : "reverse";
  settings["baseline"] = options.hugging_face ? "hugging-face" : "fair";
  settings["head"] = !options.stream_head ? "auto" : *options.stream_head ? "streamed" : "full";
  settings["head_chunk"] = or_auto(options.head_chunk);
  settings["budget"] = or_null(options.budget);
  settings["host_budget"] = or_null(options.host_budget);
}

json fused_settings(const SweepOptions& options) {
  if (!options.fused_optimizer) return nullptr;
  const OptimizerSettings& fused = *options.fused_optimizer;
  json settings{{"name", fused.name}, {"learning_rate", fused.learning_rate}};
  if (fused.name != "sgd") settings["bits"] = 8 * c10::elementSize(fused.dtype);
  if (fused.name == "galore") settings["rank"] = fused.rank;
  return settings;
}

}  // namespace

std::map<std::string, std::string> options_of(const std::string& name,
                                              const std::map<std::string, std::string>& given) {
  std::map<std::string, std::string> options;
  for (const Option& option : objective_kind(name).options) {
    if (const auto found = given.find(option.name); found != given.end()) options.insert(*found);
  }
  return options;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

Batch cell_batch(const Bench& bench, const Cell& cell) {
  if (bench.batch) return *bench.batch;
  const ObjectiveKind& kind = objective_kind(cell.objective);
  return synthetic_batch(
      kind, complete_options(kind, options_of(cell.objective, bench.options.objective_options)), cell.batch,
      cell.seq_len, bench.config.vocab_size, bench.options.seed, bench.options.prompt);
}

bool stand_in_for_reference(const std::string& objective, const std::map<std::string, std::string>& given,
                            Batch& batch) {
  const ObjectiveKind& kind = objective_kind(objective);
  if (!needs_reference(kind, complete_options(kind, given), batch)) return false;
  batch.token_inputs[inputs::kReferenceLogProbabilities] = at::zeros({batch.size()}, at::kDouble);
  return true;
}

json cell_configuration(const Bench& bench, const Cell& cell) {
  const SweepOptions& options = bench.options;
  const Settings& settings = cell.settings;
  const bool streambp = takes(settings.method, "keep_attention");
  const bool chunked = is_chunked(settings.method);
  const json tokens_file = options.tokens ? json(options.tokens->string()) : json(nullptr);
  json configuration{{"model", options.model},
                     {"family", bench.config.family},
                     {"parameters", parameter_count(bench.config)},
                     {"objective", cell.objective},
                     {"method", method_name(settings.method)},
                     {"settings",
                      {{"chunk", chunked ? or_auto(settings.chunk) : json(nullptr)},
                       {"keep_attention", streambp ? json(settings.keep_attention) : json(nullptr)},
                       {"every", streambp ? json(settings.every) : json(nullptr)},
                       {"offload", !streambp                            ? json(nullptr)
                                   : settings.offload == Offload::kHost ? json("host")
                                                                        : json("none")},
                       {"order", !streambp                           ? json(nullptr)
                                 : settings.order == Order::kForward ? json("forward")
                                                                     : json("reverse")},
                       {"baseline", !takes(settings.method, "baseline") ? json(nullptr)
                                    : settings.hugging_face        ? json("hugging-face")
                                                                   : json("fair")},
                       {"head", settings.streams_head() ? "streamed" : "full"},
                       {"head_chunk", settings.streams_head() ? or_auto(settings.head_chunk) : json(nullptr)},
                       {"gradient_dtype", dtype_name(options.gradient_dtype)},
                       {"optimizer", optimizer_settings(options.optimizer)},
                       {"fused_optimizer", fused_settings(options)},
                       {"objective_options", options_of(cell.objective, options.objective_options)},
                       {"prompt", positive_or_null(options.prompt)},
                       {"micro_batches", options.micro_batches},
                       {"lora", lora_settings(options)},
                       {"release_reference", options.release_reference},
                       {"reference", options.reference.empty() ? json(nullptr) : json(options.reference)},
                       {"teacher", options.teacher.empty() ? json(nullptr) : json(options.teacher)},
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
  if (cell.automatic) leave_open(options, configuration);
  // Where it is not set it is not named: keys of records from before it was a setting stay what they are.
  if (options.deterministic) configuration["settings"]["deterministic"] = true;
  return configuration;
}

void CellRun::ask_reference(Models& models) {
  const ObjectiveKind& kind = objective_kind(cell_.objective);
  const Options options =
      complete_options(kind, options_of(cell_.objective, bench_.options.objective_options));
  if (!kind.uses_reference || !kind.uses_reference(options)) return;
  const Batch batch = cell_batch(bench_, cell_);
  if (!models.reference && !needs_reference(kind, options, batch)) return;
  const bool has_temperature = std::any_of(kind.options.begin(), kind.options.end(),
                                           [](const Option& option) { return option.name == "temperature"; });
  const double temperature =
      has_temperature ? options.number("temperature", 0.0, std::numeric_limits<double>::max()) : 1.0;
  // The base of an adapted model is its own reference.
  Model& reference = models.reference ? *models.reference : *models.policy;
  reference.enable_adapters(false);
  const at::Tensor log_probabilities = evaluate(reference, batch, temperature).log_probabilities;
  reference.enable_adapters(true);
  reference_ =
      log_probabilities.is_meta() ? at::zeros({batch.size()}, at::kDouble) : log_probabilities.to(at::kCPU);
}

void CellRun::prepare(Models& models) {
  model_flops_ = plan::model_flops(*models.policy, plan::sequence_lengths(cell_batch(bench_, cell_).offsets));
  try {
    ask_reference(models);
  } catch (const std::exception& error) {
    fail(is_out_of_memory(error) ? "oom" : "error", error.what());
  }
}

CellRun::Pass CellRun::run_pass(Models& models, std::optional<Recorder>& recorder) {
  Model& model = *models.policy;
  Batch batch = cell_batch(bench_, cell_);
  if (reference_.defined()) {
    batch.sequence_inputs.erase(inputs::kReferenceSums);
    batch.token_inputs[inputs::kReferenceLogProbabilities] = reference_;
  }
  const ObjectiveKind& kind = objective_kind(cell_.objective);
  const auto given = options_of(cell_.objective, bench_.options.objective_options);
  const auto whole = make_objective(kind.name, batch, given);
  std::vector<Batch> parts = bench_.options.micro_batches == 1
                                 ? std::vector<Batch>{batch}
                                 : micro_batches(batch, bench_.options.micro_batches, has_pairs(kind.layout));
  // What a part needs of the others is computed first: part of the run, where it takes passes of its own.
  const bool two_phases = parts.size() > 1 && whole->request().pooling != Pooling::kNone;
  std::vector<std::unique_ptr<Objective>> objectives;
  if (!two_phases) objectives = part_objectives(model, kind.name, batch, parts, given);
  Model* const teacher = models.teacher ? &*models.teacher : nullptr;
  if (!hardware_flops_) {
    hardware_flops_ = 0.0;
    for (const Batch& part : parts) {
      *hardware_flops_ += plan::hardware_flops(model, part, *whole, cell_.settings, teacher);
      if (two_phases) *hardware_flops_ += plan::forward_flops(model, part);
    }
  }
  model.zero_gradients();
  Pass pass;
  pass.tokens = batch.size();
  synchronize(bench_.device);
  reset_peak(bench_.device);
  pass.resident_bytes = read_meter(bench_.device).live_bytes;
  if (bench_.options.records_memory()) recorder.emplace(bench_.device.type());
  const double cpu_start = process_seconds();
  GpuTimer gpu_timer(bench_.device);
  const auto start = std::chrono::steady_clock::now();
  double loss = 0.0;
  Settings settings = cell_.settings;
  settings.optimizer = models.fused_optimizer.get();
  if (two_phases) objectives = part_objectives(model, kind.name, batch, parts, given);
  for (size_t i = 0; i < parts.size(); ++i) {
    pass.outcome = backpropagate(model, parts[i], *objectives[i], settings, teacher);
    loss += pass.outcome.loss;
  }
  pass.gpu_seconds = gpu_timer.stop();
  synchronize(bench_.device);
  pass.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  pass.cpu_seconds = process_seconds() - cpu_start;
  pass.memory = read_meter(bench_.device);
  pass.outcome.loss = loss;
  pass.outcome.log_probabilities.reset();
  pass.outcome.values.reset();
  return pass;
}

void CellRun::repeat(Models& models) {
  std::optional<Recorder> recorder;
  if (bench_.device.is_cuda() && passes_.empty()) gpu_before_ = gpu_state(bench_.device.index());
  try {
    passes_.push_back(run_pass(models, recorder));
  } catch (const std::exception& error) {
    fail(is_out_of_memory(error) ? "oom" : "error", error.what());
  }
  if (bench_.device.is_cuda()) gpu_after_ = gpu_state(bench_.device.index());
  if (recorder) recording_ = std::make_shared<const Recording>(recorder->stop());
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

const CellRun::Pass* CellRun::worst() const {
  if (passes_.empty()) return nullptr;
  return &*std::max_element(passes_.begin(), passes_.end(), [](const Pass& a, const Pass& b) {
    return a.memory.peak_bytes - a.resident_bytes < b.memory.peak_bytes - b.resident_bytes;
  });
}

json CellRun::record(const json& environment) const {
  const Batch batch = cell_batch(bench_, cell_);
  const int64_t tokens = batch.size();
  json record = cell_configuration(bench_, cell_);
  const bool predicted = bench_.device.is_meta();
  record.update({{"schema", kRecordSchema},
                 {"key", record_key(record)},
                 {"kind", predicted ? "predicted" : "measured"},
                 {"tokens", tokens},
                 {"model_flops", or_null(model_flops_)},
                 {"hardware_flops", or_null(hardware_flops_)},
                 {"gemm_flops_per_second", or_null(gemm_flops_per_second_)},
                 {"percent_of_gemm", nullptr},
                 {"chunk", positive_or_null(std::min(cell_.settings.chunk, tokens))},
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
  if (bench_.device.is_cuda()) {
    record["environment"].update({{"gpu_before", gpu_before_},
                                  {"gpu_after", gpu_after_},
                                  {"own_kernels", cuda::kernels() != nullptr},
                                  {"attention_choices", attention_choices()}});
  }
  if (passes_.empty() || status_ == "oom") return record;

  const Pass& most = *worst();
  record.update({{"chunk", positive_or_null(most.outcome.chunk)},
                 {"head_chunk", positive_or_null(most.outcome.head_chunk)},
                 {"peak_bytes", most.memory.peak_bytes},
                 {"resident_bytes", most.resident_bytes},
                 {"peak_beyond_resident_bytes", most.memory.peak_bytes - most.resident_bytes},
                 {"host_peak_bytes", most.memory.host_peak_bytes},
                 {"breakdown_at_peak", most.memory.at_peak}});
  if (predicted) return record;
  std::vector<double> seconds, cpu_seconds, gpu_seconds;
  for (const Pass& pass : passes_) {
    seconds.push_back(pass.seconds);
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
                 {"tokens_per_second", static_cast<double>(tokens) / median(seconds)},
                 {"loss", passes_.back().outcome.loss}});
  if (gemm_flops_per_second_) {
    record["percent_of_gemm"] = 100.0 * *hardware_flops_ / median(seconds) / *gemm_flops_per_second_;
  }
  return record;
}

}  // namespace streambp::bench
