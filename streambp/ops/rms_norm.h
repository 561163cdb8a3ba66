// Root-mean-square norm over the last dimension: y = w * x / sqrt(mean(x^2) + eps)  (Zhang and Sennrich,
// 2019); in Gemma's norms 1 + w stands for w, in Cohere's x - mean(x) for x (Ba et al., 2016).
#pragma once

#include <ATen/ATen.h>

#include "streambp/ops/parameter.h"

namespace streambp {

struct RmsNorm {
  Parameter* weight = nullptr;  // [size]; of one that centers also [heads, size], for x [n, heads, size]
  double eps = 1e-6;
  bool adds_one = false;  // Gemma's: multiplies by 1 + weight
  bool centers = false;   // Cohere's: of x less its mean
};

/// What the backward pass needs of a forward one.
struct RmsNormSaved {
  at::Tensor x;     // [..., size]
  at::Tensor rstd;  // [..., 1], float32 or wider
};

/// The value, without autograd. x [..., size]. Half-precision inputs are normalised in float32, rounded, then
/// scaled, as Hugging Face does; Gemma's and Cohere's norms are scaled in float32, then rounded.
at::Tensor rms_norm_forward(const at::Tensor& x, const RmsNorm& norm, RmsNormSaved& saved);

/// The gradient of x for dy [..., size]; adds the weight's.
at::Tensor rms_norm_backward(const at::Tensor& dy, const RmsNormSaved& saved, const RmsNorm& norm);

/// The same two op by op in ATen: for devices without kernels of ours, and a second opinion for tests.
at::Tensor rms_norm_forward_plain(const at::Tensor& x, const RmsNorm& norm, RmsNormSaved& saved);
at::Tensor rms_norm_backward_plain(const at::Tensor& dy, const RmsNormSaved& saved, const RmsNorm& norm);

/// norm(x) under autograd. The norm must outlive the graph.
at::Tensor rms_norm(const at::Tensor& x, const RmsNorm& norm);

/// residual + norm(x), for the norms that Gemma puts on the outputs of attention and MLP.
at::Tensor rms_norm_add(const at::Tensor& residual, const at::Tensor& x, const RmsNorm& norm);

}  // namespace streambp
