#!/usr/bin/env python3
"""sb.backward() on configs that nobody chose: each golden model's config.json with settings drawn anew, made and run by transformers in float64. Its
gradients are ours, or its config is refused by name, and then sb.patch() has them by the model's own code."""

import contextlib
import json
import os
import random
import tempfile
import unittest
from pathlib import Path

import streambp_bench as sb
import torch
import transformers
from goldens.passes import MIXTURES, InFloat64, experts_per_token
from python_case import GOLDENS, Case, autograd, in_float64, inputs_of, take_gradients
from streambp_bench._module_lane import node

DRAWN = 30  # of all models, or in a nightly run of each
ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "relu", "gelu_new", "quick_gelu")
UNTOUCHED = ("use_cache", "is_encoder_decoder", "is_decoder", "add_cross_attention", "return_dict", "output_hidden_states", "output_attentions")
LIMIT = 1e-9
transformers.logging.set_verbosity_error()


def drawn_rope(rope, draw):
    """Frequencies of another kind, with an original context that a batch of 29 tokens crosses, or doesn't."""
    kind = draw.choice(("default", "linear", "dynamic", "yarn", "llama3"))
    context = draw.choice((8, 16, 64))
    more = {
        "default": {},
        "linear": {"factor": 3.5},
        "dynamic": {"factor": 2.0},
        "yarn": {"factor": 4.0, "original_max_position_embeddings": context, "beta_fast": 4.0, "beta_slow": 1.0},
        "llama3": {"factor": 4.0, "original_max_position_embeddings": context, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    }[kind]
    kept = {name: rope[name] for name in ("rope_theta", "partial_rotary_factor") if name in rope}
    return {"rope_type": kind, **kept, **more}


def drawn_config(config, draw):
    """(config, what was changed)"""
    changed = {}
    for name, value in config.items():
        if isinstance(value, bool):
            if name not in UNTOUCHED and draw.random() < 0.2:
                changed[name] = not value
        elif name in ("hidden_act", "hidden_activation") and draw.random() < 0.1:
            changed[name] = draw.choice(ACTIVATIONS)
        elif name == "sliding_window" and value and draw.random() < 0.5:
            changed[name] = draw.choice((1, 2, 3, 8, 40))
        elif name == "head_dim" and value and draw.random() < 0.4:
            changed[name] = draw.choice((4, 6, 10, 16))
        elif name == "num_key_value_heads" and draw.random() < 0.4:
            heads = config["num_attention_heads"]
            changed[name] = draw.choice([count for count in range(1, heads + 1) if heads % count == 0])
        elif name in ("intermediate_size", "moe_intermediate_size", "vocab_size") and isinstance(value, int) and draw.random() < 0.3:
            changed[name] = value + draw.choice((1, 5, 8))
        elif name in ("num_experts_per_tok", "top_k_experts") and value and draw.random() < 0.4:
            changed[name] = draw.choice((1, 2, 3))
        elif name == "pad_token_id" and draw.random() < 0.3:
            changed[name] = draw.choice((None, 0, 5))
        elif isinstance(value, float) and value and "dropout" not in name and draw.random() < 0.2:
            changed[name] = value * draw.choice((0.5, 1.5, 3.0))
    rope = config.get("rope_parameters") or {}
    if "rope_theta" in rope and draw.random() < 0.4:
        changed["rope_parameters"] = drawn_rope(rope, draw)
    return config | changed, changed


def made(settings, seed):
    """The model of a config.json, in float64 with random weights; ValueError and its kin where transformers doesn't take it."""
    with tempfile.TemporaryDirectory() as folder, in_float64():
        (Path(folder) / "config.json").write_text(json.dumps(settings))
        config = transformers.AutoConfig.from_pretrained(folder)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float64, attn_implementation="eager")
        if config.model_type in MIXTURES and experts_per_token(config):
            model.set_experts_implementation("eager")
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn_like(parameter)
                parameter.copy_(noise * 0.25 if parameter.dim() > 1 else parameter + noise * 0.2)
    return model.eval()


class RandomConfigs(Case):
    def compare(self, folder, number):
        """"exact", "refused", or None where transformers takes no such model."""
        draw = random.Random(f"{folder.name} {number}")
        settings, changed = drawn_config(json.loads((folder / "config.json").read_text()), draw)
        what = f"{folder.name}, draw {number}: {changed}"
        try:
            model = made(settings, number)
            inputs = inputs_of(model, draw.choice(("b1", "b3_right", "b3_left")), seed=number)
            loss, theirs = autograd(model, inputs)
        except Exception:  # what transformers says of a file that it does not take, it says in every way there is
            return None
        chunk = draw.choice((1, 5, 7, 28, 29, 30, 64))
        try:
            self.assert_loss(sb.backward(model, dict(inputs), chunk=chunk), loss, what, LIMIT)
            outcome = "exact"
        except sb.InputError:
            with in_float64():
                sb.patch(model, chunk=chunk)
                ours = model(**inputs, use_cache=False).loss
                ours.backward()
            self.assert_loss(ours.detach(), loss, what, LIMIT)
            outcome = "refused"
        # What is nothing but rounding, as the gradient of a key's bias that does not rotate, is measured by the model's largest gradient.
        least = 1e-6 * max(gradient.abs().max() for gradient in theirs.values())
        ours = take_gradients(model)
        for name in [name for name, gradient in theirs.items() if gradient.abs().max() <= least]:
            self.assertTrue((ours.pop(name) - theirs.pop(name)).abs().max() <= LIMIT * least, f"{what}: {name}")
        self.assert_gradients(ours, theirs, what, LIMIT)
        return outcome

    def test_gradients_are_transformers_own(self):
        folders = sorted(path.parent for path in (GOLDENS / "models").glob("*/config.json") if not path.parent.name.endswith("-score"))
        draw, thorough = random.Random(0), os.environ.get("STREAMBP_THOROUGH")
        chosen = [(folder, i) for folder in folders for i in range(DRAWN)] if thorough else [(draw.choice(folders), i) for i in range(DRAWN)]
        node.around = InFloat64  # backward passes of the module lane
        self.addCleanup(setattr, node, "around", contextlib.nullcontext)
        outcomes = [self.compare(folder, number) for folder, number in chosen]
        counts = {outcome: outcomes.count(outcome) for outcome in ("exact", "refused", None)}
        print(f"{counts['exact']} configs exact by the engine, {counts['refused']} refused and exact by patch(), {counts[None]} that transformers refuses")
        self.assertGreater(2 * counts["exact"], len(chosen), counts)


if __name__ == "__main__":
    unittest.main()
