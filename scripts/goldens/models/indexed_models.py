"""The tiny models whose attention sees what an indexer picks: DeepSeek V3.2 and GLM-5.

Indexers have eight heads, so that a score is seldom 0: torch.topk leaves open which of equal ones it takes.
"""

from goldens.models.family_models import ALL, ONE
from goldens.models.grouped_models import LATENT, YARN
from goldens.specs import Model, rope

INDEXED = {**LATENT, "q_lora_rank": 9, "index_n_heads": 8, "index_head_dim": 10}

INDEXED_MODELS = {
    "deepseek-v32": Model(
        "deepseek_v32",
        seed=604,
        settings={
            **INDEXED,
            "n_routed_experts": 8,
            "n_group": 4,
            "topk_group": 2,
            "index_topk": 6,
            "rope_parameters": YARN,
        },
        legacy={"rope_scaling": {"type": "yarn", **{key: YARN[key] for key in YARN if key not in ("rope_type", "rope_theta")}}},
        batches=ALL,
    ),
    # The longest row sees one token less than there are, and some none less.
    "deepseek-v32-long": Model(
        "deepseek_v32",
        seed=605,
        settings={
            **INDEXED,
            "num_hidden_layers": 2,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "attention_bias": True,
            "index_topk": 28,
            "tie_word_embeddings": True,
            "rope_parameters": rope(100.0),
        },
        batches=ONE,
    ),
    # Layers 1 and 3 see what the layer below has picked.
    "glm-moe-dsa": Model(
        "glm_moe_dsa",
        seed=606,
        settings={
            **INDEXED,
            "num_hidden_layers": 4,
            "mlp_layer_types": ["dense", "sparse", "sparse", "dense"],
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "index_topk": 5,
            "indexer_types": ["full", "shared", "full", "shared"],
            "rope_parameters": rope(100.0),
        },
        batches=ALL,
    ),
    # Two of three layers share.
    "glm-moe-dsa-dense": Model(
        "glm_moe_dsa",
        seed=607,
        settings={
            **INDEXED,
            "first_k_dense_replace": 2,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "attention_bias": True,
            "index_topk": 7,
            "index_topk_freq": 3,
            "index_skip_topk_offset": 1,
            "tie_word_embeddings": True,
            "rope_parameters": rope(100.0),
        },
        batches=ONE,
    ),
}
