// Which library's attention kernel a shape gets, and in which parts.
#include <algorithm>
#include <gtest/gtest.h>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "streambp/ops/attention/attention.h"
#include "streambp/ops/attention/attention_device.h"
#include "verify/tests/streambp/ops/attention/attention_device_testing.h"

namespace streambp {
namespace {

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

/// A causal square of so many rows.
AttentionOperands square_of(int64_t rows) {
  return {random({rows, 2, 6}, 1), random({rows, 2, 6}, 2), random({rows, 2, 6}, 3), true, 0, 1.0};
}

TEST(AttentionChoice, LengthsBetweenTheSamePowersOfTwoShareAMeasurement) {
  Library first, second;
  const ServeAttention serve({slow(first.named("flash", true), 0.02), second.named("cudnn", false)});
  for (const int64_t rows : {9, 10}) device_attend(square_of(rows));
  const int measured = first.forward;
  EXPECT_GT(measured, 1);
  for (const int64_t rows : {11, 12, 13, 14, 15, 16}) device_attend(square_of(rows));
  EXPECT_EQ(first.forward, measured) << "a new length is no new kind of shape";
  device_attend(square_of(17));
  EXPECT_EQ(first.forward, measured + 1) << "of more than 16 rows nothing is known";
}

TEST(AttentionChoice, WhatLeadsServesFirstOccurrencesOfEnoughQueries) {
  Library first, second;
  DeviceAttention leading = second.named("cudnn", false);
  leading.leads_from = 8;
  const ServeAttention serve({first.named("flash", true), leading});
  device_attend(square_of(7));
  EXPECT_EQ(std::pair(first.forward, second.forward), std::pair(1, 0));
  device_attend(square_of(9));
  EXPECT_EQ(std::pair(first.forward, second.forward), std::pair(1, 1));
  EXPECT_TRUE(attention_choices().empty()) << "nothing was measured";
}

TEST(AttentionChoice, AShapeThatTheChosenLibraryLacksGoesToTheFirst) {
  Library first;
  int asked = 0;
  DeviceAttention lacking{"cudnn",
                          false,
                          [&](const AttentionOperands&) -> AttentionBlock {
                            ++asked;
                            TORCH_CHECK(false, "no kernel for this");
                          },
                          {}};
  lacking.leads_from = 1;
  const ServeAttention serve({first.named("flash", true), lacking});
  const AttentionOperands square = square_of(8);
  for (int i = 0; i < 3; ++i)
    expect_near(device_attend(square).output, Formula(square).output.detach(), "output");
  EXPECT_EQ(std::pair(first.forward, asked), std::pair(3, 1));
  ASSERT_EQ(attention_choices().size(), 1U);
  EXPECT_NE(attention_choices().front().find("8 x 8, 2/2 heads of 6: cudnn unsupported: flash"),
            std::string::npos)
      << attention_choices().front();
}

TEST(AttentionChoice, TilesOnAGpuSayWhyTheyServe) {
  Library first;
  const ServeAttention serve({first.named("flash", true)}, Served::kAsOnGpus);
  const auto attend_in = [](at::ScalarType dtype, double softcap) {
    const at::Tensor x = random({3, 1, 6}, 1).to(dtype);
    attend(x, x, x, Visible::kCausal, {1.0, softcap});
  };
  EXPECT_TRUE(tiled_attention().empty());
  attend_in(at::kFloat, 0.0);
  attend_in(at::kBFloat16, 30.0);
  attend_in(at::kBFloat16, 0.0);
  EXPECT_EQ(
      tiled_attention(),
      (std::vector<std::string>{
          "1 heads of 6, BFloat16: tiles of matrix products, since no library's kernel takes them: heads of "
          "6",
          "1 heads of 6, BFloat16: tiles of matrix products, since no library's kernel takes them: scores "
          "are "
          "capped",
          "1 heads of 6, Float: tiles of matrix products, since no library's kernel takes them: no half "
          "precision"}));
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
  const ServeAttention serve({slow({"flash", true, forward, {}}, 0.2), {"cudnn", false, forward, {}}});
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
  const ServeAttention serve({slow(first.named("flash", true), 0.2), second.named("cudnn", false)});
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

TEST(AttentionChoice, ManyQueriesTakeAPrefixInRectanglesOfTheirLength) {
  struct Case {
    int64_t queries, keys;
    std::vector<int64_t> rectangles;  // the second library's
    std::vector<int64_t> rest;        // the first one's
  };
  // Chunks of 2,048 and 3,000 tokens, and of more than a long rectangle.
  for (const auto& [queries, keys, rectangles, rest] :
       std::vector<Case>{{2048, 3 * 2048, {2048, 2048, 2048}, {}},
                         {2048, 32768 + 2 * 2048, {32768, 2048, 2048}, {}},
                         {3000, 30000 + 3000 + 7, {30000, 3000}, {7}},
                         {8192, 5 * 8192, {32768, 8192}, {}},
                         {40000, 2 * 40000, {40000, 40000}, {}},
                         {2047, 8192 + 2047, {8192}, {2047}}}) {
    const AttentionOperands rectangle{
        random({queries, 1, 8}, 1), random({keys, 1, 8}, 2), random({keys, 1, 8}, 3), false, 0, 1.0};
    Shapes first, second;
    const ServeAttention serve({slow(first.named("flash", true), 0.05), second.named("cudnn", false)});
    for (int i = 0; i < 3; ++i) device_attend(rectangle);
    first.forward.clear();
    second.forward.clear();
    device_attend(rectangle);
    const auto shapes = [&, count = queries](const std::vector<int64_t>& all) {
      std::vector<std::string> names;
      for (const int64_t one : all) names.push_back(fmt::format("{} x {}, 1/1 heads of 8", count, one));
      return names;
    };
    EXPECT_EQ(second.forward, shapes(rectangles));
    EXPECT_EQ(first.forward, shapes(rest));
  }
}

TEST(AttentionChoice, TilesOfABackwardPassGrowWithTheChunk) {
  for (const auto& [rows, prefix, tiles] :
       {std::tuple<int64_t, int64_t, std::vector<int64_t>>{8, 2 * 8192 + 8, {8192, 8}},
        {8192, 5 * 8192, {16384, 8192}},
        {10000, 30000, {20000, 10000}}}) {
    const at::Tensor q = random({rows, 1, 8}, 1).requires_grad_(), k = random({rows, 1, 8}, 2),
                     earlier = random({prefix, 1, 8}, 3), gradients = at::zeros_like(earlier);
    Shapes flash;
    const ServeAttention serve({flash.named("flash", true)});
    AttentionBlock known;
    const at::Tensor y =
        attention(q, k, k, {0, rows}, {earlier, earlier, gradients, gradients}, {{0.4, 0.0}, 0}, known);
    torch::autograd::grad({y}, {q}, {y.detach()});
    std::vector<std::string> expected{fmt::format("{} x {}, 1/1 heads of 8", rows, rows)};
    for (const int64_t tile : tiles) expected.push_back(fmt::format("{} x {}, 1/1 heads of 8", rows, tile));
    std::vector<std::string>& got = flash.backward;  // one after another, each again where it is measured
    got.erase(std::unique(got.begin(), got.end()), got.end());
    EXPECT_EQ(got, expected);
  }
}

}  // namespace
}  // namespace streambp
