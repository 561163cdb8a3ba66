// What config.json says of families of 2025 with new mathematics: Mamba-2's layers, layers that are halves,
// convolutions, attention next to the MLP.
#include "verify/tests/streambp/model/config_testing.h"

namespace streambp {
namespace {

using nlohmann::json;
using Windows = std::vector<int64_t>;

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
  const Config mixture = parse(with(published, {{"num_local_experts", 4}, {"num_experts_per_tok", 3}}));
  EXPECT_EQ(mixture.mixture.sparse, std::vector<bool>(3, true));
  EXPECT_EQ(mixture.mixture.num_experts, 4);
  EXPECT_EQ(mixture.mixture.num_experts_per_tok, 3);
  EXPECT_EQ(mixture.mixture.moe_intermediate_size, 7);
  EXPECT_EQ(mixture.mixture.shared_expert_intermediate_size, 44);
  EXPECT_EQ(parse(without(published, "num_local_experts")).mixture.num_experts, 8);
  EXPECT_TRUE(refuses(with(published, {{"mamba_d_head", 9}}), "mamba_d_head is 9"));
  EXPECT_TRUE(refuses(with(published, {{"mamba_n_heads", 7}}), "mamba_n_heads is 7"));
  EXPECT_TRUE(refuses(with(published, {{"mamba_n_groups", 3}}), "mamba_n_groups is 3"));
  EXPECT_TRUE(parse(with(published, {{"mamba_proj_bias", true}})).delta_rule.in_bias);
  EXPECT_TRUE(refuses(with(published, {{"time_step_limit", nullptr}}), "time_step_limit is null"));
  EXPECT_TRUE(refuses(with(published, {{"time_step_limit", {2, 1}}}), "time_step_limit"));
  EXPECT_TRUE(refuses(with(published, {{"position_embedding_type", "alibi"}}), "position_embedding_type"));
}

TEST(Cohere, HasOneNormForAttentionAndMlpWhichRemovesTheMean) {
  const json cohere2 = with(without(without(small_config("cohere2"), "rms_norm_eps"), "num_key_value_heads"),
                            {{"num_hidden_layers", 5}, {"layer_norm_eps", 1e-4}, {"logit_scale", 0.25}});
  const Config config = parse(cohere2);
  EXPECT_TRUE(config.parallel && config.norm_centers && config.rope_interleaved &&
              config.tie_word_embeddings);
  EXPECT_EQ(config.norm_names(0).before_attention, "input_layernorm");
  EXPECT_EQ(config.norm_names(0).before_mlp, "");
  EXPECT_EQ(config.rms_norm_eps, 1e-4);
  EXPECT_EQ(config.logits_scaling, 4.0);
  EXPECT_EQ(config.num_key_value_heads, 6);
  EXPECT_EQ(config.windows, (Windows{4096, 4096, 4096, 0, 4096}));
  EXPECT_EQ(config.no_rope, (std::vector<bool>{false, false, false, true, false}));
  EXPECT_EQ(parse(with(cohere2, {{"sliding_window_pattern", 2}, {"sliding_window", 7}})).windows,
            (Windows{7, 0, 7, 0, 7}));
  EXPECT_TRUE(refuses(with(cohere2, {{"head_dim", 10}}), "head_dim"));
  EXPECT_TRUE(refuses(with(cohere2, {{"logit_scale", 0}}), "logit_scale is 0"));
  EXPECT_TRUE(refuses(with(cohere2, {{"rotary_pct", 0.5}}), "rotary_pct is 0.5"));
  EXPECT_TRUE(refuses(with(cohere2, {{"use_parallel_block", false}}), "use_parallel_block is false"));

  const json cohere = without(without(small_config("cohere"), "rms_norm_eps"), "rope_theta");
  EXPECT_TRUE(parse(cohere).parallel && parse(cohere).no_rope.empty());
  EXPECT_EQ(parse(cohere).rope.theta, 5e5);
  EXPECT_EQ(parse(cohere).logits_scaling, 16.0);
  EXPECT_TRUE(parse(with(cohere, {{"attention_bias", true}})).o_bias);
  EXPECT_FALSE(parse(cohere).qk_norm);
  EXPECT_TRUE(parse(with(cohere, {{"use_qk_norm", true}})).qk_norm_by_head);
  EXPECT_TRUE(refuses(with(cohere2, {{"use_qk_norm", true}}), "use_qk_norm is true"));
  EXPECT_TRUE(refuses(with(small_config("llama"), {{"logit_scale", 0.5}}), "logit_scale is 0.5"));
}

TEST(Lfm2, HasConvolutionsAndWorksOutItsWidth) {
  const json published = {{"model_type", "lfm2"},
                          {"hidden_size", 32},
                          {"vocab_size", 101},
                          {"num_hidden_layers", 3},
                          {"num_attention_heads", 4},
                          {"num_key_value_heads", 2},
                          {"block_ff_dim", 6656},
                          {"norm_eps", 1e-4},
                          {"conv_L_cache", 3},
                          {"conv_dim", 32},
                          {"conv_bias", false},
                          {"tie_embedding", true},
                          {"layer_types", {"conv", "full_attention", "conv"}}};
  const Config config = parse(published);
  EXPECT_EQ(config.linear_attention, (std::vector<bool>{true, false, true}));
  EXPECT_EQ(config.intermediate_size, 4608);
  EXPECT_EQ(config.rms_norm_eps, 1e-4);
  EXPECT_EQ(config.rope.theta, 1e6);
  EXPECT_TRUE(config.qk_norm && config.tie_word_embeddings);
  EXPECT_EQ(config.delta_rule.channels(), 32);
  EXPECT_EQ(config.delta_rule.conv_kernel, 3);
  EXPECT_EQ(parse(with(without(published, "layer_types"), {{"full_attn_idxs", {1}}})), config);
  EXPECT_FALSE(parse(without(published, "layer_types")).is_recurrent(0));
  EXPECT_EQ(parse(with(without(published, "block_ff_dim"), {{"intermediate_size", 6656}})), config);
  EXPECT_EQ(parse(with(published, {{"block_auto_adjust_ff_dim", false}})).intermediate_size, 6656);
  EXPECT_EQ(parse(with(published, {{"block_ffn_dim_multiplier", nullptr}})).intermediate_size, 4437);
  EXPECT_EQ(parse(with(published, {{"block_ffn_dim_multiplier", 1.3}, {"block_multiple_of", 10}}))
                .intermediate_size,
            5770);
  EXPECT_FALSE(parse(with(published, {{"tie_embedding", false}})).tie_word_embeddings);
  const DeltaRuleSettings biased = parse(with(published, {{"conv_bias", true}})).delta_rule;
  EXPECT_TRUE(biased.conv_bias && biased.in_bias && biased.out_bias);
  EXPECT_TRUE(refuses(with(published, {{"conv_dim", 16}}), "conv_dim is 16"));
  EXPECT_TRUE(refuses(with(published, {{"layer_types", {"conv", "mamba", "conv"}}}), "layer_types"));
  EXPECT_TRUE(refuses(with(without(published, "layer_types"), {{"full_attn_idxs", {3}}}), "full_attn_idxs"));
}

TEST(Lfm2Moe, HasExpertsAboveItsDenseLayers) {
  const json published = {{"model_type", "lfm2_moe"},
                          {"hidden_size", 32},
                          {"vocab_size", 101},
                          {"num_hidden_layers", 3},
                          {"num_attention_heads", 4},
                          {"num_key_value_heads", 2},
                          {"intermediate_size", 44},
                          {"moe_intermediate_size", 12},
                          {"num_experts", 6},
                          {"num_experts_per_tok", 2},
                          {"layer_types", {"conv", "full_attention", "conv"}}};
  const Config config = parse(published);
  EXPECT_EQ(config.intermediate_size, 44);
  EXPECT_EQ(config.mixture.sparse, (std::vector<bool>{false, false, true}));
  EXPECT_TRUE(config.mixture.sigmoid_scores && config.mixture.corrected && config.mixture.norm_topk_prob);
  EXPECT_EQ(config.mixture.added_to_sum, 1e-6);
  EXPECT_EQ(config.rope.theta, 1e6);
  EXPECT_FALSE(parse(with(published, {{"use_expert_bias", false}})).mixture.corrected);
  EXPECT_EQ(parse(with(published, {{"num_dense_layers", 0}})).mixture.sparse, std::vector<bool>(3, true));
  EXPECT_EQ(parse(with(published, {{"routed_scaling_factor", 1.5}})).mixture.routed_scaling_factor, 1.5);
  EXPECT_TRUE(refuses(with(published, {{"num_dense_layers", 3}}), "num_dense_layers is 3"));
  EXPECT_TRUE(refuses(with(published, {{"num_experts_per_tok", 7}}), "num_experts_per_tok is 7"));
  EXPECT_EQ(parse(with(published, {{"output_router_logits", true}})), parse(published));
}

TEST(FalconH1, HasAStateSpaceNextToAttention) {
  const json published = {{"model_type", "falcon_h1"},
                          {"hidden_size", 32},
                          {"vocab_size", 101},
                          {"num_hidden_layers", 2},
                          {"num_attention_heads", 4},
                          {"num_key_value_heads", 2},
                          {"head_dim", 16},
                          {"intermediate_size", 44},
                          {"mamba_d_ssm", 48},
                          {"mamba_d_head", 12},
                          {"mamba_n_heads", 4},
                          {"mamba_d_state", 5},
                          {"mamba_rms_norm", false},
                          {"attn_layer_indices", nullptr},
                          {"attention_in_multiplier", 0.5},
                          {"key_multiplier", 3.0},
                          {"ssm_in_multiplier", 2.0},
                          {"ssm_multipliers", {1.0, 2.0, 3.0, 4.0, 5.0}},
                          {"mlp_multipliers", {0.25, 0.75}},
                          {"lm_head_multiplier", 0.5}};
  const Config config = parse(published);
  EXPECT_TRUE(config.is_recurrent(0) && config.attends(0) && config.attends(1));
  EXPECT_EQ(config.delta_rule.values(), 48);
  EXPECT_FALSE(config.delta_rule.norms_gated);
  EXPECT_EQ(config.delta_rule.in_multipliers, (std::array<double, 5>{2.0, 4.0, 6.0, 8.0, 10.0}));
  EXPECT_EQ(config.query_multiplier, 0.5);
  EXPECT_EQ(config.key_multiplier, 1.5);
  EXPECT_EQ(config.gate_multiplier, 0.25);
  EXPECT_EQ(config.down_multiplier, 0.75);
  EXPECT_EQ(config.logits_scaling, 2.0);
  EXPECT_EQ(config.norm_names(0).before_mlp, "pre_ff_layernorm");
  EXPECT_TRUE(parse(with(published, {{"mamba_rms_norm", true}})).delta_rule.norm_before_gate);
  const json after = {{"mamba_rms_norm", true}, {"mamba_norm_before_gate", false}};
  EXPECT_FALSE(parse(with(published, after)).delta_rule.norm_before_gate);
  const json expanded = {{"mamba_d_ssm", nullptr}, {"mamba_d_head", 16}};
  EXPECT_EQ(parse(with(published, expanded)).delta_rule.values(), 64);
  EXPECT_TRUE(refuses(with(published, {{"mamba_d_ssm", 50}}), "mamba_n_heads is 4", "mamba_d_ssm (50)"));
  EXPECT_TRUE(refuses(with(published, {{"attention_bias", true}}), "attention_in_multiplier is 0.5"));
  const DeltaRuleSettings out_alone = parse(with(published, {{"projectors_bias", true}})).delta_rule;
  EXPECT_TRUE(out_alone.out_bias && !out_alone.in_bias);
  EXPECT_TRUE(refuses(with(published, {{"mamba_proj_bias", true}, {"ssm_in_multiplier", 1.5}}),
                      "ssm_in_multiplier is 1.5"));
  EXPECT_TRUE(refuses(with(published, {{"ssm_multipliers", {1.0, 2.0}}}), "ssm_multipliers", "5 numbers"));
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
  EXPECT_EQ(mixture.moe_hidden_size, 0);
  const Config latent = parse(with(sparse, {{"moe_latent_size", 8}, {"mlp_bias", true}}));
  EXPECT_TRUE(latent.mixture.plain_latents && latent.mlp_bias);
  EXPECT_EQ(latent.expert_size(), 8);
  EXPECT_TRUE(refuses(with(sparse, {{"n_group", 4}}), "n_group is 4"));
  EXPECT_TRUE(refuses(with(published, {{"hybrid_override_pattern", "M-x"}}), "hybrid_override_pattern"));
  EXPECT_TRUE(refuses(with(published, {{"num_hidden_layers", 5}}), "num_hidden_layers is 5"));
  EXPECT_TRUE(refuses(with(published, {{"tie_word_embeddings", true}}), "tie_word_embeddings is true"));
  EXPECT_TRUE(refuses(with(published, {{"mamba_proj_bias", true}}), "mamba_proj_bias is true"));
  EXPECT_TRUE(parse(with(published, {{"use_bias", true}})).delta_rule.in_bias);
  EXPECT_TRUE(refuses(with(published, {{"mlp_hidden_act", "silu"}}), "mlp_hidden_act"));
}

// As moonshotai/Kimi-Linear-48B-A3B's config.json has it, in smaller sizes.
json kimi_linear() {
  return {{"model_type", "kimi_linear"},
          {"vocab_size", 101},
          {"hidden_size", 32},
          {"intermediate_size", 44},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 4},
          {"head_dim", 8},
          {"pad_token_id", 7},
          {"model_max_length", 4096},
          {"mla_use_nope", true},
          {"q_lora_rank", nullptr},
          {"kv_lora_rank", 14},
          {"qk_nope_head_dim", 6},
          {"qk_rope_head_dim", 4},
          {"v_head_dim", 7},
          {"rope_theta", 10000.0},
          {"rope_scaling", nullptr},
          {"linear_attn_config",
           {{"kda_layers", {1, 2, 4}},
            {"full_attn_layers", {3}},
            {"head_dim", 6},
            {"num_heads", 3},
            {"short_conv_kernel_size", 3}}},
          {"first_k_dense_replace", 1},
          {"moe_layer_freq", 1},
          {"moe_router_activation_func", "sigmoid"},
          {"moe_renormalize", true},
          {"moe_intermediate_size", 12},
          {"num_experts", 8},
          {"num_experts_per_token", 3},
          {"num_shared_experts", 2},
          {"num_expert_group", 2},
          {"topk_group", 1},
          {"topk_method", "noaux_tc"},
          {"routed_scaling_factor", 1.5}};
}

TEST(KimiLinear, ReadsThePublishedConfig) {
  const Config config = parse(kimi_linear());
  EXPECT_EQ(config.linear_attention, (std::vector<bool>{true, true, false, true}));
  EXPECT_EQ(config.no_rope, std::vector<bool>(4, true));
  EXPECT_EQ(config.max_position_embeddings, 4096);
  DeltaRuleSettings rule{
      .key_heads = 3, .value_heads = 3, .key_head_dim = 6, .value_head_dim = 6, .conv_kernel = 3};
  rule.channel_gates = true;
  EXPECT_EQ(config.delta_rule, rule);
  EXPECT_TRUE(config.is_latent() && !config.attends(0) && config.attends(2));
  EXPECT_EQ(config.latent.q_lora_rank, 0);
  const MixtureSettings& mixture = config.mixture;
  EXPECT_EQ(mixture.sparse, (std::vector<bool>{false, true, true, true}));
  EXPECT_EQ(mixture.num_experts, 8);
  EXPECT_EQ(mixture.num_experts_per_tok, 3);
  EXPECT_EQ(mixture.shared_expert_intermediate_size, 24);
  EXPECT_EQ(mixture.n_group, 2);
  EXPECT_EQ(mixture.routed_scaling_factor, 1.5);
  EXPECT_TRUE(mixture.norm_topk_prob && mixture.sigmoid_scores && mixture.corrected);
  EXPECT_TRUE(has_parameter(config, "model.layers.0.self_attn.forget_gate.A_log", {1, 1, 3, 1}));
  EXPECT_TRUE(has_parameter(config, "model.layers.0.self_attn.forget_gate.dt_bias", {18}));
  EXPECT_TRUE(has_parameter(config, "model.layers.0.self_attn.q_conv1d.weight", {18, 1, 3}));
  EXPECT_TRUE(has_parameter(config, "model.layers.0.self_attn.forget_gate.f_b_proj.weight", {18, 6}));
  EXPECT_TRUE(has_parameter(config, "model.layers.2.self_attn.kv_b_proj.weight", {52, 14}));
  EXPECT_FALSE(parse(with(kimi_linear(), {{"moe_renormalize", false}})).mixture.norm_topk_prob);
}

TEST(KimiLinear, ReadsWhatTransformersWrites) {
  const Config published = parse(kimi_linear());
  json written = without(without(kimi_linear(), "linear_attn_config"), "first_k_dense_replace");
  written["layer_types"] = {"linear_attention", "linear_attention", "full_attention", "linear_attention"};
  written["mlp_layer_types"] = {"dense", "sparse", "sparse", "sparse"};
  written["linear_head_dim"] = 6;
  written["linear_num_heads"] = 3;
  written["linear_conv_kernel_dim"] = 3;
  written["rope_parameters"] = nullptr;
  EXPECT_EQ(parse(written), published);
  EXPECT_EQ(parse(with(written, {{"linear_attn_config", kimi_linear()["linear_attn_config"]}})), published);
  // The class's own names as good as those of files.
  json named = without(without(written, "num_experts"), "model_max_length");
  named["num_local_experts"] = 8;
  named["max_position_embeddings"] = 4096;
  EXPECT_EQ(parse(named), published);
  EXPECT_EQ(
      parse(with(written, {{"mlp_layer_types", {"sparse", "dense", "sparse", "dense"}}})).mixture.sparse,
      (std::vector<bool>{true, false, true, false}));
  EXPECT_EQ(
      parse(with(without(written, "layer_types"), {{"num_hidden_layers", 6}, {"mlp_layer_types", nullptr}}))
          .linear_attention,
      (std::vector<bool>{true, true, true, true, false, true}));
}

TEST(KimiLinear, RefusesWhatContradictsItself) {
  const json kimi = kimi_linear();
  const auto listed = [&](const json& changes) {
    json changed = kimi;
    changed["linear_attn_config"].update(changes);
    return changed;
  };
  EXPECT_TRUE(refuses(listed({{"kda_layers", {1, 2}}}), "kda_layers", "all of the 4 layers"));
  EXPECT_TRUE(refuses(listed({{"kda_layers", {0, 1, 2}}}), "kda_layers", "from 1 to 4"));
  EXPECT_TRUE(refuses(listed({{"full_attn_layers", {3, 4}}}), "kda_layers", "in one list"));
  EXPECT_TRUE(refuses(with(kimi, {{"linear_num_heads", 4}}), "linear_num_heads is 4", "num_heads"));
  EXPECT_TRUE(refuses(
      with(kimi,
           {{"layer_types", {"full_attention", "linear_attention", "full_attention", "linear_attention"}}}),
      "layer_types", "linear_attn_config"));
  EXPECT_TRUE(refuses(with(kimi, {{"num_local_experts", 4}}), "num_local_experts is 4", "num_experts"));
  EXPECT_TRUE(refuses(with(kimi, {{"num_experts_per_token", 9}}), "num_experts_per_token is 9"));
  EXPECT_TRUE(refuses(with(kimi, {{"mla_use_nope", false}}), "mla_use_nope is false"));
  EXPECT_TRUE(refuses(with(kimi, {{"moe_router_activation_func", "softmax"}}), "moe_router_activation_func"));
  EXPECT_TRUE(refuses(with(kimi, {{"rope_scaling", {{"type", "yarn"}, {"factor", 2.0}}}}), "rope_scaling"));
  EXPECT_TRUE(refuses(with(kimi, {{"mlp_layer_types", {"dense"}}}), "mlp_layer_types", "4 layers"));
  EXPECT_TRUE(refuses(with(kimi, {{"num_key_value_heads", 2}}), "num_key_value_heads is 2"));
}

}  // namespace
}  // namespace streambp
