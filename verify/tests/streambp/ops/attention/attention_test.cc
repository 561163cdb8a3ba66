// Attention against a softmax under an explicit mask, in float64: prefixes, packed sequences, windows, caps,
// sinks.
#include "streambp/ops/attention/attention.h"

#include <algorithm>
#include <fmt/ranges.h>
#include <limits>
#include <ostream>

#include "streambp/ops/attention/attention_blocks.h"
#include "streambp/ops/attention/attention_fused.h"
#include "streambp/ops/attention/attention_kernels.h"
#include "verify/tests/streambp/ops/ops_testing.h"

namespace streambp {
namespace {

/// Attention of a packed run with its prefix, by an explicit mask. `sinks` [H] may be undefined.
at::Tensor masked_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::vector<int64_t>& offsets, int64_t prefix,
                            const AttentionSettings& settings, const at::Tensor& sinks = {}) {
  const int64_t n = q.size(0);
  at::Tensor hidden = at::ones({n, prefix + n}, at::kBool);
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    for (int64_t i = offsets[s]; i < offsets[s + 1]; ++i) {
      int64_t first = s == 0 ? 0 : prefix + offsets[s];
      if (settings.window > 0) first = std::max(first, prefix + i - settings.window + 1);
      hidden[i].narrow(0, first, prefix + i - first + 1).fill_(false);
    }
  }
  const int64_t group = q.size(1) / k.size(1);
  const at::Tensor wide_k = k.repeat_interleave(group, 1), wide_v = v.repeat_interleave(group, 1);
  const auto& [scale, softcap] = settings.scoring;
  at::Tensor scores = at::einsum("ihe,jhe->hij", {q, wide_k}) * scale;
  if (softcap > 0.0) scores = at::tanh(scores / softcap) * softcap;
  scores = scores.masked_fill(hidden.unsqueeze(0), -std::numeric_limits<double>::infinity());
  if (sinks.defined()) scores = at::cat({scores, sinks.view({-1, 1, 1}).expand({-1, n, 1})}, -1);
  return at::einsum("hij,jhe->ihe", {scores.softmax(-1).narrow(-1, 0, prefix + n), wide_v});
}

struct AttentionShape {
  int64_t prefix;
  std::vector<int64_t> offsets;
  int64_t heads, key_heads, size;
  int64_t window = 0;
  double softcap = 0.0;
  bool sinks = false;
};

void PrintTo(const AttentionShape& shape, std::ostream* out) {
  *out << fmt::format("prefix {}, sequences {}, heads {} of {}, keys of {}, window {}, cap {}, sinks {}",
                      shape.prefix, shape.offsets, shape.heads, shape.size, shape.key_heads, shape.window,
                      shape.softcap, shape.sinks);
}

class Attention : public testing::TestWithParam<AttentionShape> {};

TEST_P(Attention, EqualsAMaskedSoftmax) {
  const auto& [prefix, offsets, heads, key_heads, size, window, softcap, has_sinks] = GetParam();
  const int64_t n = offsets.back();
  Parameter sinks = parameter(random({heads}, 5));
  const AttentionSettings settings{{0.3, softcap}, window, has_sinks ? &sinks : nullptr};
  const at::Tensor q = random({n, heads, size}, 1), k = random({prefix + n, key_heads, size}, 2),
                   v = random({prefix + n, key_heads, size}, 3);
  const auto leaf = [](const at::Tensor& x) { return x.clone().requires_grad_(); };
  const at::Tensor plain_q = leaf(q), plain_k = leaf(k), plain_v = leaf(v);
  const at::Tensor plain_sinks = has_sinks ? leaf(sinks.value) : at::Tensor();
  const at::Tensor expected =
      masked_attention(plain_q, plain_k, plain_v, offsets, prefix, settings, plain_sinks);
  const at::Tensor cotangent = random(expected.sizes(), 4);
  std::vector<at::Tensor> leaves{plain_q, plain_k, plain_v};
  if (has_sinks) leaves.push_back(plain_sinks);
  const auto truth = torch::autograd::grad({expected}, leaves, {cotangent});

  Prefix earlier{k.narrow(0, 0, prefix), v.narrow(0, 0, prefix),
                 at::zeros({prefix, key_heads, size}, at::kDouble),
                 at::zeros({prefix, key_heads, size}, at::kDouble)};
  const at::Tensor own_q = leaf(q), own_k = leaf(k.narrow(0, prefix, n)),
                   own_v = leaf(v.narrow(0, prefix, n));
  AttentionBlock result;
  const at::Tensor y = attention(own_q, own_k, own_v, offsets, earlier, settings, result);
  expect_near(y.detach(), expected.detach(), "value");
  const auto got = torch::autograd::grad({y}, {own_q, own_k, own_v}, {cotangent});
  expect_near(got[0], truth[0], "queries");
  expect_near(at::cat({earlier.key_gradients, got[1]}), truth[1], "keys, prefix included");
  expect_near(at::cat({earlier.value_gradients, got[2]}), truth[2], "values, prefix included");
  if (has_sinks) expect_near(sinks.gradient, truth[3], "sinks");
  const at::Tensor once = sinks.gradient.clone();

  // Again with the result known: nothing is computed forward, and the gradients are the same to the last bit.
  const AttentionBlock known{result.output.clone(), result.log_sum_exp.clone()};
  AttentionBlock given = known;
  const at::Tensor again =
      attention(own_q, own_k, own_v, offsets, {earlier.keys, earlier.values, {}, {}}, settings, given);
  EXPECT_EQ(given.output.data_ptr(), known.output.data_ptr());
  const auto same = torch::autograd::grad({again}, {own_q, own_k, own_v}, {cotangent});
  for (size_t i = 0; i < same.size(); ++i) EXPECT_TRUE(at::equal(same[i], got[i])) << i;
  EXPECT_TRUE(at::equal(sinks.gradient, 2.0 * once)) << "sinks, added a second time";
}

TEST_P(Attention, TiledKernelsAgree) {
  const auto& [prefix, offsets, heads, key_heads, size, window, softcap, has_sinks] = GetParam();
  const int64_t n = offsets.back();
  const at::Tensor q = random({n, heads, size}, 1), dy = random({n, heads, size}, 4);
  for (const auto& [visible, keys] : {std::pair{Visible::kCausal, n}, std::pair{Visible::kAll, prefix}}) {
    if (keys == 0) continue;
    const at::Tensor k = random({keys, key_heads, size}, 2), v = random({keys, key_heads, size}, 3);
    const AttentionBlock fused = attend(q, k, v, visible, {0.3}),
                         tiled = attend_tiled(q, k, v, visible, {0.3});
    expect_near(tiled.output, fused.output, "output");
    expect_near(tiled.log_sum_exp, fused.log_sum_exp, "log-sum-exp");
    const auto a = attend_backward(dy, q, k, v, fused.output, fused.log_sum_exp, visible, {0.3});
    const auto b = attend_backward_tiled(dy, q, k, v, fused.output, fused.log_sum_exp, visible, {0.3});
    // A single key has all the weight: its score has no gradient, and both kernels return rounding noise.
    if (keys > 1) {
      expect_near(b.d_queries, a.d_queries, "queries");
      expect_near(b.d_keys, a.d_keys, "keys");
    }
    expect_near(b.d_values, a.d_values, "values");
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Attention,
    testing::Values(AttentionShape{0, {0, 9}, 4, 2, 8}, AttentionShape{7, {0, 9}, 4, 2, 8},
                    AttentionShape{1, {0, 2}, 2, 2, 4}, AttentionShape{5, {0, 3, 4, 9}, 6, 2, 8},
                    AttentionShape{0, {0, 3, 4, 9}, 3, 1, 6}, AttentionShape{1030, {0, 5, 40}, 4, 1, 8},
                    AttentionShape{2048, {0, 300}, 2, 2, 16}, AttentionShape{1300, {0, 1}, 4, 2, 8}));

// Windows of one token, shorter and longer than run and prefix, and as long; prefixes that end inside the
// first window.
INSTANTIATE_TEST_SUITE_P(
    Windows, Attention,
    testing::Values(AttentionShape{0, {0, 9}, 4, 2, 8, 2}, AttentionShape{0, {0, 9}, 2, 2, 8, 4},
                    AttentionShape{0, {0, 9}, 2, 1, 8, 9}, AttentionShape{0, {0, 9}, 2, 1, 8, 12},
                    AttentionShape{7, {0, 9}, 4, 2, 8, 3}, AttentionShape{7, {0, 9}, 4, 2, 8, 8},
                    AttentionShape{3, {0, 9}, 4, 2, 8, 5}, AttentionShape{1, {0, 9}, 4, 2, 8, 16},
                    AttentionShape{20, {0, 9}, 4, 2, 8, 10}, AttentionShape{20, {0, 9}, 4, 2, 8, 21},
                    AttentionShape{5, {0, 3, 4, 9, 30}, 6, 2, 8, 4}, AttentionShape{4, {0, 1}, 2, 2, 8, 3},
                    AttentionShape{1500, {0, 300}, 2, 1, 8, 1400},
                    AttentionShape{90, {0, 700}, 2, 1, 8, 64}));

INSTANTIATE_TEST_SUITE_P(Softcaps, Attention,
                         testing::Values(AttentionShape{0, {0, 9}, 4, 2, 8, 0, 0.7},
                                         AttentionShape{5, {0, 3, 4, 9}, 6, 2, 8, 0, 2.0},
                                         AttentionShape{7, {0, 19}, 4, 2, 8, 6, 1.0},
                                         AttentionShape{1100, {0, 300}, 2, 1, 8, 0, 0.5}));

INSTANTIATE_TEST_SUITE_P(Sinks, Attention,
                         testing::Values(AttentionShape{0, {0, 9}, 4, 2, 8, 0, 0.0, true},
                                         AttentionShape{7, {0, 9}, 4, 2, 8, 0, 0.0, true},
                                         AttentionShape{5, {0, 3, 4, 9}, 6, 2, 8, 0, 0.0, true},
                                         AttentionShape{5, {0, 3, 4, 9, 30}, 6, 2, 8, 4, 0.0, true},
                                         AttentionShape{0, {0, 9}, 2, 2, 8, 1, 0.0, true},
                                         AttentionShape{7, {0, 19}, 4, 2, 8, 6, 1.0, true},
                                         AttentionShape{1500, {0, 1100}, 2, 1, 8, 1400, 0.0, true},
                                         AttentionShape{71, {0, 65}, 2, 2, 64, 0, 0.0, true},
                                         AttentionShape{5, {0, 3, 4, 9, 200}, 6, 2, 16, 0, 0.0, true},
                                         AttentionShape{90, {0, 700}, 4, 1, 16, 64, 0.0, true},
                                         AttentionShape{4, {0, 1}, 2, 2, 16, 3, 0.0, true}));

// Heads that our own kernels serve: tiles of queries and keys begin and end everywhere.
INSTANTIATE_TEST_SUITE_P(
    FusedHeads, Attention,
    testing::Values(AttentionShape{0, {0, 9}, 4, 2, 16}, AttentionShape{7, {0, 9}, 4, 2, 48},
                    AttentionShape{71, {0, 65}, 2, 2, 64}, AttentionShape{72, {0, 128}, 8, 2, 80},
                    AttentionShape{5, {0, 3, 4, 9, 200}, 6, 2, 16},
                    AttentionShape{1030, {0, 5, 40}, 5, 1, 16}, AttentionShape{0, {0, 300}, 8, 1, 128},
                    AttentionShape{20, {0, 90}, 4, 2, 16, 10},
                    AttentionShape{5, {0, 3, 4, 9, 130}, 6, 2, 16, 4}, AttentionShape{4, {0, 1}, 2, 2, 16, 3},
                    AttentionShape{200, {0, 300}, 2, 1, 32, 150},
                    AttentionShape{90, {0, 700}, 4, 1, 16, 64}));

/// The kernels of each instruction set of this machine against an explicit mask.
TEST(FusedAttention, EveryInstructionSetEqualsAMaskedSoftmax) {
  struct Precision {
    at::ScalarType dtype;
    double limit;
  };
  for (const cpu::KernelSet& kernels : cpu::available_kernels()) {
    for (const auto& [dtype, limit] :
         {Precision{at::kDouble, 1e-13}, Precision{at::kFloat, 4e-6}, Precision{at::kBFloat16, 1e-2}}) {
      for (const auto& [prefix, offsets, heads, key_heads, size, window, softcap, has_sinks] :
           {AttentionShape{0, {0, 2}, 2, 1, 16}, AttentionShape{77, {0, 131}, 6, 2, 48},
            AttentionShape{30, {0, 150}, 2, 2, 16, 70}}) {
        SCOPED_TRACE(fmt::format("{} {} prefix {} window {}", kernels.instruction_set, at::toString(dtype),
                                 prefix, window));
        const int64_t n = offsets.back();
        const AttentionSettings settings{{0.3}, window};
        const auto rounded = [&](at::Tensor x) { return x.to(dtype); };
        const at::Tensor q = rounded(random({n, heads, size}, 1)),
                         k = rounded(random({prefix + n, key_heads, size}, 2)),
                         v = rounded(random({prefix + n, key_heads, size}, 3)),
                         dy = rounded(random({n, heads, size}, 4));
        const auto leaf = [](const at::Tensor& x) { return x.to(at::kDouble).requires_grad_(); };
        const at::Tensor true_q = leaf(q), true_k = leaf(k), true_v = leaf(v);
        const at::Tensor expected = masked_attention(true_q, true_k, true_v, offsets, prefix, settings);
        const auto truth = torch::autograd::grad({expected}, {true_q, true_k, true_v}, {dy.to(at::kDouble)});

        const auto wide = q.options().dtype(dtype == at::kDouble ? at::kDouble : at::kFloat);
        const at::Tensor d_keys = at::zeros(k.sizes(), wide), d_values = at::zeros(v.sizes(), wide);
        const auto earlier = [&](const at::Tensor& x) { return x.narrow(0, 0, prefix); };
        const auto own = [&](const at::Tensor& x) { return x.narrow(0, prefix, n); };
        const Prefix before{earlier(k), earlier(v), earlier(d_keys), earlier(d_values)};
        const FusedAttention fused{q, own(k), own(v), before, settings, kernels};
        const AttentionBlock result{at::empty_like(q), at::empty({n, heads}, wide)};
        fused.forward(result);
        const at::Tensor d_queries = at::empty_like(q);
        fused.backward(dy, result, {d_queries, own(d_keys), own(d_values)});
        const auto near = [&](const at::Tensor& got, const at::Tensor& wanted, const char* what) {
          expect_near(got.to(at::kDouble), wanted.detach(), what, limit);
        };
        near(result.output, expected, "output");
        near(d_queries, truth[0], "queries");
        near(d_keys, truth[1], "keys");
        near(d_values, truth[2], "values");
      }
    }
  }
}

TEST(Sinks, AreTakenInFloat32OfNarrowerTensors) {
  struct Precision {
    at::ScalarType dtype;
    double limit;
  };
  for (const auto& [dtype, limit] :
       {Precision{at::kFloat, 4e-6}, Precision{at::kBFloat16, 1e-2}, Precision{at::kHalf, 2e-3}}) {
    for (const int64_t size : {16, 8}) {  // our own kernels and ATen's
      SCOPED_TRACE(fmt::format("{}, heads of {}", at::toString(dtype), size));
      constexpr int64_t kRows = 1300, kHeads = 4;
      const auto sample = [&](int64_t heads, uint64_t seed) {
        return random({kRows, heads, size}, seed).to(dtype);
      };
      const at::Tensor q = sample(kHeads, 1), k = sample(2, 2), v = sample(2, 3), dy = sample(kHeads, 4);
      Parameter sinks = parameter(random({kHeads}, 5).add_(3.0).to(dtype));
      sinks.gradient = sinks.gradient.to(at::kFloat);
      const AttentionSettings settings{{0.3}, 40, &sinks};
      const auto leaf = [](const at::Tensor& x) { return x.to(at::kDouble).requires_grad_(); };
      const std::vector<at::Tensor> leaves{leaf(q), leaf(k), leaf(v), leaf(sinks.value)};
      const at::Tensor expected =
          masked_attention(leaves[0], leaves[1], leaves[2], {0, kRows}, 0, settings, leaves[3]);
      const auto truth = torch::autograd::grad({expected}, leaves, {dy.to(at::kDouble)});
      const std::vector<at::Tensor> own{q.requires_grad_(), k.requires_grad_(), v.requires_grad_()};
      AttentionBlock result;
      const at::Tensor y = attention(q, k, v, {0, kRows}, {}, settings, result);
      EXPECT_EQ(result.log_sum_exp.scalar_type(), at::kFloat);
      const auto got = torch::autograd::grad({y}, own, {dy});
      expect_near(y.detach().to(at::kDouble), expected.detach(), "value", limit);
      for (size_t i = 0; i < got.size(); ++i) expect_near(got[i].to(at::kDouble), truth[i], "input", limit);
      expect_near(sinks.gradient.to(at::kDouble), truth[3], "sinks", limit);
    }
  }
}

/// Keys and values that have something in common: what is wrong with d_output . output of a query is then in
/// its gradient at full size, while the terms themselves cancel.
TEST(HalfPrecision, GradientsOfAttentionAreRoundedOnce) {
  constexpr double kLimit = 1.25 * 0x1p-9;  // a rounding to 8 bits takes about 0.85 of 2^-9
  double most = 0.0;
  for (const auto& shape :
       {AttentionShape{0, {0, 300}, 4, 2, 16}, AttentionShape{71, {0, 200}, 6, 2, 48},
        AttentionShape{5, {0, 3, 4, 9, 200}, 6, 2, 16}, AttentionShape{90, {0, 300}, 4, 1, 16, 64},
        AttentionShape{0, {0, 300}, 4, 2, 16, 0, 0.0, true}, AttentionShape{0, {0, 300}, 4, 2, 16, 0, 2.0},
        AttentionShape{70, {0, 40, 300}, 4, 2, 8, 0, 2.0, true}}) {
    SCOPED_TRACE(testing::PrintToString(shape));
    const int64_t n = shape.offsets.back(), all = shape.prefix + n;
    const auto sample = [&](int64_t rows, int64_t heads, uint64_t seed, double common) {
      const at::Tensor own = random({rows, heads, shape.size}, seed);
      return (own + random({1, heads, shape.size}, seed + 10) * common).to(at::kBFloat16);
    };
    const at::Tensor q = sample(n, shape.heads, 1, 0.0), k = sample(all, shape.key_heads, 2, 3.0),
                     v = sample(all, shape.key_heads, 3, 3.0), dy = sample(n, shape.heads, 4, 0.0);
    Parameter sinks = parameter(random({shape.heads}, 5).to(at::kBFloat16));
    sinks.gradient = sinks.gradient.to(at::kFloat);
    const AttentionSettings settings{{0.1, shape.softcap}, shape.window, shape.sinks ? &sinks : nullptr};
    const auto leaf = [](const at::Tensor& x) { return x.to(at::kDouble).requires_grad_(); };
    const std::vector<at::Tensor> leaves{leaf(q), leaf(k), leaf(v), leaf(sinks.value)};
    const at::Tensor expected = masked_attention(leaves[0], leaves[1], leaves[2], shape.offsets, shape.prefix,
                                                 settings, shape.sinks ? leaves[3] : at::Tensor());
    const auto truth = torch::autograd::grad({expected}, leaves, {dy.to(at::kDouble)}, {}, false,
                                             /*allow_unused=*/true);
    const auto earlier = [&](const at::Tensor& x) { return x.narrow(0, 0, shape.prefix); };
    const auto own = [&](const at::Tensor& x) { return x.narrow(0, shape.prefix, n); };
    const at::Tensor of_keys = at::zeros(k.sizes(), at::kFloat), of_values = at::zeros(v.sizes(), at::kFloat);
    const Prefix prefix{earlier(k), earlier(v), earlier(of_keys), earlier(of_values)};
    const std::vector<at::Tensor> operands{q.detach().requires_grad_(), own(k).clone().requires_grad_(),
                                           own(v).clone().requires_grad_()};
    AttentionBlock result;
    const at::Tensor y = attention(operands[0], operands[1], operands[2], shape.offsets,
                                   shape.prefix > 0 ? prefix : Prefix{}, settings, result);
    auto got = torch::autograd::grad({y}, operands, {dy});
    own(of_keys).copy_(got[1]);
    own(of_values).copy_(got[2]);
    if (shape.sinks) got.push_back(sinks.gradient);
    got[1] = of_keys;
    got[2] = of_values;
    for (size_t i = 0; i < got.size(); ++i) {
      const double error = relative_distance(got[i].to(at::kDouble), truth[i]);
      EXPECT_TRUE(error <= kLimit) << "input " << i << ": relative error " << error;
      most = std::max(most, error);
    }
  }
  fmt::print("relative error at most {:.2e}, limit {:.2e}\n", most, kLimit);
}

TEST(Sinks, FrozenOnesHaveNoGradientAndTakeTheirShare) {
  Parameter sinks = parameter(at::full({2}, 1000.0, at::kDouble), /*trainable=*/false);
  const at::Tensor q = random({5, 2, 4}, 1).requires_grad_(), k = random({5, 1, 4}, 2),
                   v = random({5, 1, 4}, 3);
  AttentionBlock result;
  const at::Tensor y = attention(q, k, v, {0, 5}, {}, {{0.3}, 0, &sinks}, result);
  EXPECT_TRUE(at::equal(y.detach(), at::zeros_like(y))) << "a sink of nearly all the weight leaves nothing";
  const auto got = torch::autograd::grad({y}, {q}, {random(y.sizes(), 4)});
  EXPECT_TRUE(at::equal(got[0], at::zeros_like(q)));
  EXPECT_FALSE(sinks.gradient.defined());
}

/// Scores beyond what exp takes: an offset that all of them share changes no softmax and no gradient.
TEST(LargeScores, WithACommonOffsetGiveTheSameSoftmax) {
  const std::vector<int64_t> offsets{0, 4, 11};
  constexpr double kScale = 0.5, kLimit = 1e-10;  // of scores of 1e4, whose last bit is 2e-12
  for (const double offset : {-1e4, 1e4}) {
    for (const int64_t size : {8, 16}) {  // without and with kernels of our own
      SCOPED_TRACE(fmt::format("offset {}, heads of {}", offset, size));
      at::Tensor q = random({11, 2, size}, 1), k = random({11, 1, size}, 2);
      const at::Tensor v = random({11, 1, size}, 3).requires_grad_(), dy = random({11, 2, size}, 4);
      q.select(-1, 0).fill_(1.0);
      k.select(-1, 0).fill_(offset / kScale);
      q.requires_grad_();
      const at::Tensor expected = masked_attention(q, k, v, offsets, 0, {{kScale}});
      const auto truth = torch::autograd::grad({expected}, {q, v}, {dy});
      AttentionBlock result;
      const at::Tensor y = attention(q, k, v, offsets, {}, {{kScale}}, result);
      const auto got = torch::autograd::grad({y}, {q, v}, {dy});
      expect_near(y.detach(), expected.detach(), "output", kLimit);
      // The query's first number multiplies the offset itself: its gradient is rounding noise of that size.
      const auto others = [&](const at::Tensor& x) { return x.narrow(-1, 1, size - 1); };
      expect_near(others(got[0]), others(truth[0]), "queries", kLimit);
      expect_near(got[1], truth[1], "values", kLimit);
      const at::NoGradGuard no_grad;
      const AttentionBlock one = attend(q, k, v, Visible::kCausal, {kScale}),
                           tiled = attend_tiled(q, k, v, Visible::kCausal, {kScale});
      expect_near(tiled.output, one.output, "output of tiles", kLimit);
      expect_near(tiled.log_sum_exp, one.log_sum_exp, "log-sum-exp of tiles", kLimit);
    }
  }
}

TEST(WindowAttention, AWindowOfOneTokenGivesItsValue) {
  const at::Tensor q = random({5, 2, 4}, 1).requires_grad_(), k = random({5, 1, 4}, 2),
                   v = random({5, 1, 4}, 3).requires_grad_();
  AttentionBlock result;
  const at::Tensor y = attention(q, k, v, {0, 3, 5}, {}, {{0.3}, 1}, result);
  expect_near(y.detach(), v.detach().expand({5, 2, 4}), "value");
  const at::Tensor cotangent = random({5, 2, 4}, 4);
  const auto got = torch::autograd::grad({y}, {q, v}, {cotangent});
  EXPECT_TRUE(got[0].abs().max().item<double>() <= 1e-15);
  expect_near(got[1], cotangent.sum(1, true), "values");
}

TEST(ScoreBlocks, CoverABandOnceAndNothingElse) {
  for (int64_t rows : {1, 2, 5, 9, 16}) {
    for (int64_t prefix : {0, 1, 3, 8, 20}) {
      for (int64_t window : {0, 1, 2, 3, 5, 8, 9, 16, 17, 40}) {
        std::vector<std::vector<int>> seen(rows, std::vector<int>(prefix + rows, 0));
        for (const ScoreBlock& block : score_blocks(rows, prefix, window)) {
          ASSERT_TRUE(block.key >= 0 || block.key + block.keys <= 0) << "on both sides of the prefix's end";
          for (int64_t i = 0; i < block.queries; ++i) {
            for (int64_t j = 0; j < block.keys; ++j) {
              const bool visible =
                  block.visible == Visible::kAll || (block.visible == Visible::kCausal ? j <= i : j >= i);
              if (visible) ++seen.at(block.query + i).at(prefix + block.key + j);
            }
          }
        }
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < prefix + rows; ++j) {
            const int64_t back = prefix + i - j;
            const int expected = back >= 0 && (window == 0 || back < window) ? 1 : 0;
            ASSERT_EQ(seen[i][j], expected) << rows << " rows after " << prefix << ", window " << window
                                            << ": query " << i << ", key " << j - prefix;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace streambp
