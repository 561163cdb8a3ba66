#include "streambp/ops/rope.h"

#include "streambp/ops/differentiable.h"
#include "streambp/ops/norm_rope.h"
#include "streambp/ops/sum_dtype.h"
#include "streambp/ops/transformers_rounding.h"

namespace streambp {

at::Tensor rope_plain(const at::Tensor& x, const RopeTable& table, double sign) {
  const at::NoGradGuard no_grad;
  const int64_t half = table.cosine.size(-1);
  const at::Tensor cosine = table.cosine.unsqueeze(1);
  const at::Tensor sine = table.sine.unsqueeze(1);
  const at::Tensor first = x.narrow(-1, 0, half);
  const at::Tensor second = x.narrow(-1, half, half);
  at::Tensor rotated = at::empty_like(x, at::MemoryFormat::Contiguous);
  at::Tensor rotated_first = rotated.narrow(-1, 0, half);
  at::Tensor rotated_second = rotated.narrow(-1, half, half);
  at::mul_out(rotated_first, first, cosine).addcmul_(second, sine, -sign);
  at::mul_out(rotated_second, second, cosine).addcmul_(first, sine, sign);
  const int64_t rest = x.size(-1) - 2 * half;
  if (rest > 0) rotated.narrow(-1, 2 * half, rest).copy_(x.narrow(-1, 2 * half, rest));
  return rotated;
}

namespace {

/// Copies `from` to `to`, both [n, heads, E]: the pairs of `from` one after another, or with `joins` the two
/// halves that they were split into back to pairs.
at::Tensor copy_pairs(const at::Tensor& from, int64_t rotated, bool joins) {
  const at::NoGradGuard no_grad;
  at::Tensor to = at::empty_like(from, at::MemoryFormat::Contiguous);
  const int64_t half = rotated / 2, rest = from.size(-1) - rotated;
  const at::Tensor& halves = joins ? from : to;
  const at::Tensor& pairs = joins ? to : from;
  for (const int64_t odd : {0, 1}) {
    at::Tensor of_halves = halves.narrow(-1, odd * half, half);
    at::Tensor of_pairs = pairs.slice(-1, odd, rotated, 2);
    if (joins) {
      of_pairs.copy_(of_halves);
    } else {
      of_halves.copy_(of_pairs);
    }
  }
  if (rest > 0) to.narrow(-1, rotated, rest).copy_(from.narrow(-1, rotated, rest));
  return to;
}

}  // namespace

at::Tensor split_pairs(const at::Tensor& x, int64_t rotated) {
  return differentiable({x}, copy_pairs(x, rotated, /*joins=*/false), "split_pairs",
                        [rotated](std::vector<at::Tensor>&& dy) {
                          return std::vector<at::Tensor>{copy_pairs(dy[0], rotated, /*joins=*/true)};
                        });
}

RopeTable rope_table(const at::Tensor& positions, const at::Tensor& inverse_frequencies, double factor,
                     at::ScalarType dtype, const at::Tensor& row_factors) {
  const int64_t tokens = positions.size(0);
  const auto options = inverse_frequencies.options().dtype(dtype);
  RopeTable table{at::empty({tokens, inverse_frequencies.size(0)}, options),
                  at::empty({tokens, inverse_frequencies.size(0)}, options)};
  const at::ScalarType wide =
      dtype != at::kDouble && TransformersRounding::wanted().has_value() ? at::kFloat : at::kDouble;
  const at::Tensor frequencies = inverse_frequencies.to(wide);
  // By blocks: the doubles of a whole long stream would be the largest thing alive.
  constexpr int64_t kBlock = 4096;
  for (int64_t begin = 0; begin < tokens; begin += kBlock) {
    const int64_t rows = std::min(kBlock, tokens - begin);
    const at::Tensor angles = positions.narrow(0, begin, rows).to(wide).unsqueeze(1) * frequencies;
    const auto put = [&](at::Tensor values, const at::Tensor& to) {
      values.mul_(factor);
      if (row_factors.defined()) values.mul_(row_factors.narrow(0, begin, rows).to(wide).unsqueeze(1));
      to.narrow(0, begin, rows).copy_(values);
    };
    put(angles.cos(), table.cosine);
    put(angles.sin(), table.sine);
  }
  return table;
}

at::Tensor rope(const at::Tensor& x, const RopeTable& table) {
  const NormAndRope fused{nullptr, &table};
  at::Tensor unused;
  at::Tensor y = fused.is_fused(x) ? norm_rope_forward(x, fused, {}, unused) : rope_plain(x, table, 1.0);
  return differentiable({x}, std::move(y), "rope", [table](std::vector<at::Tensor>&& dy) {
    const NormAndRope inverse{nullptr, &table};
    return std::vector<at::Tensor>{inverse.is_fused(dy[0]) ? norm_rope_backward(dy[0], inverse, {}, {})
                                                           : rope_plain(dy[0], table, -1.0)};
  });
}

namespace {

at::Tensor rotate_last_pairs(const at::Tensor& x, const RopeTable& table, double sign) {
  const at::NoGradGuard no_grad;
  const int64_t rotated = 2 * table.cosine.size(-1), first = x.size(-1) - rotated;
  const at::ScalarType wide = sum_dtype(x);
  const at::Tensor cosine = table.cosine.unsqueeze(1).to(wide), sine = table.sine.unsqueeze(1).to(wide);
  const at::Tensor even = x.slice(-1, first, x.size(-1), 2).to(wide);
  const at::Tensor odd = x.slice(-1, first + 1, x.size(-1), 2).to(wide);
  at::Tensor y = at::empty_like(x, at::MemoryFormat::Contiguous);
  if (first > 0) y.narrow(-1, 0, first).copy_(x.narrow(-1, 0, first));
  y.slice(-1, first, x.size(-1), 2).copy_((even * cosine).addcmul_(odd, sine, -sign));
  y.slice(-1, first + 1, x.size(-1), 2).copy_((odd * cosine).addcmul_(even, sine, sign));
  return y;
}

}  // namespace

at::Tensor rope_last_pairs(const at::Tensor& x, const RopeTable& table, bool back) {
  const double sign = back ? -1.0 : 1.0;
  return differentiable({x}, rotate_last_pairs(x, table, sign), "rope_last_pairs",
                        [table, sign](std::vector<at::Tensor>&& dy) {
                          return std::vector<at::Tensor>{rotate_last_pairs(dy[0], table, -sign)};
                        });
}

}  // namespace streambp
