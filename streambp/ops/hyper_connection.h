// Hyper-connections (Zhu et al., 2024, arXiv 2409.19606): a token has several residual streams, side by side
// in one row. What a layer reads is a weighted sum of them, and what it gives is added to each with a weight
// of its own; the weights are gates of the token's streams. In the independent form of Hunyuan 4 a stream
// keeps what it has; in the manifold-constrained form of DeepSeek V4 (Xie et al., 2025, arXiv 2512.24880) the
// streams are mixed first. All of it looks at one token alone, so it streams over chunks as a norm does.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

#include "streambp/ops/parameter.h"

namespace streambp {

/// How the streams x_s of a token are mixed before a layer's share is added: into sum_j c_js x_j, where c [S,
/// S] is a softmax over s of
///     scale (fn x) / rms(x) + base
/// plus eps, made nearly doubly stochastic by Sinkhorn and Knopp: divided by its sums over j plus eps, and
/// `iterations` - 1 times by those over s and over j again. Without fn they are not mixed.
struct StreamMix {
  Parameter* fn = nullptr;     // [S S, S D]
  Parameter* base = nullptr;   // [S S]
  Parameter* scale = nullptr;  // [1]
  double eps = 0.0;
  int64_t iterations = 1;

  bool are_mixed() const { return fn != nullptr; }
  bool trainable() const {
    return are_mixed() && (fn->trainable() || base->trainable() || scale->trainable());
  }
};

/// One weight for each of S streams of D numbers, of a token's streams x [S D]:
///     g = magnitude sigmoid(scale (fn x) / rms(x) + base) + eps
/// Without fn there are no streams. Computed in the parameters' dtype or x's, whichever is wider.
struct StreamGates {
  Parameter* fn = nullptr;     // [S, S D]
  Parameter* base = nullptr;   // [S]
  Parameter* scale = nullptr;  // [1]
  double magnitude = 1.0;
  double eps = 0.0;
  double norm_eps = 0.0;  // of rms(x) = sqrt(mean of squares + norm_eps)
  StreamMix mix = {};     // of gates of what is given

  bool are_there() const { return fn != nullptr; }
  bool trainable() const {
    return are_there() && (fn->trainable() || base->trainable() || scale->trainable() || mix.trainable());
  }
  int64_t streams() const { return fn->value.size(0); }
};

/// sum_s g_s x_s [n, D] of the streams x [n, S D]; keeps x alone. The gates must outlive the graph, whose
/// backward pass adds their gradients.
at::Tensor sum_streams(const at::Tensor& x, const StreamGates& gates);

/// x_s + g_s y for each stream, [n, S D], of the streams x [n, S D], mixed where the gates say so, and y [n,
/// D]; keeps x and y. Likewise.
at::Tensor add_to_streams(const at::Tensor& x, const at::Tensor& y, const StreamGates& gates);

/// sum_streams without autograd, and its backward pass for dy [n, D].
at::Tensor sum_streams_forward(const at::Tensor& x, const StreamGates& gates);
at::Tensor sum_streams_backward(const at::Tensor& dy, const at::Tensor& x, const StreamGates& gates);

}  // namespace streambp
