// Numbers of config.json that are not quite what they should be: gradients follow them smoothly, so that the
// error of somebody's gradients, along what a number changes, says which one it is and what its value is.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "verify/diagnose/parts/parts.h"

namespace streambp::verify {

/// What makes a mistake, and may throw InputError.
using MakeMistake = std::function<Tensors(const WrongSubject&, const WrongSettings&)>;

/// Directions in which weights may be off, by what they are called: "their gradient".
using WeightDirections = std::vector<std::pair<std::string, std::shared_ptr<const Tensors>>>;

/// Those of a step of an optimizer that should have been taken, or not: along the true gradients and along
/// `gradients`, those that are given, and along the signs of both.
WeightDirections steps_of(const Tensors& truth, const Tensors& gradients);

/// Explanations by one number of the config, by the adapters' scale or by a step of the weights along one of
/// `directions`, whose residual is within the limit.
/// Takes a run for each number that the model has, and some for those that come near. `run` makes the
/// gradients that `gauge` and `truth` are of, be it those of some parameters alone; `confirm` measures what
/// is found against all.
std::vector<Explanation> explain_by_numbers(const WrongSubject& subject, const FitGauge& gauge,
                                            const Tensors& truth, const PartsLimits& limits,
                                            const WeightDirections& directions, const MakeMistake& run,
                                            const std::function<Fit(const WrongSettings&)>& confirm);

}  // namespace streambp::verify
