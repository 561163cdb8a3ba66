// Gated sums of a stream, some of whose factors are kept from 0, and norms of what is scaled first, against
// the same formulas in plain ATen, in float64, and in half precision.
#include "streambp/ops/residual_gate.h"

#include "verify/tests/streambp/ops/ops_testing.h"

namespace streambp {
namespace {

constexpr int64_t kEntries = 7;
constexpr double kTemperature = 0.3, kEpsOfScaled = 1e-2;

at::Tensor plain_sum(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& gate) {
  const at::Tensor w = gate / kTemperature, b = w.sigmoid();
  return ((-w).sigmoid() * (b + 1.0)).clamp_min(1e-3).sqrt() * residual + b * x;
}

at::Tensor plain_norm_of_scaled(const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor u = x * (1.0 + weight);
  return u / (u.square().mean({1}, true) + kEpsOfScaled).sqrt();
}

/// Of both signs, and one so far open that its square is below the least.
at::Tensor drawn_gates() {
  at::Tensor gates = random({kEntries}, 1);
  gates[2] = 3.0;
  return gates;
}

TEST(ResidualGate, EqualsPlainAutograd) {
  for (const int64_t rows : {1, 9}) {
    Parameter numbers = parameter(drawn_gates()), weight = parameter(random({kEntries}, 2));
    const ResidualGate gate{&numbers, kTemperature};
    const RmsNorm norm{&weight, kEpsOfScaled, /*adds_one=*/true};
    const at::Tensor residual = random({rows, kEntries}, 3), x = random({rows, kEntries}, 4);
    expect_same(
        {residual, x}, {&numbers},
        [&](const std::vector<at::Tensor>& in) { return gated_sum(in[0], in[1], gate); },
        [&](const std::vector<at::Tensor>& in, const std::vector<at::Tensor>& of) {
          return plain_sum(in[0], in[1], of[0]);
        });
    expect_same(
        {x}, {&weight}, [&](const std::vector<at::Tensor>& in) { return norm_of_scaled(in[0], norm); },
        [&](const std::vector<at::Tensor>& in, const std::vector<at::Tensor>& of) {
          return plain_norm_of_scaled(in[0], of[0]);
        });
  }
}

TEST(ResidualGate, RoundsOnceInHalfPrecision) {
  Parameter numbers = parameter(drawn_gates().to(at::kFloat));  // float32 or wider in every model
  const ResidualGate gate{&numbers, kTemperature};
  const at::Tensor residual = random({4, kEntries}, 3).to(at::kBFloat16),
                   x = random({4, kEntries}, 4).to(at::kBFloat16);
  const at::Tensor found = gated_sum(residual, x, gate);
  EXPECT_EQ(found.scalar_type(), at::kBFloat16);
  const at::Tensor exact =
      plain_sum(residual.to(at::kDouble), x.to(at::kDouble), numbers.value.to(at::kDouble));
  EXPECT_TRUE((found.to(at::kDouble) - exact).abs().le(exact.abs() * 0x1p-8 + 1e-6).all().item<bool>());
}

}  // namespace
}  // namespace streambp
