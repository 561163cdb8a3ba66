// Any text is either refused with an InputError or gives a Config that keeps what config.h promises.
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "streambp/error.h"
#include "streambp/model/config/config.h"
#include "streambp/model/config/rope_frequencies.h"
#include "verify/tests/fuzz/fuzz.h"

namespace {

int64_t accepted_count = 0;

void require(bool holds) {
  if (!holds) std::abort();
}

void require_positive(double value) {
  require(std::isfinite(value) && value > 0.0);
}

void require_promises(const streambp::Config& config) {
  require(config.num_attention_heads > 0 && config.num_key_value_heads > 0 &&
          config.max_position_embeddings > 0);
  require(config.num_attention_heads % config.num_key_value_heads == 0);
  require(config.head_dim > 0 && config.head_dim % 2 == 0);
  // In Gemma 4 layers without a window have heads of their own size.
  const int64_t global = config.gemma4.global_head_dim;
  require(config.rotary_dim > 0 && config.rotary_dim % 2 == 0);
  require(config.rotary_dim <= (global > 0 ? global : config.head_dim));
  require(config.local_rotary_dim() > 0 && config.local_rotary_dim() <= config.head_dim);
  require_positive(config.rms_norm_eps);
  require_positive(config.attention_scale);
  require_positive(config.embedding_scale);
  require_positive(config.residual_multiplier);
  require_positive(config.logits_scaling);
  require(std::isfinite(config.query_scale_beta) && config.query_scale_beta >= 0.0);
  require(config.query_scale_beta == 0.0 || config.query_scale_original > 0);
  require(!config.norm_after || !config.sandwich_norms);
  require(std::isfinite(config.attn_logit_softcapping) && config.attn_logit_softcapping >= 0.0);
  require(std::isfinite(config.final_logit_softcapping) && config.final_logit_softcapping >= 0.0);
  const auto layers = static_cast<std::size_t>(config.num_hidden_layers);
  require(config.windows.size() == layers && config.mixture.sparse.size() == layers);
  require(config.no_rope.empty() || config.no_rope.size() == layers);
  for (const int64_t window : config.windows) require(window >= 0);
  require(config.mixture.num_experts_per_tok <= config.mixture.num_experts);
  require(config.mixture.router_aux_loss_coef >= 0.0);
}

void require_frequencies(const streambp::RopeSettings& rope, int64_t rotary_dim, int64_t length) {
  require_positive(rope.theta);
  require_positive(rope.attention_factor);
  require(rope.factor >= 1.0 && rope.low_freq_factor < rope.high_freq_factor);
  for (const double frequency : streambp::rope_inverse_frequencies(rope, rotary_dim, length)) {
    require(!std::isnan(frequency) && frequency >= 0.0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const streambp::Config config = streambp::parse_config(text, "fuzz");
    ++accepted_count;
    require_promises(config);
    for (const int64_t length : {int64_t{1}, int64_t{4096}}) {
      require_frequencies(config.rope, config.rotary_dim, length);
      if (config.local_rope) require_frequencies(*config.local_rope, config.local_rotary_dim(), length);
    }
    require(streambp::parameter_count(config) > 0);
  } catch (const streambp::InputError&) {
  }
  return 0;
}

namespace streambp::fuzz {

/// Of a whole model's text_config what is behind the sizes.
constexpr const char* kMiniMaxM3 =
    R"(,"num_local_experts":4,"hidden_act":"swigluoai","moe_layer_freq":[0,1],"sparse_attention_config":)"
    R"({"sparse_num_index_heads":2,"sparse_topk_blocks":2,"sparse_attention_freq":[0,1]}}})";
constexpr const char* kQwen4Exp =
    R"(,"layer_types":["linear_attention","full_attention"],"num_experts":4,"hc_count":2,"hc_lowrank":3,)"
    R"("indexer_n_heads":2,"indexer_kv_heads":1,"indexer_head_dim":16,"indexer_budget":4,)"
    R"("indexer_compress_ratio":2,"ple_layer_ids":[1],"ple_embed_dim":16,"ngram_vocab_size_base":9,)"
    R"("eos_token_id":[3]}})";

constexpr const char* kMuseSpark =
    R"(,"mlp_layer_types":["sparse","dense"],"num_local_experts":4,"num_experts_per_tok":2,)"
    R"("moe_hidden_size":9,"residual_gate_temperature":0.5,"layer_rope_theta":[0,10]}})";
constexpr const char* kLfm3 =
    R"(,"layer_types":["conv","sliding_attention"],"use_attention_gate":true,"pad_token_id":1})";
constexpr const char* kGlm4 = R"(,"pad_token_id":1,"attention_bias":true,"partial_rotary_factor":0.5})";

std::vector<std::string> corpus() {
  const std::string sizes =
      R"("vocab_size":101,"hidden_size":32,"intermediate_size":44,"num_hidden_layers":2,)"
      R"("num_attention_heads":4,"num_key_value_heads":2,"head_dim":8,)"
      R"("max_position_embeddings":512,"rms_norm_eps":1e-06)";
  const std::string llama3 =
      R"({"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,)"
      R"("original_max_position_embeddings":32})";
  return {
      "{}",
      R"({"model_type":"gemma4","text_config":{"vocab_size":101}})",
      R"({"model_type":"qwen2",)" + sizes +
          R"(,"use_sliding_window":false,"sliding_window":32768,)"
          R"("tie_word_embeddings":true})",
      R"({"model_type":"qwen3",)" + sizes +
          R"(,"layer_types":["full_attention","full_attention"],)"
          R"("rope_parameters":{"rope_theta":1e6,"rope_type":"default"}})",
      R"({"model_type":"llama",)" + sizes +
          R"(,"rope_theta":500.0,"torch_dtype":"bfloat16","rope_scaling":)" + llama3 + "}",
      R"({"model_type":"llama",)" + sizes +
          R"(,"rope_scaling":{"type":"linear","factor":2},"mlp_bias":true,"hidden_act":"silu"})",
      R"({"model_type":"llama",)" + sizes +
          R"(,"rope_scaling":{"type":"yarn","factor":4,"original_max_position_embeddings":32,)"
          R"("beta_fast":16,"beta_slow":2,"truncate":false,"mscale":0.7,"mscale_all_dim":1.0}})",
      R"({"model_type":"llama",)" + sizes + R"(,"rope_scaling":{"type":"dynamic","factor":2}})",
      R"({"model_type":"mistral",)" + sizes + R"(,"sliding_window":7})",
      R"({"model_type":"phi3",)" + sizes +
          R"(,"pad_token_id":-1,"sliding_window":9,"partial_rotary_factor":0.5,"original_max_position_embeddings":16,)"
          R"("rope_scaling":{"type":"su","short_factor":[1,1.5],"long_factor":[2,8]}})",
      R"({"model_type":"qwen2",)" + sizes +
          R"(,"use_sliding_window":true,"sliding_window":4,"max_window_layers":1})",
      R"({"model_type":"qwen3_moe",)" + sizes +
          R"(,"num_experts":4,"num_experts_per_tok":2,"moe_intermediate_size":20,"mlp_only_layers":[1],)"
          R"("decoder_sparse_step":1,"output_router_logits":true,"router_aux_loss_coef":0.3})",
      R"({"model_type":"mixtral",)" + sizes +
          R"(,"num_local_experts":4,"num_experts_per_tok":2,"router_jitter_noise":0.0,"sliding_window":7})",
      R"({"model_type":"qwen2_moe",)" + sizes +
          R"(,"num_experts":4,"num_experts_per_tok":2,"moe_intermediate_size":20,"qkv_bias":true,)"
          R"("shared_expert_intermediate_size":24,"max_window_layers":1,"use_sliding_window":true,"sliding_window":5})",
      R"({"model_type":"gpt_oss",)" + sizes +
          R"(,"num_local_experts":4,"num_experts_per_tok":2,"sliding_window":5,"swiglu_limit":7.0,"swiglu_alpha":1.7,)"
          R"("rope_scaling":{"rope_type":"yarn","factor":32,"original_max_position_embeddings":64,"truncate":false}})",
      R"({"model_type":"smollm3",)" + sizes +
          R"(,"pad_token_id":1,"no_rope_layers":[1,0],"sliding_window":null})",
      R"({"model_type":"granite",)" + sizes +
          R"(,"embedding_multiplier":12,"residual_multiplier":0.22,"attention_multiplier":0.1,"logits_scaling":8})",
      R"({"model_type":"olmo3",)" + sizes +
          R"(,"pad_token_id":1,"rope_theta":500000,"rope_scaling":{"rope_type":"yarn","factor":8,)"
          R"("original_max_position_embeddings":64}})",
      R"({"model_type":"mistral3","text_config":{"model_type":"ministral3",)" + sizes +
          R"(,"rope_parameters":{"type":"yarn","rope_theta":1e6,"factor":16,"llama_4_scaling_beta":0.1,)"
          R"("original_max_position_embeddings":64}}})",
      R"({"model_type":"exaone4",)" + sizes + R"(,"sliding_window":5,"sliding_window_pattern":"LLLG"})",
      R"({"model_type":"granitemoehybrid",)" + sizes +
          R"(,"num_local_experts":0,"mamba_n_heads":8,"time_step_limit":[0,{"__float__":"Infinity"}]})",
      R"({"model_type":"falcon_h1",)" + sizes +
          R"(,"mamba_d_ssm":48,"mamba_n_heads":4,"ssm_multipliers":[1,2,3,4,5],"mlp_multipliers":null})",
      R"({"model_type":"ernie4_5_moe",)" + sizes +
          R"(,"moe_num_experts":4,"moe_k":2,"moe_intermediate_size":20,"moe_layer_end_index":-1})",
      R"({"model_type":"bamba",)" + sizes + R"(,"attn_layer_indices":[1],"mamba_n_heads":8})",
      R"({"model_type":"nemotron_h",)" + sizes + R"(,"hybrid_override_pattern":"M-*M"})",
      R"({"model_type":"hunyuan_v1_dense",)" + sizes +
          R"(,"rope_scaling":{"type":"dynamic","alpha":1000,"factor":1,"beta_fast":32,"mscale":1}})",
      R"({"model_type":"minimax_m2",)" + sizes +
          R"(,"num_local_experts":4,"num_experts_per_tok":2,"rotary_dim":4,"scoring_func":"sigmoid"})",
      R"({"model_type":"minimax_m3_vl","text_config":{)" + sizes + kMiniMaxM3,
      R"({"model_type":"qwen4_exp","text_config":{)" + sizes + kQwen4Exp,
      R"({"model_type":"muse_spark","text_config":{)" + sizes + kMuseSpark,
      R"({"model_type":"lfm3",)" + sizes + kLfm3,
      R"({"model_type":"glm4",)" + sizes + kGlm4,
      R"({"model_type":"gemma",)" + sizes + R"(,"hidden_act":"gelu"})",
      R"({"model_type":"gemma2",)" + sizes +
          R"(,"query_pre_attn_scalar":24,"attn_logit_softcapping":2,"final_logit_softcapping":null})",
      R"({"model_type":"gemma3_text",)" + sizes +
          R"(,"layer_types":["sliding_attention","full_attention"],"rope_parameters":{)"
          R"("full_attention":{"rope_type":"linear","factor":8,"rope_theta":1e4},)"
          R"("sliding_attention":{"rope_theta":100}}})",
      R"({"model_type":"gemma3","text_config":{)" + sizes +
          R"(,"sliding_window_pattern":2,"rope_local_base_freq":100},"torch_dtype":"bfloat16"})"};
}

std::vector<std::string> dictionary() {
  return {"\"model_type\"",
          "\"head_dim\"",
          "\"rope_scaling\"",
          "\"rope_parameters\"",
          "\"rope_theta\"",
          "\"factor\"",
          "\"yarn\"",
          "\"longrope\"",
          "\"dynamic\"",
          "\"sliding_window\"",
          "\"layer_types\"",
          "\"sliding_attention\"",
          "\"partial_rotary_factor\"",
          "\"num_experts\"",
          "\"mscale\"",
          "\"dtype\"",
          "null",
          "true",
          "false",
          "0",
          "-1",
          "1e308",
          "1e-320",
          "0.5",
          "16777216",
          "9223372036854775808",
          "{",
          "}",
          "[",
          "]",
          ",",
          ":",
          "\"\\ud800\"",
          "\xEF\xBB\xBF"};
}

int64_t accepted() {
  return accepted_count;
}

}  // namespace streambp::fuzz
