// Attention by our CPU kernels gives the same bits on any number of threads, more than there are cores
// included.
#include "streambp/ops/attention/attention_fused.h"

#include <fmt/ranges.h>
#include <string>
#include <vector>

#include "verify/tests/on_threads.h"
#include "verify/tests/streambp/ops/ops_testing.h"

namespace streambp {
namespace {

/// A run of one sequence. Many tiles of queries share few key heads.
struct Shape {
  int64_t prefix, rows, heads, key_heads, size;
  int64_t window = 0;
};

const std::vector<Shape> kShapes = {{0, 350, 8, 1, 32},      // all query heads share one key head
                                    {300, 260, 8, 2, 16},    // after a prefix
                                    {50, 600, 2, 2, 16},     // a key head each
                                    {0, 900, 2, 1, 16, 64},  // windows shorter than a tile of queries
                                    {400, 500, 4, 1, 16, 350}, {200, 1, 4, 2, 16}, {0, 130, 3, 3, 16}};

/// Everything that the two passes give.
std::vector<at::Tensor> passes(const Shape& shape, at::ScalarType dtype, const cpu::KernelSet& kernels) {
  const auto& [prefix, rows, heads, key_heads, size, window] = shape;
  const auto sample = [&](int64_t count, int64_t of_heads, uint64_t seed) {
    return random({count, of_heads, size}, seed).to(dtype);
  };
  const at::Tensor q = sample(rows, heads, 1), k = sample(prefix + rows, key_heads, 2),
                   v = sample(prefix + rows, key_heads, 3), dy = sample(rows, heads, 4);
  const auto wide = q.options().dtype(dtype == at::kDouble ? at::kDouble : at::kFloat);
  const at::Tensor d_q = at::empty_like(q), d_k = at::zeros(k.sizes(), wide),
                   d_v = at::zeros(v.sizes(), wide);
  const auto earlier = [&](const at::Tensor& x) { return x.narrow(0, 0, shape.prefix); };
  const auto own = [&](const at::Tensor& x) { return x.narrow(0, shape.prefix, shape.rows); };
  const Prefix before{earlier(k), earlier(v), earlier(d_k), earlier(d_v)};
  const AttentionSettings settings{{0.3}, window};
  const FusedAttention fused{q, own(k), own(v), before, settings, kernels};
  const AttentionBlock result{at::empty_like(q), at::empty({rows, heads}, wide)};
  fused.forward(result);
  fused.backward(dy, result, {d_q, own(d_k), own(d_v)});
  return {result.output, result.log_sum_exp, d_q, d_k, d_v};
}

TEST(FusedAttention, KeyHeadsSideBySideAreTheirOwn) {
  const Shape shape{20, 70, 4, 2, 16};
  const auto run = [&] { return passes(shape, at::kDouble, cpu::kernels()); };
  const auto alone = on_threads(1, run), shared = on_threads(2, run);
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(at::equal(shared[i], alone[i])) << i;
}

/// Gradients of a prefix that are kept in half precision are rounded once, after they are added up.
TEST(FusedAttention, NarrowGradientsOfAPrefixAreAddedOnce) {
  const auto sample = [](int64_t rows, int64_t heads, uint64_t seed) {
    return random({rows, heads, 16}, seed).to(at::kBFloat16);
  };
  const at::Tensor q = sample(90, 2, 1), k = sample(90, 1, 2), v = sample(90, 1, 3), dy = sample(90, 2, 4);
  const at::Tensor keys = sample(70, 1, 5), values = sample(70, 1, 6);
  const auto backward = [&](const at::Tensor& d_keys, const at::Tensor& d_values) {
    const Prefix prefix{keys, values, d_keys, d_values};
    const AttentionSettings settings{{0.3}, 0};
    const FusedAttention fused{q, k, v, prefix, settings, cpu::kernels()};
    const AttentionBlock result{at::empty_like(q), at::empty({90, 2}, at::kFloat)};
    fused.forward(result);
    const at::Tensor own_keys = at::zeros({90, 1, 16}, at::kFloat), own_values = at::zeros_like(own_keys);
    fused.backward(dy, result, {at::empty_like(q), own_keys, own_values});
  };
  const at::Tensor wide_keys = at::zeros({70, 1, 16}, at::kFloat), wide_values = at::zeros_like(wide_keys);
  backward(wide_keys, wide_values);
  EXPECT_GT(wide_keys.abs().max().item<double>(), 0.0);
  const at::Tensor before_keys = sample(70, 1, 7), before_values = sample(70, 1, 8);
  const at::Tensor d_keys = before_keys.clone(), d_values = before_values.clone();
  backward(d_keys, d_values);
  EXPECT_TRUE(at::equal(d_keys, before_keys.clone().add_(wide_keys)));
  EXPECT_TRUE(at::equal(d_values, before_values.clone().add_(wide_values)));
}

TEST(FusedAttention, GivesTheSameBitsOnAnyNumberOfThreads) {
  constexpr const char* kNames[] = {"output", "log-sum-exps", "queries", "keys", "values"};
  for (const cpu::KernelSet& kernels : cpu::available_kernels()) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      for (const Shape& shape : kShapes) {
        SCOPED_TRACE(fmt::format("{} {}, {} rows after {}, {} heads of {}, {} of keys, window {}",
                                 kernels.instruction_set, at::toString(dtype), shape.rows, shape.prefix,
                                 shape.heads, shape.size, shape.key_heads, shape.window));
        const auto alone = on_threads(1, [&] { return passes(shape, dtype, kernels); });
        for (const int threads : {2, 3, 8}) {
          const auto shared = on_threads(threads, [&] { return passes(shape, dtype, kernels); });
          for (size_t i = 0; i < alone.size(); ++i)
            EXPECT_TRUE(at::equal(shared[i], alone[i])) << kNames[i] << " on " << threads << " threads";
        }
      }
    }
  }
}

TEST(FusedAttention, GivesTheSameBitsAgainAndAgainWhereThreadsWaitForEachOther) {
  const Shape shape{100, 900, 8, 1, 16};
  const auto run = [&] { return passes(shape, at::kFloat, cpu::kernels()); };
  const auto first = on_threads(1, run);
  for (int repeat = 0; repeat < 20; ++repeat) {
    const auto again = on_threads(8, run);
    for (size_t i = 0; i < first.size(); ++i) ASSERT_TRUE(at::equal(again[i], first[i])) << i;
  }
}

TEST(FusedAttention, PackedSequencesGiveTheSameBitsOnAnyNumberOfThreads) {
  const std::vector<int64_t> offsets{0, 3, 4, 200, 520, 521};
  for (const int64_t window : {0, 40}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const auto run = [&] {
        const auto sample = [&](int64_t heads, uint64_t seed) {
          return random({521, heads, 16}, seed).to(dtype).requires_grad_();
        };
        const at::Tensor q = sample(6, 1), k = sample(1, 2), v = sample(1, 3);
        const auto earlier = [&](uint64_t seed) { return random({70, 1, 16}, seed).to(dtype); };
        const Prefix prefix{earlier(5), earlier(6), at::zeros({70, 1, 16}), at::zeros({70, 1, 16})};
        AttentionBlock result;
        const at::Tensor y = attention(q, k, v, offsets, prefix, {{0.3}, window}, result);
        auto all = torch::autograd::grad({y}, {q, k, v}, {random(y.sizes(), 4).to(dtype)});
        all.insert(all.end(), {y.detach(), prefix.key_gradients, prefix.value_gradients});
        return all;
      };
      const auto alone = on_threads(1, run);
      for (const int threads : {2, 3, 8}) {
        const auto shared = on_threads(threads, run);
        for (size_t i = 0; i < alone.size(); ++i)
          EXPECT_TRUE(at::equal(shared[i], alone[i]))
              << "tensor " << i << " on " << threads << " threads, window " << window;
      }
    }
  }
}

}  // namespace
}  // namespace streambp
