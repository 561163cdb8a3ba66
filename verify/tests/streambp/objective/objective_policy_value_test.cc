// The options of GRPO, PPO and SFT other than their defaults: each value and gradient against its formula
// written out by hand.
#include <cmath>
#include <gtest/gtest.h>

#include "streambp/model/scored.h"
#include "streambp/objective/terms.h"
#include "verify/tests/streambp/model/file_testing.h"
#include "verify/tests/streambp/objective/objective_testing.h"

namespace streambp {
namespace {

// Three sequences of 3, 2 and 1 scored tokens.
const std::vector<double> kPolicyLogP{-0.3, -1.2, -0.7, -2.1, -0.4, -0.9};
const std::vector<double> kOld{-0.9, -1.0, -0.8, -1.6, -0.9, -1.0};
const std::vector<double> kSampling{-0.8, -1.0, -0.9, -1.5, -0.7, -0.5};
const std::vector<double> kPolicyReference{-0.5, -1.1, -0.1, -2.0, -0.9, -1.4};
const std::vector<double> kRatio{0.5, 1.5, 1.0, 2.0, 0.0, 0.8};
const std::vector<double> kEntropies{0.5, 2.0, 1.5, 1.0, 3.0, 2.5};
const std::vector<double> kAdvantages{1.5, 1.5, 1.5, -2.0, -2.0, -0.5};
const std::vector<size_t> kPolicySequenceOf{0, 0, 0, 1, 1, 2};
const std::vector<double> kPolicyLengths{3, 2, 1};

struct Result {
  double loss = 0.0;
  at::Tensor d_log_p, d_entropies;
};

/// Inputs at the scored tokens of the whole stream, 7 at each sequence's last token.
Batch batch_with(const std::map<std::string, std::vector<double>>& given) {
  Batch batch = random_batch({4, 3, 2}, 13, 1);
  for (const auto& [name, values] : given) {
    at::Tensor all = at::full({batch.size()}, 7.0, at::kDouble);
    batch.token_inputs[name] = all.index_copy_(0, scored_indices(batch), doubles(values));
  }
  return batch;
}

Result evaluated(const std::string& objective, const Batch& batch,
                 const std::map<std::string, std::string>& options) {
  TokenValues values;
  values.log_probabilities = doubles(kPolicyLogP).requires_grad_();
  values.entropies = doubles(kEntropies).requires_grad_();
  const at::Tensor loss = whole_loss(*make_objective(objective, batch, options), values);
  std::vector<at::Tensor> gradients =
      torch::autograd::grad({loss}, {values.log_probabilities, values.entropies}, {}, false, false, true);
  for (at::Tensor& gradient : gradients) {
    if (!gradient.defined()) gradient = at::zeros_like(values.entropies);
  }
  return {loss.item<double>(), gradients[0].detach(), gradients[1].detach()};
}

const std::map<std::string, std::vector<double>> kPlain{
    {inputs::kAdvantages, kAdvantages},
    {inputs::kOldLogProbabilities, kOld},
    {inputs::kReferenceLogProbabilities, kPolicyReference}};

Result grpo(std::map<std::string, std::string> options, bool corrected = false, bool sampled = false) {
  auto given = kPlain;
  if (corrected) given[inputs::kImportanceSamplingRatio] = kRatio;
  if (sampled) given[inputs::kSamplingLogProbabilities] = kSampling;
  options.insert({"loss_type", "bnpo"});
  return evaluated("grpo", batch_with(given), options);
}

double r(size_t t) {
  return std::exp(kPolicyLogP[t] - kOld[t]);
}

/// The clipped term at epsilons of 0.2.
double clipped(size_t t) {
  return -std::min(r(t) * kAdvantages[t], std::clamp(r(t), 0.8, 1.2) * kAdvantages[t]);
}

/// Compares with sum_t term(t) of the loss and slope(t) of its gradient by each log p.
template <typename Term, typename Slope>
void expect_tokens(const Result& result, Term term, Slope slope, const std::string& what) {
  double loss = 0.0;
  std::vector<double> slopes;
  for (size_t t = 0; t < kPolicyLogP.size(); ++t) {
    loss += term(t);
    slopes.push_back(slope(t));
  }
  expect_near(result.loss, loss, what + ", loss");
  expect_near(result.d_log_p, doubles(slopes), what + ", gradient");
}

TEST(ObjectivePolicyValue, CispoWeighsLogProbabilitiesByAHeldRatio) {
  for (const bool corrected : {false, true}) {
    const auto factor = [&](size_t t) {
      return -std::min(r(t), 1.1) * kAdvantages[t] * (corrected ? kRatio[t] : 1.0) / 6;
    };
    expect_tokens(
        grpo({{"loss_type", "cispo"}, {"epsilon_high", "1.1"}}, corrected),
        [&](size_t t) { return factor(t) * kPolicyLogP[t]; }, factor, "cispo");
  }
  // On policy the ratios are 1.
  expect_tokens(
      evaluated("grpo", batch_with({{inputs::kAdvantages, kAdvantages}}),
                {{"loss_type", "cispo"}, {"epsilon_high", "5"}, {"num_items_in_batch", "4"}}),
      [](size_t t) { return -kAdvantages[t] * kPolicyLogP[t] / 4; },
      [](size_t t) { return -kAdvantages[t] / 4; }, "cispo on policy");
}

TEST(ObjectivePolicyValue, SapoGatesSoftly) {
  const auto steepness = [](size_t t) { return kAdvantages[t] > 0 ? 0.8 : 1.7; };
  const auto gate = [&](size_t t) { return 1 / (1 + std::exp(-steepness(t) * (r(t) - 1))); };
  const auto weight = [](size_t t) { return 1 / (3 * kPolicyLengths[kPolicySequenceOf[t]]); };
  expect_tokens(
      grpo({{"loss_type", "sapo"}, {"sapo_temperature_pos", "0.8"}, {"sapo_temperature_neg", "1.7"}}),
      [&](size_t t) { return -4 / steepness(t) * gate(t) * kAdvantages[t] * weight(t); },
      [&](size_t t) { return -4 * gate(t) * (1 - gate(t)) * r(t) * kAdvantages[t] * weight(t); }, "sapo");
}

TEST(ObjectivePolicyValue, LuspoSumsOverASequence) {
  const Result luspo = grpo({{"loss_type", "luspo"}, {"importance_sampling_level", "sequence"}});
  const Result bnpo = grpo({{"importance_sampling_level", "sequence"}});
  expect_near(luspo.loss, bnpo.loss * 6 / 3, "loss");
  expect_near(luspo.d_log_p, bnpo.d_log_p * 6.0 / 3.0, "gradient");
}

TEST(ObjectivePolicyValue, VespoWeighsBySequenceRatios) {
  for (const bool corrected : {false, true}) {
    std::vector<double> log_w(3, 0.0);
    for (size_t t = 0; t < 6; ++t) {
      const double correction = kRatio[t] == 0.0 ? std::log(1e-8) : std::log(kRatio[t]);
      log_w[kPolicySequenceOf[t]] += kPolicyLogP[t] - kOld[t] + (corrected ? correction : 0.0);
    }
    const auto factor = [&](size_t t) {
      const double log = std::max(log_w[kPolicySequenceOf[t]], std::log(1e-8));
      const bool positive = kAdvantages[t] >= 0;
      const double k = positive ? 1.5 : 0.2, lambda = positive ? 2.5 : 0.7;
      return -std::exp(lambda + k * log - lambda * std::exp(log)) * kAdvantages[t] / 5;
    };
    expect_tokens(
        grpo({{"loss_type", "vespo"},
              {"vespo_k_pos", "1.5"},
              {"vespo_k_neg", "0.2"},
              {"vespo_lambda_pos", "2.5"},
              {"vespo_lambda_neg", "0.7"},
              {"num_items_in_batch", "5"}},
             corrected),
        [&](size_t t) { return factor(t) * kPolicyLogP[t]; }, factor, "vespo");
  }
}

TEST(ObjectivePolicyValue, HighEntropiesAlone) {
  // The quantile of 0.5 of six lies between the third and the fourth, 1.5 and 2; that of 0.6 is the fourth.
  for (const char* share : {"0.5", "0.4"}) {
    const Result result = grpo({{"top_entropy_quantile", share}, {"entropy_coef", "0.3"}});
    const double terms = clipped(1) + clipped(4) + clipped(5);
    expect_near(result.loss, terms / 6 - 0.3 * (2.0 + 3.0 + 2.5) / 3, share);
    expect_near(result.d_entropies, doubles({0, -0.1, 0, 0, -0.1, -0.1}), share);
    EXPECT_EQ(result.d_log_p[0].item<double>(), 0.0);
  }
  const Result one = grpo({{"top_entropy_quantile", "0"}, {"beta", "0.1"}});
  const auto k3 = [](size_t t) {
    const double d = kPolicyReference[t] - kPolicyLogP[t];
    return std::exp(d) - d - 1;
  };
  double kl = 0.0;
  for (size_t t = 0; t < 6; ++t) kl += k3(t);
  expect_near(one.loss, (clipped(4) + 0.1 * kl) / 6, "all tokens pay for their divergence");
  expect_near(grpo({{"entropy_coef", "0.3"}}).d_entropies, doubles(std::vector<double>(6, -0.3 / 6)),
              "without a choice all tokens have the bonus");
}

TEST(ObjectivePolicyValue, SequencesFarFromThePolicyAreLeftOut) {
  // Negative advantages: the second sequence drifts by (0.6 - 0.3) / 2 = 0.15 from the sampler and by
  // (0.5 - 0.5) / 2 = 0 from the old policy, the third by 0.4 and -0.1.
  const auto left = [](std::map<std::string, std::string> options, bool sampled) {
    return grpo(std::move(options), false, sampled).d_log_p.ne(0.0).sum().item<int64_t>();
  };
  const Result far = grpo({{"off_policy_mask_threshold", "0.2"}}, false, true);
  expect_near(far.loss, (clipped(0) + clipped(1) + clipped(2) + clipped(3) + clipped(4)) / 6, "far");
  expect_near(grpo({{"off_policy_mask_threshold", "0.1"}}, false, true).loss,
              (clipped(0) + clipped(1) + clipped(2)) / 6, "farther");
  EXPECT_EQ(left({{"off_policy_mask_threshold", "0.1"}}, false), left({}, false));
  // What is not known of a token drifts by nothing: the third sequence's mean is 0.
  Batch batch = batch_with({{inputs::kAdvantages, kAdvantages}, {inputs::kOldLogProbabilities, kOld}});
  std::vector<double> sampled = kSampling;
  sampled[5] = std::nan("");
  batch.token_inputs[inputs::kSamplingLogProbabilities] =
      batch_with({{inputs::kSamplingLogProbabilities, sampled}})
          .token_inputs.at(inputs::kSamplingLogProbabilities);
  expect_near(evaluated("grpo", batch, {{"loss_type", "bnpo"}, {"off_policy_mask_threshold", "0.1"}}).loss,
              (clipped(0) + clipped(1) + clipped(2) + clipped(5)) / 6, "an unknown one");
  EXPECT_LT(left({{"off_policy_mask_threshold", "0.1"}}, true), left({}, true));
}

TEST(ObjectivePolicyValue, KlEstimators) {
  for (const auto& [name, value, slope] :
       {std::tuple{"k1", +[](double d) { return -d; }, +[](double) { return 1.0; }},
        std::tuple{"k2", +[](double d) { return d * d / 2; }, +[](double d) { return -d; }},
        std::tuple{"k3", +[](double d) { return std::exp(d) - d - 1; },
                   +[](double d) { return 1 - std::exp(d); }}}) {
    for (const bool corrected : {false, true}) {
      const Result with = grpo({{"beta", "0.4"},
                                {"kl_estimator", name},
                                {"use_bias_correction_kl", corrected ? "true" : "false"}});
      Result difference = grpo({});
      difference.loss = with.loss - difference.loss;
      difference.d_log_p = with.d_log_p - difference.d_log_p;
      const auto d = [](size_t t) { return kPolicyReference[t] - kPolicyLogP[t]; };
      const auto factor = [&](size_t t) { return 0.4 * (corrected ? r(t) : 1.0) / 6; };
      expect_tokens(
          difference, [&](size_t t) { return factor(t) * value(d(t)); },
          [&](size_t t) { return factor(t) * (slope(d(t)) + (corrected ? value(d(t)) : 0.0)); }, name);
    }
  }
}

TEST(ObjectivePolicyValue, DualClipBoundsWhatANegativeAdvantagePays) {
  // The fifth token's ratio is e^0.5 = 1.65 at an advantage of -2.
  const Result free = grpo({{"clip_ratio_c", "1.7"}});
  EXPECT_EQ(free.loss, grpo({}).loss);
  const Result bound = grpo({{"clip_ratio_c", "1.6"}});
  expect_near(bound.loss, free.loss + (1.6 - std::exp(0.5)) * 2.0 / 6, "loss");
  EXPECT_EQ(bound.d_log_p[4].item<double>(), 0.0);
  EXPECT_NE(free.d_log_p[4].item<double>(), 0.0);
  expect_near(evaluated("ppo", batch_with(kPlain), {{"vf_coef", "0"}, {"clip_ratio_c", "1.6"}}).loss,
              bound.loss, "ppo");
}

TEST(ObjectivePolicyValue, DftWeighsTokensByTheirOwnProbability) {
  expect_tokens(
      evaluated("sft", batch_with({}), {{"loss_type", "dft"}}),
      [](size_t t) { return -std::exp(kPolicyLogP[t]) * kPolicyLogP[t] / 6; },
      [](size_t t) { return -std::exp(kPolicyLogP[t]) / 6; }, "dft");
}

TEST(ObjectivePolicyValue, WhatDoesNotFitIsRefused) {
  const auto refuses = [](const std::map<std::string, std::string>& options, const char* part) {
    return refused([&] { grpo(options); }, part);
  };
  for (const char* type : {"cispo", "sapo", "vespo"}) {
    EXPECT_TRUE(refuses({{"loss_type", type}, {"delta", "2"}}, "grpo: delta with loss_type"));
    EXPECT_TRUE(refuses({{"loss_type", type}, {"clip_ratio_c", "2"}}, "grpo: clip_ratio_c with loss_type"));
  }
  EXPECT_TRUE(refuses({{"clip_ratio_c", "0.9"}}, "clip_ratio_c is '0.9'"));
  EXPECT_TRUE(refuses({{"top_entropy_quantile", "1.1"}}, "top_entropy_quantile is '1.1'"));
  EXPECT_TRUE(refuses({{"sapo_temperature_neg", "0"}}, "sapo_temperature_neg is 0"));
  EXPECT_TRUE(refuses({{"vespo_lambda_pos", "0"}}, "vespo_lambda_pos is '0'"));
  EXPECT_TRUE(refuses({{"kl_estimator", "k4"}}, "kl_estimator"));
  EXPECT_TRUE(refused(
      [] {
        auto given = kPlain;
        given[inputs::kImportanceSamplingRatio] = {1, 1, 1, -0.5, 1, 1};
        evaluated("grpo", batch_with(given), {});
      },
      "input 'importance_sampling_ratio' holds -0.5, expected ratios of at least 0"));
  EXPECT_TRUE(refused(
      [] {
        evaluated("sft", batch_with({}), {{"loss_type", "dft"}, {"label_smoothing", "0.1"}});
      },
      "label_smoothing is 0.1 with loss_type dft"));
}

}  // namespace
}  // namespace streambp
