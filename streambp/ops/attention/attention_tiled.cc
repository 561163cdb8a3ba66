// Attention from matrix products, tile by tile: see attention_kernels.h.
#include <algorithm>
#include <limits>
#include <vector>

#include <ATen/record_function.h>

#include "streambp/memory/meter.h"
#include "streambp/ops/attention/attention_kernels.h"
#include "streambp/ops/dry_run.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

constexpr int64_t kQueryTile = 256;
constexpr int64_t kKeyTile = 1024;

/// Query rows [n, H, E] as [K, n * G, E]: the G query heads of a key head become rows of one product.
at::Tensor group_by_key_head(const at::Tensor& rows, int64_t key_heads) {
  const int64_t n = rows.size(0);
  const int64_t groups = rows.size(1) / key_heads;
  return rows.reshape({n, key_heads, groups, -1}).permute({1, 0, 2, 3}).reshape({key_heads, n * groups, -1});
}

/// The reverse: [K, n * G, E] to [n, H, E].
at::Tensor ungroup(const at::Tensor& grouped, int64_t n) {
  const int64_t key_heads = grouped.size(0);
  const int64_t groups = grouped.size(1) / n;
  return grouped.reshape({key_heads, n, groups, -1})
      .permute({1, 0, 2, 3})
      .reshape({n, key_heads * groups, -1});
}

/// Calls body(q_begin, q_rows, k_begin, k_rows) for every pair of tiles with anything visible. In a dry run a
/// pair as large as any stands for all.
template <typename Body>
void for_each_tile(const at::Tensor& q, const at::Tensor& k, Visible visible, Body body) {
  const MemoryScope scope("kernel workspace");
  const int64_t queries = q.size(0), keys = k.size(0);
  if (!has_values(q)) {
    const int64_t q_rows = std::min(kQueryTile, queries);
    return body(queries - q_rows, q_rows, 0, std::min(kKeyTile, keys));
  }
  for (int64_t q_begin = 0; q_begin < queries; q_begin += kQueryTile) {
    const int64_t q_rows = std::min(kQueryTile, queries - q_begin);
    const int64_t k_end = visible == Visible::kCausal ? q_begin + q_rows : keys;
    for (int64_t k_begin = 0; k_begin < k_end; k_begin += kKeyTile) {
      body(q_begin, q_rows, k_begin, std::min(kKeyTile, k_end - k_begin));
    }
  }
}

/// The scores of one pair of tiles, [K, rows * G, keys], -inf where the key is not visible.
at::Tensor scores(const at::Tensor& q, const at::Tensor& k, int64_t q_begin, int64_t q_rows, int64_t k_begin,
                  Visible visible, const Scoring& scoring) {
  at::Tensor products = at::bmm(q, k.permute({1, 2, 0}));
  if (scoring.softcap > 0.0) {
    products.mul_(scoring.scale / scoring.softcap).tanh_().mul_(scoring.softcap);
  } else {
    products.mul_(scoring.scale);
  }
  if (visible == Visible::kCausal) {
    const int64_t groups = q.size(1) / q_rows;
    const auto options = q.options().dtype(at::kLong);
    const at::Tensor row =
        at::arange(q_begin, q_begin + q_rows, options).repeat_interleave(groups).unsqueeze(1);
    const at::Tensor column = at::arange(k_begin, k_begin + k.size(0), options);
    products.masked_fill_((column > row).unsqueeze(0), -std::numeric_limits<double>::infinity());
  }
  return products;
}

/// What profilers and observers of ATen see of a call, as of the fused kernels' (attention_fused.h).
std::vector<c10::IValue> seen_of(const at::Tensor& q, const at::Tensor& k, Visible visible) {
  return {q, visible_pairs({0, q.size(0), 0, k.size(0), visible})};
}

at::Tensor widened(const at::Tensor& x) {
  return x.to(sum_dtype(x));
}

}  // namespace

AttentionBlock attend_tiled(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Visible visible,
                            const Scoring& scoring) {
  RECORD_FUNCTION("streambp::attention", seen_of(q, k, visible));
  const int64_t key_heads = k.size(1);
  const at::Tensor wide_q = widened(q), wide_k = widened(k), wide_v = widened(v);
  AttentionBlock all{
      at::zeros_like(wide_q, at::MemoryFormat::Contiguous),
      at::full({q.size(0), q.size(1)}, -std::numeric_limits<double>::infinity(), wide_q.options())};
  for_each_tile(q, k, visible, [&](int64_t q_begin, int64_t q_rows, int64_t k_begin, int64_t k_rows) {
    const at::Tensor tile_q = group_by_key_head(wide_q.narrow(0, q_begin, q_rows), key_heads);
    at::Tensor weights =
        scores(tile_q, wide_k.narrow(0, k_begin, k_rows), q_begin, q_rows, k_begin, visible, scoring);
    // A tile on the diagonal may hide every key of its first rows: their share is nothing, not 0/0.
    const at::Tensor largest =
        weights.amax(-1, /*keepdim=*/true).clamp_min_(-std::numeric_limits<float>::max());
    const at::Tensor sum = weights.sub_(largest).exp_().sum(-1, /*keepdim=*/true);
    const at::Tensor log_sum_exp = sum.log().add_(largest);
    const at::Tensor output = at::bmm(weights, wide_v.narrow(0, k_begin, k_rows).transpose(0, 1))
                                  .div_(sum.clamp_min(std::numeric_limits<float>::min()));
    AttentionBlock so_far{all.output.narrow(0, q_begin, q_rows), all.log_sum_exp.narrow(0, q_begin, q_rows)};
    merge(so_far, {ungroup(output, q_rows), ungroup(log_sum_exp, q_rows).squeeze(-1)});
  });
  return all;  // in half precision as wide as it was summed: other blocks may be merged with it before it is
               // rounded
}

AttentionBlockGradients attend_backward_tiled(const at::Tensor& d_output, const at::Tensor& q,
                                              const at::Tensor& k, const at::Tensor& v,
                                              const at::Tensor& output, const at::Tensor& log_sum_exp,
                                              Visible visible, const Scoring& scoring) {
  RECORD_FUNCTION("streambp::attention_backward", seen_of(q, k, visible));
  const int64_t key_heads = k.size(1);
  const at::Tensor wide_q = widened(q), wide_k = widened(k), wide_v = widened(v), wide_d = widened(d_output);
  const at::Tensor correction = (wide_d * widened(output)).sum(-1, /*keepdim=*/true);  // [n, H, 1]
  const auto zeros = [](const at::Tensor& like) {
    return at::zeros_like(like, at::MemoryFormat::Contiguous);
  };
  const at::Tensor dq = zeros(wide_q), dk = zeros(wide_k), dv = zeros(wide_v);
  for_each_tile(q, k, visible, [&](int64_t q_begin, int64_t q_rows, int64_t k_begin, int64_t k_rows) {
    const auto rows = [&](const at::Tensor& x) {
      return group_by_key_head(x.narrow(0, q_begin, q_rows), key_heads);
    };
    const at::Tensor tile_k = wide_k.narrow(0, k_begin, k_rows), tile_v = wide_v.narrow(0, k_begin, k_rows);
    const at::Tensor tile_q = rows(wide_q), tile_d = rows(wide_d);
    at::Tensor weights = scores(tile_q, tile_k, q_begin, q_rows, k_begin, visible, scoring);
    at::Tensor slope;  // of the capped scores: 1 - tanh^2
    if (scoring.softcap > 0.0) slope = (weights / scoring.softcap).square_().neg_().add_(1.0);
    weights.sub_(rows(log_sum_exp.to(wide_q.scalar_type()).unsqueeze(-1))).exp_();
    dv.narrow(0, k_begin, k_rows).transpose(0, 1).add_(at::bmm(weights.transpose(1, 2), tile_d));
    at::Tensor d_scores = at::bmm(tile_d, tile_v.permute({1, 2, 0})).sub_(rows(correction)).mul_(weights);
    // A hidden score is -inf and so is its slope: its weight, not the slope, says that it has no part.
    if (slope.defined()) d_scores.mul_(slope.clamp_min_(0.0));
    d_scores.mul_(scoring.scale);
    dq.narrow(0, q_begin, q_rows).add_(ungroup(at::bmm(d_scores, tile_k.transpose(0, 1)), q_rows));
    dk.narrow(0, k_begin, k_rows).transpose(0, 1).add_(at::bmm(d_scores.transpose(1, 2), tile_q));
  });
  return {dq.to(q.scalar_type()), dk.to(k.scalar_type()), dv.to(v.scalar_type())};
}

}  // namespace streambp
