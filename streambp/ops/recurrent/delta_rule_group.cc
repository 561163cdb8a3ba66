#include "streambp/ops/recurrent/delta_rule_group.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "streambp/ops/dry_run.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// Blocks of one sequence that are computed at once.
constexpr int64_t kGroup = 8;
/// The same where each channel has its decay, which takes more memory.
constexpr int64_t kGroupOfChannels = 2;

std::vector<DeltaRuleGroup> groups_of(const std::vector<int64_t>& offsets, int64_t most) {
  std::vector<DeltaRuleGroup> groups;
  int64_t block = 0;
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    for (int64_t row = offsets[i]; row < offsets[i + 1];) {
      const int64_t left = offsets[i + 1] - row;
      const int64_t blocks = std::clamp<int64_t>(left / kDeltaRuleBlock, 1, most);
      const int64_t rows = std::min(left, kDeltaRuleBlock);
      groups.push_back({row, blocks, rows, block, i, row == offsets[i], left == blocks * rows});
      row += blocks * rows;
      block += blocks;
    }
  }
  return groups;
}

/// (I + A)^-1 for A [N, size, size], strictly lower triangular: inverses of ever larger squares on the
/// diagonal, each from the two halves that it joins.
at::Tensor unit_lower_inverse(const at::Tensor& a) {
  const int64_t batch = a.size(0), size = a.size(1);
  int64_t padded = 1;
  while (padded < size) padded *= 2;
  at::Tensor wide = a;
  if (padded > size) {
    wide = at::zeros({batch, padded, padded}, a.options());
    wide.narrow(1, 0, size).narrow(2, 0, size).copy_(a);
  }
  at::Tensor inverse = at::zeros({batch, padded, padded}, a.options());
  inverse.diagonal(0, 1, 2).fill_(1);
  for (int64_t half = 1; half < padded; half *= 2) {
    const int64_t count = padded / (2 * half);
    const auto square = [&](const at::Tensor& of, int64_t row, int64_t column) {
      return of.view({batch, count, 2 * half, count, 2 * half})
          .diagonal(0, 1, 3)
          .permute({0, 3, 1, 2})
          .narrow(2, row * half, half)
          .narrow(3, column * half, half);
    };
    const auto matrices = [&](const at::Tensor& x) { return x.reshape({batch * count, half, half}); };
    const at::Tensor joined = at::bmm(at::bmm(matrices(square(inverse, 1, 1)), matrices(square(wide, 1, 0))),
                                      matrices(square(inverse, 0, 0)));
    square(inverse, 1, 0).copy_(joined.neg_().view({batch, count, half, half}));
  }
  return inverse.narrow(1, 0, size).narrow(2, 0, size);
}

}  // namespace

std::vector<DeltaRuleGroup> delta_rule_groups(const DeltaRuleInputs& in) {
  const std::vector<DeltaRuleGroup> all =
      groups_of(in.offsets, in.sizes.channel_gates ? kGroupOfChannels : kGroup);
  std::vector<DeltaRuleGroup> run;
  const auto at = [&](int64_t i) { return all[static_cast<size_t>(i)]; };
  for (const int64_t i : steps_to_run(
           in.mixed.device(), static_cast<int64_t>(all.size()),
           [&](int64_t i) { return std::pair(at(i).blocks, at(i).rows); }, [](int64_t) { return 0; }))
    run.push_back(at(i));
  return run;
}

DeltaRuleTensors::DeltaRuleTensors(const DeltaRuleInputs& in, const DeltaRuleGroup& group, bool wants_queries)
    : sizes_(in.sizes), group_(group), wide_(sum_dtype(in.mixed)), mixed_(in.mixed) {
  v = heads(in.mixed.narrow(1, sizes_.first_value(), sizes_.values()), sizes_.value_heads);
  std::tie(key_directions, key_rstd) = directions(sizes_.first_key());
  k = for_value_heads(key_directions);
  beta = numbers(in.beta, wide_).unsqueeze(2);
  set_decays(in.log_decay);
  u = v * beta;
  if (sizes_.exchanges) {
    similarity = decayed_products(k, /*with_diagonal=*/false);
    system = similarity * beta;
    inverse = unit_lower_inverse(system);
    decayed_key_update = k * decay.mul(beta);
    u = at::bmm(inverse, u);
    w = at::bmm(inverse, decayed_key_update);
  }
  decayed_keys = k * rest_decay;
  if (!wants_queries) return;
  std::tie(query_directions, query_rstd) = directions(sizes_.first_query());
  q = for_value_heads(sizes_.exchanges ? query_directions * scale() : query_directions);
  attention = decayed_products(q, /*with_diagonal=*/true);
  decayed_queries = q * decay;
}

double DeltaRuleTensors::scale() const {
  return sizes_.exchanges ? 1.0 / std::sqrt(static_cast<double>(sizes_.key_dim)) : 1.0;
}

at::Tensor DeltaRuleTensors::heads(const at::Tensor& x, int64_t count) const {
  const int64_t size = x.size(1) / count;
  return x.narrow(0, group_.first_row, group_.blocks * group_.rows)
      .view({group_.blocks, group_.rows, count, size})
      .permute({0, 2, 1, 3})
      .to(wide_, /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous)
      .view({group_.blocks * count, group_.rows, size});
}

void DeltaRuleTensors::put_heads(const at::Tensor& x, int64_t count, const at::Tensor& to) const {
  to.narrow(0, group_.first_row, group_.blocks * group_.rows)
      .view({group_.blocks, group_.rows, count, x.size(2)})
      .copy_(x.view({group_.blocks, count, group_.rows, x.size(2)}).permute({0, 2, 1, 3}));
}

at::Tensor DeltaRuleTensors::numbers(const at::Tensor& x, at::ScalarType dtype) const {
  return heads(x, sizes_.value_heads).view({batch(), group_.rows}).to(dtype);
}
void DeltaRuleTensors::put_numbers(const at::Tensor& x, const at::Tensor& to) const {
  put_heads(x.unsqueeze(2), sizes_.value_heads, to);
}

void DeltaRuleTensors::put_direction_gradient(const at::Tensor& d_repeated, const at::Tensor& direction,
                                              const at::Tensor& rstd, double factor, int64_t column,
                                              const at::Tensor& to) const {
  at::Tensor d = d_repeated
                     .view({group_.blocks, sizes_.key_heads, sizes_.value_heads / sizes_.key_heads,
                            group_.rows, sizes_.key_dim})
                     .sum(2)
                     .view(direction.sizes())
                     .mul_(factor);
  if (rstd.defined()) {
    const at::Tensor along = (d * direction).sum(2, /*keepdim=*/true);
    d.addcmul_(direction, along, -1).mul_(rstd);
  }
  put_heads(d, sizes_.key_heads, to.narrow(1, column, sizes_.keys()));
}

std::pair<at::Tensor, at::Tensor> DeltaRuleTensors::directions(int64_t column) const {
  at::Tensor x = heads(mixed_.narrow(1, column, sizes_.keys()), sizes_.key_heads);
  if (!sizes_.exchanges) return {x, {}};
  at::Tensor rstd = (x * x).sum(2, /*keepdim=*/true).add_(1e-6).rsqrt_();
  x.mul_(rstd);
  return {x, rstd};
}

at::Tensor DeltaRuleTensors::for_value_heads(const at::Tensor& x) const {
  const int64_t times = sizes_.value_heads / sizes_.key_heads;
  if (times == 1) return x;
  return x.unsqueeze(1).expand({x.size(0), times, x.size(1), x.size(2)}).reshape({-1, x.size(1), x.size(2)});
}

at::Tensor DeltaRuleTensors::decayed_products(const at::Tensor& x, bool with_diagonal) const {
  if (!channels) {
    at::Tensor products = at::bmm(x, k.transpose(1, 2)).mul_(decays);
    return with_diagonal ? products : products.tril_(-1);
  }
  at::Tensor products = channels->products(x, k);
  if (with_diagonal) products.diagonal(0, 1, 2).copy_((x * k).sum(2));
  return products;
}

void DeltaRuleTensors::set_decays(const at::Tensor& logarithms) {
  const int64_t rows = group_.rows;
  if (sizes_.channel_gates) {
    channels.emplace(heads(logarithms, sizes_.value_heads));
    decay = channels->since_begin();
    rest_decay = channels->until_end();
    block_decay = decay.narrow(1, rows - 1, 1).transpose(1, 2);
    return;
  }
  const at::Tensor log_decay = numbers(logarithms, at::kDouble);
  const at::Tensor total = at::mm(log_decay, at::ones({rows, rows}, log_decay.options()).triu_());
  decays = total.unsqueeze(2).sub(total.unsqueeze(1)).tril_().to(wide_).exp_().tril_();
  const at::Tensor last = total.narrow(1, rows - 1, 1);
  decay = at::exp(total).to(wide_).unsqueeze(2);
  rest_decay = last.sub(total).exp_().to(wide_).unsqueeze(2);
  block_decay = decay.narrow(1, rows - 1, 1);
}

}  // namespace streambp
