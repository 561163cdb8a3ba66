// The engine's attention for Python, in transformers' layout: a chunk's rows of a batch to all rows so far.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/ATen.h>

namespace streambp::python {

/// Queries [B, H, C, E] to keys and values [B, K, N, E] of one dtype and device, of which the queries are the
/// last C rows; H is a multiple of K. `spans` (int64 [S, 5] on the CPU) has a line for neighbouring rows of
/// the batch that see keys of one kind, in order and not overlapping: the batch's row, the first row and the
/// end, and the first key and the end that they see. Keys that are the span's own rows are seen causally:
/// each row sees those up to itself; others lie before the span, and all of its rows see them. Both as far as
/// a window reaches (0: all). Rows in no span see nothing, and their output is 0. `sinks`: [H], or none.
///
/// Returns output [B, C, H, E], log-sum-exps [B, C, H], and what rounding has left out of the output, as the
/// backward pass wants it, or an empty tensor. Throws as answered() does where sizes do not fit.
std::vector<at::Tensor> attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const at::Tensor& spans, int64_t window, double scale, double softcap,
                                  const std::optional<at::Tensor>& sinks);

/// Its backward pass for d_output [B, C, H, E] and what attention() has returned. Adds the gradients of the
/// rows before the queries to `key_gradients` and `value_gradients` ([B, K, N - C, E], float32 or float64 as
/// the log-sum-exps, a row's heads next to each other in memory). Returns those of the queries [B, H, C, E],
/// of their own keys and values [B, K, C, E], and of sinks [H] where there are any.
std::vector<at::Tensor> attention_backward(const at::Tensor& d_output, const std::vector<at::Tensor>& saved,
                                           const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                           const at::Tensor& spans, int64_t window, double scale,
                                           double softcap, const std::optional<at::Tensor>& sinks,
                                           const at::Tensor& key_gradients,
                                           const at::Tensor& value_gradients);

}  // namespace streambp::python
