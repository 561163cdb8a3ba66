#!/usr/bin/env python3
"""What PEFT's LoraConfig has and means, for verify/tests/streambp/model/lora/lora_config_test.cc: its keys, and what it adapts of tiny models.

    python verify/goldens/make/peft_table.py --goldens verify/goldens --out verify/tests/streambp/model/peft/lora.json

Needs torch, transformers and PEFT. A later version of PEFT that has other keys, or matches modules otherwise, shows
as a difference of the file, and the test says what is not known here.
"""

import argparse
import json
import warnings
from pathlib import Path

import peft
import torch
import transformers
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.utils import get_peft_model_state_dict

# Settings that differ in what they match, by model: LoraConfig's own arguments.
QUESTIONS = [
    ("qwen3", {"target_modules": "all-linear"}),
    ("phi3", {"target_modules": "all-linear", "rank_pattern": {"qkv_proj": 5}}),
    ("qwen3-moe", {"target_modules": "all-linear"}),
    (
        "qwen3-moe",
        {"target_modules": "all-linear", "use_rslora": True, "rank_pattern": {"down_proj": 3, "experts.*": 7}},
    ),
    ("qwen3-moe", {"target_modules": ["v_proj"], "target_parameters": ["experts.down_proj"]}),
    ("qwen3-moe", {"target_modules": ["q_proj"], "target_parameters": ["gate.weight"]}),
    ("qwen3", {"target_modules": ["proj"]}),
    ("qwen3", {"target_modules": ["nonesuch", "k_proj"]}),
    ("qwen3", {"target_modules": ["model.layers.0.mlp.up_proj", "1.mlp.up_proj"]}),
    ("qwen3", {"target_modules": ["q_proj", "lm_head"], "layers_to_transform": [1]}),
    (
        "qwen3",
        {
            "target_modules": ["q_proj", "model.layers.0.mlp.up_proj"],
            "layers_to_transform": 1,
            "layers_pattern": "layers",
        },
    ),
    ("qwen3", {"target_modules": ["q_proj"], "layers_to_transform": [0, 1], "layers_pattern": ["h", "layers"]}),
    ("qwen3", {"target_modules": ["q_proj"], "layers_to_transform": [0], "layers_pattern": "h"}),
    ("qwen3", {"target_modules": ["q_proj", "v_proj"], "layers_to_transform": []}),
    ("qwen3", {"target_modules": r".*q_proj"}),
    ("qwen3", {"target_modules": r".*self_attn\.(?!q)[a-z]_proj|lm_head"}),
    ("qwen3", {"target_modules": r"layers.*q_proj"}),
    ("qwen3", {"target_modules": r"model\.layers\.\d+\.mlp\.\w{2,4}_proj"}),
    ("qwen3", {"target_modules": r".*self_attn.*"}),
    ("qwen3", {"target_modules": ["q_proj", "v_proj"], "exclude_modules": ["layers.0.self_attn.v_proj", "proj"]}),
    ("qwen3", {"target_modules": "all-linear", "exclude_modules": r".*(mlp|layers\.1)\..*"}),
    ("qwen3", {"target_modules": ["q_proj"], "exclude_modules": ["q_proj"]}),
    ("qwen3", {"target_modules": ["q_proj", "gate_proj"], "modules_to_save": ["layers.1.mlp"]}),
    ("qwen3", {"target_modules": ["q_proj"], "modules_to_save": ["norm"]}),
    ("qwen3", {"target_modules": ["q_proj"], "modules_to_save": ["nonesuch", "head"]}),
    ("llama-tied", {"target_modules": ["q_proj", "lm_head"], "rank_pattern": {"head": 4, "lm_head": 5}}),
    ("llama-tied", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens"]}),
    ("llama-tied", {"target_modules": ["q_proj"], "trainable_token_indices": [3, 1]}),
    ("llama-tied", {"target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": [3], "lm_head": [3]}}),
    ("qwen3", {"target_modules": ["embed_tokens"], "trainable_token_indices": {"lm_head": [9, 8]}}),
    ("qwen3", {"target_modules": ["q_proj", "k_proj"], "rank_pattern": {"q_proj": 3, "layers.0.self_attn.q_proj": 4}}),
    ("qwen3", {"target_modules": ["q_proj", "k_proj"], "rank_pattern": {"layers.0.self_attn.q_proj": 4, "q_proj": 3}}),
    ("qwen3", {"target_modules": ["q_proj", "up_proj"], "alpha_pattern": {r"^model.layers.1.*": 3, "up_proj|q_proj": 1.5}}),
    ("qwen3", {"target_modules": ["q_proj"], "alpha_pattern": {"proj": 3, "_proj": 4, ".*_proj": 5}, "use_rslora": True}),
    ("qwen2", {"target_modules": ["q_proj", "o_proj"], "bias": "all"}),
    ("qwen2", {"target_modules": ["q_proj", "o_proj"], "bias": "lora_only", "lora_bias": True}),
    ("gpt-oss", {"target_modules": "all-linear"}),
    ("gpt-oss", {"target_modules": ["q_proj"], "target_parameters": ["experts.gate_up_proj", "mlp.experts.down_proj"]}),
    ("gpt-oss", {"target_modules": ["q_proj"], "target_parameters": ["experts.gate_up_proj"], "rank_pattern": {"experts.*": 5}}),
    ("gpt-oss", {"target_modules": ["v_proj"], "target_parameters": ["router.weight"], "bias": "lora_only"}),
    ("gpt-oss", {"target_modules": ["v_proj"], "target_parameters": ["experts.down_proj"], "bias": "all"}),
    ("gpt-oss", {"target_modules": ["o_proj"], "modules_to_save": ["router"]}),
    ("gpt-oss", {"target_modules": ["router"]}),
    ("gpt-oss", {"target_modules": ["q_proj", "down_proj"]}),
    ("gpt-oss", {"target_modules": r".*self_attn.*"}),
]


def answer(folder, settings):
    """Shapes of the trainable tensors by their names in the file, and scales by module; None where PEFT refuses."""
    config = transformers.AutoConfig.from_pretrained(folder)
    base = transformers.AutoModelForCausalLM.from_config(config)
    try:
        model = get_peft_model(base, LoraConfig(**{"r": 2, "lora_alpha": 6, **settings}))
    except (ValueError, peft.tuners.tuners_utils.NoMatchingPeftModuleError):
        return None
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    tensors = get_peft_model_state_dict(model, state_dict=trained, save_embedding_layers=False)
    scales = {}
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            key = name.removeprefix("base_model.model.")
            scales[key] = module.scaling["default"]
    shapes = {name: list(tensors[name].shape) for name in sorted(tensors)}
    return {"tensors": shapes, "scales": dict(sorted(scales.items()))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--goldens", type=Path, required=True, metavar="DIR", help="whose models are asked about")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    keys = sorted(LoraConfig(target_modules=["q_proj"]).to_dict())
    questions = []
    for model, settings in QUESTIONS:
        given = json.loads(json.dumps(settings))  # PEFT changes what it is given
        adapted = answer(arguments.goldens / "models" / model, settings)
        questions.append({"model": model, "settings": given, "answer": adapted})
    lines = ",\n  ".join(json.dumps(question, separators=(",", ":")) for question in questions)
    arguments.out.write_text(
        f'{{"peft": "{peft.__version__}",\n "keys": {json.dumps(keys)},\n "questions": [\n  {lines}\n ]}}\n'
    )


if __name__ == "__main__":
    main()
