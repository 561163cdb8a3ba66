// Gemma 4 in the reference's decoder: identities that tie each of its settings to a model without it.
#include <algorithm>
#include <functional>
#include <gtest/gtest.h>
#include <stdexcept>
#include <vector>

#include "reference/check/check.h"
#include "reference/objectives/objectives.h"
#include "verify/tests/reference/gemma4_testing.h"

namespace streambp::reference {
namespace {

TEST(ReferenceGemma4, FullLayersHaveHeadsOfTheirOwn) {
  ModelConfig config = plain_gemma4();
  const Weights weights = random_weights(config, 604);
  const std::vector<double> expected = scores(config, weights);
  config.gemma4.global_head_dim = 6;
  config.gemma4.num_global_key_value_heads = 2;
  EXPECT_EQ(scores(config, weights), expected);

  config.gemma4.global_head_dim = 8;
  config.gemma4.num_global_key_value_heads = 4;
  const auto shapes = parameter_shapes(config);
  const auto rows = [&](const std::string& name) {
    return shapes.at("model.layers." + name + ".weight").first;
  };
  EXPECT_EQ(rows("0.self_attn.q_proj"), 4 * 6);
  EXPECT_EQ(rows("1.self_attn.q_proj"), 4 * 8);
  EXPECT_EQ(rows("0.self_attn.k_proj"), 2 * 6);
  EXPECT_EQ(rows("1.self_attn.v_proj"), 4 * 8);
  EXPECT_EQ(shapes.at("model.layers.1.self_attn.k_norm.weight").second, 8);
  EXPECT_EQ(shapes.at("model.layers.1.self_attn.o_proj.weight").second, 4 * 8);
}

TEST(ReferenceGemma4, KeysAsValuesAreValuesOfTheSameMatrix) {
  ModelConfig plain = plain_gemma4();
  plain.gemma4.value_norm = true;
  ModelConfig config = plain;
  config.gemma4.attention_k_eq_v = true;
  const Weights weights = random_weights(config, 605);
  const std::string k = "model.layers.1.self_attn.k_proj.weight",
                    v = "model.layers.1.self_attn.v_proj.weight";
  EXPECT_FALSE(weights.contains(v));
  EXPECT_TRUE(weights.contains("model.layers.0.self_attn.v_proj.weight"));
  Weights twice = weights;
  twice[v] = weights.at(k);
  const Result actual = evaluate(config, weights, kBatch, sft(8.0));
  Result expected = evaluate(plain, twice, kBatch, sft(8.0));
  expect_same(actual.log_probabilities, expected.log_probabilities);
  expected.gradients.at(k) += expected.gradients.at(v);
  expected.gradients.erase(v);
  expect_same(actual.gradients, expected.gradients);
}

TEST(ReferenceGemma4, NormedValuesHaveAllOneLength) {
  ModelConfig config = plain_gemma4();
  config.rms_norm_eps = 1e-12;
  const Weights weights = random_weights(config, 606);
  Weights larger = weights;
  for (auto& [name, weight] : larger) {
    if (name.find("v_proj") != std::string::npos) weight.topRows(6) *= 3.0;  // of one head
  }
  EXPECT_GT(largest_difference(scores(config, weights), scores(config, larger)), 1e-4);
  config.gemma4.value_norm = true;
  const double difference = largest_difference(scores(config, weights), scores(config, larger));
  std::printf("largest difference %.1e\n", difference);
  EXPECT_FALSE(!(difference <= 1e-9)) << difference;  // of the norm's epsilon
}

TEST(ReferenceGemma4, SharedKeysAreOfTheLastLayerOfTheirKind) {
  const ModelConfig config = sharing_gemma4();
  std::vector<int> sources;
  for (int layer = 0; layer < 5; ++layer) sources.push_back(config.key_value_layer(layer));
  EXPECT_EQ(sources, (std::vector<int>{0, 1, 2, 1, 2}));
  const auto shapes = parameter_shapes(config);
  for (const char* name : {"k_proj", "v_proj", "k_norm"}) {
    EXPECT_TRUE(shapes.contains("model.layers.2.self_attn." + std::string(name) + ".weight"));
    EXPECT_FALSE(shapes.contains("model.layers.3.self_attn." + std::string(name) + ".weight"));
  }
}

/// A second layer that sees the same stream as the first one, which adds nothing to it, has the first one's
/// keys and values also if it makes them by itself, of the same weights.
TEST(ReferenceGemma4, SharedKeysAreThoseOfTheSameWeightsAndStream) {
  ModelConfig plain = plain_gemma4();
  plain.windows = {3, 3};
  ModelConfig config = plain;
  config.gemma4.num_kv_shared_layers = 1;
  const std::vector<std::string> shared = {"self_attn.k_proj.weight", "self_attn.v_proj.weight",
                                           "self_attn.k_norm.weight"};
  const std::string input_norm = "input_layernorm.weight";
  const std::string first = layer_prefix(0), second = layer_prefix(1);
  Weights weights = random_weights(config, 607);
  weights.at(first + "self_attn.o_proj.weight").setZero();
  weights.at(first + "mlp.down_proj.weight").setZero();
  weights.at(second + input_norm) = weights.at(first + input_norm);
  Weights copied = weights;
  for (const std::string& name : shared) copied[second + name] = weights.at(first + name);

  const Result actual = evaluate(config, weights, kBatch, sft(8.0));
  Result expected = evaluate(plain, copied, kBatch, sft(8.0));
  expect_same(actual.log_probabilities, expected.log_probabilities);
  // What else the first layer has changes what it adds, which the keys of the second one see or don't.
  Weights gradients = actual.gradients;
  for (Weights* of : {&gradients, &expected.gradients}) {
    std::erase_if(*of, [&](const auto& entry) {
      const std::string name = entry.first.substr(std::min(first.size(), entry.first.size()));
      const bool is_compared =
          name == input_norm || std::find(shared.begin(), shared.end(), name) != shared.end();
      return entry.first.starts_with(first) && !is_compared;
    });
  }
  // The norm before both layers is one weight twice: what the keys want of it goes to the other copy.
  for (Weights* of : {&gradients, &expected.gradients}) {
    of->at(first + input_norm) += of->at(second + input_norm);
    of->erase(second + input_norm);
  }
  for (const std::string& name : shared) {
    expected.gradients.at(first + name) += expected.gradients.at(second + name);
    expected.gradients.erase(second + name);
  }
  expect_same(gradients, expected.gradients);
  EXPECT_GT(gradients.at(first + shared[0]).norm(), 1e-6);
}

TEST(ReferenceGemma4, LayersWithSharedKeysHaveMlpsTwiceAsWide) {
  ModelConfig config = sharing_gemma4();
  config.gemma4.use_double_wide_mlp = true;
  const auto shapes = parameter_shapes(config);
  for (int layer = 0; layer < 5; ++layer) {
    const Index width = layer < 3 ? 9 : 18;
    EXPECT_EQ(shapes.at(layer_prefix(layer) + "mlp.gate_proj.weight").first, width);
    EXPECT_EQ(shapes.at(layer_prefix(layer) + "mlp.down_proj.weight").second, width);
  }
}

TEST(ReferenceGemma4, PerLayerInputsThatAreNotHeardChangeNothing) {
  const ModelConfig plain = plain_gemma4();
  ModelConfig config = plain;
  with_per_layer_inputs(config);
  Weights weights = random_weights(config, 608), without;
  for (const auto& [name, shape] : parameter_shapes(plain)) without[name] = weights.at(name);
  EXPECT_GT(largest_difference(scores(config, weights), scores(plain, without)), 1e-4);
  for (int layer : {0, 1}) weights.at(layer_prefix(layer) + "per_layer_projection.weight").setZero();
  EXPECT_EQ(scores(config, weights), scores(plain, without));
}

TEST(ReferenceGemma4, EveryLayerHasItsPartOfThePerLayerInputs) {
  ModelConfig config = plain_gemma4();
  with_per_layer_inputs(config);
  Weights weights = random_weights(config, 609);
  weights.at("model.layers.1.per_layer_projection.weight").setZero();
  const Result result = evaluate(config, weights, kBatch, sft(8.0));
  for (const char* name :
       {"model.embed_tokens_per_layer.weight", "model.per_layer_model_projection.weight"}) {
    const Matrix& gradient = result.gradients.at(name);
    const bool is_table = gradient.rows() == 15;
    const Matrix by_layer = is_table ? gradient : Matrix(gradient.transpose());
    EXPECT_GT(by_layer.leftCols(3).norm(), 1e-6) << name;
    EXPECT_EQ(by_layer.rightCols(3), Matrix::Zero(by_layer.rows(), 3)) << name;
  }
}

TEST(ReferenceGemma4, ThePaddingTokenLearnsInNeitherTable) {
  ModelConfig config = plain_gemma4();
  config.tie_word_embeddings = false;
  with_per_layer_inputs(config);
  const Weights weights = random_weights(config, 610);
  const Result trained = evaluate(config, weights, kBatch, sft(8.0));
  config.pad_token_id = 5;
  const Result held = evaluate(config, weights, kBatch, sft(8.0));
  EXPECT_EQ(held.log_probabilities, trained.log_probabilities);
  Weights expected = trained.gradients;
  for (const char* name : {"model.embed_tokens.weight", "model.embed_tokens_per_layer.weight"}) {
    EXPECT_GT(expected.at(name).row(5).norm(), 1e-6) << name;
    expected.at(name).row(5).setZero();
    EXPECT_EQ(held.gradients.at(name), expected.at(name)) << name;
  }
  expect_same(held.gradients, expected);
}

TEST(ReferenceGemma4, ALayersFactorIsHeldConstant) {
  ModelConfig config = plain_gemma4();
  const Weights plain = random_weights(config, 611);
  config.gemma4.layer_scalar = true;
  Weights weights = plain;
  const std::string first = layer_prefix(0) + "layer_scalar", last = layer_prefix(1) + "layer_scalar";
  weights[first] = weights[last] = Matrix::Ones(1, 1);
  ModelConfig without = config;
  without.gemma4.layer_scalar = false;
  EXPECT_EQ(scores(config, weights), scores(without, plain));
  weights.at(first)(0, 0) = 0.5;
  EXPECT_GT(largest_difference(scores(config, weights), scores(without, plain)), 1e-4);
  weights.at(first)(0, 0) = 1.0;
  weights.at(last)(0, 0) = -1.0;
  Weights reversed = plain;
  reversed.at("model.norm.weight") *= -1.0;
  expect_same(scores(config, weights), scores(without, reversed));
  const Result result = evaluate(config, weights, kBatch, sft(8.0));
  EXPECT_EQ(result.gradients.at(first), Matrix::Zero(1, 1));
  EXPECT_EQ(result.gradients.at(last), Matrix::Zero(1, 1));
}

TEST(ReferenceGemma4, AnExpertsScaleIsPartOfItsMatrix) {
  ModelConfig config = plain_gemma4();
  with_experts(config);
  const Weights weights = random_weights(config, 612);
  Weights merged = weights;
  const auto scale_of = [&](int layer, Index e) {
    return weights.at(layer_prefix(layer) + "router.per_expert_scale")(0, e);
  };
  for (int layer : {0, 1}) {
    merged.at(layer_prefix(layer) + "router.per_expert_scale").setOnes();
    for (Index e = 0; e < 4; ++e)
      merged.at(layer_prefix(layer) + "experts.down_proj").middleRows(10 * e, 10) *= scale_of(layer, e);
  }
  const Result actual = evaluate(config, weights, kBatch, sft(8.0));
  const Result expected = evaluate(config, merged, kBatch, sft(8.0));
  expect_same(actual.log_probabilities, expected.log_probabilities);
  Weights gradients = actual.gradients;
  for (int layer : {0, 1}) {
    for (Index e = 0; e < 4; ++e) {
      gradients.at(layer_prefix(layer) + "experts.down_proj").middleRows(10 * e, 10) /= scale_of(layer, e);
      gradients.at(layer_prefix(layer) + "router.per_expert_scale")(0, e) *= scale_of(layer, e);
    }
  }
  expect_same(gradients, expected.gradients);
}

TEST(ReferenceGemma4, AnAdapterOfAllExpertsIsPartOfTheirMatrices) {
  ModelConfig plain = plain_gemma4();
  with_experts(plain);
  ModelConfig config = plain;
  const std::string module = "model.layers.0.experts.gate_up_proj";
  config.adapters[module] = {2, 0.7};
  Weights weights = random_weights(config, 613);
  Weights merged = weights;
  const Matrix a = merged.extract(module + ".lora_A.weight").mapped();
  const Matrix b = merged.extract(module + ".lora_B.weight").mapped();
  for (Index e = 0; e < 4; ++e) {
    for (Index j = 0; j < 2; ++j)
      merged.at(module).middleRows(10 * e, 10) += 0.7 * b.col(4 * j + e) * a.row(2 * e + j);
  }
  expect_same(scores(config, weights), scores(plain, merged));
  weights.at(module + ".lora_B.weight").setZero();
  EXPECT_GT(largest_difference(scores(config, weights), scores(plain, merged)), 1e-4);
}

TEST(ReferenceGemma4, RefusesWhatDoesNotGoTogether) {
  const auto refuses = [](const std::function<void(ModelConfig&)>& spoil, const std::string& mentioned) {
    ModelConfig config = sharing_gemma4();
    with_experts(config);
    with_per_layer_inputs(config);
    parameter_shapes(config);
    expect_refused(config, spoil, mentioned);
  };
  refuses([](ModelConfig& config) { config.gemma4.global_head_dim = 7; }, "global_head_dim, got 7");
  refuses(
      [](ModelConfig& config) {
        config.gemma4.global_head_dim = 8;
        config.rotary_dim = 4;
      },
      "rotary_dim");
  refuses([](ModelConfig& config) { config.gemma4.num_global_key_value_heads = 3; }, "4 and 3");
  refuses([](ModelConfig& config) { config.gemma4.vocab_size_per_layer_input = 0; },
          "vocab_size_per_layer_input 0");
  refuses([](ModelConfig& config) { config.gemma4.hidden_size_per_layer_input = -1; },
          "hidden_size_per_layer_input");
  refuses([](ModelConfig& config) { config.gemma4.num_kv_shared_layers = 5; }, "below the 5 layers, got 5");
  refuses([](ModelConfig& config) { config.gemma4.num_kv_shared_layers = -1; }, "num_kv_shared_layers");
  refuses([](ModelConfig& config) { config.gemma4.num_kv_shared_layers = 3; }, "the keys of layer 2");
  refuses([](ModelConfig& config) { config.linear_attention.assign(5, false); }, "linear attention");
  refuses([](ModelConfig& config) { config.fused_projections = true; }, "no fused projections");
  refuses(
      [](ModelConfig& config) {
        config.fused_gate_up = true;
        config.gemma4.use_double_wide_mlp = true;
      },
      "fused gate_up_proj");
  refuses([](ModelConfig& config) { config.sandwich_norms = false; }, "sandwich_norms");
  refuses([](ModelConfig& config) { config.mixture.norm_topk_prob = false; }, "norm_topk_prob");
  refuses([](ModelConfig& config) { config.mixture.shared_expert_intermediate_size = 3; }, "shared experts");
  refuses([](ModelConfig& config) { config.intermediate_size = 0; }, "intermediate_size");

  ModelConfig latent = small_model();
  latent.qk_norm = false;
  latent.latent = {5, 7, 3, 4, 2};
  parameter_shapes(latent);
  expect_refused(
      latent, [](ModelConfig& config) { config.gemma4.value_norm = true; }, "Gemma 4's keys");
}

TEST(ReferenceGemma4, RefusesATokenThatTheSecondTableLacks) {
  ModelConfig config = plain_gemma4();
  with_per_layer_inputs(config);
  config.gemma4.vocab_size_per_layer_input = 9;  // kSequence has token 9
  EXPECT_THROW(scores(config, random_weights(config, 614)), std::invalid_argument);
}

}  // namespace
}  // namespace streambp::reference
