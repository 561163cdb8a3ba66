// Keys of config.json of Gemma's presets (presets.cc).
#pragma once

namespace streambp {

// clang-format off
inline constexpr const char* kGemma2B = R"({"query_pre_attn_scalar": 256, "sliding_window": 4096})";
inline constexpr const char* kGemma2Big = R"({"query_pre_attn_scalar": 144, "sliding_window": 4096})";
inline constexpr const char* kGemma2Tiny = R"({"query_pre_attn_scalar": 24, "sliding_window": 6, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0})";
inline constexpr const char* kGemma3Small = R"({"sliding_window": 512, "rope_local_base_freq": 10000})";
inline constexpr const char* kGemma3 = R"({"sliding_window": 1024, "rope_local_base_freq": 10000,
  "rope_scaling": {"rope_type": "linear", "factor": 8.0}})";
inline constexpr const char* kGemma3Big = R"({"sliding_window": 1024, "rope_local_base_freq": 10000, "query_pre_attn_scalar": 168,
  "rope_scaling": {"rope_type": "linear", "factor": 8.0}})";
inline constexpr const char* kGemma3Cpu = R"({"sliding_window": 512, "rope_local_base_freq": 10000, "query_pre_attn_scalar": 64})";
inline constexpr const char* kGemma3Tiny = R"({"sliding_window": 5, "sliding_window_pattern": 3, "rope_local_base_freq": 100,
  "query_pre_attn_scalar": 24, "rope_scaling": {"rope_type": "linear", "factor": 8.0}})";

inline constexpr const char* kGemma4E2B = R"({"sliding_window": 512, "layer_types": "every 5", "num_kv_shared_layers": 20,
  "use_double_wide_mlp": true, "hidden_size_per_layer_input": 256, "final_logit_softcapping": 30.0})";
inline constexpr const char* kGemma4E4B = R"({"sliding_window": 512, "num_kv_shared_layers": 18, "hidden_size_per_layer_input": 256,
  "final_logit_softcapping": 30.0})";
inline constexpr const char* kGemma431B = R"({"sliding_window": 1024, "attention_k_eq_v": true, "num_global_key_value_heads": 4,
  "hidden_size_per_layer_input": 0, "final_logit_softcapping": 30.0})";
inline constexpr const char* kGemma426B = R"({"sliding_window": 1024, "attention_k_eq_v": true, "num_global_key_value_heads": 2,
  "hidden_size_per_layer_input": 0, "final_logit_softcapping": 30.0, "enable_moe_block": true, "num_experts": 128,
  "top_k_experts": 8, "moe_intermediate_size": 704})";
inline constexpr const char* kGemma4Cpu = R"({"sliding_window": 512, "global_head_dim": 128, "layer_types": "every 3",
  "num_kv_shared_layers": 3, "use_double_wide_mlp": true, "hidden_size_per_layer_input": 64,
  "vocab_size_per_layer_input": 32000})";
inline constexpr const char* kGemma4Tiny = R"({"sliding_window": 5, "layer_types": "every 2", "global_head_dim": 8,
  "attention_k_eq_v": true, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0, "final_logit_softcapping": 3.0,
  "rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 500.0},
  "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}})";
inline constexpr const char* kGemma4PerLayerTiny = R"({"sliding_window": 5, "layer_types": "every 2", "global_head_dim": 24,
  "num_kv_shared_layers": 2, "use_double_wide_mlp": true, "hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": 101})";
inline constexpr const char* kGemma4MoeTiny = R"({"sliding_window": 7, "layer_types": "every 2", "global_head_dim": 24,
  "attention_k_eq_v": true, "num_global_key_value_heads": 2, "hidden_size_per_layer_input": 0, "enable_moe_block": true,
  "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 12})";
// clang-format on

}  // namespace streambp
