// What Muse Spark adds to a token's stream, and norms: gates with a temperature, one of each entry, and norms
// of what is scaled first.
#pragma once

#include <ATen/ATen.h>

#include "streambp/ops/rms_norm.h"

namespace streambp {

/// A trained number g [D] of each entry of a token's stream, by which a half of a layer is added to it.
struct ResidualGate {
  Parameter* gate = nullptr;  // [D], float32 or wider
  double temperature = 1.0;

  bool is_there() const { return gate != nullptr; }
  bool trainable() const { return gate != nullptr && gate->trainable(); }
};

/// a residual + b x for residual and x [n, D], with w = g / temperature, b = sigmoid(w) and
/// a = sqrt(max(sigmoid(-w) (1 + b), 0.001)). Computed in float32 or wider.
at::Tensor gated_sum(const at::Tensor& residual, const at::Tensor& x, const ResidualGate& gate);

/// The norm of u = (1 + weight) x, u / sqrt(mean(u^2) + eps), for x [n, D]: its value without autograd, the
/// gradient of x for dy, which adds the weight's, and the value under autograd. In half precision u is
/// rounded, as in transformers.
at::Tensor norm_of_scaled_forward(const at::Tensor& x, const RmsNorm& norm);
at::Tensor norm_of_scaled_backward(const at::Tensor& dy, const at::Tensor& x, const RmsNorm& norm);
at::Tensor norm_of_scaled(const at::Tensor& x, const RmsNorm& norm);

}  // namespace streambp
