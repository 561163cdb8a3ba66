"""The tiny models whose experts are chosen by sigmoids and a bias: DeepSeek-V3, with its latent attention, GLM-4.5 and MiniMax M2."""

from goldens.models.family_models import ALL, ONE, SMALL, short_yarn
from goldens.models.text_model import register_class
from goldens.specs import Model, rope

register_class("Mistral4")

# What GLM-4.5 and DeepSeek-V3 have in common. Layer 0 is dense.
GROUPED = {
    **SMALL,
    "hidden_size": 16,
    "intermediate_size": 10,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 5,
    "routed_scaling_factor": 1.7,
}

LATENT = {
    **GROUPED,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "kv_lora_rank": 7,
    "qk_nope_head_dim": 5,
    "qk_rope_head_dim": 6,
    "v_head_dim": 4,
}

# Queries with a latent, and experts of the best two of four groups.
IN_GROUPS = {**LATENT, "q_lora_rank": 9, "n_routed_experts": 8, "n_group": 4, "topk_group": 2}

# Queries without a latent, halves of a head that turn with each other, one group.
PLAIN = {
    **LATENT,
    "q_lora_rank": None,
    "rope_interleave": False,
    "attention_bias": True,
    "n_routed_experts": 5,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "norm_topk_prob": False,
    "tie_word_embeddings": True,
}

# The scores' scale is multiplied by the square of 0.1 mscale_all_dim ln(factor) + 1, cosines and sines by a ratio of two such.
YARN = short_yarn(200.0, mscale=0.5, mscale_all_dim=1.5)

GROUPED_MODELS = {
    "deepseek-v3": Model(
        "deepseek_v3",
        seed=601,
        settings={**IN_GROUPS, "n_shared_experts": 2, "rope_parameters": YARN},
        legacy={"rope_scaling": {"type": "yarn", **{key: YARN[key] for key in YARN if key not in ("rope_type", "rope_theta")}}},
        batches=ALL,
    ),
    "deepseek-v3-plain": Model(
        "deepseek_v3",
        seed=602,
        settings=PLAIN,
        batches=ONE,
    ),
    # GLM-4.7-Flash: latent attention, and which layers are dense by a list alone.
    "glm4-moe-lite": Model(
        "glm4_moe_lite",
        seed=671,
        settings={
            **{key: value for key, value in IN_GROUPS.items() if key != "first_k_dense_replace"},
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "rope_parameters": rope(100.0),
        },
        legacy=None,
        batches=ALL,
    ),
    # Queries grow with their positions, a share of a key rotates (partial_rotary_factor), and files hold all experts of a layer in two tensors.
    "mistral4": Model(
        "mistral4",
        seed=672,
        settings={
            **IN_GROUPS,
            "n_shared_experts": 2,
            "rope_parameters": {**YARN, "llama_4_scaling_beta": 0.3, "partial_rotary_factor": 6 / 11},
        },
        legacy=None,
        batches=ALL,
    ),
    "mistral4-plain": Model(
        "mistral4",
        seed=673,
        settings={
            **PLAIN,
            "rope_parameters": {**short_yarn(200.0), "llama_4_scaling_beta": 0.1, "partial_rotary_factor": 6 / 11},
        },
        legacy=None,
        batches=ONE,
    ),
    "glm4-moe": Model(
        "glm4_moe",
        seed=603,
        settings={
            **GROUPED,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 8,
            "attention_bias": True,
            "use_qk_norm": True,
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "rope_parameters": rope(100.0, partial_rotary_factor=0.5),
        },
        legacy={"partial_rotary_factor": 0.5},
        batches=ALL,
    ),
    # Files say block_sparse_moe and w1, w3, w2, as Mixtral's.
    "minimax-m2": Model(
        "minimax_m2",
        seed=621,
        settings={
            **SMALL,
            "hidden_size": 16,
            "intermediate_size": 6,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 8,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "router_aux_loss_coef": 0.0,
            "rope_parameters": rope(100.0, partial_rotary_factor=0.5),
        },
        legacy={"rotary_dim": 4},
        batches=ALL,
    ),
    # The routers' loss, of a softmax of what weights are sigmoids of.
    "minimax-m2-aux": Model(
        "minimax_m2",
        seed=622,
        settings={
            **SMALL,
            "hidden_size": 16,
            "intermediate_size": 5,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 8,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "output_router_logits": True,
            "router_aux_loss_coef": 0.3,
            "rope_parameters": rope(100.0, partial_rotary_factor=0.5),
        },
        legacy=None,
        batches=ONE,
    ),
    "glm4-moe-groups": Model(
        "glm4_moe",
        seed=614,
        settings={
            **GROUPED,
            "n_routed_experts": 9,
            "n_group": 3,
            "topk_group": 2,
            "norm_topk_prob": False,
            "n_shared_experts": 3,
            "tie_word_embeddings": True,
            "rope_parameters": rope(100.0, partial_rotary_factor=1.0),
        },
        legacy={"partial_rotary_factor": 1.0},
        batches=ONE,
    ),
}
