// An indexer's scores (DeepSeek-V3.2, 2025): which earlier rows a row of sparse attention sees.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

namespace streambp {

/// The `count` rows of the highest scores
///     sum over heads h of weights_h max(0, queries_h . keys)
/// for queries [n, H, E] and weights [n, H] of the last n of m rows of a sequence with keys [m, E], each
/// among the rows up to itself, which are `count` or more: [n, count] int32, ascending. Of equal scores,
/// which are zeros where no head has a positive product, the earlier row's counts as the higher: torch.topk,
/// which transformers asks, leaves that open. In tiles, in float32 or wider, and without autograd: no
/// gradient reaches a choice.
at::Tensor pick_rows(const at::Tensor& queries, const at::Tensor& weights, const at::Tensor& keys,
                     int64_t count);

}  // namespace streambp
