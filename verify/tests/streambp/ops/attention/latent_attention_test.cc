// Latent attention against the keys and values of all heads at once under an explicit mask, in float64:
// prefixes, packed sequences, groups of heads, adapters of the projection.
#include "streambp/ops/attention/latent_attention.h"

#include <fmt/ranges.h>
#include <limits>
#include <ostream>

#include "verify/tests/streambp/ops/ops_testing.h"

namespace streambp {
namespace {

constexpr double kLatentLimit = 1e-12;

struct LatentShape {
  int64_t prefix;
  std::vector<int64_t> offsets;
  int64_t heads, nope, rope, value;
  int64_t at_once;  // heads
  bool has_adapter = false;
};

void PrintTo(const LatentShape& shape, std::ostream* out) {
  *out << fmt::format("prefix {}, sequences {}, {} heads of {} + {} and {}, {} at a time, adapter {}",
                      shape.prefix, shape.offsets, shape.heads, shape.nope, shape.rope, shape.value,
                      shape.at_once, shape.has_adapter);
}

constexpr int64_t kRank = 5;
constexpr double kScale = 0.3;

/// What is to be had of [latents, rotated keys] of prefix and own rows, and the projection [H (nope + value),
/// L] with its bias (may be undefined).
at::Tensor plain(const LatentShape& shape, const at::Tensor& q, const at::Tensor& latents,
                 const at::Tensor& rotated, const at::Tensor& projection, const at::Tensor& constant) {
  const int64_t n = q.size(0), all = latents.size(0);
  const at::Tensor expanded =
      at::linear(latents.squeeze(1), projection, constant).view({all, shape.heads, shape.nope + shape.value});
  const at::Tensor keys =
      at::cat({expanded.narrow(2, 0, shape.nope), rotated.expand({-1, shape.heads, -1})}, 2);
  const at::Tensor values = expanded.narrow(2, shape.nope, shape.value);
  at::Tensor hidden = at::ones({n, all}, at::kBool);
  for (size_t s = 0; s + 1 < shape.offsets.size(); ++s) {
    const int64_t first = s == 0 ? 0 : shape.prefix + shape.offsets[s];
    for (int64_t i = shape.offsets[s]; i < shape.offsets[s + 1]; ++i)
      hidden[i].narrow(0, first, shape.prefix + i - first + 1).fill_(false);
  }
  const at::Tensor scores = (at::einsum("ihe,jhe->hij", {q, keys}) * kScale)
                                .masked_fill(hidden.unsqueeze(0), -std::numeric_limits<double>::infinity());
  return at::einsum("hij,jhe->ihe", {scores.softmax(-1), values});
}

class Latent : public testing::TestWithParam<LatentShape> {};

TEST_P(Latent, EqualsAllHeadsAtOnce) {
  const LatentShape& shape = GetParam();
  const int64_t n = shape.offsets.back(), prefix = shape.prefix;
  Parameter weight = parameter(random({shape.heads * (shape.nope + shape.value), kRank}, 1));
  Parameter a = parameter(random({2, kRank}, 2)), b = parameter(random({weight.value.size(0), 2}, 3)),
            bias = parameter(random({weight.value.size(0)}, 8));
  Linear map{"kv_b_proj", &weight};
  if (shape.has_adapter) map.adapter = {&a, &b, 0.7, &bias};
  LatentHeads heads{&map, shape.heads, shape.nope, shape.rope, shape.value};
  heads.group_bytes = shape.at_once * 2 * heads.width() * (prefix + n) * 8;
  ASSERT_EQ(latent_group(heads, prefix + n, 8), std::min(shape.at_once, shape.heads));

  const auto leaf = [](const at::Tensor& x) { return x.clone().requires_grad_(); };
  const at::Tensor q = random({n, shape.heads, shape.nope + shape.rope}, 4),
                   latents = random({prefix + n, 1, kRank}, 5),
                   rotated = random({prefix + n, 1, shape.rope}, 6);
  std::vector<at::Tensor> leaves{leaf(q),       leaf(latents), leaf(rotated),   leaf(weight.value),
                                 leaf(a.value), leaf(b.value), leaf(bias.value)};
  const at::Tensor projection =
      shape.has_adapter ? leaves[3] + 0.7 * at::mm(leaves[5], leaves[4]) : leaves[3];
  const at::Tensor constant = shape.has_adapter ? leaves[6] * 0.7 : at::Tensor();
  const at::Tensor expected = plain(shape, leaves[0], leaves[1], leaves[2], projection, constant);
  const at::Tensor cotangent = random(expected.sizes(), 7);
  if (!shape.has_adapter) leaves.resize(4);
  const auto truth = torch::autograd::grad({expected}, leaves, {cotangent});

  const Prefix earlier{latents.narrow(0, 0, prefix), rotated.narrow(0, 0, prefix),
                       at::zeros({prefix, 1, kRank}, at::kDouble),
                       at::zeros({prefix, 1, shape.rope}, at::kDouble)};
  const std::vector<at::Tensor> own{leaf(q), leaf(latents.narrow(0, prefix, n)),
                                    leaf(rotated.narrow(0, prefix, n))};
  const AttentionSettings settings{{kScale}, 0, nullptr};
  const at::Tensor y = latent_attention(own[0], own[1], own[2], shape.offsets, earlier, settings, heads);
  expect_near(y.detach(), expected.detach(), "value", kLatentLimit);
  const auto got = torch::autograd::grad({y}, own, {cotangent});
  expect_near(got[0], truth[0], "queries", kLatentLimit);
  expect_near(at::cat({earlier.key_gradients, got[1]}), truth[1], "latents, prefix included", kLatentLimit);
  expect_near(at::cat({earlier.value_gradients, got[2]}), truth[2], "rotated keys, prefix included",
              kLatentLimit);
  expect_near(weight.gradient, truth[3], "projection", kLatentLimit);
  if (shape.has_adapter) {
    expect_near(a.gradient, truth[4], "A", kLatentLimit);
    expect_near(b.gradient, truth[5], "B", kLatentLimit);
    expect_near(bias.gradient, truth[6], "B's bias", kLatentLimit);
  }

  // Nobody wants the prefix's gradient: the projection's is the same.
  weight.gradient.zero_();
  const at::Tensor again = latent_attention(own[0], own[1], own[2], shape.offsets,
                                            {earlier.keys, earlier.values, {}, {}}, settings, heads);
  torch::autograd::grad({again}, own, {cotangent});
  expect_near(weight.gradient, truth[3], "projection, where the prefix wants nothing", kLatentLimit);
}

INSTANTIATE_TEST_SUITE_P(
    All, Latent,
    testing::Values(LatentShape{0, {0, 9}, 3, 5, 4, 6, 3}, LatentShape{7, {0, 9}, 3, 5, 4, 6, 2},
                    LatentShape{7, {0, 4, 5, 9}, 4, 5, 4, 6, 1, true},
                    LatentShape{11, {0, 3}, 2, 12, 4, 16, 2},       // the kernels' width
                    LatentShape{11, {0, 3}, 5, 3, 2, 13, 2, true},  // values wider than keys
                    LatentShape{40, {0, 33, 50}, 3, 10, 6, 8, 2, true}));

}  // namespace
}  // namespace streambp
