// What the families change in the reference's decoder: windows, rotations, norms, caps and fused projections,
// by identities that tie each setting to a model without it, and layers written out by hand.
#include <cmath>
#include <gtest/gtest.h>
#include <numbers>

#include "reference/check/check.h"
#include "reference/objectives/objectives.h"
#include "reference/ops/ops.h"
#include "verify/tests/reference/model_testing.h"

namespace streambp::reference {
namespace {

const std::string kFirstLayer = "model.layers.0.";

TEST(ReferenceWindow, OfOneTokenIsEveryTokenAlone) {
  ModelConfig config = small_model();
  config.windows = {1, 1};
  const Weights weights = random_weights(config, 51);
  std::vector<double> alone;
  for (std::size_t t = 0; t < kSequence.tokens.size(); ++t) {
    const Sequence token = {{kSequence.tokens[t]}, {kSequence.positions[t]}, {kSequence.targets[t]}};
    alone.push_back(scores(config, weights, {token}).front());
  }
  expect_same(scores(config, weights, {kSequence}), alone);
}

TEST(ReferenceWindow, AsLongAsTheSequenceChangesNothing) {
  const ModelConfig plain = small_model();
  const Weights weights = random_weights(plain, 52);
  ModelConfig config = plain;
  for (int window : {7, 100}) {
    config.windows = {window, window};
    EXPECT_EQ(scores(config, weights), scores(plain, weights)) << window;
  }
  config.windows = {5, 7};  // of the scored tokens it is the last that sees less
  EXPECT_NE(scores(config, weights), scores(plain, weights));
}

TEST(ReferenceWindow, HidesTokensOfItsLayerOnly) {
  ModelConfig config = small_model();
  config.windows = {3, 1};  // what is mixed in the first layer is not mixed again
  const Weights weights = random_weights(config, 53);
  Sequence changed = kSequence;
  changed.tokens[2] = 11;
  const std::vector<double> before = scores(config, weights, {kSequence});
  const std::vector<double> after = scores(config, weights, {changed});
  for (std::size_t t : {0U, 1U, 5U}) EXPECT_EQ(before[t], after[t]) << "token " << t;
  for (std::size_t t : {2U, 3U, 4U}) EXPECT_NE(before[t], after[t]) << "token " << t;
  // Three tokens are seen, however far apart their positions are.
  Sequence gapped = kSequence;
  for (std::size_t t = 0; t < 7; ++t) gapped.positions[t] *= 5.0;
  Sequence gapped_changed = gapped;
  gapped_changed.tokens[2] = 11;
  EXPECT_NE(scores(config, weights, {gapped})[4], scores(config, weights, {gapped_changed})[4]);
}

TEST(ReferenceLocalRope, IsTheRotationOfLayersWithAWindow) {
  ModelConfig config = small_model();
  const Weights weights = random_weights(config, 54);
  ModelConfig slow = config;
  slow.rope.theta = 7.0;
  const std::vector<double> fast_scores = scores(config, weights);
  const std::vector<double> slow_scores = scores(slow, weights);
  config.local_rope = slow.rope;
  EXPECT_EQ(scores(config, weights), fast_scores);
  config.windows = {7, 7};
  EXPECT_EQ(scores(config, weights), slow_scores);
  config.windows = {0, 7};
  EXPECT_GT(largest_difference(scores(config, weights), fast_scores), 1e-4);
  EXPECT_GT(largest_difference(scores(config, weights), slow_scores), 1e-4);
}

TEST(ReferenceRotation, AttentionFactorScalesScoresTwice) {
  ModelConfig config = small_model();
  const Weights weights = random_weights(config, 55);
  config.rope.attention_factor = 1.4;
  const std::vector<double> stretched = scores(config, weights);
  config.rope.attention_factor = 1.0;
  config.attention_scale = 1.4 * 1.4 / std::sqrt(6.0);
  expect_same(stretched, scores(config, weights));
}

TEST(ReferenceRotation, FollowsTheLongestSequenceOfTheBatch) {
  EXPECT_EQ(batch_length(kBatch), 7.0);
  std::vector<Sequence> padded = kBatch;
  padded.back().padding = {3.0, 11.0};
  EXPECT_EQ(batch_length(padded), 12.0);
  EXPECT_EQ(batch_length({}), 0.0);
  ModelConfig config = small_model();
  const Weights weights = random_weights(config, 56);
  ModelConfig halved = config;
  halved.rope.type = RopeType::kLinear;
  halved.rope.factor = 2.0;
  ModelConfig longrope = config;
  longrope.rope.type = RopeType::kLongrope;
  longrope.rope.original_max_position_embeddings = 6;
  longrope.rope.short_factor = {1.0, 1.0, 1.0};
  longrope.rope.long_factor = {2.0, 2.0, 2.0};
  EXPECT_EQ(scores(longrope, weights, {kOther}), scores(config, weights, {kOther}));
  EXPECT_EQ(scores(longrope, weights), scores(halved, weights));
  EXPECT_GT(largest_difference(scores(halved, weights), scores(config, weights)), 1e-4);
}

TEST(ReferenceFusedProjections, AreTheSeparateOnesBelowOneAnother) {
  const ModelConfig plain = small_model();
  const Weights weights = random_weights(plain, 57);
  ModelConfig fused = plain;
  fused.fused_projections = true;
  const auto fuse = [&plain](const Weights& separate) {
    Weights result = separate;
    const auto stack = [&result](const std::string& to, const std::vector<std::string>& from) {
      std::vector<double> entries;
      Index rows = 0;
      Index cols = 0;
      for (const std::string& name : from) {
        const Matrix& part = result.at(name);
        entries.insert(entries.end(), part.data(), part.data() + part.size());
        rows += part.rows();
        cols = part.cols();
      }
      // A bias is one row, so its parts follow one another in it.
      if (to.ends_with(".bias")) cols = static_cast<Index>(entries.size()), rows = 1;
      result[to] = Eigen::Map<const Matrix>(entries.data(), rows, cols);
      for (const std::string& name : from) result.erase(name);
    };
    for (int layer = 0; layer < plain.num_hidden_layers; ++layer) {
      const std::string attention = layer_prefix(layer) + "self_attn.";
      for (const std::string kind : {".weight", ".bias"}) {
        stack(attention + "qkv_proj" + kind,
              {attention + "q_proj" + kind, attention + "k_proj" + kind, attention + "v_proj" + kind});
      }
      const std::string mlp = layer_prefix(layer) + "mlp.";
      stack(mlp + "gate_up_proj.weight", {mlp + "gate_proj.weight", mlp + "up_proj.weight"});
    }
    return result;
  };
  const Result expected = evaluate(plain, weights, kBatch, sft(8.0));
  const Result actual = evaluate(fused, fuse(weights), kBatch, sft(8.0));
  expect_same(actual.log_probabilities, expected.log_probabilities);
  expect_same(actual.gradients, fuse(expected.gradients));
}

TEST(ReferenceNorms, OnePlusWeightIsAWeight) {
  ModelConfig config = small_model();
  const Weights weights = random_weights(config, 58);
  Weights less_one = weights;
  for (auto& [name, weight] : less_one) {
    if (name.ends_with("norm.weight")) weight.array() -= 1.0;
  }
  const Result expected = evaluate(config, weights, kBatch, sft(8.0));
  config.norm_adds_one = true;
  const Result actual = evaluate(config, less_one, kBatch, sft(8.0));
  expect_same(actual.log_probabilities, expected.log_probabilities);
  expect_same(actual.gradients, expected.gradients);
}

TEST(ReferenceEmbedding, ScaleIsPartOfTheTable) {
  ModelConfig config = small_model();
  const Weights weights = random_weights(config, 59);
  Weights scaled = weights;
  scaled["model.embed_tokens.weight"] *= 2.4;
  const Result expected = evaluate(config, scaled, kBatch, sft(8.0));
  config.embedding_scale = 2.4;
  const Result actual = evaluate(config, weights, kBatch, sft(8.0));
  expect_same(actual.log_probabilities, expected.log_probabilities);
  Weights gradients = expected.gradients;
  gradients["model.embed_tokens.weight"] *= 2.4;
  expect_same(actual.gradients, gradients);
}

TEST(ReferenceCaps, LogitsStayBelowTheCapAndScoresUnderAHighOneAreTheirOwn) {
  ModelConfig config = small_model();
  const Weights weights = random_weights(config, 60);
  const Matrix hidden = random_matrix(5, config.hidden_size, 61, -9.0, 9.0);
  const Matrix free = logits_of(config, weights, hidden);
  config.final_logit_softcapping = 3.0;
  const Matrix capped = logits_of(config, weights, hidden);
  EXPECT_GT(free.cwiseAbs().maxCoeff(), 3.0);
  for (Index i = 0; i < free.size(); ++i) {
    EXPECT_NEAR(capped.data()[i], 3.0 * std::tanh(free.data()[i] / 3.0), 1e-14);
  }

  config.final_logit_softcapping = 0.0;
  const std::vector<double> plain = scores(config, weights);
  config.attn_logit_softcapping = 1e7;
  expect_same(scores(config, weights), plain);
  config.attn_logit_softcapping = 0.5;
  EXPECT_GT(largest_difference(scores(config, weights), plain), 1e-3);
}

TEST(ReferenceGemma, OneLayerWrittenOutForOneToken) {
  ModelConfig config = small_model();
  config.num_hidden_layers = 1;
  config.num_attention_heads = config.num_key_value_heads = 1;
  config.qkv_bias = config.qk_norm = false;
  config.tie_word_embeddings = true;
  config.sandwich_norms = true;
  config.norm_adds_one = true;
  config.embedding_scale = 3.0;
  config.final_logit_softcapping = 2.0;
  config.hidden_act = Activation::kGeluTanh;
  const Weights w = random_weights(config, 62);
  const auto norm = [&](const std::string& name, const Eigen::VectorXd& x) -> Eigen::VectorXd {
    const double rms = std::sqrt(x.squaredNorm() / static_cast<double>(x.size()) + config.rms_norm_eps);
    return (x.array() / rms * (1.0 + w.at(name + ".weight").row(0).transpose().array())).matrix();
  };
  const auto times = [&](const std::string& name, const Eigen::VectorXd& x) -> Eigen::VectorXd {
    return w.at(kFirstLayer + name + ".weight") * x;
  };
  // The only token attends to itself, and gets its own value.
  Eigen::VectorXd h = 3.0 * w.at("model.embed_tokens.weight").row(4).transpose();
  const Eigen::VectorXd value = times("self_attn.v_proj", norm(kFirstLayer + "input_layernorm", h));
  h += norm(kFirstLayer + "post_attention_layernorm", times("self_attn.o_proj", value));
  const Eigen::VectorXd n = norm(kFirstLayer + "pre_feedforward_layernorm", h);
  Eigen::VectorXd gate = times("mlp.gate_proj", n);
  for (double& x : gate)
    x *= 0.5 * (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
  const Eigen::VectorXd product = gate.cwiseProduct(times("mlp.up_proj", n));
  h += norm(kFirstLayer + "post_feedforward_layernorm", times("mlp.down_proj", product));
  const Eigen::ArrayXd z = (w.at("model.embed_tokens.weight") * norm("model.norm", h)).array();
  const Eigen::ArrayXd p = (2.0 * (z / 2.0).tanh()).exp();
  EXPECT_NEAR(scores(config, w, {{{4}, {3}, {9}}})[0], std::log(p(9) / p.sum()), 1e-13);
}

}  // namespace
}  // namespace streambp::reference
