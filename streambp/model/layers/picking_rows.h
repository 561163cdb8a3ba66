// Some rows of a stream, as what indexers pick for them is found.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/model/config/attention_settings.h"
#include "streambp/ops/attention/indexer.h"
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

/// Picks for n rows in sequences from `offsets` on, where any of them may see more than is picked. `held`:
/// what the indexer keeps of the rows from the sequence of the first on. `asks` gives the queries [n, H, E]
/// and weights [n, H] of the rows, and is called once, if at all; `keys` gives what of a sequence's share of
/// `held` is picked from, and that share's first row in it.
template <typename Asks, typename Keys>
void pick_in_sequences(const IndexerSettings& settings, const at::Tensor& held, int64_t n,
                       const std::vector<int64_t>& offsets, const PickingRows& picking, const Asks& asks,
                       const Keys& keys) {
  const int64_t rate = settings.rows_of_pick(), prefix = picking.begin - picking.sequence_begin;
  const int64_t many = rate * (settings.topk + 1) - 1;  // the first row of a sequence that may see more
  at::Tensor queries, weights;
  int64_t tied = 0;
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    const int64_t end = offsets[s + 1], first = s == 0 ? prefix : 0;
    const int64_t begin = first_picking(picking, offsets[s] + std::max<int64_t>(many - first, 0), end);
    if (begin >= end) continue;
    if (!queries.defined()) std::tie(queries, weights) = asks();
    const int64_t key = s == 0 ? 0 : prefix + offsets[s], rows = end - begin;
    picking.picks->keep(picking.layer, picking.begin + begin,
                        pick_rows(queries.narrow(0, begin, rows), weights.narrow(0, begin, rows),
                                  keys(held.narrow(0, key, first + end - offsets[s]), key), settings.topk,
                                  first + begin - offsets[s], rate, tied));
  }
  picking.picks->count_tied(picking.layer, tied);
  picking.picks->finish(picking.layer, picking.begin + n);
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
