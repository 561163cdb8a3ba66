// An indexer's scores (DeepSeek-V3.2, 2025): which earlier rows a row of sparse attention sees.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

namespace streambp {

/// The `count` rows of the highest scores
///     sum over heads h of weights_h max(0, queries_h . keys)
/// for queries [n, H, E] and weights [n, H] of rows from row `first` of their sequence on. Keys [m, E] are of
/// blocks of `rate` rows each, and a row's are those of the blocks that end with it or before it, which are
/// `count` or more: [n, count] int32, ascending. Of equal scores, which are zeros where no head has a
/// positive product, the earlier row's counts as the higher. torch.topk, which transformers asks, leaves that
/// open, and on a CPU it takes others: there `tied` is added how many of the rows leave out one whose score
/// is that of one they pick. In tiles, in float32 or wider, and without autograd: no gradient reaches a
/// choice.
at::Tensor pick_rows(const at::Tensor& queries, const at::Tensor& weights, const at::Tensor& keys,
                     int64_t count, int64_t first, int64_t rate, int64_t& tied);

/// Blocks that are picked: `count` of those of `rate` rows, the last `local` of them whatever their scores.
struct PickedBlocks {
  int64_t count = 0;
  int64_t rate = 1;
  int64_t local = 0;
};

/// For each of several heads the blocks of the highest scores (MiniMax M3, 2026), each the largest
///     queries_h . keys
/// of its rows up to the query's own: queries [n, H, E] of rows from row `first` of their sequence on, which
/// see more than `count` blocks each, and keys [m, E] of rows of the sequence: [n, H count] int32, ascending
/// for each head. Of equal scores the earlier block's counts as the higher. In tiles, in float32 or wider,
/// and without autograd.
at::Tensor pick_blocks(const at::Tensor& queries, const at::Tensor& keys, const PickedBlocks& blocks,
                       int64_t first);

}  // namespace streambp
