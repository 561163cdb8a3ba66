#!/usr/bin/env python3
"""How far from the truth are gradients in bfloat16, Hugging Face's own and ours, by the number of chunks?

    python3 scripts/pages/precision_hf.py [--out results/precision-hf]

The same weights and tokens: transformers' model in float64 (the truth) and in bfloat16 (the yardstick: its sdpa attention, autograd), then
sb.backward() and a model in sb.patch(), both in bfloat16, in 1, 4, 32 and 128 chunks of layers and head. Of each parameter the error
is |gradient - truth| / |truth|, a root mean square over --batches of tokens. Two models: a Qwen3, whose rows are full, and a Qwen2 with the large
biases of keys that published ones have, whose rows are padded, so that torch takes another path through attention. Writes errors.jsonl (a record of
each model and configuration) and precision.md. Exit codes: 0 every parameter within 1.25 x Hugging Face's, 1 one is not, 2 bad usage or input.
"""

import argparse
import copy
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/
from python_environment import ROOT, enter_venv
from files import InputError, Parser, run, write_file
import machine

enter_venv()  # which has what is imported from here on
os.environ.setdefault("STREAMBP_TORCH_LIBRARY", str(ROOT / "build/release/lib/libstreambp_torch.so"))
sys.path.insert(0, str(ROOT / "streambp/python"))
import torch
import transformers

import streambp_bench as sb

LIMIT = 1.25
CHUNKS = (1, 4, 32, 128)
ROUNDING = 2.0**-9  # of a bfloat16: an error below says nothing of how a gradient was summed
SIZES = {"vocab_size": 2048, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "max_position_embeddings": 8192, "tie_word_embeddings": False, "use_cache": False, "attn_implementation": "sdpa"}
MODELS = ("qwen3", "qwen2")


def model_of(name, seed=1):
    """In bfloat16, with the float32 tables of its rotary embedding, as from_pretrained gives them."""
    torch.manual_seed(seed)
    kind, config = ((transformers.Qwen3ForCausalLM, transformers.Qwen3Config(head_dim=64, **SIZES)) if name == "qwen3" else
                    (transformers.Qwen2ForCausalLM, transformers.Qwen2Config(**SIZES)))
    model = kind._from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith("bias"):
                parameter.normal_(0.0, 4.0 if "k_proj" in path else 1.0)
            elif parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.train()


def batch_of(name, tokens, seed):
    """qwen3: one full row. qwen2: two, the second of three quarters as many tokens as the first, padded on its left."""
    generator = torch.Generator().manual_seed(seed)
    if name == "qwen3":
        ids = torch.randint(0, SIZES["vocab_size"], (1, tokens), generator=generator)
        return {"input_ids": ids, "labels": ids}
    columns = tokens * 4 // 7
    ids = torch.randint(0, SIZES["vocab_size"], (2, columns), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, : columns - (tokens - columns)] = 0
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, 1:][mask[:, :-1] == 0] = -100  # nothing real predicts it
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def gradients(model, step):
    model.zero_grad(set_to_none=True)
    step()
    return {name: parameter.grad.double() for name, parameter in model.named_parameters()}


def configurations(model, batch, chunks):
    """(name, its gradients) of Hugging Face and of ours."""
    yield "Hugging Face", gradients(model, lambda: model(**batch).loss.backward())
    rows, columns = batch["input_ids"].shape
    tokens = int(batch["attention_mask"].sum()) if "attention_mask" in batch else rows * columns
    for count in chunks:
        size = -(-tokens // count)
        yield f"backward, {count}", gradients(model, lambda size=size: sb.backward(model, batch, chunk=size, head_chunk=size))
    for count in chunks:
        size = -(-tokens // count)
        sb.patch(model, chunk=size, head_chunk=size)
        yield f"patch, {count}", gradients(model, lambda: model(**batch).loss.backward())
        sb.unpatch(model)


def measure(name, tokens, batches, chunks=CHUNKS):
    """{configuration: {parameter: error}}."""
    model = model_of(name)
    wide = copy.deepcopy(model).double()
    squares = {}
    for seed in range(batches):
        batch = batch_of(name, tokens, seed + 10)
        truth = gradients(wide, lambda: wide(**batch).loss.backward())
        for configuration, found in configurations(model, batch, chunks):
            sums = squares.setdefault(configuration, dict.fromkeys(truth, 0.0))
            for path, gradient in found.items():
                norm = truth[path].norm().item()
                sums[path] += ((gradient - truth[path]).norm().item() / norm) ** 2 / batches if norm > 0.0 else 0.0
    return {configuration: {path: square**0.5 for path, square in sums.items()} for configuration, sums in squares.items()}


def times(errors, configuration):
    """Of each parameter: how many times Hugging Face's own its error is."""
    theirs = errors["Hugging Face"]
    return {path: error / max(theirs[path], ROUNDING) for path, error in errors[configuration].items()}


def worst(errors, configuration):
    """(how many times, parameter); NaN before all numbers."""
    return max(((ratio, path) for path, ratio in times(errors, configuration).items()), key=lambda one: (one[0] != one[0], one[0]))


def mean(numbers):
    numbers = list(numbers)
    return sum(numbers) / len(numbers)


def table(errors):
    lines = ["| | mean error | times Hugging Face's: mean | at the most | in |", "|---|---:|---:|---:|---|"]
    for configuration in errors:
        ratio, path = worst(errors, configuration)
        lines.append(f"| {configuration} | {mean(errors[configuration].values()):.5f} | {mean(times(errors, configuration).values()):.2f} | {ratio:.2f} | `{path.removeprefix('model.')}` |")
    return lines


def report(all_errors, options, made):
    lines = ["# Errors of gradients in bfloat16 next to Hugging Face's own", "",
             f"`{' '.join(made['argv'])}`: models of 2 layers of 256, {options.tokens} tokens, {options.batches} batches over which errors are root mean squares.",
             f"One thread. {machine.made_by([{'environment': made}])[0]}", ""]
    titles = {"qwen3": "Qwen3, one full row", "qwen2": "Qwen2 with biases of keys, padded rows"}
    for name, errors in all_errors.items():
        lines += [f"## {titles[name]}", "", *table(errors), ""]
    return "\n".join(lines)


def main():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "results/precision-hf")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--batches", type=int, default=3)
    options = parser.parse_args()
    if options.tokens < 128 or options.batches < 1:
        raise InputError("--tokens: expected at least 128; --batches: at least 1")
    torch.set_num_threads(1)
    made = machine.environment("torch", "transformers") | {"threads": torch.get_num_threads()}
    all_errors = {name: measure(name, options.tokens, options.batches) for name in MODELS}
    options.out.mkdir(parents=True, exist_ok=True)
    records = [{"schema": 1, "kind": "precision-hf", "model": name, "configuration": configuration, "tokens": options.tokens, "batches": options.batches,
                "errors": {path: float(f"{error:.6g}") for path, error in errors[configuration].items()}, "environment": made}
               for name, errors in all_errors.items() for configuration in errors]
    write_file(options.out / "errors.jsonl", "".join(json.dumps(record, sort_keys=True) + "\n" for record in records))
    text = report(all_errors, options, made)
    write_file(options.out / "precision.md", text)
    print(text, end="")
    return 0 if all(worst(errors, configuration)[0] <= LIMIT for errors in all_errors.values() for configuration in errors) else 1


if __name__ == "__main__":
    run(main)
