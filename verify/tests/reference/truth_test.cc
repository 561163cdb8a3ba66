// What judges the reference: the functions of complex steps, and that mistakes are found where differences
// see none.
#include <cmath>
#include <complex>
#include <gtest/gtest.h>
#include <limits>
#include <numbers>

#include "planted_case.h"
#include "reference/check/check.h"
#include "reference/complex_step.h"

namespace streambp::reference {
namespace {

using Complex = std::complex<long double>;

constexpr long double kExtendedNaN = std::numeric_limits<long double>::quiet_NaN();

/// |a - b| in units of |b|, or of 1 where that is more.
long double error_of(const ComplexStep& a, const Complex& b) {
  return std::abs(Complex(a.real(), a.imag()) - b) / std::max(1.0L, std::abs(b));
}

TEST(ComplexStepTest, HasTheFunctionsOfComplexNumbers) {
  for (long double x : {0.2L, 0.7L, 1.9L, 6.0L}) {
    for (long double y : {-0.6L, -1e-4L, 0.0L, 0.05L, 0.9L}) {
      SCOPED_TRACE(testing::Message() << x << " + " << y << " i");
      const ComplexStep z(x, y);
      const Complex w(x, y);
      EXPECT_LE(error_of(exp(z), std::exp(w)), 1e-18L);
      EXPECT_LE(error_of(log(z), std::log(w)), 1e-18L);
      EXPECT_LE(error_of(sqrt(z), std::sqrt(w)), 1e-18L);
      EXPECT_LE(error_of(cosh(z), std::cosh(w)), 1e-18L);
      EXPECT_LE(error_of(tanh(z), std::tanh(w)), 1e-18L);
      EXPECT_LE(error_of(expm1(z), std::exp(w) - 1.0L), 1e-18L);
      EXPECT_LE(error_of(log1p(z), std::log(1.0L + w)), 1e-18L);
      EXPECT_LE(error_of(z * exp(z), w * std::exp(w)), 1e-18L);
      EXPECT_LE(error_of(exp(-z) / z, std::exp(-w) / w), 1e-18L);
      EXPECT_LE(error_of(abs(-z), w), 0.0L);
    }
  }
}

TEST(ComplexStepTest, DerivativesHaveAllDigits) {
  const long double h = 1e-100L;
  for (long double x : {1e-9L, 0.3L, 1.0L, 17.0L}) {
    const ComplexStep z(x, h);
    const auto near = [x](long double slope, long double expected) {
      EXPECT_NEAR(static_cast<double>(slope / expected - 1), 0.0, 1e-18) << "at " << x;
    };
    near(exp(z).imag() / h, std::exp(x));
    near(expm1(z).imag() / h, std::exp(x));
    near(log(z).imag() / h, 1 / x);
    near(log1p(z).imag() / h, 1 / (1 + x));
    near(sqrt(z).imag() / h, 1 / (2 * std::sqrt(x)));
    near(cosh(z).imag() / h, std::sinh(x));
    near(tanh(z).imag() / h, 1 / (std::cosh(x) * std::cosh(x)));
    near((1 / z).imag() / h, -1 / (x * x));
    // The real part is the real function's: nothing of the step is left in it.
    EXPECT_EQ(exp(z).real(), std::exp(x));
    EXPECT_EQ(log1p(z).real(), std::log1p(x));
    EXPECT_EQ(expm1(z).real(), std::expm1(x));
    EXPECT_EQ((1 / z).real(), 1 / x);
  }
}

TEST(ComplexStepTest, BranchesAreThoseOfTheRealPart) {
  const ComplexStep a(1, 5), b(1, -5), c(2, 0);
  EXPECT_TRUE(a == b && a <= b && !(a < b) && a < c && c > b && a != c && c >= a);
  EXPECT_EQ(abs(ComplexStep(-3, 4)).real(), 3);
  EXPECT_EQ(abs(ComplexStep(-3, 4)).imag(), -4);
  for (const ComplexStep& z :
       {log(ComplexStep(-1)), sqrt(ComplexStep(-1)), log1p(ComplexStep(-2)), ComplexStep(kExtendedNaN)}) {
    EXPECT_TRUE(isnan(z));
    EXPECT_FALSE(z < a || z > a || z == z);
  }
}

TEST(TruthTest, ARightChainRulePasses) {
  const Truth truth = reference_in_extended_precision::truth_with_wrong_factor(0.0);
  const CheckResult result = check_case(case_with_wrong_factor(0.0), &truth);
  EXPECT_TRUE(result.passed) << result.detail;
  EXPECT_LE(result.chain_rule_error, 1e-18);
  EXPECT_EQ(result.steps, 12U);
  // Doubles round and extended precision does so two thousand times less.
  EXPECT_GT(result.gradient_error, 0.0);
  EXPECT_LE(result.gradient_error, 1e-15);
}

TEST(TruthTest, AWrongFactorIsFoundThatDifferencesDoNotSee) {
  for (double error : {1e-9, 1e-12, 1e-14}) {
    const Case planted = case_with_wrong_factor(error);
    const Truth truth = reference_in_extended_precision::truth_with_wrong_factor(error);
    const CheckResult result = check_case(planted, &truth);
    EXPECT_FALSE(result.passed) << error;
    EXPECT_NEAR(result.chain_rule_error / error, 1.0, 1e-3);
    EXPECT_NE(result.detail.find("the chain rule is wrong at input 0 entry ("), std::string::npos)
        << result.detail;
    EXPECT_LE(result.gradient_error, 1e-15) << "both builds have the same mistake";
    EXPECT_LE(result.difference_error, kDifferenceLimit);
    EXPECT_TRUE(check_case(planted, nullptr).passed) << "differences see " << error;
  }
}

TEST(TruthTest, OneStepOfAllInputsFindsAWrongFactor) {
  const Truth right = reference_in_extended_precision::truth_with_wrong_factor(0.0, /*joint=*/true);
  EXPECT_EQ(right.steps, 1U);
  EXPECT_LE(right.chain_rule_error, 1e-18);
  const double error = 1e-12;
  const Truth truth = reference_in_extended_precision::truth_with_wrong_factor(error, /*joint=*/true);
  const CheckResult result = check_case(case_with_wrong_factor(error, /*joint=*/true), &truth);
  EXPECT_FALSE(result.passed);
  EXPECT_GT(result.chain_rule_error, error / 100);
  EXPECT_NE(result.detail.find("the chain rule is wrong at all inputs together"), std::string::npos)
      << result.detail;
}

TEST(TruthTest, AFactorThatIsWrongInOneBuildIsFound) {
  const Truth truth = reference_in_extended_precision::truth_with_wrong_factor(0.0);
  const CheckResult result = check_case(case_with_wrong_factor(1e-12), &truth);
  EXPECT_FALSE(result.passed);
  EXPECT_NEAR(result.gradient_error, 1e-12, 1e-15);
  EXPECT_NE(result.detail.find("in extended precision"), std::string::npos) << result.detail;
}

TEST(TruthTest, DifferencesFindADependenceThatIsLost) {
  const Truth truth = reference_in_extended_precision::truth_with_lost_dependence();
  const CheckResult result = check_case(case_with_lost_dependence(), &truth);
  EXPECT_LE(result.chain_rule_error, 1e-18) << "a complex step ends where something is held constant";
  EXPECT_FALSE(result.passed);
  EXPECT_GT(result.difference_error, 1e-3);
}

TEST(TruthTest, TheTruthOfAnotherCaseIsRefused) {
  const Truth truth = reference_in_extended_precision::truth_with_lost_dependence();
  const CheckResult result = check_case(case_with_wrong_factor(0.0), &truth);
  EXPECT_FALSE(result.passed);
  EXPECT_NE(result.detail.find("another case"), std::string::npos) << result.detail;
}

TEST(TruthTest, GradientsThatVanishAreMeasuredByTheFunction) {
  EXPECT_EQ(scale_of(2.0, 1.0), 2.0);
  EXPECT_EQ(scale_of(1e-5, 1.0), 1e-3);
  EXPECT_EQ(scale_of(1e-17, 4.0), 4.0);
  EXPECT_EQ(scale_of(0.0, 0.0), 1.0);
  EXPECT_EQ(scale_of(3.0, 0.0), 3.0);
}

}  // namespace
}  // namespace streambp::reference
