// What is made of a GPU library's attention kernels: rectangles, squares, tiles of the prefix, windows and
// their merging, with plain formulas in the libraries' place.
#include "streambp/ops/attention_device.h"

#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <vector>

#include "streambp/memory/meter.h"
#include "streambp/ops/attention.h"
#include "streambp/ops/cuda/scratch.h"
#include "streambp/ops/stand_in.h"
#include "verify/ops_testing.h"

namespace streambp {
namespace {

/// softmax(scores) v of a block under autograd, by the formula, with the masks that the libraries know.
struct Formula {
  at::Tensor q, k, v, output, log_sum_exp;

  explicit Formula(const AttentionOperands& x)
      : q(x.q.detach().requires_grad_()), k(x.k.detach().requires_grad_()), v(x.v.detach().requires_grad_()) {
    const at::AutoGradMode with_grad(true);
    const int64_t n = q.size(0), m = k.size(0), groups = q.size(1) / k.size(1);
    const auto heads = [&](const at::Tensor& keys) {
      return keys.repeat_interleave(groups, 1).transpose(0, 1);
    };
    at::Tensor scores = at::matmul(q.transpose(0, 1), heads(k).transpose(1, 2)) * x.scale;
    const at::Tensor own = at::arange(m - n, m).unsqueeze(1), key = at::arange(m).unsqueeze(0);
    if (x.causal) scores = scores.masked_fill(key > own, -std::numeric_limits<double>::infinity());
    if (x.window > 0)
      scores = scores.masked_fill(key <= own - x.window, -std::numeric_limits<double>::infinity());
    log_sum_exp = at::logsumexp(scores, -1);  // [H, n]
    output = at::matmul(scores.softmax(-1), heads(v)).transpose(0, 1);
  }
};

/// A library that counts its calls.
struct Library {
  int forward = 0, backward = 0;
  std::vector<std::string> shapes;

  DeviceAttention named(const char* name, bool lower_right) {
    return {name, lower_right,
            [this, lower_right](const AttentionOperands& x) {
              EXPECT_TRUE(lower_right || (x.window == 0 && (!x.causal || x.q.size(0) == x.k.size(0))))
                  << "a block that only the first library knows: " << x.shape();
              ++forward;
              shapes.push_back(x.shape());
              const Formula formula(x);
              return AttentionBlock{formula.output.detach(), formula.log_sum_exp.detach().t()};
            },
            [this](const AttentionOperands& x, const at::Tensor& d_output, const AttentionBlock& saved) {
              ++backward;
              EXPECT_TRUE(saved.log_sum_exp.is_contiguous() && saved.log_sum_exp.size(0) == x.q.size(1));
              return backward_of(x, d_output, saved);
            }};
  }

  /// The formula of a block's backward pass with the whole rows' output and log-sum-exps.
  static AttentionBlockGradients backward_of(const AttentionOperands& x, const at::Tensor& d_output,
                                             const AttentionBlock& saved) {
    const Formula formula(x);
    // Weights relative to the whole row: exp(score - lse) = softmax of the block * exp(its lse - the row's).
    const at::Tensor share = (formula.log_sum_exp.detach() - saved.log_sum_exp).exp().t().unsqueeze(-1);
    // d score = p (d_output . v - d_output . output); the block's own softmax has its own output in place of
    // the row's: the difference goes through the log-sum-exp.
    const at::Tensor d_block = d_output * share;
    const at::Tensor d_sum =
        ((d_block * formula.output.detach()).sum(-1) - (d_block * saved.output).sum(-1)).t();
    const auto d = torch::autograd::grad({formula.output, formula.log_sum_exp},
                                         {formula.q, formula.k, formula.v}, {d_block, d_sum});
    return {d[0], d[1], d[2]};
  }
};

struct RunShape {
  std::vector<int64_t> offsets;
  int64_t prefix;
  int64_t window;
};

class AttentionOfLibraries : public testing::TestWithParam<RunShape> {};

INSTANTIATE_TEST_SUITE_P(Runs, AttentionOfLibraries,
                         testing::Values(RunShape{{0, 8}, 0, 0}, RunShape{{0, 8}, 8, 0},
                                         RunShape{{0, 8}, 43, 0}, RunShape{{0, 8}, 2 * kDeviceTile + 5, 0},
                                         RunShape{{0, 3, 8}, 9, 0}, RunShape{{0, 1}, 5, 0},
                                         RunShape{{0, 8}, 0, 3}, RunShape{{0, 8}, 4, 5},
                                         RunShape{{0, 5, 8}, 2, 4}, RunShape{{0, 8}, 20, 21}));

TEST_P(AttentionOfLibraries, IsTheTiledOne) {
  const auto& [offsets, prefix_rows, window] = GetParam();
  const int64_t rows = offsets.back();
  const auto run = [&](Prefix& prefix) {
    const at::Tensor q = random({rows, 4, 6}, 1).requires_grad_(),
                     k = random({rows, 2, 6}, 2).requires_grad_(),
                     v = random({rows, 2, 6}, 3).requires_grad_();
    if (prefix_rows > 0) {
      prefix = {random({prefix_rows, 2, 6}, 4), random({prefix_rows, 2, 6}, 5),
                at::zeros({prefix_rows, 2, 6}, at::kDouble), at::zeros({prefix_rows, 2, 6}, at::kDouble)};
    }
    AttentionBlock known;
    const at::Tensor y = attention(q, k, v, offsets, prefix, {{0.4, 0.0}, window}, known);
    auto all = torch::autograd::grad({y}, {q, k, v}, {random({rows, 4, 6}, 6)});
    all.push_back(y.detach());
    return all;
  };
  Prefix expected_prefix;
  const auto expected = run(expected_prefix);
  Library flash, cudnn;
  const ServeAttention serve({flash.named("flash", true), cudnn.named("cudnn", false)});
  for (int again = 0; again < 3; ++again) {  // before, while and after a choice is made
    Prefix prefix;
    const auto got = run(prefix);
    for (size_t i = 0; i < got.size(); ++i)
      expect_near(got[i], expected[i], fmt::format("tensor {}", i).c_str());
    if (prefix_rows == 0) continue;
    expect_near(prefix.key_gradients, expected_prefix.key_gradients, "gradients of the prefix's keys");
    expect_near(prefix.value_gradients, expected_prefix.value_gradients, "gradients of the prefix's values");
  }
  EXPECT_GT(flash.forward, 0);
  EXPECT_GT(flash.backward, 0);
  if (window > 0) {
    EXPECT_EQ(cudnn.forward + cudnn.backward, 0) << "only the first library knows windows";
  }
}

/// A library of formulas that takes `seconds` longer than it needs.
DeviceAttention slow(DeviceAttention library, double seconds) {
  const auto wait = [seconds] {
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds) {
    }
  };
  library.forward = [wait, forward = library.forward](const AttentionOperands& x) {
    wait();
    return forward(x);
  };
  return library;
}

TEST(AttentionChoice, ComesFromMeasurementOfShapesThatComeAgain) {
  const AttentionOperands square{
      random({8, 2, 6}, 1), random({8, 2, 6}, 2), random({8, 2, 6}, 3), true, 0, 1.0};
  Library first, second;
  {
    const ServeAttention serve({slow(first.named("flash", true), 0.02), second.named("cudnn", false)});
    device_attend(square);
    EXPECT_EQ(first.forward, 1);
    EXPECT_EQ(second.forward, 0) << "a shape that has come once is not worth a measurement";
    EXPECT_TRUE(attention_choices().empty());
    device_attend(square);
    const int measured = first.forward;
    for (int i = 0; i < 3; ++i) device_attend(square);
    EXPECT_EQ(first.forward, measured) << "the slower library is not asked again";
    ASSERT_EQ(attention_choices().size(), 1U);
    EXPECT_NE(attention_choices().front().find(": cudnn"), std::string::npos) << attention_choices().front();
  }
  Library fast;
  const ServeAttention serve(
      {fast.named("flash", true),
       {"cudnn",
        false,
        [](const AttentionOperands&) -> AttentionBlock { TORCH_CHECK(false, "no kernel for this"); },
        {}}});
  for (int i = 0; i < 3; ++i) device_attend(square);
  EXPECT_NE(attention_choices().front().find("cudnn unsupported: flash"), std::string::npos)
      << attention_choices().front();
}

TEST(AttentionChoice, ALongPrefixGoesInRectanglesOfTwoShapes) {
  const int64_t keys = 10 * kDeviceTile + 3;
  const AttentionOperands rectangle{
      random({4, 2, 6}, 1), random({keys, 2, 6}, 2), random({keys, 2, 6}, 3), false, 0, 1.0};
  Library first, second;
  const ServeAttention serve({slow(first.named("flash", true), 0.5), second.named("cudnn", false)});
  for (int i = 0; i < 2; ++i) device_attend(rectangle);
  second.shapes.clear();
  first.shapes.clear();
  const AttentionBlock got = device_attend(rectangle);
  const Formula expected(rectangle);
  expect_near(got.output, expected.output.detach(), "output");
  expect_near(got.log_sum_exp, expected.log_sum_exp.detach().t(), "log-sum-exps");
  const auto shape = [](int64_t count) { return fmt::format("4 x {}, 2/2 heads of 6", count); };
  EXPECT_EQ(second.shapes, (std::vector<std::string>{shape(4 * kDeviceTile), shape(4 * kDeviceTile),
                                                     shape(kDeviceTile), shape(kDeviceTile)}));
  EXPECT_EQ(first.shapes, (std::vector<std::string>{shape(3)}));
}

/// While it lives, the meta device stands for a GPU.
struct MetaForCuda {
  MetaForCuda() { set_meta_stands_for(c10::DeviceType::CUDA); }
  ~MetaForCuda() { set_meta_stands_for(c10::DeviceType::CPU); }
};

TEST(AttentionOnMeta, CountsWhatFlashAttentionTakes) {
  install_meters();
  const MetaForCuda stands_in;
  const auto options = at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16);
  const int64_t n = 1000, m = 3000, heads = 8, key_heads = 2, size = 40;
  const AttentionOperands x{at::empty({n, heads, size}, options),
                            at::empty({m, key_heads, size}, options),
                            at::empty({m, key_heads, size}, options),
                            false,
                            0,
                            1.0};
  const AttentionBlock block = device_attend(x);
  EXPECT_EQ(block.log_sum_exp.sizes(), at::IntArrayRef({n, heads}));
  const at::Tensor d = at::empty_like(x.q);
  reset_peak(at::kMeta);
  const int64_t before = read_meter(at::kMeta).live_bytes;
  const AttentionBlockGradients gradients = device_attend_backward(x, d, block);
  // Rows to 128, heads of 40 to 64 numbers; keys' and values' gradients of each query head.
  const int64_t sums = 4 * (1024 * heads * 64 + 1024 * heads), expanded = 2 * 2 * m * heads * size;
  const int64_t results = 2 * (n * heads * size + 2 * m * key_heads * size);
  EXPECT_EQ(read_meter(at::kMeta).peak_bytes - before, results + sums + expanded);
  EXPECT_EQ(read_meter(at::kMeta).live_bytes - before, results);
  EXPECT_EQ(read_meter(at::kMeta).at_peak.at("kernel workspace"), sums + expanded);
}

TEST(AttentionOnMeta, SplitsKeysWhereQueriesDoNotFillTheGpu) {
  EXPECT_EQ(cuda::flash_splits(32, 8192, 32768, 128), 1);
  EXPECT_EQ(cuda::flash_splits(32, 448, 32768, 128), 1) << "224 blocks of 264 slots: enough";
  const int64_t splits = cuda::flash_splits(8, 64, 32768, 128);
  EXPECT_GT(splits, 16);
  EXPECT_LE(splits, 33) << "264 slots for 8 blocks";
  EXPECT_EQ(cuda::flash_splits(8, 64, 128, 128), 1) << "one tile of keys can't be cut";
}

TEST(MetaDevice, StandsForTheCpuOrAGpu) {
  const auto options = at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16);
  const at::Tensor q = at::empty({4, 2, 16}, options);
  EXPECT_FALSE(is_for_cuda(q));
  EXPECT_FALSE(has_device_attention(q, {1.0, 0.0}));
  const MetaForCuda stands_in;
  EXPECT_TRUE(is_for_cuda(q));
  EXPECT_TRUE(has_device_attention(q, {1.0, 0.0}));
  EXPECT_FALSE(has_device_attention(q, {1.0, 50.0})) << "a cap on the scores";
  EXPECT_FALSE(has_device_attention(q.to(at::kFloat), {1.0, 0.0})) << "float32";
  EXPECT_FALSE(has_device_attention(at::empty({4, 2, 12}, options), {1.0, 0.0})) << "heads of 12";
  EXPECT_FALSE(is_for_cuda(at::empty({1})));
  EXPECT_THROW(set_meta_stands_for(c10::DeviceType::XPU), InputError);
}

}  // namespace
}  // namespace streambp
