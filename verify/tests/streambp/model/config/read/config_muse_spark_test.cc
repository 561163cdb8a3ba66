// Muse Spark in config.json: its class's defaults, its parameters, and refusals by name.
#include "verify/tests/streambp/model/config_testing.h"

namespace streambp {
namespace {

using nlohmann::json;

json spark() {
  return with(without(without(small_config("muse_spark_text"), "rope_theta"), "head_dim"),
              {{"num_hidden_layers", 5},
               {"num_local_experts", 6},
               {"num_experts_per_tok", 2},
               {"moe_intermediate_size", 12},
               {"moe_hidden_size", 20},
               {"tie_word_embeddings", false},
               {"mlp_layer_types", {"sparse", "dense", "sparse", "sparse", "dense"}}});
}

TEST(MuseSpark, HasItsClassesDefaults) {
  const Config config = parse(spark());
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.rope.theta, 5e5);
  EXPECT_EQ(config.windows, (std::vector<int64_t>{0, 2048, 2048, 2048, 0}));
  EXPECT_EQ(config.no_rope, (std::vector<bool>{true, false, false, false, true}));
  EXPECT_EQ(config.attention_scale, 5.4730064863875 / 8.0);
  EXPECT_EQ(config.logits_scaling, 1.0 / 0.1767766952966369);
  EXPECT_EQ(config.residual_temperature, 0.3);
  EXPECT_EQ(config.post_norm_eps, 1e-8);
  EXPECT_EQ(config.final_logit_softcapping, 20.0);
  EXPECT_TRUE(config.plain_norms && config.output_gate_map && config.reads_outputs());
  const MixtureSettings& mixture = config.mixture;
  EXPECT_EQ(mixture.sparse, (std::vector<bool>{true, false, true, true, false}));
  EXPECT_EQ(mixture.moe_hidden_size, 20);
  EXPECT_EQ(mixture.added_to_sum, 1e-15);
  EXPECT_NEAR(mixture.router_factor, 0.1767766952966369, 1e-16);
  EXPECT_TRUE(mixture.sigmoid_scores && mixture.corrected && mixture.norm_topk_prob);
  EXPECT_FALSE(mixture.has_router_loss());
  json published = spark();
  for (const char* key : {"num_local_experts", "num_experts_per_tok", "moe_intermediate_size",
                          "moe_hidden_size", "mlp_layer_types"})
    published = without(published, key);
  const Config of_class = parse(published);
  EXPECT_EQ(of_class.mixture.num_experts, 256);
  EXPECT_EQ(of_class.mixture.moe_hidden_size, 4096);
  EXPECT_EQ(of_class.mixture.sparse, std::vector<bool>(5, true));
  EXPECT_EQ(parse({{"model_type", "muse_spark"}, {"text_config", spark()}}), config);
  const json dense = with(spark(), {{"mlp_layer_types", std::vector<std::string>(5, "dense")}});
  EXPECT_EQ(parse(dense).mixture.num_experts, 0);
}

TEST(MuseSpark, HasTheParametersOfTransformers) {
  const Config config = parse(spark());
  const std::string layer = "model.layers.0.";
  EXPECT_TRUE(has_parameter(config, layer + "post_attention_residual_gate.gate", {48}));
  EXPECT_TRUE(has_parameter(config, layer + "post_feedforward_residual_gate.gate", {48}));
  EXPECT_TRUE(has_parameter(config, layer + "mlp.experts.gate_up_proj", {6, 24, 20}));
  EXPECT_TRUE(has_parameter(config, layer + "mlp.experts.down_proj", {6, 20, 12}));
  EXPECT_TRUE(has_parameter(config, layer + "mlp.experts.post_expert_norm.weight", {20}));
  EXPECT_TRUE(has_parameter(config, layer + "mlp.pre_expert_proj.weight", {20, 48}));
  EXPECT_TRUE(has_parameter(config, layer + "mlp.pre_expert_norm.weight", {20}));
  EXPECT_TRUE(has_parameter(config, layer + "mlp.post_expert_proj.weight", {48, 20}));
  EXPECT_TRUE(has_parameter(config, layer + "mlp.gate.weight", {6, 48}));
  EXPECT_TRUE(has_parameter(config, "model.layers.1.post_feedforward_layernorm.weight", {48}));
  EXPECT_FALSE(has_parameter(config, layer + "post_attention_layernorm.weight", {48}));
  EXPECT_FALSE(has_parameter(config, "model.layers.1.mlp.gate.weight", {6, 48}));
  EXPECT_TRUE(is_of_hyper_connection(layer + "post_attention_residual_gate.gate"));  // float32 or wider
}

TEST(MuseSpark, RefusesWhatDoesNotFit) {
  EXPECT_EQ(parse(with(spark(), {{"output_router_logits", true}})), parse(spark()));
  EXPECT_TRUE(refuses(with(spark(), {{"mlp_layer_types", {"sparse"}}}), "mlp_layer_types"));
  EXPECT_TRUE(refuses(with(spark(), {{"residual_gate_temperature", 0}}), "residual_gate_temperature is 0"));
  EXPECT_TRUE(refuses(with(spark(), {{"moe_hidden_size", 0}}), "moe_hidden_size is 0"));
  EXPECT_TRUE(refuses(with(spark(), {{"num_experts_per_tok", 7}}), "num_experts_per_tok is 7"));
  EXPECT_TRUE(refuses(with(spark(), {{"rope_theta", 1e4}}), "rope_parameters instead of it"));
  EXPECT_TRUE(
      refuses(with(spark(), {{"rope_parameters", {{"rope_type", "default"}}}}), "rope_theta is missing"));
  const json rope = {{"rope_type", "default"}, {"rope_theta", 300.0}};
  EXPECT_EQ(parse(with(spark(), {{"rope_parameters", rope}})).rope.theta, 300.0);
}

}  // namespace
}  // namespace streambp
