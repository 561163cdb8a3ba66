// What presets of models with recurrent layers add to their sizes, as published files have it
// (ibm-granite/granite-4.0-h-350m, ibm-fms/Bamba-9B, LiquidAI/LFM2-1.2B, nvidia/Nemotron-H-8B-Base-8K,
// nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B and Qwen's, config.json).
#pragma once

namespace streambp {

// clang-format off
inline constexpr const char* kQwen35Small = R"({"linear_num_value_heads": 16})";
inline constexpr const char* kQwen3527B = R"({"linear_num_value_heads": 48})";
inline constexpr const char* kQwen35Moe35 = R"({"num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
  "shared_expert_intermediate_size": 512})";
inline constexpr const char* kQwen3Next = R"({"num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
  "shared_expert_intermediate_size": 512, "norm_topk_prob": true})";
inline constexpr const char* kQwen35Cpu = R"({"linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 64,
  "linear_value_head_dim": 64})";
inline constexpr const char* kQwen35Tiny = R"({"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6,
  "linear_value_head_dim": 5, "full_attention_interval": 3})";
inline constexpr const char* kQwen3NextTiny = R"({"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 5,
  "linear_value_head_dim": 7, "linear_conv_kernel_dim": 3, "partial_rotary_factor": 0.5, "layer_types": ["full_attention",
  "linear_attention"], "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "mlp_only_layers": [0],
  "shared_expert_intermediate_size": 24, "output_router_logits": true, "router_aux_loss_coef": 0.3})";
inline constexpr const char* kQwen35MoeTiny = R"({"linear_num_key_heads": 1, "linear_num_value_heads": 3, "linear_key_head_dim": 4,
  "linear_value_head_dim": 6, "linear_conv_kernel_dim": 2, "full_attention_interval": 2, "num_experts": 4,
  "num_experts_per_tok": 2, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 24})";

inline constexpr const char* kGraniteHybrid350M = R"({"shared_intermediate_size": 2048, "num_local_experts": 0, "layer_types": ["mamba", "mamba",
  "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "attention", "mamba", "mamba", "attention", "mamba", "mamba",
  "mamba", "attention", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "attention", "mamba", "mamba",
  "mamba", "mamba"], "mamba_n_heads": 48, "mamba_d_state": 128, "attention_multiplier": 0.015625, "embedding_multiplier": 12.0,
  "residual_multiplier": 0.246, "logits_scaling": 3.0})";
inline constexpr const char* kGraniteHybridCpu = R"({"shared_intermediate_size": 1536, "num_local_experts": 0, "layer_types": ["mamba", "mamba",
  "mamba", "attention"], "mamba_n_heads": 16, "mamba_d_state": 128, "attention_multiplier": 0.125, "embedding_multiplier": 12.0,
  "residual_multiplier": 0.22, "logits_scaling": 4.0})";
inline constexpr const char* kGraniteHybridTiny = R"({"shared_intermediate_size": 44, "num_local_experts": 0, "layer_types": ["mamba",
  "attention", "mamba"], "mamba_n_heads": 4, "mamba_n_groups": 2, "mamba_d_state": 6, "mamba_d_conv": 3, "time_step_limit": [0.6, 0.75],
  "attention_multiplier": 0.4, "embedding_multiplier": 3.0, "residual_multiplier": 0.7, "logits_scaling": 2.5})";

inline constexpr const char* kLfm2 = R"({"norm_eps": 1e-5, "conv_L_cache": 3, "layer_types": ["conv", "conv",
  "full_attention", "conv", "conv", "full_attention", "conv", "conv", "full_attention", "conv", "full_attention", "conv",
  "full_attention", "conv", "full_attention", "conv"]})";
inline constexpr const char* kLfm2Cpu = R"({"norm_eps": 1e-5, "block_auto_adjust_ff_dim": false,
  "layer_types": ["conv", "conv", "full_attention", "conv"]})";
inline constexpr const char* kLfm2Tiny = R"({"norm_eps": 1e-5, "conv_L_cache": 4, "block_multiple_of": 4,
  "layer_types": ["conv", "full_attention", "conv"]})";
inline constexpr const char* kBamba9B = R"({"attn_layer_indices": [9, 18, 27], "mamba_n_heads": 128, "mamba_d_state": 128})";
inline constexpr const char* kBambaTiny = R"({"attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_n_groups": 2, "mamba_d_state": 6,
  "mamba_d_conv": 3, "time_step_limit": [0.6, 0.75], "mlp_bias": true, "partial_rotary_factor": 0.5})";

inline constexpr const char* kNemotronH8 = R"({"hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
  "mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "layer_norm_epsilon": 1e-5})";
inline constexpr const char* kNemotron3Nano = R"({"hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
  "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "layer_norm_epsilon": 1e-5, "n_routed_experts": 128,
  "num_experts_per_tok": 6, "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "routed_scaling_factor": 2.5})";
inline constexpr const char* kNemotronHTiny = R"({"hybrid_override_pattern": "M-*ME", "mamba_num_heads": 4, "mamba_head_dim": 16,
  "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "moe_shared_expert_intermediate_size": 24,
  "ssm_state_size": 5, "n_groups": 1, "time_step_min": 0.69, "layer_norm_epsilon": 1e-5})";
// clang-format on

}  // namespace streambp
