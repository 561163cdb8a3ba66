// Each objective's value against its formula written out by hand.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>

#include "streambp/model/scored.h"
#include "streambp/objective/terms.h"
#include "verify/tests/streambp/objective/objective_testing.h"

namespace streambp {
namespace {

const std::vector<double> kMeans{-2.2 / 3, -2.5 / 2, -5.6 / 4, -1.9 / 2};
const std::vector<size_t> kSequenceOf{0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3};

/// Values of the toy's 11 scored tokens on the whole stream, 0 at each sequence's last token.
at::Tensor on_stream(const std::vector<double>& scored) {
  const Batch batch = toy();
  at::Tensor all = at::zeros({batch.size()}, at::kDouble);
  return all.index_copy_(0, scored_indices(batch), doubles(scored));
}

double toy_loss(const Batch& batch, const std::string& name,
                const std::map<std::string, std::string>& options) {
  TokenValues values;
  values.log_probabilities = doubles(kLogP);
  values.mean_log_probabilities = doubles(kLogP) * 2.0 - 1.0;
  values.divergences = doubles(kLogP).square();
  return whole_loss(*make_objective(name, batch, options), values).item<double>();
}

TEST(ObjectiveValue, SftAndDistillation) {
  double sum = 0.0, mean = 0.0, divergence = 0.0;
  for (const double p : kLogP) {
    sum += p;
    mean += 2.0 * p - 1.0;
    divergence += p * p;
  }
  expect_near(toy_loss(toy(), "sft", {}), -sum / 11, "mean");
  expect_near(toy_loss(toy(), "sft", {{"reduction", "sum"}}), -sum, "sum");
  expect_near(toy_loss(toy(), "sft", {{"divisor", "4"}}), -sum / 4, "divisor");
  expect_near(toy_loss(toy(), "sft", {{"label_smoothing", "0.1"}}), -(0.9 * sum + 0.1 * mean) / 11,
              "smoothing");
  expect_near(toy_loss(toy(), "distill", {{"temperature", "3"}, {"alpha", "0.25"}}),
              (0.25 * 9 * divergence - 0.75 * sum) / 11, "distill");
}

TEST(ObjectiveValue, Pairs) {
  const double beta = 0.5, e = 0.1;
  const auto mean_of = [&](auto term) { return 0.5 * (term(size_t{0}) + term(size_t{1})); };
  const auto ratio = [&](size_t i) { return kSums[i] - kReference[i]; };
  const auto z = [&](size_t i) { return beta * (ratio(i) - ratio(i + 2)); };
  const auto dpo = [&](const std::string& type, const std::string& smoothing,
                       const std::string& free = "false") {
    return toy_loss(toy(), "dpo",
                    {{"beta", "0.5"},
                     {"loss_type", type},
                     {type == "sigmoid" ? "cdpo_label_smoothing" : "label_smoothing", smoothing},
                     {"reference_free", free}});
  };
  expect_near(dpo("sigmoid", "0"), mean_of([&](size_t i) { return softplus(-z(i)); }), "sigmoid");
  expect_near(dpo("sigmoid", "0.1"),
              mean_of([&](size_t i) { return (1 - e) * softplus(-z(i)) + e * softplus(z(i)); }),
              "conservative");
  expect_near(dpo("robust", "0.1"), mean_of([&](size_t i) {
                return ((1 - e) * softplus(-z(i)) - e * softplus(z(i))) / (1 - 2 * e);
              }),
              "robust");
  expect_near(dpo("hinge", "0"), mean_of([&](size_t i) { return std::max(0.0, 1 - z(i)); }), "hinge");
  expect_near(dpo("ipo", "0"), mean_of([&](size_t i) {
                return std::pow(ratio(i) / kLengths[i] - ratio(i + 2) / kLengths[i + 2] - 1 / (2 * beta), 2);
              }),
              "ipo");
  expect_near(dpo("sigmoid", "0", "true"),
              mean_of([&](size_t i) { return softplus(-beta * (kSums[i] - kSums[i + 2])); }),
              "reference-free");
  expect_near(toy_loss(toy(), "simpo", {{"beta", "0.5"}, {"simpo_gamma", "0.3"}}),
              mean_of([&](size_t i) { return softplus(-(beta * (kMeans[i] - kMeans[i + 2]) - 0.3)); }),
              "simpo");
  const auto odds = [&](size_t i) { return std::log(std::exp(kMeans[i]) / (1 - std::exp(kMeans[i]))); };
  expect_near(toy_loss(toy(), "orpo", {{"beta", "0.5"}, {"nll", "completion"}}),
              mean_of([&](size_t i) { return beta * softplus(-(odds(i) - odds(i + 2))); }) -
                  (kSums[0] + kSums[1]) / 5,
              "orpo");
}

TEST(ObjectiveValue, ReferenceIsSummedFromTokens) {
  Batch batch = toy();
  const double given = toy_loss(batch, "dpo", {});
  std::vector<double> tokens;
  for (size_t t = 0; t < kLogP.size(); ++t)
    tokens.push_back(kReference[kSequenceOf[t]] / kLengths[kSequenceOf[t]]);
  batch.sequence_inputs.clear();
  batch.token_inputs[inputs::kReferenceLogProbabilities] = on_stream(tokens);
  expect_near(toy_loss(batch, "dpo", {}), given, "summed");
}

TEST(ObjectiveValue, Kto) {
  Batch batch = toy();
  const std::map<std::string, std::string> options{
      {"beta", "0.5"}, {"desirable_weight", "1.5"}, {"undesirable_weight", "0.7"}};
  const auto ratio = [&](size_t i) { return kSums[i] - kReference[i]; };
  for (const auto& [estimate_row, kl] : {std::pair{1, ratio(1)}, std::pair{2, 0.0}}) {
    // Row 1 lies above the reference, row 2 below it.
    batch.sequence_inputs[inputs::kRole] = estimate_row == 1 ? doubles({1, 2, 0, 1}) : doubles({1, 0, 2, 1});
    const size_t bad = estimate_row == 1 ? 2 : 1;
    const double expected =
        (1.5 * (1 - sigmoid(0.5 * (ratio(0) - kl))) + 1.5 * (1 - sigmoid(0.5 * (ratio(3) - kl))) +
         0.7 * (1 - sigmoid(0.5 * (kl - ratio(bad))))) /
        3;
    expect_near(toy_loss(batch, "kto", options), expected, "kto");
  }
  batch.sequence_inputs[inputs::kRole] = doubles({1, 2, 0, 1});
  const at::Tensor log_p = doubles(kLogP).requires_grad_();
  TokenValues values;
  values.log_probabilities = log_p;
  const at::Tensor gradient =
      torch::autograd::grad({whole_loss(*make_objective("kto", batch, options), values)}, {log_p}).front();
  EXPECT_TRUE((gradient.slice(0, 3, 5) == 0).all().item<bool>()) << "the KL estimate is held constant";
  EXPECT_TRUE((gradient.slice(0, 0, 3) < 0).all().item<bool>());
}

TEST(ObjectiveValue, Grpo) {
  const std::vector<double> old{-0.5, -1.0, -0.7, -1.5, -0.6, -0.9, -1.1, -0.9, -2.2, -1.2, -1.0};
  const std::vector<double> reference{-0.2, -1.6, -0.7, -2.0, -0.1, -1.9, -1.5, -0.3, -2.0, -0.9, -1.3};
  const std::vector<double> advantages{1.3, -0.8, 0.6, -1.9};
  std::vector<double> of_tokens;
  for (const size_t s : kSequenceOf) of_tokens.push_back(advantages[s]);
  Batch batch = toy();
  batch.token_inputs[inputs::kAdvantages] = on_stream(of_tokens);
  batch.token_inputs[inputs::kOldLogProbabilities] = on_stream(old);
  batch.token_inputs[inputs::kReferenceLogProbabilities] = on_stream(reference);
  const auto loss = [&](const std::string& type, const std::string& level,
                        std::map<std::string, std::string> more) {
    more.insert({{"loss_type", type},
                 {"importance_sampling_level", level},
                 {"beta", "0.3"},
                 {"epsilon_high", "0.28"}});
    return toy_loss(batch, "grpo", more);
  };
  for (const bool by_sequence : {false, true}) {
    std::vector<double> difference(4, 0.0), sums(4, 0.0);
    for (size_t t = 0; t < 11; ++t)
      difference[kSequenceOf[t]] += (kLogP[t] - old[t]) / kLengths[kSequenceOf[t]];
    double sum = 0.0;
    for (size_t t = 0; t < 11; ++t) {
      const size_t s = kSequenceOf[t];
      const double r = std::exp(by_sequence ? difference[s] : kLogP[t] - old[t]), d = reference[t] - kLogP[t];
      const double x = -std::min(std::min(r, 1.4) * advantages[s], std::clamp(r, 0.8, 1.28) * advantages[s]) +
                       0.3 * (std::exp(d) - d - 1);
      sums[s] += x;
      sum += x;
    }
    const std::string level = by_sequence ? "sequence" : "token";
    const std::map<std::string, std::string> delta{{"delta", "1.4"}};
    expect_near(loss("grpo", level, delta), (sums[0] / 3 + sums[1] / 2 + sums[2] / 4 + sums[3] / 2) / 4,
                "grpo");
    expect_near(loss("bnpo", level, delta), sum / 11, "bnpo");
    expect_near(loss("dapo", level, delta), sum / 11, "dapo");
    expect_near(loss("dapo", level, {{"delta", "1.4"}, {"num_items_in_batch", "6"}}), sum / 6, "dapo of 6");
    expect_near(loss("dr_grpo", level, {{"delta", "1.4"}, {"max_completion_length", "7"}}), sum / 28,
                "dr_grpo");
  }
}

TEST(ObjectiveValue, GrpoOnPolicyHoldsItsOwnLogProbabilitiesConstant) {
  Batch batch = toy();
  batch.token_inputs[inputs::kAdvantages] = on_stream({1, 1, 1, -2, -2, 3, 3, 3, 3, 0.5, 0.5});
  TokenValues values;
  values.log_probabilities = doubles(kLogP).requires_grad_();
  const at::Tensor loss = whole_loss(*make_objective("grpo", batch, {{"loss_type", "bnpo"}}), values);
  expect_near(loss.item<double>(), -12.0 / 11, "loss");
  expect_near(torch::autograd::grad({loss}, {values.log_probabilities}).front(),
              doubles({1, 1, 1, -2, -2, 3, 3, 3, 3, 0.5, 0.5}) / -11.0, "gradient");
}

TEST(ObjectiveValue, Ppo) {
  // One response of two tokens after a prompt of two; the last token has a value and no target.
  Batch batch = random_batch({4}, kToyVocabulary, 1);
  batch.targets[0] = kNoTarget;
  batch.value_mask = at::tensor({0, 1, 1, 1}, at::kLong).to(at::kBool);
  batch.token_inputs = {{inputs::kAdvantages, doubles({9, 1.2, -0.7, 9})},
                        {inputs::kOldLogProbabilities, doubles({9, -1.0, -1.4, 9})},
                        {inputs::kReferenceLogProbabilities, doubles({9, -0.6, -1.1, 9})},
                        {inputs::kOldValues, doubles({9, 0.3, -0.2, 1.0})},
                        {inputs::kReturns, doubles({9, 0.9, 0.1, 0.4})}};
  TokenValues values;
  values.log_probabilities = doubles({-0.5, -0.9, 0.0}).requires_grad_();
  values.entropies = doubles({1.7, 2.1, 50.0}).requires_grad_();
  values.values = doubles({1.0, 0.0, 0.7}).requires_grad_();
  const auto objective =
      make_objective("ppo", batch, {{"vf_coef", "0.5"}, {"entropy_coef", "0.01"}, {"kl_coef", "0.2"}});
  EXPECT_TRUE(objective->request().values);
  EXPECT_TRUE(objective->request().entropies);
  const double r1 = std::exp(0.5), r2 = std::exp(0.5);
  const double policy = std::max(-1.2 * r1, -1.2 * 1.2) + std::max(0.7 * r2, 0.7 * 1.2);
  const double kl = (std::exp(-0.1) + 0.1 - 1) + (std::exp(-0.2) + 0.2 - 1);
  // Values clipped to 0.5, 0.0 (unclipped) and 0.8 (clipped from 0.7).
  const double value = 0.5 * (std::max(0.01, 0.16) + 0.01 + std::max(0.09, 0.16)) / 3;
  const at::Tensor loss = whole_loss(*objective, values);
  expect_near(loss.item<double>(), (policy - 0.01 * 3.8 + 0.2 * kl) / 2 + 0.5 * value, "loss");
  const auto gradient = torch::autograd::grad({loss}, {values.log_probabilities, values.entropies});
  EXPECT_EQ(gradient[0][2].item<double>(), 0.0) << "a token without a target has no log-probability";
  EXPECT_EQ(gradient[1][2].item<double>(), 0.0);

  batch.targets.fill_(kNoTarget);  // a critic's batch: values alone
  batch.token_inputs.erase(inputs::kAdvantages);
  batch.token_inputs.erase(inputs::kOldLogProbabilities);
  const auto critic = make_objective("ppo", batch, {{"vf_coef", "0.5"}, {"entropy_coef", "0.01"}});
  EXPECT_FALSE(critic->request().log_probabilities);
  EXPECT_FALSE(critic->request().entropies);
  expect_near(critic->loss({{}, {}, {}, values.values, {}, {}}, 0, 3).item<double>(), 0.5 * value, "critic");
}

}  // namespace
}  // namespace streambp
