// Norms, means and sums of residual streams by maps of them against the same formulas in plain ATen, in
// float64, and in half precision.
#include "streambp/ops/low_rank_streams.h"

#include "verify/tests/streambp/ops/ops_testing.h"

namespace streambp {
namespace {

constexpr int64_t kOfStream = 5;
constexpr double kStreamEps = 1e-3;

at::Tensor plain_normed(const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor streams = x.view({x.size(0), -1, kOfStream});
  const at::Tensor normed = streams / (streams.square().mean({2}, true) + kStreamEps).sqrt();
  return (normed * (1.0 + weight.view({1, -1, kOfStream}))).flatten(1);
}

TEST(LowRankStreams, EqualPlainAutograd) {
  for (const int64_t streams : {2, 3}) {
    for (const int64_t rows : {1, 9}) {
      SCOPED_TRACE(fmt::format("{} streams, {} rows", streams, rows));
      Parameter weight = parameter(random({streams * kOfStream}, 1));
      const RmsNorm norm{&weight, kStreamEps, /*adds_one=*/true};
      const at::Tensor x = random({rows, streams * kOfStream}, 2), y = random({rows, kOfStream}, 3),
                       logits = random({rows, streams * kOfStream}, 4), gates = random({rows, streams}, 5);
      expect_same(
          {x}, {&weight},
          [&](const std::vector<at::Tensor>& in) { return norm_streams(in[0], norm, streams); },
          [&](const std::vector<at::Tensor>& in, const std::vector<at::Tensor>& of) {
            return plain_normed(in[0], of[0]);
          });
      expect_same(
          {x, logits}, {},
          [&](const std::vector<at::Tensor>& in) { return mean_of_opened(in[0], in[1], streams); },
          [&](const std::vector<at::Tensor>& in, const std::vector<at::Tensor>&) {
            return (in[0] * in[1].sigmoid()).view({rows, streams, kOfStream}).mean(1);
          });
      expect_same(
          {x, y, gates}, {},
          [&](const std::vector<at::Tensor>& in) { return add_opened(in[0], in[1], in[2]); },
          [&](const std::vector<at::Tensor>& in, const std::vector<at::Tensor>&) {
            return (in[0].view({rows, streams, kOfStream}) +
                    2.0 * in[2].sigmoid().unsqueeze(2) * in[1].unsqueeze(1))
                .flatten(1);
          });
    }
  }
}

TEST(LowRankStreams, RoundOnceInHalfPrecision) {
  Parameter weight = parameter(random({2 * kOfStream}, 1).to(at::kBFloat16));
  const RmsNorm norm{&weight, kStreamEps, /*adds_one=*/true};
  const at::Tensor x = random({4, 2 * kOfStream}, 2).to(at::kBFloat16),
                   gates = random({4, 2}, 3).to(at::kBFloat16),
                   y = random({4, kOfStream}, 4).to(at::kBFloat16);
  const auto expect_rounded = [](const at::Tensor& found, const at::Tensor& exact) {
    EXPECT_EQ(found.scalar_type(), at::kBFloat16);
    const at::Tensor limit = exact.abs() * 0x1p-8 + 1e-6;
    EXPECT_TRUE((found.to(at::kDouble) - exact).abs().le(limit).all().item<bool>());
  };
  const at::Tensor wide = x.to(at::kDouble);
  expect_rounded(norm_streams(x, norm, 2), plain_normed(wide, weight.value.to(at::kDouble)));
  expect_rounded(mean_of_opened(x, x, 2), (wide * wide.sigmoid()).view({4, 2, kOfStream}).mean(1));
  const at::Tensor open = 2.0 * gates.to(at::kDouble).sigmoid().unsqueeze(2);
  expect_rounded(add_opened(x, y, gates),
                 (wide.view({4, 2, kOfStream}) + open * y.to(at::kDouble).unsqueeze(1)).flatten(1));
}

}  // namespace
}  // namespace streambp
