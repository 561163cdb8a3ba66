"""Writes the folder of a model with random weights, and draws the tokens of a batch."""

import json
import re

import torch
import transformers
from safetensors.torch import save_file

from goldens.passes import IGNORED, fixed_tensors, is_correction

# Of norms, of Gemma 4's routers, and of what Mistral Large 4's queries are multiplied by.
ABOUT_ONE = re.compile(r"norm(_\d)?\.weight$|router\.(scale|per_expert_scale)$|softmax_scaling\.bias$")
FIRST_TOKEN = 3  # below are the special tokens; 0 stands under the padding


def write_model(folder, spec, auto_class=transformers.AutoModelForCausalLM):
    """config.json, config.legacy.json (if transformers 4 can say it), generation_config.json and model.safetensors of random weights."""
    config = transformers.AutoConfig.for_model(spec.model_type, **spec.settings)
    model = auto_class.from_config(config, dtype=torch.float64)
    generator = torch.Generator().manual_seed(spec.seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if is_correction(name):  # among the fixed
                continue
            parameter.normal_(0.0, 0.3, generator=generator)
            if ABOUT_ONE.search(name):
                parameter.mul_(2 / 3)
                # The norm within a gated delta rule multiplies by its weight alone.
                if not spec.norms_add_one or name.endswith("linear_attn.norm.weight"):
                    parameter.add_(1.0)
            elif name.endswith("A_log"):
                # Memories of one token to a hundred; of decays with a bound it is what is steep.
                has_bound = spec.model_type == "glm5_next_text" and model.config.linear_lower_bound is not None
                parameter.mul_(5.0).add_(1.5 if has_bound else -2.0)
        for name, buffer in fixed_tensors(model).items():
            if ".indexer." in name or ".ple_embedding." in name:
                continue  # parameters, drawn above; how n-grams are hashed
            if name.endswith(".tid2eid"):  # each token's experts, all different
                drawn = torch.rand(len(buffer), spec.settings["n_routed_experts"], generator=generator)
                buffer.copy_(drawn.argsort(dim=1)[:, : buffer.shape[1]])
                continue
            buffer.normal_(1.0 if name.endswith("layer_scalar") else 0.0, 0.1, generator=generator)
    model.save_pretrained(folder)
    if spec.legacy is None:
        return
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.legacy.json").write_text(json.dumps(legacy_config(config, spec), indent=2, sort_keys=True) + "\n")


def save_case(root, case, tensors):
    """ROOT/cases/NAME, with a line that says how far finite differences are from its gradients."""
    target = root / "cases" / case["name"]
    target.mkdir(parents=True, exist_ok=True)
    (target / "case.json").write_text(json.dumps(case, indent=1) + "\n")
    save_file(tensors, target / "tensors.safetensors")
    differences = case["checks"]["finite_difference"]
    print(f"{case['name']}: loss {case['expected']['loss']:.6f}, finite differences {differences['max_relative_error']:.1e}, "
          f"along a direction {differences['direction_relative_error']:.1e}")


def legacy_config(config, spec):
    """The same settings in the spelling of transformers 4, which has no list of layer types."""
    legacy = dict(config)
    if spec.model_type == "gemma4_text":  # which transformers 4 didn't know
        del legacy["per_layer_config"]
        return {**legacy, **spec.legacy}
    rope = legacy.pop("rope_parameters")
    rope = rope.get("full_attention", rope)  # OLMo 3's sliding layers have the same base and no scaling
    legacy.pop("layer_types", None)
    legacy["torch_dtype"] = legacy.pop("dtype")
    legacy["transformers_version"] = "4.51.3"
    legacy["rope_theta"] = rope.pop("rope_theta")
    rope.pop("partial_rotary_factor", None)
    legacy["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    if spec.model_type == "qwen3_moe":
        legacy["num_experts"] = legacy.pop("num_local_experts")
    return {**legacy, **spec.legacy}


def describe_case(name, model, model_type, objective, variant, hyperparameters, source, versions, finetuning="full"):
    """What case.json says before any number; `model` is its folder's name, `source` what differs by topic."""
    return {
        "format": 1,
        "name": name,
        "set": "project",
        "model": f"models/{model}",
        "model_type": model_type,
        "objective": objective,
        "variant": variant,
        "finetuning": finetuning,
        "dtype": "float64",
        "attn_implementation": "eager",
        "hyperparameters": hyperparameters,
        "source": {
            "loss": "peer-code",
            **source,
            "made_by": "scripts/make_goldens.py",
            "versions": versions,
        },
    }


def make_inputs(batch, vocab_size, generator):
    columns = max(batch.lengths)
    inputs = {
        "input_ids": torch.zeros(len(batch.lengths), columns, dtype=torch.int64),
        "attention_mask": torch.zeros(len(batch.lengths), columns, dtype=torch.int64),
        "position_ids": torch.arange(columns).repeat(len(batch.lengths), 1),
        "labels": torch.full((len(batch.lengths), columns), IGNORED),
    }
    for row, length in enumerate(batch.lengths):
        first = columns - length if batch.padding == "left" else 0
        span = slice(first, first + length)
        tokens = torch.randint(FIRST_TOKEN, vocab_size, (length,), generator=generator)
        inputs["input_ids"][row, span] = tokens
        inputs["attention_mask"][row, span] = 1
        inputs["labels"][row, span] = tokens
        if first > 0:
            inputs["labels"][row, first] = IGNORED  # the column before it, which would predict it, is padding
        if batch.prompts:
            inputs["labels"][row, first : first + batch.prompts[row]] = IGNORED
    return inputs
