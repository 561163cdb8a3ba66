// What a whole pass is judged by: loss, log-probabilities, values and gradients, none of which may be left
// out.
#include "verify/evaluation.h"

#include <cmath>
#include <gtest/gtest.h>

namespace streambp::verify {
namespace {

at::Tensor values_of(std::initializer_list<double> values) {
  return at::tensor(at::ArrayRef<double>(values), at::kDouble);
}

Evaluation truth() {
  return {2.0,
          values_of({-1.0, -2.0}),
          values_of({0.5, 0.25}),
          {{"a", values_of({3.0, 4.0})}, {"b", values_of({1.0})}}};
}

TEST(Evaluation, ErrorsOfEachPartAreItsOwn) {
  EXPECT_EQ(measure(truth(), truth()).worst(), 0.0);
  Evaluation value = truth();
  value.loss = 2.5;
  EvaluationErrors errors = measure(value, truth());
  EXPECT_DOUBLE_EQ(errors.loss, 0.25);
  EXPECT_DOUBLE_EQ(errors.worst(), 0.25);
  EXPECT_EQ(errors.log_probabilities, 0.0);
  EXPECT_EQ(errors.values, 0.0);
  EXPECT_EQ(errors.worst_gradient(), 0.0);

  value = truth();
  value.log_probabilities.mul_(1.5);
  errors = measure(value, truth());
  EXPECT_DOUBLE_EQ(errors.log_probabilities, 0.5);
  EXPECT_DOUBLE_EQ(errors.worst(), 0.5);

  value = truth();
  value.values.mul_(-1.0);
  errors = measure(value, truth());
  EXPECT_DOUBLE_EQ(errors.values, 2.0);
  EXPECT_DOUBLE_EQ(errors.worst(), 2.0);

  value = truth();
  value.gradients["b"] = values_of({1.125});
  errors = measure(value, truth());
  EXPECT_DOUBLE_EQ(errors.worst_gradient(), 0.125);
  EXPECT_EQ(errors.worst_parameter(), "b");
  EXPECT_DOUBLE_EQ(errors.worst(), 0.125);
}

TEST(Evaluation, WhatIsMissingIsNaN) {
  Evaluation value = truth();
  value.log_probabilities.reset();
  EXPECT_TRUE(std::isnan(measure(value, truth()).log_probabilities));
  EXPECT_TRUE(std::isnan(measure(value, truth()).worst()));
  value = truth();
  value.values.reset();
  EXPECT_TRUE(std::isnan(measure(value, truth()).worst()));
  value = truth();
  value.gradients.erase("a");
  EXPECT_TRUE(std::isnan(measure(value, truth()).worst()));
  EXPECT_EQ(measure(value, truth()).worst_parameter(), "a");
  value.gradients.clear();
  EXPECT_TRUE(std::isnan(measure(value, truth()).worst())) << "no gradient at all";
  value = truth();
  value.gradients["c"] = values_of({0.0});
  EXPECT_TRUE(std::isnan(measure(value, truth()).worst())) << "one too many";
  value = truth();
  value.loss = kNaN;
  EXPECT_TRUE(std::isnan(measure(value, truth()).worst()));
  // What the truth does not have is not looked at.
  Evaluation less = truth();
  less.log_probabilities.reset();
  less.values.reset();
  EXPECT_EQ(measure(truth(), less).worst(), 0.0);
}

TEST(Evaluation, AllErrorsAreListedByName) {
  Evaluation value = truth();
  value.loss = 3.0;
  value.gradients["b"] = values_of({1.25});
  const std::vector<ParameterError> all = measure(value, truth()).all();
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all[0].name, "(loss)");
  EXPECT_DOUBLE_EQ(all[0].error, 0.5);
  EXPECT_EQ(all[1].name, "(log-probabilities)");
  EXPECT_EQ(all[2].name, "(values)");
  EXPECT_EQ(all[3].name, "b");
  EXPECT_DOUBLE_EQ(all[3].error, 0.25);
  EXPECT_EQ(all[4].name, "a");
}

TEST(Evaluation, BitEqualLooksAtEveryPart) {
  EXPECT_TRUE(bit_equal(truth(), truth()));
  const double more = std::nextafter(2.0, 3.0);
  Evaluation value = truth();
  value.loss = more;
  EXPECT_FALSE(bit_equal(value, truth()));
  value.loss = kNaN;
  EXPECT_FALSE(bit_equal(value, value)) << "NaN is equal to nothing";
  value = truth();
  value.log_probabilities[1] = -more;
  EXPECT_FALSE(bit_equal(value, truth()));
  value.log_probabilities.reset();
  EXPECT_FALSE(bit_equal(value, truth()));
  EXPECT_FALSE(bit_equal(truth(), value));
  EXPECT_TRUE(bit_equal(value, value)) << "nobody asked for them";
  value = truth();
  value.values[0] = 0.5000001;
  EXPECT_FALSE(bit_equal(value, truth()));
  value = truth();
  value.gradients["b"] = values_of({-1.0});
  EXPECT_FALSE(bit_equal(value, truth()));
  value = truth();
  value.gradients.erase("b");
  EXPECT_FALSE(bit_equal(value, truth()));
  EXPECT_FALSE(bit_equal(truth(), value));
  value.gradients["c"] = values_of({1.0});
  EXPECT_FALSE(bit_equal(value, truth())) << "another name";
}

}  // namespace
}  // namespace streambp::verify
