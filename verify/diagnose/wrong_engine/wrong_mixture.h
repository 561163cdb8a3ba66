// A mixture of experts whose weights, or what they multiply, are not what they should be.
#pragma once

#include "streambp/ops/mlp/mixture.h"
#include "verify/diagnose/wrong_engine/wrong_settings.h"

namespace streambp::verify {

/// What the mixture adds to the residual stream for x [n, D], op by op under autograd, with the mistake of
/// `settings.experts`. `right` must outlive the graph. Throws InputError for weights of experts that it does
/// not know.
at::Tensor wrong_mixture(const at::Tensor& x, const Mixture& right, const WrongSettings& settings);

}  // namespace streambp::verify
