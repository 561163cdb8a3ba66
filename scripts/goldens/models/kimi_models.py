"""The tiny models of Kimi Linear, whose gated delta rule has a decay for each channel, beside latent attention that does not rotate.

transformers has the class since 5.24, and computes its recurrence in blocks of 64 tokens.
"""

from goldens.models.family_models import ALL, ONE
from goldens.models.recurrent_models import LONG, SHORT
from goldens.specs import Model

KIMI = {
    "vocab_size": 41,
    "hidden_size": 20,
    "intermediate_size": 13,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "kv_lora_rank": 7,
    "qk_nope_head_dim": 5,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "linear_num_heads": 2,
    "linear_head_dim": 6,
    "moe_intermediate_size": 5,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 1.7,
}

KIMI_MODELS = {
    # Layer 1 attends, layer 0 has a dense MLP; experts in two groups, and two shared.
    "kimi-linear": Model(
        "kimi_linear",
        seed=701,
        settings={
            **KIMI,
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "n_group": 2,
            "topk_group": 1,
            "n_shared_experts": 2,
        },
        legacy=None,
        batches={**ALL, **LONG},
    ),
    # Layers and sizes as published files list them, a latent of the queries, biases, and weights that do not sum to 1.
    "kimi-linear-listed": Model(
        "kimi_linear",
        seed=702,
        settings={
            **KIMI,
            "num_hidden_layers": 2,
            "linear_attn_config": {
                "full_attn_layers": [2],
                "kda_layers": [1],
                "head_dim": 5,
                "num_heads": 3,
                "short_conv_kernel_size": 3,
            },
            "first_k_dense_replace": 0,
            "q_lora_rank": 8,
            "attention_bias": True,
            "norm_topk_prob": False,
        },
        legacy=None,
        batches={**ONE, **SHORT},
    ),
}
