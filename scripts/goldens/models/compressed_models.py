"""The tiny models whose attention sees blocks of tokens made one key each: DeepSeek V4.

Windows, blocks and what an indexer picks end within a batch of 29 tokens; indexers have eight heads, so that a score is seldom 0.
"""

from goldens.models.family_models import ALL, ONE
from goldens.specs import COMMON, PROMPTS, Model

COMPRESSED = {
    **{key: value for key, value in COMMON.items() if key not in ("intermediate_size", "num_key_value_heads")},
    "vocab_size": 61,
    "moe_intermediate_size": 10,
    "head_dim": 10,
    "partial_rotary_factor": 0.4,
    "q_lora_rank": 9,
    "o_groups": 2,
    "o_lora_rank": 7,
    "sliding_window": 6,
    "compress_rates": {"compressed_sparse_attention": 3, "heavily_compressed_attention": 5},
    "rope_theta": 100.0,
    "compress_rope_theta": 900.0,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "index_n_heads": 8,
    "index_head_dim": 8,
    "index_topk": 3,
    "hc_mult": 3,
    "hc_sinkhorn_iters": 4,
    "hc_eps": 1e-3,
    "swiglu_limit": 0.9,
    "router_aux_loss_coef": 0.0,  # which TRL would add
}
SLIDING, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"

COMPRESSED_MODELS = {
    # A layer of each kind, and one whose experts are those of a table.
    "deepseek-v4": Model(
        "deepseek_v4",
        seed=901,
        settings={**COMPRESSED, "layer_types": [SLIDING, HEAVY, SPARSE], "mlp_layer_types": ["moe", "hash_moe", "moe"]},
        legacy=None,
        batches=ALL,
    ),
    # Windows alone, and no table.
    "deepseek-v4-sliding": Model(
        "deepseek_v4",
        seed=902,
        settings={
            **COMPRESSED,
            "num_hidden_layers": 2,
            "layer_types": [SLIDING, SLIDING],
            "mlp_layer_types": ["moe", "moe"],
            "hc_mult": 2,
            "hc_sinkhorn_iters": 1,
            "o_groups": 4,
            "tie_word_embeddings": True,
        },
        legacy=None,
        batches=ONE,
    ),
    # The routers' loss, of a softmax of what scores are roots of softplus of; a table's layer has no part in it.
    "deepseek-v4-aux": Model(
        "deepseek_v4",
        seed=905,
        settings={
            **COMPRESSED,
            "num_hidden_layers": 2,
            "layer_types": [SLIDING, HEAVY],
            "mlp_layer_types": ["moe", "hash_moe"],
            "hc_mult": 2,
            "output_router_logits": True,
            "router_aux_loss_coef": 0.3,
        },
        legacy=None,
        batches=PROMPTS,
    ),
    # In DeepSeek's own words: layers by their rates, a number of hashed layers, and YaRN of layers with blocks.
    "deepseek-v4-published": Model(
        "deepseek_v4",
        seed=903,
        settings={
            **{key: value for key, value in COMPRESSED.items() if key not in ("compress_rates", "partial_rotary_factor")},
            "num_hidden_layers": 2,
            "compress_ratios": [128, 4, 0],
            "compress_rate_csa": 2,
            "compress_rate_hca": 7,
            "num_hash_layers": 1,
            "qk_rope_head_dim": 6,
            "index_topk": 4,
            "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 2.0, "beta_slow": 0.25},
        },
        legacy=None,
        batches=ONE,
    ),
}
