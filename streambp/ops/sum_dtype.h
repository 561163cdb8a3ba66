// The dtype in which sums are taken.
#pragma once

#include <ATen/ATen.h>

namespace streambp {

/// Of norms, softmaxes, log-probabilities and gradients of keys: float32, or float64 for float64 inputs.
inline at::ScalarType sum_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}
inline at::ScalarType sum_dtype(const at::Tensor& x) {
  return sum_dtype(x.scalar_type());
}

}  // namespace streambp
