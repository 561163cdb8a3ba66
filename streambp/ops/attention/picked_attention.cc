#include "streambp/ops/attention/picked_attention.h"

#include <algorithm>
#include <limits>

#include "streambp/memory/meter.h"
#include "streambp/ops/differentiable.h"
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

/// Which keys the tile's rows do not see, [groups, rows, keys].
at::Tensor hidden_keys(const Tile& tile, const PickedRows& picked) {
  const at::Tensor& picks = picked.picks;
  const auto options = picks.options();
  const int64_t groups = picked.groups, topk = picked.of_all_rows ? 0 : picks.size(1) / groups;
  // The first row of a sequence that may see more.
  const int64_t many = picked.rate * topk + (picked.has_tail ? picked.rate - 1 : 0);
  const int64_t dense = std::clamp<int64_t>(many - tile.position, 0, tile.rows);
  at::Tensor hidden = at::ones({groups, tile.rows, tile.keys()}, options.dtype(at::kBool));
  const auto later = [&](int64_t first, int64_t rows) {
    const int64_t position = tile.position + first;
    return at::arange(tile.keys(), options) > at::arange(position, position + rows, options).unsqueeze(1);
  };
  if (dense > 0) hidden.narrow(1, 0, dense).copy_(later(0, dense));
  if (dense == tile.rows) return hidden;
  const int64_t rest = tile.rows - dense;
  const at::Tensor of_groups =
      picks.narrow(0, tile.row + dense, rest).view({rest, groups, -1}).transpose(0, 1).to(at::kLong);
  if (picked.rate == 1) {
    hidden.narrow(1, dense, rest).scatter_(2, of_groups, false);
    return hidden;
  }
  const int64_t blocks = (tile.keys() + picked.rate - 1) / picked.rate;
  const at::Tensor of_blocks =
      at::ones({groups, rest, blocks}, hidden.options()).scatter_(2, of_groups, false);
  const at::Tensor of_keys =
      of_blocks.unsqueeze(3).expand({groups, rest, blocks, picked.rate}).reshape({groups, rest, -1});
  const at::Tensor sees_not = hidden.narrow(1, dense, rest).copy_(of_keys.narrow(2, 0, tile.keys()));
  if (!picked.has_tail) {
    sees_not.bitwise_or_(later(dense, rest));
    return hidden;
  }
  const auto numbers = options.dtype(at::kLong);
  const at::Tensor keys = at::arange(tile.keys(), numbers);
  const at::Tensor ends = at::arange(tile.position + dense + 1, tile.keys() + 1, numbers).unsqueeze(1);
  sees_not.bitwise_and_(
      at::lt(keys, ends.div(picked.rate, "floor").mul_(picked.rate)).bitwise_or_(at::ge(keys, ends)));
  return hidden;
}

/// Rows [begin, begin + n) of x [., H, E] as [H, n, E] in the dtype of sums.
at::Tensor by_heads(const at::Tensor& x, int64_t begin, int64_t n) {
  return x.narrow(0, begin, n).transpose(0, 1).to(sum_dtype(x));
}

/// The same of query heads, those that read a key head one after another: [K, H / K n, E].
at::Tensor by_key_heads(const at::Tensor& x, int64_t begin, int64_t n, int64_t key_heads) {
  const at::Tensor heads = by_heads(x, begin, n);
  return heads.size(0) == key_heads ? heads : heads.reshape({key_heads, -1, x.size(2)});
}

/// The scores [K, H / K rows, keys] for q of by_key_heads, -inf where `hidden` [groups, rows, keys] is set.
at::Tensor scores_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& hidden, double scale) {
  at::Tensor scores = at::bmm(q, k.transpose(1, 2)).mul_(scale);
  scores.view({hidden.size(0), -1, hidden.size(1), hidden.size(2)})
      .masked_fill_(hidden.unsqueeze(1), -std::numeric_limits<double>::infinity());
  return scores;
}

/// Keys or values of a prefix, where there are any, and of rows behind them.
at::Tensor after_prefix(const at::Tensor& earlier, const at::Tensor& own) {
  return earlier.defined() && earlier.size(0) > 0 ? at::cat({earlier, own}) : own;
}

}  // namespace

AttentionBlock picked_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const std::vector<int64_t>& offsets, const PickedRows& picked, double scale) {
  AttentionBlock all{at::empty_like(q), at::empty({q.size(0), q.size(1)}, q.options().dtype(sum_dtype(q)))};
  const MemoryScope scope("attention tile");
  for (const Tile& tile : tiles_of(q, k, offsets, picked.tile_bytes)) {
    at::Tensor p = scores_of(by_key_heads(q, tile.row, tile.rows, k.size(1)),
                             by_heads(k, tile.key, tile.keys()), hidden_keys(tile, picked), scale);
    const at::Tensor highest = p.amax(-1, /*keepdim=*/true);
    const at::Tensor sums = p.sub_(highest).exp_().sum(-1, /*keepdim=*/true);
    const at::Tensor y = at::bmm(p, by_heads(v, tile.key, tile.keys())).div_(sums);
    all.output.narrow(0, tile.row, tile.rows)
        .copy_(y.view({q.size(1), tile.rows, v.size(2)}).transpose(0, 1));
    all.log_sum_exp.narrow(0, tile.row, tile.rows)
        .copy_(sums.log().add_(highest).view({q.size(1), tile.rows}).t());
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
    const int64_t key_heads = k.size(1);
    const at::Tensor queries = by_key_heads(q, tile.row, tile.rows, key_heads),
                     keys = by_heads(k, tile.key, tile.keys());
    const at::Tensor d_output = by_key_heads(dy, tile.row, tile.rows, key_heads);
    const at::Tensor sums = log_sum_exp.narrow(0, tile.row, tile.rows).t().reshape({key_heads, -1, 1});
    const at::Tensor p = scores_of(queries, keys, hidden_keys(tile, picked), scale).sub_(sums).exp_();
    const auto add = [&](const at::Tensor& to, const at::Tensor& of_tile) {
      to.narrow(0, tile.key, tile.keys()).add_(of_tile.transpose(0, 1));
    };
    add(all.d_values, at::bmm(p.transpose(1, 2), d_output));
    at::Tensor ds = at::bmm(d_output, by_heads(v, tile.key, tile.keys()).transpose(1, 2));
    // The sum of p dp, and not dy . y, of which y may have been rounded.
    ds = ds.mul_(p).sub_(p * ds.sum(-1, /*keepdim=*/true)).mul_(scale);
    all.d_queries.narrow(0, tile.row, tile.rows)
        .copy_(at::bmm(ds, keys).view({q.size(1), tile.rows, q.size(2)}).transpose(0, 1));
    add(all.d_keys, at::bmm(ds.transpose(1, 2), queries));
  }
  return all;
}

at::Tensor picked_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::vector<int64_t>& offsets, const Prefix& prefix,
                            const PickedRows& picked, double scale, AttentionBlock& known) {
  const at::Tensor queries = q.detach(), keys = k.detach(), values = v.detach();
  if (!known.output.defined()) {
    const at::NoGradGuard no_grad;
    known = picked_attention(queries, after_prefix(prefix.keys, keys), after_prefix(prefix.values, values),
                             offsets, picked, scale);
  }
  return differentiable(
      {q, k, v}, known.output, "picked_attention",
      [queries, keys, values, offsets, prefix, picked, scale,
       sums = known.log_sum_exp](std::vector<at::Tensor>&& dy) {
        const at::NoGradGuard no_grad;
        const AttentionBlockGradients all =
            picked_attention_backward(dy[0], sums, queries, after_prefix(prefix.keys, keys),
                                      after_prefix(prefix.values, values), offsets, picked, scale);
        const int64_t earlier = prefix.size(), n = keys.size(0);
        if (earlier > 0 && prefix.key_gradients.defined()) {
          at::Tensor(prefix.key_gradients).add_(all.d_keys.narrow(0, 0, earlier));
          at::Tensor(prefix.value_gradients).add_(all.d_values.narrow(0, 0, earlier));
        }
        const auto own = [&](const at::Tensor& gradient, const at::Tensor& of) {
          return gradient.narrow(0, earlier, n).to(of.scalar_type());
        };
        return std::vector<at::Tensor>{all.d_queries, own(all.d_keys, keys), own(all.d_values, values)};
      });
}

}  // namespace streambp
