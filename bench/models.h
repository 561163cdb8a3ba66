// The models of a run, on its device: opened once, used by every cell.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "bench/cell.h"

namespace streambp::bench {

/// The models of a sweep.
struct Models {
  std::optional<Model> policy;
  std::optional<Model> reference;  // for log-probabilities to compare with; without one, adapters off
  std::optional<Model> teacher;
  std::vector<at::Tensor> optimizer_states;    // of the policy's trained parameters
  std::unique_ptr<Optimizer> fused_optimizer;  // uses the policy's gradients up; null: they are kept
};

/// Policy, with adapters, value head and optimizer states, and teacher, as the options ask; no reference.
/// Throws as open_model does, or OutOfMemory.
Models open_models(const Bench& bench);

/// The --reference model: frozen.
Model open_reference(const Bench& bench);

}  // namespace streambp::bench
