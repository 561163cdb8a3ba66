#!/usr/bin/env python3
"""Do all methods train alike? Loss curves of `streambp-bench train` by every method, next to those of standard back-propagation.

    .venv/bin/python scripts/pages/train_parity.py --out results/training

A small Qwen3 learns a page of this project for 300 steps of AdamW, GaLore or Natural GaLore, in full and with LoRA (on a base that has learned one of its sources),
by SFT and DPO. In float64 every method's
losses have to be standard's within 1e-9 at every step. In float32 their greatest difference from standard's has to be below what another
order of the same text makes of standard's own: at each step the range of three data seeds, its median over the steps. Every curve has to
fall. The paper's table 7 reports a gap of at most 0.004 over 500 steps: in so many DPO learns these pairs by heart, its loss of 0.001 amplifies
rounding, and eight rows don't hold (results/training-500).

A run that is finished is not run again (--runs holds them). Writes curves.jsonl (a record of each run, with all losses), training.md and
training.png and .svg. Exit codes: 0 all hold, 1 one does not, 2 bad usage or input.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/
from pictures.style import COLOURS, plt, save  # first: says what to do without matplotlib

from files import InputError, Parser, parse_record, read_text, run, write_file

PROJECT = Path(__file__).resolve().parents[2]
CHUNKS = ["--chunk", "50"]  # of 384 tokens: the last chunk is shorter
METHODS = {
    "standard": [],
    "checkpoint": [],
    "logits-only": [],
    "tiled": CHUNKS,
    "chunk-major": CHUNKS,
    "streambp": [*CHUNKS, "--head-chunk", "37"],
}
VARIANTS = {
    "full": ["--learning-rate", "3e-3"],
    "LoRA 8": ["--lora-rank", "8", "--learning-rate", "2e-3"],
    "GaLore 8": ["--optimizer", "galore", "--galore-rank", "8", "--learning-rate", "1e-2"],
    "Natural GaLore 8": ["--optimizer", "natural-galore", "--galore-rank", "8", "--learning-rate", "1e-2"],
}
OBJECTIVES = ["sft", "dpo"]
TEXT = "verify/goldens/README.md"
TEXT_OF_BASE = "streambp/backprop/head/head.cc"  # what the base of LoRA has learned
SEEDS = [0, 1, 2]  # of the text's order, for the spread of float32
LIMIT = 1e-9  # of float64
FALL = 0.9  # the last 20 losses' mean over the first 20's
PAPER_GAP = 0.004


def jobs():
    """(objective, variant, dtype, method, seed) of every run."""
    for objective in OBJECTIVES:
        for variant in VARIANTS:
            for method in METHODS:
                yield objective, variant, "float64", method, 0
                yield objective, variant, "float32", method, 0
            for seed in SEEDS[1:]:
                yield objective, variant, "float32", "standard", seed


def project_path(path):
    """As records name it, which are of no machine."""
    return str(path.relative_to(PROJECT) if path.is_relative_to(PROJECT) else path)


def call_train(model, text, out, arguments, options):
    command = [project_path(options.program), "train", "--model", model, "--text", text, "--seq-len", "96", "--batch", "4", "--threads", "1"]
    command += ["--warmup-steps", "20", "--schedule", "cosine", "--steps", str(options.steps), "--quiet", "--resume", *arguments]
    command += ["--out", project_path(out)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    if done.returncode != 0:
        raise InputError(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()}")


def train(job, options):
    """The record of a run: what it was, its losses and what made it."""
    objective, variant, dtype, method, seed = job
    model = project_path(options.runs / "base/model") if "LoRA" in variant else "qwen3-tiny"
    out = options.runs / "-".join(str(part).replace(" ", "") for part in job)
    arguments = ["--objective", objective, "--dtype", dtype, "--data-seed", str(seed), "--method", method, *METHODS[method], *VARIANTS[variant]]
    call_train(model, TEXT, out, arguments, options)
    steps = [parse_record(line) for line in read_text(out / "results.jsonl").splitlines()]
    losses = [step["loss"] for step in sorted(steps, key=lambda step: step["step"])]
    if len(losses) != options.steps:
        raise InputError(f"{out / 'results.jsonl'}: {len(losses)} steps, expected {options.steps}")
    names = ["objective", "variant", "dtype", "method", "data_seed"]
    peak = max(step["peak_bytes"] for step in steps)
    return {**dict(zip(names, job)), "losses": losses, "peak_bytes": peak, "environment": steps[-1]["environment"]}


def gap(losses, others, relative):
    return max(abs(a - b) / (abs(b) if relative else 1.0) for a, b in zip(losses, others))


def spread(curves):
    """The median over the steps of the range of several curves."""
    return statistics.median(max(at) - min(at) for at in zip(*curves))


def judge(curves):
    """Rows (objective, variant, method, float64 gap, float32 gap, spread, first, last, holds)."""
    rows = []
    for objective in OBJECTIVES:
        for variant in VARIANTS:
            own = [curves[objective, variant, "float32", "standard", seed] for seed in SEEDS]
            limit = spread(own)
            for method in METHODS:
                wide = curves[objective, variant, "float64", method, 0]
                narrow = curves[objective, variant, "float32", method, 0]
                wide_gap = gap(wide, curves[objective, variant, "float64", "standard", 0], relative=True)
                narrow_gap = gap(narrow, own[0], relative=False)
                first, last = statistics.fmean(wide[:20]), statistics.fmean(wide[-20:])
                # Written so that NaN does not hold.
                holds = wide_gap <= LIMIT and narrow_gap <= limit and last <= FALL * first
                rows.append((objective, variant, method, wide_gap, narrow_gap, limit, first, last, holds))
    return rows


def report(rows, options):
    good = sum(row[-1] for row in rows)
    lines = [
        "# Training by every method",
        "",
        f"`qwen3-tiny` learns {TEXT} for {options.steps} steps, 4 sequences of 96 characters a step, on one thread (LoRA: from a base that has",
        f"learned {TEXT_OF_BASE} as long); made by `scripts/pages/train_parity.py`. float64: the greatest difference from standard's loss at any step, relative;",
        f"limit {LIMIT:g}. float32: the same, absolute; limit: what another order of the text makes of standard's own losses (the median over the",
        f"steps of the range of {len(SEEDS)} data seeds). The paper's table 7 has a gap of at most {PAPER_GAP} over 500 steps of a larger model in bfloat16.",
        "",
        f"{good} of {len(rows)} hold.",
        "",
        "| objective | trained | method | float64 | float32 | float32 limit | loss, first 20 | last 20 | |",
        "|---|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for objective, variant, method, wide, narrow, limit, first, last, holds in rows:
        verdict = "holds" if holds else "FAILS"
        lines.append(f"| {objective} | {variant} | `{method}` | {wide:.1e} | {narrow:.1e} | {limit:.1e} | {first:.4f} | {last:.4f} | {verdict} |")
    return "\n".join(lines) + "\n"


def draw(curves, options):
    figure, axes = plt.subplots(len(OBJECTIVES), len(VARIANTS), figsize=(12, 5.8), sharex=True)
    for i, objective in enumerate(OBJECTIVES):
        for j, variant in enumerate(VARIANTS):
            axis = axes[i][j]
            steps = range(1, options.steps + 1)
            own = [curves[objective, variant, "float32", "standard", seed] for seed in SEEDS]
            low, high = [min(at) for at in zip(*own)], [max(at) for at in zip(*own)]
            axis.fill_between(steps, low, high, color="0.85", label="standard, other orders of the text")
            axis.plot(steps, own[0], color=COLOURS["standard"], linewidth=2.4, label="standard")
            axis.plot(steps, curves[objective, variant, "float32", "streambp", 0], color=COLOURS["streambp"], linewidth=1, label="streambp")
            axis.set_title(f"{objective}, {variant}")
            if i + 1 == len(OBJECTIVES):
                axis.set_xlabel("step")
        axes[i][0].set_ylabel("loss")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="lower center", ncols=3, frameon=False)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    save(figure, options.out / "training")


def main():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/training"), help="folder for curves, table and picture")
    parser.add_argument("--runs", type=Path, default=Path("out/training"), help="folder of the runs, which --resume goes on with")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--program", type=Path, default=Path("build/release/bin/streambp-bench"))
    options = parser.parse_args()
    options.out, options.runs, options.program = (path.resolve() for path in (options.out, options.runs, options.program))
    if options.steps < 20:
        raise InputError(f"--steps {options.steps}: expected at least 20, the first and the last of which are compared")
    if not options.program.is_file():
        raise InputError(f"{options.program}: not there; expected the built streambp-bench, or --program")
    options.out.mkdir(parents=True, exist_ok=True)
    call_train("qwen3-tiny", TEXT_OF_BASE, options.runs / "base", ["--dtype", "float64", "--method", "standard", *VARIANTS["full"]], options)
    records = []
    for number, job in enumerate(list(jobs()), start=1):
        print(f"{number}/{len(list(jobs()))} {' '.join(map(str, job))}", flush=True)
        records.append(train(job, options))
    names = ["objective", "variant", "dtype", "method", "data_seed"]
    curves = {tuple(record[name] for name in names): record["losses"] for record in records}
    rows = judge(curves)
    text = report(rows, options)
    write_file(options.out / "curves.jsonl", "".join(json.dumps(record, sort_keys=True) + "\n" for record in records))
    write_file(options.out / "training.md", text)
    draw(curves, options)
    print(text, end="")
    return 0 if all(row[-1] for row in rows) else 1


if __name__ == "__main__":
    run(main)
