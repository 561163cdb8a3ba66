// What config.json says of Mamba-2's layers, and of layers that are halves.
#include "verify/tests/streambp/model/config_testing.h"

namespace streambp {
namespace {

using nlohmann::json;

TEST(GraniteHybrid, ReadsItsStateSpace) {
  const json published = {{"model_type", "granitemoehybrid"},
                          {"hidden_size", 32},
                          {"vocab_size", 101},
                          {"num_hidden_layers", 3},
                          {"num_attention_heads", 4},
                          {"num_key_value_heads", 2},
                          {"intermediate_size", 7},
                          {"shared_intermediate_size", 44},
                          {"num_local_experts", 0},
                          {"layer_types", {"mamba", "attention", "mamba"}},
                          {"mamba_n_heads", 8},
                          {"mamba_d_head", "auto"},
                          {"mamba_d_state", 16},
                          {"position_embedding_type", "nope"}};
  const Config config = parse(published);
  EXPECT_EQ(config.linear_attention, (std::vector<bool>{true, false, true}));
  EXPECT_EQ(config.no_rope, std::vector<bool>(3, true));
  EXPECT_EQ(config.intermediate_size, 44);
  DeltaRuleSettings rule{
      .key_heads = 1, .value_heads = 8, .key_head_dim = 16, .value_head_dim = 8, .conv_kernel = 4};
  rule.state_space = rule.conv_bias = true;
  EXPECT_EQ(config.delta_rule, rule);
  const json infinite = {{"__float__", "Infinity"}};
  EXPECT_EQ(parse(with(published, {{"time_step_limit", {0.0, infinite}}})), config);
  EXPECT_EQ(parse(with(published, {{"time_step_limit", {0.1, 2}}})).delta_rule.time_step_high, 2.0);
  EXPECT_TRUE(parse(with(published, {{"position_embedding_type", "rope"}})).rotates(0));
  EXPECT_EQ(
      parse(with(published, {{"layer_types", {"linear_attention", "full_attention", "linear_attention"}}})),
      config);
  EXPECT_TRUE(refuses(with(published, {{"num_local_experts", 8}}), "num_local_experts is 8", "lane module"));
  EXPECT_TRUE(refuses(without(published, "num_local_experts"), "num_local_experts is missing"));
  EXPECT_TRUE(refuses(with(published, {{"mamba_d_head", 9}}), "mamba_d_head is 9"));
  EXPECT_TRUE(refuses(with(published, {{"mamba_n_heads", 7}}), "mamba_n_heads is 7"));
  EXPECT_TRUE(refuses(with(published, {{"mamba_n_groups", 3}}), "mamba_n_groups is 3"));
  EXPECT_TRUE(refuses(with(published, {{"mamba_proj_bias", true}}), "mamba_proj_bias is true"));
  EXPECT_TRUE(refuses(with(published, {{"time_step_limit", nullptr}}), "time_step_limit is null"));
  EXPECT_TRUE(refuses(with(published, {{"time_step_limit", {2, 1}}}), "time_step_limit"));
  EXPECT_TRUE(refuses(with(published, {{"position_embedding_type", "alibi"}}), "position_embedding_type"));
}

TEST(Bamba, ReadsWhichLayersAttend) {
  const json published = {{"model_type", "bamba"},    {"hidden_size", 32},
                          {"vocab_size", 101},        {"num_hidden_layers", 4},
                          {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                          {"intermediate_size", 44},  {"attn_layer_indices", {1, 3}},
                          {"attn_rotary_emb", 4},     {"mamba_n_heads", 8},
                          {"mamba_d_head", 8},        {"mamba_d_state", 16}};
  const Config config = parse(published);
  EXPECT_EQ(config.linear_attention, (std::vector<bool>{true, false, true, false}));
  EXPECT_EQ(config.rotary_dim, 4);
  EXPECT_EQ(config.pad_token_id, 0);
  DeltaRuleSettings rule{
      .key_heads = 1, .value_heads = 8, .key_head_dim = 16, .value_head_dim = 8, .conv_kernel = 4};
  rule.state_space = rule.conv_bias = true;
  EXPECT_EQ(config.delta_rule, rule);
  EXPECT_EQ(config.norm_names(0).before_mlp, "pre_ff_layernorm");
  EXPECT_EQ(parse(without(published, "attn_layer_indices")).linear_attention, std::vector<bool>(4, true));
  EXPECT_EQ(parse(with(published, {{"rope_parameters", {{"partial_rotary_factor", 0.25}}}})).rotary_dim, 2);
  EXPECT_EQ(parse(with(published, {{"partial_rotary_factor", 0.5}})), config);
  EXPECT_TRUE(refuses(with(published, {{"partial_rotary_factor", 0.25}}), "partial_rotary_factor is 0.25"));
  EXPECT_TRUE(refuses(with(published, {{"attn_layer_indices", {4}}}), "attn_layer_indices"));
  EXPECT_TRUE(refuses(with(published, {{"attn_layer_indices", {-1}}}), "attn_layer_indices"));
  EXPECT_TRUE(refuses(with(published, {{"z_loss_coefficient", 0.1}}), "z_loss_coefficient is 0.1"));
  const json types = {"mamba", "attention", "mamba", "attention"};
  EXPECT_TRUE(refuses(with(published, {{"layer_types", types}}), "layer_types"));
}

TEST(NemotronH, HasHalvesOfLayers) {
  const json published = {{"model_type", "nemotron_h"},
                          {"hidden_size", 32},
                          {"vocab_size", 101},
                          {"intermediate_size", 44},
                          {"num_attention_heads", 4},
                          {"num_key_value_heads", 2},
                          {"head_dim", 8},
                          {"hybrid_override_pattern", "M-*M"},
                          {"mamba_num_heads", 16},
                          {"pad_token_id", 0},
                          {"mlp_hidden_act", "relu2"},
                          {"num_experts_per_tok", 2}};
  const Config config = parse(published);
  EXPECT_EQ(config.num_hidden_layers, 4);
  EXPECT_EQ(config.linear_attention, (std::vector<bool>{true, true, false, true}));
  EXPECT_EQ(config.no_mixer, (std::vector<bool>{false, true, false, false}));
  EXPECT_EQ(config.no_mlp, (std::vector<bool>{true, false, true, true}));
  EXPECT_EQ(config.delta_rule.channels(), 16 * 64 + 2 * 8 * 128);
  EXPECT_EQ(config.delta_rule.time_step_low, 0.001);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_FALSE(config.pad_token_id);
  // What published files say besides, of which the class reads nothing.
  EXPECT_EQ(parse(with(published, {{"partial_rotary_factor", 1.0},
                                   {"rope_theta", 10000},
                                   {"sliding_window", nullptr},
                                   {"mamba_ssm_cache_dtype", "float32"},
                                   {"norm_eps", 1e-5},
                                   {"num_nextn_predict_layers", 0},
                                   {"n_routed_experts", 128},
                                   {"time_step_limit", {0.0, 1.0}}})),
            config);
  const json types = {"linear_attention", "mlp", "attention", "mamba"};
  EXPECT_EQ(parse(with(without(published, "hybrid_override_pattern"), {{"layers_block_type", types}})),
            config);
  const json sparse =
      with(published, {{"hybrid_override_pattern", "ME*-"}, {"n_routed_experts", 6}, {"n_group", 2}});
  const MixtureSettings mixture = parse(sparse).mixture;
  EXPECT_EQ(mixture.sparse, (std::vector<bool>{false, true, false, false}));
  EXPECT_EQ(mixture.num_experts, 6);
  EXPECT_EQ(mixture.num_experts_per_tok, 2);
  EXPECT_EQ(mixture.n_group, 2);
  EXPECT_EQ(mixture.moe_intermediate_size, 7688);
  EXPECT_EQ(mixture.shared_expert_intermediate_size, 7688);
  EXPECT_TRUE(mixture.sigmoid_scores && mixture.norm_topk_prob && mixture.shared_expert_ungated);
  EXPECT_TRUE(refuses(with(sparse, {{"moe_latent_size", 8}}), "moe_latent_size is 8"));
  EXPECT_TRUE(refuses(with(sparse, {{"mlp_bias", true}}), "mlp_bias is true"));
  EXPECT_TRUE(refuses(with(sparse, {{"n_group", 4}}), "n_group is 4"));
  EXPECT_TRUE(refuses(with(published, {{"hybrid_override_pattern", "M-x"}}), "hybrid_override_pattern"));
  EXPECT_TRUE(refuses(with(published, {{"num_hidden_layers", 5}}), "num_hidden_layers is 5"));
  EXPECT_TRUE(refuses(with(published, {{"tie_word_embeddings", true}}), "tie_word_embeddings is true"));
  EXPECT_TRUE(refuses(with(published, {{"use_bias", true}}), "use_bias is true"));
  EXPECT_TRUE(refuses(with(published, {{"mlp_hidden_act", "silu"}}), "mlp_hidden_act"));
}

}  // namespace
}  // namespace streambp
