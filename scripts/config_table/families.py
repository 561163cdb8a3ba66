"""Random config.json files of every family that the parser knows."""

from config_table.draw import ABSENT, Draw
from config_table.gemma4 import as_part_of_multimodal, own_gemma4
from config_table.ropes import draw_rope, put_rope, put_share
from config_table.sigmoid_mixtures import draw_latent_heads, draw_latent_scale, own_deepseek_v3, own_glm4_moe

FAMILIES = (
    "llama", "mistral", "phi3", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text",
    "gemma", "smollm3", "granite", "olmo2", "olmo3", "ministral3", "glm4", "mixtral", "qwen2_moe",
    "qwen3_5_text", "qwen3_next", "qwen3_5_moe_text", "gpt_oss", "deepseek_v3", "glm4_moe", "gemma4_text",
    "seed_oss", "ernie4_5", "helium", "exaone4", "minimax_m2", "hunyuan_v1_dense", "cohere", "cohere2",
)  # fmt: skip
LATER = FAMILIES[8:]  # those added later, whose class defaults are drawn more often
RECURRENT = ("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next")
# Those whose class takes a null for as many heads of keys as of queries.
NULL_KEY_VALUE_HEADS = ("cohere", "cohere2", "granite", "hunyuan_v1_dense", "olmo2", "olmo3", "smollm3")
WITHOUT_ATTENTION_BIAS = ("ernie4_5", "exaone4", "minimax_m2", "ministral3", "mistral", "mixtral", "phi3", "qwen2", "qwen2_moe")
WITHOUT_LAYER_TYPES = (
    "cohere", "deepseek_v3", "ernie4_5", "gemma", "glm4", "glm4_moe", "granite", "helium", "hunyuan_v1_dense", "llama", "minimax_m2", "ministral3", "mistral", "mixtral",
    "olmo2",
    "phi3", "qwen3_moe", "seed_oss",
)  # fmt: skip
# The class's padding token is beyond the small vocabularies, and its head_dim long.
FAR_PADDING = ("glm4", "smollm3")
LONG_HEADS = ("ernie4_5", "gemma", "glm4", "gpt_oss", "minimax_m2", "ministral3", "seed_oss", *RECURRENT)


def draw_windows(draw, family, layers, spelling):
    if family in RECURRENT or family == "gemma4_text":  # has drawn them
        return
    window = draw.one(3, 7, 11)
    if family in ("mistral", "phi3"):
        draw.put("sliding_window", window, None)
    if family in ("ministral3", "mixtral"):
        draw.put("sliding_window", window, None, ABSENT)
    if family.startswith("qwen"):
        draw_qwen_windows(draw, family, window, layers)
    if family in ("gemma2", "gemma3_text"):
        draw.settings["sliding_window"] = window
    if family in ("cohere2", "gpt_oss", "olmo3"):
        draw.put("sliding_window", window, window, ABSENT)
    if family == "exaone4":
        windows = draw.put("sliding_window", window, window, ABSENT, None)
        draw.put("sliding_window_pattern", ABSENT, 2, 3, 4)
        if windows is None:
            draw.settings["layer_types"] = ["full_attention"] * layers  # without the list transformers divides by 0
            return
    if family == "smollm3" and draw.put("use_sliding_window", True, False, ABSENT) is not ABSENT:
        draw.put("sliding_window", window, window, None, ABSENT)
    if family in ("cohere2", "gemma3_text") and spelling == 4:
        draw.put("sliding_window_pattern", 2, 3, ABSENT)
    if spelling == 5 and family not in WITHOUT_LAYER_TYPES and draw.chance(0.3):
        types = [draw.one("full_attention", "sliding_attention") for _ in range(layers)]
        draw.settings["layer_types"] = types
        if family.startswith("qwen"):
            draw.settings |= {"use_sliding_window": True, "sliding_window": window}
            draw.settings.pop("max_window_layers", None)
        if family == "smollm3" and draw.chance(0.9):
            draw.settings |= {"use_sliding_window": True, "sliding_window": window}


def draw_qwen_windows(draw, family, window, layers):
    if draw.put("use_sliding_window", True, False, ABSENT) is True:
        draw.settings["sliding_window"] = window
        if family != "qwen3_moe" or draw.chance(0.3):
            draw.put("max_window_layers", *range(layers + 1))
    elif draw.chance(0.5):
        # transformers 5 saves a 0 for Qwen2-MoE's.
        saved = draw.one(window, 0) if family == "qwen2_moe" else window
        draw.settings |= {"use_sliding_window": False, "sliding_window": saved, "max_window_layers": layers}


def draw_experts(draw, layers):
    draw.settings |= {"num_experts": draw.one(3, 4), "moe_intermediate_size": draw.one(6, 10)}
    draw.put("num_experts_per_tok", 1, 2, 3)
    draw.put("norm_topk_prob", True, False, ABSENT)
    draw.put("decoder_sparse_step", ABSENT, 1, 2, 3)
    draw.put("mlp_only_layers", ABSENT, [], [0], [layers - 1])
    draw.put("output_router_logits", ABSENT, False, True)
    draw.put("router_aux_loss_coef", ABSENT, 0.01, 0.25)


def own_gemma(draw, layers):
    # The first files say gelu and mean the tanh form.
    draw.put("hidden_act", ABSENT, "gelu_pytorch_tanh", "gelu")
    draw.put("hidden_activation", ABSENT, None, "gelu_pytorch_tanh")
    draw.put("use_bidirectional_attention", ABSENT, None, False)


def own_smollm3(draw, layers):
    if draw.chance(0.6):
        longer = draw.one(0, 0, 2)
        draw.settings["no_rope_layers"] = [draw.one(0, 1) for _ in range(layers + longer)]
    draw.put("no_rope_layer_interval", ABSENT, 1, 2, 3, 4)
    draw.put("mlp_bias", ABSENT, False, True)
    draw.put("pretraining_tp", ABSENT, 2)


def own_granite(draw, layers):
    draw.put("embedding_multiplier", ABSENT, 12, 12.3, 0.7)
    draw.put("residual_multiplier", ABSENT, 0.22, 1, 1.5)
    draw.put("attention_multiplier", ABSENT, 0.0078125, 0.3)
    draw.put("logits_scaling", ABSENT, 8, 16.5)
    draw.put("mlp_bias", ABSENT, False, True)


def own_olmo(draw, layers):
    draw.put("clip_qkv", ABSENT, None)


def own_glm4(draw, layers):
    # Absent: queries, keys and values have one.
    draw.put("attention_bias", ABSENT, False, True)


def own_mixtral(draw, layers):
    draw.put("num_experts" if draw.chance(0.2) else "num_local_experts", 3, 4)
    draw.put("num_experts_per_tok", 1, 2, 3)
    draw.put("router_jitter_noise", ABSENT, 0.0)
    draw.put("output_router_logits", ABSENT, False, True)
    draw.put("router_aux_loss_coef", ABSENT, 0.01, 0.25)


def own_minimax_m2(draw, layers):
    own_mixtral(draw, layers)
    if draw.settings.get("output_router_logits"):
        draw.settings["router_aux_loss_coef"] = 0.0


def own_qwen2_moe(draw, layers):
    draw_experts(draw, layers)
    draw.settings["shared_expert_intermediate_size"] = draw.one(8, 12)
    draw.put("qkv_bias", ABSENT, False, True)


def own_recurrent(draw, layers):
    """Which layers are recurrent, one at least being not, and the sizes of the delta rule."""
    types = [draw.one("full_attention", "linear_attention") for _ in range(layers)]
    types[draw.one(*range(layers))] = "full_attention"
    if draw.chance(0.6):
        draw.settings["layer_types"] = types
    elif layers < 4 or draw.chance(0.5):
        draw.settings["full_attention_interval"] = draw.one(*range(1, layers + 1))
    key_heads = draw.one(1, 2, 3)
    draw.settings |= {"linear_num_key_heads": key_heads, "linear_num_value_heads": key_heads * draw.one(1, 2)}
    draw.settings |= {"linear_key_head_dim": draw.one(4, 6), "linear_value_head_dim": draw.one(4, 5)}
    draw.put("linear_conv_kernel_dim", ABSENT, 2, 3)
    if draw.chance(0.1):
        for key in ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"):
            del draw.settings[key]


def own_qwen3_next(draw, layers):
    own_recurrent(draw, layers)
    draw_experts(draw, layers)
    draw.settings["shared_expert_intermediate_size"] = draw.one(8, 12)


def own_qwen3_5_moe(draw, layers):
    own_recurrent(draw, layers)
    draw.settings |= {"num_experts": draw.one(3, 4), "moe_intermediate_size": draw.one(6, 10)}
    draw.settings["shared_expert_intermediate_size"] = draw.one(8, 12)
    draw.put("num_experts_per_tok", 1, 2, 3)
    draw.put("output_router_logits", ABSENT, False, True)
    draw.put("router_aux_loss_coef", ABSENT, 0.01, 0.25)
    if draw.chance(0.5):
        del draw.settings["intermediate_size"]


def own_gpt_oss(draw, layers):
    draw.settings["num_local_experts"] = draw.one(3, 4)
    draw.put("num_experts_per_tok", 1, 2, 3)
    draw.put("swiglu_limit", ABSENT, 7.0, 2.5)
    draw.put("swiglu_alpha", ABSENT, 1.702, 1.1)
    draw.put("output_router_logits", ABSENT, False, True)
    draw.put("router_aux_loss_coef", ABSENT, 0.01, 0.25)


def own_seed_oss(draw, layers):
    draw.put("attention_out_bias", ABSENT, False, True)
    draw.put("mlp_bias", ABSENT, False, True)
    draw.settings |= {"attention_dropout": 0.0, "residual_dropout": 0.0}  # refused where they are absent: the class has 0.1


def own_helium(draw, layers):
    draw.settings["head_dim"] = draw.settings["hidden_size"] // draw.settings["num_attention_heads"]
    draw.put("mlp_bias", ABSENT, False, True)


def own_ernie4_5(draw, layers):
    draw.put("use_bias", ABSENT, False, True)


def own_cohere(draw, layers):
    draw.settings.pop("rms_norm_eps", None)
    draw.put("layer_norm_eps", ABSENT, 1e-6, 1e-3)
    draw.put("logit_scale", ABSENT, 0.25, 0.8)
    draw.put("use_qk_norm", ABSENT, False)
    if draw.settings["model_type"] == "cohere2":
        draw.settings.pop("head_dim", None)  # not read


OWN_SETTINGS = {
    "cohere": own_cohere,
    "cohere2": own_cohere,
    "deepseek_v3": own_deepseek_v3,
    "ernie4_5": own_ernie4_5,
    "gemma": own_gemma,
    "gemma4_text": own_gemma4,
    "glm4": own_glm4,
    "glm4_moe": own_glm4_moe,
    "gpt_oss": own_gpt_oss,
    "granite": own_granite,
    "helium": own_helium,
    "minimax_m2": own_minimax_m2,
    "mixtral": own_mixtral,
    "olmo2": own_olmo,
    "olmo3": own_olmo,
    "qwen2_moe": own_qwen2_moe,
    "qwen3_5_moe_text": own_qwen3_5_moe,
    "qwen3_5_text": own_recurrent,
    "qwen3_moe": draw_experts,
    "qwen3_next": own_qwen3_next,
    "seed_oss": own_seed_oss,
    "smollm3": own_smollm3,
}


def draw_heads(draw, family, heads, rarely):
    """head_dim (of latent attention what is rotated of it), or ABSENT, and the number of heads of keys and values."""
    if family == "deepseek_v3":
        return draw_latent_heads(draw, heads)
    head_dim = ABSENT
    if family == "hunyuan_v1_dense":  # which has to have it
        head_dim = draw.put("head_dim", 4, 8, 12)
    elif family not in ("phi3", "qwen2"):
        absent = [ABSENT] if family not in ("qwen3", *LONG_HEADS) or rarely else []
        head_dim = draw.put("head_dim", *absent, *((8, 16, 24) if family in RECURRENT else (4, 8, 12)))
    draw.put("num_key_value_heads", *[n for n in (1, 2, heads) if heads % n == 0])
    if family in ("llama", "phi3") and draw.chance(0.2):
        draw.settings["num_key_value_heads"] = None
    if family in NULL_KEY_VALUE_HEADS and draw.chance(0.15):
        draw.settings["num_key_value_heads"] = None
        if family != "smollm3" and draw.chance(0.5):
            del draw.settings["num_key_value_heads"]
    return head_dim


def draw_common(draw, family, spelling, rarely):
    """What most families have."""
    draw.put("rms_norm_eps", ABSENT, 1e-5, 1e-3)
    draw.put("tie_word_embeddings", ABSENT, True, False)
    # Of Phi-3 and some later ones the default is beyond the vocabularies here.
    far = family in FAR_PADDING and not draw.chance(0.06)
    draw.put("pad_token_id", *([] if family == "phi3" or far else [ABSENT]), None, 0, 5)
    if family in FAR_PADDING and "pad_token_id" not in draw.settings:
        draw.settings["vocab_size"] = 151330
    draw.put("bos_token_id", ABSENT, 1)
    draw.put("eos_token_id", ABSENT, 2, [2, 3])
    if family != "gemma":
        activation = ("hidden_activation", "gelu_pytorch_tanh") if family.startswith("gemma") else ("hidden_act", "silu")
        draw.put(activation[0], ABSENT, activation[1], *(["gelu"] if rarely else []))
    draw.put("attention_dropout", ABSENT, 0.0, *([0.1] if rarely else []))
    draw.put("dtype" if spelling == 5 else "torch_dtype", ABSENT, "float32", "bfloat16", "float16")
    if family not in WITHOUT_ATTENTION_BIAS or rarely:
        draw.put("attention_bias", ABSENT, False, True)


def draw_rotary(draw, family, spelling, head_dim, positions, rarely):
    share, rotary_dim = put_share(draw, family, head_dim, spelling)
    theta = (ABSENT, 1000.0, 500000)
    if family == "olmo3" and spelling == 4 and not rarely:
        theta = (ABSENT, 500000)  # transformers 5 reads another for the layers without a window alone
    rope, theta = draw_rope(draw, theta, family, positions, rotary_dim)
    if family == "deepseek_v3" and rope["rope_type"] == "yarn":
        draw_latent_scale(draw, rope)
    if spelling == 5 and share is not ABSENT:
        rope["partial_rotary_factor"] = share
    if family == "ministral3":
        rope["llama_4_scaling_beta"] = draw.one(0.1, 0.3, 0)
        if draw.chance(0.3):
            rope["max_position_embeddings"] = positions
        if draw.chance(0.15):
            return  # the class's rope
    if family == "gpt_oss" and draw.chance(0.3):
        draw.settings.update({} if theta is ABSENT or spelling == 5 else {"rope_theta": theta})
        return  # the class's rope
    if family.startswith("qwen3_5") and draw.chance(0.4):
        rope |= {"mrope_section": [1, 1, 0], "mrope_interleaved": True}
    put_rope(draw, family, rope, theta, draw.one(ABSENT, 200.0), spelling)
    if family == "gpt_oss" and settings_say_null(draw.settings):
        del draw.settings["rope_scaling"]  # refused here: transformers 4 and 5 read it differently


def settings_say_null(settings):
    return settings.get("rope_scaling", "") is None


def draw_file(family, number):
    """A config.json as a dictionary, in the spelling of transformers 4 or 5."""
    draw = Draw(f"{family} {number}")
    spelling = 5 if number % 2 else 4
    settings = draw.settings
    settings["model_type"] = family
    heads = draw.one(2, 4, 6)
    layers = settings["num_hidden_layers"] = draw.one(1, 2, 3, 4)
    settings |= {"vocab_size": draw.one(31, 40), "num_attention_heads": heads}
    settings["hidden_size"] = heads * draw.one(*([4, 8, 12] if family == "phi3" else [4, 6, 8]))
    settings["intermediate_size"] = draw.one(10, 14)
    # What is refused here (verify/tests/streambp/model/config/config_table_test.cc counts it) is drawn now and then, so that most files are read.
    rarely = draw.chance(0.06)
    head_dim = draw_heads(draw, family, heads, rarely)
    positions = settings["max_position_embeddings"] = draw.one(64, 96, 20)
    draw_common(draw, family, spelling, rarely)
    if family == "llama":
        draw.put("mlp_bias", ABSENT, False, True)
    if family in ("gemma2", "gemma3_text"):
        draw.put("query_pre_attn_scalar", ABSENT, 24, 7)
    if family == "gemma2":
        draw.put("attn_logit_softcapping", ABSENT, 2.0, None)
        draw.put("final_logit_softcapping", ABSENT, 3.0, None)
    if family in OWN_SETTINGS:
        OWN_SETTINGS[family](draw, layers)
    draw_windows(draw, family, layers, spelling)
    if head_dim is ABSENT:
        head_dim = 256 if family in RECURRENT else settings["hidden_size"] // heads
    if family != "gemma4_text":  # has drawn them
        draw_rotary(draw, family, spelling, head_dim, positions, rarely)
    if family in LATER and draw.chance(0.15):
        del settings["max_position_embeddings"]
    return as_part_of_multimodal(draw) if family == "gemma4_text" and draw.chance(0.25) else settings
