// Tiny models of the families of 2025 with new mathematics, for the checks by differences: state spaces,
// short convolutions, and attention next to the MLP.
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

ModelConfig tiny_nemotron_h() {
  ModelConfig config = tiny_model();
  config.num_hidden_layers = 4;
  config.hidden_act = Activation::kRelu2;
  config.no_rope = {true, true, true, true};
  config.linear_attention = {true, false, false, false};
  config.no_mixer = {false, false, true, true};
  config.no_mlp = {true, true, false, false};
  config.mixture.num_experts = 4;
  config.mixture.num_experts_per_tok = 2;
  config.mixture.moe_intermediate_size = 5;
  config.mixture.shared_expert_intermediate_size = 3;
  config.mixture.shared_expert_ungated = config.mixture.sigmoid_scores = config.mixture.norm_topk_prob = true;
  config.mixture.sparse = {false, false, false, true};
  config.delta_rule = tiny_granite_hybrid().delta_rule;
  config.modules.recurrence = config.modules.mlp = config.modules.attention = "mixer";
  return config;
}

}  // namespace streambp::STREAMBP_REFERENCE
