// The head's CPU kernels against linear, log_softmax and autograd in float64: every instruction set that this
// machine has, sizes around registers, panels, tiles and depths.
#include "streambp/ops/head/target_head.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include <torch/csrc/autograd/autograd.h>

#include "streambp/ops/fused.h"
#include "verify/tests/on_threads.h"
#include "verify/tests/streambp/ops/ops_testing.h"

namespace streambp {
namespace {

using HeadSubject = std::tuple<std::string, at::ScalarType>;

const cpu::KernelSet& kernels_of(const std::string& instruction_set) {
  static const std::vector<cpu::KernelSet> sets = cpu::available_kernels();
  for (const cpu::KernelSet& kernels : sets) {
    if (kernels.instruction_set == instruction_set) return kernels;
  }
  throw std::runtime_error("no kernels of " + instruction_set);
}

double error_of(const at::Tensor& got, const at::Tensor& expected) {
  const double size = expected.norm().item<double>();
  const double difference = (got.to(at::kDouble) - expected).norm().item<double>();
  return size > 0.0 ? difference / size : difference;
}

/// A head of V entries and n rows of D, in one dtype; logits are about as large as `spread`.
struct HeadCase {
  HeadCase(int64_t n, int64_t size, int64_t vocabulary, at::ScalarType dtype, double spread = 1.0)
      : weight(parameter(random({vocabulary, size}, 1).to(dtype))),
        x((random({n, size}, 2) * (spread / std::sqrt(static_cast<double>(size)))).to(dtype)),
        targets(at::arange(n, at::kLong) * 7919 % vocabulary),
        d(random({n}, 3)) {
    head.weight = &weight;
    weight.gradient = random({vocabulary, size}, 4).to(dtype);
  }

  Parameter weight;
  Linear head;
  at::Tensor x, targets, d;
};

struct Results {
  at::Tensor log_probabilities, d_x, gradient;
};

Results run(HeadCase& from, double temperature, const cpu::KernelSet& kernels) {
  TargetHead head(from.head, from.x, from.targets, temperature, kernels);
  Results results;
  results.log_probabilities = head.log_probabilities();
  results.d_x = head.backward(from.d);
  results.gradient = from.weight.gradient;
  return results;
}

Results expected(const HeadCase& from, double temperature) {
  const at::AutoGradMode with_grad(true);
  const at::Tensor x = from.x.to(at::kDouble).detach().requires_grad_();
  const at::Tensor weight = from.weight.value.to(at::kDouble).detach().requires_grad_();
  const at::Tensor log_p = at::log_softmax(at::mm(x, weight.t()) / temperature, 1);
  const at::Tensor chosen = log_p.gather(1, from.targets.unsqueeze(1)).squeeze(1);
  const auto gradients = torch::autograd::grad({chosen}, {x, weight}, {from.d});
  return {
      chosen.detach(), gradients[0],
      from.weight.gradient.defined() ? gradients[1] + from.weight.gradient.to(at::kDouble) : at::Tensor()};
}

class TargetHeads : public testing::TestWithParam<HeadSubject> {
 protected:
  const cpu::KernelSet& kernels() const { return kernels_of(std::get<0>(GetParam())); }
  at::ScalarType dtype() const { return std::get<1>(GetParam()); }
  double limit() const { return dtype() == at::kDouble ? 5e-15 : 2e-6; }
};

TEST_P(TargetHeads, ValuesAndGradients) {
  double worst = 0.0;
  for (const int64_t n : {1, 5, 64, 65, 131}) {
    for (const int64_t size : {16, 48, 128, 144, 320}) {
      for (const int64_t vocabulary : {1, 7, 95, 96, 97, 301}) {
        for (const double temperature : {1.0, 0.7}) {
          HeadCase one(n, size, vocabulary, dtype());
          const Results truth = expected(one, temperature);
          const Results got = run(one, temperature, kernels());
          for (const double error : {error_of(got.log_probabilities, truth.log_probabilities),
                                     error_of(got.d_x, truth.d_x), error_of(got.gradient, truth.gradient)}) {
            // With a vocabulary of one entry the truth is zero, and so is ours but for its rounding.
            EXPECT_TRUE(error <= limit() * (vocabulary == 1 ? 100.0 : 1.0))
                << n << " rows of " << size << ", " << vocabulary << " entries, temperature " << temperature
                << ": error " << error;
            worst = std::fmax(worst, error);
          }
        }
      }
    }
  }
  fmt::print("worst relative error {:.2e}, limit {:.0e}\n", worst, limit());
}

TEST_P(TargetHeads, LargeLogitsNeitherOverflowNorLoseTheirGradients) {
  HeadCase one(9, 64, 250, dtype(), /*spread=*/2000.0);
  const Results truth = expected(one, 1.0);
  const Results got = run(one, 1.0, kernels());
  // The logits reach some thousands: their own rounding is that much larger than a logit's of 1.
  EXPECT_TRUE(error_of(got.log_probabilities, truth.log_probabilities) <= 10 * limit());
  EXPECT_TRUE(error_of(got.d_x, truth.d_x) <= 1000 * limit()) << error_of(got.d_x, truth.d_x);
}

/// A case whose targets lead by `lead` nats, and the truth by the log-odds of each target against all others:
/// log p = -log1p(e^-z), d log p = (1 - p) dz.
TEST_P(TargetHeads, ConfidentTargetsKeepTheirDigits) {
  for (const double lead : {-40.0, -8.0, 0.0, 8.0, 12.0, 16.0, 20.0, 30.0, 40.0}) {
    HeadCase one(33, 48, 301, dtype());
    // The target's own direction on top of a small hidden state; exact in both dtypes once it is rounded.
    at::Tensor rows = one.weight.value.index({one.targets}).to(at::kDouble);
    rows = rows / rows.square().sum(1, /*keepdim=*/true) * lead;
    one.x = (one.x.to(at::kDouble) * 0.1 + rows).to(dtype());
    const at::Tensor x = one.x.to(at::kDouble), weight = one.weight.value.to(at::kDouble);
    const at::Tensor logits = at::mm(x, weight.t());
    const at::Tensor index = one.targets.unsqueeze(1);
    const at::Tensor others = logits.scatter(1, index, -std::numeric_limits<double>::infinity());
    const at::Tensor z = logits.gather(1, index).squeeze(1) - others.logsumexp(1);
    const at::Tensor rest = at::sigmoid(-z) * one.d;
    const at::Tensor d_logits = (-at::softmax(others, 1)).scatter(1, index, 1.0) * rest.unsqueeze(1);
    one.weight.gradient.zero_();
    const at::Tensor expected_weight = at::mm(d_logits.t(), x), expected_x = at::mm(d_logits, weight);
    const Results got = run(one, 1.0, kernels());
    // Logits of 40 are rounded to 2e-6 in float32, and e^-z with them.
    const double allowed = limit() * (2.0 + std::abs(lead));
    for (const double error : {error_of(got.log_probabilities, -at::softplus(-z)),
                               error_of(got.d_x, expected_x), error_of(got.gradient, expected_weight)})
      EXPECT_TRUE(error <= allowed) << "lead " << lead << ": error " << error << ", limit " << allowed;
  }
}

TEST_P(TargetHeads, AFrozenWeightStaysAsItIsAndChangesNothingElse) {
  HeadCase trained(33, 48, 200, dtype()), frozen(33, 48, 200, dtype());
  frozen.weight.gradient.reset();
  const Results expected_results = run(trained, 1.0, kernels());
  const Results got = run(frozen, 1.0, kernels());
  EXPECT_FALSE(frozen.weight.gradient.defined());
  EXPECT_TRUE(at::equal(got.d_x, expected_results.d_x));
  EXPECT_TRUE(at::equal(got.log_probabilities, expected_results.log_probabilities));
}

TEST_P(TargetHeads, RowsAddUpInTheirOrderHoweverTheyAreCut) {
  HeadCase whole(97, 80, 210, dtype()), parts(97, 80, 210, dtype());
  const Results expected_results = run(whole, 1.0, kernels());
  at::Tensor d_x = at::empty_like(parts.x);
  for (int64_t begin = 0; begin < 97; begin += 31) {
    const int64_t rows = std::min<int64_t>(31, 97 - begin);
    TargetHead head(parts.head, parts.x.narrow(0, begin, rows), parts.targets.narrow(0, begin, rows), 1.0,
                    kernels());
    const at::Tensor log_p = head.log_probabilities();
    EXPECT_TRUE(at::equal(log_p, expected_results.log_probabilities.narrow(0, begin, rows)));
    d_x.narrow(0, begin, rows).copy_(head.backward(parts.d.narrow(0, begin, rows)));
  }
  EXPECT_TRUE(at::equal(d_x, expected_results.d_x));
  EXPECT_TRUE(at::equal(parts.weight.gradient, expected_results.gradient));
}

TEST_P(TargetHeads, ANanStaysInItsRow) {
  HeadCase one(5, 32, 120, dtype());
  one.x[2][3] = std::numeric_limits<double>::quiet_NaN();
  TargetHead head(one.head, one.x, one.targets, 1.0, kernels());
  const at::Tensor log_p = head.log_probabilities();
  for (int64_t row = 0; row < 5; ++row) EXPECT_EQ(std::isnan(log_p[row].item<double>()), row == 2) << row;
  const at::Tensor d_x = head.backward(one.d);
  EXPECT_TRUE(at::isnan(d_x[2]).all().item<bool>());
  EXPECT_FALSE(at::isnan(d_x[1]).any().item<bool>());
}

TEST_P(TargetHeads, ARepeatedRunIsTheSameWithSeveralThreads) {
  for (const int threads : {2, 8}) {
    const auto once = [&] {
      HeadCase one(70, 64, 1000, dtype());
      return run(one, 1.0, kernels());
    };
    const Results first = on_threads(threads, once);
    for (int repeat = 0; repeat < 5; ++repeat) {
      const Results again = on_threads(threads, once);
      EXPECT_TRUE(at::equal(again.d_x, first.d_x)) << threads << " threads";
      EXPECT_TRUE(at::equal(again.gradient, first.gradient)) << threads << " threads";
    }
  }
}

std::vector<HeadSubject> subjects() {
  std::vector<HeadSubject> all;
  for (const cpu::KernelSet& kernels : cpu::available_kernels()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble})
      all.emplace_back(kernels.instruction_set, dtype);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Sets, TargetHeads, testing::ValuesIn(subjects()), [](const auto& of) {
  return std::get<0>(of.param) + (std::get<1>(of.param) == at::kDouble ? "_float64" : "_float32");
});

TEST(TargetHead, LeavesBiasesAdaptersAndOddSizesToOthers) {
  if (!cpu::has_fast_products()) GTEST_SKIP() << "no vectors wide enough";
  HeadCase one(3, 32, 50, at::kFloat);
  EXPECT_TRUE(TargetHead::serves(one.head, one.x));
  EXPECT_FALSE(TargetHead::serves(one.head, one.x.narrow(1, 0, 24)));
  EXPECT_FALSE(TargetHead::serves(one.head, one.x.to(at::kBFloat16)));
  one.weight.gradient = one.weight.gradient.to(at::kDouble);
  EXPECT_FALSE(TargetHead::serves(one.head, one.x)) << "a gradient wider than its weight";
}

}  // namespace
}  // namespace streambp
