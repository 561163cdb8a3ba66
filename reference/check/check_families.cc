// A tiny model of each family, for the checks by differences.
#include "reference/check/check_families.h"

namespace streambp::STREAMBP_REFERENCE {

ModelConfig tiny_model() {
  ModelConfig config;
  config.vocab_size = 11;
  config.hidden_size = 6;
  config.intermediate_size = 7;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 3;
  config.num_key_value_heads = 1;
  config.head_dim = 4;
  // Far larger than in real models, so that it is seen, and so that norms of small vectors are not too sharp
  // for differences.
  config.rms_norm_eps = 0.05;
  return config;
}

MixtureSettings tiny_experts(std::vector<bool> sparse) {
  MixtureSettings mixture;
  mixture.num_experts = 4;
  mixture.num_experts_per_tok = 2;
  mixture.moe_intermediate_size = 5;
  mixture.norm_topk_prob = true;
  mixture.sparse = std::move(sparse);
  return mixture;
}

namespace {

ModelConfig tiny_gemma() {
  ModelConfig config = tiny_model();
  config.tie_word_embeddings = true;
  config.norm_adds_one = true;
  config.embedding_scale = 2.4;
  config.hidden_act = Activation::kGeluTanh;
  return config;
}

ModelConfig tiny_gemma2() {
  ModelConfig config = tiny_gemma();
  config.sandwich_norms = true;
  config.attention_scale = 0.45;
  config.attn_logit_softcapping = 1.5;
  config.final_logit_softcapping = 2.0;
  config.windows = {2, 0};
  return config;
}

ModelConfig tiny_gemma3() {
  ModelConfig config = tiny_gemma2();
  config.attn_logit_softcapping = 0.0;
  config.final_logit_softcapping = 0.0;
  config.qk_norm = true;
  config.rope.type = RopeType::kLinear;
  config.rope.factor = 8.0;
  config.local_rope = RopeSettings{};
  config.local_rope->theta = 100.0;
  return config;
}

/// Its first layer is dense.
ModelConfig tiny_mixture() {
  ModelConfig config = tiny_model();
  config.qk_norm = true;
  config.mixture = tiny_experts({false, true});
  config.mixture.router_aux_loss_coef = 0.6;  // far larger than in real models, so that it is seen
  return config;
}

/// The tiny batch reaches position 30.
RopeSettings tiny_yarn() {
  RopeSettings rope;
  rope.type = RopeType::kYarn;
  rope.factor = 4.0;
  rope.original_max_position_embeddings = 12;
  rope.beta_fast = 1.5;
  rope.beta_slow = 0.1;
  rope.attention_factor = 1.2;
  return rope;
}

ModelConfig tiny_smollm3() {
  ModelConfig config = tiny_model();
  config.tie_word_embeddings = true;
  config.no_rope = {false, true};
  config.windows = {3, 0};
  return config;
}

ModelConfig tiny_granite() {
  ModelConfig config = tiny_model();
  config.embedding_scale = 1.6;
  config.residual_multiplier = 0.6;
  config.attention_scale = 0.3;
  config.logits_scaling = 1.8;
  return config;
}

ModelConfig tiny_olmo2() {
  ModelConfig config = tiny_model();
  config.norm_after = true;
  config.qk_norm = true;
  config.qk_norm_full_width = true;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  return config;
}

ModelConfig tiny_olmo3() {
  ModelConfig config = tiny_olmo2();
  config.windows = {2, 0};
  config.rope = tiny_yarn();
  config.local_rope = RopeSettings{};
  config.local_rope->theta = 100.0;
  return config;
}

/// A layer with a window, which rotates, and one without either.
ModelConfig tiny_exaone4() {
  ModelConfig config = tiny_model();
  config.norm_after = true;
  config.qk_norm = true;
  config.windows = {2, 0};
  config.no_rope = {false, true};
  return config;
}

/// Seed-OSS's biases and Helium's rotation besides.
ModelConfig tiny_ernie4_5() {
  ModelConfig config = tiny_model();
  config.qkv_bias = config.o_bias = config.mlp_bias = true;
  config.rope_interleaved = true;
  return config;
}

ModelConfig tiny_ministral3() {
  ModelConfig config = tiny_model();
  config.rope = tiny_yarn();
  config.query_scale_beta = 0.4;
  config.query_scale_original = 4;
  return config;
}

ModelConfig tiny_glm4() {
  ModelConfig config = tiny_model();
  config.qkv_bias = true;
  config.sandwich_norms = true;
  config.glm_norm_names = true;
  config.fused_gate_up = true;
  config.rope_interleaved = true;
  config.head_dim = 6;
  config.rotary_dim = 4;
  return config;
}

ModelConfig tiny_mixtral() {
  ModelConfig config = tiny_mixture();
  config.qk_norm = false;
  config.windows = {3, 3};
  config.mixture.sparse = {true, true};
  return config;
}

ModelConfig tiny_qwen2_moe() {
  ModelConfig config = tiny_mixture();
  config.qk_norm = false;
  config.qkv_bias = true;
  config.mixture.norm_topk_prob = false;
  config.mixture.shared_expert_intermediate_size = 3;
  return config;
}

/// Nothing in it is clamped, where a difference would be of two sides of a bend: see clamped_swiglu's checks.
ModelConfig tiny_gpt_oss() {
  ModelConfig config = tiny_mixtral();
  config.windows = {2, 0};
  config.qkv_bias = true;
  config.o_bias = true;
  config.attention_sinks = true;
  config.rope = tiny_yarn();
  config.rope.truncate = false;
  config.swiglu_alpha = 1.702;
  config.swiglu_limit = 40.0;
  config.mixture.biased_interleaved = true;
  return config;
}

/// One layer of either kind, with heads that share their keys.
ModelConfig tiny_qwen3_5() {
  ModelConfig config = tiny_model();
  config.norm_adds_one = true;
  config.qk_norm = true;
  config.rotary_dim = 2;
  config.attention_output_gate = true;
  config.linear_attention = {true, false};
  config.delta_rule = {2, 4, 3, 2, 3};
  return config;
}

/// Its first layer is dense.
ModelConfig tiny_qwen3_next() {
  ModelConfig config = tiny_qwen3_5_moe();
  config.intermediate_size = 7;
  config.delta_rule.fused_projections = true;
  config.mixture.sparse = {false, true};
  return config;
}

}  // namespace

ModelConfig tiny_qwen3_5_moe() {
  ModelConfig config = tiny_qwen3_5();
  config.intermediate_size = 0;
  config.mixture = tiny_qwen2_moe().mixture;
  config.mixture.norm_topk_prob = true;
  config.mixture.sparse = {true, true};
  return config;
}

/// Its first layer is dense, and the experts are two groups.
ModelConfig tiny_deepseek_v3() {
  ModelConfig config = tiny_model();
  config.qkv_bias = true;
  config.o_bias = true;
  config.rope = tiny_yarn();
  config.rope_interleaved = true;
  config.latent = {5, 4, 3, 4, 2, 0.7};
  config.mixture = tiny_experts({false, true});
  config.mixture.shared_expert_intermediate_size = 3;
  config.mixture.shared_expert_ungated = true;
  config.mixture.sigmoid_scores = config.mixture.corrected = true;
  config.mixture.num_experts = 6;
  config.mixture.n_group = 2;
  config.mixture.topk_group = 1;
  config.mixture.routed_scaling_factor = 1.7;
  return config;
}

namespace {

ModelConfig tiny_minimax_m2() {
  ModelConfig config = tiny_model();
  config.qk_norm = true;
  config.qk_norm_full_width = true;
  config.rotary_dim = 2;
  config.mixture = tiny_experts({false, true});
  config.mixture.sparse = {true, true};
  config.mixture.sigmoid_scores = config.mixture.corrected = true;
  return config;
}

/// A layer with a window and a full one, whose values are its keys.
ModelConfig tiny_gemma4() {
  ModelConfig config = tiny_gemma3();
  config.norm_adds_one = false;
  config.attention_scale = 0.0;
  config.final_logit_softcapping = 2.0;
  config.rope = {};
  config.rope.type = RopeType::kProportional;
  config.rope.theta = 30.0;
  config.rope.partial_rotary_factor = 0.4;  // one pair of three
  config.gemma4.global_head_dim = 6;
  config.gemma4.num_global_key_value_heads = 3;
  config.gemma4.attention_k_eq_v = true;
  config.gemma4.value_norm = true;
  config.gemma4.layer_scalar = true;
  return config;
}

/// Its last two layers have the keys and values of the first two.
ModelConfig tiny_gemma4_per_layer() {
  ModelConfig config = tiny_gemma4();
  config.num_hidden_layers = 4;
  config.windows = {2, 0, 0, 2};
  config.final_logit_softcapping = 0.0;
  config.gemma4.num_global_key_value_heads = 0;
  config.gemma4.attention_k_eq_v = false;
  config.gemma4.num_kv_shared_layers = 2;
  config.gemma4.use_double_wide_mlp = true;
  config.gemma4.hidden_size_per_layer_input = 3;
  config.gemma4.vocab_size_per_layer_input = 12;
  return config;
}

ModelConfig tiny_gemma4_moe() {
  ModelConfig config = tiny_gemma4();
  config.tie_word_embeddings = false;
  config.final_logit_softcapping = 0.0;
  config.mixture = tiny_experts({false, true});
  config.mixture.sparse = {true, true};
  config.mixture.added_to_mlp = true;
  return config;
}

ModelConfig tiny_qwen2() {
  ModelConfig config = tiny_model();
  config.qkv_bias = true;
  config.tie_word_embeddings = true;
  config.windows = {0, 2};
  return config;
}

ModelConfig tiny_phi3() {
  ModelConfig phi3 = tiny_model();
  phi3.fused_projections = true;
  phi3.head_dim = 6;
  phi3.rotary_dim = 4;
  phi3.rope.type = RopeType::kLongrope;
  phi3.rope.original_max_position_embeddings = 12;
  phi3.rope.short_factor = {1.0, 1.1};
  phi3.rope.long_factor = {1.7, 3.1};
  phi3.rope.attention_factor = 1.3;
  return phi3;
}

}  // namespace

std::vector<std::pair<std::string, ModelConfig>> tiny_families() {
  ModelConfig qwen3 = tiny_model();
  qwen3.qk_norm = true;
  qwen3.num_attention_heads = 4;
  qwen3.num_key_value_heads = 2;
  qwen3.rope.type = RopeType::kLinear;
  qwen3.rope.factor = 2.5;

  ModelConfig llama = tiny_model();
  llama.num_key_value_heads = 3;
  llama.qkv_bias = llama.o_bias = llama.mlp_bias = true;
  llama.rope.type = RopeType::kLlama3;
  llama.rope.factor = 8.0;
  llama.rope.original_max_position_embeddings = 12;
  ModelConfig yarn = tiny_model();
  yarn.rope = tiny_yarn();
  ModelConfig mistral = tiny_model();
  mistral.windows = {3, 3};
  mistral.rope.type = RopeType::kDynamic;
  mistral.rope.factor = 2.0;
  mistral.rope.original_max_position_embeddings = 12;

  return {{"qwen2", tiny_qwen2()},
          {"qwen3", qwen3},
          {"llama", llama},
          {"llama with yarn", yarn},
          {"mistral", mistral},
          {"phi3", tiny_phi3()},
          {"gemma2", tiny_gemma2()},
          {"gemma3", tiny_gemma3()},
          {"qwen3_moe", tiny_mixture()},
          {"gemma", tiny_gemma()},
          {"smollm3", tiny_smollm3()},
          {"granite", tiny_granite()},
          {"olmo2", tiny_olmo2()},
          {"olmo3", tiny_olmo3()},
          {"ministral3", tiny_ministral3()},
          {"glm4", tiny_glm4()},
          {"mixtral", tiny_mixtral()},
          {"qwen2_moe", tiny_qwen2_moe()},
          {"gpt_oss", tiny_gpt_oss()},
          {"qwen3_5", tiny_qwen3_5()},
          {"qwen3_5_moe", tiny_qwen3_5_moe()},
          {"qwen3_next", tiny_qwen3_next()},
          {"deepseek_v3", tiny_deepseek_v3()},
          {"deepseek_v3 without a latent of the queries", tiny_deepseek_v3_small()},
          {"deepseek_v32", tiny_deepseek_v32()},
          {"glm_moe_dsa", tiny_glm_moe_dsa()},
          {"glm4_moe", tiny_glm4_moe()},
          {"gemma4", tiny_gemma4()},
          {"gemma4 with per-layer inputs", tiny_gemma4_per_layer()},
          {"gemma4 with experts", tiny_gemma4_moe()},
          {"cohere2", tiny_cohere2()},
          {"exaone4", tiny_exaone4()},
          {"hunyuan", tiny_hunyuan()},
          {"ernie4_5", tiny_ernie4_5()},
          {"minimax_m2", tiny_minimax_m2()},
          {"granite hybrid", tiny_granite_hybrid()},
          {"lfm2", tiny_lfm2()},
          {"lfm2_moe", tiny_lfm2_moe()},
          {"granite hybrid with experts", tiny_granite_hybrid_moe()},
          {"falcon_h1", tiny_falcon_h1()},
          {"muse_glimmer", tiny_muse_glimmer()},
          {"ernie4_5_moe", tiny_ernie4_5_moe()},
          {"nemotron_h", tiny_nemotron_h()},
          {"kimi_linear", tiny_kimi_linear()},
          {"hy_v4", tiny_hy_v4()},
          {"step3p5", tiny_step()},
          {"zamba2", tiny_zamba2()},
          {"deepseek_v4", tiny_deepseek_v4()},
          {"mistral_large4", tiny_mistral_large4()},
          {"minimax_m3", tiny_minimax_m3()},
          {"glm5_next", tiny_glm5_next()},
          {"qwen4_exp", tiny_qwen4_exp()},
          {"mistral4", tiny_mistral4()},
          {"lfm3", tiny_lfm3()},
          {"muse_spark", tiny_muse_spark()}};
}

}  // namespace streambp::STREAMBP_REFERENCE
