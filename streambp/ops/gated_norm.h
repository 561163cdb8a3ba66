// The norm at the end of a gated delta rule's layer: a root-mean-square norm of each head, times silu of a
// gate.
#pragma once

#include <ATen/ATen.h>

#include "streambp/ops/parameter.h"

namespace streambp {

/// weight * x / sqrt(mean(x^2) + eps) * silu(z), each head normed on its own: x [n, heads, size], z [n, heads
/// * size], weight [size], which must outlive the graph. Returns [n, heads * size] in x's dtype, computed in
/// float32, or float64 for float64, and rounded once.
at::Tensor gated_rms_norm(const at::Tensor& x, const at::Tensor& z, Parameter& weight, double eps);

}  // namespace streambp
