// What presets of models with recurrent layers add to their sizes, as published files have it
// (ibm-granite/granite-4.0-h-350m, -tiny and -small, ibm-fms/Bamba-9B, LiquidAI/LFM2-1.2B and LFM2-8B-A1B,
// LiquidAI/LFM3-1.7B as transformers' class has it,
// tiiuae/Falcon-H1-0.5B and -7B without their multipliers, nvidia/Nemotron-H-8B-Base-8K,
// nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B and -Super-120B-A12B, moonshotai/Kimi-Linear-48B-A3B,
// Zyphra/Zamba2-1.2B, -2.7B and -7B, and Qwen's, config.json).
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
// Of the text part.
inline constexpr const char* kQwen4Exp = R"({"linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
  "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "full_attention_interval": 4, "num_experts": 512, "num_experts_per_tok": 10,
  "moe_intermediate_size": 640, "shared_expert_intermediate_size": 640, "norm_topk_prob": true, "output_gate_type": "sigmoid",
  "partial_rotary_factor": 0.25, "hc_count": 4, "hc_lowrank": 320, "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 128,
  "indexer_budget": 2048, "indexer_compress_ratio": 4, "ple_layer_ids": [2], "ple_embed_dim": 2560, "ple_conv_kernel_size": 4,
  "ngram_size": 3, "heads_per_ngram": 8, "ngram_vocab_size_base": 20000000, "make_ngram_vocab_size_divisible_by": 128, "seed": 1234,
  "split_ngram_parts": 128, "eos_token_id": 248044})";
inline constexpr const char* kQwen4ExpTiny = R"({"linear_num_key_heads": 1, "linear_num_value_heads": 3, "linear_key_head_dim": 4,
  "linear_value_head_dim": 6, "linear_conv_kernel_dim": 2, "layer_types": ["linear_attention", "indexed_attention", "linear_attention",
  "indexed_attention"], "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 24,
  "output_router_logits": true, "router_aux_loss_coef": 0.3, "output_gate_type": "sigmoid", "partial_rotary_factor": 0.5, "hc_count": 3,
  "hc_lowrank": 5, "indexer_n_heads": 8, "indexer_kv_heads": 1, "indexer_head_dim": 10, "indexer_budget": 6, "indexer_compress_ratio": 3,
  "ple_layer_ids": [1, 3], "ple_embed_dim": 12, "ple_conv_kernel_size": 3, "ngram_size": 3, "heads_per_ngram": 2,
  "ngram_vocab_size_base": 30, "make_ngram_vocab_size_divisible_by": 8, "split_ngram_parts": 4, "eos_token_id": 7})";

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
  "conv_bias": true, "layer_types": ["conv", "full_attention", "conv"]})";
// Windows, kernels and rotations are the class's.
inline constexpr const char* kLfm3Tiny = R"({"conv_L_cache": 5, "conv_bias": true, "sliding_window": 6,
  "layer_types": ["sliding_attention", "conv", "full_attention"], "rope_parameters": {"full_attention":
  {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 500.0},
  "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}})";
inline constexpr const char* kBamba9B = R"({"attn_layer_indices": [9, 18, 27], "mamba_n_heads": 128, "mamba_d_state": 128})";
inline constexpr const char* kBambaTiny = R"({"attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_n_groups": 2, "mamba_d_state": 6,
  "mamba_d_conv": 3, "time_step_limit": [0.6, 0.75], "mamba_proj_bias": true, "mlp_bias": true, "partial_rotary_factor": 0.5})";

inline constexpr const char* kGraniteHybrid7B = R"({"shared_intermediate_size": 1024, "num_local_experts": 64, "num_experts_per_tok": 6,
  "router_aux_loss_coef": 0.0001, "layer_types": ["mamba", "mamba", "mamba", "mamba", "mamba", "attention", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba",
  "mamba", "attention", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "attention", "mamba",
  "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "attention", "mamba", "mamba", "mamba", "mamba"], "mamba_n_heads": 48, "mamba_d_state": 128,
  "attention_multiplier": 0.0078125, "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 6.0})";
inline constexpr const char* kGraniteHybrid32B = R"({"shared_intermediate_size": 1536, "num_local_experts": 72, "num_experts_per_tok": 10,
  "router_aux_loss_coef": 0.0001, "layer_types": ["mamba", "mamba", "mamba", "mamba", "mamba", "attention", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba",
  "mamba", "attention", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "attention", "mamba",
  "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "attention", "mamba", "mamba", "mamba", "mamba"], "mamba_n_heads": 128, "mamba_d_state": 128,
  "attention_multiplier": 0.0078125, "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 16.0})";
inline constexpr const char* kGraniteHybridMoeTiny = R"({"shared_intermediate_size": 28, "num_local_experts": 4, "num_experts_per_tok": 2,
  "layer_types": ["mamba", "attention"], "mamba_n_heads": 4, "mamba_d_state": 6, "mamba_d_conv": 3, "output_router_logits": true,
  "router_aux_loss_coef": 0.3, "time_step_limit": [0.6, 0.75], "attention_multiplier": 0.4, "embedding_multiplier": 3.0,
  "residual_multiplier": 0.7, "logits_scaling": 2.5})";
inline constexpr const char* kLfm2Moe8B = R"({"norm_eps": 1e-5, "num_dense_layers": 2, "num_experts": 32, "num_experts_per_tok": 4,
  "moe_intermediate_size": 1792, "layer_types": ["conv", "conv", "full_attention", "conv", "conv", "conv", "full_attention", "conv",
  "conv", "conv", "full_attention", "conv", "conv", "conv", "full_attention", "conv", "conv", "conv", "full_attention", "conv", "conv",
  "full_attention", "conv", "conv"]})";
inline constexpr const char* kLfm2MoeTiny = R"({"norm_eps": 1e-5, "conv_L_cache": 4, "num_dense_layers": 1, "num_experts": 4,
  "num_experts_per_tok": 2, "moe_intermediate_size": 20, "routed_scaling_factor": 1.3,
  "layer_types": ["conv", "full_attention", "conv"]})";
inline constexpr const char* kFalcon0B = R"({"mamba_d_ssm": 1536, "mamba_n_heads": 24, "mamba_d_state": 128, "mamba_norm_before_gate": false})";
inline constexpr const char* kFalcon7B = R"({"mamba_d_ssm": 3072, "mamba_n_heads": 24, "mamba_d_state": 256, "mamba_norm_before_gate": false})";
inline constexpr const char* kFalconCpu = R"({"mamba_d_ssm": 768, "mamba_n_heads": 12, "mamba_d_state": 64, "mamba_norm_before_gate": false})";
inline constexpr const char* kFalconTiny = R"({"mamba_d_ssm": 24, "mamba_n_heads": 4, "mamba_n_groups": 2, "mamba_d_state": 5,
  "mamba_d_conv": 3, "mamba_rms_norm": true, "time_step_limit": [0.6, 0.75], "attention_in_multiplier": 0.8,
  "attention_out_multiplier": 1.3, "key_multiplier": 1.7, "ssm_in_multiplier": 1.2, "ssm_out_multiplier": 0.6,
  "ssm_multipliers": [0.7, 1.4, 0.9, 1.1, 0.8], "mlp_multipliers": [1.5, 0.7], "embedding_multiplier": 2.5,
  "lm_head_multiplier": 0.4, "projectors_bias": true})";

inline constexpr const char* kKimiLinear48B = R"({"linear_attn_config": {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "kda_layers": [1, 2, 3,
  5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26], "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4},
  "q_lora_rank": null, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "num_experts": 256,
  "num_experts_per_token": 8, "moe_intermediate_size": 1024, "num_shared_experts": 1, "num_expert_group": 1, "topk_group": 1,
  "routed_scaling_factor": 2.446, "moe_renormalize": true, "first_k_dense_replace": 1})";
inline constexpr const char* kKimiLinearTiny = R"({"layer_types": ["linear_attention", "full_attention", "linear_attention"],
  "linear_head_dim": 6, "linear_num_heads": 3, "linear_conv_kernel_dim": 3, "q_lora_rank": null, "kv_lora_rank": 14,
  "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 7, "num_experts": 4, "num_experts_per_token": 2, "moe_intermediate_size": 12,
  "num_shared_experts": 1, "num_expert_group": 2, "topk_group": 1, "routed_scaling_factor": 1.7, "moe_renormalize": true,
  "first_k_dense_replace": 1})";

inline constexpr const char* kNemotronH8 = R"({"hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
  "mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "layer_norm_epsilon": 1e-5})";
inline constexpr const char* kNemotron3Nano = R"({"hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
  "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "layer_norm_epsilon": 1e-5, "n_routed_experts": 128,
  "num_experts_per_tok": 6, "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "routed_scaling_factor": 2.5})";
inline constexpr const char* kNemotron3Super = R"({"hybrid_override_pattern": "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
  "mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "layer_norm_epsilon": 1e-5, "n_routed_experts": 512,
  "num_experts_per_tok": 22, "moe_intermediate_size": 2688, "moe_latent_size": 1024, "moe_shared_expert_intermediate_size": 5376,
  "routed_scaling_factor": 5.0})";
inline constexpr const char* kNemotronHTiny = R"({"hybrid_override_pattern": "M-*ME", "mamba_num_heads": 4, "mamba_head_dim": 16,
  "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "moe_shared_expert_intermediate_size": 24,
  "ssm_state_size": 5, "n_groups": 1, "time_step_min": 0.69, "layer_norm_epsilon": 1e-5, "moe_latent_size": 12, "use_bias": true, "mlp_bias": true})";
inline constexpr const char* kZamba2Small = R"({"layers_block_type": ["mamba", "mamba", "mamba", "mamba", "mamba", "hybrid", "mamba", "mamba", "mamba", "mamba", "mamba",
  "hybrid", "mamba", "mamba", "mamba", "mamba", "mamba", "hybrid", "mamba", "mamba", "mamba", "mamba", "mamba", "hybrid",
  "mamba", "mamba", "mamba", "mamba", "mamba", "hybrid", "mamba", "mamba", "mamba", "mamba", "mamba", "hybrid", "mamba",
  "mamba"], "n_mamba_heads": 64, "mamba_d_state": 128, "num_mem_blocks": 1, "adapter_rank": 128, "use_mem_rope": true,
  "use_shared_attention_adapter": true})";
inline constexpr const char* kZamba2Middle = R"({"layers_block_type": ["mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "hybrid", "mamba", "mamba", "mamba", "mamba",
  "mamba", "hybrid", "mamba", "mamba", "mamba", "mamba", "mamba", "hybrid", "mamba", "mamba", "mamba", "mamba", "mamba",
  "hybrid", "mamba", "mamba", "mamba", "mamba", "mamba", "hybrid", "mamba", "mamba", "mamba", "mamba", "mamba", "hybrid",
  "mamba", "mamba", "mamba", "mamba", "mamba", "hybrid", "mamba", "mamba", "mamba", "mamba", "hybrid", "mamba", "mamba",
  "mamba", "hybrid", "mamba", "mamba"], "n_mamba_heads": 80, "mamba_d_state": 64, "num_mem_blocks": 2, "adapter_rank": 128})";
inline constexpr const char* kZamba2Large = R"({"layers_block_type": ["mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "hybrid", "mamba", "mamba", "mamba", "mamba",
  "hybrid", "mamba", "mamba", "mamba", "mamba", "mamba", "hybrid", "mamba", "mamba", "mamba", "mamba", "mamba", "hybrid",
  "mamba", "mamba", "mamba", "mamba", "mamba", "hybrid", "mamba", "mamba", "mamba", "mamba", "mamba", "hybrid", "mamba",
  "mamba", "mamba", "mamba", "mamba", "hybrid", "mamba", "mamba", "mamba", "mamba", "mamba", "hybrid", "mamba", "mamba",
  "mamba", "mamba", "mamba", "hybrid", "mamba", "mamba", "mamba", "mamba", "mamba", "hybrid", "mamba", "mamba", "mamba",
  "mamba", "mamba", "hybrid", "mamba", "mamba", "mamba", "mamba", "mamba", "hybrid", "mamba", "mamba", "mamba", "mamba",
  "mamba", "hybrid", "mamba", "mamba", "mamba"], "n_mamba_heads": 112, "mamba_d_state": 64, "mamba_ngroups": 2,
  "num_mem_blocks": 2, "adapter_rank": 128, "use_mem_rope": true})";
inline constexpr const char* kZamba2Cpu = R"({"layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "n_mamba_heads": 16, "mamba_d_state": 64, "num_mem_blocks": 1,
  "adapter_rank": 16, "use_mem_rope": true})";
inline constexpr const char* kZamba2Tiny = R"({"layers_block_type": ["hybrid", "mamba", "hybrid", "hybrid"], "n_mamba_heads": 4, "mamba_d_state": 16,
  "mamba_d_conv": 3, "time_step_min": 0.3, "num_mem_blocks": 2, "adapter_rank": 5, "use_mem_rope": true,
  "use_shared_attention_adapter": true})";
inline constexpr const char* kZamba2PlainTiny = R"({"layers_block_type": ["mamba", "hybrid", "hybrid"], "n_mamba_heads": 4, "mamba_d_state": 7, "adapter_rank": 4,
  "num_mem_blocks": 1, "add_bias_linear": true})";
// clang-format on

}  // namespace streambp
