// Numbers of config.json that are not quite what they should be: gradients follow them smoothly, so that the
// error of somebody's gradients, along what a number changes, says which one it is and what its value is.
#pragma once

#include <functional>
#include <vector>

#include "verify/diagnose/parts/parts.h"

namespace streambp::verify {

/// Explanations by one number of the config, whose residual is within the limit. Takes a pass for each number
/// that the model has, and some for those that come near. `run` makes a mistake, and may throw InputError.
std::vector<Explanation> explain_by_numbers(
    const WrongSubject& subject, const FitGauge& gauge, const Tensors& truth, const PartsLimits& limits,
    const std::function<Tensors(const WrongSubject&, const WrongSettings&)>& run);

}  // namespace streambp::verify
