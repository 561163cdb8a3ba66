#include "streambp/plan/metered_pass.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

#include <c10/core/Event.h>

#include "streambp/backprop/embeddings.h"
#include "streambp/backprop/gradient_groups.h"
#include "streambp/backprop/method_kind.h"
#include "streambp/data/objective_inputs.h"
#include "streambp/error.h"
#include "streambp/objective/terms.h"
#include "streambp/plan/flops/hardware_flops.h"
#include "streambp/plan/flops/model_flops.h"
#include "streambp/plan/pieces.h"
#include "streambp/runtime/torch_private.h"

namespace streambp::plan {
namespace {

/// Kernels of a GPU run asynchronously: a clock is read when they are done.
void synchronize(c10::Device device) {
  if (device.is_cuda()) torch_private::synchronize(device);
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
    event->record(torch_private::current_stream(device_));
  }

  c10::Device device_;
  std::optional<c10::Event> start_, end_;
};

double process_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Exchanges the values of what is trained for those of the frozen copy, and back at the end.
class FrozenAdapter {
 public:
  explicit FrozenAdapter(Models& models) : models_(models) { exchange(); }
  ~FrozenAdapter() { exchange(); }
  FrozenAdapter(const FrozenAdapter&) = delete;
  FrozenAdapter& operator=(const FrozenAdapter&) = delete;

 private:
  void exchange() {
    auto frozen = models_.frozen_adapter.begin();
    for (const auto& parameter : models_.policy->parameters()) {
      if (!parameter->trainable()) continue;
      const at::Tensor own = parameter->value.clone();
      parameter->value.copy_(*frozen);
      (frozen++)->copy_(own);
    }
  }

  Models& models_;
};

at::Tensor reference_log_probabilities(Models& models, const Batch& batch, double temperature) {
  Model& policy = *models.policy;
  const Batch own = without_given_indices(batch);
  if (models.reference) return evaluate(*models.reference, own, temperature).log_probabilities;
  if (!policy.has_adapters()) return evaluate(policy, own, temperature).log_probabilities;
  std::optional<FrozenAdapter> frozen;
  if (models.adapter_reference == AdapterReference::kAdapter) frozen.emplace(models);
  return adapter_reference(policy, batch, temperature, models.adapter_reference);
}

/// Of a loop whose gradients appear, by a method that hands none over: its peak is where its backward pass
/// begins, when there are none yet, or where it ends, with all of them (`before`).
MemoryReading without_gradients(const MemoryReading& reading, const MemoryReading& before,
                                const Model& model) {
  int64_t bytes = 0;
  for (const auto& [name, gradient] : model.gradients()) bytes += static_cast<int64_t>(gradient.nbytes());
  MemoryReading less = reading;
  less.peak_bytes -= bytes;
  less.at_peak["gradients"] -= bytes;
  if (less.peak_bytes >= before.peak_bytes) return less;
  less.peak_bytes = before.peak_bytes;
  less.at_peak = before.at_peak;
  return less;
}

/// Refuses what would take hours before it begins.
void require_few_pieces(const Model& model, const Settings& settings, int64_t tokens) {
  const int64_t layers = model.config().num_hidden_layers;
  const auto require = [&](const char* flag, int64_t chunk, int64_t runs) {
    if (chunk <= 0 || tokens / chunk <= kMostPieces / runs) return;
    throw InputError("{} {}: a dry run would take {} tokens in {} chunks{}, one by one; expected at least {}",
                     flag, chunk, tokens, (tokens + chunk - 1) / chunk,
                     runs > 1 ? fmt::format(" in {} layers", runs) : "", tokens * runs / kMostPieces + 1);
  };
  if (is_chunked(settings.method)) require("--chunk", settings.chunk, layers);
  if (settings.streams_head()) require("--head-chunk", settings.head_chunk, 1);
}

}  // namespace

void StepRunner::count_flops(const Models& models) {
  const Batch batch = make_batch(step_, models.policy->config().vocab_size);
  if (models.policy->device().is_meta()) require_few_pieces(*models.policy, settings_, batch.size());
  model_flops_ = plan::model_flops(*models.policy, sequence_lengths(batch.offsets));
}

void StepRunner::ask_reference(Models& models) {
  const ObjectiveKind& kind = objective_kind(step_.objective);
  const Options options = complete_options(kind, options_of(step_.objective, step_.options));
  if (!kind.uses_reference || !kind.uses_reference(options)) return;
  const Batch batch = make_batch(step_, models.policy->config().vocab_size);
  const bool is_said = models.reference || models.says_adapter_reference;
  if (!is_said && !needs_reference(kind, options, batch)) return;
  const at::Tensor log_probabilities =
      reference_log_probabilities(models, batch, logit_temperature(kind, options));
  reference_ =
      log_probabilities.is_meta() ? at::zeros({batch.size()}, at::kDouble) : log_probabilities.to(at::kCPU);
}

MeteredPass StepRunner::run(Models& models, std::optional<Recorder>* recorder) {
  Model& model = *models.policy;
  const c10::Device device = model.device();
  Batch batch = make_batch(step_, model.config().vocab_size);
  if (reference_.defined()) {
    batch.sequence_inputs.erase(inputs::kReferenceSums);
    batch.token_inputs[inputs::kReferenceLogProbabilities] = reference_;
  }
  const ObjectiveKind& kind = objective_kind(step_.objective);
  const auto given = options_of(step_.objective, step_.options);
  const auto whole = make_objective(kind.name, batch, given);
  std::vector<Batch> parts = step_.micro_batches == 1
                                 ? std::vector<Batch>{batch}
                                 : micro_batches(batch, step_.micro_batches, has_pairs(kind.layout));
  // What a part needs of the others is computed first: part of the run, where it takes passes of its own.
  const bool two_phases = parts.size() > 1 && whole->request().pooling != Pooling::kNone;
  std::vector<std::unique_ptr<Objective>> objectives;
  if (!two_phases) objectives = part_objectives(model, kind.name, batch, parts, given);
  Model* const teacher = models.teacher ? &*models.teacher : nullptr;
  if (!hardware_flops_) {
    hardware_flops_ = 0.0;
    for (const Batch& part : parts) {
      *hardware_flops_ += plan::hardware_flops(model, part, *whole, settings_, teacher);
      if (two_phases) *hardware_flops_ += forward_flops(model, part);
    }
  }
  Settings settings = settings_;
  settings.consumer = models.fused_optimizer.get();
  model.zero_gradients();
  AppearingGradients appearing;
  if (models.trainer != Trainer::kNone && settings.consumer == nullptr &&
      method_kind(settings.method).fuses_optimizer) {
    settings.consumer = &appearing;
    model.defer_gradients();
  } else if (models.trainer != Trainer::kNone && settings.consumer == nullptr) {
    for (const auto& group : gradient_groups(model)) model.allocate_gradients(group);
  }
  if (device.is_cuda() && !std::exchange(reserved_, true))
    reserve_host_memory(model, parts.front().size(), settings);
  MeteredPass pass;
  pass.tokens = batch.size();
  synchronize(device);
  reset_peak(device);
  const MemoryReading before = read_meter(device);
  pass.resident_bytes = before.live_bytes;
  if (recorder != nullptr) recorder->emplace(device.type());
  const at::Tensor upcasts = wider_activations(models.trainer, model, settings, parts.front().size());
  const double cpu_start = process_seconds();
  GpuTimer gpu_timer(device);
  const auto start = std::chrono::steady_clock::now();
  double loss = 0.0;
  if (two_phases) objectives = part_objectives(model, kind.name, batch, parts, given);
  for (size_t i = 0; i < parts.size(); ++i) {
    pass.outcome = backpropagate(model, parts[i], *objectives[i], settings, teacher);
    loss += pass.outcome.loss;
  }
  pass.gpu_seconds = gpu_timer.stop();
  synchronize(device);
  pass.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  pass.cpu_seconds = process_seconds() - cpu_start;
  pass.memory = read_meter(device);
  if (models.trainer != Trainer::kNone && settings.consumer == nullptr && parts.size() == 1)
    pass.memory = without_gradients(pass.memory, before, model);
  if (models.optimizer.foreach) {
    reset_peak(device);
    step_temporaries(models.optimizer, model);
    const MemoryReading step = read_meter(device);
    if (step.peak_bytes > pass.memory.peak_bytes) {
      pass.memory.peak_bytes = step.peak_bytes;
      pass.memory.at_peak = step.at_peak;
    }
  }
  pass.outcome.loss = loss;
  pass.outcome.log_probabilities.reset();
  pass.outcome.values.reset();
  return pass;
}

}  // namespace streambp::plan
