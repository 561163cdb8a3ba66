"""Small models of every family for compare_verdicts.py, written by transformers with random weights.

Deep enough for rounding errors to grow (qwen3-deep: by 28 layers), with windows and experts that 40 tokens reach.
"""

COMMON = {
    "vocab_size": 509,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}


def rope(theta=10000.0, rope_type="default", **settings):
    return {"rope_type": rope_type, "rope_theta": theta, **settings}


GEMMA = {**COMMON, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 30, "pad_token_id": 0}

# Name to model_type, settings, and the dtype the weights are written in.
MODELS = {
    "qwen2": ("qwen2", {**COMMON, "tie_word_embeddings": True, "rope_parameters": rope(1e6)}, "bfloat16"),
    "qwen3": ("qwen3", {**COMMON, "head_dim": 16, "rope_parameters": rope(1e6)}, "float32"),
    "qwen3-deep": (
        "qwen3",
        {**COMMON, "head_dim": 16, "num_hidden_layers": 28, "tie_word_embeddings": True, "rope_parameters": rope()},
        "bfloat16",
    ),
    "qwen3-moe": (
        "qwen3_moe",
        {
            **COMMON,
            "head_dim": 16,
            "num_experts": 16,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "rope_parameters": rope(),
        },
        "float32",
    ),
    "llama": (
        "llama",
        {
            **COMMON,
            "rope_parameters": rope(
                5e5,
                "llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=256,
            ),
        },
        "bfloat16",
    ),
    "mistral": ("mistral", {**COMMON, "head_dim": 16, "sliding_window": 50, "rope_parameters": rope()}, "float32"),
    "phi3": ("phi3", {**COMMON, "rope_parameters": rope()}, "float32"),
    "gemma2": ("gemma2", {**GEMMA, "rope_parameters": rope()}, "float32"),
    "gemma3": ("gemma3_text", {**GEMMA, "num_hidden_layers": 7}, "float32"),
}
# Attention that a family has no other implementation of.
ONLY_EAGER = ("gemma2",)


def write_model(folder, name, transformers, torch):
    """Random weights as transformers draws them, norms and biases moved off their 1 and 0."""
    model_type, settings, dtype = MODELS[name]
    torch.manual_seed(sorted(MODELS).index(name))
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(model_type, **settings))
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name:
                parameter += 0.1 * torch.randn_like(parameter)
            if parameter_name.endswith("bias"):
                parameter.normal_(0.0, 0.02)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
