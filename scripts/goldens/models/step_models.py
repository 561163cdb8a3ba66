"""The tiny models of Step 3.7's text model: more heads in layers with a window, a gate for each head, clamped MLPs.

transformers has the class since 5.24, with its tower for images alone: decoder and head without it are put together here.
"""

from goldens.models.family_models import ALL, ONE
from goldens.models.text_model import register_text_model
from goldens.specs import COMMON, Model, rope

register_text_model("step3p7", "Step3p7")

STEP = {
    **{key: value for key, value in COMMON.items() if key not in ("vocab_size", "pad_token_id")},
    "vocab_size": 61,
    "pad_token_id": 0,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "sliding_window": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 5,
    "share_expert_dim": 7,
}

STEP_MODELS = {
    # Layer 0 is dense; each kind of MLP is clamped somewhere, and the scaled frequencies are those of layer 0 alone.
    "step3p7": Model(
        "step3p5",
        seed=801,
        settings={
            **STEP,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "num_sliding_attention_heads": 3,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "n_routed_experts": 6,
            "moe_router_scaling_factor": 1.7,
            "swiglu_limits": [0.0, 0.0, 0.3],
            "swiglu_limits_shared": [0.4, 0.25, None],
            "rope_parameters": {
                "full_attention": rope(
                    1000.0, "llama3", factor=4.0, original_max_position_embeddings=16, low_freq_factor=1.0, high_freq_factor=4.0, partial_rotary_factor=0.5
                ),
                "sliding_attention": rope(100.0),
            },
        },
        legacy=None,
        batches=ALL,
        norms_add_one=True,
    ),
    # As published files say it: lists of layers with one more for a layer that predicts further, numbers of layers, other heads.
    "step3p7-published": Model(
        "step3p5",
        seed=802,
        settings={
            **STEP,
            "num_hidden_layers": 2,
            "num_nextn_predict_layers": 1,
            "layer_types": ["sliding_attention", "full_attention", "full_attention"],
            "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 4},
            "moe_layers_enum": "0,1,2",
            "n_routed_experts": 4,
            "swiglu_limits": [0.2, 0.0, 0.0],
            "swiglu_limits_shared": [0.0, 0.3, 0.0],
            "rope_theta": [100.0, 500.0, 500.0],
            "partial_rotary_factors": [1.0, 0.75, 0.75],
            "attention_bias": True,
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": 11,
        },
        legacy=None,
        batches=ONE,
        norms_add_one=True,
    ),
}
