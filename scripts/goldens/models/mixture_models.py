"""The tiny models whose experts a softmax chooses: Mixtral, Qwen2-MoE, Granite's mixtures, ERNIE 4.5's and GPT-OSS."""

from goldens.models.family_models import ALL, ONE, SMALL, short_yarn
from goldens.specs import Model, rope

NARROW = {**SMALL, "hidden_size": 16}
TWO_HEADS = {**NARROW, "num_attention_heads": 2, "num_key_value_heads": 1}
ERNIE = {**TWO_HEADS, "moe_k": 2, "rope_parameters": rope(100.0)}

MIXTURE_MODELS = {
    "mixtral": Model(
        "mixtral",
        seed=412,
        settings={
            **NARROW,
            "vocab_size": 37,
            "intermediate_size": 6,
            "head_dim": 6,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "sliding_window": 7,
        },
        batches=ALL,
    ),
    "mixtral-aux": Model(
        "mixtral",
        seed=413,
        settings={
            **NARROW,
            "vocab_size": 37,
            "intermediate_size": 5,
            "num_hidden_layers": 3,
            "num_local_experts": 4,
            "num_experts_per_tok": 3,
            "output_router_logits": True,
            "router_aux_loss_coef": 0.25,
        },
        batches=ONE,
    ),
    # Layer 0 slides, layer 1 is dense.
    "qwen2-moe": Model(
        "qwen2_moe",
        seed=414,
        settings={
            **NARROW,
            "intermediate_size": 10,
            "num_hidden_layers": 3,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 5,
            "shared_expert_intermediate_size": 9,
            "mlp_only_layers": [1],
            "use_sliding_window": True,
            "sliding_window": 6,
            "max_window_layers": 2,
        },
        batches=ALL,
    ),
    "qwen2-moe-step": Model(
        "qwen2_moe",
        seed=415,
        settings={
            **NARROW,
            "intermediate_size": 7,
            "num_experts": 4,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 4,
            "shared_expert_intermediate_size": 6,
            "decoder_sparse_step": 2,
            "norm_topk_prob": True,
            "qkv_bias": False,
            "output_router_logits": True,
            "router_aux_loss_coef": 0.3,
            "tie_word_embeddings": True,
        },
        batches=ONE,
    ),
    # All experts of a layer are two tensors, and there is no shared MLP.
    "granite-moe": Model(
        "granitemoe",
        seed=430,
        settings={
            **TWO_HEADS,
            "intermediate_size": 6,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "embedding_multiplier": 5.5,
            "residual_multiplier": 0.35,
            "attention_multiplier": 0.125,
            "logits_scaling": 3.5,
            "router_aux_loss_coef": 0.0,  # which TRL's policy losses can't read of this class
            "tie_word_embeddings": True,
        },
        batches=ALL,
    ),
    # The routers' loss counts.
    "granite-moe-shared": Model(
        "granitemoeshared",
        seed=431,
        settings={
            **TWO_HEADS,
            "intermediate_size": 5,
            "shared_intermediate_size": 7,
            "num_key_value_heads": 2,
            "attention_bias": True,
            "num_local_experts": 4,
            "num_experts_per_tok": 3,
            "attention_multiplier": 0.9,
            "residual_multiplier": 1.75,
            "output_router_logits": True,
            "router_aux_loss_coef": 0.3,
        },
        batches=ONE,
    ),
    # Layer 0 is dense. Experts are chosen by a softmax and a bias, which the routers' loss knows nothing of.
    "ernie4-5-moe": Model(
        "ernie4_5_moe",
        seed=432,
        settings={
            **ERNIE,
            "intermediate_size": 13,
            "num_hidden_layers": 3,
            "moe_intermediate_size": 5,
            "moe_num_experts": 6,
            "output_router_logits": True,
            "router_aux_loss_coef": 0.3,
            "tie_word_embeddings": True,
        },
        batches=ALL,
    ),
    # Every other layer has experts, none of which every token has; shares are of at least half.
    "ernie4-5-moe-interval": Model(
        "ernie4_5_moe",
        seed=433,
        settings={
            **ERNIE,
            "intermediate_size": 9,
            "num_hidden_layers": 4,
            "moe_intermediate_size": 6,
            "moe_num_experts": 5,
            "moe_num_shared_experts": 0,
            "moe_layer_interval": 2,
            "moe_norm_min": 0.5,
            "tie_word_embeddings": False,
        },
        batches=ONE,
    ),
    # One gate in ten is above the limit.
    "gpt-oss": Model(
        "gpt_oss",
        seed=416,
        settings={
            **NARROW,
            "intermediate_size": 6,
            "num_hidden_layers": 3,
            "head_dim": 6,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "sliding_window": 5,
            "swiglu_limit": 1.5,
            "swiglu_alpha": 1.3,
            "rope_parameters": short_yarn(100.0, truncate=False),
        },
        batches=ALL,
    ),
}
