// The reference's mixture of experts and the loss of its routers: identities that tie experts to a dense
// model, and numbers for pen and paper.
#include "reference/mixture.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <stdexcept>

#include "reference/check/check.h"
#include "reference/ops/ops.h"
#include "verify/tests/reference/model_testing.h"

namespace streambp::reference {
namespace {

const std::string kRouter = "model.layers.0.mlp.gate.weight";

/// A model whose second layer has three experts of the same width as the first layer's MLP.
ModelConfig mixture_model(int chosen, bool normalised) {
  ModelConfig config = small_model();
  config.mixture = {3, chosen, config.intermediate_size, normalised, 0.0, {false, true}};
  return config;
}

std::string expert_name(int e, const std::string& module) {
  return "model.layers.1.mlp.experts." + std::to_string(e) + "." + module + ".weight";
}

/// The model without experts whose MLP is expert e.
Weights dense_weights(const Weights& sparse, int e) {
  Weights dense;
  for (const auto& [name, weight] : sparse) {
    if (name.find("layers.1.mlp.") == std::string::npos) dense[name] = weight;
  }
  for (const char* module : {"gate_proj", "up_proj", "down_proj"}) {
    dense["model.layers.1.mlp." + std::string(module) + ".weight"] = sparse.at(expert_name(e, module));
  }
  return dense;
}

TEST(ReferenceMixture, OfEqualExpertsIsOneOfThem) {
  for (int chosen : {1, 2, 3}) {
    const ModelConfig config = mixture_model(chosen, true);
    Weights weights = random_weights(config, 63);
    for (int e : {1, 2}) {
      for (const char* module : {"gate_proj", "up_proj", "down_proj"}) {
        weights[expert_name(e, module)] = weights.at(expert_name(0, module));
      }
    }
    expect_same(scores(config, weights), scores(small_model(), dense_weights(weights, 0)));
  }
}

TEST(ReferenceMixture, OfOneChoiceGivesEveryTokenItsExpert) {
  const ModelConfig config = mixture_model(1, true);
  const Weights weights = random_weights(config, 64);
  Tape tape;
  Parameters parameters;
  for (const auto& [name, weight] : weights) parameters.emplace(name, tape.leaf(weight));
  const HiddenStates hidden = hidden_states(config, parameters, kSequence.tokens, kSequence.positions, 7.0);
  ASSERT_EQ(hidden.router_probabilities.size(), 1U);
  const Matrix& p = hidden.router_probabilities[0].value();
  for (Index t = 0; t < p.rows(); ++t) EXPECT_NEAR(p.row(t).sum(), 1.0, 1e-15);
  const auto chosen = largest_columns(p, 1);
  const std::vector<double> actual = scores(config, weights, {kSequence});
  std::vector<double> expected;
  std::vector<int> count(3);
  for (std::size_t t = 0; t < actual.size(); ++t) {
    const int e = chosen[t][0];
    ++count[static_cast<std::size_t>(e)];
    expected.push_back(scores(small_model(), dense_weights(weights, e), {kSequence})[t]);
  }
  EXPECT_LT(*std::max_element(count.begin(), count.end()), 7) << "one expert has all tokens";
  expect_same(actual, expected);
}

TEST(ReferenceMixture, TheFirstOfEqualsIsChosen) {
  Matrix p(3, 4);
  p << 0.25, 0.25, 0.25, 0.25, 0.1, 0.4, 0.1, 0.4, 0.3, 0.1, 0.3, 0.3;
  const std::vector<std::vector<int>> expected = {{0, 1}, {1, 3}, {0, 2}};
  EXPECT_EQ(largest_columns(p, 2), expected);
  EXPECT_THROW(largest_columns(p, 0), std::invalid_argument);
  EXPECT_THROW(largest_columns(p, 5), std::invalid_argument);
}

TEST(ReferenceRouterLoss, ByHand) {
  MixtureSettings mixture;
  mixture.num_experts = 2;
  mixture.num_experts_per_tok = 1;
  Matrix p(4, 2);
  p << 0.75, 0.25, 0.6, 0.4, 0.3, 0.7, 0.9, 0.1;
  Tape tape;
  const Var probabilities = tape.leaf(p);
  const Var loss = load_balancing_loss(tape, mixture, probabilities);
  // f = (3/4, 1/4) and P = (2.55, 1.45) / 4.
  EXPECT_DOUBLE_EQ(loss.value()(0, 0), 2.0 * (0.75 * 0.6375 + 0.25 * 0.3625));
  tape.backward(loss, Matrix::Ones(1, 1));
  for (Index t = 0; t < 4; ++t) {
    EXPECT_DOUBLE_EQ(probabilities.gradient()(t, 0), 2.0 * 0.75 / 4.0);
    EXPECT_DOUBLE_EQ(probabilities.gradient()(t, 1), 2.0 * 0.25 / 4.0);
  }
}

TEST(ReferenceRouterLoss, OfRoutersWithoutAnOpinionIsTheNumberOfChoices) {
  for (int chosen : {1, 2, 5}) {
    MixtureSettings mixture;
    mixture.num_experts = 5;
    mixture.num_experts_per_tok = chosen;
    Tape tape;
    const Var loss = load_balancing_loss(tape, mixture, tape.leaf(Matrix::Constant(3, 5, 0.2)));
    EXPECT_NEAR(loss.value()(0, 0), chosen, 1e-15);
  }
}

TEST(ReferenceRouterLoss, IsAddedOnceForTheWholeBatchWhateverIsScored) {
  ModelConfig config = mixture_model(2, true);
  config.mixture.sparse = {true, true};
  const Weights weights = random_weights(config, 65);
  const Sequence silent = {{5, 6}, {0, 1}, {kNoTarget, kNoTarget}};
  const std::vector<Sequence> batch = {kSequence, silent, {}, kOther};

  Tape tape;
  Parameters parameters;
  for (const auto& [name, weight] : weights) parameters.emplace(name, tape.leaf(weight));
  std::vector<Var> routers;
  for (const Sequence& sequence : {kSequence, silent, kOther}) {
    for (const Var& p :
         hidden_states(config, parameters, sequence.tokens, sequence.positions, 7.0).router_probabilities) {
      routers.push_back(p);
    }
  }
  const Var all = concat_rows(routers);
  EXPECT_EQ(all.rows(), 2 * (7 + 2 + 3));
  const Var aux = load_balancing_loss(tape, config.mixture, all);
  tape.backward(aux, Matrix::Ones(1, 1));

  for (double divisor : {1.0, 8.0}) {
    const Result plain = evaluate(config, weights, batch, sft(divisor));
    ModelConfig with_loss = config;
    with_loss.mixture.router_aux_loss_coef = 0.3;
    const Result result = evaluate(with_loss, weights, batch, sft(divisor));
    EXPECT_NEAR(result.loss, plain.loss + 0.3 * aux.value()(0, 0), 1e-13);
    EXPECT_EQ(result.log_probabilities, plain.log_probabilities);
    Weights expected = plain.gradients;
    for (auto& [name, gradient] : expected) gradient += 0.3 * parameters.at(name).gradient();
    expect_same(result.gradients, expected);
    EXPECT_GT(relative_error(result.gradients.at(kRouter), plain.gradients.at(kRouter)), 1e-4);
  }
}

TEST(ReferenceRouterLoss, IsAllThatIsLeftWhereNothingIsScored) {
  ModelConfig config = mixture_model(2, true);
  config.mixture.sparse = {true, true};
  const Weights weights = random_weights(config, 65);
  const Sequence silent = {{5, 6}, {0, 1}, {kNoTarget, kNoTarget}};
  EXPECT_EQ(evaluate(config, weights, {silent}, sft(1.0)).loss, 0.0);

  Tape tape;
  Parameters parameters;
  for (const auto& [name, weight] : weights) parameters.emplace(name, tape.leaf(weight));
  const Var aux = load_balancing_loss(
      tape, config.mixture,
      concat_rows(
          hidden_states(config, parameters, silent.tokens, silent.positions, 2.0).router_probabilities));
  tape.backward(scale(aux, 0.3), Matrix::Ones(1, 1));
  config.mixture.router_aux_loss_coef = 0.3;
  const Result result = evaluate(config, weights, {silent}, sft(8.0));
  EXPECT_NEAR(result.loss, 0.3 * aux.value()(0, 0), 1e-15);
  for (const auto& [name, gradient] : result.gradients) {
    EXPECT_TRUE((gradient - parameters.at(name).gradient()).norm() <= 1e-15) << name;
  }
  EXPECT_GT(result.gradients.at(kRouter).norm(), 1e-6);
}

}  // namespace
}  // namespace streambp::reference
