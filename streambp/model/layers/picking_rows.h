// Some rows of a stream, as what indexers pick for them is found.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

#include "streambp/ops/linear.h"
#include "streambp/ops/rows/row_picks.h"

namespace streambp {

struct PickingRows {
  RowPicks* picks = nullptr;  // null: every row sees all rows up to itself
  int64_t layer = 0;          // whose indexer picks: the rows' own, or one below
  int64_t begin = 0;          // of the rows in the stream
  int64_t sequence_begin = 0;
};

/// The first of rows [begin, end), counted from the first of `picking`, for which the indexer picks; or one
/// that is not before `end`.
inline int64_t first_picking(const PickingRows& picking, int64_t begin, int64_t end) {
  if (begin >= end) return end;
  return picking.picks->first_open(picking.layer, picking.begin + begin, picking.begin + end) - picking.begin;
}

/// x [n, in] through an indexer's map, without autograd, whose weight may be wider than x: [n, out] as wide.
inline at::Tensor wide_product(const Linear& map, const at::Tensor& x) {
  const at::ScalarType wide = map.weight->value.scalar_type();
  const at::Tensor rows = x.to(wide);
  at::Tensor y = at::mm(rows, map.weight->value.t());
  if (!map.adapter || !map.adapter->enabled) return y;
  const LowRankAdapter& adapter = *map.adapter;
  const at::Tensor inner = at::mm(rows, adapter.a->value.to(wide).t());
  return y.addmm_(inner, adapter.b->value.to(wide).t(), /*beta=*/1, adapter.scale);
}

}  // namespace streambp
