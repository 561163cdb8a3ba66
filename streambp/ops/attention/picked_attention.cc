#include "streambp/ops/attention/picked_attention.h"

#include <algorithm>
#include <limits>

#include "streambp/memory/meter.h"
#include "streambp/ops/dry_run.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// Rows [row, row + rows) of the queries, the first of which is row `position` of its sequence, over the keys
/// from `key` on.
struct Tile {
  int64_t row, rows, position, key;

  int64_t keys() const { return position + rows; }
  int64_t scores() const { return rows * keys(); }
};

std::vector<Tile> tiles_of(const at::Tensor& q, const at::Tensor& k, const std::vector<int64_t>& offsets,
                           int64_t tile_bytes) {
  const int64_t prefix = k.size(0) - q.size(0);
  std::vector<Tile> tiles;
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    const int64_t begin = offsets[s], end = offsets[s + 1];
    const int64_t first = s == 0 ? prefix : 0, key = s == 0 ? 0 : prefix + begin;
    const auto row_bytes =
        static_cast<int64_t>((first + end - begin) * q.size(1) * c10::elementSize(sum_dtype(q)));
    const int64_t most = std::max<int64_t>(tile_bytes / row_bytes, 1);
    for (int64_t row = begin; row < end; row += most)
      tiles.push_back({row, std::min(most, end - row), first + row - begin, key});
  }
  // In a dry run the largest stands for all.
  if (!has_values(q)) {
    const auto largest = std::max_element(
        tiles.begin(), tiles.end(), [](const Tile& a, const Tile& b) { return a.scores() < b.scores(); });
    return {*largest};
  }
  return tiles;
}

/// Which keys the tile's rows do not see, [rows, keys].
at::Tensor hidden_keys(const Tile& tile, const PickedRows& picked) {
  const at::Tensor& picks = picked.picks;
  const auto options = picks.options();
  const int64_t topk = picked.of_all_rows ? 0 : picks.size(1), rate = picked.rate;
  const int64_t many = rate * (topk + 1) - 1;  // the first row of a sequence that may see more
  const int64_t dense = std::clamp<int64_t>(many - tile.position, 0, tile.rows);
  at::Tensor hidden = at::ones({tile.rows, tile.keys()}, options.dtype(at::kBool));
  if (dense > 0) {
    const at::Tensor positions = at::arange(tile.position, tile.position + dense, options).unsqueeze(1);
    hidden.narrow(0, 0, dense).copy_(at::arange(tile.keys(), options) > positions);
  }
  if (dense == tile.rows) return hidden;
  at::Tensor rest = hidden.narrow(0, dense, tile.rows - dense);
  const at::Tensor of_rest = picks.narrow(0, tile.row + dense, tile.rows - dense).to(at::kLong);
  if (rate == 1) {
    rest.scatter_(1, of_rest, false);
    return hidden;
  }
  const auto numbers = options.dtype(at::kLong);
  rest.scatter_(1, (of_rest * rate).unsqueeze(2).add(at::arange(rate, numbers)).flatten(1), false);
  const at::Tensor ends = at::arange(tile.position + dense + 1, tile.keys() + 1, numbers).unsqueeze(1);
  const at::Tensor keys = at::arange(tile.keys(), numbers);
  rest.bitwise_and_(at::lt(keys, ends.div(rate, "floor").mul_(rate)).bitwise_or_(at::ge(keys, ends)));
  return hidden;
}

/// Rows [begin, begin + n) of x [., H, E] as [H, n, E] in the dtype of sums.
at::Tensor by_heads(const at::Tensor& x, int64_t begin, int64_t n) {
  return x.narrow(0, begin, n).transpose(0, 1).to(sum_dtype(x));
}

/// The scores [H, rows, keys], -inf where nothing is seen.
at::Tensor scores_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& hidden, double scale) {
  return at::bmm(q, k.transpose(1, 2))
      .mul_(scale)
      .masked_fill_(hidden, -std::numeric_limits<double>::infinity());
}

}  // namespace

AttentionBlock picked_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const std::vector<int64_t>& offsets, const PickedRows& picked, double scale) {
  AttentionBlock all{at::empty_like(q), at::empty({q.size(0), q.size(1)}, q.options().dtype(sum_dtype(q)))};
  const MemoryScope scope("attention tile");
  for (const Tile& tile : tiles_of(q, k, offsets, picked.tile_bytes)) {
    at::Tensor p = scores_of(by_heads(q, tile.row, tile.rows), by_heads(k, tile.key, tile.keys()),
                             hidden_keys(tile, picked), scale);
    const at::Tensor highest = p.amax(-1, /*keepdim=*/true);
    const at::Tensor sums = p.sub_(highest).exp_().sum(-1, /*keepdim=*/true);
    const at::Tensor y = at::bmm(p, by_heads(v, tile.key, tile.keys())).div_(sums);
    all.output.narrow(0, tile.row, tile.rows).copy_(y.transpose(0, 1));
    all.log_sum_exp.narrow(0, tile.row, tile.rows).copy_(sums.log().add_(highest).squeeze(-1).t());
  }
  return all;
}

AttentionBlockGradients picked_attention_backward(const at::Tensor& dy, const at::Tensor& log_sum_exp,
                                                  const at::Tensor& q, const at::Tensor& k,
                                                  const at::Tensor& v, const std::vector<int64_t>& offsets,
                                                  const PickedRows& picked, double scale) {
  const auto wide = q.options().dtype(sum_dtype(q));
  AttentionBlockGradients all{at::empty_like(q), at::zeros(k.sizes(), wide), at::zeros(v.sizes(), wide)};
  const MemoryScope scope("attention tile");
  for (const Tile& tile : tiles_of(q, k, offsets, picked.tile_bytes)) {
    const at::Tensor queries = by_heads(q, tile.row, tile.rows), keys = by_heads(k, tile.key, tile.keys());
    const at::Tensor d_output = by_heads(dy, tile.row, tile.rows);
    const at::Tensor p = scores_of(queries, keys, hidden_keys(tile, picked), scale)
                             .sub_(log_sum_exp.narrow(0, tile.row, tile.rows).t().unsqueeze(-1))
                             .exp_();
    const auto add = [&](const at::Tensor& to, const at::Tensor& of_tile) {
      to.narrow(0, tile.key, tile.keys()).add_(of_tile.transpose(0, 1));
    };
    add(all.d_values, at::bmm(p.transpose(1, 2), d_output));
    at::Tensor ds = at::bmm(d_output, by_heads(v, tile.key, tile.keys()).transpose(1, 2));
    // The sum of p dp, and not dy . y, of which y may have been rounded.
    ds = ds.mul_(p).sub_(p * ds.sum(-1, /*keepdim=*/true)).mul_(scale);
    all.d_queries.narrow(0, tile.row, tile.rows).copy_(at::bmm(ds, keys).transpose(0, 1));
    add(all.d_keys, at::bmm(ds.transpose(1, 2), queries));
  }
  return all;
}

}  // namespace streambp
