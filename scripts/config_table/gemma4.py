"""What Gemma 4 has of its own in a config.json, drawn at random."""

from config_table.draw import ABSENT

FULL, WINDOW = "full_attention", "sliding_attention"
KEPT_OUTSIDE = ("tie_word_embeddings", "dtype", "torch_dtype")


def own_gemma4(draw, layers):
    settings = draw.settings
    if draw.chance(0.2):
        layers = settings["num_hidden_layers"] = draw.one(11, 12, 14)  # keys of two digits in per_layer_config
    types = draw_kinds(draw, layers)
    draw_global_heads(draw, types)
    draw_sharing(draw, types)
    draw_per_layer_inputs(draw)
    draw_experts_next_to_mlp(draw)
    draw_two_ropes(draw, types)
    draw.put("final_logit_softcapping", ABSENT, None, 3.0)
    draw.put("use_bidirectional_attention", ABSENT, None, "vision", *(["all"] if draw.chance(0.06) else []))
    draw.put("query_pre_attn_scalar", ABSENT, *([16] if draw.chance(0.04) else []))


def draw_kinds(draw, layers):
    """The kinds of all layers as transformers has them, the last of which sees all tokens whatever the file says."""
    settings = draw.settings
    types = [FULL if number % 6 == 0 else WINDOW for number in range(1, layers + 1)]
    if draw.chance(0.7):
        types = [draw.one(FULL, WINDOW) for _ in range(layers)]
        settings["layer_types"] = list(types)
    elif draw.chance(0.3):
        settings["sliding_window_pattern"] = draw.one(6, 6, 6, 5)
    types[-1] = FULL
    draw.put("sliding_window", ABSENT, 3, 7, 11)
    if draw.chance(0.1):
        settings["use_sliding_window"] = WINDOW in types
    return types


def draw_global_heads(draw, types):
    """Sizes of the layers that see all tokens, in the keys of published files or in per_layer_config."""
    settings = draw.settings
    heads = settings["num_attention_heads"]
    draw.put("attention_k_eq_v", ABSENT, False, True, True)
    key_values = [n for n in (1, 2, heads) if heads % n == 0]
    head_dim = draw.one(4, 8, 12, 16)
    if draw.chance(0.5):
        settings["global_head_dim"] = head_dim
        if draw.chance(0.15):
            del settings["global_head_dim"]
        draw.put("num_global_key_value_heads", ABSENT, None, *key_values)
        return
    of_layer = {"head_dim": head_dim}
    if draw.chance(0.5):
        of_layer["num_key_value_heads"] = draw.one(*key_values)
    numbers = [layer for layer, kind in enumerate(types) if kind == FULL]
    digits = len(str(numbers[-1]))
    settings["per_layer_config"] = {str(layer).zfill(digits): dict(of_layer) for layer in numbers}
    if draw.chance(0.2):  # no layer differs from the model's sizes
        settings["per_layer_config"] = draw.one({}, None)
    elif draw.chance(0.2):
        settings["global_head_dim"] = draw.one(head_dim, head_dim, head_dim + 4)


def draw_sharing(draw, types):
    """How many of the last layers read keys and values of a layer of their kind below them."""
    kinds = set(types)
    possible = [count for count in range(1, len(types)) if set(types[:-count]) == kinds]
    draw.put("num_kv_shared_layers", ABSENT, 0, *possible, *possible)
    draw.put("use_double_wide_mlp", ABSENT, False, True)


def draw_per_layer_inputs(draw):
    vocabulary = draw.settings["vocab_size"]
    width = draw.put("hidden_size_per_layer_input", ABSENT, 0, 0, 4, 6)
    large = width is not ABSENT and draw.settings["num_hidden_layers"] < 5
    # Below the vocabulary there would be tokens without a row in the second table: refused here.
    small = [vocabulary - 1] if draw.chance(0.06) else []
    draw.put("vocab_size_per_layer_input", *([ABSENT] if large else []), vocabulary, vocabulary + 3, *small)


def draw_experts_next_to_mlp(draw):
    has_experts = draw.put("enable_moe_block", ABSENT, False, True)
    experts = draw.one(3, 4)
    settings = {"num_experts": experts, "top_k_experts": draw.one(1, 2, experts), "moe_intermediate_size": draw.one(4, 6)}
    if has_experts is True or draw.chance(0.04):
        draw.settings |= settings
    elif draw.chance(0.3):
        draw.settings |= dict.fromkeys(settings)


def draw_two_ropes(draw, types):
    """One object for each kind of layer, or none: the class's."""
    if draw.chance(0.2):
        draw.put("rope_parameters", ABSENT, None)
        return
    full = {"rope_theta": draw.one(1000.0, 500000)} | draw.one(proportional(draw), proportional(draw), {"rope_type": "default"})
    window = {"rope_theta": draw.one(200.0, 10000)} | draw.one({"rope_type": "default"}, {"rope_type": "default"}, {}, proportional(draw))
    for rope in (full, window):
        if "rope_type" in rope and draw.chance(0.15):
            rope["type"] = rope.pop("rope_type")
    if draw.chance(0.06):
        full = {"rope_theta": 1000.0, "rope_type": "linear", "factor": 2.0}
    draw.settings["rope_parameters"] = {FULL: full, WINDOW: window}
    if WINDOW not in types and draw.chance(0.5):
        del draw.settings["rope_parameters"][WINDOW]
    if draw.chance(0.05):
        draw.settings["rope_theta"] = 1000.0  # not read by transformers


def proportional(draw):
    rope = {"rope_type": "proportional"}
    share, factor = draw.one(ABSENT, 0.25, 0.5, 0.5, 0.6, 1.0), draw.one(ABSENT, ABSENT, 1.0, 2.0)
    if share is not ABSENT:
        rope["partial_rotary_factor"] = share
    if factor is not ABSENT:
        rope["factor"] = factor
    return rope


def as_part_of_multimodal(draw):
    """The file of a multimodal model that has `draw.settings` for its text; some settings are outside too, or outside alone."""
    text = draw.settings
    whole = {"model_type": "gemma4", "text_config": text}
    for key in KEPT_OUTSIDE:
        if key in text and draw.chance(0.7):
            whole[key] = text[key]
            if draw.chance(0.6):
                del text[key]
    if draw.chance(0.3):
        del text["model_type"]
    return whole
