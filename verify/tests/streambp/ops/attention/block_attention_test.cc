// Blocks of rows made one row each, and attention over a window and blocks, against the same formulas in
// plain ATen under an explicit mask, in float64: blocks that prefixes cut, packed sequences, picks, sinks.
#include "streambp/ops/attention/block_attention.h"

#include <limits>

#include "streambp/ops/attention/pooled_blocks.h"
#include "verify/tests/streambp/ops/ops_testing.h"

namespace streambp {
namespace {

constexpr double kBlockLimit = 1e-13;
constexpr int64_t kHeadDim = 4, kWindow = 3, kBlockHeads = 2;

/// Where the sequences of prefix and own rows begin, and their end.
std::vector<int64_t> whole_offsets(int64_t prefix, const std::vector<int64_t>& offsets) {
  std::vector<int64_t> whole{0};
  for (size_t s = 1; s < offsets.size(); ++s) whole.push_back(prefix + offsets[s]);
  return whole;
}

at::Tensor plain_pooled(const at::Tensor& rows, const at::Tensor& bias, const std::vector<int64_t>& whole,
                        const BlockPooling& pooling) {
  std::vector<at::Tensor> all;
  const int64_t width = rows.size(1) / 2, rate = pooling.rate;
  for (size_t s = 0; s + 1 < whole.size(); ++s) {
    for (int64_t block = 0; block < (whole[s + 1] - whole[s]) / rate; ++block) {
      const auto of = [&](int64_t number) { return rows.narrow(0, whole[s] + number * rate, rate); };
      at::Tensor v = of(block).narrow(1, 0, width), z = of(block).narrow(1, width, width) + bias;
      if (pooling.overlaps) {
        v = v.narrow(1, kHeadDim, kHeadDim);
        z = z.narrow(1, kHeadDim, kHeadDim);
        if (block > 0) {
          v = at::cat({of(block - 1).narrow(1, 0, kHeadDim), v});
          z = at::cat({of(block - 1).narrow(1, width, kHeadDim) + bias.narrow(1, 0, kHeadDim), z});
        }
      }
      all.push_back((z.softmax(0) * v).sum(0));
    }
  }
  return at::stack(all);
}

at::Tensor leaf_of(const at::Tensor& x) {
  return x.clone().requires_grad_();
}

const std::vector<std::pair<int64_t, std::vector<int64_t>>>& runs() {
  static const std::vector<std::pair<int64_t, std::vector<int64_t>>> all{
      {0, {0, 10}}, {4, {0, 9}}, {7, {0, 1}}, {5, {0, 2, 3, 12}}};
  return all;
}

TEST(PooledBlocks, EqualPlainAutograd) {
  for (const auto& [prefix, offsets] : runs()) {
    for (const bool overlaps : {false, true}) {
      const int64_t n = offsets.back(), width = overlaps ? 2 * kHeadDim : kHeadDim;
      Parameter bias = parameter(random({3, width}, 1));
      const BlockPooling pooling{&bias, 3, overlaps};
      const at::Tensor rows = random({prefix + n, 1, 2 * width}, 2);
      const std::vector<at::Tensor> leaves{leaf_of(rows.squeeze(1)), leaf_of(bias.value)};
      const at::Tensor expected = plain_pooled(leaves[0], leaves[1], whole_offsets(prefix, offsets), pooling);
      const at::Tensor cotangent = random(expected.sizes(), 3);
      const auto truth = torch::autograd::grad({expected}, leaves, {cotangent});
      Prefix earlier;
      earlier.values = rows.narrow(0, 0, prefix);
      earlier.value_gradients = at::zeros({prefix, 1, 2 * width}, at::kDouble);
      const at::Tensor own = leaf_of(rows.narrow(0, prefix, n));
      const at::Tensor y = pooled_blocks(own, prefix > 0 ? earlier : Prefix{}, offsets, pooling);
      expect_near(y.detach(), expected.detach(), "value", kBlockLimit);
      const auto got = torch::autograd::grad({y}, {own}, {cotangent});
      expect_near(at::cat({earlier.value_gradients, got[0]}).squeeze(1), truth[0], "rows", kBlockLimit);
      expect_near(bias.gradient, truth[1], "bias", kBlockLimit);
    }
  }
}

TEST(BlockAttention, EqualsASoftmaxUnderAMask) {
  constexpr int64_t kRate = 2, kPicked = 1;
  for (const auto& [prefix, offsets] : runs()) {
    for (const bool picks : {false, true}) {
      const int64_t n = offsets.back(), all = prefix + n;
      const std::vector<int64_t> whole = whole_offsets(prefix, offsets);
      int64_t count = 0;
      for (size_t s = 0; s + 1 < whole.size(); ++s) count += (whole[s + 1] - whole[s]) / kRate;
      const at::Tensor q = random({n, kBlockHeads, kHeadDim}, 1), keys = random({all, 1, kHeadDim}, 2),
                       blocks = random({count, kHeadDim}, 3);
      Parameter sinks = parameter(random({kBlockHeads}, 4));
      at::Tensor hidden = at::ones({n, all + count}, at::kBool);
      at::Tensor picked = at::zeros({n, kPicked}, at::kInt);
      int64_t first_block = 0;
      for (size_t s = 0; s + 1 < whole.size(); ++s) {
        for (int64_t i = offsets[s]; i < offsets[s + 1]; ++i) {
          const int64_t at = prefix + i - whole[s], known = (at + 1) / kRate;
          for (int64_t j = std::max<int64_t>(0, at - kWindow + 1); j <= at; ++j)
            hidden[i][whole[s] + j] = false;
          picked[i][0] = known > 0 ? (i * 5) % known : 0;
          for (int64_t b = 0; b < known; ++b) {
            const bool is_seen = !picks || known <= kPicked || picked[i][0].item<int>() == b;
            hidden[i][all + first_block + b] = !is_seen;
          }
        }
        first_block += (whole[s + 1] - whole[s]) / kRate;
      }
      const std::vector<at::Tensor> leaves{leaf_of(q), leaf_of(keys.squeeze(1)), leaf_of(blocks),
                                           leaf_of(sinks.value)};
      const at::Tensor rows = at::cat({leaves[1], leaves[2]});
      const at::Tensor scores = (at::einsum("ihe,je->hij", {leaves[0], rows}) * 0.7)
                                    .masked_fill(hidden, -std::numeric_limits<double>::infinity());
      const at::Tensor with_sinks = at::cat({scores, leaves[3].view({-1, 1, 1}).expand({-1, n, 1})}, -1);
      const at::Tensor p = with_sinks.softmax(-1).narrow(-1, 0, all + count);
      const at::Tensor expected = at::einsum("hij,je->ihe", {p, rows});
      const at::Tensor cotangent = random(expected.sizes(), 5);
      const auto truth = torch::autograd::grad({expected}, leaves, {cotangent});
      Prefix earlier;
      earlier.keys = keys.narrow(0, 0, prefix);
      earlier.key_gradients = at::zeros({prefix, 1, kHeadDim}, at::kDouble);
      const std::vector<at::Tensor> own{leaf_of(q), leaf_of(keys.narrow(0, prefix, n)), leaf_of(blocks)};
      const SeenBlocks seen{own[2], kRate, picks ? picked : at::Tensor()};
      const at::Tensor y = block_attention(own[0], own[1], prefix > 0 ? earlier : Prefix{}, offsets, seen,
                                           {{0.7}, kWindow, &sinks});
      expect_near(y.detach(), expected.detach(), "value", kBlockLimit);
      const auto got = torch::autograd::grad({y}, own, {cotangent});
      expect_near(got[0], truth[0], "queries", kBlockLimit);
      expect_near(at::cat({earlier.key_gradients, got[1]}).squeeze(1), truth[1], "keys", kBlockLimit);
      expect_near(got[2], truth[2], "blocks", kBlockLimit);
      expect_near(sinks.gradient, truth[3], "sinks", kBlockLimit);
    }
  }
}

}  // namespace
}  // namespace streambp
