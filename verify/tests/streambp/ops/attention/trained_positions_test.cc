// Trained frequencies and scales of queries against the same formulas in plain ATen, in float64: rotation by
// pairs in the middle of wider heads, angles that grow, parts that are frozen.
#include "streambp/ops/attention/trained_positions.h"

#include "verify/tests/streambp/ops/ops_testing.h"

namespace streambp {
namespace {

constexpr double kTrainedLimit = 1e-13;

/// x with entries [first, first + 2 P) of each head rotated by positions f e^alpha, times `factor`.
at::Tensor plain_rotated(const at::Tensor& x, int64_t first, const at::Tensor& angles, double factor) {
  const int64_t half = angles.size(1), rest = x.size(2) - first - 2 * half;
  const at::Tensor a = x.narrow(2, first, half), b = x.narrow(2, first + half, half);
  const at::Tensor c = angles.cos().unsqueeze(1) * factor, s = angles.sin().unsqueeze(1) * factor;
  return at::cat({x.narrow(2, 0, first), a * c - b * s, b * c + a * s, x.narrow(2, first + 2 * half, rest)},
                 2);
}

TEST(TrainedFrequencies, EqualPlainAutograd) {
  const at::Tensor frequencies = at::tensor({1.0, 0.3, 0.02}, at::kDouble);
  const at::Tensor positions = at::tensor({0, 1, 2, 0, 7, 90, 1000}, at::kLong);
  for (const int64_t first : {0, 2}) {
    for (const double factor : {1.0, 1.3}) {
      Parameter alpha = parameter(random({3}, 1) * 0.3);
      const at::Tensor x = random({7, 2, first + 6 + (first > 0 ? 3 : 0)}, 2);
      const at::Tensor of_x = x.clone().requires_grad_(), of_alpha = alpha.value.clone().requires_grad_();
      const at::Tensor angles = positions.to(at::kDouble).unsqueeze(1) * (frequencies * of_alpha.exp());
      const at::Tensor expected = plain_rotated(of_x, first, angles, factor);
      const at::Tensor cotangent = random(expected.sizes(), 3);
      const auto truth = torch::autograd::grad({expected}, {of_x, of_alpha}, {cotangent});
      const at::Tensor turning = frequencies * alpha.value.exp();
      RopeTable table = rope_table(positions, turning, factor, at::kDouble);
      table.angles = positions.to(at::kDouble).unsqueeze(1) * turning;
      const at::Tensor own = x.clone().requires_grad_();
      const at::Tensor turned = rope(own.narrow(2, first, 6), table);
      const at::Tensor whole =
          first > 0 ? at::cat({own.narrow(2, 0, first), turned, own.narrow(2, first + 6, 3)}, 2) : turned;
      const at::Tensor y = with_trained_frequencies(whole, first, table, alpha);
      expect_near(y.detach(), expected.detach(), "value", kTrainedLimit);
      const auto got = torch::autograd::grad({y}, {own}, {cotangent});
      expect_near(got[0], truth[0], "input", kTrainedLimit);
      expect_near(alpha.gradient, truth[1], "alpha", kTrainedLimit);
    }
  }
}

TEST(TrainedFrequencies, AreLeftOutWhereTheyAreFrozen) {
  Parameter alpha;
  alpha.value = random({3}, 1);
  const at::Tensor y = random({4, 2, 6}, 2);
  EXPECT_TRUE(with_trained_frequencies(y, 0, {}, alpha).is_same(y));
}

TEST(ScaledQueries, EqualPlainAutograd) {
  const at::Tensor logarithms = at::tensor({0, 1, 2, 0, 70000}, at::kLong).to(at::kDouble).log1p();
  for (const bool is_frozen : {false, true}) {
    Parameter scale = parameter(random({3}, 1)), bias = parameter(random({3}, 2));
    if (is_frozen) scale.gradient = bias.gradient = at::Tensor();
    const at::Tensor q = random({5, 3, 4}, 3);
    const std::vector<at::Tensor> leaves{q.clone().requires_grad_(), scale.value.clone().requires_grad_(),
                                         bias.value.clone().requires_grad_()};
    const at::Tensor factors = logarithms.unsqueeze(1) * leaves[1] + leaves[2];
    const at::Tensor expected = leaves[0] * factors.unsqueeze(2), cotangent = random(q.sizes(), 4);
    const auto truth = torch::autograd::grad({expected}, leaves, {cotangent});
    const at::Tensor own = q.clone().requires_grad_();
    const at::Tensor y = scaled_queries(own, logarithms, {&scale, &bias});
    expect_near(y.detach(), expected.detach(), "value", kTrainedLimit);
    expect_near(scaled_queries_forward(q, logarithms, {&scale, &bias}), expected.detach(), "forward alone",
                kTrainedLimit);
    const auto got = torch::autograd::grad({y}, {own}, {cotangent});
    expect_near(got[0], truth[0], "queries", kTrainedLimit);
    if (is_frozen) continue;
    expect_near(scale.gradient, truth[1], "scale", kTrainedLimit);
    expect_near(bias.gradient, truth[2], "bias", kTrainedLimit);
  }
}

}  // namespace
}  // namespace streambp
