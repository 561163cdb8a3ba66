"""The tiny models of GLM-5.3's text model: a rule with a decay for each channel, indexers that pick groups of tokens, residual streams that are mixed.

transformers has the class since 5.24, with its towers alone: decoder and head without them are put together here.
"""

from goldens.models.family_models import ALL, ONE
from goldens.models.recurrent_models import LONG
from goldens.models.text_model import register_text_model
from goldens.specs import COMMON, Model

register_text_model("glm5_next", "Glm5Next")

GLM5_NEXT = {
    **COMMON,
    "vocab_size": 59,
    "num_key_value_heads": 4,
    "q_lora_rank": 9,
    "kv_lora_rank": 7,
    "qk_nope_head_dim": 5,
    "v_head_dim": 6,
    "linear_num_heads": 2,
    "linear_head_dim": 6,
    "moe_intermediate_size": 5,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 1.7,
    "index_n_heads": 8,
    "index_head_dim": 10,
    "index_kpool": 3,
    "index_topk": 6,
    "hc_mult": 3,
    "hc_sinkhorn_iters": 4,
    "hc_eps": 1e-3,
    "swiglu_limit": 0.9,
    "router_aux_loss_coef": 0.0,  # TRL would add the routers' loss
}
RECURS, PICKS = "linear_attention", "indexed_attention"

GLM5_NEXT_MODELS = {
    # Layer 2 sees what layer 1 has picked, and some groups of experts are left out.
    "glm5-next": Model(
        "glm5_next_text",
        seed=1101,
        settings={
            **GLM5_NEXT,
            "num_hidden_layers": 4,
            "layer_types": [RECURS, PICKS, PICKS, RECURS],
            "mlp_layer_types": ["dense", "sparse", "sparse", "dense"],
            "indexer_types": ["full", "full", "shared", "full"],
            "n_group": 3,
            "topk_group": 2,
        },
        legacy=None,
        batches={**ALL, **LONG},
    ),
    # Sizes of the rule as published files list them, decays without a bound, one group of four tokens, biases, and weights that do not sum to 1.
    "glm5-next-listed": Model(
        "glm5_next_text",
        seed=1102,
        settings={
            **GLM5_NEXT,
            "num_hidden_layers": 2,
            "layer_types": ["full_attention", RECURS],
            "mlp_layer_types": ["sparse", "sparse"],
            "linear_attn_config": {"head_dim": 5, "num_heads": 3, "short_conv_kernel_size": 3, "gate_lower_bound": None, "safe_gate": False},
            "n_shared_experts": 2,
            "attention_bias": True,
            "norm_topk_prob": False,
            "index_kpool": 4,
            "index_topk": 4,
            "hc_mult": 2,
            "hc_sinkhorn_iters": 1,
            "tie_word_embeddings": True,
        },
        legacy=None,
        batches=ONE,
    ),
    # Groups of one token, behind a layer that tells those of one word apart.
    "glm5-next-alone": Model(
        "glm5_next_text",
        seed=1103,
        settings={
            **GLM5_NEXT,
            "num_hidden_layers": 2,
            "layer_types": [RECURS, PICKS],
            "mlp_layer_types": ["dense", "sparse"],
            "index_kpool": 1,
            "index_topk": 7,
        },
        legacy=None,
        batches=ONE,
    ),
}
