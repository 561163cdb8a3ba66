// What is made of a GPU library's attention kernels: rectangles, squares, tiles of the prefix, windows and
// their merging, with plain formulas in the libraries' place.
#include "streambp/ops/attention_device.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/ops/attention.h"
#include "streambp/ops/backend.h"
#include "streambp/ops/cuda/scratch.h"
#include "streambp/runtime/device.h"
#include "verify/tests/streambp/ops/ops_testing.h"

namespace streambp {
namespace {

/// While it lives, `kernels` serve tensors on the CPU.
struct ServeAttention {
  explicit ServeAttention(std::vector<DeviceAttention> kernels) {
    set_device_attention(c10::DeviceType::CPU, std::move(kernels));
  }
  ~ServeAttention() { set_device_attention(c10::DeviceType::CPU, {}); }
  ServeAttention(const ServeAttention&) = delete;
  ServeAttention& operator=(const ServeAttention&) = delete;
};

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
    if (!x.offsets.empty()) {
      const at::Tensor sequence =
          at::searchsorted(at::tensor(x.offsets), at::arange(n), /*out_int32=*/false, /*right=*/true);
      scores = scores.masked_fill(sequence.unsqueeze(1).ne(sequence.unsqueeze(0)),
                                  -std::numeric_limits<double>::infinity());
    }
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
              EXPECT_TRUE(lower_right || !x.causal || x.is_square())
                  << "a block that only the first library knows: " << x.shape();
              ++forward;
              shapes.push_back(x.shape());
              const Formula formula(x);
              return AttentionBlock{formula.output.detach(), formula.log_sum_exp.detach().t()};
            },
            [this](const AttentionOperands& x, const at::Tensor& d_output, const AttentionBlock& saved) {
              ++backward;
              EXPECT_TRUE(saved.log_sum_exp.is_contiguous() && saved.log_sum_exp.size(0) == x.q.size(1));
              EXPECT_TRUE(saved.output.is_contiguous() && d_output.is_contiguous());
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
                                         RunShape{{0, 5, 8}, 2, 4}, RunShape{{0, 8}, 20, 21},
                                         RunShape{{0, 3, 4, 4, 9}, 0, 0}, RunShape{{0, 3, 4, 9, 11}, 7, 0},
                                         RunShape{{0, 5, 6, 13}, 0, 3}, RunShape{{0, 5, 6, 13}, 4, 3}));

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

TEST(PackedSequences, AreOneCallWithoutThePrefixesOwn) {
  struct Case {
    RunShape shape;
    int calls;
    int64_t queries;  // of the last call
  };
  // A prefix is merged with the rows that continue it: two calls, and one for all that follow.
  const std::vector<Case> cases = {{{{0, 3, 4, 9}, 0, 0}, 1, 9},
                                   {{{0, 3, 4, 9}, 6, 0}, 3, 6},
                                   {{{0, 3, 4, 9}, 6, 2}, 2, 6},
                                   {{{0, 3, 9}, 6, 0}, 3, 6}};
  for (const auto& [shape, calls, queries] : cases) {
    const int64_t rows = shape.offsets.back();
    const at::Tensor q = random({rows, 4, 8}, 1), k = random({rows, 2, 8}, 2);
    Prefix prefix;
    if (shape.prefix > 0) prefix = {random({shape.prefix, 2, 8}, 3), random({shape.prefix, 2, 8}, 4), {}, {}};
    Library flash;
    const ServeAttention serve({flash.named("flash", true)});
    AttentionBlock known;
    attention(q, k, k, shape.offsets, prefix, {{0.4, 0.0}, shape.window}, known);
    EXPECT_EQ(flash.forward, calls) << fmt::format("{}", shape.offsets);
    EXPECT_EQ(flash.shapes.back().substr(0, flash.shapes.back().find(' ')), std::to_string(queries));
  }
  Library flash;
  const ServeAttention serve({flash.named("flash", true)});
  AttentionBlock known;
  const at::Tensor q = random({2, 4, 8}, 1), k = random({2, 2, 8}, 2);
  attention(q, k, k, {0, 1, 2}, {}, {{0.4, 0.0}, 0}, known);
  for (const std::string& shape : flash.shapes)
    EXPECT_EQ(shape.substr(0, 5), "1 x 1") << "sequences of one token each are left to calls of their own";
}

TEST(PackedSequences, OfFloatsThatLieApartAreTheTiledOnesToo) {
  // As a fused projection gives them: queries, keys and values side by side, and so is what comes back.
  const std::vector<int64_t> offsets{0, 4, 11};
  const at::Tensor all = random({11, 8, 6}, 1).requires_grad_(), d = random({6, 4, 11}, 2).permute({2, 1, 0});
  const auto run = [&] {
    AttentionBlock known;
    const at::Tensor y = attention(all.narrow(1, 0, 4), all.narrow(1, 4, 2), all.narrow(1, 6, 2), offsets, {},
                                   {{0.4, 0.0}, 0}, known);
    return std::pair{y.detach(), torch::autograd::grad({y}, {all}, {d}).front()};
  };
  const auto [expected, expected_gradient] = run();
  Library flash;
  const ServeAttention serve({flash.named("flash", true)});
  const auto [got, gradient] = run();
  EXPECT_EQ(flash.forward, 1);
  EXPECT_EQ(flash.backward, 1);
  expect_near(got, expected, "output");
  expect_near(gradient, expected_gradient, "gradient");
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

TEST(AttentionChoice, ALostDeviceIsNoMissingKernel) {
  const AttentionOperands square{
      random({8, 2, 6}, 1), random({8, 2, 6}, 2), random({8, 2, 6}, 3), true, 0, 1.0};
  Library first;
  const ServeAttention serve({first.named("flash", true),
                              {"cudnn",
                               false,
                               [](const AttentionOperands&) -> AttentionBlock {
                                 throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 700, "lost");
                               },
                               {}}});
  device_attend(square);
  EXPECT_THROW(device_attend(square), c10::AcceleratorError);
}

TEST(AttentionChoice, PartsOfARectangleAreRoundedOnce) {
  // In bfloat16 each merge of a part would round what is there again.
  const int64_t keys = 12 * kDeviceTile, queries = 3;
  const auto half = [&](at::IntArrayRef shape, uint64_t seed) {
    return random(shape, seed).to(at::kBFloat16);
  };
  const AttentionOperands x{
      half({queries, 1, 8}, 1), half({keys, 1, 8}, 2), half({keys, 1, 8}, 3), false, 0, 1.0};
  int parts = 0;
  /// The formula of a part, in double, rounded as a library rounds it.
  const auto forward = [&](const AttentionOperands& some) {
    AttentionOperands wide = some;
    for (at::Tensor* each : {&wide.q, &wide.k, &wide.v}) *each = each->to(at::kDouble);
    const Formula formula(wide);
    ++parts;
    return AttentionBlock{formula.output.detach().to(at::kBFloat16),
                          formula.log_sum_exp.detach().to(at::kFloat).t()};
  };
  const ServeAttention serve({slow({"flash", true, forward, {}}, 0.5), {"cudnn", false, forward, {}}});
  for (int i = 0; i < 2; ++i) device_attend(x);
  parts = 0;
  const AttentionBlock got = device_attend(x);
  EXPECT_EQ(parts, 3);
  EXPECT_EQ(got.output.scalar_type(), at::kFloat);
  // The very sum of the rounded parts.
  at::Tensor expected = at::zeros({queries, 1, 8}, at::kDouble);
  std::vector<AttentionBlock> all;
  at::Tensor sums;
  for (int part = 0; part < 3; ++part) {
    AttentionOperands some = x;
    some.k = x.k.narrow(0, part * 4 * kDeviceTile, 4 * kDeviceTile);
    some.v = x.v.narrow(0, part * 4 * kDeviceTile, 4 * kDeviceTile);
    all.push_back(forward(some));
    const at::Tensor own = all.back().log_sum_exp.to(at::kDouble);
    sums = part == 0 ? own : at::logaddexp(sums, own);
  }
  for (const AttentionBlock& part : all)
    expected += part.output.to(at::kDouble) * (part.log_sum_exp.to(at::kDouble) - sums).exp().unsqueeze(-1);
  const double error =
      (got.output.to(at::kDouble) - expected).norm().item<double>() / expected.norm().item<double>();
  EXPECT_TRUE(error <= 1e-6) << error;
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

// The libraries themselves, where there is a CUDA device.

struct LibraryCase {
  const char* name;
  int64_t queries, keys, heads, key_heads, size;
  bool causal = false;
  int64_t window = 0;
  std::vector<int64_t> offsets = {};
};

using LibrarySubject = std::tuple<const char*, LibraryCase>;

class DeviceLibrary : public testing::TestWithParam<LibrarySubject> {};

INSTANTIATE_TEST_SUITE_P(
    cuda, DeviceLibrary,
    testing::Combine(
        testing::Values("flash", "cudnn"),
        testing::Values(LibraryCase{"square", 300, 300, 4, 2, 64, true},
                        LibraryCase{"rectangle", 200, 1500, 4, 2, 128},
                        LibraryCase{"few_queries", 3, 4000, 8, 1, 128},
                        LibraryCase{"large_heads", 130, 257, 2, 2, 256},
                        LibraryCase{"lower_right", 100, 333, 4, 2, 64, true},
                        LibraryCase{"window", 200, 327, 4, 2, 64, true, 128},
                        LibraryCase{"packed", 300, 300, 4, 2, 64, true, 0, {0, 1, 130, 130, 300}},
                        LibraryCase{"packed_window", 300, 300, 4, 2, 64, true, 40, {0, 9, 300}})),
    [](const auto& subject) {
      return std::string(std::get<0>(subject.param)) + "_" + std::get<1>(subject.param).name;
    });

/// Forward, and backward as a block of rows that have seen other keys too, against the formula in float64.
TEST_P(DeviceLibrary, GivesTheFormulasValuesAndGradients) {
  c10::Device device = at::kCPU;
  try {
    device = open_device("cuda");
  } catch (const InputError& error) {
    GTEST_SKIP() << "needs a CUDA device: " << error.what();
  }
  const auto& [name, block] = GetParam();
  const auto all = library_attention();
  const DeviceAttention& library = *std::find_if(
      all.begin(), all.end(), [&, &wanted = name](const DeviceAttention& one) { return one.name == wanted; });
  // Heads that lie beside others', as a fused projection leaves them.
  const auto sample = [&](int64_t rows, int64_t heads, uint64_t seed) {
    return random({rows, heads + 3, block.size}, seed).to(at::kBFloat16).to(device).narrow(1, 2, heads);
  };
  const AttentionOperands x{sample(block.queries, block.heads, 1),
                            sample(block.keys, block.key_heads, 2),
                            sample(block.keys, block.key_heads, 3),
                            block.causal,
                            block.window,
                            1.0 / std::sqrt(static_cast<double>(block.size)),
                            block.offsets};
  if (!library.lower_right && x.causal && !x.is_square()) GTEST_SKIP() << "not for " << name;
  AttentionOperands exact = x;
  for (at::Tensor* each : {&exact.q, &exact.k, &exact.v}) *each = each->to(at::kCPU, at::kDouble);
  AttentionBlock got;
  try {
    got = library.forward(x);
  } catch (const c10::AcceleratorError&) {
    throw;
  } catch (const c10::Error& error) {
    if (library.lower_right) throw;
    GTEST_SKIP() << name << " has no kernel for it: " << error.what_without_backtrace();
  }
  const auto check = [](const at::Tensor& value, const at::Tensor& expected, double limit, const char* what) {
    const at::Tensor wide = value.to(at::kCPU, at::kDouble);
    ASSERT_EQ(wide.sizes(), expected.sizes()) << what;
    const double error = (wide - expected).norm().item<double>() / expected.norm().item<double>();
    EXPECT_TRUE(error <= limit) << what << ": " << error;
  };
  // A result in bfloat16 is rounded by up to 2^-9, and what it is made of before.
  const Formula formula(exact);
  check(got.output, formula.output.detach(), 8e-3, "output");
  check(got.log_sum_exp, formula.log_sum_exp.detach().t(), 1e-3, "log-sum-exps");
  const at::Tensor d = random({block.heads, block.queries, block.size}, 4).transpose(0, 1).contiguous();
  const at::Tensor rest =
      random({block.queries, block.heads, block.size}, 5).to(at::kBFloat16).to(at::kDouble);
  // Half of each row's weight lies with keys of which this block knows nothing.
  const AttentionBlock whole{0.5 * (formula.output.detach() + rest),
                             formula.log_sum_exp.detach() + std::log(2.0)};
  const AttentionBlock saved{whole.output.to(at::kBFloat16).to(device).contiguous(),
                             whole.log_sum_exp.to(at::kFloat).to(device).contiguous()};
  const at::Tensor dy = d.to(at::kBFloat16);
  const AttentionBlockGradients gradients = library.backward(x, dy.to(device), saved);
  const AttentionBlockGradients expected = Library::backward_of(
      exact, dy.to(at::kDouble), {saved.output.to(at::kCPU, at::kDouble), whole.log_sum_exp});
  check(gradients.d_queries, expected.d_queries, 1.5e-2, "gradient of queries");
  check(gradients.d_keys, expected.d_keys, 1.5e-2, "gradient of keys");
  check(gradients.d_values, expected.d_values, 1.5e-2, "gradient of values");
}

/// While it lives, the meta device stands for a GPU.
struct MetaForCuda {
  MetaForCuda() { set_backend(c10::DeviceType::Meta, Backend::kCuda); }
  ~MetaForCuda() { set_backend(c10::DeviceType::Meta, Backend::kCpu); }
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

TEST(AttentionOnMeta, CountsPackedSequencesAndPartsOfARectangle) {
  install_meters();
  const MetaForCuda stands_in;
  const auto options = at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16);
  const int64_t n = 1000, heads = 4, size = 64;
  const auto rows = [&](int64_t count) { return at::empty({count, heads, size}, options); };
  const AttentionOperands packed{rows(n), rows(n), rows(n), true, 0, 1.0, {0, 10, 700, n}};
  const AttentionBlock block = device_attend(packed);
  const at::Tensor d = at::empty_like(packed.q);
  reset_peak(at::kMeta);
  device_attend_backward(packed, d, block);
  // 128 rows more for each sequence.
  EXPECT_EQ(read_meter(at::kMeta).at_peak.at("kernel workspace"), 4 * (n + 3 * 128) * heads * (size + 1));

  AttentionOperands rectangle{rows(n), rows(kDeviceTile), rows(kDeviceTile), false, 0, 1.0};
  EXPECT_EQ(device_attend(rectangle).output.scalar_type(), at::kBFloat16);
  rectangle.k = rectangle.v = rows(kDeviceTile + 1);
  reset_peak(at::kMeta);
  const int64_t before = read_meter(at::kMeta).live_bytes;
  const AttentionBlock parts = device_attend(rectangle);
  EXPECT_EQ(parts.output.scalar_type(), at::kFloat);
  EXPECT_EQ(read_meter(at::kMeta).peak_bytes - before, n * heads * (6 * size + 4));
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
  EXPECT_THROW(set_backend(c10::DeviceType::XPU, Backend::kCuda), InputError);
}

}  // namespace
}  // namespace streambp
