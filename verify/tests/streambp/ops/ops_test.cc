// Every op against plain ATen under autograd, in float64; and, where sums are exact, bit for bit at every
// chunk size.
#include <functional>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "streambp/memory/meter.h"
#include "streambp/ops/differentiable.h"
#include "streambp/ops/linear.h"
#include "streambp/ops/mlp/mlp.h"
#include "streambp/ops/norm_rope.h"
#include "streambp/ops/rms_norm.h"
#include "streambp/ops/rope.h"
#include "verify/tests/streambp/ops/ops_testing.h"

namespace streambp {
namespace {

TEST(Ops, LinearMapsOfOneInput) {
  Parameter w1 = parameter(random({5, 7}, 1)), b1 = parameter(random({5}, 2)),
            w2 = parameter(random({3, 7}, 3));
  const Linear first{"first", &w1, &b1}, second{"second", &w2};
  expect_same(
      {random({11, 7}, 4)}, {&w1, &b1, &w2},
      [&](const auto& in) {
        return at::cat(linear(in[0], {&first, &second}), 1);
      },
      [](const auto& in, const auto& p) {
        return at::cat({at::linear(in[0], p[0], p[1]), at::linear(in[0], p[2])}, 1);
      });
}

TEST(Ops, LinearAddedToAResidual) {
  Parameter w = parameter(random({5, 7}, 1)), b = parameter(random({5}, 2));
  const Linear map{"map", &w, &b};
  expect_same(
      {random({11, 5}, 3), random({11, 7}, 4)}, {&w, &b},
      [&](const auto& in) { return linear_add(in[0], in[1], map); },
      [](const auto& in, const auto& p) { return in[0] + at::linear(in[1], p[0], p[1]); });
}

TEST(Ops, LinearTimesAConstant) {
  Parameter w = parameter(random({5, 7}, 1)), b = parameter(random({5}, 2)),
            low = parameter(random({2, 7}, 5)), high = parameter(random({5, 2}, 6)),
            low_bias = parameter(random({5}, 7));
  Linear map{"map", &w, &b, LowRankAdapter{&low, &high, 0.25, &low_bias}};
  map.output_scale = 0.3;
  const auto plain = [](const at::Tensor& x, const auto& p) {
    return 0.3 * (at::linear(x, p[0], p[1]) + 0.25 * at::linear(at::linear(x, p[2]), p[3], p[4]));
  };
  const std::vector<Parameter*> parameters{&w, &b, &low, &high, &low_bias};
  expect_same(
      {random({11, 5}, 3), random({11, 7}, 4)}, parameters,
      [&](const auto& in) { return linear_add(in[0], in[1], map); },
      [&](const auto& in, const auto& p) { return in[0] + plain(in[1], p); });
  // Two maps of one input: the second adds to the gradient of the first.
  expect_same(
      {random({11, 7}, 4)}, parameters,
      [&](const auto& in) {
        return at::cat(linear(in[0], {&map, &map}), 1);
      },
      [&](const auto& in, const auto& p) {
        return at::cat({plain(in[0], p), plain(in[0], p)}, 1);
      });
}

TEST(Ops, LinearWithALowRankAdapter) {
  Parameter w = parameter(random({5, 7}, 1), /*trainable=*/false), a = parameter(random({2, 7}, 2)),
            b = parameter(random({5, 2}, 3));
  Linear map{"map", &w, nullptr, LowRankAdapter{&a, &b, 0.25}};
  const at::Tensor base = w.value;
  expect_same(
      {random({11, 5}, 4), random({11, 7}, 5)}, {&a, &b},
      [&](const auto& in) { return linear_add(in[0], in[1], map); },
      [&](const auto& in, const auto& p) {
        return in[0] + at::linear(in[1], base + 0.25 * p[1].matmul(p[0]));
      });
  map.adapter->enabled = false;
  const at::Tensor x = random({3, 7}, 6);
  EXPECT_TRUE(at::equal(linear_forward(map, x), at::mm(x, base.t())));
}

TEST(Ops, RmsNormOfRowsAndOfHeads) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{9, 6}, {4, 3, 6}, {1, 5}}) {
    Parameter w = parameter(random({shape.back()}, 1));
    const RmsNorm norm{&w, 1e-6};
    expect_same(
        {random(shape, 2)}, {&w}, [&](const auto& in) { return rms_norm(in[0], norm); },
        [](const auto& in, const auto& p) {
          return p[0] * in[0] * at::rsqrt(in[0].pow(2).mean(-1, true) + 1e-6);
        });
  }
}

TEST(Ops, GemmasNormsMultiplyByOnePlusWeight) {
  Parameter w = parameter(random({6}, 1));
  const RmsNorm norm{&w, 1e-6, /*adds_one=*/true};
  const auto plain = [](const at::Tensor& x, const at::Tensor& weight) {
    return (weight + 1.0) * x * at::rsqrt(x.pow(2).mean(-1, true) + 1e-6);
  };
  expect_same(
      {random({9, 6}, 2)}, {&w}, [&](const auto& in) { return rms_norm(in[0], norm); },
      [&](const auto& in, const auto& p) { return plain(in[0], p[0]); });
  w.gradient.zero_();
  expect_same(
      {random({9, 6}, 3), random({9, 6}, 4)}, {&w},
      [&](const auto& in) { return rms_norm_add(in[0], in[1], norm); },
      [&](const auto& in, const auto& p) { return in[0] + plain(in[1], p[0]); });
}

TEST(Ops, GatedMlpWithGeluAndNoResidual) {
  Parameter gate = parameter(random({8, 5}, 1)), up = parameter(random({8, 5}, 2)),
            down = parameter(random({5, 8}, 3));
  const Linear gate_map{"gate", &gate}, up_map{"up", &up}, down_map{"down", &down};
  const GatedMlp mlp{&gate_map, &up_map, &down_map, Activation::kGeluTanh};
  expect_same(
      {random({6, 5}, 7)}, {&gate, &up, &down}, [&](const auto& in) { return gated_mlp({}, in[0], mlp); },
      [](const auto& in, const auto& p) {
        return at::linear(at::gelu(at::linear(in[0], p[0]), "tanh") * at::linear(in[0], p[1]), p[2]);
      });
}

TEST(Ops, GatedMlp) {
  Parameter gate = parameter(random({8, 5}, 1)), up = parameter(random({8, 5}, 2)),
            down = parameter(random({5, 8}, 3));
  Parameter gate_bias = parameter(random({8}, 4)), down_bias = parameter(random({5}, 5));
  const Linear gate_map{"gate", &gate, &gate_bias}, up_map{"up", &up}, down_map{"down", &down, &down_bias};
  const GatedMlp mlp{&gate_map, &up_map, &down_map};
  expect_same(
      {random({6, 5}, 6), random({6, 5}, 7)}, {&gate, &up, &down, &gate_bias, &down_bias},
      [&](const auto& in) { return gated_mlp(in[0], in[1], mlp); },
      [](const auto& in, const auto& p) {
        return in[0] +
               at::linear(at::silu(at::linear(in[1], p[0], p[3])) * at::linear(in[1], p[1]), p[2], p[4]);
      });
}

TEST(Ops, Rope) {
  const at::Tensor positions = at::tensor({0, 1, 5, 1000, 131071}, at::kLong);
  const at::Tensor frequencies = at::tensor({1.0, 0.1, 0.001}, at::kDouble);
  const RopeTable table = rope_table(positions, frequencies, 1.0, at::kDouble);
  expect_same(
      {random({5, 4, 6}, 1)}, {}, [&](const auto& in) { return rope(in[0], table); },
      [&](const auto& in, const auto&) {
        // rotate_half of transformers, on the full-width table.
        const at::Tensor angles = positions.to(at::kDouble).outer(frequencies);
        const at::Tensor wide = at::cat({angles, angles}, 1).unsqueeze(1);
        const auto halves = in[0].chunk(2, -1);
        return in[0] * wide.cos() + at::cat({-halves[1], halves[0]}, -1) * wide.sin();
      });
}

TEST(Ops, RopeOfAPartOfEachHeadTimesAFactor) {
  const at::Tensor positions = at::tensor({3, 4, 700}, at::kLong);
  const at::Tensor frequencies = at::tensor({1.0, 0.01}, at::kDouble);
  const RopeTable table = rope_table(positions, frequencies, 1.25, at::kDouble);
  expect_same(
      {random({3, 2, 10}, 1)}, {}, [&](const auto& in) { return rope(in[0], table); },
      [&](const auto& in, const auto&) {
        const at::Tensor angles = positions.to(at::kDouble).outer(frequencies);
        const at::Tensor wide = at::cat({angles, angles}, 1).unsqueeze(1);
        const at::Tensor first = in[0].narrow(-1, 0, 4);
        const auto halves = first.chunk(2, -1);
        const at::Tensor rotated =
            (first * wide.cos() + at::cat({-halves[1], halves[0]}, -1) * wide.sin()) * 1.25;
        return at::cat({rotated, in[0].narrow(-1, 4, 6)}, -1);
      });
}

TEST(Ops, RopeOfPairsIsRopeOfHalvesInAnotherOrder) {
  const at::Tensor positions = at::tensor({3, 4, 700}, at::kLong);
  const at::Tensor frequencies = at::tensor({1.0, 0.01}, at::kDouble);
  const RopeTable table = rope_table(positions, frequencies, 1.0, at::kDouble);
  expect_same(
      {random({3, 2, 10}, 1)}, {}, [&](const auto& in) { return rope(split_pairs(in[0], 4), table); },
      [&](const auto& in, const auto&) {
        // rotate_half of transformers' GLM-4, then the even entries before the odd ones.
        const at::Tensor angles =
            positions.to(at::kDouble).outer(frequencies).repeat_interleave(2, 1).unsqueeze(1);
        const at::Tensor first = in[0].narrow(-1, 0, 4);
        const at::Tensor even = first.slice(-1, 0, 4, 2), odd = first.slice(-1, 1, 4, 2);
        const at::Tensor rotated =
            first * angles.cos() + at::stack({-odd, even}, -1).flatten(-2) * angles.sin();
        return at::cat({rotated.slice(-1, 0, 4, 2), rotated.slice(-1, 1, 4, 2), in[0].narrow(-1, 4, 6)}, -1);
      });
}

TEST(Ops, RopeTimesAFactorOfEachRow) {
  const at::Tensor positions = at::tensor({3, 4, 700}, at::kLong);
  const at::Tensor frequencies = at::tensor({1.0, 0.01}, at::kDouble);
  const at::Tensor factors = at::tensor({1.0, 1.5, 0.25}, at::kDouble);
  const RopeTable table = rope_table(positions, frequencies, 1.0, at::kDouble),
                  scaled = rope_table(positions, frequencies, 1.0, at::kDouble, factors);
  expect_same(
      {random({3, 2, 4}, 1)}, {}, [&](const auto& in) { return rope(in[0], scaled); },
      [&](const auto& in, const auto&) {
        const at::Tensor cosine = at::cat({table.cosine, table.cosine}, 1).unsqueeze(1);
        const at::Tensor sine = at::cat({table.sine, table.sine}, 1).unsqueeze(1);
        const auto halves = in[0].chunk(2, -1);
        return (in[0] * cosine + at::cat({-halves[1], halves[0]}, -1) * sine) * factors.view({3, 1, 1});
      });
}

/// Chunk sizes that meet every edge of `rows`.
std::vector<int64_t> awkward_chunks(int64_t rows) {
  return {1, 2, 3, 7, rows - 1, rows, rows + 5};
}

class ExactSums : public testing::TestWithParam<at::ScalarType> {};

TEST_P(ExactSums, StreamedLinearGradientsAreBitEqualAtEveryChunk) {
  constexpr int64_t kRows = 23;
  const at::ScalarType dtype = GetParam();
  const at::Tensor x = integers({kRows, 9}, 1, dtype), dy = integers({kRows, 6}, 2, dtype);
  const at::Tensor w = integers({6, 9}, 3, dtype), b = integers({6}, 4, dtype);
  const at::Tensor dw = dy.t().matmul(x), db = dy.sum(0), dx = dy.matmul(w), y = x.matmul(w.t()) + b;
  for (const int64_t chunk : awkward_chunks(kRows)) {
    Parameter weight = parameter(w.clone()), bias = parameter(b.clone());
    const Linear map{"map", &weight, &bias};
    at::Tensor streamed_dx = at::full_like(x, std::numeric_limits<double>::quiet_NaN());
    for (int64_t begin = 0; begin < kRows; begin += chunk) {
      const int64_t rows = std::min(chunk, kRows - begin);
      const at::Tensor leaf = x.narrow(0, begin, rows).clone().requires_grad_();
      const at::Tensor out = linear(leaf, {&map}).front();
      EXPECT_TRUE(at::equal(out, y.narrow(0, begin, rows))) << "chunk " << chunk;
      streamed_dx.narrow(0, begin, rows)
          .copy_(torch::autograd::grad({out}, {leaf}, {dy.narrow(0, begin, rows)}).front());
    }
    EXPECT_TRUE(at::equal(weight.gradient, dw)) << "dW, chunk " << chunk;
    EXPECT_TRUE(at::equal(bias.gradient, db)) << "db, chunk " << chunk;
    EXPECT_TRUE(at::equal(streamed_dx, dx)) << "dX, chunk " << chunk;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ExactSums, testing::Values(at::kDouble, at::kFloat),
                         [](const auto& dtype) { return c10::toString(dtype.param); });

TEST(Accumulate, AWiderGradientIsSummedInItsOwnDtype) {
  const at::Tensor x = integers({40, 9}, 1, at::kBFloat16), dy = integers({40, 6}, 2, at::kBFloat16);
  Parameter weight{"w", integers({6, 9}, 3, at::kBFloat16), at::full({6, 9}, 4096.0, at::kFloat)};
  accumulate_product(weight, dy, x);
  // 4096 + small integers needs more than bfloat16's 8 bits.
  EXPECT_TRUE(at::equal(weight.gradient, dy.to(at::kFloat).t().matmul(x.to(at::kFloat)) + 4096));
}

TEST(Frozen, ParametersKeepNoInputs) {
  install_meters();
  const at::Tensor x = random({64, 32}, 1);
  const auto kept = [&](bool trainable) {
    Parameter w = parameter(random({32, 32}, 2), trainable);
    const Linear map{"map", &w};
    const at::Tensor leaf = x.clone().requires_grad_();
    const int64_t before = read_meter(at::kCPU).live_bytes;
    at::Tensor y = linear(rope(leaf.view({64, 4, 8}),
                               rope_table(at::arange(64), at::ones({4}, at::kDouble), 1.0, at::kDouble))
                              .flatten(1),
                          {&map})
                       .front();
    const int64_t bytes = read_meter(at::kCPU).live_bytes - before;
    torch::autograd::grad({y}, {leaf}, {y.detach()});
    return bytes;
  };
  const int64_t input_bytes = 64 * 32 * 8;
  EXPECT_EQ(kept(true) - kept(false), input_bytes);
}

TEST(Differentiable, ClosuresAreFreedWithTheirUse) {
  install_meters();
  const int64_t before = read_meter(at::kCPU).live_bytes;
  {
    const at::Tensor leaf = random({8}, 1).requires_grad_();
    const at::Tensor big = random({1000}, 2);
    const at::Tensor y =
        differentiable({leaf}, leaf.detach() * 2, "double",
                       [big](std::vector<at::Tensor>&& dy) { return std::vector<at::Tensor>{dy[0] * 2}; });
    EXPECT_TRUE(at::equal(
        torch::autograd::grad({y}, {leaf}, {at::ones({8}, at::kDouble)}, /*retain_graph=*/false).front(),
        at::full({8}, 2.0, at::kDouble)));
    EXPECT_EQ(big.use_count(), 1) << "the closure still holds what it captured";
    EXPECT_THROW(torch::autograd::grad({y}, {leaf}, {at::ones({8}, at::kDouble)}), c10::Error);
  }
  EXPECT_EQ(read_meter(at::kCPU).live_bytes, before);
}

/// The kernels read weights and tables row by row: those that lie otherwise go through ATen.
TEST(NormedRope, TakesStridedWeightsAndTables) {
  const int64_t rows = 5, heads = 3, size = 16;
  const at::Tensor x = random({rows, heads, size}, 1), dy = random({rows, heads, size}, 2);
  Parameter weight = parameter(random({size}, 3)), strided = parameter(at::zeros({size, 2}, at::kDouble));
  strided.value = strided.value.select(1, 0).copy_(weight.value);
  strided.gradient = at::zeros({size}, at::kDouble);
  const RmsNorm norm{&weight}, strided_norm{&strided};
  const RopeTable table = rope_table(at::arange(rows), random({size / 2}, 4).abs(), 1.0, at::kDouble);
  const RopeTable columns{table.cosine.t().contiguous().t(), table.sine.t().contiguous().t()};
  const auto run = [&](const RmsNorm& of, const RopeTable& by) {
    of.weight->gradient.zero_();
    const at::Tensor leaf = x.clone().requires_grad_();
    const at::Tensor y = normed_rope(leaf, &of, by);
    const at::Tensor dx = torch::autograd::grad({y}, {leaf}, {dy}).front();
    return std::vector<at::Tensor>{y.detach(), dx, of.weight->gradient.clone()};
  };
  ASSERT_TRUE((NormAndRope{&norm, &table}.is_fused(x)));
  ASSERT_FALSE((NormAndRope{&strided_norm, &table}.is_fused(x)));
  ASSERT_FALSE((NormAndRope{&norm, &columns}.is_fused(x)));
  const std::vector<at::Tensor> expected = run(norm, table);
  for (const auto& got : {run(strided_norm, table), run(norm, columns)}) {
    for (size_t i = 0; i < expected.size(); ++i) expect_near(got[i], expected[i], "a strided one");
  }
}

}  // namespace
}  // namespace streambp
