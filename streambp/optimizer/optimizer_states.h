// What an optimizer keeps for each weight it trains, allocated so that the meter counts it.
#pragma once

#include <string>
#include <vector>

#include "streambp/model/model.h"

namespace streambp {

/// An optimizer, as far as memory is concerned.
struct OptimizerStates {
  std::string name = "none";
  int states = 0;  // numbers kept for each trained one: sgd's momentum 1, adamw's moments 2
  at::ScalarType dtype = at::kFloat;  // of a state; kByte: 8 bits, without the scales of their blocks
  bool master_weights = false;        // a float32 copy of every trained weight
  bool foreach = false;               // a step has all square roots at once: as many numbers as a state
};

/// `name` is none, sgd, adamw, adamw-foreach (torch's AdamW where it is not fused) or paged-adamw (states in
/// the host's memory between steps), `bits` 32, 16 or 8. Throws InputError for another name, and for master
/// weights of a model that is not in half precision.
OptimizerStates parse_optimizer(const std::string& name, int bits, bool master_weights, at::ScalarType dtype);

/// The states of all trained parameters of `model`, on its device, under the scopes "optimizer" and "master
/// weights".
std::vector<at::Tensor> allocate_states(const OptimizerStates& optimizer, const Model& model);

/// What the optimizer's step has in addition while it is taken.
std::vector<at::Tensor> step_temporaries(const OptimizerStates& optimizer, const Model& model);

}  // namespace streambp
