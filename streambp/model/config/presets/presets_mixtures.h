// What presets of mixtures add to their sizes, as published files have it (config.json of the models that
// presets.cc names).
#pragma once

namespace streambp {

// clang-format off
inline constexpr const char* kMixtral8x7 = R"({"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": null,
  "router_aux_loss_coef": 0.02})";
inline constexpr const char* kMixtralTiny = R"({"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 9,
  "output_router_logits": true, "router_aux_loss_coef": 0.3})";
inline constexpr const char* kMiniMaxM2 = R"({"num_local_experts": 256, "num_experts_per_tok": 8, "rotary_dim": 64,
  "router_aux_loss_coef": 0.001})";
inline constexpr const char* kMiniMaxM2Tiny = R"({"num_local_experts": 4, "num_experts_per_tok": 2, "partial_rotary_factor": 0.5,
  "router_aux_loss_coef": 0.0})";
// In words of published files: all but the first three layers have experts and indexers.
inline constexpr const char* kMiniMaxM3 = R"({"dense_intermediate_size": 12288, "shared_intermediate_size": 3072,
  "num_local_experts": 128, "num_experts_per_tok": 4, "routed_scaling_factor": 2.0, "partial_rotary_factor": 0.5,
  "rotary_dim": 64, "hidden_act": "swigluoai", "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "router_aux_loss_coef": 0.001,
  "moe_layer_freq": [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
  "sparse_attention_config": {"use_sparse_attention": true, "sparse_num_index_heads": 4, "sparse_index_dim": 128,
  "sparse_block_size": 128, "sparse_topk_blocks": 16, "sparse_init_block": 0, "sparse_local_block": 1,
  "sparse_score_type": "max",
  "sparse_attention_freq": [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]}})";
inline constexpr const char* kMiniMaxM3Tiny = R"({"dense_intermediate_size": 28, "shared_intermediate_size": 20,
  "num_local_experts": 6, "num_experts_per_tok": 2, "routed_scaling_factor": 1.7, "partial_rotary_factor": 0.5,
  "swiglu_alpha": 1.3, "swiglu_limit": 0.9, "output_router_logits": true, "router_aux_loss_coef": 0.3,
  "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse", "full_attention"],
  "mlp_layer_types": ["dense", "sparse", "dense", "sparse"], "index_n_heads": 2, "index_head_dim": 6,
  "index_block_size": 3, "index_topk_blocks": 2, "index_local_blocks": 1})";
inline constexpr const char* kQwen15Moe = R"({"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
  "shared_expert_intermediate_size": 5632, "norm_topk_prob": false})";
inline constexpr const char* kQwen2MoeTiny = R"({"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
  "shared_expert_intermediate_size": 24, "norm_topk_prob": false, "mlp_only_layers": [1], "output_router_logits": true,
  "router_aux_loss_coef": 0.3, "use_sliding_window": true, "sliding_window": 6, "max_window_layers": 2})";
inline constexpr const char* kQwen3Moe30 = R"({"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
  "norm_topk_prob": true})";
inline constexpr const char* kQwen3Moe235 = R"({"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536,
  "norm_topk_prob": true})";
inline constexpr const char* kQwen3MoeCpu = R"({"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 768,
  "norm_topk_prob": true})";
inline constexpr const char* kQwen3MoeTiny = R"({"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
  "norm_topk_prob": true, "mlp_only_layers": [1], "output_router_logits": true, "router_aux_loss_coef": 0.3})";
inline constexpr const char* kQwen3MoePlainTiny = R"({"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
  "norm_topk_prob": false})";
inline constexpr const char* kErnie45Moe21 = R"({"head_dim": null, "moe_num_experts": 64, "moe_k": 6, "moe_intermediate_size": 1536,
  "moe_num_shared_experts": 2, "moe_layer_start_index": 1})";
inline constexpr const char* kErnie45MoeTiny = R"({"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 20, "moe_num_shared_experts": 1, "moe_layer_start_index": 1,
  "output_router_logits": true, "router_aux_loss_coef": 0.3})";
inline constexpr const char* kGraniteMoe3B = R"({"num_local_experts": 40, "num_experts_per_tok": 8, "router_aux_loss_coef": 0.01,
  "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.015625, "logits_scaling": 6.0})";
inline constexpr const char* kGraniteMoeTiny = R"({"num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": true,
  "router_aux_loss_coef": 0.3, "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.35,
  "logits_scaling": 2.5})";
inline constexpr const char* kDeepseekV3 = R"({"n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
  "n_shared_experts": 1, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5, "norm_topk_prob": true,
  "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "v_head_dim": 128, "rope_scaling": {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096,
  "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}})";
inline constexpr const char* kDeepseekV32 = R"({"n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
  "n_shared_experts": 1, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5, "norm_topk_prob": true,
  "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "v_head_dim": 128, "index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128, "rope_scaling": {"rope_type": "yarn",
  "factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
  "mscale_all_dim": 1.0}})";
inline constexpr const char* kGlm5 = R"({"n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
  "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": true,
  "first_k_dense_replace": 3, "q_lora_rank": 2048, "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
  "v_head_dim": 256, "index_topk": 2048, "index_n_heads": 32, "index_head_dim": 128})";
inline constexpr const char* kDeepseekV32Tiny = R"({"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 12,
  "n_shared_experts": 1, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.7, "norm_topk_prob": true,
  "first_k_dense_replace": 1, "q_lora_rank": 10, "kv_lora_rank": 14, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4,
  "v_head_dim": 7, "index_topk": 3, "index_n_heads": 3, "index_head_dim": 10, "rope_scaling": {"rope_type": "yarn",
  "factor": 4.0, "original_max_position_embeddings": 32, "mscale": 0.7, "mscale_all_dim": 0.9}})";
inline constexpr const char* kGlmMoeDsaTiny = R"({"mlp_layer_types": ["dense", "sparse", "dense", "sparse"], "n_routed_experts": 4,
  "num_experts_per_tok": 2, "moe_intermediate_size": 12, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
  "routed_scaling_factor": 1.3, "q_lora_rank": 9, "kv_lora_rank": 11, "qk_nope_head_dim": 4, "qk_rope_head_dim": 6,
  "v_head_dim": 13, "attention_bias": true, "index_topk": 4, "index_n_heads": 2, "index_head_dim": 8,
  "indexer_types": ["full", "shared", "full", "shared"]})";
// The sizes that transformers' class takes, whose documentation names tencent/Hy4-preview.
inline constexpr const char* kHy4Preview = R"({"n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
  "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827, "norm_topk_prob": true,
  "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256,
  "index_topk": 2048, "index_n_heads": 16, "index_head_dim": 128, "hc_mult": 4, "hc_magnitude": 2.0, "hc_eps": 1e-6,
  "swiglu_limit": 10.0})";
inline constexpr const char* kHyV4Tiny = R"({"mlp_layer_types": ["dense", "sparse", "sparse"], "n_routed_experts": 4,
  "num_experts_per_tok": 2, "moe_intermediate_size": 12, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
  "routed_scaling_factor": 1.3, "q_lora_rank": 9, "kv_lora_rank": 11, "qk_nope_head_dim": 4, "qk_rope_head_dim": 6,
  "v_head_dim": 13, "attention_bias": true, "index_topk": 4, "index_n_heads": 2, "index_head_dim": 8,
  "indexer_types": ["full", "full", "shared"], "hc_mult": 3, "hc_magnitude": 1.7, "hc_eps": 1e-3, "swiglu_limit": 0.02})";
// The class's own sizes (transformers 5.24), which it documents as DeepSeek V4 Flash's.
inline constexpr const char* kDeepseekV4Flash = R"({"moe_intermediate_size": 2048, "n_routed_experts": 256,
  "num_experts_per_tok": 6, "n_shared_experts": 1, "routed_scaling_factor": 1.5, "scoring_func": "sqrtsoftplus",
  "swiglu_limit": 10.0, "q_lora_rank": 1024, "o_groups": 8, "o_lora_rank": 1024, "sliding_window": 128,
  "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128},
  "compress_rope_theta": 160000.0, "partial_rotary_factor": 0.125, "index_n_heads": 64, "index_head_dim": 128,
  "index_topk": 512, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "router_aux_loss_coef": 0.001})";
inline constexpr const char* kDeepseekV4Tiny = R"({"moe_intermediate_size": 12, "n_routed_experts": 5,
  "num_experts_per_tok": 2, "mlp_layer_types": ["hash_moe", "moe", "moe", "hash_moe"], "swiglu_limit": 0.02,
  "layer_types": ["sliding_attention", "heavily_compressed_attention", "compressed_sparse_attention",
  "compressed_sparse_attention"], "compress_rates": {"compressed_sparse_attention": 3,
  "heavily_compressed_attention": 5}, "q_lora_rank": 9, "o_groups": 2, "o_lora_rank": 7, "sliding_window": 6,
  "compress_rope_theta": 900.0, "partial_rotary_factor": 0.4, "index_n_heads": 8, "index_head_dim": 6,
  "index_topk": 3, "hc_mult": 3, "hc_sinkhorn_iters": 4, "hc_eps": 1e-3, "output_router_logits": true, "router_aux_loss_coef": 0.3})";
// The class's own sizes (transformers 5.24), which it documents as Mistral Large 4's.
inline constexpr const char* kMistralLarge4 = R"({"n_routed_experts": 128, "num_experts_per_tok": 4, "moe_intermediate_size": 6144,
  "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0, "first_k_dense_replace": 1,
  "kv_lora_rank": 512, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 128, "index_topk": 2048,
  "index_n_heads": 32, "index_head_dim": 128, "no_rope_layer_interval": 4, "final_logit_softcapping": 30.0})";
inline constexpr const char* kMistralLarge4Tiny = R"({"mlp_layer_types": ["dense", "sparse", "sparse", "dense"], "n_routed_experts": 6,
  "num_experts_per_tok": 2, "moe_intermediate_size": 12, "n_shared_experts": 1, "n_group": 3, "topk_group": 2,
  "routed_scaling_factor": 1.3, "kv_lora_rank": 11, "qk_nope_head_dim": 4, "qk_rope_head_dim": 6, "v_head_dim": 13,
  "attention_bias": true, "index_topk": 4, "index_n_heads": 2, "index_head_dim": 8, "no_rope_layers": [1, 0, 1, 1],
  "kv_source_layers": [0, 1, 0, 3], "indexer_types": ["full", "full", "full", "shared"], "final_logit_softcapping": 3.0,
  "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "attention_factor": 1.2,
  "mscale_all_dim": 0.9}})";
// The class's own sizes (transformers 5.24), which it documents as zai-org/GLM-5.3-Flash's.
inline constexpr const char* kGlm53Flash = R"({"n_routed_experts": 288, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
  "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": true, "swiglu_limit": 10.0,
  "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "v_head_dim": 256, "index_topk": 2048,
  "index_n_heads": 32, "index_head_dim": 128, "index_kpool": 16, "linear_head_dim": 128, "linear_num_heads": 64,
  "linear_conv_kernel_dim": 4, "linear_lower_bound": -5.0, "hc_mult": 4, "hc_eps": 1e-6,
  "hc_sinkhorn_iters": 20, "router_aux_loss_coef": 0.001})";
inline constexpr const char* kGlm5NextTiny = R"({"layer_types": ["indexed_attention", "linear_attention", "indexed_attention", "indexed_attention"],
  "mlp_layer_types": ["dense", "sparse", "sparse", "dense"], "indexer_types": ["full", "full", "full", "shared"], "n_routed_experts": 6,
  "num_experts_per_tok": 2, "moe_intermediate_size": 12, "n_shared_experts": 1, "n_group": 3, "topk_group": 2, "routed_scaling_factor": 1.3,
  "swiglu_limit": 0.02, "q_lora_rank": 9, "kv_lora_rank": 11, "qk_nope_head_dim": 6, "qk_rope_head_dim": 0, "v_head_dim": 7,
  "attention_bias": true, "index_topk": 6, "index_n_heads": 8, "index_head_dim": 6, "index_kpool": 3, "linear_head_dim": 5,
  "linear_num_heads": 3, "linear_conv_kernel_dim": 3, "linear_lower_bound": -0.8, "hc_mult": 3, "hc_eps": 1e-3, "hc_sinkhorn_iters": 4,
  "output_router_logits": true, "router_aux_loss_coef": 0.3})";
inline constexpr const char* kKimiK2 = R"({"n_routed_experts": 384, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
  "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827, "norm_topk_prob": true,
  "first_k_dense_replace": 1, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "v_head_dim": 128, "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096,
  "beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}})";
// The sizes that transformers' class takes; the base is that of zai-org/GLM-4.7-Flash.
inline constexpr const char* kGlm47Flash = R"({"n_routed_experts": 64, "num_experts_per_tok": 4, "moe_intermediate_size": 1536,
  "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.8, "norm_topk_prob": true,
  "first_k_dense_replace": 1, "q_lora_rank": 768, "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
  "v_head_dim": 256})";
inline constexpr const char* kGlm4MoeLiteTiny = R"({"mlp_layer_types": ["dense", "sparse", "sparse"], "n_routed_experts": 6,
  "num_experts_per_tok": 3, "moe_intermediate_size": 12, "n_shared_experts": 1, "n_group": 2, "topk_group": 2,
  "routed_scaling_factor": 1.8, "norm_topk_prob": true, "q_lora_rank": 9, "kv_lora_rank": 11, "qk_nope_head_dim": 8,
  "qk_rope_head_dim": 4, "v_head_dim": 13})";
// The sizes that transformers' class takes, those of Mistral Small 4 (119 billion parameters).
inline constexpr const char* kMistralSmall4 = R"({"n_routed_experts": 128, "num_experts_per_tok": 4, "moe_intermediate_size": 2048,
  "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0, "norm_topk_prob": true,
  "first_k_dense_replace": 0, "q_lora_rank": 1024, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64,
  "v_head_dim": 128, "rope_scaling": {"rope_type": "yarn", "factor": 128.0, "original_max_position_embeddings": 8192,
  "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}})";
inline constexpr const char* kMistral4Tiny = R"({"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
  "n_shared_experts": 2, "n_group": 3, "topk_group": 2, "routed_scaling_factor": 1.3, "norm_topk_prob": true,
  "first_k_dense_replace": 1, "q_lora_rank": 9, "kv_lora_rank": 11, "qk_nope_head_dim": 4, "qk_rope_head_dim": 6,
  "v_head_dim": 13, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8,
  "mscale": 0.7, "mscale_all_dim": 0.9, "llama_4_scaling_beta": 0.3}})";
inline constexpr const char* kGlm45Air = R"({"n_routed_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1408,
  "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0, "norm_topk_prob": true,
  "first_k_dense_replace": 1, "attention_bias": true, "use_qk_norm": false, "partial_rotary_factor": 0.5})";
inline constexpr const char* kGlm47 = R"({"n_routed_experts": 160, "num_experts_per_tok": 8, "moe_intermediate_size": 1536,
  "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": true,
  "first_k_dense_replace": 3, "attention_bias": true, "use_qk_norm": true, "partial_rotary_factor": 0.5})";
inline constexpr const char* kDeepseekV3Tiny = R"({"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 12,
  "n_shared_experts": 2, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.7, "norm_topk_prob": true,
  "first_k_dense_replace": 1, "q_lora_rank": 10, "kv_lora_rank": 14, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4,
  "v_head_dim": 7, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
  "mscale": 0.7, "mscale_all_dim": 0.9}})";
inline constexpr const char* kDeepseekV3PlainTiny = R"({"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
  "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 0.8, "norm_topk_prob": false,
  "first_k_dense_replace": 0, "q_lora_rank": null, "kv_lora_rank": 9, "qk_nope_head_dim": 4, "qk_rope_head_dim": 6,
  "v_head_dim": 13, "rope_interleave": false, "attention_bias": true})";
inline constexpr const char* kGlm4MoeTiny = R"({"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
  "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "routed_scaling_factor": 1.3, "norm_topk_prob": true,
  "first_k_dense_replace": 1, "attention_bias": true, "use_qk_norm": true, "partial_rotary_factor": 0.5})";
// Every fourth layer sees all tokens, the first among them; the last two layers are clamped.
inline constexpr const char* kStep37Flash = R"({"layer_types": "first of 4", "num_sliding_attention_heads": 96, "sliding_window": 512,
  "n_routed_experts": 288, "num_experts_per_tok": 8, "moe_intermediate_size": 1280, "share_expert_dim": 1280,
  "moe_router_scaling_factor": 3.0,
  "swiglu_limits": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 7],
  "swiglu_limits_shared": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 16],
  "rope_parameters": {"full_attention": {"rope_type": "llama3", "rope_theta": 5e6, "partial_rotary_factor": 0.5, "factor": 2.0,
  "original_max_position_embeddings": 131072, "low_freq_factor": 1.0, "high_freq_factor": 32.0},
  "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}}})";
inline constexpr const char* kStep37Tiny = R"({"layer_types": "first of 3", "num_sliding_attention_heads": 6, "sliding_window": 5,
  "mlp_layer_types": ["dense", "sparse", "sparse", "dense"], "n_routed_experts": 4, "num_experts_per_tok": 2,
  "moe_intermediate_size": 12, "share_expert_dim": 20, "moe_router_scaling_factor": 1.7, "swiglu_limits": [0, 0, 0.1, null],
  "swiglu_limits_shared": [0, 0.2, 0, 0.15], "rope_parameters": {"full_attention": {"rope_type": "llama3", "rope_theta": 500.0,
  "partial_rotary_factor": 0.5, "factor": 4.0, "original_max_position_embeddings": 16, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
  "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}})";
// Muse Spark's published text model has the sizes of its class.
inline constexpr const char* kMuseSparkTiny = R"({"sliding_window": 5, "post_norm_eps": 1e-2, "final_logit_softcapping": 3.0,
  "output_multiplier": 0.7, "qk_scale_factor": 2.5, "residual_gate_temperature": 0.6, "mlp_layer_types": ["sparse", "dense"], "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "moe_hidden_size": 20,
  "routed_scaling_factor": 1.3, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}})";
// clang-format on

}  // namespace streambp
