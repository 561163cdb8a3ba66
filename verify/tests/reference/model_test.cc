// The reference's models: identities that hold for any decoder and that a wrong model would break. That their
// gradients are those of differences is what gradcheck shows, agreement with other people's models what the
// golden cases show.
#include "reference/model.h"

#include <cmath>
#include <cstdio>
#include <gtest/gtest.h>
#include <stdexcept>

#include "reference/check/check.h"
#include "reference/objectives/objectives.h"
#include "reference/ops/ops.h"
#include "verify/tests/reference/model_testing.h"

namespace streambp::reference {
namespace {

/// The largest relative error over all parameters, printed; NaN if one is NaN.
double worst_error(const Weights& actual, const Weights& expected) {
  double worst = 0.0;
  for (const auto& [name, gradient] : expected) {
    const double error = relative_error(actual.at(name), gradient);
    if (!(error <= worst)) worst = error;
    if (std::isnan(worst)) break;
  }
  std::printf("worst relative error of a gradient: %.1e\n", worst);
  return worst;
}

TEST(ReferenceModel, WithoutLayersItIsANormAndASoftmax) {
  ModelConfig config = small_model();
  config.num_hidden_layers = 0;
  const Weights weights = random_weights(config, 5);
  const std::vector<double> actual = scores(config, weights, {kOther});
  ASSERT_EQ(actual.size(), 3U);
  EXPECT_EQ(actual[0], 0.0);
  for (std::size_t t : {1U, 2U}) {
    const auto h = weights.at("model.embed_tokens.weight").row(kOther.tokens[t]).array();
    const double rms = std::sqrt(h.square().mean() + config.rms_norm_eps);
    const Eigen::VectorXd normed = (h / rms * weights.at("model.norm.weight").row(0).array()).matrix();
    const Eigen::ArrayXd p = (weights.at("lm_head.weight") * normed).array().exp();
    EXPECT_NEAR(actual[t], std::log(p(kOther.targets[t]) / p.sum()), 1e-14);
  }
}

TEST(ReferenceModel, ThePaddingTokenLearnsFromTheHeadAlone) {
  ModelConfig config = small_model();
  const Weights weights = random_weights(config, 6);
  const int token = kSequence.tokens[1];
  const Matrix free = evaluate(config, weights, kBatch, sft(1.0)).gradients.at("model.embed_tokens.weight");
  EXPECT_GT(free.row(token).norm(), 0.1);
  config.pad_token_id = token;
  Matrix expected = free;
  expected.row(token).setZero();
  const Result padded = evaluate(config, weights, kBatch, sft(1.0));
  EXPECT_EQ(padded.gradients.at("model.embed_tokens.weight"), expected);

  // Two tables of the same numbers, one for the input and one for the head, next to one for both.
  config.tie_word_embeddings = true;
  Weights tied = weights;
  tied.erase("lm_head.weight");
  const Matrix of_both = evaluate(config, tied, kBatch, sft(1.0)).gradients.at("model.embed_tokens.weight");
  config.tie_word_embeddings = false;
  Weights twice = weights;
  twice["lm_head.weight"] = weights.at("model.embed_tokens.weight");
  const Weights apart = evaluate(config, twice, kBatch, sft(1.0)).gradients;
  EXPECT_EQ(apart.at("model.embed_tokens.weight").row(token).norm(), 0.0);
  EXPECT_LE((of_both.row(token) - apart.at("lm_head.weight").row(token)).norm(), 1e-14);
  EXPECT_LE((of_both - apart.at("lm_head.weight") - apart.at("model.embed_tokens.weight")).norm(), 1e-13);
}

TEST(ReferenceModel, OneLayerWrittenOutForTwoTokens) {
  ModelConfig config = small_model();
  config.num_hidden_layers = 1;
  config.num_attention_heads = 1;
  config.num_key_value_heads = 1;
  config.o_bias = true;
  config.mlp_bias = true;
  const Weights w = random_weights(config, 21);
  const std::string layer = "model.layers.0.";
  const auto column = [](const Eigen::ArrayXd& x) { return x.matrix().eval(); };
  const auto project = [&](const std::string& name, const Eigen::VectorXd& x) -> Eigen::VectorXd {
    return w.at(layer + name + ".weight") * x + w.at(layer + name + ".bias").transpose();
  };
  const auto norm = [&](const std::string& name, const Eigen::VectorXd& x) {
    const double rms = std::sqrt(x.squaredNorm() / static_cast<double>(x.size()) + config.rms_norm_eps);
    return column(x.array() / rms * w.at(name).row(0).transpose().array());
  };

  // Both tokens are at position 0, where the rotation turns nothing.
  const Sequence sequence = {{3, 8}, {0, 0}, {kNoTarget, 5}};
  std::vector<Eigen::VectorXd> h, n;
  for (int token : sequence.tokens) {
    h.push_back(w.at("model.embed_tokens.weight").row(token).transpose());
    n.push_back(norm(layer + "input_layernorm.weight", h.back()));
  }
  const Eigen::VectorXd q = norm(layer + "self_attn.q_norm.weight", project("self_attn.q_proj", n[1]));
  double total = 0.0;
  Eigen::VectorXd mixed = Eigen::VectorXd::Zero(config.head_dim);
  for (const Eigen::VectorXd& x : n) {
    const Eigen::VectorXd k = norm(layer + "self_attn.k_norm.weight", project("self_attn.k_proj", x));
    const double weight = std::exp(q.dot(k) / std::sqrt(6.0));
    total += weight;
    mixed += weight * project("self_attn.v_proj", x);
  }
  Eigen::VectorXd y = h[1] + project("self_attn.o_proj", mixed / total);
  const Eigen::VectorXd m = norm(layer + "post_attention_layernorm.weight", y);
  const Eigen::ArrayXd gate = project("mlp.gate_proj", m).array();
  y += project("mlp.down_proj", column(gate / (1.0 + (-gate).exp()) * project("mlp.up_proj", m).array()));
  const Eigen::ArrayXd p = (w.at("lm_head.weight") * norm("model.norm.weight", y)).array().exp();

  EXPECT_NEAR(scores(config, w, {sequence})[1], std::log(p(5) / p.sum()), 1e-13);
}

TEST(ReferenceModel, LossIsTheScaledSumOfLogProbabilities) {
  const ModelConfig config = small_model();
  const Result result = evaluate(config, random_weights(config, 1), {kSequence, kOther}, sft(5.0));
  ASSERT_EQ(result.log_probabilities.size(), 10U);
  double total = 0.0;
  for (double score : result.log_probabilities) total += score;
  EXPECT_NEAR(result.loss, -total / 5.0, 1e-14);
  EXPECT_LT(result.log_probabilities[0], 0.0);
  for (std::size_t t : {6U, 7U}) EXPECT_EQ(result.log_probabilities[t], 0.0) << "token " << t;
}

TEST(ReferenceModel, SequencesDoNotSeeOneAnother) {
  const ModelConfig config = small_model();
  const Weights weights = random_weights(config, 2);
  const Result both = evaluate(config, weights, {kSequence, kOther}, sft(8.0));
  const Result first = evaluate(config, weights, {kSequence}, sft(8.0));
  const Result second = evaluate(config, weights, {kOther}, sft(8.0));
  Weights sum = first.gradients;
  for (auto& [name, gradient] : sum) gradient += second.gradients.at(name);
  EXPECT_FALSE(!(worst_error(both.gradients, sum) <= 1e-14));
  EXPECT_NEAR(both.loss, first.loss + second.loss, 1e-14);
}

TEST(ReferenceModel, TokensDoNotSeeTheFuture) {
  const ModelConfig config = small_model();
  const Weights weights = random_weights(config, 3);
  const std::vector<double> before = scores(config, weights, {kSequence});
  Sequence changed = kSequence;
  changed.tokens[4] = 11;
  const std::vector<double> after = scores(config, weights, {changed});
  for (std::size_t t = 0; t < 4; ++t) EXPECT_EQ(before[t], after[t]) << "token " << t;
  for (std::size_t t = 4; t < 6; ++t) EXPECT_NE(before[t], after[t]) << "token " << t;
}

TEST(ReferenceModel, OnlyDistancesBetweenPositionsMatter) {
  const ModelConfig config = small_model();
  const Weights weights = random_weights(config, 4);
  const std::vector<double> here = scores(config, weights, {kSequence});
  Sequence moved = kSequence;
  for (double& position : moved.positions) position += 19.0;
  const std::vector<double> there = scores(config, weights, {moved});
  Sequence gapped = kSequence;
  for (std::size_t t = 3; t < 7; ++t) gapped.positions[t] += 4.0;
  const std::vector<double> apart = scores(config, weights, {gapped});
  for (std::size_t t = 0; t < 6; ++t) EXPECT_NEAR(here[t], there[t], 1e-12) << "token " << t;
  for (std::size_t t = 0; t < 3; ++t) EXPECT_EQ(here[t], apart[t]) << "token " << t;
  for (std::size_t t = 3; t < 6; ++t) EXPECT_GT(std::abs(here[t] - apart[t]), 1e-6) << "token " << t;
}

TEST(ReferenceModel, TiedGradientIsTheSumOfBothUses) {
  ModelConfig config = small_model();
  Weights weights = random_weights(config, 6);
  weights["lm_head.weight"] = weights["model.embed_tokens.weight"];
  Weights expected = evaluate(config, weights, {kSequence}, sft(6.0)).gradients;
  expected["model.embed_tokens.weight"] += expected.at("lm_head.weight");
  expected.erase("lm_head.weight");
  config.tie_word_embeddings = true;
  weights.erase("lm_head.weight");
  const Weights tied = evaluate(config, weights, {kSequence}, sft(6.0)).gradients;
  EXPECT_EQ(tied.size(), expected.size());
  EXPECT_FALSE(!(worst_error(tied, expected) <= 1e-14));
}

TEST(ReferenceModel, GroupedHeadsAreHeadsWithRepeatedKeysAndValues) {
  const ModelConfig grouped = small_model();
  const Weights weights = random_weights(grouped, 7);
  ModelConfig full = grouped;
  full.num_key_value_heads = full.num_attention_heads;

  // Head h of the full model has the keys and values of head h / 2 of the grouped one; biases are rows, so
  // turn them first.
  const auto is_key_or_value = [](const std::string& name) {
    return name.find("k_proj") != std::string::npos || name.find("v_proj") != std::string::npos;
  };
  const auto is_bias = [](const std::string& name) { return name.ends_with(".bias"); };
  Weights repeated = weights;
  for (auto& [name, weight] : repeated) {
    if (!is_key_or_value(name)) continue;
    const Matrix rows = is_bias(name) ? Matrix(weight.transpose()) : weight;
    Matrix all(2 * rows.rows(), rows.cols());
    for (Index head = 0; head < 4; ++head) all.middleRows(6 * head, 6) = rows.middleRows(6 * (head / 2), 6);
    weight = is_bias(name) ? Matrix(all.transpose()) : all;
  }
  Weights folded = evaluate(full, repeated, {kSequence}, sft(6.0)).gradients;
  for (auto& [name, gradient] : folded) {
    if (!is_key_or_value(name)) continue;
    const Matrix rows = is_bias(name) ? Matrix(gradient.transpose()) : gradient;
    Matrix sum = Matrix::Zero(rows.rows() / 2, rows.cols());
    for (Index head = 0; head < 4; ++head) sum.middleRows(6 * (head / 2), 6) += rows.middleRows(6 * head, 6);
    gradient = is_bias(name) ? Matrix(sum.transpose()) : sum;
  }
  EXPECT_FALSE(!(worst_error(evaluate(grouped, weights, {kSequence}, sft(6.0)).gradients, folded) <= 1e-13));
}

TEST(ReferenceModel, WithoutTargetsLossAndGradientsAreZero) {
  const ModelConfig config = small_model();
  const Weights weights = random_weights(config, 8);
  const Sequence silent = {{1, 2}, {0, 1}, {kNoTarget, kNoTarget}};
  const Sequence empty;
  for (const std::vector<Sequence>& batch : {std::vector<Sequence>{}, {silent}, {empty}, {empty, silent}}) {
    const Result result = evaluate(config, weights, batch, [](Tape&, const Var&) -> Var {
      throw std::logic_error("the objective was called without a target");
    });
    EXPECT_EQ(result.loss, 0.0);
    ASSERT_EQ(result.gradients.size(), weights.size());
    for (const auto& [name, gradient] : result.gradients) {
      EXPECT_EQ(gradient, Matrix::Zero(weights.at(name).rows(), weights.at(name).cols())) << name;
    }
    for (double score : result.log_probabilities) EXPECT_EQ(score, 0.0);
  }
}

TEST(ReferenceModel, RepetitionIsBitEqual) {
  const ModelConfig config = small_model();
  const Weights weights = random_weights(config, 9);
  const Result once = evaluate(config, weights, {kSequence, kOther}, sft(3.0));
  const Result again = evaluate(config, weights, {kSequence, kOther}, sft(3.0));
  EXPECT_EQ(once.loss, again.loss);
  EXPECT_EQ(once.log_probabilities, again.log_probabilities);
  for (const auto& [name, gradient] : once.gradients) {
    EXPECT_GT(gradient.norm(), 0.0) << name;
    EXPECT_EQ(gradient, again.gradients.at(name)) << name;
  }
}

TEST(ReferenceModel, RefusesWhatIsNotAModel) {
  const auto refuses = [](const std::function<void(ModelConfig&)>& spoil) {
    ModelConfig config = small_model();
    spoil(config);
    EXPECT_THROW(parameter_shapes(config), std::invalid_argument);
  };
  refuses([](ModelConfig& config) { config.num_key_value_heads = 3; });
  refuses([](ModelConfig& config) { config.head_dim = 5; });
  refuses([](ModelConfig& config) { config.head_dim = 0; });
  refuses([](ModelConfig& config) { config.vocab_size = 0; });
  refuses([](ModelConfig& config) { config.num_hidden_layers = -1; });
  refuses([](ModelConfig& config) { config.rotary_dim = 3; });
  refuses([](ModelConfig& config) { config.rotary_dim = 8; });
  refuses([](ModelConfig& config) { config.windows = {1}; });
  refuses([](ModelConfig& config) { config.windows = {1, -1}; });
  refuses([](ModelConfig& config) { config.mixture = {4, 2, 3, false, 0.0, {true}}; });
  refuses([](ModelConfig& config) { config.mixture = {4, 0, 3, false, 0.0, {true, true}}; });
  refuses([](ModelConfig& config) { config.mixture = {4, 5, 3, false, 0.0, {true, true}}; });
  refuses([](ModelConfig& config) { config.mixture = {4, 2, 0, false, 0.0, {true, true}}; });
}

TEST(ReferenceModel, RefusesWeightsThatDoNotFit) {
  const ModelConfig config = small_model();
  const auto refuses = [&config](const std::function<void(Weights&)>& spoil,
                                 const std::string& expected_message) {
    Weights weights = random_weights(config, 10);
    spoil(weights);
    try {
      evaluate(config, weights, {kSequence}, sft(1.0));
      ADD_FAILURE() << "accepted; expected a refusal that mentions " << expected_message;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(expected_message), std::string::npos) << error.what();
    }
  };
  refuses([](Weights& weights) { weights.erase("model.norm.weight"); }, "model.norm.weight");
  refuses([](Weights& weights) { weights["model.norm.bias"] = Matrix::Zero(1, 10); }, "model.norm.bias");
  refuses([](Weights& weights) { weights["lm_head.weight"] = Matrix::Zero(10, 13); }, "13 x 10, got 10 x 13");
}

TEST(ReferenceModel, RefusesSequencesThatDoNotFit) {
  const ModelConfig config = small_model();
  const Weights weights = random_weights(config, 11);
  const auto refuses = [&](const std::function<void(Sequence&)>& spoil) {
    Sequence sequence = kSequence;
    spoil(sequence);
    EXPECT_THROW(evaluate(config, weights, {sequence}, sft(1.0)), std::invalid_argument);
  };
  refuses([](Sequence& sequence) { sequence.tokens[2] = 13; });
  refuses([](Sequence& sequence) { sequence.tokens[2] = -1; });
  refuses([](Sequence& sequence) { sequence.targets[2] = 13; });
  refuses([](Sequence& sequence) { sequence.targets[2] = -1; });
  refuses([](Sequence& sequence) { sequence.positions.pop_back(); });
  refuses([](Sequence& sequence) { sequence.targets.pop_back(); });
}

TEST(ReferenceModel, RefusesALossThatIsNoScalarAndADivisorThatIsNotPositive) {
  const ModelConfig config = small_model();
  const Weights weights = random_weights(config, 12);
  const auto identity = [](Tape&, const Var& log_probabilities) { return log_probabilities; };
  EXPECT_THROW(evaluate(config, weights, {kSequence}, identity), std::invalid_argument);
  for (double divisor : {0.0, -2.0, std::nan("")}) {
    EXPECT_THROW(evaluate(config, weights, {kSequence}, sft(divisor)), std::invalid_argument) << divisor;
  }
}

}  // namespace
}  // namespace streambp::reference
