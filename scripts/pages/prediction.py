#!/usr/bin/env python3
"""Holds the dry run against measurement: the same sweeps on the meta device and on the CPU, their peaks side by side.

Writes results.jsonl (both kinds of records), table.md and table.csv into --out. The exit code is 1 where a prediction is
off by more than --limit of the measured peak.

    scripts/pages/prediction.py --out results/prediction
"""
import argparse
import csv
import io
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))  # scripts/
from files import Parser, run, write_file
from machine import git

ROOT = pathlib.Path(__file__).resolve().parents[2]
BENCH = "build/release/bin/streambp-bench"  # from the root: records keep the command line
FOLDER = pathlib.Path("out/prediction", git("rev-parse", "--short=12", "HEAD"))  # another commit's records are no part of these
METHODS = "standard,checkpoint,streambp"
# Families x methods x lengths x chunks; then objectives, adapters, what streambp keeps, dtypes.
SWEEPS = [
    ["--model", model, "--method", METHODS, "--seq-len", "512,1536", "--chunk", "256"]
    for model in ("qwen3-cpu", "qwen2-cpu", "llama-cpu", "gemma3-cpu", "mistral-cpu", "qwen3-moe-cpu")
] + [
    ["--model", "qwen3-cpu", "--method", "checkpoint,streambp", "--objective", "sft,simpo,orpo,kto,grpo,ppo",
     "--seq-len", "1024", "--chunk", "200"],
    ["--model", "qwen3-cpu", "--method", METHODS, "--lora-rank", "16", "--objective", "sft,dpo", "--seq-len", "1024",
     "--chunk", "256"],
    ["--model", "llama-cpu", "--method", "streambp", "--seq-len", "2048", "--chunk", "128,512", "--keep-attention"],
    ["--model", "llama-cpu", "--method", "streambp", "--seq-len", "2048", "--chunk", "128,512", "--every", "2"],
    ["--model", "llama-cpu", "--method", "streambp", "--seq-len", "2048", "--chunk", "128,512", "--keep-attention",
     "--every", "4", "--offload", "host"],
    ["--model", "llama-cpu", "--method", "streambp", "--seq-len", "2048", "--chunk", "128,512", "--keep",
     "attention,queries,keys-values,attention-half,gate-up"],
    ["--model", "gemma3-cpu", "--method", "streambp", "--seq-len", "2048", "--chunk", "128,512", "--keep",
     "attention:3,keys-values,gate-up:4", "--offload", "host:5"],
    ["--model", "qwen3-moe-cpu", "--method", "streambp", "--seq-len", "2048", "--chunk", "512", "--keep",
     "attention,keys-values,attention-half"],
    ["--model", "llama-cpu", "--method", "streambp", "--seq-len", "2048", "--chunk", "512", "--fuse-optimizer", "adamw"],
    ["--model", "qwen3-cpu", "--method", "streambp", "--seq-len", "1024", "--batch", "3", "--chunk", "256",
     "--dtype", "float64"],
]
COLUMNS = ["model", "objective", "method", "settings", "tokens", "dtype", "predicted MB", "measured MB", "off by %",
           "scopes off by bytes"]


def sweep(arguments, device):
    """The records of one sweep, in its order."""
    command = [BENCH, "sweep", *arguments, "--device", device, "--repeats", "1", "--warmup", "0", "--json", "--quiet",
               "--out", FOLDER / device, "--resume"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def settings_text(record):
    settings = record["settings"]
    words = [f"chunk {record['chunk']}"] if record["chunk"] else []
    if settings["keep_attention"]:
        words.append("attention kept")
    if "keep" in settings:
        words.append(f"kept {settings['keep']}")
    if (settings["every"] or 1) > 1:
        words.append(f"every {settings['every']}")
    if (settings["offload"] or "none") != "none":
        words.append(f"on the {settings['offload']}")
    if settings["fused_optimizer"]:
        words.append(f"fused {settings['fused_optimizer']['name']}")
    if settings["lora"]:
        words.append(f"LoRA {settings['lora']['r']}")
    if record["batch"] > 1:
        words.append(f"batch {record['batch']}")
    return ", ".join(words)


def scopes_off(predicted, measured):
    """Bytes by which scopes differ: what a CPU pass need not copy or a mixture's routers decide."""
    theirs, ours = measured["breakdown_at_peak"], predicted["breakdown_at_peak"]
    off = {scope: ours.get(scope, 0) - theirs.get(scope, 0) for scope in sorted({*ours, *theirs})}
    return {scope: bytes_off for scope, bytes_off in off.items() if bytes_off != 0}


def row(predicted, measured):
    off = predicted["peak_bytes"] / measured["peak_bytes"] - 1.0
    scopes = ", ".join(f"{scope} {bytes_off:+d}" for scope, bytes_off in scopes_off(predicted, measured).items())
    return [predicted["model"], predicted["objective"], predicted["method"], settings_text(predicted), predicted["tokens"],
            predicted["dtype"], f"{predicted['peak_bytes'] / 1e6:.3f}", f"{measured['peak_bytes'] / 1e6:.3f}",
            f"{100 * off:+.3f}", scopes], abs(off)


def main():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "results/prediction")
    parser.add_argument("--limit", type=float, default=0.01, help="largest share of the measured peak (default: 0.01)")
    options = parser.parse_args()
    if not (ROOT / BENCH).exists():
        sys.exit(f"{BENCH} is missing: build first (cmake --build --preset release)")

    records, rows, worst = [], [], 0.0
    for number, arguments in enumerate(SWEEPS, 1):
        if sys.stderr.isatty():
            print(f"\r{number}/{len(SWEEPS)} {' '.join(arguments)[:100]:100}", end="", file=sys.stderr)
        pairs = list(zip(sweep(arguments, "meta"), sweep(arguments, "cpu"), strict=True))
        for predicted, measured in pairs:
            cells, off = row(predicted, measured)
            rows.append(cells)
            worst = max(worst, off)
            records += [predicted, measured]
    if sys.stderr.isatty():
        print(file=sys.stderr)

    options.out.mkdir(parents=True, exist_ok=True)
    write_file(options.out / "results.jsonl", "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records))
    lines = io.StringIO(newline="")
    csv.writer(lines).writerows([COLUMNS, *rows])
    write_file(options.out / "table.csv", lines.getvalue())
    environment = records[1]["environment"]
    counts = {}
    for predicted, measured in zip(records[::2], records[1::2], strict=True):
        for scope in {*predicted["breakdown_at_peak"], *measured["breakdown_at_peak"]}:
            equal, all_of = counts.get(scope, (0, 0))
            counts[scope] = (equal + (scope not in scopes_off(predicted, measured)), all_of + 1)
    exact = ", ".join(f"{scope} {equal} of {of}" for scope, (equal, of) in sorted(counts.items()))
    summary = (f"{len(rows)} pairs of records, worst prediction {100 * worst:.3f} % off the measured peak (limit "
               f"{100 * options.limit:g} %). Scopes at the peak that are equal to the byte: {exact}. Where batch, other and "
               "logits differ it is by token ids, indices and values: the CPU lends them where a device gets a copy.")
    table = ["# Predicted and measured peaks", "",
             "The same sweeps on the meta device and on the CPU (`scripts/pages/prediction.py`), weights and gradients included.",
             f"{environment['cpu']}, commit {environment['commit']}.", "", summary, "",
             "| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    table += ["| " + " | ".join(str(cell) for cell in cells) + " |" for cells in rows]
    write_file(options.out / "table.md", "\n".join(table) + "\n")
    print(summary)
    return 0 if worst <= options.limit else 1


if __name__ == "__main__":
    run(main)
