#include "streambp/ops/attention/indexer.h"

#include <algorithm>
#include <limits>

#include "streambp/memory/meter.h"
#include "streambp/ops/dry_run.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// What the scores of a tile may take, but for one row's.
constexpr int64_t kTileBytes = int64_t{64} << 20;

/// How many rows of descending scores [n, m] have the same number at `count` - 1 and at `count`.
int64_t tied_rows(const at::Tensor& scores, int64_t count) {
  if (!scores.is_cpu() || !has_values(scores) || scores.size(1) <= count) return 0;
  const at::Tensor left_out = scores.select(1, count);
  return (left_out.eq(scores.select(1, count - 1)).logical_and(left_out.isfinite())).sum().item<int64_t>();
}

}  // namespace

at::Tensor pick_rows(const at::Tensor& queries, const at::Tensor& weights, const at::Tensor& keys,
                     int64_t count, int64_t first, int64_t rate, int64_t& tied) {
  const at::NoGradGuard no_grad;
  const MemoryScope scope("indexer scores");
  const int64_t n = queries.size(0), heads = queries.size(1), m = keys.size(0);
  const at::ScalarType wide = sum_dtype(queries);
  const at::Tensor transposed = keys.to(wide).t();
  at::Tensor picks = at::empty({n, count}, queries.options().dtype(at::kInt));
  const auto row_bytes = static_cast<int64_t>(m * (heads * c10::elementSize(wide) + 2 * sizeof(int64_t)));
  const int64_t tile = std::clamp<int64_t>(kTileBytes / row_bytes, 1, n);
  const at::Tensor numbers = at::arange(m, picks.options());
  for (int64_t i = 0; i < n;) {
    const int64_t rows = has_values(queries) ? std::min(tile, n - i) : tile, seen = (first + i + rows) / rate;
    at::Tensor of_heads =
        at::mm(queries.narrow(0, i, rows).to(wide).flatten(0, 1), transposed.narrow(1, 0, seen));
    of_heads = of_heads.relu_().view({rows, heads, seen});
    at::Tensor scores = at::bmm(weights.narrow(0, i, rows).to(wide).unsqueeze(1), of_heads).squeeze(1);
    of_heads.reset();
    const at::Tensor known =  // of each row
        at::arange(first + i + 1, first + i + rows + 1, picks.options()).div(rate, "floor").unsqueeze(1);
    scores.masked_fill_(numbers.narrow(0, 0, seen) >= known, -std::numeric_limits<double>::infinity());
    const auto [sorted, order] = at::sort(scores, /*stable=*/true, /*dim=*/1, /*descending=*/true);
    tied += tied_rows(sorted, count);
    picks.narrow(0, i, rows).copy_(std::get<0>(at::sort(order.narrow(1, 0, count), /*dim=*/1)));
    i = has_values(queries) ? i + rows : n;
  }
  return picks;
}

at::Tensor pick_blocks(const at::Tensor& queries, const at::Tensor& keys, const PickedBlocks& blocks,
                       int64_t first) {
  const at::NoGradGuard no_grad;
  const MemoryScope scope("indexer scores");
  const double nothing = -std::numeric_limits<double>::infinity();
  const int64_t n = queries.size(0), heads = queries.size(1), m = keys.size(0), rate = blocks.rate;
  const at::ScalarType wide = sum_dtype(queries);
  const at::Tensor transposed = keys.to(wide).t();
  at::Tensor picks = at::empty({n, heads, blocks.count}, queries.options().dtype(at::kInt));
  const auto row_bytes = static_cast<int64_t>(m * heads * c10::elementSize(wide) * 2);
  const int64_t tile = std::clamp<int64_t>(kTileBytes / row_bytes, 1, n);
  for (int64_t i = 0; i < n;) {
    const int64_t rows = has_values(queries) ? std::min(tile, n - i) : tile, seen = first + i + rows;
    const int64_t count = (seen + rate - 1) / rate;
    at::Tensor scores =
        at::mm(queries.narrow(0, i, rows).to(wide).flatten(0, 1), transposed.narrow(1, 0, seen))
            .view({rows, heads, seen});
    const at::Tensor own = at::arange(first + i, first + i + rows, picks.options()).view({rows, 1, 1});
    scores.masked_fill_(at::arange(seen, picks.options()) > own, nothing);
    if (count * rate > seen) scores = at::constant_pad_nd(scores, {0, count * rate - seen}, nothing);
    at::Tensor of_blocks = scores.view({rows, heads, count, rate}).amax(-1);
    scores.reset();
    const at::Tensor own_block = own.div(rate, "floor"), numbers = at::arange(count, picks.options());
    of_blocks.masked_fill_((numbers <= own_block) & (numbers > own_block - blocks.local), -nothing);
    const at::Tensor best = std::get<1>(at::sort(of_blocks, /*stable=*/true, /*dim=*/2, /*descending=*/true))
                                .narrow(2, 0, blocks.count);
    picks.narrow(0, i, rows).copy_(std::get<0>(at::sort(best, /*dim=*/2)));
    i = has_values(queries) ? i + rows : n;
  }
  return picks.flatten(1);
}

}  // namespace streambp
