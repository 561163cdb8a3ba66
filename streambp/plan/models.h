// The models of a training run, made once and used by every pass.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "streambp/model/model.h"
#include "streambp/plan/workload.h"

namespace streambp::plan {

struct Models {
  std::optional<Model> policy;
  std::optional<Model> reference;              // frozen; without one, adapters off
  std::optional<Model> teacher;                // frozen
  std::vector<at::Tensor> optimizer_states;    // of the policy's trained parameters
  std::unique_ptr<Optimizer> fused_optimizer;  // consumes the policy's gradients; null: they are kept
};

/// Policy, with adapters, value head and optimizer states, and teacher, on `device`; no reference. Throws as
/// open_model does, or OutOfMemory.
Models open_models(const ModelSetup& setup, c10::Device device);

/// The reference model of `setup`, which names one: frozen.
Model open_reference(const ModelSetup& setup, c10::Device device);

/// Whether `name` contains one of `patterns` (ModelSetup::freeze).
bool contains_any(const std::string& name, const std::vector<std::string>& patterns);

}  // namespace streambp::plan
