// Factors of gradients: each one's, the one that they share, and what it could come from.
#include "verify/compare/fit.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "verify/tests/verify/compare/testing.h"

namespace streambp::verify {
namespace {

TEST(Fit, AFactorIsTheLeastSquaresOne) {
  const at::Tensor truth = at::tensor({1.0, 2.0, -2.0}, at::kDouble);
  EXPECT_DOUBLE_EQ(factor_of(truth * -0.3, truth), -0.3);
  // (1, 0, 0) is 1/9 of it; what stands at a right angle to it is none.
  EXPECT_DOUBLE_EQ(factor_of(at::tensor({1.0, 0.0, 0.0}, at::kDouble), truth), 1.0 / 9.0);
  EXPECT_DOUBLE_EQ(factor_of(at::tensor({0.0, 1.0, 1.0}, at::kDouble), truth), 0.0);
  EXPECT_DOUBLE_EQ(factor_of((truth * 3.0).to(at::kFloat), truth), 3.0);
  EXPECT_NEAR(factor_of(truth * 1e-300, truth * 1e-300), 1.0, 1e-12);
  EXPECT_TRUE(std::isnan(factor_of(truth.unsqueeze(0), truth))) << "shapes are not broadcast";
  EXPECT_TRUE(std::isnan(factor_of(truth, at::zeros_like(truth))));
  EXPECT_TRUE(std::isnan(factor_of(at::full_like(truth, kNaN), truth)));
}

TEST(Fit, TheMedianIsTheMiddle) {
  EXPECT_TRUE(std::isnan(median_of({})));
  EXPECT_EQ(median_of({7.0}), 7.0);
  EXPECT_EQ(median_of({9.0, 1.0, 5.0}), 5.0);
  EXPECT_EQ(median_of({9.0, 1.0, 5.0, 2.0}), 3.5);
  EXPECT_EQ(median_of({4.0, 1.0}), 2.5);
}

TEST(Fit, OneFactorOfManyLeavesOutliersOut) {
  const FactorFit none = fit_factor({});
  EXPECT_FALSE(none.found());
  EXPECT_FALSE(fit_factor({kNaN, std::numeric_limits<double>::infinity()}).found());
  const FactorFit one = fit_factor({0.5});
  EXPECT_TRUE(one.found());
  EXPECT_EQ(one.factor, 0.5);
  EXPECT_EQ(one.parameters, 1u);
  EXPECT_EQ(one.low, 0.5);
  EXPECT_EQ(one.high, 0.5);

  // The middle is 2.05, the distances' median 0.1: 2.5 is more than 3 x 1.4826 x 0.1 away, 2.4 is not.
  const FactorFit fit = fit_factor({1.9, 2.0, 2.1, 2.0, 1.9, 2.1, 2.4, 2.5, kNaN});
  EXPECT_EQ(fit.parameters, 8u);
  EXPECT_NEAR(fit.factor, (1.9 + 2.0 + 2.1 + 2.0 + 1.9 + 2.1 + 2.4) / 7.0, 1e-12);
  EXPECT_NEAR(fit.spread, 0.14826 / fit.factor, 1e-12);
  const FactorFit far = fit_factor({1.9, 2.0, 2.1, 2.0, 2.0, 2.6});
  EXPECT_NEAR(far.factor, 2.0, 1e-12) << "without 2.6";
  EXPECT_NEAR(far.high - far.low, 2.0 * far.factor * far.spread, 1e-12);

  // The middle is 4 and the reach 1: what is exactly 3 of it away is still one of the many.
  EXPECT_EQ(fit_factor({4.0, 4.0, 4.0, 7.0}, /*least_spread=*/0.25).factor, 4.75);

  // A spread and a bias that correct arithmetic has widen what the factor may be.
  const FactorFit wide = fit_factor({2.0, 2.0, 2.0}, /*least_spread=*/0.01, /*bias=*/0.02);
  EXPECT_NEAR(wide.spread, 0.01, 1e-12);
  EXPECT_NEAR(wide.low, 2.0 - 0.06, 1e-12);
  EXPECT_NEAR(wide.high, 2.0 + 0.06, 1e-12);
  const FactorFit negative = fit_factor({-2.0, -2.0, -2.0}, 0.01, 0.0);
  EXPECT_NEAR(negative.low, -2.02, 1e-12);
  EXPECT_NEAR(negative.high, -1.98, 1e-12);
}

TEST(Fit, AFactorIsExplainedByTheNearestGuesses) {
  const std::vector<Normaliser> counts{{"tokens", 80.0}, {"scored", 65.0}, {"none", 0.0}};
  EXPECT_EQ(explain_factor(65.0 / 80.0, 65.0, counts, 1e-12).size(), 1u);
  EXPECT_EQ(explain_factor(1.0, 65.0, counts, 1e-12).size(), 0u) << "the divisor itself is no mistake";
  ASSERT_EQ(explain_factor(-1.0, 65.0, counts, 1e-12).size(), 1u);
  EXPECT_EQ(explain_factor(-1.0, 65.0, counts, 1e-12).front(), "the opposite sign");
  for (const double n : {2.0, 64.0}) {
    EXPECT_EQ(explain_factor(n, 65.0, counts, 1e-12).size(), 1u) << n;
    EXPECT_EQ(explain_factor(1.0 / n, 65.0, counts, 1e-12).size(), 1u) << n;
  }
  EXPECT_TRUE(explain_factor(65.5, 65.0, counts, 1e-12).empty());
  // Three at most, the nearest first.
  const auto near = explain_factor(10.2, 65.0, counts, 0.5);
  ASSERT_EQ(near.size(), 3u);
  EXPECT_EQ(near.front(), "10 steps or ranks summed instead of averaged");
}

}  // namespace
}  // namespace streambp::verify
