"""The tiny models whose layers are mostly recurrent over tokens: gated delta rules (Qwen3.5, Qwen3-Next and their mixtures),
and Mamba-2's state spaces (Granite 4, Bamba, Falcon-H1).

Numbers of key and value heads and their sizes differ. transformers' code computes the recurrence in blocks of 64 tokens, so
some rows are longer, and some shorter than the convolution's kernel.
"""

from goldens.models.family_models import ALL, ONE, SMALL
from goldens.specs import PROMPTS, Batch, Model, rope

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

STATE_SPACE = {
    **SMALL,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "router_aux_loss_coef": 0.0,  # TRL asks for a loss of routers by it, and there are none
    "shared_intermediate_size": 13,
    "mamba_n_heads": 5,
    "mamba_d_head": 8,
    "mamba_d_state": 7,
    "mamba_chunk_size": 16,  # transformers' blocks: several in a row
    "attention_multiplier": 0.125,
    "embedding_multiplier": 5.5,
    "residual_multiplier": 0.35,
    "logits_scaling": 3.5,
}

BAMBA = {
    **SMALL,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "mamba_n_heads": 4,
    "mamba_d_head": 10,
    "mamba_n_groups": 2,
    "mamba_d_state": 7,
    "mamba_chunk_size": 16,
}

FALCON = {
    **SMALL,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "mamba_n_heads": 4,
    "mamba_d_head": 9,
    "mamba_d_ssm": 36,
    "mamba_d_state": 7,
    "mamba_chunk_size": 16,
    "embedding_multiplier": 3.5,
    "lm_head_multiplier": 0.4,
    "attention_in_multiplier": 0.8,
    "attention_out_multiplier": 1.3,
    "key_multiplier": 1.7,
    "ssm_in_multiplier": 1.2,
    "ssm_out_multiplier": 0.6,
    "ssm_multipliers": [0.7, 1.4, 0.9, 1.1, 0.8],
    "mlp_multipliers": [1.5, 0.7],
}

RECURRENT_MODELS = {
    # Layer 1 attends, without rotation; steps of time are cut off at both ends.
    "granite-hybrid": Model(
        "granitemoehybrid",
        seed=506,
        settings={
            **STATE_SPACE,
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "position_embedding_type": "nope",
            "time_step_limit": [0.4, 1.5],
            "tie_word_embeddings": True,
        },
        legacy={"layer_types": ["mamba", "attention", "mamba"]},
        batches={**ALL, **LONG},
    ),
    # Biases of in_proj and out_proj, which padding on the left would show.
    "granite-hybrid-bias": Model(
        "granitemoehybrid",
        seed=519,
        settings={
            **STATE_SPACE,
            "mamba_proj_bias": True,
            "layer_types": ["linear_attention", "full_attention"],
            "tie_word_embeddings": True,
        },
        legacy=None,
        batches=PROMPTS,
    ),
    # Experts next to the shared MLP in both layers, of which the second attends.
    "granite-hybrid-moe": Model(
        "granitemoehybrid",
        seed=514,
        settings={
            **STATE_SPACE,
            "num_hidden_layers": 2,
            "layer_types": ["linear_attention", "full_attention"],
            "position_embedding_type": "nope",
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "intermediate_size": 6,
            "tie_word_embeddings": True,
        },
        legacy=None,
        batches={**ALL, **LONG},
    ),
    # Layer 1 attends, and turns a quarter of its heads' entries; two groups, and MLPs with biases.
    "bamba": Model(
        "bamba",
        seed=510,
        settings={
            **BAMBA,
            "num_hidden_layers": 3,
            "attn_layer_indices": [1],
            "time_step_limit": [0.3, 1.7],
            "mlp_bias": True,
            "rope_parameters": rope(1000.0, partial_rotary_factor=0.25),
        },
        legacy=None,
        batches={**ALL, **LONG},
    ),
    # Attention last, biases there, and a convolution without one.
    "bamba-bias": Model(
        "bamba",
        seed=511,
        settings={
            **BAMBA,
            "num_hidden_layers": 2,
            "attn_layer_indices": [1],
            "attention_bias": True,
            "mamba_n_groups": 1,
            "mamba_d_conv": 2,
            "mamba_conv_bias": False,
            "tie_word_embeddings": True,
        },
        legacy={},
        batches={**ONE, **SHORT},
    ),
    # Each layer has attention and a state space of two groups; every map has a factor of its own, and what is gated no norm.
    "falcon-h1": Model(
        "falcon_h1",
        seed=515,
        settings={
            **FALCON,
            "mamba_n_groups": 2,
            "time_step_limit": [0.3, 1.7],
            "tie_word_embeddings": True,
        },
        legacy={},
        batches={**ALL, **LONG},
    ),
    # A norm of each group before the gate.
    "falcon-h1-before": Model(
        "falcon_h1",
        seed=517,
        settings={**FALCON, "mamba_n_groups": 2, "mamba_rms_norm": True, "attention_in_multiplier": 0.9},
        legacy={},
        batches=ONE,
    ),
    # Every bias there is.
    "falcon-h1-bias": Model(
        "falcon_h1",
        seed=521,
        settings={
            **FALCON,
            "attention_in_multiplier": 1.0,
            "ssm_in_multiplier": 1.0,
            "attention_bias": True,
            "mlp_bias": True,
            "mamba_proj_bias": True,
            "projectors_bias": True,
        },
        legacy={},
        batches=PROMPTS,
    ),
    # Biases of attention and MLP, and a norm of what is gated.
    "falcon-h1-norm": Model(
        "falcon_h1",
        seed=516,
        settings={
            **FALCON,
            "num_hidden_layers": 3,
            "attention_in_multiplier": 1.0,
            "attention_bias": True,
            "mlp_bias": True,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
            "mamba_d_conv": 2,
            "mamba_conv_bias": False,
            "ssm_multipliers": [1.0, 0.7, 0.7, 0.7, 1.0],
        },
        legacy={},
        batches={**ONE, **SHORT},
    ),
    # Three groups of two heads, a short convolution without a bias, and rotation.
    "granite-hybrid-groups": Model(
        "granitemoehybrid",
        seed=507,
        settings={
            **STATE_SPACE,
            "hidden_size": 18,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "head_dim": 6,
            "attention_bias": True,
            "mamba_n_heads": 6,
            "mamba_n_groups": 3,
            "mamba_d_head": 9,
            "mamba_d_state": 4,
            "mamba_expand": 3,
            "mamba_d_conv": 2,
            "mamba_conv_bias": False,
            "layer_types": ["full_attention", "linear_attention"],
            "position_embedding_type": "rope",
        },
        legacy=None,
        batches={**ONE, **SHORT},
    ),
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
