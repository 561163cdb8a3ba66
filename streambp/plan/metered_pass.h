// One back-propagation under the meter: the same code for a measured cell and for a dry run.
#pragma once

#include <cstdint>
#include <optional>

#include "streambp/backprop/method.h"
#include "streambp/memory/meter.h"
#include "streambp/memory/recorder.h"
#include "streambp/plan/models.h"

namespace streambp::plan {

/// What one pass took and gave.
struct MeteredPass {
  double seconds = 0.0;
  double cpu_seconds = 0.0;    // of all threads of this process
  double gpu_seconds = 0.0;    // between events on the GPU's stream; 0 elsewhere
  int64_t tokens = 0;          // of the whole batch
  int64_t resident_bytes = 0;  // alive before the pass: weights, gradients, optimizer states
  MemoryReading memory;
  Outcome outcome;  // without its tensors

  int64_t beyond_resident() const { return memory.peak_bytes - resident_bytes; }
};

/// The passes of one training step by one method.
class StepRunner {
 public:
  StepRunner(TrainingStep step, Settings settings) : step_(std::move(step)), settings_(std::move(settings)) {}

  /// What one pass asks for (streambp/plan/flops/model_flops.h). Throws as make_batch does.
  void count_flops(const Models& models);

  /// To be called before the first pass: asks the reference for its log-probabilities, where the objective
  /// compares with some that the batch does not have. Throws what evaluate() throws.
  void ask_reference(Models& models);

  /// Sets the gradients to zero, makes the batch and runs one pass, timed and metered. `recorder`: null, or
  /// where a recorder of the pass is made, which the caller stops, whether the pass throws or not. Throws
  /// what the pass throws.
  MeteredPass run(Models& models, std::optional<Recorder>* recorder = nullptr);

  /// None before count_flops().
  std::optional<double> model_flops() const { return model_flops_; }

  /// What one pass executes (streambp/plan/flops/hardware_flops.h); none before the first one was tried.
  std::optional<double> hardware_flops() const { return hardware_flops_; }

 private:
  TrainingStep step_;
  Settings settings_;
  std::optional<double> model_flops_;
  std::optional<double> hardware_flops_;
  bool reserved_ = false;  // host memory for what is offloaded
  at::Tensor reference_;   // [N] log-probabilities, where ask_reference() has asked for them
};

}  // namespace streambp::plan
