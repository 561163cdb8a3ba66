#!/usr/bin/env python3
"""TRL's and transformers' own trainers, two steps with their defaults, against this project: gradients of sb.backward and of a patched trainer.

    scripts/pages/live_models.py [--only NAME...] [--out results/live-models]

Every recipe of scripts/live/recipes.py (SFT, DPO, KTO, GRPO, RLOO, reward models, ORPO, CPO, transformers' Trainer) on a tiny Qwen3 and a tiny
Qwen3-MoE, some on a Mixtral and a GPT-OSS, full and with adapters, in float64 with the casts of transformers and TRL to float32 lifted. A gradient is the one that the trainer has before clipping,
its error relative to each parameter's largest entry. --only takes recipes by the start of their names.

Writes results.jsonl, a record for each recipe, model, adapter and door, and live-models.md. Exit codes: 0 every row is exact or refused by
name, 1 one is neither, 2 bad usage.
"""

import json
import os
import sys
import traceback
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/
from files import Parser, write_file
from machine import environment, made_by
from python_environment import ROOT, enter_venv

LIMITS = {"float64": 1e-10, "float32": 1e-5}
PAGE = """# Live models

Gradients of TRL's and transformers' own trainers against this project's, over two steps with their defaults (but `bf16`, which is off: [recipes](../recipes/README.md) has it, and
`gradient_checkpointing`, off except where a recipe names it): the worst parameter's largest difference, relative to its largest entry. `patch`: the trainer after
`sb.patch(trainer)`; `backward`: `sb.backward` on the trainer's model and batches
([what each is given](../../streambp/python/streambp_bench/_trainers.py)). Tiny models, float64 throughout, within 1e-10 (checkpointing: float32, 1e-5). {made} Made by
`scripts/pages/live_models.py`.

| recipe | model | adapter | door | error | worst parameter, or why it is refused |
|---|---|---|---|---:|---|
{rows}

{summary}
"""


def row_of(record):
    error = "refused" if record["verdict"] == "refused" else "failed" if record["error"] is None else f"{record['error']:.1e}"
    words = record["parameter"] or record["refusal"] or ""
    return f"| {record['recipe']} | {record['model']} | {record['adapter']} | {record['door']} | {error} | {words.replace('|', ' ')} |"


def all_records(only):
    """Records as they come. A trainer that fails by itself is a record, too."""
    from live.drive import rows_of
    from live.recipes import MODELS, RECIPES

    for recipe in RECIPES:
        if only and not any(recipe.startswith(name) for name in only):
            continue
        for model in (name for name, (_, _, recipes) in MODELS.items() if not recipes or recipe in recipes):
            for adapter in RECIPES[recipe][3]:
                # Layers that Hugging Face runs again run outside of what lifts its casts.
                dtype = "float32" if RECIPES[recipe][2].get("gradient_checkpointing") else "float64"
                try:
                    yield from rows_of(recipe, model, adapter, dtype, LIMITS[dtype])
                except Exception as error:
                    traceback.print_exc()
                    yield {"recipe": recipe, "model": model, "adapter": adapter, "door": "both", "error": None, "parameter": None, "limit": LIMITS[dtype],
                           "refusal": f"{type(error).__name__}: {error}".splitlines()[0], "verdict": "failed"}


def main():
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--out", type=Path, default=ROOT / "results/live-models", metavar="FOLDER")
    options = parser.parse_args()
    enter_venv()
    os.environ.setdefault("STREAMBP_TORCH_LIBRARY", str(ROOT / "build/release/lib/libstreambp_torch.so"))
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    warnings.simplefilter("ignore", FutureWarning)
    sys.path.insert(0, str(ROOT / "streambp/python"))
    import datasets
    import torch
    import transformers

    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    common = {"environment": environment("torch", "transformers", "trl", "peft")}
    records = []
    for record in all_records(options.only):
        print(row_of(record), flush=True)
        records.append(record | common)
    wrong = [record for record in records if record["verdict"] not in ("exact", "refused")]
    exact = sum(record["verdict"] == "exact" for record in records)
    summary = f"{exact} exact within their limits, {len(records) - exact - len(wrong)} refused by name, {len(wrong)} neither."
    print(summary)
    options.out.mkdir(parents=True, exist_ok=True)
    write_file(options.out / "results.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    write_file(options.out / "live-models.md", PAGE.format(made=made_by([common])[0], rows="\n".join(map(row_of, records)), summary=summary))
    return 1 if wrong or not records else 0


if __name__ == "__main__":
    sys.exit(main())
