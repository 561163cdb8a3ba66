#!/usr/bin/env python3
"""What transformers makes of some hundred random config.json files: verify/tests/streambp/model/config_table.jsonl.

    python scripts/make_config_table.py --out verify/tests/streambp/model/config_table.jsonl

A second source in addition to our own parser, which the reference's numbers also come through: each file is given to
transformers, the model is made, and what it holds or does is written down: windows are counted in the attention
weights of a forward pass, frequencies read after it, names and shapes taken from the module. A line is
{"config": the file, "derived": the values}, verify/tests/streambp/model/config_table_test.cc reads them. A file that transformers itself
refuses is drawn again. Needs torch 2.11.0 and transformers 5.23.0.
"""

import argparse
import json
import random
from pathlib import Path

import torch
import transformers

from goldens.passes import InFloat64

FILES_OF_A_FAMILY = 60
TOKENS = 30
# Of which frequencies are read: within and beyond every original length drawn here.
LENGTHS = (12, 48)
ABSENT = object()


class Draw:
    """Random settings; `maybe` leaves a key out, so that the class's default holds."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.settings = {}

    def one(self, *choices):
        return self.random.choice(choices)

    def chance(self, probability):
        return self.random.random() < probability

    def put(self, key, *choices):
        value = self.one(*choices)
        if value is not ABSENT:
            self.settings[key] = value
        return value


def draw_rope(draw, theta, family, positions, rotary_dim):
    """One rope object of transformers 5, without its base, and the base."""
    kind = draw.one("default", "linear", "dynamic", "llama3", "yarn")
    original = draw.one(16, 24)
    if family == "phi3":
        kind = draw.one("default", "longrope")
    rope = {"rope_type": kind}
    if kind in ("linear", "dynamic", "llama3"):
        rope["factor"] = draw.one(2.0, 3.5, 8.0)
    if kind == "llama3":
        rope |= {"low_freq_factor": draw.one(1.0, 1.5), "high_freq_factor": draw.one(4.0, 3.0)}
        rope["original_max_position_embeddings"] = original
    if kind == "yarn":
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
    if kind == "longrope":
        rope["original_max_position_embeddings"] = original
        for key, largest in (("short_factor", 2.0), ("long_factor", 9.0)):
            rope[key] = [round(draw.random.uniform(1.0, largest), 3) for _ in range(rotary_dim // 2)]
        if draw.chance(0.2):
            rope["attention_factor"] = 1.25
    return rope, draw.one(*theta)


def put_rope(draw, family, rope, theta, local, spelling):
    """Writes the rope in one of the spellings: rope_parameters, or rope_theta and rope_scaling."""
    settings = draw.settings
    with_theta = {} if theta is ABSENT else {"rope_theta": theta}
    if spelling == 5:
        settings["rope_parameters"] = {**rope, **with_theta}
        if family == "gemma3_text":
            settings["rope_parameters"] = {
                "full_attention": {**rope, **with_theta},
                "sliding_attention": {"rope_type": "default", **({} if local is ABSENT else {"rope_theta": local})},
            }
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


def draw_windows(draw, family, layers, spelling):
    window = draw.one(3, 7, 11)
    if family in ("mistral", "phi3"):
        draw.put("sliding_window", window, None)
    if family.startswith("qwen"):
        if draw.put("use_sliding_window", True, False, ABSENT) is True:
            draw.settings["sliding_window"] = window
            if family != "qwen3_moe" or draw.chance(0.3):
                draw.put("max_window_layers", *range(layers + 1))
        elif draw.chance(0.5):
            draw.settings |= {"use_sliding_window": False, "sliding_window": window, "max_window_layers": layers}
    if family.startswith("gemma"):
        draw.settings["sliding_window"] = window
    if family == "gemma3_text" and spelling == 4:
        draw.put("sliding_window_pattern", 2, 3, ABSENT)
    if spelling == 5 and family not in ("llama", "mistral", "phi3", "qwen3_moe") and draw.chance(0.3):
        types = [draw.one("full_attention", "sliding_attention") for _ in range(layers)]
        draw.settings["layer_types"] = types
        if family.startswith("qwen"):
            draw.settings |= {"use_sliding_window": True, "sliding_window": window}
            draw.settings.pop("max_window_layers", None)


def draw_experts(draw, layers):
    draw.settings |= {"num_experts": draw.one(3, 4), "moe_intermediate_size": draw.one(6, 10)}
    draw.put("num_experts_per_tok", 1, 2, 3)
    draw.put("norm_topk_prob", True, False, ABSENT)
    draw.put("decoder_sparse_step", ABSENT, 1, 2, 3)
    draw.put("mlp_only_layers", ABSENT, [], [0], [layers - 1])
    draw.put("output_router_logits", ABSENT, False, True)
    draw.put("router_aux_loss_coef", ABSENT, 0.01, 0.25)


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
    # What is refused here (verify/tests/streambp/model/config_table_test.cc counts it) is drawn now and then, so that most files are read.
    rarely = draw.chance(0.06)
    head_dim = ABSENT
    if family not in ("phi3", "qwen2"):
        head_dim = draw.put("head_dim", *([] if family == "qwen3" and not rarely else [ABSENT]), 4, 8, 12)
    draw.put("num_key_value_heads", *[n for n in (1, 2, heads) if heads % n == 0])
    if family in ("llama", "phi3") and draw.chance(0.2):
        settings["num_key_value_heads"] = None
    positions = settings["max_position_embeddings"] = draw.one(64, 96, 20)
    draw.put("rms_norm_eps", ABSENT, 1e-5, 1e-3)
    draw.put("tie_word_embeddings", ABSENT, True, False)
    # Phi-3's default is beyond the vocabularies here.
    draw.put("pad_token_id", *([] if family == "phi3" else [ABSENT]), None, 0, 5)
    draw.put("bos_token_id", ABSENT, 1)
    draw.put("eos_token_id", ABSENT, 2, [2, 3])
    activation = ("hidden_activation", "gelu_pytorch_tanh") if family.startswith("gemma") else ("hidden_act", "silu")
    draw.put(activation[0], ABSENT, activation[1], *(["gelu"] if rarely else []))
    draw.put("attention_dropout", ABSENT, 0.0, *([0.1] if rarely else []))
    draw.put("dtype" if spelling == 5 else "torch_dtype", ABSENT, "float32", "bfloat16", "float16")
    if family in ("llama", "qwen3", "qwen3_moe", "gemma2", "gemma3_text") or rarely:
        draw.put("attention_bias", ABSENT, False, True)
    if family == "llama":
        draw.put("mlp_bias", ABSENT, False, True)
    if family.startswith("gemma"):
        draw.put("query_pre_attn_scalar", ABSENT, 24, 7)
    if family == "gemma2":
        draw.put("attn_logit_softcapping", ABSENT, 2.0, None)
        draw.put("final_logit_softcapping", ABSENT, 3.0, None)
    if family == "qwen3_moe":
        draw_experts(draw, layers)
    draw_windows(draw, family, layers, spelling)
    rotary_dim = settings["hidden_size"] // heads if head_dim is ABSENT else head_dim
    if family == "phi3":
        share = draw.put("partial_rotary_factor", ABSENT, 0.5) if spelling == 4 else draw.one(ABSENT, 0.5)
        rotary_dim = rotary_dim if share is ABSENT else int(rotary_dim * share)
        rotary_dim -= rotary_dim % 2
    rope, theta = draw_rope(draw, (ABSENT, 1000.0, 500000), family, positions, rotary_dim)
    if family == "phi3" and spelling == 5 and share is not ABSENT:
        rope["partial_rotary_factor"] = share
    put_rope(draw, family, rope, theta, draw.one(ABSENT, 200.0), spelling)
    return settings


def shapes_of(model):
    """Names and shapes as in a weight file: experts apart, layers alike once."""
    layers, others = {}, {}
    for name, parameter in model.named_parameters():
        shape = list(parameter.shape)
        if not name.startswith("model.layers."):
            others[name] = shape
            continue
        index, _, rest = name[len("model.layers.") :].partition(".")
        of_layer = layers.setdefault(int(index), {})
        if rest == "mlp.experts.gate_up_proj":
            experts, rows, columns = shape
            of_layer["mlp.experts.*.gate_proj.weight"] = [rows // 2, columns]
            of_layer["mlp.experts.*.up_proj.weight"] = [rows // 2, columns]
        elif rest == "mlp.experts.down_proj":
            of_layer["mlp.experts.*.down_proj.weight"] = shape[1:]
        else:
            of_layer[rest] = shape
    kinds = []
    for shapes in layers.values():
        if shapes not in kinds:
            kinds.append(shapes)
    return {"others": others, "layer_kinds": kinds, "layers": [kinds.index(layers[i]) for i in range(len(layers))]}


def attention_weights(model, positions):
    """[rows, columns] of every layer for one sequence of TOKENS."""
    ids = torch.arange(TOKENS).remainder(model.config.vocab_size).unsqueeze(0)
    outputs = model.model(input_ids=ids, position_ids=positions, use_cache=False, output_attentions=True)
    return [weights[0].mean(0) for weights in outputs.attentions]


def window_of(weights):
    """How many keys the last query sees; 0: all."""
    seen = int((weights[-1] != 0).sum())
    return 0 if seen == TOKENS else seen


def frequencies(model, family):
    """Inverse frequencies and attention scaling of each kind of layer, for sequences of LENGTHS."""
    rotary = model.model.rotary_emb
    kinds = {"rope": "full_attention", "local_rope": "sliding_attention"} if family == "gemma3_text" else {"rope": None}
    result = {}
    for name, kind in kinds.items():
        if kind is not None and kind not in model.config.layer_types:
            continue
        arguments = {} if kind is None else {"layer_type": kind}
        prefix = "" if kind is None else f"{kind}_"
        of_length = {}
        for length in LENGTHS:
            rotary(torch.zeros(1, 1, 1), torch.arange(length).unsqueeze(0), **arguments)
            of_length[str(length)] = getattr(rotary, f"{prefix}inv_freq").tolist()
        if of_length[str(LENGTHS[0])] == of_length[str(LENGTHS[1])]:
            del of_length[str(LENGTHS[1])]
        result[name] = {"inv_freq": of_length, "attention_scaling": float(getattr(rotary, f"{prefix}attention_scaling"))}
    return result


def derive(settings):
    """What transformers makes of a file."""
    config = transformers.AutoConfig.for_model(**json.loads(json.dumps(settings)))
    dtype = config.dtype
    options = {"dtype": torch.float64, "attn_implementation": "eager"}
    if config.model_type == "qwen3_moe":
        options["experts_implementation"] = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, **options).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.1)
        attention = model.model.layers[0].self_attn
        weights = attention_weights(model, torch.arange(TOKENS).unsqueeze(0))
        norm = model.model.norm
        ones = torch.ones(1, config.hidden_size)
        norm.weight.zero_()
        of_layers = [mlp for layer in model.model.layers for mlp in (layer.mlp, getattr(layer.mlp, "experts", None))]
        act = next(getattr(mlp, name) for mlp in of_layers for name in ("act_fn", "activation_fn") if hasattr(mlp, name))
        derived = {
            "head_dim": attention.head_dim,
            "scaling": attention.scaling,
            "windows": [window_of(layer) for layer in weights],
            "rms_norm_eps": float(getattr(norm, "variance_epsilon", None) or norm.eps),
            "norm_adds_one": bool(norm(ones).abs().sum() > 0),
            "activation_at_0.7": act(torch.tensor(0.7)).item(),
            "embed_scale": float(getattr(model.model.embed_tokens, "embed_scale", 1.0)),
            "padding_idx": model.model.embed_tokens.padding_idx,
            "tied": model.lm_head.weight is model.model.embed_tokens.weight,
            "attn_logit_softcapping": getattr(attention, "attn_logit_softcapping", None),
            "final_logit_softcapping": getattr(config, "final_logit_softcapping", None),
            "dropout": config.attention_dropout,
            "dtype": None if dtype is None else str(dtype).removeprefix("torch."),
            **frequencies(model, settings["model_type"]),
            **shapes_of(model),
        }
        routers = [getattr(layer.mlp, "gate", None) for layer in model.model.layers]
        if any(router is not None for router in routers):
            router = next(router for router in routers if router is not None)
            derived |= {
                "num_experts": router.num_experts,
                "top_k": router.top_k,
                "norm_topk_prob": bool(router.norm_topk_prob),
                "router_loss": model.router_aux_loss_coef if config.output_router_logits else 0.0,
            }
        derived["sparse"] = [router is not None for router in routers]
    return derived


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    families = ("llama", "mistral", "phi3", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text")
    lines, refused = [], 0
    with InFloat64():
        for family in families:
            made, number = 0, 0
            while made < FILES_OF_A_FAMILY:
                settings = draw_file(family, number)
                number += 1
                try:
                    derived = derive(settings)
                except Exception as error:  # whatever transformers says of a file that it does not take
                    refused += 1
                    print(f"transformers refuses {family} {number - 1}: {type(error).__name__}: {str(error)[:150]}")
                    continue
                lines.append(json.dumps({"config": settings, "derived": derived}, separators=(",", ":")))
                made += 1
    arguments.out.write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} files, {refused} that transformers refuses, {arguments.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
