// Attention whose output has a gate of its own (Qwen3-Next, Qwen3.5, Muse Glimmer, Step 3.7; arXiv
// 2505.06708).
#pragma once

#include <ATen/ATen.h>

namespace streambp {

/// x sigmoid(gates) for x [n, H, E] and gates [n, H, E], which may be a view with strides, or [n, H, 1].
at::Tensor gated_output(const at::Tensor& x, const at::Tensor& gates);

}  // namespace streambp
