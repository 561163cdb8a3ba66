// The gated MLP of a decoder with its residual: y = residual + down(silu(gate(x)) * up(x)).
#pragma once

#include <ATen/ATen.h>

#include "streambp/ops/linear.h"

namespace streambp {

/// residual [n, D], x [n, D], maps gate and up [F, D], down [D, F].
/// Of the four [n, F] tensors that plain autograd would keep (gate, its activation, up, their product) two
/// are kept: the activation and the product are cheaper to compute again than to hold.
at::Tensor gated_mlp(const at::Tensor& residual, const at::Tensor& x, const Linear& gate, const Linear& up,
                     const Linear& down);

}  // namespace streambp
