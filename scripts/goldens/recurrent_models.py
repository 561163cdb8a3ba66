"""The tiny models whose layers are mostly gated delta rules, a recurrence over tokens: Qwen3.5, Qwen3-Next and their mixtures.

Numbers of key and value heads and their sizes differ. transformers' code computes the recurrence in blocks of 64 tokens, so
some rows are longer, and some shorter than the convolution's kernel.
"""

from goldens.family_models import ALL, ONE, SMALL
from goldens.specs import Batch, Model, rope

# Two blocks of 64 and a little more; a block and one token, which the padding before them puts across a block's end.
LONG = {"b2_left_long": Batch((131, 65), "left")}
SHORT = {"b4_right_short": Batch((3, 1, 2, 4), "right")}

RECURRENT = {
    **SMALL,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 7,
    "rope_parameters": rope(1000.0, partial_rotary_factor=0.5),
}

EXPERTS = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 5,
    "shared_expert_intermediate_size": 7,
}

RECURRENT_MODELS = {
    # Layer 2 is full attention, layers 0, 1 and 3 are recurrent.
    "qwen3-5": Model(
        "qwen3_5_text",
        seed=501,
        settings={**RECURRENT, "num_hidden_layers": 4, "full_attention_interval": 3},
        legacy={"full_attention_interval": 3, "partial_rotary_factor": 0.5},
        batches={**ALL, **LONG},
        norms_add_one=True,
    ),
    # As many key heads as value heads, keys longer than values, and no pattern in its layers.
    "qwen3-5-conv2": Model(
        "qwen3_5_text",
        seed=502,
        settings={
            **RECURRENT,
            "hidden_size": 16,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "attention_bias": True,
            "layer_types": ["full_attention", "linear_attention", "linear_attention"],
            "linear_num_key_heads": 3,
            "linear_num_value_heads": 3,
            "linear_key_head_dim": 7,
            "linear_value_head_dim": 4,
            "linear_conv_kernel_dim": 2,
            "tie_word_embeddings": True,
            "rope_parameters": rope(100.0, partial_rotary_factor=0.25),
        },
        legacy=None,
        batches={**ONE, **SHORT},
        norms_add_one=True,
    ),
    # Every other layer is recurrent, layer 1 dense. in_proj_qkvz and in_proj_ba hold what the others' four maps do.
    "qwen3-next": Model(
        "qwen3_next",
        seed=503,
        settings={
            **RECURRENT,
            **EXPERTS,
            "num_hidden_layers": 4,
            "full_attention_interval": 2,
            "mlp_only_layers": [1],
            "linear_conv_kernel_dim": 3,
            "linear_key_head_dim": 5,
            "linear_value_head_dim": 3,
        },
        legacy={"full_attention_interval": 2, "partial_rotary_factor": 0.5},
        batches={**ALL, **LONG},
        norms_add_one=True,
    ),
    "qwen3-next-aux": Model(
        "qwen3_next",
        seed=504,
        settings={
            **RECURRENT,
            **EXPERTS,
            "num_experts": 4,
            "num_experts_per_tok": 3,
            "decoder_sparse_step": 2,
            "norm_topk_prob": False,
            "layer_types": ["full_attention", "linear_attention"],
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 3,
            "linear_key_head_dim": 4,
            "output_router_logits": True,
            "router_aux_loss_coef": 0.3,
            "tie_word_embeddings": True,
        },
        legacy=None,
        batches=ONE,
        norms_add_one=True,
    ),
    # Sections of rotary positions, which text doesn't use: time, height and width are one there.
    "qwen3-5-moe": Model(
        "qwen3_5_moe_text",
        seed=505,
        settings={
            **RECURRENT,
            **EXPERTS,
            "num_hidden_layers": 3,
            "full_attention_interval": 3,
            "num_experts_per_tok": 3,
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 3,
            "linear_key_head_dim": 4,
            "linear_value_head_dim": 6,
            "tie_word_embeddings": True,
            "rope_parameters": rope(500.0, partial_rotary_factor=0.75, mrope_interleaved=True, mrope_section=[1, 1, 1]),
        },
        legacy=None,
        batches=ALL,
        norms_add_one=True,
    ),
}
