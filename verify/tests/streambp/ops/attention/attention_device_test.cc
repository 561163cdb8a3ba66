// What is made of a GPU library's attention kernels: rectangles, squares, tiles of the prefix, windows and
// their merging, with plain formulas instead of the libraries.
#include "streambp/ops/attention/attention_device.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <ostream>
#include <string>
#include <vector>

#include "streambp/ops/attention/attention.h"
#include "verify/tests/streambp/ops/attention/attention_device_testing.h"

namespace streambp {
namespace {

struct RunShape {
  std::vector<int64_t> offsets;
  int64_t prefix;
  int64_t window;
  bool sinks = false;
};

void PrintTo(const RunShape& shape, std::ostream* out) {
  *out << fmt::format("sequences {}, prefix {}, window {}, sinks {}", shape.offsets, shape.prefix,
                      shape.window, shape.sinks);
}

class AttentionOfLibraries : public testing::TestWithParam<RunShape> {};

INSTANTIATE_TEST_SUITE_P(Runs, AttentionOfLibraries,
                         testing::Values(RunShape{{0, 8}, 0, 0}, RunShape{{0, 8}, 8, 0},
                                         RunShape{{0, 8}, 43, 0, true}, RunShape{{0, 8}, 4, 5, true},
                                         RunShape{{0, 3, 4, 9, 11}, 7, 0, true}, RunShape{{0, 8}, 43, 0},
                                         RunShape{{0, 8}, 2 * kDeviceTile + 5, 0}, RunShape{{0, 3, 8}, 9, 0},
                                         RunShape{{0, 1}, 5, 0}, RunShape{{0, 8}, 0, 3},
                                         RunShape{{0, 8}, 4, 5}, RunShape{{0, 5, 8}, 2, 4},
                                         RunShape{{0, 8}, 20, 21}, RunShape{{0, 3, 4, 4, 9}, 0, 0},
                                         RunShape{{0, 3, 4, 9, 11}, 7, 0}, RunShape{{0, 5, 6, 13}, 0, 3},
                                         RunShape{{0, 5, 6, 13}, 4, 3}));

TEST_P(AttentionOfLibraries, IsTheTiledOne) {
  const auto& [offsets, prefix_rows, window, has_sinks] = GetParam();
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
    Parameter sinks = parameter(random({4}, 7));
    const AttentionSettings settings{{0.4, 0.0}, window, has_sinks ? &sinks : nullptr};
    const at::Tensor y = attention(q, k, v, offsets, prefix, settings, known);
    auto all = torch::autograd::grad({y}, {q, k, v}, {random({rows, 4, 6}, 6)});
    all.push_back(y.detach());
    if (has_sinks) all.push_back(sinks.gradient);
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

}  // namespace
}  // namespace streambp
