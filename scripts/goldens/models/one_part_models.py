"""The tiny models of Nemotron-H, each layer of which is a state space, attention, an MLP or experts."""

from goldens.models.family_models import ALL, ONE
from goldens.models.recurrent_models import LONG, SHORT
from goldens.specs import PROMPTS, Model

ONE_PART = {
    "vocab_size": 41,
    "hidden_size": 20,
    "intermediate_size": 13,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 6,
    "mamba_num_heads": 6,
    "mamba_head_dim": 5,
    "ssm_state_size": 7,
    "n_groups": 2,
    "chunk_size": 16,
    "num_experts_per_tok": 2,
    "n_routed_experts": 6,
    "moe_intermediate_size": 5,
    "moe_shared_expert_intermediate_size": 7,
    "routed_scaling_factor": 1.7,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}

ONE_PART_MODELS = {
    # Layers of every kind, experts in two groups; steps of time have a lower end.
    "nemotron-h": Model(
        "nemotron_h",
        seed=508,
        settings={
            **ONE_PART,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "linear_attention", "mlp"],
            "n_group": 2,
            "topk_group": 1,
            "time_step_min": 0.4,
        },
        legacy=None,
        batches={**ALL, **LONG},
    ),
    # Experts read and give fewer numbers than the stream has; every bias there is.
    "nemotron-h-latent": Model(
        "nemotron_h",
        seed=520,
        settings={
            **ONE_PART,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
            "moe_latent_size": 9,
            "use_bias": True,
            "mlp_bias": True,
            "time_step_min": 0.4,
        },
        legacy=None,
        batches=PROMPTS,
    ),
    # An MLP first, biases of MLPs, and a convolution without one.
    "nemotron-h-bias": Model(
        "nemotron_h",
        seed=509,
        settings={
            **ONE_PART,
            "n_groups": 3,
            "conv_kernel": 2,
            "use_conv_bias": False,
            "mlp_bias": True,
            "num_experts_per_tok": 0,
            "layers_block_type": ["mlp", "linear_attention", "full_attention", "mlp"],
        },
        legacy=None,
        batches={**ONE, **SHORT},
    ),
}
