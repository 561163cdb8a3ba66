// Tiny models on DeepSeek-V3's latent attention or experts.
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

}  // namespace streambp::STREAMBP_REFERENCE
