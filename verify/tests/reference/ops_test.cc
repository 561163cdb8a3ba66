// The reference's operations against differences and second formulas, the corners that differences cannot
// judge, and the checker itself against operations that are wrong on purpose.
#include "reference/ops/ops.h"

#include <cmath>
#include <cstdio>
#include <gtest/gtest.h>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "reference/check/check.h"
#include "verify/tests/reference/model_testing.h"

namespace streambp::reference {
namespace {

/// y = 3 x^2 with a chain rule to be spoilt by the tests.
Var tripled_square(const Var& x, const std::function<Matrix(const Matrix& dy)>& chain_rule) {
  return Tape::record({x}, 3.0 * x.value().cwiseProduct(x.value()),
                      [x, chain_rule](const Var& y) { x.gradient() += chain_rule(y.gradient()); });
}

const Matrix kPoint = row({0.5, -1.25, 2.0});

Matrix right_chain_rule(const Matrix& dy) {
  return 6.0 * kPoint.cwiseProduct(dy);
}

CheckResult check_spoilt(const std::function<Matrix(const Matrix& dy)>& chain_rule) {
  return check_gradient(
      "spoilt", [&](Tape&, const std::vector<Var>& x) { return tripled_square(x[0], chain_rule); }, {kPoint});
}

TEST(ReferenceOps, EveryOperationPassesItsChecks) {
  std::set<std::string> operations;
  double worst_value = 0.0;
  double worst_gradient = 0.0;
  double worst_chain_rule = 0.0;
  for (const CheckResult& result : check_all_ops(20240607)) {
    std::printf("%-80s value %.1e gradient %.1e chain rule %.1e differences %.1e\n", result.name.c_str(),
                result.value_error, result.gradient_error, result.chain_rule_error, result.difference_error);
    EXPECT_TRUE(result.passed) << result.name << ": " << result.detail;
    EXPECT_FALSE(!(result.gradient_error <= result.limit))
        << result.name << " reached " << result.gradient_error;
    EXPECT_FALSE(!(result.value_error <= result.limit)) << result.name << " reached " << result.value_error;
    EXPECT_FALSE(!(result.chain_rule_error <= kChainRuleLimit))
        << result.name << " reached " << result.chain_rule_error;
    EXPECT_GT(result.steps, 0U) << result.name;
    worst_value = std::max(worst_value, result.value_error);
    worst_gradient = std::max(worst_gradient, result.gradient_error);
    worst_chain_rule = std::max(worst_chain_rule, result.chain_rule_error);
    operations.insert(result.name.substr(0, result.name.find(' ')));
  }
  std::printf("worst: value %.1e gradient %.1e chain rule %.1e\n", worst_value, worst_gradient,
              worst_chain_rule);
  EXPECT_GT(worst_gradient, 0.0) << "doubles round";
  for (const char* name : {"add",
                           "sub",
                           "mul",
                           "scale",
                           "exp",
                           "log",
                           "tanh",
                           "scale_rows",
                           "slice_columns",
                           "mixture_of_experts",
                           "load_balancing_loss",
                           "minimum",
                           "maximum",
                           "clip",
                           "silu",
                           "gelu_tanh",
                           "gelu",
                           "log_sigmoid",
                           "sigmoid",
                           "softplus",
                           "causal_convolution",
                           "l2_norm",
                           "gated_delta_rule",
                           "gather_columns",
                           "matmul",
                           "linear",
                           "sum",
                           "row_sum",
                           "gather_rows",
                           "pick",
                           "concat_rows",
                           "rms_norm",
                           "rope",
                           "causal_attention",
                           "logsumexp",
                           "log_softmax",
                           "token_log_probabilities",
                           "offset",
                           "log1mexp",
                           "scatter_rows",
                           "entropy",
                           "kl_divergence",
                           "log_mixture",
                           "sft",
                           "distill",
                           "dpo",
                           "simpo",
                           "orpo",
                           "kto",
                           "grpo",
                           "ppo",
                           "reward",
                           "infonce"}) {
    EXPECT_TRUE(operations.contains(name)) << "no check of " << name;
  }
}

TEST(Checker, PassesTheRightChainRule) {
  const CheckResult result = check_spoilt(right_chain_rule);
  EXPECT_TRUE(result.passed) << result.detail;
  EXPECT_LE(result.difference_error, 1e-12);
}

TEST(Checker, CatchesAWrongGradient) {
  const CheckResult result =
      check_spoilt([](const Matrix& dy) { return Matrix(3.0 * kPoint.cwiseProduct(dy)); });
  EXPECT_FALSE(result.passed);
  EXPECT_GT(result.difference_error, 0.1);
}

TEST(Checker, CatchesAMissingTermOfOneMillionth) {
  const CheckResult result =
      check_spoilt([](const Matrix& dy) { return Matrix((1 - 1e-6) * right_chain_rule(dy)); });
  EXPECT_FALSE(result.passed);
  EXPECT_GT(result.difference_error, 1e-7);
  EXPECT_LE(result.difference_error, 1.01e-6);
}

TEST(Checker, CatchesAGradientThatIsNaNInOneEntry) {
  for (Index entry = 0; entry < kPoint.size(); ++entry) {
    const CheckResult result = check_spoilt([entry](const Matrix& dy) {
      Matrix dx = right_chain_rule(dy);
      dx(0, entry) *= kNaN;
      return dx;
    });
    EXPECT_FALSE(result.passed) << "entry " << entry;
    EXPECT_TRUE(std::isnan(result.difference_error)) << "entry " << entry;
    EXPECT_NE(result.detail.find("the gradient is wrong"), std::string::npos) << result.detail;
  }
}

TEST(Checker, CatchesAGradientOfAnotherShape) {
  const auto f = [](Tape&, const std::vector<Var>& x) {
    return Tape::record({x[0]}, x[0].value(), [x](const Var&) { x[0].gradient() = Matrix::Zero(1, 2); });
  };
  const CheckResult result = check_gradient("another shape", f, {kPoint});
  EXPECT_FALSE(result.passed);
  EXPECT_NE(result.detail.find("another shape"), std::string::npos) << result.detail;
}

TEST(Checker, CatchesAGradientWithoutACotangent) {
  // Too small for the gradient's own gate.
  const CheckResult result =
      check_spoilt([](const Matrix& dy) { return Matrix(right_chain_rule(dy).array() + 1e-14); });
  EXPECT_FALSE(result.passed);
  EXPECT_LE(result.difference_error, kDifferenceLimit);
  EXPECT_NE(result.detail.find("cotangent of zeros"), std::string::npos) << result.detail;
}

TEST(Checker, CatchesAGradientThatIsWrongByAConstant) {
  // A softmax whose chain rule leaves out the projection: invisible to a cotangent of ones.
  const auto f = [](Tape&, const std::vector<Var>& x) {
    const Matrix p = softmax(x[0].value().row(0).transpose()).transpose();
    return Tape::record({x[0]}, p, [x, p](const Var& y) { x[0].gradient() += p.cwiseProduct(y.gradient()); });
  };
  EXPECT_FALSE(check_gradient("softmax", f, {kPoint}).passed);
}

TEST(Checker, CatchesALostNaN) {
  const auto f = [](Tape&, const std::vector<Var>& x) {
    Matrix value = x[0].value().unaryExpr([](double t) { return std::isnan(t) ? 0.0 : t; });
    return Tape::record({x[0]}, value, [x](const Var& y) { x[0].gradient() += y.gradient(); });
  };
  const CheckResult result = check_gradient("lost", f, {kPoint});
  EXPECT_FALSE(result.passed);
  EXPECT_NE(result.detail.find("NaN"), std::string::npos) << result.detail;
}

TEST(Checker, CatchesARepetitionThatDiffers) {
  int calls = 0;
  const auto f = [&calls](Tape&, const std::vector<Var>& x) { return scale(x[0], 1.0 + 1e-15 * ++calls); };
  const CheckResult result = check_gradient("drifting", f, {kPoint});
  EXPECT_FALSE(result.passed);
  EXPECT_NE(result.detail.find("repetition"), std::string::npos) << result.detail;
}

TEST(Checker, CatchesAWrongValueAndOneThatIsNaN) {
  const auto f = [](Tape&, const std::vector<Var>& x) { return scale(x[0], 2.0); };
  CheckOptions options;
  options.expected = [](const std::vector<Matrix>& x) { return Matrix((2.0 + 1e-12) * x[0]); };
  EXPECT_FALSE(check_gradient("wrong", f, {kPoint}, options).passed);
  options.expected = [](const std::vector<Matrix>& x) { return Matrix(2.0 * x[0].transpose()); };
  EXPECT_FALSE(check_gradient("another shape", f, {kPoint}, options).passed);
  const auto not_a_number = [](Tape&, const std::vector<Var>& x) { return scale(x[0], kNaN); };
  EXPECT_FALSE(check_gradient("NaN", not_a_number, {kPoint}).passed);
}

TEST(Checker, CatchesWrongInputsThatAreAccepted) {
  const auto f = [](Tape&, const std::vector<Var>& x) { return sum(x[0]); };
  CheckOptions options;
  options.refused = {{Matrix::Zero(2, 2)}};
  const CheckResult result = check_gradient("accepting", f, {kPoint}, options);
  EXPECT_FALSE(result.passed);
  EXPECT_NE(result.detail.find("not refused"), std::string::npos) << result.detail;
}

TEST(TapeTest, ASecondBackwardStartsFromZero) {
  Tape tape;
  const Var x = tape.leaf(row({2.0, 3.0}));
  const Var unused = tape.leaf(row({1.0}));
  const Var y = mul(x, x);
  const Var later = scale(y, 5.0);
  for (int repeat = 0; repeat < 2; ++repeat) {
    tape.backward(y, row({1.0, -1.0}));
    EXPECT_EQ(x.gradient(), row({4.0, -6.0}));
    EXPECT_EQ(unused.gradient(), row({0.0}));
    EXPECT_EQ(later.gradient(), row({0.0, 0.0}));
  }
}

TEST(TapeTest, RefusesWhatDoesNotBelongTogether) {
  Tape tape;
  Tape other;
  const Var x = tape.leaf(row({1.0, 2.0}));
  const Var foreign = other.leaf(row({1.0, 2.0}));
  EXPECT_THROW(add(x, foreign), std::invalid_argument);
  EXPECT_THROW(tape.backward(foreign, row({1.0, 1.0})), std::invalid_argument);
  EXPECT_THROW(tape.backward(x, row({1.0})), std::invalid_argument);
  EXPECT_THROW(Tape::record({}, row({1.0}), nullptr), std::invalid_argument);
  EXPECT_THROW(Tape::record({Var()}, row({1.0}), nullptr), std::invalid_argument);
}

TEST(ReferenceOps, RefuseWrongSettings) {
  Tape tape;
  const Var x = tape.leaf(Matrix::Ones(3, 6));
  EXPECT_THROW(clip(x, 1.0, -1.0), std::invalid_argument);
  EXPECT_THROW(clip(x, kNaN, 1.0), std::invalid_argument);
  EXPECT_THROW(gather_rows(x, {0, -1}), std::invalid_argument);
  EXPECT_THROW(gather_rows(x, {3}), std::invalid_argument);
  EXPECT_THROW(scatter_rows(x, {0, 1, 2}, 2), std::invalid_argument);
  EXPECT_THROW(scatter_rows(x, {0, 1, -1}, 3), std::invalid_argument);
  EXPECT_THROW(scatter_rows(x, {0, 1}, 3), std::invalid_argument);
  EXPECT_THROW(pick(x, {0, 1, 6}), std::invalid_argument);
  EXPECT_THROW(pick(x, {0, 1, -100}), std::invalid_argument);
  EXPECT_THROW(concat_rows({}), std::invalid_argument);
  EXPECT_THROW(rope(x, {0, 1, 2}, {}), std::invalid_argument);
  for (const auto& [heads, key_value_heads, window] :
       {std::tuple{3, 2, 0}, {0, 1, 0}, {2, 0, 0}, {1, 1, -1}}) {
    AttentionOptions options;
    options.query_heads = heads;
    options.key_value_heads = key_value_heads;
    options.window = window;
    EXPECT_THROW(causal_attention(x, x, x, options), std::invalid_argument);
  }
}

TEST(ReferenceOps, MinimumAndMaximumShareTies) {
  Tape tape;
  const Var a = tape.leaf(row({1.0, 2.0, 5.0, kNaN, 1.0}));
  const Var b = tape.leaf(row({1.0, 3.0, 4.0, 1.0, kNaN}));
  const Var low = minimum(a, b);
  const Var high = maximum(a, b);
  EXPECT_EQ(low.value().leftCols(3), row({1.0, 2.0, 4.0}));
  EXPECT_EQ(high.value().leftCols(3), row({1.0, 3.0, 5.0}));
  for (Index j : {3, 4}) {
    EXPECT_TRUE(std::isnan(low.value()(0, j)));
    EXPECT_TRUE(std::isnan(high.value()(0, j)));
  }
  const Matrix seed = row({3.0, 7.0, 11.0, 0.0, 0.0});
  tape.backward(low, seed);
  EXPECT_EQ(a.gradient().leftCols(3), row({1.5, 7.0, 0.0}));
  EXPECT_EQ(b.gradient().leftCols(3), row({1.5, 0.0, 11.0}));
  tape.backward(high, seed);
  EXPECT_EQ(a.gradient().leftCols(3), row({1.5, 0.0, 11.0}));
  EXPECT_EQ(b.gradient().leftCols(3), row({1.5, 7.0, 0.0}));
}

TEST(ReferenceOps, ClipLetsTheGradientPassAtItsLimits) {
  Tape tape;
  const Var x = tape.leaf(row({-2.0, -1.0, 0.0, 3.0, 3.5}));
  tape.backward(clip(x, -1.0, 3.0), row({1.0, 2.0, 3.0, 4.0, 5.0}));
  EXPECT_EQ(x.gradient(), row({0.0, 2.0, 3.0, 4.0, 0.0}));
}

TEST(ReferenceOps, LogarithmsKeepTheirDigitsAtExtremes) {
  Tape tape;
  // ln sigma(50) = -e^-50 to a relative error of e^-50, and ln sigma(-1000) = -1000.
  const Var y = log_sigmoid(tape.leaf(row({50.0, -1000.0, 1000.0})));
  EXPECT_NEAR(y.value()(0, 0) / -std::exp(-50.0), 1.0, 1e-15);
  EXPECT_EQ(y.value()(0, 1), -1000.0);
  EXPECT_EQ(y.value()(0, 2), 0.0);
  // ln(1 - e^-1e-20) = ln(1e-20) to a relative error of 1e-20, and ln(1 - e^-50) = -e^-50.
  const Var z = log1mexp(tape.leaf(row({-1e-20, -50.0, -1e4, 0.0})));
  EXPECT_NEAR(z.value()(0, 0) / std::log(1e-20), 1.0, 1e-15);
  EXPECT_NEAR(z.value()(0, 1) / -std::exp(-50.0), 1.0, 1e-15);
  EXPECT_EQ(z.value()(0, 2), 0.0);
  EXPECT_EQ(z.value()(0, 3), -std::numeric_limits<double>::infinity());
  // A token that is all but certain: ln p = -ln(1 + e^-40).
  const Var p = token_log_probabilities(tape.leaf(row({960.0, 1000.0})), {1});
  EXPECT_NEAR(p.value()(0, 0) / -std::exp(-40.0), 1.0, 1e-15);
}

TEST(ReferenceOps, WhatHasNoProbabilityCountsForNothing) {
  const double never = -std::numeric_limits<double>::infinity();
  Tape tape;
  const Var p = tape.leaf(row({std::log(0.5), std::log(0.5), never}));
  const Var q = tape.leaf(row({std::log(0.25), std::log(0.75), never}));
  EXPECT_NEAR(entropy(p).value()(0, 0), std::log(2.0), 1e-15);
  const Var y = kl_divergence(p, q);
  EXPECT_NEAR(y.value()(0, 0), 0.5 * std::log(2.0) + 0.5 * std::log(2.0 / 3.0), 1e-15);
  tape.backward(y, row({1.0}));
  EXPECT_EQ(p.gradient()(0, 2), 0.0);
  EXPECT_EQ(q.gradient()(0, 2), 0.0);
  const Var sure = tape.leaf(row({0.0, never, never}));
  EXPECT_EQ(entropy(sure).value()(0, 0), 0.0);
  EXPECT_EQ(kl_divergence(p, sure).value()(0, 0), std::numeric_limits<double>::infinity());
}

TEST(ReferenceOps, AttentionDoesNotSeeTheFuture) {
  AttentionOptions options;
  options.query_heads = 2;
  options.window = 3;
  const Matrix q = random_matrix(7, 6, 1);
  Matrix k = random_matrix(7, 3, 2);
  Matrix v = random_matrix(7, 3, 3);
  Tape tape;
  const Matrix clean = causal_attention(tape.leaf(q), tape.leaf(k), tape.leaf(v), options).value();
  // Token 3 is seen by tokens 3, 4 and 5: not by earlier ones, nor by token 6, out of whose window it is.
  k.row(3).setConstant(kNaN);
  v.row(3).setConstant(kNaN);
  const Matrix poisoned = causal_attention(tape.leaf(q), tape.leaf(k), tape.leaf(v), options).value();
  for (Index i : {0, 1, 2, 6}) EXPECT_EQ(poisoned.row(i), clean.row(i)) << "query " << i;
  for (Index i : {3, 4, 5}) EXPECT_TRUE(poisoned.row(i).array().isNaN().all()) << "query " << i;
}

}  // namespace
}  // namespace streambp::reference
