// Attention of one sequence's part of a run by our own CPU kernels: all its score blocks in one call. See
// cpu/attention.h.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/ops/attention/attention.h"
#include "streambp/ops/cpu/kernels.h"

namespace streambp {

/// Whether the kernels serve queries like q [n, H, E]: on the CPU (or the meta device, which stands for it)
/// with fast products (cpu/kernels.h), without a cap on the scores, for heads of a multiple of 16.
bool has_fused_attention(const at::Tensor& q, const Scoring& scoring);

/// One sequence's rows q [n, H, E], k and v [n, K, E], and what of their past they look at. Or one block, q
/// [n, H, E] against k and v [m, K, E], without a prefix.
struct FusedAttention {
  at::Tensor q, k, v;
  const Prefix& prefix;
  const AttentionSettings& settings;
  const cpu::KernelSet& kernels = cpu::kernels();
  std::optional<ScoreBlock> only = std::nullopt;

  /// Writes output [n, H, E], log-sum-exps [n, H] and the remainder, where there is memory for it, into
  /// `result`, which are rows of larger tensors or their own.
  void forward(const AttentionBlock& result) const;

  /// From d_output [n, H, E] and what forward has given. Writes d_queries, adds to d_keys and d_values [n, K,
  /// E], which have the dtype of the log-sum-exps, and adds the prefix's share to its buffers.
  void backward(const at::Tensor& d_output, const AttentionBlock& saved,
                const AttentionBlockGradients& gradients) const;

  /// How many pairs of a query and a key see each other. Profilers and observers of ATen see both passes, as
  /// "streambp::attention" and "streambp::attention_backward", with the queries and this number as inputs.
  int64_t visible_pairs() const;

  /// What the rows see.
  std::vector<ScoreBlock> blocks() const;
};

/// attend and attend_backward of one block (attention_kernels.h); in half precision the output is as wide as
/// its log-sum-exps.
AttentionBlock attend_fused(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Visible visible,
                            const Scoring& scoring);
AttentionBlockGradients attend_backward_fused(const at::Tensor& d_output, const at::Tensor& q,
                                              const at::Tensor& k, const at::Tensor& v,
                                              const at::Tensor& output, const at::Tensor& log_sum_exp,
                                              Visible visible, const Scoring& scoring);

}  // namespace streambp
