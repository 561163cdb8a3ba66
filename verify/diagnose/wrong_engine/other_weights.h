// A model whose weights are not all what they should be: left out, turned round, or those of another step.
#pragma once

#include <string>

#include "verify/diagnose/wrong_engine/wrong_engine.h"

namespace streambp::verify {

/// The kind of all matrices of layers.
inline constexpr const char* kAllMatrices = "matrices of layers";

/// A parameter's name without the numbers of its layer and expert: self_attn.q_proj.weight,
/// mlp.experts.*.up_proj.weight, model.norm.weight.
std::string kind_of(const std::string& name);

/// Whether `settings` ask for other values of the weights.
bool changes_weights(const WrongSettings& settings);

/// A parameter's value under the changes of `settings`.
at::Tensor changed_value(const Parameter& parameter, const WrongSettings& settings);

/// The gradient of the parameter as it is, given that of its changed value: changes are linear.
at::Tensor unchanged_gradient(const std::string& name, const at::Tensor& gradient,
                              const WrongSettings& settings);

}  // namespace streambp::verify
