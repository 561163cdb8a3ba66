#!/usr/bin/env python3
"""What `streambp-verify compare` says of correct gradients of Hugging Face, and of the same gradients with a planted factor.

    python3 scripts/pages/compare_verdicts.py --out results/compare-verdicts
    python3 scripts/pages/compare_verdicts.py --models qwen3,gemma3 --seq-len 40,2048

For every small model of compare/verdict_models.py and every length: transformers' gradients in float32 and bfloat16 (the whole model in
that dtype) with eager and sdpa attention, and by autocast to bfloat16 over float32 weights; each has to be `exact`, or `undecided` where
tokens near a tie between experts or autocast leave it open, and never `wrong` or `scaled`. Tokens follow Zipf's law, so that frequent ones
come hundreds of times. Then the eager gradients of the first length times (N-1)/N and 1/k have to be `scaled` with the factor in the stated interval: in
float32 for N to 100,000, in bfloat16 for factors of 0.95 and less.

Writes results.jsonl and verdicts.md into --out; exit code 1 if any verdict is not among those expected.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/
from machine import environment
from python_environment import ROOT, VERSIONS, InputError, enter_venv
from compare.runners import VERIFY
from compare.verdict_models import MODELS, ONLY_EAGER, write_model
from files import Parser, open_standard_descriptors, write_file

RECIPES = ["float32 eager", "float32 sdpa", "bfloat16 eager", "bfloat16 sdpa", "autocast sdpa"]
FACTORS = {"float32": [99999 / 100000, 999 / 1000, 1 / 2, 1 / 64, -1.0], "bfloat16": [19 / 20, 3 / 4, 1 / 8]}


def parse_options():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="by commas (default: all)")
    parser.add_argument("--seq-len", default="40,640,2048", help="lengths, by commas; factors are planted at the first (default: %(default)s)")
    parser.add_argument("--recipes", default=",".join(RECIPES), help="by commas (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "out/compare-verdicts")
    options = parser.parse_args()
    options.models = options.models.split(",")
    options.recipes = options.recipes.split(",")
    options.lengths = [int(word) for word in options.seq_len.split(",")]
    unknown = [name for name in options.models if name not in MODELS] + [name for name in options.recipes if name not in RECIPES]
    if unknown:
        raise InputError(f"{unknown[0]}: expected some of {', '.join(MODELS)}; {', '.join(RECIPES)}")
    return options


def write_tokens(path, length, vocabulary, torch, save_file):
    """Two rows up to 640 tokens, one beyond, of tokens by Zipf's law; the first fifth of each is a prompt, without labels."""
    torch.manual_seed(length)
    weights = 1.0 / torch.arange(1, vocabulary - 2, dtype=torch.float64)
    tokens = 3 + torch.multinomial(weights, (2 if length <= 640 else 1) * length, replacement=True).reshape(-1, length)
    labels = tokens.clone()
    labels[:, : length // 5] = -100
    save_file({"input_ids": tokens, "labels": labels}, path)
    return tokens, labels


class HuggingFace:
    """transformers' own loss and its gradients, under the names its parameters have."""

    def __init__(self, torch, transformers):
        self.torch, self.transformers = torch, transformers

    def gradients(self, folder, recipe, tokens, labels):
        dtype, attention = recipe.split()
        stored = self.torch.float32 if dtype == "autocast" else getattr(self.torch, dtype)
        model = self.transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=stored, attn_implementation=attention)
        model.train()
        with self.torch.autocast("cpu", self.torch.bfloat16, enabled=dtype == "autocast"):
            loss = model(input_ids=tokens, labels=labels, use_cache=False).loss
        loss.backward()
        return {name: p.grad.contiguous() for name, p in model.named_parameters() if p.grad is not None}


def compare(model, tokens, gradients, options):
    command = [VERIFY, "compare", "--model", model, "--tokens", tokens, "--gradients", gradients, "--threads", str(options.threads), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": str(options.threads)})
    if not done.stdout.strip():
        raise InputError(f"{Path(gradients).name}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def record_of(line, **settings):
    """What of a comparison says how near to another verdict it was."""
    nearest = max(line["parameters"], key=lambda p: (p["residual"] if line["factor_differs"] else p["error"]) / p["limit"])
    figures = ("verdict", "compute_dtype", "worst_error", "factor", "factor_low", "factor_high", "noise_runs", "median_ratio", "median_limit")
    return {**settings, **{name: line[name] for name in figures}, "ratio": nearest["ratio"], "at": nearest["name"],
            "near_ties": line.get("near_ties", {}).get("near", 0), "hints": line["hints"]}


def expected_of(recipe, record):
    if record["planted"] is not None:
        return ("scaled",)
    may_be_open = recipe.startswith("autocast") or record["near_ties"]
    return ("exact", "undecided") if may_be_open else ("exact",)


def run(options, torch, transformers, save_file):
    side = HuggingFace(torch, transformers)
    for name in options.models:
        with tempfile.TemporaryDirectory() as root:
            folder = Path(root) / "model"
            write_model(folder, name, transformers, torch)
            for length in options.lengths:
                tokens_file, gradients_file = Path(root) / "tokens.safetensors", Path(root) / "gradients.safetensors"
                tokens, labels = write_tokens(tokens_file, length, MODELS[name][1]["vocab_size"], torch, save_file)
                for recipe in options.recipes:
                    if name in ONLY_EAGER and recipe.endswith("sdpa"):
                        recipe = recipe.replace("sdpa", "eager")
                        if recipe in options.recipes:
                            continue
                    gradients = side.gradients(folder, recipe, tokens, labels)
                    plants = recipe.endswith("eager") and length == options.lengths[0]
                    factors = FACTORS.get(recipe.split()[0], []) if plants else []
                    for factor in [None, *factors]:
                        planted = gradients if factor is None else {key: value * factor for key, value in gradients.items()}
                        save_file(planted, gradients_file)
                        line = compare(folder, tokens_file, gradients_file, options)
                        record = record_of(line, model=name, seq_len=length, recipe=recipe, planted=factor)
                        record["expected"] = record["verdict"] in expected_of(recipe, record)
                        if factor is not None:
                            record["expected"] &= record["factor_low"] <= factor <= record["factor_high"]
                        yield record


def table(records):
    lines = ["| model | tokens | gradients | verdict | worst error | median x noise (limit) | worst x noise (limit 3) | factor - 1 (interval) | runs | near ties |",
             "|---|---:|---|---|---:|---:|---:|---:|---:|---:|"]
    for r in records:
        if r["planted"] is None:
            low, high = r["factor_low"] - 1, r["factor_high"] - 1
            lines.append(f"| {r['model']} | {r['seq_len']} | {r['recipe']} | {r['verdict']} | {r['worst_error']:.1e} | {r['median_ratio']:.2f} "
                         f"({r['median_limit']:.2f}) | {r['ratio']:.2f} | {r['factor'] - 1:+.1e} ({low:+.1e} to {high:+.1e}) | {r['noise_runs']} | "
                         f"{r['near_ties'] or ''} |")
    return lines


def planted_table(records):
    """A row for each planted factor: how many were called scaled with the factor in the interval."""
    lines = ["| gradients | planted factor | scaled, factor in the interval | widest interval, relative |", "|---|---:|---:|---:|"]
    keys = dict.fromkeys((r["recipe"], r["planted"]) for r in records if r["planted"] is not None)
    for recipe, factor in keys:
        of_factor = [r for r in records if r["recipe"] == recipe and r["planted"] == factor]
        width = max((r["factor_high"] - r["factor_low"]) / abs(factor) for r in of_factor)
        lines.append(f"| {recipe} | {factor:.8g} | {sum(r['expected'] for r in of_factor)} of {len(of_factor)} | {width:.1e} |")
    return lines


def write_summary(folder, records):
    """verdicts.md; returns the records whose verdict was not expected."""
    wrong = [record for record in records if not record["expected"]]
    text = [
        "# Verdicts of `streambp-verify compare` on gradients of Hugging Face",
        "",
        f"`scripts/pages/compare_verdicts.py`: transformers {VERSIONS['transformers']}, torch {VERSIONS['torch']}; small models with random weights "
        f"(`scripts/compare/verdict_models.py`). {len(records)} comparisons, {len(wrong)} with a verdict that is not among those expected.",
        "",
        "## Correct gradients",
        "",
        *table(records),
        "",
        "## The same gradients times a factor",
        "",
        *planted_table(records),
        "",
    ]
    write_file(folder / "verdicts.md", "\n".join(text))
    return wrong


def main():
    options = parse_options()
    enter_venv()
    if not VERIFY.exists():
        raise InputError(f"{VERIFY.relative_to(ROOT)} is missing: build first (cmake --build --preset release)")
    import torch
    import transformers
    from safetensors.torch import save_file

    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    options.out.mkdir(parents=True, exist_ok=True)
    records = []
    made = environment("torch", "transformers", program=VERIFY)
    with open(options.out / "results.jsonl", "w", encoding="utf-8") as file:
        for record in run(options, torch, transformers, save_file):
            records.append(record | {"environment": made})
            file.write(json.dumps(records[-1]) + "\n")
            file.flush()
            mark = "" if record["expected"] else "   NOT EXPECTED"
            planted = "" if record["planted"] is None else f" x {record['planted']:.6g}"
            print(f"{record['model']:11} {record['seq_len']:5} {record['recipe']}{planted}: {record['verdict']}{mark}", flush=True)
    wrong = write_summary(options.out, records)
    print(f"{len(records)} comparisons, {len(wrong)} not expected; records and tables: {options.out}")
    return 1 if wrong else 0


if __name__ == "__main__":
    open_standard_descriptors()
    try:
        sys.exit(main())
    except InputError as error:
        sys.exit(f"compare_verdicts: {error}")
