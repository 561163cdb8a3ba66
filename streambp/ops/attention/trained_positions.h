// What trained numbers make of positions (Mistral Large 4): factors of the rotary embedding's frequencies,
// and of each head's queries one that grows with the logarithm of their position.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

#include "streambp/ops/parameter.h"
#include "streambp/ops/rope.h"

namespace streambp {

/// y [n, heads, E], whose entries [first, first + R) rope() has rotated by `table`, the frequencies of which
/// are f e^alpha for alpha [R/2]: y itself, whose backward pass adds alpha's gradient. The table has angles.
/// Keeps y, and nothing where alpha is frozen. alpha must outlive the graph.
at::Tensor with_trained_frequencies(const at::Tensor& y, int64_t first, const RopeTable& table,
                                    Parameter& alpha);

/// Two numbers of each head, [H].
struct QueryScales {
  Parameter *scale = nullptr, *bias = nullptr;  // both null: there are none

  bool are_there() const { return scale != nullptr; }
};

/// q [n, H, E] times scale_h log(1 + position) + bias_h, where `log_positions` [n] (float64) are those
/// logarithms. Keeps q. The scales must outlive the graph.
at::Tensor scaled_queries(const at::Tensor& q, const at::Tensor& log_positions, const QueryScales& scales);

/// The same without autograd.
at::Tensor scaled_queries_forward(const at::Tensor& q, const at::Tensor& log_positions,
                                  const QueryScales& scales);

}  // namespace streambp
