// Attention in which each row sees those earlier rows alone that have been picked for it.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/ops/attention/attention.h"

namespace streambp {

/// Picks [n, groups topk] int32 of n rows as RowPicks has them: numbers of rows, or of blocks of `rate` rows,
/// within each row's sequence, to be read where a row sees more than topk, or `of_all_rows`. Each group of
/// neighbouring query heads has topk of its own. Undefined: each row sees all rows up to itself.
/// With a tail the blocks are whole ones, and a row sees of the block that has not ended with it the rows up
/// to itself besides; picks are read where it sees more than topk whole blocks.
struct PickedRows {
  at::Tensor picks;
  /// The most that a tile's scores may take, but for one row's.
  int64_t tile_bytes = int64_t{64} << 20;
  bool of_all_rows = false;
  int64_t groups = 1;
  bool has_tail = false;
  int64_t rate = 1;
};

/// softmax(scale scores) v for q [n, H, E] over k and v [P + n, K, E], heads as in attend(), of which the
/// first P are the earlier rows of the sequence that q's first rows continue. `offsets` (0 first, n last) cut
/// q's rows into sequences. In tiles of some rows of q over all of the rows that the last of them may see,
/// under a mask: any device and dtype, and in float32 or wider.
AttentionBlock picked_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const std::vector<int64_t>& offsets, const PickedRows& picked, double scale);

/// Its backward pass for dy [n, H, E]. The gradients of k and v are float32 or wider.
AttentionBlockGradients picked_attention_backward(const at::Tensor& dy, const at::Tensor& log_sum_exp,
                                                  const at::Tensor& q, const at::Tensor& k,
                                                  const at::Tensor& v, const std::vector<int64_t>& offsets,
                                                  const PickedRows& picked, double scale);

/// The same of keys and values [n, K, E] of the rows themselves, behind those of `prefix`, to whose buffers
/// its share of the gradient is added. With autograd; `known` as in attention().
at::Tensor picked_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::vector<int64_t>& offsets, const Prefix& prefix,
                            const PickedRows& picked, double scale, AttentionBlock& known);

}  // namespace streambp
