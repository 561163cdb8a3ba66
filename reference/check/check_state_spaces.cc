// Tiny models of the families of 2025 with new mathematics, for the checks by differences: state spaces,
// short convolutions, gates of channels, attention next to the MLP, and routers with a correction.
#include "reference/check/check_families.h"

namespace streambp::STREAMBP_REFERENCE {

ModelConfig tiny_granite_hybrid() {
  ModelConfig config = tiny_model();
  config.embedding_scale = 1.6;
  config.residual_multiplier = 0.6;
  config.attention_scale = 0.3;
  config.logits_scaling = 1.8;
  config.no_rope = {true, true};
  config.fused_gate_up = true;
  config.linear_attention = {true, false};
  config.delta_rule = {
      .key_heads = 2, .value_heads = 4, .key_head_dim = 3, .value_head_dim = 2, .conv_kernel = 3};
  config.delta_rule.state_space = config.delta_rule.conv_bias = true;
  config.delta_rule.time_step_low = 0.1;  // which some steps are below
  config.modules = {"mamba", "shared_mlp", "input_linear", "output_linear"};
  return config;
}

ModelConfig tiny_cohere2() {
  ModelConfig config = tiny_model();
  config.tie_word_embeddings = true;
  config.norm_centers = config.parallel = true;
  config.rope_interleaved = true;
  config.logits_scaling = 1.4;
  config.windows = {2, 0};
  config.no_rope = {false, true};
  return config;
}

ModelConfig tiny_lfm2() {
  ModelConfig config = tiny_model();
  config.qk_norm = config.tie_word_embeddings = true;
  config.linear_attention = {true, false};
  config.delta_rule.convolution_alone = true;
  config.delta_rule.conv_kernel = 3;
  config.modules.recurrence = "conv";
  config.modules.mlp = "feed_forward";
  config.modules.out = "out_proj";
  config.modules.gate = "w1";
  config.modules.up = "w3";
  config.modules.down = "w2";
  return config;
}

ModelConfig tiny_lfm3() {
  ModelConfig config = tiny_lfm2();
  config.modules.out = "o_proj";
  config.modules.before_attention = "operator_norm";
  config.modules.after_attention = "post_operator_norm";
  config.modules.before_mlp = "ffn_norm";
  config.modules.after_mlp = "post_ffn_norm";
  config.sandwich_norms = config.gates_heads = true;
  config.windows = {0, 2};
  config.local_rope = RopeSettings{.theta = 7.0};
  return config;
}

ModelConfig tiny_hunyuan() {
  ModelConfig config = tiny_model();
  config.qk_norm = true;
  config.norms_rotated_heads = true;
  config.qkv_bias = true;
  return config;
}

ModelConfig tiny_muse_glimmer() {
  ModelConfig config = tiny_model();
  config.norm_adds_one = config.sandwich_norms = config.plain_norms = config.output_gate_map = true;
  config.post_norm_eps = 0.1;  // far more than in real models, so that it is seen
  config.attention_scale = 1.3;
  config.logits_scaling = 1.4;
  config.final_logit_softcapping = 2.0;
  config.windows = {2, 0};
  config.no_rope = {false, true};
  return config;
}

ModelConfig tiny_muse_spark() {
  ModelConfig config = tiny_muse_glimmer();
  config.residual_temperature = 0.7;
  config.modules.before_mlp = "pre_feedforward_layernorm";
  config.modules.after_mlp = "post_feedforward_layernorm";
  config.mixture = tiny_experts({false, true});
  config.mixture.sigmoid_scores = config.mixture.corrected = config.mixture.norm_topk_prob = true;
  config.mixture.stacked = true;
  config.mixture.moe_hidden_size = 5;
  config.mixture.router_factor = 1.0 / config.logits_scaling;
  config.mixture.routed_scaling_factor = 1.4;
  return config;
}

ModelConfig tiny_step() {
  ModelConfig config = tiny_model();
  config.qk_norm = config.norm_adds_one = config.gates_heads = true;
  config.windows = {2, 0};
  config.window_attention_heads = 6;
  config.window_rotary_dim = config.head_dim;
  config.rotary_dim = 2;
  config.local_rope = RopeSettings{.theta = 7.0};
  config.mixture = tiny_experts({false, true});
  config.mixture.sigmoid_scores = config.mixture.corrected = config.mixture.norm_topk_prob = true;
  config.mixture.shared_expert_intermediate_size = 3;
  config.mixture.shared_expert_ungated = true;
  config.mixture.routed_scaling_factor = 1.4;
  // Nothing is clamped, where a difference would be of two sides of a bend: see limited_swiglu's checks.
  config.expert_limits = {0.0, 40.0};
  config.mlp_limits = {40.0, 40.0};
  return config;
}

ModelConfig tiny_ernie4_5_moe() {
  ModelConfig config = tiny_model();
  config.rope_interleaved = true;
  config.mixture = tiny_experts({true, true});
  config.mixture.router_aux_loss_coef = 0.6;  // far larger than in real models, so that it is seen
  config.mixture.shared_expert_intermediate_size = 3;
  config.mixture.shared_expert_ungated = config.mixture.corrected = true;
  config.mixture.correction = "moe_statics.e_score_correction_bias";
  config.mixture.least_sum = 0.5;  // which some tokens' sums are below
  return config;
}

ModelConfig tiny_lfm2_moe() {
  ModelConfig config = tiny_lfm2();
  config.mixture = tiny_experts({false, true});
  config.mixture.sigmoid_scores = config.mixture.corrected = true;
  config.mixture.correction = "expert_bias";
  config.mixture.added_to_sum = 0.1;  // far more than in real models, so that it is seen
  config.mixture.routed_scaling_factor = 1.4;
  return config;
}

ModelConfig tiny_granite_hybrid_moe() {
  ModelConfig config = tiny_granite_hybrid();
  config.mixture = tiny_experts({true, true});
  config.mixture.granite_names = config.mixture.shared_expert_ungated = true;
  config.mixture.shared_expert_intermediate_size = config.intermediate_size;
  config.mixture.router_aux_loss_coef = 0.6;
  return config;
}

ModelConfig tiny_falcon_h1() {
  ModelConfig config = tiny_model();
  config.linear_attention = {true, true};
  config.delta_rule = tiny_granite_hybrid().delta_rule;
  config.delta_rule.beside_attention = true;
  config.delta_rule.norm_before_gate = true;
  config.delta_rule.in_multipliers = {0.7, 1.4, 0.9, 1.1, 0.8};
  config.delta_rule.out_multiplier = 0.6;
  config.query_multiplier = 0.8;
  config.key_multiplier = 1.2;
  config.attention_multiplier = 1.3;
  config.gate_multiplier = 1.5;
  config.down_multiplier = 0.7;
  config.modules.recurrence = "mamba";
  config.modules.mlp = "feed_forward";
  config.modules.before_mlp = "pre_ff_layernorm";
  return config;
}

ModelConfig tiny_zamba2() {
  ModelConfig config = tiny_model();
  config.num_hidden_layers = 4;
  config.num_key_value_heads = config.num_attention_heads;
  config.head_dim = 2 * config.hidden_size / config.num_attention_heads;
  config.attention_scale = 0.6;
  config.hidden_act = Activation::kGelu;
  config.linear_attention = {true, true, true, true};
  config.no_mlp = {true, true, true, true};
  config.shared_blocks = {{true, false, true, true}, 2, 3, true};
  config.delta_rule = tiny_granite_hybrid().delta_rule;
  config.rms_norm_eps = 0.1;  // with less, norms of norms are too steep for differences
  config.delta_rule.norm_eps = 0.05;
  config.modules.recurrence = "mamba";
  return config;
}

ModelConfig tiny_nemotron_h() {
  ModelConfig config = tiny_model();
  config.num_hidden_layers = 4;
  config.hidden_act = Activation::kRelu2;
  config.no_rope = {true, true, true, true};
  config.linear_attention = {true, false, false, false};
  config.no_mixer = {false, false, true, true};
  config.no_mlp = {true, true, false, false};
  config.mixture = tiny_experts({false, false, false, true});
  config.mixture.shared_expert_intermediate_size = 3;
  config.mixture.shared_expert_ungated = true;
  config.mixture.sigmoid_scores = config.mixture.corrected = true;
  config.delta_rule = tiny_granite_hybrid().delta_rule;
  config.modules.recurrence = config.modules.mlp = config.modules.attention = "mixer";
  return config;
}

ModelConfig tiny_kimi_linear() {
  ModelConfig config = tiny_model();
  config.latent = {0, 4, 3, 4, 2, 0.0};
  config.no_rope = {true, true};
  config.linear_attention = {true, false};
  config.delta_rule = {
      .key_heads = 2, .value_heads = 2, .key_head_dim = 3, .value_head_dim = 3, .conv_kernel = 3};
  config.delta_rule.channel_gates = true;
  config.modules.recurrence = "self_attn";
  config.mixture.num_experts = 4;
  config.mixture.num_experts_per_tok = 2;
  config.mixture.moe_intermediate_size = 5;
  config.mixture.norm_topk_prob = true;
  config.mixture.sparse = {false, true};
  config.mixture.shared_expert_intermediate_size = 3;
  config.mixture.shared_expert_ungated = true;
  config.mixture.sigmoid_scores = config.mixture.corrected = true;
  config.mixture.routed_scaling_factor = 1.4;
  return config;
}

}  // namespace streambp::STREAMBP_REFERENCE
