// The norms at the end of recurrent layers: a root-mean-square norm of each head times silu of a gate (gated
// delta rule), or of the product with it (Mamba-2).
#pragma once

#include <ATen/ATen.h>

#include "streambp/ops/parameter.h"

namespace streambp {

enum class NormGate { kSilu, kLogistic };

/// weight * x / sqrt(mean(x^2) + eps) * silu(z), or times the logistic function of z, each head normed on its
/// own: x [n, heads, size], z [n, heads
/// * size], weight [size], which must outlive the graph. Returns [n, heads * size] in x's dtype, computed in
/// float32, or float64 for float64, and rounded once.
at::Tensor gated_rms_norm(const at::Tensor& x, const at::Tensor& z, Parameter& weight, double eps,
                          NormGate gate = NormGate::kSilu);

/// The norm of what is gated, as Mamba-2 has it: weight * g / sqrt(mean(g^2) + eps) for g = x silu(z), each
/// of `groups` equal parts of a row normed on its own: x [n, heads, size], z [n, heads * size], weight [heads
/// * size]. The rest as gated_rms_norm.
at::Tensor norm_of_gated(const at::Tensor& x, const at::Tensor& z, Parameter& weight, int64_t groups,
                         double eps);

}  // namespace streambp
