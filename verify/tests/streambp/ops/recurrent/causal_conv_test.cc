// The causal convolution against at::conv1d under autograd.
#include "streambp/ops/recurrent/causal_conv.h"

#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "streambp/memory/meter.h"
#include "verify/tests/on_threads.h"
#include "verify/tests/streambp/ops/ops_testing.h"
#include "verify/tests/streambp/ops/without_kernels.h"

namespace streambp {
namespace {

constexpr double kConvLimit = 1e-13;

struct ConvCase {
  std::vector<int64_t> offsets;
  at::Tensor x, weight, before;
  int64_t dilation;

  ConvCase(std::vector<int64_t> cuts, int64_t channels, int64_t taps, uint64_t seed = 1, int64_t apart = 1)
      : offsets(std::move(cuts)),
        x(random({offsets.back(), channels}, seed)),
        weight(random({channels, 1, taps}, seed + 1)),
        before(random({(taps - 1) * apart, channels}, seed + 2)),
        dilation(apart) {}

  ConvCase to(at::ScalarType dtype, c10::Device device = at::kCPU) const {
    ConvCase copy = *this;
    for (at::Tensor* tensor : {&copy.x, &copy.weight, &copy.before})
      *tensor = device.is_meta() ? at::empty(tensor->sizes(), at::TensorOptions().dtype(dtype).device(device))
                                 : tensor->to(dtype);
    return copy;
  }
};

/// Outputs and all gradients for random cotangents of both.
struct ConvPass {
  at::Tensor hidden, tail, d_x, d_weight, d_before;

  std::vector<std::pair<const char*, at::Tensor>> parts() const {
    return {{"outputs", hidden}, {"tail", tail}, {"x", d_x}, {"weight", d_weight}, {"tail before", d_before}};
  }
};

std::pair<at::Tensor, at::Tensor> cotangents(const ConvCase& in) {
  return {random(in.x.sizes(), 98), random(in.before.sizes(), 99)};
}

ConvPass pass_by_conv1d(const ConvCase& in) {
  const auto leaf = [](const at::Tensor& x) { return x.clone().requires_grad_(); };
  const at::Tensor x = leaf(in.x), weight = leaf(in.weight), before = leaf(in.before);
  std::vector<at::Tensor> rows;
  at::Tensor tail;
  for (size_t i = 0; i + 1 < in.offsets.size(); ++i) {
    const int64_t length = in.offsets[i + 1] - in.offsets[i];
    const at::Tensor input =
        at::cat({i == 0 ? before : at::zeros_like(before), x.narrow(0, in.offsets[i], length)});
    tail = input.narrow(0, length, before.size(0));
    if (length == 0) continue;
    rows.push_back(at::silu(
        at::conv1d(input.t().unsqueeze(0), weight, {}, {1}, at::IntArrayRef{0}, {in.dilation}, x.size(1))
            .squeeze(0)
            .t()));
  }
  const auto [d_hidden, d_tail] = cotangents(in);
  const at::Tensor y = at::cat(rows);
  const auto d = torch::autograd::grad({y, tail + 0 * before.sum()}, {x, weight, before}, {d_hidden, d_tail});
  return {y.detach(), tail.detach(), d[0], d[1], d[2]};
}

/// The op, its rows in runs that begin at `cuts` (0 first): tails go from run to run, their gradients back.
ConvPass pass_by_op(const ConvCase& in, std::vector<int64_t> cuts = {0}) {
  const auto [d_hidden, d_tail] = cotangents(in);
  Parameter weight = parameter(in.weight);
  cuts.push_back(in.offsets.back());
  struct Run {
    at::Tensor x;
    ConvOutput output;
    at::Tensor d_before;
  };
  std::vector<Run> runs;
  at::Tensor tail = in.before;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    const int64_t begin = cuts[i], rows = cuts[i + 1] - begin;
    Run run{in.x.narrow(0, begin, rows).clone().requires_grad_(), {}, {}};
    const auto [offsets, continues] = offsets_of_run(in.offsets, begin, rows);
    TailBefore before;
    if (continues) before = {tail, run.d_before = at::zeros_like(in.before)};
    run.output = in.dilation == 1 ? causal_conv_silu(run.x, weight, offsets, before)
                                  : dilated_conv_silu(run.x, weight, offsets, before, in.dilation);
    tail = run.output.tail.detach();
    runs.push_back(run);
  }
  std::vector<at::Tensor> hidden, d_x;
  at::Tensor d_after = d_tail.to(in.x.scalar_type());
  for (size_t i = runs.size(); i-- > 0;) {
    Run& run = runs[i];
    const at::Tensor dy = d_hidden.narrow(0, cuts[i], cuts[i + 1] - cuts[i]).to(in.x.scalar_type());
    d_x.insert(d_x.begin(), d_after.defined() ? torch::autograd::grad({run.output.hidden, run.output.tail},
                                                                      {run.x}, {dy, d_after})[0]
                                              : torch::autograd::grad({run.output.hidden}, {run.x}, {dy})[0]);
    hidden.insert(hidden.begin(), run.output.hidden.detach());
    d_after = run.d_before;
  }
  return {at::cat(hidden), tail, at::cat(d_x), weight.gradient, runs.front().d_before};
}

void expect_same_pass(const ConvPass& got, const ConvPass& expected, double limit, const std::string& where) {
  double worst = 0;
  const auto parts = got.parts(), truth = expected.parts();
  for (size_t i = 0; i < parts.size(); ++i) {
    const at::Tensor exact = truth[i].second.to(at::kDouble);
    ASSERT_EQ(parts[i].second.sizes(), exact.sizes()) << where;
    const double size = exact.norm().item<double>();
    const double difference = (parts[i].second.to(at::kDouble) - exact).norm().item<double>();
    const double error = size > 0.0 ? difference / size : difference;
    EXPECT_TRUE(error <= limit) << where << ", " << parts[i].first << ": relative error " << error;
    worst = std::fmax(worst, error);
  }
  fmt::print("{}: worst relative error {:.1e}, limit {:.0e}\n", where, worst, limit);
}

class CausalConv : public WithAndWithoutKernels {};
INSTANTIATE_TEST_SUITE_P(Ops, CausalConv, testing::Bool(), KernelsName());

TEST_P(CausalConv, IsConv1dThenSilu) {
  for (const int64_t taps : {1, 2, 3, 4, 7}) {
    for (const int64_t length : {1, 2, 3, 4, 5, 64, 130}) {
      const ConvCase in({0, length}, 21, taps);
      expect_same_pass(pass_by_op(in), pass_by_conv1d(in), kConvLimit,
                       fmt::format("{} taps, {} rows", taps, length));
    }
  }
}

TEST_P(CausalConv, AddsABias) {
  for (const int64_t taps : {1, 2, 4}) {
    for (const int64_t channels : {3, 530}) {
      const ConvCase in({0, 2, 2, 75, 140}, channels, taps);
      Parameter weight = parameter(in.weight), bias = parameter(random({channels}, 7));
      expect_same(
          {in.x}, {&weight, &bias},
          [&](const auto& x) { return causal_conv_silu(x[0], weight, in.offsets, {}, &bias).hidden; },
          [&](const auto& x, const auto& p) {
            std::vector<at::Tensor> rows;
            for (size_t i = 0; i + 1 < in.offsets.size(); ++i) {
              const int64_t begin = in.offsets[i], length = in.offsets[i + 1] - begin;
              if (length == 0) continue;
              const at::Tensor input =
                  at::cat({at::zeros_like(in.before), x[0].narrow(0, begin, length)}).t().unsqueeze(0);
              rows.push_back(at::silu(
                  at::conv1d(input, p[0], p[1], {1}, at::IntArrayRef{0}, {1}, channels).squeeze(0).t()));
            }
            return at::cat(rows);
          });
    }
  }
}

TEST_P(CausalConv, TakesEveryChannelHoweverManyAThreadTakes) {
  for (const int64_t channels : {1, 63, 64, 65, 128, 129}) {
    const ConvCase in({0, 9, 20}, channels, 4);
    expect_same_pass(pass_by_op(in), pass_by_conv1d(in), kConvLimit, fmt::format("{} channels", channels));
  }
}

TEST_P(CausalConv, BeginsAnewWithEachSequence) {
  for (const std::vector<int64_t>& offsets :
       {std::vector<int64_t>{0, 1, 3, 6, 10, 75, 77}, {0, 2, 2, 4}, {0, 64, 65}, {0, 100, 200}}) {
    const ConvCase in(offsets, 37, 4);
    expect_same_pass(pass_by_op(in), pass_by_conv1d(in), kConvLimit,
                     fmt::format("{}", fmt::join(offsets, ",")));
  }
}

TEST_P(CausalConv, HandsTailsAndTheirGradientsFromRunToRun) {
  const ConvCase in({0, 40, 42, 101}, 19, 4);
  const ConvPass whole = pass_by_op(in);
  for (const int64_t chunk : {1, 2, 3, 4, 39, 40, 41, 64, 100}) {
    std::vector<int64_t> cuts;
    for (int64_t row = 0; row < 101; row += chunk) cuts.push_back(row);
    expect_same_pass(pass_by_op(in, cuts), whole, kConvLimit, fmt::format("runs of {}", chunk));
  }
}

TEST_P(CausalConv, TakesEveryDtypeAndStridedRows) {
  for (const auto& [dtype, limit] : {std::pair(at::kFloat, 1e-6), std::pair(at::kBFloat16, 8e-3)}) {
    const ConvCase in = ConvCase({0, 70, 130}, 150, 4).to(dtype);
    const ConvPass got = pass_by_op(in);
    EXPECT_EQ(got.hidden.scalar_type(), dtype);
    EXPECT_EQ(got.d_x.scalar_type(), dtype);
    expect_same_pass(got, pass_by_conv1d(in.to(at::kDouble)), limit, at::toString(dtype));
  }
  const ConvCase in({0, 30}, 12, 4);
  const Parameter weight = parameter(in.weight);
  const at::Tensor strided = at::cat({in.x, in.x}, 1).narrow(1, 0, 12);
  EXPECT_TRUE(at::equal(causal_conv_silu_forward(strided, weight, in.offsets, in.before).hidden,
                        causal_conv_silu_forward(in.x, weight, in.offsets, in.before).hidden));
}

TEST_P(CausalConv, LeavesAFrozenWeightAlone) {
  const ConvCase in({0, 30}, 12, 4);
  Parameter weight = parameter(in.weight, /*trainable=*/false);
  const at::Tensor x = in.x.clone().requires_grad_();
  const ConvOutput y = causal_conv_silu(x, weight, in.offsets, {in.before, {}});
  const auto [d_hidden, d_tail] = cotangents(in);
  const auto d = torch::autograd::grad({y.hidden, y.tail}, {x}, {d_hidden, d_tail});
  EXPECT_FALSE(weight.gradient.defined());
  expect_near(d[0], pass_by_op(in).d_x, "x");
}

TEST_P(CausalConv, TakesGradientsOfEitherOutputAlone) {
  const ConvCase in({0, 30}, 12, 4);
  Parameter weight = parameter(in.weight);
  const auto [d_hidden, d_tail] = cotangents(in);
  at::Tensor sum = at::zeros_like(in.x);
  for (const bool of_tail : {false, true}) {
    const at::Tensor x = in.x.clone().requires_grad_();
    const ConvOutput y = causal_conv_silu(x, weight, in.offsets, {in.before, {}});
    sum += torch::autograd::grad({of_tail ? y.tail : y.hidden}, {x}, {of_tail ? d_tail : d_hidden})[0];
  }
  expect_near(sum, pass_by_op(in).d_x, "sum of both gradients");
}

TEST(CausalConvKernels, TapsMayBeApart) {
  for (const int64_t taps : {1, 2, 4}) {
    for (const int64_t apart : {2, 3}) {
      const ConvCase in({0, 13, 13, 15, 40}, 6, taps, 7, apart);
      const ConvPass truth = pass_by_conv1d(in);
      for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{0}, {0, 1, 4, 14, 30}})
        expect_same_pass(pass_by_op(in, cuts), truth, kConvLimit,
                         fmt::format("{} taps, {} apart, {} runs", taps, apart, cuts.size()));
    }
  }
}

TEST(CausalConvKernels, GivesTheSameBitsOnAnyNumberOfThreads) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const ConvCase in = ConvCase({0, 200, 700}, 333, 4).to(dtype);
    const auto first = on_threads(1, [&] { return pass_by_op(in); }).parts();
    for (const int threads : {1, 2, 8}) {
      const auto again = on_threads(threads, [&] { return pass_by_op(in); }).parts();
      for (size_t i = 0; i < first.size(); ++i)
        EXPECT_TRUE(at::equal(again[i].second, first[i].second)) << first[i].first << ", " << threads;
    }
  }
}

TEST_P(CausalConv, RefusesWhatDoesNotFit) {
  const ConvCase in({0, 30}, 12, 4);
  const auto refuses = [](const ConvCase& bad) {
    const Parameter weight = parameter(bad.weight);
    EXPECT_THROW(causal_conv_silu_forward(bad.x, weight, bad.offsets, bad.before), InputError);
  };
  ConvCase bad = in;
  bad.weight = bad.weight.narrow(0, 0, 11);
  refuses(bad);
  bad = in;
  bad.before = bad.before.narrow(0, 0, 2);
  refuses(bad);
  bad = in;
  bad.before = bad.before.to(at::kFloat);
  refuses(bad);
  bad = in;
  bad.offsets = {0, 31};
  refuses(bad);
}

TEST_P(CausalConv, AllocatesTheSameOnMeta) {
  install_meters();
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const auto peak = [](const ConvCase& in) {
      Parameter weight{"weight", in.weight, at::zeros_like(in.weight)};
      const at::Tensor x = in.x.clone().requires_grad_(), d_before = at::zeros_like(in.before);
      const int64_t before = read_meter(x.device()).live_bytes;
      reset_peak(x.device());
      const ConvOutput y = causal_conv_silu(x, weight, in.offsets, {in.before, d_before});
      torch::autograd::grad({y.hidden, y.tail}, {x}, {y.hidden.detach(), y.tail.detach()});
      return read_meter(x.device()).peak_bytes - before;
    };
    const ConvCase in = ConvCase({0, 200, 203, 700}, 100, 4).to(dtype);
    EXPECT_EQ(peak(in.to(dtype, at::kMeta)), peak(in));
  }
}

}  // namespace
}  // namespace streambp
