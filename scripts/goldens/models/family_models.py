"""The tiny models of the later dense families: Gemma 1, SmolLM3, Granite, OLMo 2 and 3, Ministral 3, GLM-4 and those of 2025.

What a family adds acts within a batch of 29 tokens: windows and original contexts are short, multipliers far from 1.
"""

from goldens.specs import BATCHES, COMMON, PROMPTS, Model, rope

SMALL = {**COMMON, "vocab_size": 41, "hidden_size": 20, "intermediate_size": 13, "num_hidden_layers": 2, "rope_parameters": rope(1000.0)}

# Of classes that have another name for the epsilon.
OTHER_EPS = {**SMALL, "hidden_size": 24}
del OTHER_EPS["rms_norm_eps"]

CENTERED = {**OTHER_EPS, "layer_norm_eps": 1e-3}

# A row, rows padded on the right of which prompts are not scored, rows padded on the left.
ALL = {"b1": BATCHES["b1"], **PROMPTS, "b3_left": BATCHES["b3_left"]}
ONE = {"b3_left": BATCHES["b3_left"]}


def short_yarn(theta, beta_slow=0.25, **settings):
    """Its original context ends within a row."""
    return rope(
        theta, "yarn", factor=4.0, original_max_position_embeddings=8, beta_fast=2.0, beta_slow=beta_slow, **settings
    )


FAMILY_MODELS = {
    "gemma": Model(
        "gemma",
        seed=401,
        settings={
            **SMALL,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 8,
            "hidden_act": "gelu_pytorch_tanh",
            "rms_norm_eps": 1e-6,
            "bos_token_id": 2,
            "eos_token_id": 1,
            "pad_token_id": 0,
        },
        batches=ALL,
        norms_add_one=True,
    ),
    # What no published Gemma 3 says and its classes read: a cap of the logits, and layer_types of its own. Of mscale alone nothing is read.
    "gemma3-capped": Model(
        "gemma3_text",
        seed=425,
        settings={
            **SMALL,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 8,
            "query_pre_attn_scalar": 14,
            "final_logit_softcapping": 1.5,
            "sliding_window": 6,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "pad_token_id": 0,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "full_attention": short_yarn(200.0, mscale=0.7),
                "sliding_attention": rope(50.0),
            },
        },
        legacy=None,
        batches=ONE,
        norms_add_one=True,
    ),
    "smollm3": Model(
        "smollm3",
        seed=402,
        settings={**SMALL, "hidden_size": 24, "num_hidden_layers": 4, "no_rope_layer_interval": 3, "tie_word_embeddings": True},
        batches=ALL,
    ),
    # The layers without rope are those that have the window. A key's bias would have no gradient there but rounding: it
    # adds the same to all scores of a query.
    "smollm3-window": Model(
        "smollm3",
        seed=403,
        settings={
            **SMALL,
            "hidden_size": 24,
            "num_hidden_layers": 3,
            "no_rope_layers": [0, 1, 0],
            "use_sliding_window": True,
            "sliding_window": 6,
            "mlp_bias": True,
            "tie_word_embeddings": False,
        },
        batches=ONE,
    ),
    # Without its attention_multiplier, scores would be multiplied by 0.316.
    "granite": Model(
        "granite",
        seed=404,
        settings={
            **SMALL,
            "vocab_size": 47,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "embedding_multiplier": 5.5,
            "residual_multiplier": 0.35,
            "attention_multiplier": 0.125,
            "logits_scaling": 3.5,
            "tie_word_embeddings": True,
        },
        batches=ALL,
    ),
    "granite-bias": Model(
        "granite",
        seed=405,
        settings={
            **SMALL,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "attention_bias": True,
            "mlp_bias": True,
            "embedding_multiplier": 0.4,
            "residual_multiplier": 1.75,
            "attention_multiplier": 0.9,
            "logits_scaling": 0.3,
        },
        batches=ONE,
    ),
    "olmo2": Model("olmo2", seed=406, settings={**SMALL, "vocab_size": 37, "hidden_size": 24}, batches=ALL),
    # Three sliding layers, then a full one. Its bases are those that OLMo 3 has, and that transformers 4 can say.
    "olmo3": Model(
        "olmo3",
        seed=407,
        settings={
            **SMALL,
            "hidden_size": 24,
            "num_hidden_layers": 4,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "sliding_window": 5,
            "rope_parameters": {
                "full_attention": short_yarn(500000.0, attention_factor=1.2),
                "sliding_attention": rope(500000.0),
            },
        },
        batches=ALL,
    ),
    "olmo3-bases": Model(
        "olmo3",
        seed=408,
        settings={
            **SMALL,
            "hidden_size": 24,
            "attention_bias": True,
            "sliding_window": 9,
            "layer_types": ["full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": short_yarn(200.0, beta_slow=0.1),
                "sliding_attention": rope(30.0),
            },
        },
        legacy=None,
        batches=ONE,
    ),
    "ministral3": Model(
        "ministral3",
        seed=409,
        settings={
            **SMALL,
            "vocab_size": 43,
            "head_dim": 8,
            "rope_parameters": short_yarn(200.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.35),
        },
        legacy=None,
        batches=ALL,
    ),
    "ministral3-window": Model(
        "ministral3",
        seed=410,
        settings={
            **SMALL,
            "head_dim": 6,
            "sliding_window": 7,
            "tie_word_embeddings": True,
            "rope_parameters": short_yarn(100.0, mscale=0.75, mscale_all_dim=1.5, llama_4_scaling_beta=0.8, truncate=False),
        },
        legacy=None,
        batches=ONE,
    ),
    "glm4": Model(
        "glm4",
        seed=411,
        settings={
            **SMALL,
            "vocab_size": 47,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 12,
            "attention_bias": True,
            "rope_parameters": rope(100.0, partial_rotary_factor=0.5),
        },
        legacy={"partial_rotary_factor": 0.5},
        batches=ALL,
    ),
    "helium": Model(
        "helium",
        seed=419,
        settings={
            **SMALL,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 10,
            "rms_norm_eps": 1e-8,
            "attention_bias": True,
            "mlp_bias": True,
        },
        batches=ALL,
    ),
    # A base stretched by alpha, which published files call dynamic.
    "hunyuan": Model(
        "hunyuan_v1_dense",
        seed=422,
        settings={
            **SMALL,
            "vocab_size": 43,
            "head_dim": 6,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "rope_parameters": rope(100.0, "dynamic", alpha=50.0, factor=1.0),
        },
        batches=ALL,
    ),
    # Layer 1 sees all tokens and doesn't turn.
    "exaone4": Model(
        "exaone4",
        seed=420,
        settings={
            **SMALL,
            "hidden_size": 24,
            "num_hidden_layers": 3,
            "head_dim": 8,
            "sliding_window": 5,
            "sliding_window_pattern": 2,
        },
        batches=ALL,
    ),
    # All layers see all tokens and turn.
    "exaone4-full": Model(
        "exaone4",
        seed=421,
        settings={
            **SMALL,
            "hidden_size": 24,
            "sliding_window": None,
            "layer_types": ["full_attention", "full_attention"],
            "tie_word_embeddings": True,
            "rope_parameters": rope(
                100.0, "llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
            ),
        },
        legacy={"layer_types": ["full_attention", "full_attention"]},  # without the list transformers divides by 0
        batches=ONE,
    ),
    # Attention and MLP read one norm, which removes the mean.
    "cohere": Model(
        "cohere",
        seed=423,
        settings={
            **CENTERED,
            "vocab_size": 43,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "attention_bias": True,
            "logit_scale": 0.4,
            "tie_word_embeddings": False,
        },
        batches=ALL,
    ),
    # Each head of queries and keys is normed by a weight of its own.
    "cohere-norms": Model(
        "cohere",
        seed=435,
        settings={**CENTERED, "use_qk_norm": True, "logit_scale": 0.7, "tie_word_embeddings": True},
        batches=ONE,
    ),
    # The same. Layer 1 sees all tokens and doesn't turn.
    "cohere2": Model(
        "cohere2",
        seed=424,
        settings={**CENTERED, "num_hidden_layers": 3, "sliding_window": 5, "sliding_window_pattern": 2, "logit_scale": 2.5},
        legacy={"sliding_window_pattern": 2},
        batches=ALL,
    ),
    # All biases there are, of which published files have those of queries, keys and values.
    "seed-oss": Model(
        "seed_oss",
        seed=417,
        settings={
            **SMALL,
            "vocab_size": 43,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 12,
            "attention_out_bias": True,
            "mlp_bias": True,
            "attention_dropout": 0.0,
            "residual_dropout": 0.0,
        },
        batches=ALL,
    ),
    "ernie4-5": Model(
        "ernie4_5",
        seed=418,
        settings={**SMALL, "vocab_size": 47, "head_dim": 8, "use_bias": True, "tie_word_embeddings": True},
        batches=ALL,
    ),
}


# The model of each family that has cases of every objective, those of the other files too.
FAMILIES = (
    *("gemma", "smollm3", "granite", "olmo2", "olmo3", "ministral3", "glm4", "mixtral", "qwen2-moe", "gpt-oss"),
    *("qwen3-5", "qwen3-next", "qwen3-5-moe", "deepseek-v3", "deepseek-v32", "glm-moe-dsa", "glm4-moe", "gemma4", "seed-oss", "ernie4-5"),
    *("helium", "exaone4", "minimax-m2", "hunyuan", "granite-hybrid", "bamba", "nemotron-h", "cohere", "cohere2", "lfm2"),
    *("ernie4-5-moe", "granite-moe", "granite-hybrid-moe", "lfm2-moe", "falcon-h1", "kimi-linear", "step3p7", "hy-v4", "zamba2", "deepseek-v4"),
    *("mistral-large4", "minimax-m3", "glm5-next", "qwen4-exp", "lfm3", "muse-spark", "glm4-moe-lite", "mistral4"),
)
