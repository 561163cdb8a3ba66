// Gradients that are right in another place: under another parameter's name, transposed, in another order of
// rows or columns; or right but for what was done to each entry in the end.
#pragma once

#include <vector>

#include "verify/diagnose/locate.h"
#include "verify/diagnose/parts/fit.h"

namespace streambp::verify {

/// What makes the truth of all gradients that are beyond their limits; nothing where that is not so of one.
std::vector<Explanation> explain_by_places(const Tensors& gradients, const Tensors& truth,
                                           const GradientLimits& limits, const FitGauge& gauge);

}  // namespace streambp::verify
