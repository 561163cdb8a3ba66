// The reference's objectives on batches small enough for pen and paper. That every formula is the published
// one is what the golden cases show, and check_all_ops that its gradient is.
#include <cmath>
#include <gtest/gtest.h>

#include "verify/tests/reference/objective_testing.h"

namespace streambp::reference {
namespace {

TEST(DftObjective, WeighsTokensByTheirHeldProbability) {
  const Outcome result = outcome(dft(2.0), {std::log(0.5), std::log(0.25)});
  expect_near(result.loss, (0.5 * std::log(2.0) + 0.25 * std::log(4.0)) / 2);
  expect_near(result.d_lp, {-0.5 / 2, -0.25 / 2});
}

TEST(TokenLayout, SumsAndSpreads) {
  const TokenLayout layout = {4, {0, 2, 2}};
  EXPECT_EQ(token_counts(layout), (Numbers{1, 0, 2, 0}));
  EXPECT_EQ(sum_by_sequence(layout, {5, 6, 7}), (Numbers{5, 0, 13, 0}));
  EXPECT_EQ(spread(layout, {1, 2, 3, 4}), (Numbers{1, 3, 3}));
  EXPECT_THROW(sum_by_sequence(layout, {5, 6}), std::invalid_argument);
  EXPECT_THROW(spread(layout, {1, 2, 3}), std::invalid_argument);
  EXPECT_THROW(token_counts({2, {0, 2}}), std::invalid_argument);
  EXPECT_THROW(token_counts({2, {-1}}), std::invalid_argument);
}

TEST(SftObjective, SmoothsLabels) {
  const Outcome result = outcome(sft(2.0, 0.25), {-1, -2}, {-3, -4});
  expect_near(result.loss, 0.75 * 1.5 + 0.25 * 3.5);
  expect_near(result.d_lp, {-0.375, -0.375});
  expect_near(result.d_entropies, {-0.125, -0.125});
}

TEST(DistillObjective, MixesTeacherAndText) {
  DistillOptions options;
  options.temperature = 2.0;
  options.alpha = 0.25;
  options.divisor = 2.0;
  const Outcome result = outcome(distill(options, Matrix::Zero(2, 5)), {-1, -2}, {0.5, 0.1});
  expect_near(result.loss, 0.25 * 4.0 * 0.3 + 0.75 * 1.5);
  expect_near(result.d_lp, {-0.375, -0.375});
  expect_near(result.d_entropies, {0.5, 0.5});  // alpha tau^2 / divisor
}

TEST(DpoObjective, AtTheReferenceEveryAnswerIsEquallyGood) {
  DpoOptions options;
  options.beta = 0.4;
  const Outcome result = outcome(dpo(options, kPair, {-3, -0.5}), {-1, -2, -0.5});
  expect_near(result.loss, std::log(2.0));
  expect_near(result.d_lp, {-0.2, -0.2, 0.2});
  options.cdpo_label_smoothing = 0.25;
  expect_near(outcome(dpo(options, kPair, {-3, -0.5}), {-1, -2, -0.5}).d_lp, {-0.1, -0.1, 0.1});
  options.cdpo_label_smoothing = 0.5;
  expect_near(outcome(dpo(options, kPair, {-3, -0.5}), {-1, -2, -0.5}).d_lp, {0.0, 0.0, 0.0});
}

TEST(DpoObjective, WithoutReferenceItCountsAsZero) {
  for (DpoLoss loss : {DpoLoss::kSigmoid, DpoLoss::kHinge, DpoLoss::kIpo, DpoLoss::kRobust}) {
    DpoOptions options;
    options.loss_type = loss;
    const Numbers lp = {-1, -2, -0.7};
    const Outcome result = outcome(dpo(options, kPair, {}), lp);
    const Outcome zero = outcome(dpo(options, kPair, {0, 0}), lp);
    EXPECT_EQ(result.loss, zero.loss);
    EXPECT_EQ(result.d_lp, zero.d_lp);
    EXPECT_NE(result.loss, outcome(dpo(options, kPair, {-2, -3}), lp).loss);
  }
}

TEST(DpoObjective, Hinge) {
  DpoOptions options;
  options.loss_type = DpoLoss::kHinge;
  options.beta = 0.5;
  Outcome result = outcome(dpo(options, kPair, {-4, -0.5}), {-1, -2, -0.5});  // z = 0.5
  expect_near(result.loss, 0.5);
  expect_near(result.d_lp, {-0.5, -0.5, 0.5});
  result = outcome(dpo(options, kPair, {-6, -0.5}), {-1, -2, -0.5});  // z = 1.5
  expect_near(result.loss, 0.0);
  expect_near(result.d_lp, {0, 0, 0});
}

TEST(DpoObjective, IpoAveragesOverTokens) {
  DpoOptions options;
  options.loss_type = DpoLoss::kIpo;
  options.beta = 0.25;  // a margin of 2
  const Outcome result = outcome(dpo(options, kPair, {-6, -1}), {-1, -2, -2});
  expect_near(result.loss, std::pow(3.0 / 2.0 + 1.0 - 2.0, 2.0));
  expect_near(result.d_lp, {0.5, 0.5, -1.0});
}

TEST(DpoObjective, RobustUndoesFlippedLabels) {
  DpoOptions options;
  options.beta = 0.4;
  const Numbers lp = {-1, -2, -2.5};
  const Numbers reference = {-3.2, -1};
  const Outcome likes = outcome(dpo(options, kPair, reference), lp);
  options.loss_type = DpoLoss::kRobust;
  expect_near(outcome(dpo(options, kPair, reference), lp).loss, likes.loss);
  // Where a share e of the labels is flipped, the expectation of the robust loss is the loss of the true
  // labels: that of a pair and its mirror image, with the weights of what is seen.
  options.label_smoothing = 0.2;
  const TokenLayout mirrored = {2, {0, 1, 1}};
  const double seen = outcome(dpo(options, kPair, reference), lp).loss;
  const double flipped = outcome(dpo(options, mirrored, {-1, -3.2}), {-2.5, -1, -2}).loss;
  expect_near(0.8 * seen + 0.2 * flipped, likes.loss);
}

TEST(DpoObjective, MeansAreOverPairsAndEmptySequencesCount) {
  DpoOptions options;
  options.beta = 0.4;
  const TokenLayout two_pairs = {4, {0, 0, 2}};  // the second pair has no tokens: z = 0
  const double one = outcome(dpo(options, kPair, {-2, -1}), {-1, -2, -3}).loss;
  const double both = outcome(dpo(options, two_pairs, {-2, 0, -1, 0}), {-1, -2, -3}).loss;
  expect_near(both, (one + std::log(2.0)) / 2.0);
}

TEST(SimpoObjective, WantsAMargin) {
  const Outcome result = outcome(simpo({2.0, 1.0, 0.0}, kPair), {-0.5, -1.5, -2});
  expect_near(result.loss, std::log1p(std::exp(-1.0)));
  const double slope = -2.0 / (1.0 + std::exp(1.0));
  expect_near(result.d_lp, {slope / 2, slope / 2, -slope});
}

TEST(OrpoObjective, ComparesOdds) {
  const double chosen = std::log(0.8);
  const Outcome result = outcome(orpo(0.5, {2, {0, 1}}), {chosen, std::log(0.5)});  // odds 4 and 1
  expect_near(result.loss, -chosen - 0.5 * std::log(4.0 / 5.0));
  // d ln odds / d ln p = 1 / (1 - p)
  expect_near(result.d_lp, {-1.0 - 0.5 * 0.2 / 0.2, 0.5 * 0.2 / 0.5});
}

TEST(OrpoObjective, KeepsFiniteWhereAnAnswerIsCertain) {
  const TokenLayout layout = {2, {0, 1}};
  for (const Numbers& lp :
       {Numbers{0, -1}, {-1, 0}, {0, 0}, {-1e-300, -1}, {-1, -1e-300}, {0, -1e4}, {-1e4, 0}}) {
    const Outcome result = outcome(orpo(0.5, layout), lp);
    EXPECT_TRUE(std::isfinite(result.loss)) << lp[0] << " and " << lp[1];
    for (double d : result.d_lp) EXPECT_TRUE(std::isfinite(d)) << lp[0] << " and " << lp[1];
  }
  // ln(1 / 2^-53) - ln odds(1/2) = 53 ln 2, and nothing is left to gain.
  const Outcome certain = outcome(orpo(1.0, layout), {0, -std::log(2.0)});
  expect_near(certain.loss, std::log1p(std::ldexp(1.0, -53)));
  EXPECT_EQ(certain.d_lp[0], -1.0);  // of the likelihood alone
}

TEST(KtoObjective, JudgesAgainstTheUnrelated) {
  const std::vector<KtoRole> roles = {KtoRole::kDesirable, KtoRole::kUndesirable, KtoRole::kUnrelated};
  const TokenLayout layout = {3, {0, 1, 2}};
  KtoOptions options;
  options.beta = 2.0;
  options.desirable_weight = 1.5;
  Outcome result = outcome(kto(options, layout, roles, {-2, -1, -1.5}), {-1.5, -0.5, -1});
  // All moved by 1/2: nothing speaks for or against the judged ones.
  expect_near(result.loss, (1.5 * 0.5 + 0.5) / 2);
  expect_near(result.d_lp, {-1.5 * 2.0 * 0.25 / 2, 2.0 * 0.25 / 2, 0.0});
  // An unrelated answer that became less likely counts as 0.
  result = outcome(kto(options, layout, roles, {-1.5, -0.5, -1.5}), {-1.5, -0.5, -7});
  expect_near(result.loss, (1.5 * 0.5 + 0.5) / 2);
  EXPECT_EQ(result.d_lp[2], 0.0);
  EXPECT_TRUE(std::isnan(outcome(kto(options, layout, roles, {-2, -1, -1.5}), {-1.5, -0.5, kNaN}).loss));
}

TEST(GrpoObjective, OnPolicyTheRatioIsOne) {
  const Numbers lp = {-1, -2, -3};
  const Outcome result = outcome(grpo({}, small_group()), lp);
  expect_near(result.loss, (-1.0 + 2.0 + 0.0) / 3);
  expect_near(result.d_lp, {-1.0 / 6, -1.0 / 6, 2.0 / 3});
  GrpoInputs same = small_group();
  same.old_log_probabilities = lp;
  EXPECT_EQ(outcome(grpo({}, same), lp).loss, result.loss);
  EXPECT_EQ(outcome(grpo({}, same), lp).d_lp, result.d_lp);
}

TEST(GrpoObjective, LossTypesDifferInTheirDivisors) {
  GrpoOptions options;
  options.max_completion_length = 5;
  options.num_items_in_batch = 8;
  const Numbers lp = {-1, -2, -3};
  options.loss_type = GrpoLoss::kBnpo;
  expect_near(outcome(grpo(options, small_group()), lp).loss, 0.0 / 3);
  expect_near(outcome(grpo(options, small_group()), lp).d_lp, {-1.0 / 3, -1.0 / 3, 2.0 / 3});
  options.loss_type = GrpoLoss::kDrGrpo;
  expect_near(outcome(grpo(options, small_group()), lp).d_lp, {-1.0 / 15, -1.0 / 15, 2.0 / 15});
  options.loss_type = GrpoLoss::kDapo;
  expect_near(outcome(grpo(options, small_group()), lp).d_lp, {-1.0 / 8, -1.0 / 8, 2.0 / 8});
}

TEST(GrpoObjective, ClipsWhatHasGoneFarEnough) {
  GrpoOptions options;
  options.loss_type = GrpoLoss::kBnpo;
  options.epsilon_low = 0.2;
  options.epsilon_high = 0.3;
  const double up = std::log(2.0);
  const double down = std::log(0.5);
  GrpoInputs inputs;
  inputs.layout = {1, {0, 0, 0, 0}};
  inputs.advantages = {1, -1, 1, -1};
  inputs.old_log_probabilities = {-1 - up, -1 - up, -1 - down, -1 - down};
  Outcome result = outcome(grpo(options, inputs), {-1, -1, -1, -1});
  expect_near(result.loss, (-1.3 + 2.0 - 0.5 + 0.8) / 4);
  expect_near(result.d_lp, {0, 2.0 / 4, -0.5 / 4, 0});
  options.delta = 1.5;  // the second token is stopped as well
  result = outcome(grpo(options, inputs), {-1, -1, -1, -1});
  expect_near(result.loss, (-1.3 + 1.5 - 0.5 + 0.8) / 4);
  expect_near(result.d_lp, {0, 0, -0.5 / 4, 0});
}

TEST(GrpoObjective, SequencesHaveOneRatio) {
  GrpoOptions options;
  options.loss_type = GrpoLoss::kDapo;
  options.num_items_in_batch = 1;
  options.sequence_level = true;
  options.epsilon_high = 10;
  GrpoInputs inputs = small_group();
  inputs.old_log_probabilities = {-1 - std::log(2.0), -2 - std::log(8.0), -3};
  const Outcome result = outcome(grpo(options, inputs), {-1, -2, -3});
  expect_near(result.loss, -2 * 4.0 + 2.0);     // (2 * 8)^(1/2) = 4, twice
  expect_near(result.d_lp, {-4.0, -4.0, 2.0});  // 2 tokens * 4 / 2 each
}

TEST(GrpoObjective, PaysForLeavingTheReference) {
  GrpoOptions options;
  options.loss_type = GrpoLoss::kBnpo;
  options.beta = 0.5;
  GrpoInputs inputs = small_group();
  inputs.advantages = {0, 0, 0};
  inputs.reference_log_probabilities = {-1, -2 + std::log(3.0), -3};
  const Outcome result = outcome(grpo(options, inputs), {-1, -2, -3});
  expect_near(result.loss, 0.5 * (3.0 - std::log(3.0) - 1.0) / 3);
  expect_near(result.d_lp, {0, 0.5 * (1.0 - 3.0) / 3, 0});
}

TEST(GrpoObjective, CispoAndVespoHoldTheirFactorsConstant) {
  GrpoOptions options;
  options.num_items_in_batch = 4;
  options.epsilon_high = 3.0;
  options.loss_type = GrpoLoss::kCispo;
  GrpoInputs inputs = small_group();
  inputs.old_log_probabilities = {-1 - std::log(2.0), -2 - std::log(4.0), -3 - std::log(0.5)};
  Outcome result = outcome(grpo(options, inputs), {-1, -2, -3});
  expect_near(result.loss, (2.0 * 1.0 + 3.0 * 2.0 - 0.5 * 2.0 * 3.0) / 4);
  expect_near(result.d_lp, {-2.0 / 4, -3.0 / 4, 1.0 / 4});
  options.loss_type = GrpoLoss::kVespo;
  options.vespo_k_pos = 0.5;
  options.vespo_lambda_pos = 0.25;
  options.vespo_k_neg = 2.0;
  options.vespo_lambda_neg = 1.0;
  // w is 2 * 4 = 8 in the first sequence and a half in the second.
  const double phi = std::exp(0.25 - 0.25 * 8) * std::sqrt(8.0);
  const double other = std::exp(1 - 0.5) * 0.25;
  result = outcome(grpo(options, inputs), {-1, -2, -3});
  expect_near(result.loss, (phi * 3.0 - other * 2.0 * 3.0) / 4);
  expect_near(result.d_lp, {-phi / 4, -phi / 4, other * 2.0 / 4});
}

TEST(RlooObjective, SequencesHaveOneRatioOfSums) {
  const TokenLayout layout = {3, {0, 0, 1}};
  const Outcome result =
      outcome(rloo({0.5, 10.0, 1.0}, layout, {1.0, -2.0, 5.0}, {-3 - std::log(4.0), -3 - std::log(2.0), 0}),
              {-1, -2, -3});
  expect_near(result.loss, (-4.0 + 4.0 - 5.0) / 3);  // without tokens the ratio is 1
  expect_near(result.d_lp, {-4.0 / 3, -4.0 / 3, 4.0 / 3});
  const Outcome on_policy = outcome(rloo({}, layout, {1.0, -2.0, 5.0}, {}), {-1, -2, -3});
  expect_near(on_policy.d_lp, {-1.0 / 3, -1.0 / 3, 2.0 / 3});
}

TEST(PpoObjective, SumsItsTermsOverWhatTheMasksKeep) {
  PpoOptions options;
  options.vf_coef = 0.5;
  options.entropy_coef = 0.01;
  options.kl_coef = 0.1;
  // Policy: ratios 2 (clipped, as A > 0) and 1. Values: 1.5 is 0.5 above its old value and clipped to 1.2,
  // which misses 3 by more; 2.1 is not clipped.
  const Outcome result = outcome(ppo(options, small_episode()), {-1, -2, -5}, {2, 3, kNaN}, {kNaN, 1.5, 2.1});
  const double policy = (-1.2 + 2.0) / 2 - 0.01 * 2.5 + 0.1 * (0.0 + (0.5 + std::log(2.0) - 1.0)) / 2;
  const double value = 0.5 / 2 * (1.8 * 1.8 + 0.1 * 0.1) / 2;
  expect_near(result.loss, policy + value);
  expect_near(result.d_lp, {0, 2.0 / 2 + 0.1 * (1.0 - 0.5) / 2, 0});
  expect_near(result.d_entropies, {-0.005, -0.005, 0});
  expect_near(result.d_values, {0, 0, 0.5 * -0.1 / 2});
}

TEST(PpoObjective, IsTheSumOfPolicyAndCritic) {
  PpoOptions options;
  options.entropy_coef = 0.01;
  const Numbers lp = {-1.3, -2.2, -5};
  const Numbers h = {2, 3, 0};
  const Numbers v = {0, 1.1, 2.5};
  const Outcome both = outcome(ppo(options, small_episode()), lp, h, v);
  const Outcome policy = outcome(ppo_policy(options, small_episode()), lp, h);
  const Outcome value = outcome(ppo_value(options, small_episode()), {}, {}, v);
  expect_near(both.loss, policy.loss + value.loss);
  EXPECT_EQ(both.d_lp, policy.d_lp);
  EXPECT_EQ(both.d_values, value.d_values);
  EXPECT_TRUE(ppo(options, small_episode()).values && ppo(options, small_episode()).entropies);
  EXPECT_FALSE(ppo_policy(options, small_episode()).values ||
               ppo_value(options, small_episode()).log_probabilities);
}

TEST(PpoObjective, EmptyMasksCostNothing) {
  PpoInputs inputs = small_episode();
  inputs.policy_mask = {0, 0, 0};
  inputs.value_mask = {0, 0, 0};
  const Outcome result = outcome(ppo({}, inputs), {-1, -2, -5}, {}, {1, 2, 3});
  EXPECT_EQ(result.loss, 0.0);
  EXPECT_EQ(result.d_lp, (Numbers{0, 0, 0}));
  EXPECT_EQ(result.d_values, (Numbers{0, 0, 0}));
}

}  // namespace
}  // namespace streambp::reference
