// Attention in which a row sees the last rows of a window, and of all that is before those, blocks of rows
// made one row each (DeepSeek V4). Keys are values, and all heads have the same.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/ops/attention/attention.h"

namespace streambp {

/// The rows that stand for blocks, [M, E], of the sequences one after another.
struct SeenBlocks {
  at::Tensor rows;   // undefined: there are none
  int64_t rate = 0;  // rows in a block; a row sees blocks that end with it or before it
  at::Tensor picks;  // [n, topk] int32: which of them it sees where it may see more than topk; undefined: all
  bool picks_of_all_rows = false;  // whether they are to be read of every row that may see any
};

/// softmax(scores) k for q [n, H, E] over keys and values k, of `own` [n, 1, E], behind `prefix.keys` the
/// first of the sequences that `offsets` (0 first, n last) cut, and of `blocks`: a row sees the settings'
/// window of rows up to itself, its sequence's blocks, and its head's sink where there is one. Returns [n, H,
/// E]. In tiles of some rows over all keys that any of them sees, under a mask: any device and dtype, in
/// float32 or wider. Keeps its operands, the result and its log-sum-exps. The backward pass adds the
/// gradients of sinks, which must outlive the graph, and of the prefix, where somebody wants it.
at::Tensor block_attention(const at::Tensor& q, const at::Tensor& own, const Prefix& prefix,
                           const std::vector<int64_t>& offsets, const SeenBlocks& blocks,
                           const AttentionSettings& settings);

}  // namespace streambp
