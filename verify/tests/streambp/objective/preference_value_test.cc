// Losses of pairs and of labelled rows against their formulas written out by hand, their settings and
// refusals.
#include <cmath>
#include <functional>
#include <gtest/gtest.h>

#include "streambp/error.h"
#include "streambp/model/config/config.h"
#include "streambp/model/scored.h"
#include "streambp/objective/terms.h"
#include "verify/tests/streambp/objective/objective_testing.h"

namespace streambp {
namespace {

using PreferenceOptions = std::map<std::string, std::string>;

at::Tensor preference_loss(const Batch& batch, const std::string& name, const PreferenceOptions& options) {
  TokenValues values;
  values.log_probabilities = doubles(kLogP);
  return whole_loss(*make_objective(name, batch, options), values);
}

double dpo(PreferenceOptions options) {
  options.insert({"beta", "0.5"});
  return preference_loss(toy(), "dpo", options).item<double>();
}

double chosen(size_t i) {
  return kSums[i] - kReference[i];
}

double rejected(size_t i) {
  return kSums[i + 2] - kReference[i + 2];
}

double mean_of(const std::function<double(size_t)>& term) {
  return 0.5 * (term(0) + term(1));
}

/// The message of the refusal; empty: there is none.
std::string refusal(const std::string& name, const PreferenceOptions& options, const Counts& whole) {
  try {
    make_objective(name, toy(), options, whole);
  } catch (const InputError& error) {
    return error.what();
  }
  return {};
}

std::string refusal(const PreferenceOptions& options) {
  return refusal("dpo", options, count(toy()));
}

TEST(PreferenceValue, LossesOfDpo) {
  const double beta = 0.5;
  const auto z = [&](size_t i) { return beta * (chosen(i) - rejected(i)); };
  const auto loss = [](const char* type) { return dpo({{"loss_type", type}}); };
  expect_near(loss("sigmoid_norm"), mean_of([&](size_t i) {
                return softplus(-beta * (chosen(i) / kLengths[i] - rejected(i) / kLengths[i + 2]));
              }),
              "sigmoid_norm");
  expect_near(dpo({{"loss_type", "exo_pair"}, {"label_smoothing", "0.05"}}), mean_of([&](size_t i) {
                const double p = sigmoid(z(i));
                return p * std::log(p / 0.95) + (1 - p) * std::log((1 - p) / 0.05);
              }),
              "exo_pair");
  expect_near(loss("nca_pair"), mean_of([&](size_t i) {
                return softplus(-beta * chosen(i)) +
                       0.5 * (softplus(beta * chosen(i)) + softplus(beta * rejected(i)));
              }),
              "nca_pair");
  const auto bco = [&](size_t i) { return softplus(-beta * chosen(i)) + softplus(beta * rejected(i)); };
  expect_near(loss("bco_pair"), mean_of(bco), "bco_pair");
  expect_near(loss("sppo_hard"),
              mean_of([&](size_t i) { return std::pow(chosen(i) - 1, 2) + std::pow(rejected(i) + 1, 2); }),
              "sppo_hard");
  expect_near(loss("apo_zero"),
              mean_of([&](size_t i) { return sigmoid(-beta * chosen(i)) + sigmoid(beta * rejected(i)); }),
              "apo_zero");
  expect_near(loss("apo_down"), mean_of([&](size_t i) { return sigmoid(beta * chosen(i)) + sigmoid(-z(i)); }),
              "apo_down");
  expect_near(dpo({{"loss_type", "discopop"}, {"discopop_tau", "0.3"}}), mean_of([&](size_t i) {
                const double m = sigmoid(z(i) / 0.3);
                return softplus(-z(i)) * (1 - m) + std::exp(-z(i)) * m;
              }),
              "discopop");
  const double nll = -(kSums[0] + kSums[1]) / 5;
  expect_near(loss("sft"), nll, "sft");
  expect_near(dpo({{"loss_type", "sigmoid+bco_pair+sft"}, {"loss_weights", "0.8+0.2+1.5"}}),
              0.8 * mean_of([&](size_t i) { return softplus(-z(i)); }) + 0.2 * mean_of(bco) + 1.5 * nll,
              "a mix");
}

TEST(PreferenceValue, IpoAveragesOverTheCompletionMask) {
  // The first chosen row begins with its completion, the second rejected one, too.
  Batch batch = toy();
  const std::vector<double> counted{4, 2, 4, 3};
  batch.sequence_inputs[inputs::kCompletionTokens] = doubles(counted);
  const auto margin = [](const std::vector<double>& lengths, size_t i) {
    return chosen(i) / lengths[i] - rejected(i) / lengths[i + 2];
  };
  for (const bool masked : {true, false}) {
    const std::vector<double>& lengths = masked ? counted : kLengths;
    const auto loss = [&](const char* type) {
      const PreferenceOptions options{
          {"loss_type", type}, {"beta", "0.5"}, {"mean_over", masked ? "completion_mask" : "scored"}};
      return preference_loss(batch, "dpo", options).item<double>();
    };
    expect_near(loss("ipo"), mean_of([&](size_t i) { return std::pow(margin(lengths, i) - 1, 2); }), "ipo");
    expect_near(loss("sigmoid_norm"), mean_of([&](size_t i) { return softplus(-0.5 * margin(lengths, i)); }),
                "sigmoid_norm");
  }
  const PreferenceOptions ipo{{"loss_type", "ipo"}, {"beta", "0.5"}};
  expect_near(preference_loss(batch, "dpo", ipo).item<double>(),
              mean_of([&](size_t i) { return std::pow(margin(counted, i) - 1, 2); }), "the default is TRL's");
}

TEST(PreferenceValue, SmoothingOfSigmoidHasANameOfItsOwn) {
  const auto z = [](size_t i) { return 0.5 * (chosen(i) - rejected(i)); };
  const auto plain = [&](size_t i) { return softplus(-z(i)); };
  const auto robust = [&](size_t i) { return (0.8 * softplus(-z(i)) - 0.2 * softplus(z(i))) / 0.6; };
  const auto smoothed = [&](size_t i) { return 0.9 * softplus(-z(i)) + 0.1 * softplus(z(i)); };
  expect_near(dpo({{"cdpo_label_smoothing", "0.1"}}), mean_of(smoothed), "conservative DPO");
  const PreferenceOptions mix{{"loss_type", "sigmoid+robust"}, {"label_smoothing", "0.2"}};
  expect_near(dpo(mix), mean_of(plain) + mean_of(robust), "TRL's leaves sigmoid alone");
  PreferenceOptions both = mix;
  both["cdpo_label_smoothing"] = "0.1";
  expect_near(dpo(both), mean_of(smoothed) + mean_of(robust), "both");
  EXPECT_NE(refusal({{"label_smoothing", "0.1"}}).find("conservative DPO is cdpo_label_smoothing"),
            std::string::npos);
  EXPECT_NE(refusal({{"loss_type", "hinge"}, {"cdpo_label_smoothing", "0.1"}}).find("it smooths sigmoid"),
            std::string::npos);
}

TEST(PreferenceValue, AotSortsThePairs) {
  Batch batch = toy();
  batch.sequence_inputs[inputs::kReferenceSums] = doubles({-2.0, -1.1, -2.2, -5.0});
  const auto loss = [&](const char* type) {
    return preference_loss(batch, "dpo", {{"loss_type", type}, {"beta", "0.5"}, {"label_smoothing", "0.1"}})
        .item<double>();
  };
  const auto expected = [](double a, double b) {
    const auto term = [](double z) { return 0.9 * softplus(-z) + 0.1 * softplus(z); };
    return 0.5 * (term(0.5 * a) + term(0.5 * b));
  };
  // Margins of the policy 3.4 and -0.6, of the reference 0.2 and 3.9.
  expect_near(loss("aot"), expected(-0.8, -0.5), "aot");
  // Log-ratios of the chosen ones -0.2 and -1.4, of the rejected ones -3.4 and 3.1.
  expect_near(loss("aot_unpaired"), expected(2.0, -3.3), "aot_unpaired");
}

TEST(PreferenceValue, DivergencesOfDpo) {
  const auto expect = [](const PreferenceOptions& options, const std::function<double(double)>& score) {
    expect_near(dpo(options),
                mean_of([&](size_t i) { return softplus(-0.5 * (score(chosen(i)) - score(rejected(i)))); }),
                options.at("f_divergence_type"));
  };
  expect({{"f_divergence_type", "forward_kl"}}, [](double l) { return 1 - std::exp(-l); });
  expect({{"f_divergence_type", "js_divergence"}}, [](double l) { return std::log(2 * sigmoid(l)); });
  expect({{"f_divergence_type", "alpha_divergence"}, {"f_alpha_divergence_coef", "0.3"}},
         [](double l) { return (std::exp(-0.7 * l) - 1) / -0.7; });
  expect({{"f_divergence_type", "alpha_divergence"}, {"f_alpha_divergence_coef", "1"}},
         [](double l) { return l; });
}

TEST(PreferenceValue, LdAlphaWeighsTheLongerCompletionsTail) {
  // Only the first rejected completion is longer than its partner, by its last token.
  const double gained = 0.75 * 3.0;
  const double expected = 0.5 * (softplus(-0.5 * (chosen(0) - rejected(0) - gained)) +
                                 softplus(-0.5 * (chosen(1) - rejected(1))));
  expect_near(dpo({{"ld_alpha", "0.25"}}), expected, "sums of the reference as given");
  Batch batch = toy();
  batch.sequence_inputs.clear();
  at::Tensor reference = at::zeros({batch.size()}, at::kDouble);
  reference.index_copy_(0, scored_indices(batch), doubles(kLogP) - 0.1);
  batch.token_inputs[inputs::kReferenceLogProbabilities] = reference;
  // Each token 0.1 above the reference's: the weights hold for both.
  expect_near(preference_loss(batch, "dpo", {{"ld_alpha", "0.25"}, {"beta", "0.5"}}).item<double>(),
              0.5 * (softplus(-0.5 * 0.1 * (3 - 3.25)) + softplus(0.0)), "the reference's tokens");
}

TEST(PreferenceValue, WeightingHoldsThePolicysProbabilitiesConstant) {
  const auto objective = make_objective("dpo", toy(), {{"use_weighting", "true"}, {"beta", "0.5"}});
  EXPECT_TRUE(objective->request().log_sum_squares);
  EXPECT_FALSE(make_objective("dpo", toy())->request().log_sum_squares);
  TokenValues values;
  values.log_probabilities = doubles(kLogP).requires_grad_();
  values.log_sum_squares = doubles(kLogP) * 0.3 - 0.2;
  const auto weight = [](size_t s) { return std::exp((0.7 * kSums[s] + 0.2 * kLengths[s]) / kLengths[s]); };
  const auto z = [](size_t i) { return 0.5 * (chosen(i) - rejected(i)); };
  const at::Tensor loss = whole_loss(*objective, values);
  expect_near(loss.item<double>(),
              mean_of([&](size_t i) { return softplus(-z(i)) * weight(i) * weight(i + 2); }), "loss");
  const at::Tensor gradient = torch::autograd::grad({loss}, {values.log_probabilities}).front();
  for (const size_t i : {size_t{0}, size_t{1}}) {
    const double expected = -0.5 * 0.5 * sigmoid(-z(i)) * weight(i) * weight(i + 2);
    expect_near(gradient[i == 0 ? 0 : 3].item<double>(), expected, "gradient of a chosen token");
    expect_near(gradient[i == 0 ? 5 : 9].item<double>(), -expected, "gradient of a rejected token");
  }
}

TEST(PreferenceValue, LossesOfCpo) {
  const double nll = -(kSums[0] + kSums[1]) / 5;
  const auto cpo = [](PreferenceOptions options) {
    return preference_loss(toy(), "cpo", options).item<double>();
  };
  const auto margin = [](size_t i, bool averages) {
    return averages ? kSums[i] / kLengths[i] - kSums[i + 2] / kLengths[i + 2] : kSums[i] - kSums[i + 2];
  };
  expect_near(cpo({{"label_smoothing", "0.1"}, {"beta", "0.5"}}),
              nll + mean_of([&](size_t i) {
                const double z = 0.5 * margin(i, false);
                return 0.9 * softplus(-z) + 0.1 * softplus(z);
              }),
              "sigmoid");
  expect_near(cpo({{"loss_type", "hinge"}, {"cpo_alpha", "0"}, {"beta", "0.5"}}),
              mean_of([&](size_t i) { return std::max(0.0, 1 - 0.5 * margin(i, false)); }), "hinge");
  expect_near(cpo({{"loss_type", "ipo"}, {"cpo_alpha", "0.3"}, {"beta", "0.5"}}),
              0.3 * nll + mean_of([&](size_t i) { return std::pow(margin(i, true) - 1, 2); }), "ipo");
  const auto reward = [](size_t s) { return (1 - std::exp(-0.25 * kSums[s] / kLengths[s])) / 0.25; };
  expect_near(cpo({{"loss_type", "simpo"}, {"alpha", "0.25"}, {"cpo_alpha", "0"}, {"simpo_gamma", "0.3"}}),
              mean_of([&](size_t i) { return softplus(-(0.1 * (reward(i) - reward(i + 2)) - 0.3)); }),
              "AlphaPO");
}

TEST(PreferenceValue, OrpoOfWholeSequences) {
  Batch batch = toy();
  // Prompts of two tokens: the first token of each sequence has no target of its own.
  const at::Tensor all = batch.targets.clone();
  for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) batch.targets[batch.offsets[i]] = kNoTarget;
  const auto objective = make_objective("orpo", batch);  // TRL's nll, sequence
  const at::Tensor targets = objective->targets();
  EXPECT_TRUE(at::equal(targets.slice(0, 0, 7), all.slice(0, 0, 7))) << "chosen";
  EXPECT_TRUE(at::equal(targets.slice(0, 7), batch.targets.slice(0, 7))) << "rejected";
  EXPECT_FALSE(make_objective("orpo", batch, {{"nll", "completion"}})->targets().defined());
  // Scored: 3 and 2 tokens of the chosen sequences, 3 and 1 of the rejected ones.
  TokenValues values;
  values.log_probabilities = doubles({-0.3, -1.2, -0.7, -2.1, -0.4, -1.5, -0.2, -3.0, -1.1});
  const auto odds = [](double mean) { return mean - std::log(1 - std::exp(mean)); };
  const double margins[] = {odds(-0.95) - odds(-4.7 / 3), odds(-0.4) - odds(-1.1)};
  expect_near(whole_loss(*objective, values).item<double>(),
              4.7 / 5 + 0.1 * 0.5 * (softplus(-margins[0]) + softplus(-margins[1])), "loss");
}

TEST(PreferenceValue, KtoWithoutAnEstimate) {
  Batch batch = toy();
  batch.sequence_inputs[inputs::kRole] = doubles({1, 0, 0, 2});
  const auto objective = make_objective("kto", batch, {{"loss_type", "apo_zero_unpaired"}, {"beta", "0.5"}});
  const auto l = [](size_t i) { return kSums[i] - kReference[i]; };
  TokenValues values;
  values.log_probabilities = doubles(kLogP);
  expect_near(whole_loss(*objective, values).item<double>(),
              (sigmoid(-0.5 * l(0)) + sigmoid(0.5 * l(1)) + sigmoid(0.5 * l(2))) / 3, "loss");
  // The rows of an estimate are no rows of the routers' loss.
  const at::Tensor& counted = objective->router_loss.counted;
  EXPECT_TRUE(counted.slice(0, 0, 12).all().item<bool>());
  EXPECT_FALSE(counted.slice(0, 12).any().item<bool>());
  batch.sequence_inputs[inputs::kRole] = doubles({1, 0, 0, 1});
  EXPECT_FALSE(make_objective("kto", batch)->router_loss.counted.defined()) << "all count";
}

TEST(Preference, RefusesWhatCannotBe) {
  EXPECT_EQ(refusal({{"loss_type", "sigmoid+kto"}}).find("dpo: loss_type is 'kto', expected one of aot"), 0U);
  EXPECT_NE(
      refusal({{"loss_type", "sigmoid+sft"}, {"loss_weights", "1"}}).find("1 loss_weights for 2 losses"),
      std::string::npos);
  EXPECT_NE(refusal({{"loss_weights", "1e"}}).find("loss_weights is '1e', expected numbers"),
            std::string::npos);
  EXPECT_NE(refusal({{"loss_type", "exo_pair"}}).find("label_smoothing is 0, expected more than 0"),
            std::string::npos);
  EXPECT_NE(
      refusal({{"loss_type", "apo_zero"}, {"label_smoothing", "0.1"}}).find("expected 0 with loss_type"),
      std::string::npos);
  for (const char* mix : {"sigmoid+hinge", "bco_pair+sft", "hinge+ipo"}) {
    EXPECT_NE(refusal({{"loss_type", mix}, {"label_smoothing", "0.1"}}).find("expected 0 with loss_type"),
              std::string::npos)
        << mix;
  }
  for (const char* type : {"robust", "hinge+robust"}) {
    EXPECT_NE(refusal({{"loss_type", type}, {"label_smoothing", "0.5"}}).find("expected less than 0.5"),
              std::string::npos)
        << type;
  }
  EXPECT_NE(
      refusal({{"loss_type", "bco_pair"}, {"f_divergence_type", "forward_kl"}}).find("expected reverse_kl"),
      std::string::npos);
  for (const char* type : {"aot", "aot_unpaired", "sft"}) {
    EXPECT_NE(refusal({{"loss_type", type}, {"use_weighting", "true"}}).find("use_weighting is true"),
              std::string::npos);
  }
  EXPECT_NE(refusal({{"loss_type", "sppo_hard"}, {"beta", "0"}}).find("beta is 0"), std::string::npos);
  EXPECT_NE(refusal({{"ld_alpha", "1.5"}}).find("ld_alpha is '1.5'"), std::string::npos);
  EXPECT_NE(refusal("cpo", {{"loss_type", "hinge"}, {"label_smoothing", "0.1"}}, count(toy())).find("hinge"),
            std::string::npos);
  for (const char* smoothing : {"1.5", "-0.1"}) {
    EXPECT_NE(refusal("cpo", {{"label_smoothing", smoothing}}, count(toy())).find("label_smoothing is"),
              std::string::npos)
        << smoothing;
  }
  // A loss that sorts the pairs of a batch has no parts.
  Counts larger = count(toy());
  larger.sequences += 2;
  EXPECT_NE(refusal("dpo", {{"loss_type", "aot"}}, larger).find("a part of a batch"), std::string::npos);
  EXPECT_EQ(refusal("dpo", {{"loss_type", "apo_down"}}, larger), "");
}

TEST(Preference, SortedLossesNeedShapesAlone) {
  for (const char* type : {"aot", "aot_unpaired"}) {
    const auto objective = make_objective("dpo", toy(), {{"loss_type", type}});
    TokenValues values;
    values.log_probabilities =
        at::empty({11}, at::TensorOptions(at::kDouble).device(at::kMeta)).requires_grad_();
    const at::Tensor loss = whole_loss(*objective, values);
    EXPECT_TRUE(torch::autograd::grad({loss}, {values.log_probabilities}).front().is_meta());
  }
}

TEST(RouterLoss, IsTheTrainersOrTheModels) {
  MixtureSettings mixture;
  mixture.num_experts = 4;
  mixture.router_aux_loss_coef = 0.02;
  const auto coefficient = [&](const std::string& name, const PreferenceOptions& options) {
    return router_loss(objective_kind(name), complete_options(objective_kind(name), options)).of(mixture);
  };
  // TRL's DPO and KTO trainers add it whatever config.json says of output_router_logits.
  for (const bool asked : {false, true}) {
    mixture.output_router_logits = asked;
    for (const char* name : {"dpo", "kto"}) EXPECT_EQ(coefficient(name, {}), 0.02);
    for (const char* name : {"sft", "orpo", "cpo", "simpo"})
      EXPECT_EQ(coefficient(name, {}), asked ? 0.02 : 0.0);
    EXPECT_EQ(coefficient("dpo", {{"router_aux_loss_coef", "0"}}), 0.0);
    EXPECT_EQ(coefficient("sft", {{"router_aux_loss_coef", "0.3"}}), 0.3);
  }
  EXPECT_THROW(coefficient("dpo", {{"router_aux_loss_coef", "-1"}}), InputError);
  // Routers whose scores are no softmax: TRL would add a loss of softmaxes of them.
  for (bool MixtureSettings::*scores :
       {&MixtureSettings::sigmoid_scores, &MixtureSettings::sqrt_softplus_scores,
        &MixtureSettings::no_router_loss}) {
    MixtureSettings corrected = mixture;
    corrected.*scores = true;
    corrected.output_router_logits = false;
    const auto of = [&](const char* name, const PreferenceOptions& options) {
      return router_loss(objective_kind(name), complete_options(objective_kind(name), options)).of(corrected);
    };
    EXPECT_THROW(of("dpo", {}), InputError);
    EXPECT_EQ(of("dpo", {{"router_aux_loss_coef", "0"}}), 0.0);
    EXPECT_EQ(of("sft", {}), 0.0);
    corrected.balanced_by_softmax = true;
    EXPECT_EQ(of("dpo", {}), 0.02);
  }
  mixture.num_experts = 0;
  EXPECT_EQ(coefficient("dpo", {}), 0.0);
  EXPECT_THROW(coefficient("dpo", {{"router_aux_loss_coef", "0.1"}}), InputError) << "no experts";
}

}  // namespace
}  // namespace streambp
