// The reference's adapters, value head, temperature and teacher: identities that tie them to the plain model,
// whose own truth is the golden cases.
#include <cmath>
#include <cstdio>
#include <gtest/gtest.h>
#include <limits>
#include <stdexcept>
#include <string>

#include "reference/check/check.h"
#include "reference/objectives/objectives.h"
#include "reference/ops/ops.h"
#include "verify/tests/reference/model_testing.h"

namespace streambp::reference {
namespace {

const std::string kQuery = "model.layers.1.self_attn.q_proj";
const std::string kDown = "model.layers.0.mlp.down_proj";

ModelConfig adapted_model() {
  ModelConfig config = small_model();
  config.adapters = {{kQuery, {3, 0.5}}, {kDown, {1, 2.0}}, {"lm_head", {2, 1.5}}};
  return config;
}

void expect_close(const std::string& name, const Matrix& actual, const Matrix& expected) {
  const double error = relative_error(actual, expected);
  std::printf("%s: %.1e\n", name.c_str(), error);
  EXPECT_FALSE(!(error <= 1e-13)) << name;
}

/// Weights of the plain model in which every adapter is added to the layer it belongs to.
Weights merged(const ModelConfig& config, const Weights& weights) {
  Weights result;
  for (const auto& [name, weight] : weights) {
    if (name.find(".lora_") == std::string::npos) result[name] = weight;
  }
  for (const auto& [module, adapter] : config.adapters) {
    result[module + ".weight"] +=
        adapter.scale * weights.at(module + ".lora_B.weight") * weights.at(module + ".lora_A.weight");
  }
  return result;
}

TEST(ReferenceLora, IsTheModelWithMergedWeights) {
  const ModelConfig config = adapted_model();
  const Weights weights = random_weights(config, 31);
  const Weights plain = merged(config, weights);
  const Result actual = evaluate(config, weights, kBatch, sft(8.0));
  const Result expected = evaluate(small_model(), plain, kBatch, sft(8.0));
  EXPECT_NEAR(actual.loss, expected.loss, 1e-14);
  ASSERT_EQ(actual.gradients.size(), expected.gradients.size() + 6);
  for (const auto& [name, gradient] : expected.gradients) {
    expect_close(name, actual.gradients.at(name), gradient);
  }
  // With W' = W + s B A:  dB = s dW' A^T, dA = s B^T dW'.
  for (const auto& [module, adapter] : config.adapters) {
    const Matrix& gradient = expected.gradients.at(module + ".weight");
    const std::string a = module + ".lora_A.weight";
    const std::string b = module + ".lora_B.weight";
    expect_close(a, actual.gradients.at(a), adapter.scale * weights.at(b).transpose() * gradient);
    expect_close(b, actual.gradients.at(b), adapter.scale * gradient * weights.at(a).transpose());
  }
}

TEST(ReferenceLora, AFreshAdapterChangesNothing) {
  const ModelConfig config = adapted_model();
  Weights weights = random_weights(config, 32);
  for (auto& [name, weight] : weights) {
    if (name.ends_with(".lora_B.weight")) weight.setZero();
  }
  Weights base = weights;
  std::erase_if(base, [](const auto& entry) { return entry.first.find(".lora_") != std::string::npos; });
  const Result actual = evaluate(config, weights, kBatch, sft(8.0));
  EXPECT_EQ(actual.log_probabilities, evaluate(small_model(), base, kBatch, sft(8.0)).log_probabilities);
  for (const auto& [name, gradient] : actual.gradients) {
    if (name.ends_with(".lora_A.weight")) {
      EXPECT_EQ(gradient.norm(), 0.0) << name;
    } else {
      EXPECT_GT(gradient.norm(), 0.0) << name;
    }
  }
}

TEST(ReferenceLora, RefusesAdaptersThatDoNotFit) {
  const auto refuses = [](const std::string& module, const LoraAdapter& adapter) {
    ModelConfig config = small_model();
    config.adapters[module] = adapter;
    EXPECT_THROW(parameter_shapes(config), std::invalid_argument) << module;
  };
  refuses(kQuery, {0, 1.0});
  refuses("model.layers.2.self_attn.q_proj", {2, 1.0});
  refuses("model.norm", {2, 1.0});
  refuses("q_proj", {2, 1.0});
  refuses("model.layers.0.mlp.experts.down_proj", {2, 1.0});
  ModelConfig rows = small_model();
  rows.trained_rows["model.layers.0.mlp.up_proj"] = {1};
  EXPECT_THROW(parameter_shapes(rows), std::invalid_argument);
  rows.trained_rows = {{"model.embed_tokens", {rows.vocab_size}}};
  EXPECT_THROW(parameter_shapes(rows), std::invalid_argument);
  rows.trained_rows = {{"lm_head", {1}}};
  EXPECT_NO_THROW(parameter_shapes(rows));
  rows.tie_word_embeddings = true;
  EXPECT_THROW(parameter_shapes(rows), std::invalid_argument);

  const ModelConfig config = adapted_model();
  Weights weights = random_weights(config, 33);
  weights[kQuery + ".lora_A.weight"] = Matrix::Zero(2, 10);
  EXPECT_THROW(evaluate(config, weights, kBatch, sft(8.0)), std::invalid_argument);
  weights = random_weights(config, 33);
  weights.erase(kDown + ".lora_B.weight");
  EXPECT_THROW(evaluate(config, weights, kBatch, sft(8.0)), std::invalid_argument);
  EXPECT_THROW(evaluate(small_model(), random_weights(config, 33), kBatch, sft(8.0)), std::invalid_argument);
}

/// The sum of the values and the log-probabilities, each times its position: every token counts differently.
TokenObjective weighted_heads(bool values) {
  TokenObjective objective;
  objective.values = values;
  objective.loss = [values](Tape& tape, const TokenValues& heads) {
    std::vector<double> weights;
    for (Index t = 0; t < heads.log_probabilities.rows(); ++t)
      weights.push_back(1.0 + static_cast<double>(t));
    const Var loss = weighted_sum(tape, heads.log_probabilities, weights);
    return values ? add(loss, weighted_sum(tape, heads.values, weights)) : loss;
  };
  return objective;
}

TEST(ReferenceValueHead, IsAProductWithTheHiddenState) {
  ModelConfig config = small_model();
  config.num_hidden_layers = 0;
  config.has_value_head = true;
  const Weights weights = random_weights(config, 34);
  Sequence sequence = kBatch[1];
  sequence.valued = {true, false, true};
  const Result result = evaluate(config, weights, {sequence}, weighted_heads(true));
  ASSERT_EQ(result.values.size(), 3U);
  Matrix gradient = Matrix::Zero(1, 10);
  for (Index t = 0; t < 3; ++t) {
    const auto h =
        weights.at("model.embed_tokens.weight").row(sequence.tokens[static_cast<std::size_t>(t)]).array();
    const double rms = std::sqrt(h.square().mean() + config.rms_norm_eps);
    const Matrix hidden = (h / rms * weights.at("model.norm.weight").row(0).array()).matrix();
    const double value = hidden.row(0).dot(weights.at("value_head.weight").row(0));
    EXPECT_NEAR(result.values[static_cast<std::size_t>(t)], value, 1e-14);
    gradient += (1.0 + static_cast<double>(t)) * hidden;
  }
  expect_close("value_head.weight", result.gradients.at("value_head.weight"), gradient);
}

TEST(ReferenceValueHead, TokensWithoutTargetHaveAValueAndNoProbability) {
  ModelConfig config = small_model();
  config.has_value_head = true;
  const Weights weights = random_weights(config, 35);
  std::vector<Sequence> batch = kBatch;
  batch[0].valued = {false, false, false, false, false, false, true};
  batch[1].valued = {true, true, false};
  TokenObjective objective = weighted_heads(true);
  objective.entropies = true;
  objective.mean_log_probabilities = true;
  const Result result = evaluate(config, weights, batch, objective);
  const Result plain = evaluate(config, weights, kBatch, objective);
  for (std::size_t t = 0; t < 10; ++t) {
    const bool has_target = t != 6 && t != 7;
    EXPECT_EQ(result.log_probabilities[t] != 0.0, has_target) << "token " << t;
    EXPECT_EQ(result.entropies[t] != 0.0, has_target) << "token " << t;
    EXPECT_NE(result.values[t], 0.0) << "token " << t;
    EXPECT_EQ(plain.values[t] != 0.0, has_target) << "token " << t;
    EXPECT_NEAR(result.log_probabilities[t], plain.log_probabilities[t], 1e-14) << "token " << t;
  }
}

TEST(ReferenceValueHead, ACriticNeedsNoLanguageModelHead) {
  ModelConfig config = small_model();
  config.has_value_head = true;
  const Weights weights = random_weights(config, 36);
  ModelConfig critic = config;
  critic.has_lm_head = false;
  Weights critic_weights = weights;
  critic_weights.erase("lm_head.weight");

  PpoInputs inputs;
  inputs.policy_mask = inputs.value_mask = std::vector<double>(8, 1.0);
  inputs.old_log_probabilities = std::vector<double>(8, -2.5);
  inputs.old_values = std::vector<double>(8, 0.3);
  for (int t = 0; t < 8; ++t) {
    inputs.advantages.push_back(0.5 * (t % 3) - 0.4);
    inputs.returns.push_back(0.3 * (t % 4) - 0.7);
  }
  const Result value = evaluate(critic, critic_weights, kBatch, ppo_value({}, inputs));
  EXPECT_TRUE(value.log_probabilities.empty());
  EXPECT_FALSE(value.gradients.contains("lm_head.weight"));
  // The parts of one network that does both are the same numbers.
  const Result policy = evaluate(config, weights, kBatch, ppo_policy({}, inputs));
  const Result both = evaluate(config, weights, kBatch, ppo({}, inputs));
  EXPECT_NEAR(both.loss, policy.loss + value.loss, 1e-14);
  EXPECT_EQ(both.values, value.values);
  for (const auto& [name, gradient] : value.gradients) {
    expect_close(name, both.gradients.at(name) - policy.gradients.at(name), gradient);
  }
  EXPECT_THROW(evaluate(critic, critic_weights, kBatch, sft(8.0)), std::invalid_argument);
  ModelConfig headless = small_model();
  EXPECT_THROW(evaluate(headless, random_weights(headless, 36), kBatch, ppo_value({}, inputs)),
               std::invalid_argument);
}

TEST(ReferenceHeads, TemperatureDividesTheLogits) {
  const ModelConfig config = small_model();
  const Weights weights = random_weights(config, 37);
  TokenObjective objective = weighted_heads(false);
  objective.temperature = 1.7;
  const Result actual = evaluate(config, weights, kBatch, objective);
  objective.temperature = 1.0;
  Weights flatter = weights;
  flatter["lm_head.weight"] /= 1.7;
  Result expected = evaluate(config, flatter, kBatch, objective);
  expected.gradients["lm_head.weight"] /= 1.7;
  EXPECT_NEAR(actual.loss, expected.loss, 1e-12);
  for (const auto& [name, gradient] : expected.gradients) {
    expect_close(name, actual.gradients.at(name), gradient);
  }
  for (double temperature : {0.0, -1.0, kNaN, std::numeric_limits<double>::infinity()}) {
    objective.temperature = temperature;
    EXPECT_THROW(evaluate(config, weights, kBatch, objective), std::invalid_argument) << temperature;
  }
}

TEST(ReferenceHeads, AnEvenDistributionHasAllTheEntropy) {
  const ModelConfig config = small_model();
  Weights weights = random_weights(config, 38);
  weights["lm_head.weight"].setZero();
  TokenObjective objective = sft(8.0, 0.5);
  objective.entropies = true;
  const Result result = evaluate(config, weights, kBatch, objective);
  EXPECT_NEAR(result.loss, std::log(13.0), 1e-14);
  for (std::size_t t : {0U, 5U, 8U}) EXPECT_NEAR(result.entropies[t], std::log(13.0), 1e-14);
}

/// The logits of the scored tokens of kBatch, by a loss that looks at them from outside.
Matrix scored_logits(const ModelConfig& config, const Weights& weights) {
  Tape tape;
  Parameters parameters;
  for (const auto& [name, weight] : weights) parameters.emplace(name, tape.leaf(weight));
  std::vector<Var> parts;
  for (const Sequence& sequence : kBatch) {
    std::vector<int> rows;
    for (std::size_t t = 0; t < sequence.targets.size(); ++t) {
      if (sequence.targets[t] != kNoTarget) rows.push_back(static_cast<int>(t));
    }
    const HiddenStates hidden = hidden_states(config, parameters, sequence.tokens, sequence.positions, 7.0);
    parts.push_back(gather_rows(hidden.states, rows));
  }
  return logits(config, parameters, concat_rows(parts)).value();
}

TEST(ReferenceDistillation, ATeacherOfOnesOwnOpinionTeachesNothing) {
  const ModelConfig config = small_model();
  const Weights weights = random_weights(config, 39);
  const Matrix own = scored_logits(config, weights);
  for (const double beta : {0.0, 0.3, 1.0}) {
    const Result result = evaluate(config, weights, kBatch, distill({beta, 1.5, 1.0, 8.0}, own));
    EXPECT_NEAR(result.loss, 0.0, 1e-15);
    for (const auto& [name, gradient] : result.gradients) EXPECT_FALSE(!(gradient.norm() <= 1e-14)) << name;
  }
}

TEST(ReferenceDistillation, IsTheDivergenceOfBothDistributions) {
  const ModelConfig config = small_model();
  const Weights weights = random_weights(config, 40);
  const Matrix own = scored_logits(config, weights);
  const Matrix teacher = random_matrix(8, 13, 41);
  const double tau = 1.5;
  double forward = 0.0;
  double backward = 0.0;
  double mixed = 0.0;
  for (Index t = 0; t < 8; ++t) {
    const Eigen::ArrayXd p = softmax(own.row(t).transpose() / tau).array();
    const Eigen::ArrayXd q = softmax(teacher.row(t).transpose() / tau).array();
    forward += (q * (q / p).log()).sum();
    backward += (p * (p / q).log()).sum();
    const Eigen::ArrayXd m = 0.25 * q + 0.75 * p;
    mixed += 0.25 * (q * (q / m).log()).sum() + 0.75 * (p * (p / m).log()).sum();
  }
  const auto loss = [&](double beta, const Matrix& logits_of_teacher) {
    return evaluate(config, weights, kBatch, distill({beta, tau, 1.0, 8.0}, logits_of_teacher)).loss;
  };
  EXPECT_NEAR(loss(0.0, teacher), tau * tau * forward / 8, 1e-14);
  EXPECT_NEAR(loss(1.0, teacher), tau * tau * backward / 8, 1e-14);
  EXPECT_NEAR(loss(0.25, teacher), tau * tau * mixed / 8, 1e-14);
  EXPECT_NEAR(evaluate(config, weights, kBatch, distill({0.25, tau, 1.0, 8.0, false}, teacher)).loss,
              mixed / 8, 1e-14);
  Matrix shifted = teacher;
  shifted.row(3).array() += 7.0;
  EXPECT_NEAR(loss(0.0, shifted), loss(0.0, teacher), 1e-14);
  // What a teacher rules out adds nothing forwards and is infinitely wrong backwards.
  Matrix certain = teacher;
  certain(2, 5) = -std::numeric_limits<double>::infinity();
  EXPECT_TRUE(std::isfinite(loss(0.0, certain)));
  EXPECT_EQ(loss(1.0, certain), std::numeric_limits<double>::infinity());
  // With alpha = 0 the teacher is not heard, and the text is read at temperature 1.
  EXPECT_NEAR(evaluate(config, weights, kBatch, distill({0.0, tau, 0.0, 8.0}, teacher)).loss,
              evaluate(config, weights, kBatch, sft(8.0)).loss, 1e-14);
  EXPECT_THROW(loss(0.0, teacher.topRows(7)), std::invalid_argument);
  EXPECT_THROW(loss(0.0, teacher.leftCols(12)), std::invalid_argument);
}

TEST(ReferenceDistillation, ComparesTheTokensThatBothHave) {
  const ModelConfig config = small_model();
  const Weights weights = random_weights(config, 44);
  const Matrix own = scored_logits(config, weights);
  const Matrix teacher = random_matrix(8, 15, 45);
  const auto loss = [&](const Matrix& logits_of_teacher) {
    return evaluate(config, weights, kBatch, distill({0.0, 1.5, 1.0, 8.0, false, true}, logits_of_teacher))
        .loss;
  };
  for (const Index columns : {10, 13, 15}) {
    const Index shared = std::min<Index>(columns, 13);
    double expected = 0.0;
    for (Index t = 0; t < 8; ++t) {
      const Eigen::ArrayXd p = softmax(own.row(t).leftCols(shared).transpose() / 1.5).array();
      const Eigen::ArrayXd q = softmax(teacher.row(t).leftCols(shared).transpose() / 1.5).array();
      expected += (q * (q / p).log()).sum();
    }
    EXPECT_NEAR(loss(teacher.leftCols(columns)), expected / 8, 1e-14) << columns;
  }
}

TEST(ReferenceHeads, NothingScoredIsNothingLost) {
  ModelConfig config = adapted_model();
  config.has_value_head = true;
  const Weights weights = random_weights(config, 42);
  TokenObjective objective;
  objective.values = true;
  objective.entropies = true;
  objective.teacher = Teacher{Matrix(0, 13), 1.0};
  objective.loss = [](Tape&, const TokenValues&) -> Var {
    throw std::logic_error("the objective was called");
  };
  const Sequence silent = {{1, 2}, {0, 1}, {kNoTarget, kNoTarget}, {false, false}};
  const Result result = evaluate(config, weights, {silent}, objective);
  EXPECT_EQ(result.loss, 0.0);
  EXPECT_EQ(result.values, (std::vector<double>{0, 0}));
  ASSERT_EQ(result.gradients.size(), weights.size());
  for (const auto& [name, gradient] : result.gradients) EXPECT_EQ(gradient.norm(), 0.0) << name;

  Sequence wrong = silent;
  wrong.valued.push_back(true);
  EXPECT_THROW(evaluate(config, weights, {wrong}, objective), std::invalid_argument);
}

TEST(ReferenceHeads, ABatchOfNothingButValues) {
  ModelConfig config = small_model();
  config.has_value_head = true;
  const Weights weights = random_weights(config, 43);
  const Sequence valued = {{1, 2}, {0, 1}, {kNoTarget, kNoTarget}, {false, true}};
  const Result result = evaluate(config, weights, {valued}, weighted_heads(true));
  EXPECT_EQ(result.loss, result.values[1]);
  EXPECT_EQ(result.gradients.at("lm_head.weight").norm(), 0.0);
  EXPECT_GT(result.gradients.at("value_head.weight").norm(), 0.0);
}

}  // namespace
}  // namespace streambp::reference
