// What OLMo 2, SmolLM3, Granite, GLM-4 and Ministral 3 change in the reference's decoder, by identities that
// tie each setting to a model without it, and layers written out by hand.
#include <cmath>
#include <functional>
#include <gtest/gtest.h>
#include <stdexcept>

#include "reference/check/check.h"
#include "reference/objectives/objectives.h"
#include "reference/ops/ops.h"
#include "verify/tests/reference/model_testing.h"

namespace streambp::reference {
namespace {

const std::string kLayer = "model.layers.0.";

/// Compares log-probabilities and gradients of two models, after `translate` has given the gradients of the
/// first the names and scales of the second.
void expect_equal_models(const ModelConfig& config, const Weights& weights, const ModelConfig& other,
                         const Weights& others, const std::function<void(Weights&)>& translate) {
  const Result actual = evaluate(config, weights, kBatch, sft(8.0));
  const Result expected = evaluate(other, others, kBatch, sft(8.0));
  expect_same(actual.log_probabilities, expected.log_probabilities);
  Weights gradients = actual.gradients;
  translate(gradients);
  expect_same(gradients, expected.gradients);
}

TEST(ReferenceNoRope, IsARotationByNothingInItsLayer) {
  ModelConfig config = small_model();
  const Weights weights = random_weights(config, 201);
  const std::vector<double> rotated = scores(config, weights);
  std::vector<Sequence> at_zero = kBatch;
  for (Sequence& sequence : at_zero) sequence.positions.assign(sequence.tokens.size(), 0.0);
  const std::vector<double> unrotated = scores(config, weights, at_zero);
  EXPECT_GT(largest_difference(rotated, unrotated), 1e-4);
  config.no_rope = {false, false};
  EXPECT_EQ(scores(config, weights), rotated);
  config.no_rope = {true, true};
  EXPECT_EQ(scores(config, weights), unrotated);
  for (const std::vector<bool>& layers : {std::vector<bool>{true, false}, {false, true}}) {
    config.no_rope = layers;
    EXPECT_GT(largest_difference(scores(config, weights), rotated), 1e-4);
    EXPECT_GT(largest_difference(scores(config, weights), unrotated), 1e-4);
  }
}

/// Puts the entries that rotate as neighbours 2 i and 2 i + 1 to i and i + rotary_dim / 2 in every head; a
/// bias or norm is a row of such entries.
Matrix halves_of_neighbours(const Matrix& x, Index head_dim, Index rotary_dim) {
  const bool is_row = x.rows() == 1;
  const Matrix from = is_row ? Matrix(x.transpose()) : x;
  Matrix to = from;
  for (Index head = 0; head < from.rows(); head += head_dim) {
    for (Index i = 0; i < rotary_dim / 2; ++i) {
      to.row(head + i) = from.row(head + 2 * i);
      to.row(head + rotary_dim / 2 + i) = from.row(head + 2 * i + 1);
    }
  }
  return is_row ? Matrix(to.transpose()) : to;
}

TEST(ReferenceInterleavedRope, IsTheOtherInAnotherOrderOfEntries) {
  for (int rotary_dim : {6, 4}) {
    ModelConfig plain = small_model();
    plain.rotary_dim = rotary_dim;
    ModelConfig config = plain;
    config.rope_interleaved = true;
    const Weights weights = random_weights(config, 202);
    const auto reorder = [&](Weights& of) {
      for (auto& [name, weight] : of) {
        for (const char* module : {"q_proj.", "k_proj.", "q_norm.", "k_norm."}) {
          if (name.find(module) != std::string::npos) weight = halves_of_neighbours(weight, 6, rotary_dim);
        }
      }
    };
    Weights reordered = weights;
    reorder(reordered);
    expect_equal_models(config, weights, plain, reordered, reorder);
    EXPECT_GT(largest_difference(scores(config, weights), scores(plain, weights)), 1e-4);
  }
}

TEST(ReferenceGlm, TheSandwichUnderOtherNames) {
  ModelConfig plain = small_model();
  plain.sandwich_norms = true;
  ModelConfig config = plain;
  config.glm_norm_names = true;
  config.fused_gate_up = true;
  const Weights weights = random_weights(plain, 203);
  const auto rename = [&](Weights& of) {
    for (int layer = 0; layer < plain.num_hidden_layers; ++layer) {
      const std::string prefix = layer_prefix(layer);
      const auto move = [&](const std::string& from, const std::string& to) {
        auto node = of.extract(prefix + from + ".weight");
        node.key() = prefix + to + ".weight";
        of.insert(std::move(node));
      };
      move("post_attention_layernorm", "post_self_attn_layernorm");
      move("pre_feedforward_layernorm", "post_attention_layernorm");
      move("post_feedforward_layernorm", "post_mlp_layernorm");
      const Matrix gate = of.extract(prefix + "mlp.gate_proj.weight").mapped();
      const Matrix up = of.extract(prefix + "mlp.up_proj.weight").mapped();
      Matrix both(gate.rows() + up.rows(), gate.cols());
      both << gate, up;
      of[prefix + "mlp.gate_up_proj.weight"] = both;
    }
  };
  Weights renamed = weights;
  rename(renamed);
  expect_equal_models(plain, weights, config, renamed, rename);
}

TEST(ReferenceGranite, FactorsArePartsOfWeights) {
  const ModelConfig plain = small_model();
  ModelConfig config = plain;
  config.residual_multiplier = 0.22;
  config.logits_scaling = 6.0;
  const Weights weights = random_weights(config, 204);
  const auto rescale = [&](Weights& of, bool are_gradients) {
    for (auto& [name, weight] : of) {
      const bool adds =
          name.find("o_proj") != std::string::npos || name.find("down_proj") != std::string::npos;
      const double factor = adds ? 0.22 : name == "lm_head.weight" ? 1.0 / 6.0 : 1.0;
      weight *= are_gradients ? 1.0 / factor : factor;
    }
  };
  Weights rescaled = weights;
  rescale(rescaled, false);
  expect_equal_models(config, weights, plain, rescaled, [&](Weights& of) { rescale(of, true); });

  // Divided first, capped afterwards.
  const Matrix hidden = random_matrix(3, config.hidden_size, 205, -9.0, 9.0);
  const Matrix divided = logits_of(config, weights, hidden);
  config.final_logit_softcapping = 0.7;
  const Matrix capped = logits_of(config, weights, hidden);
  for (Index i = 0; i < divided.size(); ++i) {
    EXPECT_NEAR(capped.data()[i], 0.7 * std::tanh(divided.data()[i] / 0.7), 1e-15);
  }
}

TEST(ReferenceQueryScale, StepsUpWithEveryContextOfPreTraining) {
  ModelConfig config = small_model();
  const Weights weights = random_weights(config, 206);
  const auto at = [&](double first) {
    Sequence sequence = kSequence;
    for (double& position : sequence.positions) position += first;
    return std::vector<Sequence>{sequence};
  };
  ModelConfig scaled = config;
  scaled.query_scale_beta = 0.3;
  scaled.query_scale_original = 10.0;
  EXPECT_EQ(scores(scaled, weights, at(3)), scores(config, weights, at(3))) << "positions 3 to 9";
  // Positions 21 to 27 have two contexts behind them, 1 + floor(2.1) = 1 + floor(2.7) = 3.
  ModelConfig same = config;
  same.attention_scale = (1.0 + 0.3 * std::log(3.0)) / std::sqrt(6.0);
  expect_same(scores(scaled, weights, at(21)), scores(same, weights, at(21)));
  EXPECT_GT(largest_difference(scores(scaled, weights, at(21)), scores(config, weights, at(21))), 1e-4);
  // Of positions 5 to 11 the last two are scaled, and the last has no target.
  const std::vector<double> plain = scores(config, weights, at(5));
  const std::vector<double> stepped = scores(scaled, weights, at(5));
  for (std::size_t t = 0; t < 5; ++t) EXPECT_EQ(plain[t], stepped[t]) << t;
  EXPECT_GT(std::abs(plain[5] - stepped[5]), 1e-6);
}

/// One layer of OLMo 2 over two tokens, without a rotation, entry by entry.
double log_probability_of_olmo2(const ModelConfig& config, const Weights& w, int before, int token,
                                int target) {
  using Vector = Eigen::VectorXd;
  const auto norm = [&](const std::string& name, const Vector& x) -> Vector {
    const double rms = std::sqrt(x.squaredNorm() / static_cast<double>(x.size()) + config.rms_norm_eps);
    return (x.array() / rms * w.at(name + ".weight").row(0).transpose().array()).matrix();
  };
  const auto times = [&](const std::string& name, const Vector& x) -> Vector {
    return w.at(kLayer + name + ".weight") * x;
  };
  const Vector first = w.at("model.embed_tokens.weight").row(before).transpose();
  const Vector second = w.at("model.embed_tokens.weight").row(token).transpose();
  const Vector query = norm(kLayer + "self_attn.q_norm", times("self_attn.q_proj", second));
  Vector mixed(query.size());
  const Index head_dim = config.head_dim, group = config.num_attention_heads / config.num_key_value_heads;
  for (Index head = 0; head < config.num_attention_heads; ++head) {
    const auto part = [&](const Vector& x) -> Vector { return x.segment(head / group * head_dim, head_dim); };
    const auto weight_of = [&](const Vector& x) {
      const Vector key = part(norm(kLayer + "self_attn.k_norm", times("self_attn.k_proj", x)));
      return std::exp(query.segment(head * head_dim, head_dim).dot(key) / std::sqrt(1.0 * head_dim));
    };
    const double a = weight_of(first), b = weight_of(second);
    mixed.segment(head * head_dim, head_dim) =
        (a * part(times("self_attn.v_proj", first)) + b * part(times("self_attn.v_proj", second))) / (a + b);
  }
  Vector h = second + norm(kLayer + "post_attention_layernorm", times("self_attn.o_proj", mixed));
  const Vector gate = times("mlp.gate_proj", h);
  const Vector inner =
      (gate.array() / (1.0 + (-gate.array()).exp()) * times("mlp.up_proj", h).array()).matrix();
  h += norm(kLayer + "post_feedforward_layernorm", times("mlp.down_proj", inner));
  const Eigen::ArrayXd p = (w.at("lm_head.weight") * norm("model.norm", h)).array().exp();
  return std::log(p(target) / p.sum());
}

TEST(ReferenceOlmo, OneLayerWrittenOutForTwoTokens) {
  ModelConfig config = small_model();
  config.num_hidden_layers = 1;
  config.qkv_bias = false;
  config.norm_after = true;
  config.qk_norm_full_width = true;
  config.no_rope = {true};
  const Weights weights = random_weights(config, 207);
  EXPECT_EQ(weights.at(kLayer + "self_attn.q_norm.weight").cols(), 24);
  EXPECT_EQ(weights.at(kLayer + "self_attn.k_norm.weight").cols(), 12);
  EXPECT_FALSE(weights.contains(kLayer + "input_layernorm.weight"));
  const std::vector<Sequence> batch = {{{4, 7}, {0, 1}, {kNoTarget, 9}}};
  const double expected = log_probability_of_olmo2(config, weights, 4, 7, 9);
  const double error = std::abs(scores(config, weights, batch)[1] - expected);
  std::printf("difference %.1e\n", error);
  EXPECT_FALSE(!(error <= 1e-13)) << error;
}

TEST(ReferenceVariants, RefuseWhatDoesNotGoTogether) {
  const auto refuses = [](const std::function<void(ModelConfig&)>& spoil, const std::string& mentioned) {
    expect_refused(small_model(), spoil, mentioned);
  };
  const double nan = std::nan("");
  refuses([](ModelConfig& config) { config.no_rope = {true}; }, "whether it rotates");
  refuses([](ModelConfig& config) { config.glm_norm_names = true; }, "sandwich_norms");
  refuses([](ModelConfig& config) { config.norm_after = config.sandwich_norms = true; }, "norm_after");
  refuses([](ModelConfig& config) { config.qk_norm = false, config.qk_norm_full_width = true; }, "qk_norm");
  for (double bad : {0.0, -1.0, nan}) {
    refuses([bad](ModelConfig& config) { config.residual_multiplier = bad; }, "residual_multiplier");
    refuses([bad](ModelConfig& config) { config.logits_scaling = bad; }, "logits_scaling");
    refuses([bad](ModelConfig& config) { config.query_scale_beta = 0.1, config.query_scale_original = bad; },
            "query_scale_original");
    refuses([bad](ModelConfig& config) { config.swiglu_alpha = 1.7, config.swiglu_limit = bad; },
            "swiglu_limit");
  }
  refuses([](ModelConfig& config) { config.swiglu_alpha = -1.0, config.swiglu_limit = 7.0; }, "swiglu_alpha");
  refuses(
      [](ModelConfig& config) {
        config.mixture = {4, 2, 3, false, 0.0, {true, true}};
        config.mixture.shared_expert_intermediate_size = -1;
      },
      "shared expert");
}

}  // namespace
}  // namespace streambp::reference
