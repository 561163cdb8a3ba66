"""Random rotary embeddings, in the spelling of transformers 4 or 5."""

from config_table.draw import ABSENT

# Families that have a rope of their own in the layers with a window.
TWO_ROPES = ("gemma3_text", "gemma4_text", "olmo3")
# Of those that rotate a part of a head alone, the part where the file doesn't say.
PARTIAL = {"glm4": 0.5, "glm4_moe": 0.5, "minimax_m2": 1.0, "phi3": 1.0, "qwen3_5_moe_text": 0.25, "qwen3_5_text": 0.25, "qwen3_next": 0.25}


def draw_rope(draw, theta, family, positions, rotary_dim):
    """One rope object of transformers 5, without its base, and the base."""
    kind = draw.one("default", "linear", "dynamic", "llama3", "yarn")
    original = draw.one(16, 24)
    if family == "phi3":
        kind = draw.one("default", "longrope")
    if family == "ministral3":
        kind = "yarn"
    rope = {"rope_type": kind}
    if family == "hunyuan_v1_dense" and kind == "dynamic":
        rope |= draw.one({"alpha": 1000.0}, {"alpha": 7.5, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}, {})
    if kind in ("linear", "dynamic", "llama3"):
        rope["factor"] = draw.one(2.0, 3.5, 8.0)
    if kind == "llama3":
        rope |= {"low_freq_factor": draw.one(1.0, 1.5), "high_freq_factor": draw.one(4.0, 3.0)}
        rope["original_max_position_embeddings"] = original
    if kind == "yarn":
        put_yarn(draw, rope, original, positions)
    if kind == "longrope":
        rope["original_max_position_embeddings"] = original
        for key, largest in (("short_factor", 2.0), ("long_factor", 9.0)):
            rope[key] = [round(draw.random.uniform(1.0, largest), 3) for _ in range(rotary_dim // 2)]
        if draw.chance(0.2):
            rope["attention_factor"] = 1.25
    return rope, draw.one(*theta)


def put_yarn(draw, rope, original, positions):
    rope["original_max_position_embeddings"] = original
    rope["factor"] = draw.one(positions / original, 4.0, 8.0)
    for key, choices in {
        "beta_fast": (ABSENT, 4.0, 16.0),
        "beta_slow": (ABSENT, 0.5, 1.0),
        "truncate": (ABSENT, True, False),
        "attention_factor": (ABSENT, ABSENT, 0.75),
        "mscale": (ABSENT, ABSENT, ABSENT, 0.7),
    }.items():
        value = draw.one(*choices)
        if value is not ABSENT:
            rope[key] = value
    if "mscale" in rope and draw.chance(0.8):
        rope["mscale_all_dim"] = draw.one(1.0, 0.9)
        rope.pop("attention_factor", None)


def put_rope(draw, family, rope, theta, local, spelling):
    """Writes the rope in one of the spellings: rope_parameters, or rope_theta and rope_scaling."""
    settings = draw.settings
    with_theta = {} if theta is ABSENT else {"rope_theta": theta}
    if spelling == 5:
        settings["rope_parameters"] = {**rope, **with_theta}
        if family in TWO_ROPES:
            put_two_ropes(draw, family, {**rope, **with_theta}, local)
        return
    settings.update(with_theta)
    if family == "gemma3_text" and local is not ABSENT:
        settings["rope_local_base_freq"] = local
    if family == "phi3" and rope["rope_type"] == "longrope":
        original = rope.pop("original_max_position_embeddings")
        settings["original_max_position_embeddings"] = original
    if rope["rope_type"] != "default":
        settings["rope_scaling"] = rope if draw.chance(0.7) else {"type": rope.pop("rope_type"), **rope}
    elif draw.chance(0.5):
        settings["rope_scaling"] = None


def put_two_ropes(draw, family, rope, local):
    """One object for each kind of layer. Those of OLMo 3 may be of any type, and either may be absent or null."""
    with_theta = {} if local is ABSENT else {"rope_theta": local}
    both = {"full_attention": rope, "sliding_attention": {"rope_type": "default", **with_theta}}
    if family == "olmo3":
        if draw.chance(0.3):
            both["sliding_attention"] = {**draw_rope(draw, (local,), family, 64, 0)[0], **with_theta}
        for objects in both.values():
            if draw.chance(0.85):
                objects.pop("truncate", None)  # refused here: not read by transformers 5
        if draw.chance(0.2):
            del both[draw.one(*both)]
        elif draw.chance(0.2):
            both[draw.one(*both)] = None
    draw.settings["rope_parameters"] = both


def put_share(draw, family, head_dim, spelling):
    """How much of a head is rotated: the part (ABSENT: the class's), and how many of `head_dim` entries."""
    if family not in PARTIAL:
        return ABSENT, head_dim
    choices = (ABSENT, 0.5) if family == "phi3" else (ABSENT, 0.5, 1.0)
    if family == "glm4" and draw.chance(0.1):
        choices = (0.25,)
    if family == "glm4_moe" and draw.chance(0.2):
        draw.settings["partial_rotary_factor"] = None  # not absent: the whole of a head
        return ABSENT, head_dim
    share = draw.put("partial_rotary_factor", *choices) if spelling == 4 else draw.one(*choices)
    rotary_dim = int(head_dim * (PARTIAL[family] if share is ABSENT else share))
    return share, rotary_dim - rotary_dim % 2
