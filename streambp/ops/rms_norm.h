// Root-mean-square norm over the last dimension: y = w * x / sqrt(mean(x^2) + eps)  (Zhang and Sennrich,
// 2019).
#pragma once

#include <ATen/ATen.h>

#include "streambp/ops/parameter.h"

namespace streambp {

/// What the backward pass needs of a forward one.
struct RmsNormSaved {
  at::Tensor x;     // [..., size]
  at::Tensor rstd;  // [..., 1], float32 or wider
};

/// The value, without autograd. x [..., size], weight [size]. Half-precision inputs are normalised in
/// float32, rounded, then scaled, as Hugging Face does.
at::Tensor rms_norm_forward(const at::Tensor& x, const Parameter& weight, double eps, RmsNormSaved& saved);

/// The gradient of x for dy [..., size]; adds the weight's.
at::Tensor rms_norm_backward(const at::Tensor& dy, const RmsNormSaved& saved, Parameter& weight);

at::Tensor rms_norm(const at::Tensor& x, Parameter& weight, double eps);

}  // namespace streambp
