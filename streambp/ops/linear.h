// y = x W^T + b.
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "streambp/ops/parameter.h"

namespace streambp {

/// A linear map: weight [out, in] and, where there is one, bias [out].
struct Linear {
  Parameter* weight = nullptr;
  Parameter* bias = nullptr;

  bool trainable() const { return weight->trainable() || (bias != nullptr && bias->trainable()); }
};

/// x [n, in] through the map, without autograd: [n, out].
at::Tensor linear_forward(const Linear& linear, const at::Tensor& x);

/// Adds the parameters' gradients for inputs x [n, in] (may be undefined where the map is frozen) and dy [n,
/// out].
void linear_accumulate(const Linear& linear, const at::Tensor& x, const at::Tensor& dy);

/// dx += dy W, or dx = dy W where dx is undefined. dy [n, out], dx [n, in].
void linear_backward_input(const Linear& linear, const at::Tensor& dy, at::Tensor& dx);

/// Several maps of one input: x is kept once and its gradient is summed in place.
std::vector<at::Tensor> linear(const at::Tensor& x, const std::vector<Linear>& maps);

/// residual + map(x), in one pass. residual [n, out], x [n, in].
at::Tensor linear_add(const at::Tensor& residual, const at::Tensor& x, const Linear& map);

}  // namespace streambp
