// The transformer block that some layers run before their state space (Zamba 2; Glorioso et al., 2024, arXiv
// 2411.15242). Several layers have the same one.
#pragma once

#include "streambp/ops/linear.h"
#include "streambp/ops/mlp/mlp.h"
#include "streambp/ops/rms_norm.h"

namespace streambp {

/// The maps and norms around attention, whose projections are the layer's, in the model's names below
/// model.layers.N.shared_transformer. What x [n, D] and the model's first hidden states e [n, D] become is
///     linear(mlp(before_mlp(o_proj(attention(input_norm([x, e]))))))
/// without residual connections. Maps are over parameters of the lowest layer that runs the block; `linear`
/// is the layer's own, and so are the adapters that maps have.
struct SharedBlock {
  RmsNorm input_norm;  // [2 D]
  const Linear* o_proj = nullptr;
  RmsNorm before_mlp;
  GatedMlp mlp;
  const Linear* linear = nullptr;

  bool is_there() const { return linear != nullptr; }
  bool trainable() const;
};

/// `residual` [n, D] and what the block makes of the output of its attention [n, H E].
at::Tensor add_block(const at::Tensor& residual, const at::Tensor& attended, const SharedBlock& block);

}  // namespace streambp
