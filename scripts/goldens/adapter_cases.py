"""The adapters of adapters.py: for each case a model, a batch and what PEFT's LoraConfig is given."""

from dataclasses import dataclass

from goldens.specs import BATCHES as LONG
from goldens.specs import Batch

BATCHES = {**LONG, "b2_right": Batch((17, 9), "right"), "b1_short": Batch((13,)), "b2_left": Batch((8, 15), "left")}


@dataclass(frozen=True)
class Adapter:
    """`settings` go to LoraConfig; `objective` is sft or dpo."""

    model: str
    batch: str
    settings: dict
    seed: int
    objective: str = "sft"


ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]

ADAPTERS = {
    # Patterns: the first that fits counts, a name fits at the end of a module's name.
    "qwen3-lora-patterns": Adapter(
        "qwen3",
        "b3_right",
        {
            "target_modules": [*ATTENTION, "gate_proj", "up_proj", "down_proj"],
            "exclude_modules": ["o_proj", "layers.1.mlp.up_proj"],
            "rank_pattern": {"layers.0.self_attn.q_proj": 1, "q_proj": 3, r"^model.layers.\d.mlp.(gate|up)_proj": 4},
            "alpha_pattern": {r"mlp\..*": 3, "k_proj": 11, "layers.1.self_attn.v_proj": 0.5},
            "use_rslora": True,
            "lora_alpha": 5,
        },
        seed=201,
    ),
    "llama-lora-layers": Adapter(
        "llama",
        "b2_left",
        {
            "target_modules": ["q_proj", "mlp.down_proj", "model.layers.0.self_attn.o_proj"],
            "layers_to_transform": [1],
            "layers_pattern": "layers",
            "init_lora_weights": "gaussian",
        },
        seed=202,
    ),
    "mistral-lora-regex": Adapter(
        "mistral",
        "b2_right",
        {
            "target_modules": r".*\.layers\.(0|2)\.(self_attn\.[qkv]_proj|mlp\.(up|down)_proj)",
            "exclude_modules": r"model\.layers\.2\..*v_proj",
            "alpha_pattern": {"layers.2.mlp.down_proj": 1},
        },
        seed=203,
    ),
    "phi3-lora-rslora": Adapter(
        "phi3", "b3_left", {"target_modules": "all-linear", "r": 3, "lora_alpha": 4, "use_rslora": True}, seed=204
    ),
    "phi3-lora-dpo": Adapter(
        "phi3",
        "dpo",
        {
            "target_modules": ["qkv_proj", "gate_up_proj"],
            "rank_pattern": {"qkv_proj": 4},
            "modules_to_save": ["lm_head"],
        },
        seed=205,
        objective="dpo",
    ),
    # all-linear on transformers 5: attention, router, and the experts' two parameters; no dense MLP.
    "qwen3-moe-lora-all_linear": Adapter("qwen3-moe", "b2_right", {"target_modules": "all-linear"}, seed=206),
    "qwen3-moe-aux-lora-all_linear": Adapter(
        "qwen3-moe-aux",
        "b2_left",
        {"target_modules": "all-linear", "r": 1, "use_rslora": True, "lora_alpha": 3},
        seed=207,
    ),
    "qwen3-moe-lora-parameters": Adapter(
        "qwen3-moe",
        "b1_short",
        {
            "target_modules": ["q_proj"],
            "target_parameters": ["mlp.experts.gate_up_proj", "layers.2.mlp.gate.weight"],
            "rank_pattern": {"gate_up_proj": 1},
            "modules_to_save": ["layers.0.mlp.gate", "model.norm"],
        },
        seed=208,
    ),
    # Whole modules. "norm" is the end of every norm's name.
    "qwen3-lora-saved-dpo": Adapter(
        "qwen3",
        "dpo",
        {"target_modules": ["v_proj"], "modules_to_save": ["norm", "embed_tokens"]},
        seed=209,
        objective="dpo",
    ),
    "qwen2-lora-saved": Adapter(
        "qwen2-window",
        "b1_short",
        {"target_modules": ["q_proj", "down_proj"], "modules_to_save": ["layers.1.mlp", "layers.0.self_attn.k_proj"]},
        seed=210,
    ),
    "llama-tied-lora-saved_embedding": Adapter(
        "llama-tied", "b2_right", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}, seed=211
    ),
    "llama-tied-lora-saved_head": Adapter(
        "llama-tied", "b2_right", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, seed=212
    ),
    "llama-tied-lora-saved_both": Adapter(
        "llama-tied",
        "dpo",
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens"]},
        seed=213,
        objective="dpo",
    ),
    # Rows of the embedding, of a head that is the embedding too.
    "gemma2-lora-tokens": Adapter(
        "gemma2", "b2_right", {"target_modules": ["q_proj"], "trainable_token_indices": "some"}, seed=214
    ),
    "llama-tied-lora-tokens": Adapter(
        "llama-tied", "b2_left", {"target_modules": ["q_proj"], "trainable_token_indices": "some"}, seed=215
    ),
    "qwen3-lora-tokens": Adapter(
        "qwen3",
        "b2_left",
        {"target_modules": ["o_proj"], "trainable_token_indices": {"embed_tokens": "some", "lm_head": [7, 5, 90]}},
        seed=216,
    ),
    # Head and embedding as targets.
    "qwen3-lora-head": Adapter(
        "qwen3",
        "b2_right",
        {
            "target_modules": ["q_proj", "lm_head", "embed_tokens"],
            "rank_pattern": {"lm_head": 3},
            "alpha_pattern": {"embed_tokens": 6},
        },
        seed=217,
    ),
    "llama-tied-lora-head": Adapter("llama-tied", "b1_short", {"target_modules": ["up_proj", "lm_head"]}, seed=218),
    "gemma2-lora-embedding": Adapter("gemma2", "b2_left", {"target_modules": ["embed_tokens", "v_proj"]}, seed=219),
    # Biases.
    "qwen2-lora-biases": Adapter("qwen2", "b2_right", {"target_modules": ["q_proj"], "bias": "all"}, seed=220),
    "qwen2-lora-lora_bias": Adapter(
        "qwen2-window",
        "b2_left",
        {"target_modules": ["q_proj", "v_proj"], "bias": "lora_only", "lora_bias": True},
        seed=221,
    ),
    # The later families: every linear map, or what only they have.
    "gemma-lora-all_linear": Adapter("gemma", "b2_left", {"target_modules": "all-linear"}, seed=222),
    "smollm3-lora-all_linear": Adapter("smollm3", "b2_right", {"target_modules": "all-linear", "use_rslora": True}, seed=223),
    "granite-lora-dpo": Adapter(
        "granite", "dpo", {"target_modules": ["q_proj", "o_proj", "down_proj"]}, seed=224, objective="dpo"
    ),
    "granite-lora-embedding": Adapter("granite", "b2_left", {"target_modules": ["embed_tokens", "v_proj"]}, seed=225),
    "olmo2-lora-saved": Adapter(
        "olmo2", "b2_left", {"target_modules": ATTENTION, "modules_to_save": ["q_norm", "post_feedforward_layernorm"]}, seed=226
    ),
    "olmo3-lora-all_linear": Adapter("olmo3", "b1_short", {"target_modules": "all-linear"}, seed=227),
    "ministral3-lora-all_linear": Adapter("ministral3", "b2_right", {"target_modules": "all-linear"}, seed=228),
    "glm4-lora-all_linear": Adapter(
        "glm4", "b2_left", {"target_modules": "all-linear", "rank_pattern": {"gate_up_proj": 3}, "bias": "lora_only"}, seed=229
    ),
    "mixtral-lora-all_linear": Adapter("mixtral", "b2_right", {"target_modules": "all-linear"}, seed=230),
    "qwen2-moe-lora-all_linear": Adapter("qwen2-moe", "b2_left", {"target_modules": "all-linear"}, seed=235),
    "qwen2-moe-lora-shared": Adapter(
        "qwen2-moe",
        "b1_short",
        {"target_modules": ["q_proj", "shared_expert.up_proj", "shared_expert.down_proj", "shared_expert_gate"]},
        seed=232,
    ),
    "gpt-oss-lora-all_linear": Adapter("gpt-oss", "b2_right", {"target_modules": "all-linear"}, seed=233),
    "gpt-oss-lora-parameters": Adapter(
        "gpt-oss",
        "b1_short",
        {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]},
        seed=234,
    ),
    # Every linear map, which the convolution is none of.
    "qwen3-5-lora-all_linear": Adapter("qwen3-5", "b2_left", {"target_modules": "all-linear"}, seed=236),
    "qwen3-5-lora-saved": Adapter(
        "qwen3-5",
        "b2_right",
        {"target_modules": ["in_proj_qkv", "in_proj_a", "q_proj"], "modules_to_save": ["linear_attn.norm", "in_proj_b"]},
        seed=237,
    ),
    "qwen3-next-lora-all_linear": Adapter("qwen3-next", "b2_right", {"target_modules": "all-linear"}, seed=238),
    "qwen3-5-moe-lora-all_linear": Adapter("qwen3-5-moe", "b2_left", {"target_modules": "all-linear"}, seed=239),
    "deepseek-v3-lora-all_linear": Adapter("deepseek-v3", "b2_right", {"target_modules": "all-linear"}, seed=240),
    "deepseek-v3-lora-latent": Adapter(
        "deepseek-v3",
        "b1_short",
        # As a target, shared_experts.down_proj would be taken for the experts' parameter of that name.
        {"target_modules": ["q_b_proj", "kv_b_proj"], "modules_to_save": ["kv_a_layernorm", "layers.2.mlp.shared_experts"]},
        seed=241,
    ),
    "deepseek-v32-lora-latent": Adapter(
        "deepseek-v32",
        "b2_left",
        {"target_modules": ["q_a_proj", "q_b_proj", "kv_b_proj", "o_proj"], "modules_to_save": ["kv_a_layernorm"]},
        seed=270,
    ),
    "glm-moe-dsa-lora-latent": Adapter(
        "glm-moe-dsa", "b2_right", {"target_modules": ["q_b_proj", "kv_a_proj_with_mqa", "o_proj"], "use_rslora": True}, seed=271
    ),
    "glm4-moe-lora-all_linear": Adapter("glm4-moe", "b2_left", {"target_modules": "all-linear"}, seed=242),
    "gemma4-lora-all_linear": Adapter("gemma4", "b2_left", {"target_modules": "all-linear"}, seed=243),
    "gemma4-per-layer-lora-all_linear": Adapter("gemma4-per-layer", "b2_right", {"target_modules": "all-linear"}, seed=244),
    "gemma4-moe-lora-all_linear": Adapter("gemma4-moe", "b1_short", {"target_modules": "all-linear"}, seed=245),
    "seed-oss-lora-all_linear": Adapter("seed-oss", "b2_left", {"target_modules": "all-linear", "bias": "all"}, seed=246),
    "helium-lora-all_linear": Adapter("helium", "b1_short", {"target_modules": "all-linear"}, seed=248),
    "exaone4-lora-all_linear": Adapter("exaone4", "b2_left", {"target_modules": "all-linear"}, seed=249),
    "minimax-m2-lora-all_linear": Adapter("minimax-m2", "b2_left", {"target_modules": "all-linear"}, seed=250),
    "hunyuan-lora-all_linear": Adapter("hunyuan", "b2_right", {"target_modules": "all-linear"}, seed=251),
    "bamba-lora-all_linear": Adapter("bamba", "b2_left", {"target_modules": "all-linear"}, seed=255),
    "nemotron-h-lora-last_norm": Adapter("nemotron-h", "b2_left", {"target_modules": ["q_proj"], "modules_to_save": ["norm_f", "layers.1.norm"]}, seed=295),
    "granite-hybrid-lora-all_linear": Adapter("granite-hybrid", "b2_left", {"target_modules": "all-linear"}, seed=252),
    "granite-hybrid-lora-saved": Adapter(
        "granite-hybrid",
        "b2_right",
        {"target_modules": ["in_proj", "q_proj", "input_linear"], "modules_to_save": ["mamba.norm", "out_proj"], "bias": "all"},
        seed=253,
    ),
    # Every linear map but out_proj, which PEFT refuses there.
    "nemotron-h-lora-linear": Adapter(
        "nemotron-h", "b2_left", {"target_modules": [*ATTENTION, "in_proj", "up_proj", "down_proj"]}, seed=254
    ),
    "cohere-lora-all_linear": Adapter("cohere", "b2_right", {"target_modules": "all-linear", "bias": "lora_only"}, seed=255),
    "cohere-norms-lora-saved": Adapter("cohere-norms", "b2_left", {"target_modules": ["q_proj"], "modules_to_save": ["q_norm", "k_norm"]}, seed=290),
    "nemotron-h-latent-lora-linear": Adapter(
        "nemotron-h-latent", "b2_right", {"target_modules": ["in_proj", "up_proj", "fc1_latent_proj", "fc2_latent_proj"], "bias": "all"}, seed=291
    ),
    "cohere2-lora-saved": Adapter(
        "cohere2", "b2_left", {"target_modules": [*ATTENTION, "up_proj"], "modules_to_save": ["input_layernorm"]}, seed=256
    ),
    "lfm2-lora-all_linear": Adapter("lfm2", "b2_left", {"target_modules": "all-linear"}, seed=257),
    "lfm2-lora-saved": Adapter(
        "lfm2", "b2_right", {"target_modules": ["in_proj", "w1"], "modules_to_save": ["conv.conv", "operator_norm"]}, seed=258
    ),
    "lfm3-lora-all_linear": Adapter("lfm3", "b2_left", {"target_modules": "all-linear"}, seed=282),
    "lfm3-lora-saved": Adapter(
        "lfm3",
        "b2_right",
        {"target_modules": ["in_proj", "g_proj", "w2"], "modules_to_save": ["conv.conv", "post_operator_norm", "q_norm"]},
        seed=283,
    ),
    "ernie4-5-lora-all_linear": Adapter("ernie4-5", "b2_right", {"target_modules": "all-linear"}, seed=247),
    "ernie4-5-moe-lora-all_linear": Adapter("ernie4-5-moe", "b2_left", {"target_modules": "all-linear"}, seed=259),
    "lfm2-moe-lora-all_linear": Adapter("lfm2-moe", "b2_left", {"target_modules": "all-linear"}, seed=260),
    "lfm2-moe-lora-experts": Adapter(
        "lfm2-moe", "b2_right", {"target_modules": ["in_proj"], "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]}, seed=261
    ),
    "granite-moe-lora-experts": Adapter(
        "granite-moe", "b2_left", {"target_modules": ["q_proj"], "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]}, seed=262
    ),
    "granite-hybrid-moe-lora-all_linear": Adapter("granite-hybrid-moe", "b2_left", {"target_modules": "all-linear"}, seed=263),
    "falcon-h1-lora-linear": Adapter(
        "falcon-h1", "b2_left", {"target_modules": [*ATTENTION, "in_proj", "gate_proj", "up_proj", "down_proj"]}, seed=264
    ),
    # Every linear map of either kind of layer, those of the gates too.
    "kimi-linear-lora-linear": Adapter(
        "kimi-linear",
        "b2_left",
        {
            "target_modules": [*ATTENTION, "f_a_proj", "f_b_proj", "b_proj", "g_a_proj", "g_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"],
        },
        seed=266,
    ),
    # Dense MLPs and the shared expert: PEFT takes no expert of this class.
    "kimi-linear-lora-mlp": Adapter("kimi-linear", "b2_left", {"target_modules": ["q_proj", "gate_proj", "up_proj", "down_proj"]}, seed=289),
    "kimi-linear-lora-saved": Adapter(
        "kimi-linear",
        "b2_right",
        {"target_modules": ["q_proj", "forget_gate.f_b_proj"], "modules_to_save": ["o_norm", "self_attn.b_proj", "kv_a_layernorm"]},
        seed=267,
    ),
    # Every linear map but experts', the shared one's included.
    "step3p7-lora-linear": Adapter(
        "step3p7",
        "b2_left",
        {"target_modules": [*ATTENTION, "g_proj", "shared_experts.gate_proj", "layers.0.mlp.up_proj"], "modules_to_save": ["q_norm"]},
        seed=268,
    ),
    # Every linear map outside indexers but down_proj, which PEFT would take for the experts' parameter of that name too.
    "hy-v4-lora-linear": Adapter(
        "hy-v4",
        "b2_left",
        {
            "target_modules": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "gate_proj", "up_proj"],
            "modules_to_save": ["kv_a_layernorm"],
        },
        seed=268,
    ),
    # Every linear map outside of blocks but out_proj, which PEFT refuses there.
    "zamba2-lora-linear": Adapter(
        "zamba2", "b2_left", {"target_modules": ["linear", "in_proj"], "modules_to_save": ["mamba.norm"]}, seed=269
    ),
    # Maps of blocks that layers share: each layer has adapters of its own for them, over the same weights.
    "zamba2-lora-blocks": Adapter(
        "zamba2", "b2_right", {"target_modules": ["q_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"], "use_rslora": True}, seed=276
    ),
    # The model's own adapters have adapters too, those of other layers among them, which no gradient reaches.
    "zamba2-lora-all_linear": Adapter("zamba2", "b2_left", {"target_modules": "all-linear"}, seed=281),
    "zamba2-plain-lora-all_linear": Adapter("zamba2-plain", "b2_left", {"target_modules": "all-linear"}, seed=277),
    # Every linear map outside indexers but o_a_proj, whose groups PEFT's adapter does not fit, and down_proj.
    "deepseek-v4-lora-linear": Adapter(
        "deepseek-v4",
        "b2_right",
        {
            "target_modules": ["q_a_proj", "self_attn.q_b_proj", "self_attn.kv_proj", "compressor.kv_proj", "compressor.gate_proj", "o_b_proj",
                               "shared_experts.gate_proj", "up_proj"],
            "modules_to_save": ["q_a_norm"],
        },
        seed=269,
    ),
    # Every linear map of attention; names of adapters on shared experts get lost between PEFT 0.21.2 and transformers 5.24.
    "mistral-large4-lora-linear": Adapter(
        "mistral-large4",
        "b2_left",
        {
            "target_modules": ["q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "layers.0.mlp.up_proj"],
            "modules_to_save": ["kv_a_layernorm"],
        },
        seed=270,
    ),
    # Every linear map but the routers and the experts.
    "glm4-moe-lite-lora-linear": Adapter(
        "glm4-moe-lite",
        "b2_left",
        {"target_modules": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "shared_experts.gate_proj", "layers.1.mlp.up_proj"]},
        seed=294,
    ),
    "mistral4-lora-linear": Adapter(
        "mistral4",
        "b2_right",
        {
            "target_modules": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "layers.0.mlp.up_proj"],
            "modules_to_save": ["kv_a_layernorm"],
        },
        seed=293,
    ),
    # Every linear map outside indexers.
    "minimax-m3-lora-linear": Adapter(
        "minimax-m3", "b2_left", {"target_modules": ["self_attn.q_proj", "self_attn.k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"]}, seed=282
    ),
    "minimax-m3-lora-attention": Adapter(
        "minimax-m3",
        "b2_right",
        {"target_modules": ["self_attn.q_proj", "v_proj", "down_proj"], "modules_to_save": ["self_attn.k_norm"], "use_rslora": True},
        seed=283,
    ),
    # Maps of both kinds of layers, those of the gates too.
    "glm5-next-lora-linear": Adapter(
        "glm5-next",
        "b2_left",
        {
            "target_modules": ["q_proj", "k_proj", "f_a_proj", "f_b_proj", "b_proj", "g_b_proj", "o_proj", "q_a_proj", "q_b_proj", "kv_b_proj", "layers.0.mlp.up_proj"],
            "modules_to_save": ["kv_a_layernorm", "o_norm"],
        },
        seed=271,
    ),
    # Every linear map of either kind of layer, indexers' among them, whose adapters have a part in choices and no gradient.
    "glm5-next-lora-all_linear": Adapter("glm5-next", "b2_right", {"target_modules": "all-linear"}, seed=272),
    # Maps of streams, of n-grams and of both kinds of layers, and norms of streams.
    "qwen4-exp-lora-linear": Adapter(
        "qwen4-exp",
        "b2_left",
        {
            "target_modules": ["input_mix_weight_down", "input_mix_weight_up", "block_inject_weight", "ple.key_proj", "value_proj", "in_proj_qkv", "out_proj", "q_proj", "o_proj",
                               "shared_expert.up_proj"],
            "modules_to_save": ["norm_query", "hyper_connection_mixer.hc_norm"],
        },
        seed=284,
    ),
    # Every linear map, indexers' among them, whose adapters have a part in choices and no gradient.
    "qwen4-exp-lora-all_linear": Adapter("qwen4-exp", "b2_right", {"target_modules": "all-linear"}, seed=285),
    # Every linear map but experts' and routers', which are no modules of PEFT's.
    "muse-spark-lora-all_linear": Adapter("muse-spark", "b2_left", {"target_modules": "all-linear"}, seed=286),
    "muse-spark-lora-experts": Adapter(
        "muse-spark",
        "b2_right",
        {
            "target_modules": ["q_proj", "pre_expert_proj", "layers.1.mlp.down_proj"],
            "target_parameters": ["experts.gate_up_proj", "experts.down_proj"],
            "modules_to_save": ["post_feedforward_layernorm", "pre_expert_norm"],
        },
        seed=287,
    ),
    "falcon-h1-norm-lora-saved": Adapter(
        "falcon-h1-norm",
        "b2_right",
        {"target_modules": ["in_proj", "k_proj", "gate_proj"], "modules_to_save": ["mamba.norm"], "bias": "all"},
        seed=265,
    ),
}
