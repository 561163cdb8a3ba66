// Blocks of neighbouring rows made one row each (DeepSeek V4): entry by entry a sum of the block's rows whose
// weights are a softmax of gates, rows of their own with a bias by place.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/ops/attention/attention.h"
#include "streambp/ops/parameter.h"

namespace streambp {

/// Row b of E entries stands for rows [b rate, (b + 1) rate) of its sequence: of the row r = [v, z] at place
/// p of its block, v and z of E entries each,
///     sum over the block's rows of softmax(z + bias_p) v
/// and with `overlaps` v and z have 2 E entries: the last E are the block's own, the first E are the next
/// block's, whose softmax is over its own rows and those of the block before it, if there is one.
struct BlockPooling {
  Parameter* bias = nullptr;  // [rate, E], or [rate, 2 E]
  int64_t rate = 0;
  bool overlaps = false;

  int64_t blocks(int64_t rows) const { return rows / rate; }
};

/// The rows [M, E] of all whole blocks of the sequences among `own` [n, 1, W], which `offsets` (0 first, n
/// last) cut, the first of them behind `prefix.values`; sequence by sequence. Keeps nothing but its operands:
/// the backward pass takes the softmax again, and adds the gradient of the bias, which must outlive the
/// graph, and the prefix's where somebody wants it.
at::Tensor pooled_blocks(const at::Tensor& own, const Prefix& prefix, const std::vector<int64_t>& offsets,
                         const BlockPooling& pooling);

/// The same without autograd of one sequence's rows [m, W].
at::Tensor pooled_blocks_forward(const at::Tensor& rows, const BlockPooling& pooling);

}  // namespace streambp
