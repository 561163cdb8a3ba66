"""What DeepSeek V3 and GLM-4.5 have of their own in a config.json, drawn at random."""

from config_table.draw import ABSENT


def draw_latent_heads(draw, heads):
    """The sizes of latent attention; returns how many entries of a head are rotated."""
    settings = draw.settings
    draw.put("kv_lora_rank", ABSENT, 6, 10, 10)
    draw.put("q_lora_rank", ABSENT, None, 5, 8)
    draw.put("v_head_dim", ABSENT, 3, 6, 9)
    stationary = draw.put("qk_nope_head_dim", ABSENT, 4, 5, 7)
    rotated = draw.put("qk_rope_head_dim", ABSENT, 4, 6, 8)
    stationary, rotated = 128 if stationary is ABSENT else stationary, 64 if rotated is ABSENT else rotated
    if draw.chance(0.3):
        settings |= {"head_dim": rotated, "qk_head_dim": stationary + rotated}
    settings["num_key_value_heads"] = draw.one(heads, heads, None)
    if heads == 4 and draw.chance(0.2):
        settings["num_key_value_heads"] = 3  # as good as 4 to transformers; refused here
    return rotated


def draw_latent_scale(draw, rope):
    """The lengths that grow with the context: one, both or none of those of yarn."""
    for key in ("mscale", "mscale_all_dim"):
        rope.pop(key, None)
    scales = draw.one((None, None), (None, 0.9), (1.0, 1.0), (0.7, 1.2), (0.707, 0.0), (0, 1.0))
    for key, scale in zip(("mscale", "mscale_all_dim"), scales, strict=True):
        if scale is not None:
            rope[key] = scale
    if all(scales):
        rope.pop("attention_factor", None)


def draw_sigmoid_experts(draw, layers):
    """The experts of both; of some files all that the class has a default for."""
    settings = draw.settings
    deepseek = settings["model_type"] == "deepseek_v3"
    draw.put("first_k_dense_replace", ABSENT, 0, 0, 1, 2, layers + 1)
    draw.put("norm_topk_prob", ABSENT, True, False, *([None] if deepseek else []))
    draw.put("routed_scaling_factor", ABSENT, 1.0, 1.7, 2.5)
    draw.put("n_shared_experts", ABSENT, 1, 2, *([0] if draw.chance(0.06) else []))
    draw.put("output_router_logits", ABSENT, False, *([True] if draw.chance(0.1) else []))
    draw.put("num_nextn_predict_layers", ABSENT, 1, 0)
    if draw.chance(0.15):
        settings["moe_intermediate_size"] = draw.one(4, 6)
        return
    draw_groups(draw)
    if settings["num_experts_per_tok"] > 1 or draw.chance(0.7):
        settings["moe_intermediate_size"] = draw.one(4, 6)


def draw_groups(draw):
    settings = draw.settings
    groups, of_group = draw.one(1, 2, 4), draw.one(2, 3)
    experts = groups * of_group
    keys = draw.one(*[("n_routed_experts",)] * 4, ("num_local_experts",), ("n_routed_experts", "num_local_experts"))
    settings |= dict.fromkeys(keys, experts)
    if draw.chance(0.1):
        settings["num_experts"] = experts
    settings |= {"n_group": groups, "topk_group": draw.one(*range(1, groups + 1))}
    if groups == 1 and settings["model_type"] == "glm4_moe":
        for key in ("n_group", "topk_group"):
            if draw.chance(0.5):
                del settings[key]
    most = settings.get("topk_group", 1) * of_group
    settings["num_experts_per_tok"] = draw.one(*range(1, most + 1))
    if most < experts and draw.chance(0.06):
        settings["num_experts_per_tok"] = most + 1  # also of groups that are not chosen


def own_deepseek_v3(draw, layers):
    draw.put("rope_interleave", ABSENT, True, False, None)
    draw_sigmoid_experts(draw, layers)
    # What the files of DeepSeek's own reader say.
    if draw.chance(0.3):
        draw.settings |= {"scoring_func": draw.one(*["sigmoid"] * 6, "softmax"), "topk_method": "noaux_tc", "moe_layer_freq": 1}
        draw.settings |= {"aux_loss_alpha": 0.001, "seq_aux": True, "ep_size": 1}


def own_glm4_moe(draw, layers):
    draw.put("use_qk_norm", ABSENT, False, True)
    draw_sigmoid_experts(draw, layers)
