// The comparator that every check relies on: what it must not let pass.
#include "verify/error_measure.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

namespace streambp::verify {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor vector_of(std::initializer_list<double> values) {
  return at::tensor(at::ArrayRef<double>(values), at::kDouble);
}

/// A gate as every check writes it.
bool passes(double error, double limit = 1e-10) {
  return !(!(error <= limit));
}

TEST(ErrorMeasure, RelatesTheDifferenceToTheTruth) {
  const at::Tensor truth = vector_of({3.0, 4.0});
  EXPECT_EQ(relative_error(truth, truth), 0.0);
  EXPECT_DOUBLE_EQ(relative_error(vector_of({3.0, 4.5}), truth), 0.1);
  EXPECT_DOUBLE_EQ(relative_error(vector_of({0.0, 0.0}), truth), 1.0);
  EXPECT_DOUBLE_EQ(relative_error(2.5, 2.0), 0.25);
}

TEST(ErrorMeasure, IsAbsoluteWhereTheTruthIsZero) {
  EXPECT_EQ(relative_error(vector_of({0.0, 0.0}), vector_of({0.0, 0.0})), 0.0);
  EXPECT_DOUBLE_EQ(relative_error(vector_of({3e-3, 4e-3}), vector_of({0.0, 0.0})), 5e-3);
  EXPECT_EQ(relative_error(1e-3, 0.0), 1e-3);
  EXPECT_EQ(norm_of(at::empty({0, 3}, at::kDouble)), 0.0);
}

TEST(ErrorMeasure, NeitherOverflowsNorVanishes) {
  EXPECT_DOUBLE_EQ(relative_error(vector_of({3e-200, 4.5e-200}), vector_of({3e-200, 4e-200})), 0.1);
  EXPECT_DOUBLE_EQ(relative_error(vector_of({3e200, 4.5e200}), vector_of({3e200, 4e200})), 0.1);
}

TEST(ErrorMeasure, NaNAndInfinityNeverPass) {
  const at::Tensor good = vector_of({1.0, 2.0});
  for (const double bad : {kNaN, kInfinity, -kInfinity}) {
    const at::Tensor spoiled = vector_of({1.0, bad});
    EXPECT_FALSE(passes(relative_error(spoiled, good))) << bad;
    EXPECT_FALSE(passes(relative_error(good, spoiled))) << bad;
    EXPECT_FALSE(passes(relative_error(spoiled, spoiled))) << bad;
    EXPECT_FALSE(passes(relative_error(bad, 1.0))) << bad;
    EXPECT_FALSE(passes(relative_error(1.0, bad))) << bad;
    EXPECT_FALSE(passes(relative_error(bad, bad))) << bad;
    EXPECT_TRUE(std::isnan(relative_error(bad, 1.0)) && std::isnan(relative_error(1.0, bad))) << bad;
    EXPECT_FALSE(bit_equal(spoiled, spoiled)) << bad;
    EXPECT_FALSE(is_zero(vector_of({0.0, bad}))) << bad;
  }
}

TEST(ErrorMeasure, ShapesAreNotBroadcast) {
  const at::Tensor row = vector_of({1.0, 2.0});
  EXPECT_FALSE(passes(relative_error(row.unsqueeze(0), row)));
  EXPECT_FALSE(passes(relative_error(vector_of({1.0}), vector_of({1.0, 1.0}))));
  EXPECT_FALSE(passes(relative_error(vector_of({}), row)));
  EXPECT_FALSE(bit_equal(row.unsqueeze(0), row));
}

TEST(ErrorMeasure, OnlyFloatingDtypesAreGradients) {
  const at::Tensor truth = vector_of({1.0, 2.0});
  EXPECT_FALSE(passes(relative_error(truth.to(at::kLong), truth)));
  EXPECT_FALSE(passes(relative_error(truth, truth.to(at::kLong))));
  EXPECT_TRUE(passes(relative_error(truth.to(at::kFloat), truth)));
  EXPECT_FALSE(bit_equal(truth.to(at::kFloat), truth));
}

TEST(ErrorMeasure, BitEqualSeesTheLastBitAndTheSignOfZero) {
  const at::Tensor one = vector_of({1.0, 0.0});
  EXPECT_TRUE(bit_equal(one, one.clone()));
  EXPECT_FALSE(bit_equal(one, vector_of({std::nextafter(1.0, 2.0), 0.0})));
  EXPECT_FALSE(bit_equal(one, vector_of({1.0, -0.0})));
  const at::Tensor table = at::arange(6, at::kDouble).reshape({2, 3});
  EXPECT_TRUE(bit_equal(table.t(), table.t().contiguous()));
}

TEST(ErrorMeasure, TheWorstOfTwoIsNaNIfEitherIs) {
  EXPECT_EQ(worse(1.0, 2.0), 2.0);
  EXPECT_EQ(worse(2.0, 1.0), 2.0);
  EXPECT_TRUE(std::isnan(worse(kNaN, 1.0)));
  EXPECT_TRUE(std::isnan(worse(1.0, kNaN)));
  EXPECT_TRUE(is_worse(kNaN, kInfinity));
  EXPECT_FALSE(is_worse(kInfinity, kNaN));
  EXPECT_FALSE(is_worse(kNaN, kNaN));
}

TEST(ErrorMeasure, GradientsAreListedWorstFirstAndNoNameIsLost) {
  const Tensors truth{{"a", vector_of({1.0})},
                      {"b", vector_of({2.0})},
                      {"c", vector_of({4.0})},
                      {"d", vector_of({5.0})},
                      {"e", vector_of({6.0})}};
  const Tensors gradients{{"a", vector_of({1.001})},
                          {"b", vector_of({2.0})},
                          {"c", vector_of({kNaN})},
                          {"d", vector_of({5.0, 5.0})},
                          {"x", vector_of({0.0})}};
  const std::vector<ParameterError> errors = gradient_errors(gradients, truth);
  ASSERT_EQ(errors.size(), 6u);
  std::map<std::string, std::string> problems;
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_FALSE(passes(errors[i].error, 1e300)) << errors[i].name;
    problems[errors[i].name] = errors[i].problem;
  }
  EXPECT_EQ(problems["c"], "holds NaN or infinity");
  EXPECT_EQ(problems["d"], "shape [2], expected [1]");
  EXPECT_EQ(problems["e"], "missing");
  EXPECT_EQ(problems["x"], "surplus");
  EXPECT_EQ(errors[4].name, "a");
  EXPECT_NEAR(errors[4].error, 1e-3, 1e-12);
  EXPECT_EQ(errors[5].name, "b");
  EXPECT_EQ(errors[5].error, 0.0);
  EXPECT_TRUE(errors[5].problem.empty());
}

}  // namespace
}  // namespace streambp::verify
