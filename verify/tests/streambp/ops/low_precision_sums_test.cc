// Sums over many tokens in low precision. Where gradients are bfloat16, n equal terms give n times the term,
// to the rounding of the result: a sum that is itself kept in bfloat16 stands still at 256 times its term.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/backprop/wide_gradients.h"
#include "streambp/memory/meter.h"
#include "streambp/ops/linear.h"
#include "streambp/ops/mlp/mixture.h"
#include "streambp/ops/mlp/mlp.h"
#include "streambp/ops/rms_norm.h"
#include "streambp/ops/rows/rows.h"
#include "verify/tests/streambp/ops/ops_testing.h"

namespace streambp {
namespace {

constexpr int64_t kTerms = 1500;
/// Half a unit in the last of 8 bits.
constexpr double kRounding = 0x1p-8;

at::Tensor all_of(at::IntArrayRef shape, double value, at::ScalarType dtype = at::kBFloat16) {
  return at::full(shape, value, at::TensorOptions().dtype(dtype));
}

/// The largest relative error of an entry.
double worst_entry(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor truth = expected.to(at::kDouble);
  return ((got.to(at::kDouble) - truth) / truth).abs().max().item<double>();
}

/// `roundings`: how often a term or the result is rounded before the end.
void expect_sum(const at::Tensor& got, const at::Tensor& expected, const char* what, double roundings = 1.0) {
  const double error = worst_entry(got, expected);
  EXPECT_TRUE(error <= roundings * kRounding) << what << ": relative error " << error;
}

TEST(LowPrecisionSums, RowsOfAnEmbedding) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const auto gradient_dtype : {dtype, at::kFloat}) {
      Parameter embedding{"embedding", all_of({3, 20}, 1.0, dtype), all_of({3, 20}, 0.0, gradient_dtype)};
      const at::Tensor dx = all_of({kTerms + 1, 20}, 0.01, dtype);
      at::Tensor indices = at::full({kTerms + 1}, 2, at::kLong);
      indices[700] = 0;
      accumulate_rows(embedding, indices, dx);
      // The sum in float64 is exact, and rounded once.
      const at::Tensor term = dx[0].to(at::kDouble);
      const at::Tensor expected =
          at::stack({term, at::zeros_like(term), term * static_cast<double>(kTerms)}).to(gradient_dtype);
      if (dtype == at::kBFloat16) {
        EXPECT_TRUE(at::equal(embedding.gradient, expected)) << c10::toString(gradient_dtype);
      } else {
        EXPECT_TRUE(at::allclose(embedding.gradient.to(at::kDouble), expected.to(at::kDouble), 0x1p-11, 0));
      }
      // Together with what is there: as much again.
      accumulate_rows(embedding, indices, dx);
      EXPECT_TRUE(
          at::allclose(embedding.gradient.to(at::kDouble), 2.0 * expected.to(at::kDouble), kRounding, 0));
    }
  }
}

TEST(LowPrecisionSums, ADryRunOfRowsTakesWhatTheCpuTakes) {
  install_meters();
  constexpr int64_t kRows = 512, kWidth = 64;
  const auto peak = [](c10::Device device, at::ScalarType dtype) {
    const auto options = at::TensorOptions().device(device);
    Parameter embedding{"embedding", at::zeros({kRows, kWidth}, options.dtype(dtype)),
                        at::zeros({kRows, kWidth}, options.dtype(dtype))};
    const at::Tensor dx = at::zeros({kRows, kWidth}, options.dtype(dtype));
    const at::Tensor indices = at::arange(kRows, options.dtype(at::kLong));
    const int64_t before = read_meter(device).live_bytes;
    reset_peak(device);
    accumulate_rows(embedding, indices, dx);
    return static_cast<double>(read_meter(device).peak_bytes - before);
  };
  const double on_cpu = peak(at::kCPU, at::kHalf), on_meta = peak(at::kMeta, at::kHalf);
  EXPECT_TRUE(on_meta >= 0.8 * on_cpu && on_meta <= 1.25 * on_cpu) << on_meta << " of " << on_cpu;
}

TEST(TrainedRows, ThatAreOffOrFrozenTakeNoGradient) {
  Parameter whole = parameter(at::zeros({4, 3}, at::kDouble)),
            delta = parameter(at::zeros({2, 3}, at::kDouble));
  TrainedRows rows;
  rows.delta = &delta;
  rows.whole = &whole;
  rows.indices = at::tensor({1, 3}, at::kLong);
  rows.slots = at::tensor({2, 0, 2, 1}, at::kLong);
  const at::Tensor tokens = at::tensor({3, 0, 1, 3}, at::kLong), dx = integers({4, 3}, 1, at::kDouble) + 5.0;
  accumulate_trained_rows(rows, tokens, dx);
  const at::Tensor expected = at::stack({dx[2], dx[0] + dx[3]});
  EXPECT_TRUE(at::equal(delta.gradient, expected));
  rows.enabled = false;
  accumulate_trained_rows(rows, tokens, dx);
  EXPECT_TRUE(at::equal(delta.gradient, expected)) << "off";
  rows.enabled = true;
  delta.gradient.reset();
  EXPECT_NO_THROW(accumulate_trained_rows(rows, tokens, dx)) << "frozen";
}

TEST(LowPrecisionSums, RowsAreAddedInAnyOrderByAnyNumberOfThreads) {
  const int64_t tokens = 5000, table = 11, size = 48;
  const at::Tensor indices = at::randint(0, table, {tokens}, at::detail::createCPUGenerator(5), at::kLong);
  indices.narrow(0, 1000, 3000).fill_(7);
  const at::Tensor dx = integers({tokens, size}, 1, at::kDouble),
                   before = integers({table, size}, 2, at::kDouble);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    Parameter embedding{"embedding", before.to(dtype), before.to(dtype).clone()};
    accumulate_rows(embedding, indices, dx.to(dtype));
    EXPECT_TRUE(at::equal(embedding.gradient, before.index_add(0, indices, dx).to(dtype)))
        << c10::toString(dtype);
  }
}

TEST(LowPrecisionSums, BiasesAndProducts) {
  Parameter weight{"w", all_of({6, 16}, 0.5), all_of({6, 16}, 0.0)};
  Parameter bias{"b", all_of({6}, 0.5), all_of({6}, 0.0)};
  const at::Tensor dy = all_of({kTerms, 6}, 0.01), x = all_of({kTerms, 16}, 0.3);
  linear_accumulate({"map", &weight, &bias}, x, dy);
  const double d = dy[0][0].item<double>(), one = x[0][0].item<double>();
  expect_sum(weight.gradient, all_of({6, 16}, kTerms * d * one, at::kDouble), "weight");
  expect_sum(bias.gradient, all_of({6}, kTerms * d, at::kDouble), "bias");
}

TEST(LowPrecisionSums, AdaptersOfLowRank) {
  Parameter weight{"w", all_of({6, 16}, 0.5), {}};
  Parameter a{"a", all_of({4, 16}, 0.25), all_of({4, 16}, 0.0)},
      b{"b", all_of({6, 4}, 0.5), all_of({6, 4}, 0.0)};
  const Linear map{"map", &weight, nullptr, LowRankAdapter{&a, &b, 2.0}};
  const at::Tensor dy = all_of({kTerms, 6}, 0.01), x = all_of({kTerms, 16}, 0.3);
  linear_accumulate(map, x, dy);
  const double d = dy[0][0].item<double>(), one = x[0][0].item<double>();
  // Terms are rounded before they are summed: the product with the other matrix is bfloat16.
  expect_sum(a.gradient, all_of({4, 16}, kTerms * 2.0 * d * 0.5 * 6 * one, at::kDouble), "A", 2.0);
  expect_sum(b.gradient, all_of({6, 4}, kTerms * 2.0 * d * one * 0.25 * 16, at::kDouble), "B", 2.0);
}

TEST(LowPrecisionSums, WeightsOfNorms) {
  for (const bool plain : {false, true}) {
    Parameter weight{"norm", all_of({32}, 1.0), all_of({32}, 0.0)};
    const RmsNorm norm{&weight, 1e-6};
    const at::Tensor dy = all_of({kTerms, 32}, 0.01), x = all_of({kTerms, 32}, 0.5);
    RmsNormSaved saved;
    if (plain) {
      rms_norm_forward_plain(x, norm, saved);
      rms_norm_backward_plain(dy, saved, norm);
    } else {
      rms_norm_forward(x, norm, saved);
      rms_norm_backward(dy, saved, norm);
    }
    const double normed = 0.5 / std::sqrt(0.25 + 1e-6);
    expect_sum(weight.gradient, all_of({32}, kTerms * dy[0][0].item<double>() * normed, at::kDouble),
               plain ? "plain" : "kernel", 1.01);
  }
}

/// Rows that come one by one are rounded once, and with the bits that they have without where they come at
/// once.
TEST(WideGradient, RoundsASumOfManyPartsOnce) {
  const at::Tensor terms = random({kTerms, 32}, 1);
  for (const auto& [rows_dtype, dtype] :
       {std::pair(at::kFloat, at::kFloat), std::pair(at::kDouble, at::kFloat),
        std::pair(at::kBFloat16, at::kFloat), std::pair(at::kFloat, at::kBFloat16)}) {
    const at::Tensor rows = terms.to(rows_dtype), before = random({32}, 2).to(dtype);
    const auto gradient_of = [&](int64_t parts, bool wide) {
      Parameter weight = parameter(before.clone());
      weight.gradient.copy_(before);
      const at::Tensor own = weight.gradient;
      {
        std::optional<WideGradient> sum;
        if (wide) sum.emplace(weight, at::kDouble);
        for (int64_t i = 0; i < parts; ++i)
          accumulate_sum(weight, rows.narrow(0, i * kTerms / parts, kTerms / parts));
      }
      EXPECT_TRUE(own.is_same(weight.gradient)) << "another tensor";
      return own;
    };
    const char* name = c10::toString(rows_dtype);
    EXPECT_TRUE(at::equal(gradient_of(1, true), gradient_of(1, false))) << name;
    const at::Tensor truth = (rows.to(at::kDouble).sum(0) + before.to(at::kDouble)).to(dtype);
    EXPECT_TRUE(at::equal(gradient_of(kTerms, true), truth)) << name;
    EXPECT_FALSE(at::equal(gradient_of(kTerms, false), truth)) << "nothing to be had by it";
  }
}

/// A layer's and the head's, as passes hold them, down to the parameter's own tensor and views of its parts.
TEST(WideGradients, AreTheModelsOwnAgainOnceRounded) {
  Model model = Model::random(preset("gpt-oss-tiny"), {at::kBFloat16, at::kCPU, at::kBFloat16, {}}, 1);
  const auto before = model.gradients();
  {
    WideGradients sums(model, model.layer_parameters(0));
    const WideHead head(model);
    for (const Parameter* parameter : model.layer_parameters(0)) {
      EXPECT_EQ(parameter->gradient.scalar_type(), at::kFloat) << parameter->name;
      parameter->gradient.fill_(1.0 + 0x1p-9);
    }
    EXPECT_TRUE(model.head().weight->remainder.defined());
    sums.round();
    EXPECT_EQ(model.layer_parameters(0).front()->gradient.scalar_type(), at::kBFloat16);
  }
  EXPECT_FALSE(model.head().weight->remainder.defined());
  const auto after = model.gradients();
  ASSERT_EQ(after.size(), before.size());
  for (const auto& [name, gradient] : before) {
    EXPECT_TRUE(after.at(name).is_same(gradient)) << name;
    const double expected = name.starts_with("model.layers.0.") ? 1.0 : 0.0;
    EXPECT_TRUE(at::equal(gradient, at::full_like(gradient, expected))) << name;
  }
}

/// Products of a few rows after another, in sizes that no tile of the kernels divides.
TEST(LowPrecisionSums, ProductsOfManyPartsAreRoundedOnce) {
  struct Shape {
    int64_t rows, out, in, part;
    double scale;
  };
  double most_wide = 0.0, most_rounded = 0.0;
  for (const auto& [rows, out, in, part, scale] :
       {Shape{1, 1, 1, 1, 1.0}, Shape{700, 100, 47, 7, 1.0}, Shape{1500, 1, 70, 31, 1.0},
        Shape{900, 300, 3, 290, 1.0}, Shape{700, 131, 65, 33, 0.3}, Shape{1400, 260, 16, 1, 1.0}}) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      SCOPED_TRACE(fmt::format("{} rows, [{}, {}] by {}, {}", rows, out, in, part, c10::toString(dtype)));
      const at::Tensor dy = random({rows, out}, 1).to(dtype), x = random({rows, in}, 2).to(dtype);
      const at::Tensor before = random({out, in}, 3).to(dtype);
      const at::Tensor truth =
          before.to(at::kDouble) + at::mm(dy.to(at::kDouble).t(), x.to(at::kDouble)) * scale;
      const auto sum = [&, rows = rows, part = part, scale = scale](const at::Tensor& gradient,
                                                                    const at::Tensor& remainder = {}) {
        Parameter weight{"w", {}, gradient, remainder};
        gradient.copy_(before);
        for (int64_t begin = 0; begin < rows; begin += part) {
          const int64_t count = std::min(part, rows - begin);
          accumulate_product(weight, dy.narrow(0, begin, count), x.narrow(0, begin, count), scale);
        }
        return gradient.to(at::kDouble);
      };
      const auto zeros = [&](at::ScalarType of) { return at::zeros({out, in}, at::TensorOptions(of)); };
      const double wide = relative_distance(sum(zeros(at::kFloat)), truth);
      const double transposed = relative_distance(sum(zeros(at::kFloat).t().contiguous().t()), truth);
      EXPECT_TRUE(wide <= 3e-6) << wide;
      EXPECT_TRUE(transposed <= 3e-6) << "stored as [in, out]: " << transposed;
      const at::Tensor remainder = zeros(dtype);
      const at::Tensor narrow = sum(zeros(dtype), remainder);
      const double rounding = relative_distance(truth.to(dtype).to(at::kDouble), truth);
      const double once = relative_distance(narrow, truth);
      EXPECT_TRUE(once <= 1.01 * rounding + 1e-6) << once << ", rounded once " << rounding;
      const double both = relative_distance(narrow + remainder.to(at::kDouble), truth);
      EXPECT_TRUE(both <= 0x1p-13) << "with its remainder: " << both;
      if (rows / part > 40) {
        EXPECT_TRUE(relative_distance(sum(zeros(dtype)), truth) > 2.0 * rounding)
            << "nothing to be had by it";
      }
      most_wide = std::max({most_wide, wide, transposed});
      most_rounded = std::max(most_rounded, rounding > 0.0 ? once / rounding : 0.0);
    }
  }
  fmt::print("float32 {:.1e}; with a remainder {:.3f} x one rounding\n", most_wide, most_rounded);
}

/// Equal tokens choose the same experts: each expert's weights, and the router's, get the same term from all.
TEST(LowPrecisionSums, ExpertsAndRouters) {
  const int64_t size = 16, width = 8, experts = 4;
  const auto gradient_of = [&](int64_t tokens, at::ScalarType dtype) {
    std::vector<std::unique_ptr<Parameter>> parameters;
    std::vector<std::unique_ptr<Linear>> maps;
    const auto map = [&](at::IntArrayRef shape, uint64_t seed) {
      const at::Tensor value = random(shape, seed).to(at::kBFloat16).to(dtype);
      parameters.push_back(std::make_unique<Parameter>(Parameter{"w", value, at::zeros_like(value)}));
      maps.push_back(std::make_unique<Linear>(Linear{"map", parameters.back().get()}));
      return maps.back().get();
    };
    Mixture mixture;
    mixture.router = map({experts, size}, 1);
    mixture.experts_per_token = 2;
    mixture.normalise = true;
    for (uint64_t expert = 0; expert < experts; ++expert)
      mixture.experts.push_back({map({width, size}, 10 + expert), map({width, size}, 20 + expert),
                                 map({size, width}, 30 + expert), Activation::kSilu});
    const auto rows = [&](uint64_t seed) {
      return random({1, size}, seed).to(at::kBFloat16).to(dtype).expand({tokens, size}).contiguous();
    };
    const at::Tensor x = rows(40).requires_grad_();
    const at::Tensor y = streambp::mixture({}, x, mixture);
    torch::autograd::grad({y}, {x}, {rows(41)});
    std::vector<at::Tensor> gradients;
    for (const auto& parameter : parameters) gradients.push_back(parameter->gradient.to(at::kDouble));
    return gradients;
  };
  const auto many = gradient_of(kTerms, at::kBFloat16), one = gradient_of(1, at::kBFloat16);
  const auto truth = gradient_of(kTerms, at::kDouble);
  for (size_t i = 0; i < many.size(); ++i) {
    if (truth[i].abs().max().item<double>() == 0.0) continue;  // of an expert that nobody chose
    // A single token's gradient shows what its own roundings cost: the sum adds those of the result.
    const at::Tensor scaled = one[i] * static_cast<double>(kTerms);
    EXPECT_TRUE(relative_distance(many[i], scaled) <= 2 * kRounding) << "parameter " << i;
    EXPECT_TRUE(relative_distance(many[i], truth[i]) <= relative_distance(scaled, truth[i]) + 2 * kRounding)
        << "parameter " << i;
  }
}

/// The balance of experts is counted in float64.
TEST(LowPrecisionSums, RouterLoss) {
  RouterBalance balance(0.5, 2, at::kCPU);
  for (int i = 0; i < 600; ++i) {
    balance.count(at::tensor({0.7F, 0.3F}).view({1, 2}), at::zeros({1, 1}, at::kLong), i);
  }
  EXPECT_TRUE(std::abs(balance.loss() - 0.5 * 2 * static_cast<double>(0.7F)) <= 1e-14) << balance.loss();
}

}  // namespace
}  // namespace streambp
