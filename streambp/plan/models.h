// The models of a training run, made once and used by every pass.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "streambp/backprop/adapter_reference.h"
#include "streambp/model/model.h"
#include "streambp/plan/workload.h"

namespace streambp::plan {

struct Models {
  std::optional<Model> policy;
  std::optional<Model> reference;  // frozen; without one, adapters off
  std::optional<Model> teacher;    // frozen
  /// Of a policy with adapters and no `reference`. Fresh ones (ModelSetup::lora) are compared with the base.
  AdapterReference adapter_reference = AdapterReference::kUnsaid;
  bool says_adapter_reference = false;       // then log-probabilities that a batch has are not taken
  std::vector<at::Tensor> frozen_adapter;    // of kAdapter: the trained parameters' first values
  std::vector<at::Tensor> optimizer_states;  // of the policy's trained parameters
  OptimizerStates optimizer;                 // that they are of
  Trainer trainer = Trainer::kNone;
  std::vector<at::Tensor> trainer_weights;     // wider_weights
  std::unique_ptr<Optimizer> fused_optimizer;  // consumes the policy's gradients; null: they are kept
};

/// Policy, with adapters, value head and optimizer states, and teacher, on `device`; no reference. Throws as
/// open_model does, or OutOfMemory.
Models open_models(const ModelSetup& setup, c10::Device device);

/// The reference model of `setup`, which names one: frozen.
Model open_reference(const ModelSetup& setup, c10::Device device);

/// A dtype of ModelSetup that may be wider than the model's `dtype`: `name` is same (as it) or float32.
/// Throws InputError, which begins with `what`, a flag or a key, for others and for float32 of a float64
/// model.
at::ScalarType parse_wide_dtype(const std::string& what, const std::string& name, at::ScalarType dtype);

/// Whether `name` contains one of `patterns` (ModelSetup::freeze).
bool contains_any(const std::string& name, const std::vector<std::string>& patterns);

}  // namespace streambp::plan
