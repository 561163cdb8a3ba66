#!/usr/bin/env python3
"""The longest sequence of QLoRA by a device's memory, predicted by dry runs, next to what Unsloth published.

    scripts/pages/qlora.py [--out results/qlora]     asks streambp-bench max-length (on the path or in build/release/bin) for each cell
    scripts/pages/qlora.py --out DIR --table         makes the table of DIR/results.jsonl again

Writes results.jsonl, a record for each cell, and qlora.md.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/
from files import Parser, run
from machine import bench_program, environment

ROOT = Path(__file__).resolve().parents[2]
FIXED = ["--model", "llama-3.1-8b", "--method", "streambp", "--lora-rank", "32", "--quantize", "nf4", "--double-quant", "--optimizer", "adamw",
         "--optimizer-bits", "8"]
PLANS = ([], ["--every", "6"], ["--offload", "host"])
# Tokens by gigabytes, "max. context length" of Llama 3.1 (8B) in Unsloth's README.
PUBLISHED = {8: 2972, 12: 21848, 16: 40724, 24: 78475, 40: 153977, 48: 191728, 80: 342733}
PAGE = """# QLoRA: the longest sequence by memory

Llama-3.1-8B, the layers' matrices in NF4 with double quantisation, adapters of rank 32 on all linear maps, bfloat16, a batch of one sequence, states of 8-bit AdamW
counted; predicted by dry runs for the memory of one GPU in decimal gigabytes. 1 GB and 2 % of it are left to the
driver, libraries and fragmentation. What Unsloth published for QLoRA of the same model, rank and batch ([its README](https://github.com/unslothai/unsloth)) is next to it: a straight line in the
memory, and not said what it counts.

| memory | `streambp` | `--every 6` | `--offload host` | host memory | Unsloth's figure |
|---:|---:|---:|---:|---:|---:|
{rows}

`--every 6` keeps every sixth layer input in the device's memory and costs one more forward pass. Made by `scripts/pages/qlora.py`.
"""


def measure(path):
    program = bench_program()
    path.parent.mkdir(parents=True, exist_ok=True)
    made = environment(program=program)
    with path.open("w", encoding="utf-8") as file:
        for gigabytes in PUBLISHED:
            for plan in PLANS:
                done = subprocess.run([program, "max-length", "--budget", f"{gigabytes}GB", *FIXED, *plan, "--json"], check=True,
                                      stdout=subprocess.PIPE, text=True)
                file.write(json.dumps(json.loads(done.stdout) | {"environment": made}) + "\n")


def table(path):
    cells = {}
    for record in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        settings = record["settings"]
        plan = 1 if settings["every"] == 6 else 2 if settings["offload"] == "host" else 0
        cells[record["budget_bytes"] // 10**9, plan] = record
    rows = []
    for gigabytes, published in PUBLISHED.items():
        lengths = " | ".join(f"{cells[gigabytes, plan]['seq_len']:,}" for plan in range(len(PLANS)))
        rows.append(f"| {gigabytes} GB | {lengths} | {cells[gigabytes, 2]['host_peak_bytes'] / 1e9:.0f} GB | {published:,} |")
    (path.parent / "qlora.md").write_text(PAGE.format(rows="\n".join(rows)), encoding="utf-8")


def main():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "results/qlora", help="folder of records and table (default: results/qlora)")
    parser.add_argument("--table", action="store_true", help="only the table, of the records that are there")
    options = parser.parse_args()
    records = options.out / "results.jsonl"
    if not options.table:
        measure(records)
    table(records)


if __name__ == "__main__":
    run(main)
