"""The tiny models of make_goldens.py, one entry for each folder of models/; the other *_models.py have the later families.

Sizes are awkward on purpose: hidden sizes that aren't heads times head size, an odd number of frequencies, prime
vocabularies, windows and context lengths that a batch of 29 tokens crosses.
"""

from goldens.models.compressed_models import COMPRESSED_MODELS
from goldens.models.convolution_models import CONVOLUTION_MODELS
from goldens.models.family_models import FAMILY_MODELS
from goldens.models.gemma4_models import GEMMA4_MODELS
from goldens.models.glm5_next_models import GLM5_NEXT_MODELS
from goldens.models.grouped_models import GROUPED_MODELS
from goldens.models.hyper_models import HYPER_MODELS
from goldens.models.indexed_models import INDEXED_MODELS
from goldens.models.key_block_models import KEY_BLOCK_MODELS
from goldens.models.kimi_models import KIMI_MODELS
from goldens.models.mixture_models import MIXTURE_MODELS
from goldens.models.muse_models import MUSE_MODELS
from goldens.models.one_part_models import ONE_PART_MODELS
from goldens.models.qwen4_models import QWEN4_MODELS
from goldens.models.recurrent_models import RECURRENT_MODELS
from goldens.specs import BATCHES, COMMON, FEW, SHORT, Model, rope
from goldens.models.step_models import STEP_MODELS
from goldens.models.trained_position_models import TRAINED_POSITION_MODELS
from goldens.models.zamba_models import ZAMBA_MODELS

EXPERTS = {
    **COMMON,
    "head_dim": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 4,
    "attention_bias": False,
    "rope_parameters": rope(1000.0),
}

MODELS = {
    # As of models whose MLPs are mostly zeros.
    "llama-relu": Model(
        "llama",
        seed=115,
        settings={**COMMON, "num_hidden_layers": 2, "hidden_act": "relu", "rope_parameters": rope(1000.0)},
        batches={"b3_left": BATCHES["b3_left"]},
    ),
    "mistral": Model(
        "mistral",
        seed=101,
        settings={**COMMON, "head_dim": 8, "sliding_window": 7, "rope_parameters": rope(1000.0)},
    ),
    "qwen2-window": Model(
        "qwen2",
        seed=102,
        settings={
            **COMMON,
            "use_sliding_window": True,
            "sliding_window": 5,
            "max_window_layers": 1,
            "tie_word_embeddings": True,
            "rope_parameters": rope(1000.0),
        },
    ),
    "gemma2": Model(
        "gemma2",
        seed=103,
        settings={
            **COMMON,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 8,
            "hidden_activation": "gelu_pytorch_tanh",
            "rms_norm_eps": 1e-6,
            "bos_token_id": 2,
            "eos_token_id": 1,
            "pad_token_id": 0,
            "query_pre_attn_scalar": 18,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
            "sliding_window": 6,
            "rope_parameters": rope(1000.0),
        },
        legacy={"hidden_act": "gelu_pytorch_tanh"},
        norms_add_one=True,
    ),
    "phi3": Model(
        "phi3",
        seed=104,
        settings={
            **COMMON,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 64,
            "original_max_position_embeddings": 16,
            "rope_parameters": rope(
                100.0,
                "longrope",
                short_factor=[1.0, 1.25, 1.5],
                long_factor=[1.5, 3.25, 7.0],
                partial_rotary_factor=0.5,
            ),
        },
        legacy={
            "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.25, 1.5], "long_factor": [1.5, 3.25, 7.0]},
            "partial_rotary_factor": 0.5,
        },
        batches={**BATCHES, **SHORT},
    ),
    "qwen3-moe": Model(
        "qwen3_moe",
        seed=105,
        settings={**EXPERTS, "norm_topk_prob": True, "mlp_only_layers": [1]},
    ),
    "qwen3-moe-aux": Model(
        "qwen3_moe",
        seed=106,
        settings={
            **EXPERTS,
            "num_experts_per_tok": 3,
            "norm_topk_prob": False,
            "mlp_only_layers": [0],
            "output_router_logits": True,
            "router_aux_loss_coef": 0.25,
        },
    ),
    "llama-yarn": Model(
        "llama",
        seed=107,
        settings={
            **COMMON,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 12,
            "max_position_embeddings": 256,
            "tie_word_embeddings": True,
            "rope_parameters": rope(
                100.0, "yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=4.0, beta_slow=1.0
            ),
        },
    ),
    "llama-dynamic": Model(
        "llama",
        seed=108,
        settings={
            **COMMON,
            "vocab_size": 89,
            "head_dim": 6,
            "max_position_embeddings": 16,
            "tie_word_embeddings": True,
            "rope_parameters": rope(100.0, "dynamic", factor=3.0),
        },
        batches={**BATCHES, **SHORT},
    ),
    # Its factor is not max_position_embeddings / original_max_position_embeddings, which is 8.
    "llama-yarn-mscale": Model(
        "llama",
        seed=109,
        settings={
            **COMMON,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 12,
            "max_position_embeddings": 512,
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": rope(
                100.0,
                "yarn",
                factor=4.0,
                original_max_position_embeddings=64,
                beta_fast=5.0,
                beta_slow=0.5,
                mscale=0.75,
                mscale_all_dim=1.5,
                truncate=False,
            ),
        },
        batches=FEW,
    ),
    "qwen3-yarn-factor": Model(
        "qwen3",
        seed=110,
        settings={
            **COMMON,
            "head_dim": 8,
            "max_position_embeddings": 96,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "rope_parameters": rope(
                200.0, "yarn", factor=6.0, original_max_position_embeddings=16, attention_factor=0.8, truncate=False
            ),
        },
        batches=FEW,
    ),
    "qwen3-moe-step": Model(
        "qwen3_moe",
        seed=111,
        settings={
            **EXPERTS,
            "num_hidden_layers": 4,
            "num_experts": 4,
            "norm_topk_prob": True,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
        },
        batches=FEW,
    ),
    "llama-linear": Model(
        "llama",
        seed=112,
        settings={**COMMON, "num_hidden_layers": 2, "attention_bias": True, "rope_parameters": rope(500.0, "linear", factor=2.5)},
        batches=FEW,
    ),
    **FAMILY_MODELS,
    **MIXTURE_MODELS,
    **RECURRENT_MODELS,
    **ONE_PART_MODELS,
    **CONVOLUTION_MODELS,
    **GROUPED_MODELS,
    **INDEXED_MODELS,
    **GEMMA4_MODELS,
    **KIMI_MODELS,
    **HYPER_MODELS,
    **STEP_MODELS,
    **ZAMBA_MODELS,
    **COMPRESSED_MODELS,
    **TRAINED_POSITION_MODELS,
    **KEY_BLOCK_MODELS,
    **GLM5_NEXT_MODELS,
    **MUSE_MODELS,
    **QWEN4_MODELS,
}
