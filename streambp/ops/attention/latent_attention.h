// Latent attention (DeepSeek-AI, 2024, arXiv 2405.04434): the keys and values of all heads are projections of
// one small vector a token, its latent, next to one rotated key that the heads share. Only these two are held
// of earlier tokens; what a group of heads attends to is projected when the group is run, and again in the
// backward pass.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/ops/attention/attention.h"
#include "streambp/ops/attention/picked_attention.h"
#include "streambp/ops/linear.h"

namespace streambp {

/// Sizes of a head, and what projects its keys and values.
struct LatentHeads {
  const Linear* kv_b_proj =
      nullptr;        // [H (nope + value), L], no bias: of each head its key's rows, then its value's
  int64_t heads = 0;  // H
  int64_t nope = 0;   // of a key's entries those that don't rotate
  int64_t rope = 0;   // those that do
  int64_t value = 0;
  /// The most that keys and values of as many heads as are run at a time may take, but for one head alone.
  int64_t group_bytes = int64_t{64} << 20;

  int64_t key() const { return nope + rope; }
  /// Columns of keys and values as attention's kernels take them, which want one width: the narrower of the
  /// two are filled with zeros.
  int64_t width() const { return key() > value ? key() : value; }
};

/// How many heads are run at a time over `tokens` tokens, own and earlier ones.
int64_t latent_group(const LatentHeads& heads, int64_t tokens, int64_t element_size);

/// attention(), or where `picked` says which rows are seen picked_attention(), for q [n, H, nope + rope],
/// whose last entries are rotated, over the keys and values of `latents` [n, 1, L] and `rotated` [n, 1,
/// rope], and of those of `prefix`, its keys and values. Returns [n, H, value]. Keeps q, the latents, the
/// result and its log-sum-exps. The backward pass adds the gradients of the projection and of sinks, which
/// must outlive the graph, and the prefix's where somebody wants them.
at::Tensor latent_attention(const at::Tensor& q, const at::Tensor& latents, const at::Tensor& rotated,
                            const std::vector<int64_t>& offsets, const Prefix& prefix,
                            const AttentionSettings& settings, const LatentHeads& heads,
                            const PickedRows& picked = {});

}  // namespace streambp
