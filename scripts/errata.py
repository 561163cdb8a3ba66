#!/usr/bin/env python3
"""What published training code for the same job computes, and what `streambp-verify compare` says of it: makes verify/ERRATA.md.

    python3 scripts/errata.py --out out/errata
    python3 scripts/errata.py --out out/errata --page verify/ERRATA.md

Each line is one mistake as it stands in published code, made again in a few lines on a small random Qwen3 in float32: the loss whose gradients
that code leaves, its gradients in a safetensors file, and the verdict on them. Layers are transformers' own, so that nothing but the named
mistake differs; a line without a mistake is judged as well and has to be `exact`. Exit codes: 0 every verdict is the expected one, 1 one is
not, 2 bad usage or input.
"""

import argparse
import json
import subprocess
from pathlib import Path

from python_environment import ROOT, InputError, enter_venv
from compare.runners import VERIFY
from compare.verdict_models import write_model
from files import Parser, run, write_file

LENGTHS = (96, 61)  # of two rows
CHUNK = 20  # positions of a chunk of the head
SURE_TOKENS = """\
Not a mistake of the loss, but of its arithmetic: in float32 the losses of transformers, torch and TRL lose the gradients of tokens that a model is sure of, where the
target leads by 12 nats and more ([measured](../results/confident-tokens/confident-tokens.md)).
"""


def rows(torch, how):
    """input_ids, attention_mask and labels of one case."""
    torch.manual_seed(3)
    lengths = LENGTHS[:1] if how == "one row" else LENGTHS
    columns = max(lengths)
    ids = torch.randint(3, 509, (len(lengths), columns))
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        mask[row, :length] = 1
    labels = ids.masked_fill(mask == 0, -100)
    if how == "prompts":
        labels[:, :30] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def summed(torch, logits, labels):
    """The cross entropies of every position but the last, whose labels are the next tokens'."""
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="sum")


def count(labels):
    return int((labels[:, 1:] != -100).sum())


def correct(torch, model, batch):
    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return summed(torch, logits, batch["labels"]) / count(batch["labels"])


def chunk_counts(torch, model, batch):
    """Ledzy/StreamBP, src/streambp/stream_model.py, StreamModel.forward at 3b56c16 (2025)."""
    logits, labels = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits, batch["labels"]
    columns, loss = labels.shape[1], 0.0
    for begin in range(0, columns, CHUNK):
        end = min(begin + CHUNK + 1, columns)
        counted = int((labels[:, begin:end] != -100).sum()) - len(labels)
        if counted > 0:
            loss = loss + summed(torch, logits[:, begin:end], labels[:, begin:end]) / count(labels[:, begin:end]) * counted
    return loss / int((labels != -100).sum())


def mean_of_means(torch, model, batch):
    """transformers before 4.46 and trainers like it, gradient accumulation: the mean over micro-batches of their own means."""
    losses = []
    for row in range(len(batch["labels"])):
        losses.append(correct(torch, model, {name: tensor[row : row + 1] for name, tensor in batch.items()}))
    return sum(losses) / len(losses)


# (what, where it stands, rows, loss, the verdict expected)
LINES = [
    ("nothing: the mean over all labels", "transformers 5.23.0", "prompts", correct, "exact"),
    ("divides by the labels of all positions, the first among them, which nothing predicts: (T - 1) / T", "Ledzy/StreamBP 3b56c16, "
     "`StreamModel.forward`, one row without padding", "one row", chunk_counts, "scaled"),
    ("counts a chunk's labels as all of its labels less one for each row, whether or not the row's first is scored", "the same, padded rows",
     "padded", chunk_counts, "wrong"),
    ("the same; chunks of the head with no more labels than rows are left out", "the same, prompts without labels", "prompts", chunk_counts,
     "wrong"),
    ("mean of the micro-batches' own means, whatever number of labels each has", "transformers before 4.46 (transformers#34191), gradient "
     "accumulation over uneven rows", "prompts", mean_of_means, "wrong"),
]


def judge(model_folder, tokens, gradients):
    command = [str(VERIFY), "compare", "--model", str(model_folder), "--tokens", str(tokens), "--gradients", str(gradients), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise InputError(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()}")
    return next(record for record in map(json.loads, done.stdout.splitlines()) if "verdict" in record)


def page(results):
    lines = [
        "# What published code computes",
        "",
        "Mistakes in published training code for the same job, each made again in a few lines on a small random Qwen3 in float32 (rows of 96 and 61",
        f"tokens, chunks of the head of {CHUNK} positions) and judged by `streambp-verify compare`. Stated of the named version alone; later ones may differ. The",
        "published kernels and layers are not at issue: layers are transformers' own here. Made, with the gradients that are judged, by",
        "`python3 scripts/errata.py --out out/errata --page verify/ERRATA.md`; one line again:",
        "`streambp-verify compare --model out/errata/model --tokens out/errata/1-tokens.safetensors --gradients out/errata/1-gradients.safetensors`.",
        "",
        "| | what it does | where | verdict | factor | worst parameter off by |",
        "|---:|---|---|---|---:|---:|",
    ]
    for number, (what, where, _, _, _), result in results:
        factor = f"{result['factor']:.6f}" if result["verdict"] == "scaled" else ""
        lines.append(f"| {number} | {what} | {where} | `{result['verdict']}` | {factor} | {result['worst_error']:.1e} |")
    lines += ["", *SURE_TOKENS.splitlines()]
    return "\n".join(lines) + "\n"


def main():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/errata"), help="folder for the model, batches, gradients and errata.jsonl")
    parser.add_argument("--page", type=Path, help="file for the table")
    options = parser.parse_args()
    if not VERIFY.is_file():
        raise InputError(f"{VERIFY}: not there; expected the built streambp-verify")
    import torch
    import transformers
    from safetensors.torch import save_file

    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    folder = options.out / "model"
    if not (folder / "config.json").exists():
        write_model(folder, "qwen3", transformers, torch)
    results = []
    for number, line in enumerate(LINES):
        _, where, how, loss, expected = line
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        batch = rows(torch, how)
        loss(torch, model, batch).backward()
        tokens, gradients = options.out / f"{number}-tokens.safetensors", options.out / f"{number}-gradients.safetensors"
        save_file(batch, tokens)
        save_file({name: parameter.grad for name, parameter in model.named_parameters()}, gradients)
        result = judge(folder, tokens, gradients)
        results.append((number, line, result))
        print(f"{number} {where}: {result['verdict']}, expected {expected}", flush=True)
    write_file(options.out / "errata.jsonl", "".join(json.dumps(result, sort_keys=True) + "\n" for _, _, result in results))
    if options.page:
        write_file(options.page, page(results))
    return 0 if all(result["verdict"] == line[-1] for _, line, result in results) else 1


if __name__ == "__main__":
    enter_venv()
    run(main)
