// The reference's objectives at extremes, with what is not a number, and with what they have to refuse.
#include <cmath>
#include <gtest/gtest.h>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "verify/tests/reference/objective_testing.h"

namespace streambp::reference {
namespace {

/// Every objective on four sequences of one token; `other` takes the part of whatever else there is to
/// compare with.
std::vector<TokenObjective> objectives_of_four(const Numbers& other) {
  const TokenLayout layout = {4, {0, 1, 2, 3}};
  const Numbers signs = {1, -1, 1, -1};
  std::vector<TokenObjective> all = {simpo({}, layout), orpo(0.1, layout)};
  for (DpoLoss loss : {DpoLoss::kSigmoid, DpoLoss::kHinge, DpoLoss::kIpo, DpoLoss::kRobust}) {
    DpoOptions options;
    options.loss_type = loss;
    all.push_back(dpo(options, layout, other));
  }
  const KtoRole roles[] = {KtoRole::kDesirable, KtoRole::kUndesirable, KtoRole::kUnrelated,
                           KtoRole::kDesirable};
  all.push_back(kto({}, layout, {roles[0], roles[1], roles[2], roles[3]}, other));
  all.push_back(kto({}, layout, {roles[2], roles[3], roles[0], roles[1]}, other));
  for (bool sequence_level : {false, true}) {
    GrpoOptions options;
    options.sequence_level = sequence_level;
    options.beta = 0.1;
    all.push_back(grpo(options, {layout, signs, other, other}));
    all.push_back(grpo(options, {layout, {-1, 1, -1, 1}, other, other}));
  }
  PpoOptions options;
  options.kl_coef = 0.1;
  all.push_back(ppo(options, {{1, 1, 1, 1}, other, signs, other, {1, 1, 1, 1}, other, signs}));
  return all;
}

TEST(Objectives, StayFiniteAtExtremeLogRatios) {
  const double limit = std::exp(80.0);
  for (const Numbers& lp : {Numbers{-1e4, -1, -1, -1e4}, {-1, -1e4, -1e4, -1}, {-1, -1, -1, -1}}) {
    for (double far : {-2e4, -1.0, 0.0}) {
      for (const TokenObjective& objective : objectives_of_four({far, far, far, far})) {
        const Outcome result = outcome(objective, lp, {0, 0, 0, 0}, lp);
        EXPECT_FALSE(!(std::abs(result.loss) <= limit)) << result.loss << " from " << lp[0] << ", " << far;
        for (double d : result.d_lp)
          EXPECT_FALSE(!(std::abs(d) <= limit)) << d << " from " << lp[0] << ", " << far;
      }
    }
  }
}

TEST(Objectives, HoldTheRatioBeyondTheCap) {
  GrpoInputs inputs;
  inputs.layout = {1, {0}};
  inputs.advantages = {-1};
  for (const auto& [log_ratio, ratio, slope] : {std::tuple{79.0, std::exp(79.0), std::exp(79.0)},
                                                {81.0, std::exp(80.0), 0.0},
                                                {1e4, std::exp(80.0), 0.0}}) {
    inputs.old_log_probabilities = {-1 - log_ratio};
    const Outcome result = outcome(grpo({}, inputs), {-1});
    EXPECT_NEAR(result.loss / ratio, 1.0, 1e-13);
    EXPECT_NEAR(result.d_lp[0] / ratio, slope / ratio, 1e-13);
  }
  GrpoOptions options;
  options.beta = 1.0;
  inputs.advantages = {0};
  inputs.old_log_probabilities = {-200};
  inputs.reference_log_probabilities = {-100};
  const Outcome far = outcome(grpo(options, inputs), {-200});
  EXPECT_NEAR(far.loss / std::exp(80.0), 1.0, 1e-13);
  EXPECT_EQ(far.d_lp[0], 0.0);
  inputs.reference_log_probabilities = {-300};
  const Outcome near = outcome(grpo(options, inputs), {-200});
  expect_near(near.loss, 99.0);
  expect_near(near.d_lp[0], 1.0);
}

TEST(Objectives, ShowWhatIsNotANumber) {
  for (std::size_t t = 0; t < 4; ++t) {
    Numbers lp = {-1, -2, -3, -4};
    lp[t] = kNaN;
    for (const TokenObjective& objective : objectives_of_four({-2, -2, -2, -2})) {
      EXPECT_TRUE(std::isnan(outcome(objective, lp, {0, 0, 0, 0}, lp).loss)) << "token " << t;
    }
  }
}

TEST(Objectives, RefuseAnotherNumberOfTokens) {
  for (const TokenObjective& objective : objectives_of_four({-2, -2, -2, -2})) {
    EXPECT_THROW(outcome(objective, {-1, -2, -3}, {0, 0, 0}, {0, 0, 0}), std::invalid_argument);
    EXPECT_THROW(outcome(objective, {-1, -2, -3, -4, -5}, {}, {1, 2, 3, 4, 5}), std::invalid_argument);
  }
}

template <typename Make>
void expect_refused(Make make, const std::string& expected_message) {
  try {
    make();
    ADD_FAILURE() << "accepted; expected a refusal that mentions " << expected_message;
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find(expected_message), std::string::npos) << error.what();
  }
}

TEST(Objectives, RefusePairsThatAreNone) {
  const TokenLayout odd = {3, {0, 1, 2}};
  const TokenLayout outside = {2, {0, 2}};
  for (const TokenLayout& layout : {odd, outside, TokenLayout{}}) {
    const std::string message =
        layout.tokens() == 2 ? "sequences from 0 to 1, got 2" : "even number of sequences";
    expect_refused([&] { dpo({}, layout, {}); }, message);
    expect_refused([&] { simpo({}, layout); }, message);
    expect_refused([&] { orpo(0.1, layout); }, message);
  }
  expect_refused([] { dpo({}, kPair, {1, 2, 3}); }, "2 reference sums, got 3");
  expect_refused([] { orpo(0.1, {4, {0, 1, 2}}); }, "scored tokens in every sequence");
}

TEST(Objectives, RefuseHyperparametersOutOfRange) {
  for (double beta : {-0.1, kNaN, std::numeric_limits<double>::infinity()}) {
    expect_refused([&] { dpo({DpoLoss::kSigmoid, beta, 0.0}, kPair, {}); }, "beta");
    expect_refused([&] { simpo({beta, 0.0, 0.0}, kPair); }, "beta");
    expect_refused([&] { orpo(beta, kPair); }, "beta");
    expect_refused([&] { kto({beta, 1.0, 1.0}, {1, {0}}, {KtoRole::kDesirable}, {0}); }, "beta");
    GrpoOptions options;
    options.beta = beta;
    GrpoInputs inputs = small_group();
    inputs.reference_log_probabilities = {-1, -1, -1};
    expect_refused([&] { grpo(options, inputs); }, "beta");
    expect_refused([&] { sft(beta == beta && beta > 0 ? 0.0 : beta, 0.1); }, "divisor");
  }
  expect_refused([] { dpo({DpoLoss::kIpo, 0.0, 0.0}, kPair, {}); }, "positive beta");
  expect_refused([] { dpo({DpoLoss::kSigmoid, 0.1, 1.5}, kPair, {}); }, "label_smoothing");
  expect_refused([] { dpo({DpoLoss::kRobust, 0.1, 0.5}, kPair, {}); }, "label_smoothing");
  expect_refused([] { dpo({DpoLoss::kHinge, 0.1, 0.1}, kPair, {}); }, "label_smoothing");
  expect_refused([] { simpo({1.0, kNaN, 0.0}, kPair); }, "gamma");
  expect_refused([] { simpo({1.0, 0.0, -0.1}, kPair); }, "label_smoothing");
  expect_refused([] { sft(1.0, -0.1); }, "label_smoothing");
  expect_refused([] { distill({0.0, 0.0, 1.0, 1.0}, Matrix()); }, "temperature");
  expect_refused([] { distill({0.0, 1.0, 1.1, 1.0}, Matrix()); }, "alpha");
  expect_refused([] { distill({0.0, 1.0, 1.0, 0.0}, Matrix()); }, "divisor");
}

TEST(Objectives, RefuseInputsThatDoNotFit) {
  const std::vector<KtoRole> roles = {KtoRole::kDesirable, KtoRole::kUnrelated};
  expect_refused([&] { kto({}, {3, {0, 1, 2}}, roles, {0, 0, 0}); }, "3 roles, got 2");
  expect_refused([&] { kto({}, {2, {0, 1}}, roles, {0}); }, "2 reference sums, got 1");
  expect_refused([&] { kto({0.1, -1.0, 1.0}, {2, {0, 1}}, roles, {0, 0}); }, "desirable_weight");
  expect_refused([] { kto({}, {1, {0}}, {KtoRole::kUnrelated}, {0}); }, "desirable or undesirable");

  const auto refuse_grpo = [](const auto& spoil, const std::string& message) {
    GrpoOptions options;
    GrpoInputs inputs = small_group();
    spoil(options, inputs);
    expect_refused([&] { grpo(options, inputs); }, message);
  };
  refuse_grpo([](GrpoOptions&, GrpoInputs& inputs) { inputs.advantages.pop_back(); }, "3 advantages, got 2");
  refuse_grpo([](GrpoOptions&, GrpoInputs& inputs) { inputs.old_log_probabilities = {1}; }, "3 old log-prob");
  refuse_grpo([](GrpoOptions& options, GrpoInputs&) { options.beta = 0.1; }, "3 reference log-prob");
  refuse_grpo([](GrpoOptions& options, GrpoInputs&) { options.epsilon_low = -0.1; }, "epsilon_low");
  refuse_grpo([](GrpoOptions& options, GrpoInputs&) { options.epsilon_high = kNaN; }, "epsilon_high");
  refuse_grpo([](GrpoOptions& options, GrpoInputs&) { options.delta = -1.0; }, "delta");
  refuse_grpo([](GrpoOptions& options, GrpoInputs&) { options.loss_type = GrpoLoss::kDapo; }, "num_items");
  refuse_grpo([](GrpoOptions& options, GrpoInputs&) { options.loss_type = GrpoLoss::kDrGrpo; }, "max_compl");
  refuse_grpo([](GrpoOptions&, GrpoInputs& inputs) { inputs.layout.sequences = 1; }, "got 1");

  const auto refuse_ppo = [](const auto& spoil, const std::string& message) {
    PpoOptions options;
    PpoInputs inputs = small_episode();
    spoil(options, inputs);
    expect_refused([&] { ppo(options, inputs); }, message);
  };
  refuse_ppo([](PpoOptions&, PpoInputs& inputs) { inputs.advantages.pop_back(); }, "3 advantages, got 2");
  refuse_ppo([](PpoOptions&, PpoInputs& inputs) { inputs.old_log_probabilities = {}; }, "3 old log-prob");
  refuse_ppo([](PpoOptions&, PpoInputs& inputs) { inputs.value_mask.pop_back(); },
             "3 entries of the value mask");
  refuse_ppo([](PpoOptions&, PpoInputs& inputs) { inputs.old_values = {1}; }, "3 old values, got 1");
  refuse_ppo([](PpoOptions&, PpoInputs& inputs) { inputs.returns.push_back(1); }, "3 returns, got 4");
  refuse_ppo([](PpoOptions&, PpoInputs& inputs) { inputs.policy_mask[0] = 0.5; }, "policy mask of 0 and 1");
  refuse_ppo([](PpoOptions&, PpoInputs& inputs) { inputs.value_mask[1] = kNaN; }, "value mask of 0 and 1");
  refuse_ppo([](PpoOptions& options, PpoInputs&) { options.cliprange = -0.1; }, "cliprange");
  refuse_ppo([](PpoOptions& options, PpoInputs&) { options.cliprange_value = -0.1; }, "cliprange_value");
  refuse_ppo(
      [](PpoOptions& options, PpoInputs& inputs) {
        options.kl_coef = 0.1;
        inputs.reference_log_probabilities = {};
      },
      "3 reference log-prob");
}

}  // namespace
}  // namespace streambp::reference
