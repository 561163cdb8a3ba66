"""The tiny models of Gemma 4's text part: dense, with per-layer embeddings and shared keys and values, and a mixture."""

from goldens.models.family_models import ALL, ONE, SMALL
from goldens.specs import FEW, Model, rope

# Full layers have heads of another size, and turn the first pairs of a head only, by frequencies of the whole head.
HEADS = {
    **SMALL,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 6,
    "head_dim": 6,
    "global_head_dim": 8,
    "hidden_activation": "gelu_pytorch_tanh",
    "pad_token_id": 0,
    "rope_parameters": {
        "full_attention": rope(200.0, "proportional", partial_rotary_factor=0.5),
        "sliding_attention": rope(50.0),
    },
}

# Values of full layers are their keys.
KEYS_ARE_VALUES = {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0}

# As published files spell what transformers 5.23 saves as per_layer_config.
PUBLISHED = {"global_head_dim": 8, "num_global_key_value_heads": 1}

GEMMA4_MODELS = {
    "gemma4": Model(
        "gemma4_text",
        seed=701,
        settings={**HEADS, **KEYS_ARE_VALUES, "final_logit_softcapping": 3.0},
        legacy=PUBLISHED,
        batches=ALL,
    ),
    # Layers 3 and 4 have the keys and values of layers 1 and 2, none of their own, and an MLP twice as wide.
    "gemma4-per-layer": Model(
        "gemma4_text",
        seed=702,
        settings={
            **HEADS,
            "num_hidden_layers": 5,
            "layer_types": [*["sliding_attention"] * 2, "full_attention", "sliding_attention", "full_attention"],
            "hidden_size_per_layer_input": 5,
            "vocab_size_per_layer_input": 43,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
        },
        legacy={"global_head_dim": 8, "num_global_key_value_heads": None},
        batches=FEW,
    ),
    "gemma4-moe": Model(
        "gemma4_text",
        seed=703,
        settings={
            **HEADS,
            **KEYS_ARE_VALUES,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "enable_moe_block": True,
            "num_experts": 5,
            "top_k_experts": 2,
            "moe_intermediate_size": 4,
            "tie_word_embeddings": False,
        },
        legacy=PUBLISHED,
        batches=ONE,
    ),
}
