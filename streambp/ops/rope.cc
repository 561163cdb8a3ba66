#include "streambp/ops/rope.h"

#include "streambp/ops/differentiable.h"
#include "streambp/ops/norm_rope.h"
#include "streambp/ops/rope_angles.h"

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

RopeTable rope_table(const at::Tensor& positions, const at::Tensor& inverse_frequencies, double factor,
                     at::ScalarType dtype) {
  const int64_t tokens = positions.size(0);
  const auto options = inverse_frequencies.options().dtype(dtype);
  RopeTable table{at::empty({tokens, inverse_frequencies.size(0)}, options),
                  at::empty({tokens, inverse_frequencies.size(0)}, options)};
  const at::ScalarType wide = dtype != at::kDouble && Float32Angles::wanted() ? at::kFloat : at::kDouble;
  const at::Tensor frequencies = inverse_frequencies.to(wide);
  // By blocks: the doubles of a whole long stream would be the largest thing alive.
  constexpr int64_t kBlock = 4096;
  for (int64_t begin = 0; begin < tokens; begin += kBlock) {
    const int64_t rows = std::min(kBlock, tokens - begin);
    const at::Tensor angles = positions.narrow(0, begin, rows).to(wide).unsqueeze(1) * frequencies;
    table.cosine.narrow(0, begin, rows).copy_(angles.cos().mul_(factor));
    table.sine.narrow(0, begin, rows).copy_(angles.sin().mul_(factor));
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

}  // namespace streambp
