// Tiny models on DeepSeek-V3's latent attention, indexers or experts.
#include "reference/check/check_families.h"

namespace streambp::STREAMBP_REFERENCE {

ModelConfig tiny_deepseek_v3_small() {
  ModelConfig config = tiny_deepseek_v3();
  config.qkv_bias = false;
  config.o_bias = false;
  config.rope = {};
  config.rope_interleaved = false;
  config.latent.q_lora_rank = 0;
  config.mixture.n_group = 1;
  config.mixture.norm_topk_prob = false;
  return config;
}

ModelConfig tiny_glm4_moe() {
  ModelConfig config = tiny_model();
  config.qk_norm = true;
  config.qkv_bias = true;
  config.rotary_dim = 2;
  config.mixture = tiny_deepseek_v3().mixture;
  config.mixture.routed_scaling_factor = 1.0;  // more makes it too steep for differences
  return config;
}

ModelConfig tiny_deepseek_v32() {
  ModelConfig config = tiny_deepseek_v3();
  config.indexer = {.topk = 2, .heads = 3, .head_dim = 5};
  return config;
}

ModelConfig tiny_glm_moe_dsa() {
  ModelConfig config = tiny_deepseek_v32();
  config.rope = {};
  config.indexer.interleaved = true;
  config.indexer.shared = {false, true};
  config.mixture.n_group = 1;
  return config;
}

ModelConfig tiny_hy_v4() {
  ModelConfig config = tiny_glm_moe_dsa();
  config.rope_interleaved = config.indexer.interleaved = false;
  config.indexer.rotates_last = true;
  config.indexer.norm_eps = 1e-3;
  config.attention_sinks = config.output_gate_map = true;
  config.mixture.stacked = true;
  config.swiglu_limit = 40.0;  // see tiny_gpt_oss()
  config.hyper = {.streams = 2, .magnitude = 1.6, .eps = 1e-2};
  return config;
}

ModelConfig tiny_mistral_large4() {
  ModelConfig config = tiny_glm_moe_dsa();
  config.num_hidden_layers = 3;
  config.rope = {};
  config.rope.theta = 30.0;
  config.no_rope = {false, true, false};
  config.final_logit_softcapping = 5.0;
  config.latent.q_lora_rank = 0;
  config.latent.norm_eps = 1e-4;
  config.latent.trained_positions = config.indexer.reads_hidden = true;
  config.latent.sources = {0, 1, 0};
  config.indexer.shared = {false, false, true};
  config.mixture.sparse = {false, true, true};
  config.mixture.sigmoid_scores = config.mixture.corrected = false;
  config.mixture.n_group = 2;
  return config;
}

ModelConfig tiny_mistral4() {
  ModelConfig config = tiny_deepseek_v3();
  config.query_scale_beta = 0.4;
  config.query_scale_original = 4;
  config.mixture.sigmoid_scores = config.mixture.corrected = false;
  config.mixture.stacked = true;
  return config;
}

ModelConfig tiny_minimax_m3() {
  ModelConfig config = tiny_glm4_moe();
  config.qkv_bias = false;
  config.norm_adds_one = config.fused_gate_up = config.clamps_all_mlps = true;
  config.swiglu_alpha = 1.3;
  config.swiglu_limit = 40.0;  // see tiny_gpt_oss()
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.indexer = {.topk = 2, .heads = 2, .head_dim = 4};
  config.indexer.block = 2;
  config.indexer.local_blocks = 1;
  config.indexer.layers = {false, true};
  config.mixture.n_group = config.mixture.topk_group = 1;
  config.mixture.stacked = true;
  return config;
}

ModelConfig tiny_deepseek_v4() {
  ModelConfig config = tiny_model();
  config.num_hidden_layers = 3;
  config.num_attention_heads = 2;
  config.head_dim = 6;
  config.rotary_dim = 4;
  config.rope.theta = 50.0;
  config.local_rope = RopeSettings{};
  config.windows = {2, 0, 0};
  config.attention_sinks = config.limits_all_mlps = true;
  config.compressed = {.q_lora_rank = 5,
                       .window = 2,
                       .rates = {0, 2, 2},
                       .overlaps = {false, false, true},
                       .o_groups = 2,
                       .o_lora_rank = 3};
  config.indexer = {.topk = 1, .heads = 3, .head_dim = 5};
  config.swiglu_limit = 40.0;  // see tiny_gpt_oss()
  config.hyper = {.streams = 2, .magnitude = 2.0, .eps = 1e-2, .sinkhorn_iters = 3};
  config.mixture = tiny_experts({true, true, true});
  config.mixture.hashed = {false, true, false};
  config.mixture.sqrt_softplus_scores = config.mixture.corrected = true;
  config.mixture.shared_expert_intermediate_size = 5;
  config.mixture.shared_expert_ungated = true;
  config.mixture.routed_scaling_factor = 1.5;
  return config;
}

ModelConfig tiny_glm5_next() {
  ModelConfig config = tiny_kimi_linear();
  config.num_hidden_layers = 3;
  config.no_rope = {true, true, true};
  config.linear_attention = {true, false, false};
  config.delta_rule.rates_in_row = true;
  config.delta_rule.decay_bound = -1.5;
  config.latent = {
      .q_lora_rank = 5, .kv_lora_rank = 4, .qk_nope_head_dim = 4, .v_head_dim = 3, .norm_eps = 1e-4};
  config.indexer = {.topk = 1, .heads = 3, .head_dim = 5, .shared = {false, false, true}, .group = 2};
  config.limits_all_mlps = true;
  config.swiglu_limit = 40.0;  // see tiny_gpt_oss()
  config.hyper = {.streams = 2, .magnitude = 2.0, .eps = 1e-2, .head_reads_mean = true, .sinkhorn_iters = 3};
  config.mixture.sparse = {false, true, true};
  return config;
}

ModelConfig tiny_qwen4_exp() {
  ModelConfig config = tiny_qwen3_5_moe();
  config.delta_rule.logistic_gate = true;
  config.indexer = {.topk = 1, .heads = 2, .head_dim = 5, .group = 2, .of_means = true};
  config.hyper = {.streams = 2, .lowrank = 3};
  config.ngrams = {.modules = {0, -1},
                   .size = 3,
                   .heads_per_ngram = 1,
                   .embed_dim = 4,
                   .conv_kernel = 2,
                   .vocab_base = 5,
                   .divisor = 4,
                   .seed = 7,
                   .boundary = 1};
  return config;
}

}  // namespace streambp::STREAMBP_REFERENCE
