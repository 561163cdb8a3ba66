#!/usr/bin/env python3
"""Time and memory of a step of Hugging Face's own model under its checkpointing in all variants, and by the package's lanes.

    python3 scripts/step_times.py [--seq-len 4096,8192] [--repeats 5] [--methods NAME,...] [--out out/step-times] [--resume]

Measured as compare_hf.py does: qwen3-cpu, float32, two threads, in turns, every second round backwards. Ratios are taken round by round, to the
fastest of Hugging Face's at that length. Writes results.jsonl (a record for each measurement, with machine, commit, versions and command) and
README.md.
"""

import statistics
import sys
import tempfile
from pathlib import Path

import compare_hf
from compare.runners import HF_METHODS
from files import parse_record, read_text, run, write_file
from machine import made_by
from python_environment import ROOT, enter_venv

METHODS = {
    "hf-checkpoint": "checkpointing", "hf-checkpoint+torch-head": "checkpointing, torch's chunked head", "hf-checkpoint+fused-head": "checkpointing, TRL's head",
    "hf-checkpoint+every=2": "checkpointing of every second layer", "hf-checkpoint+every=2+torch-head": "checkpointing of every second layer, torch's chunked head",
    "hf-checkpoint+every=2+fused-head": "checkpointing of every second layer, TRL's head", "hf-checkpoint+selective": "selective checkpointing",
    "hf-checkpoint+selective+torch-head": "selective checkpointing, torch's chunked head",
    "python-module": "patch(lane=\"module\")",
    "python-patch": "patch(lane=\"engine\", idle_memory=False)", "python": "backward(idle_memory=False)",
    "python-patch+idle": "patch(lane=\"engine\")", "python+idle": "backward()",
    "python+small+idle": "backward(chunk=256, head_chunk=128, idle_memory=35,000 bytes a token)", "python+small+every=2": "backward(chunk=128, head_chunk=64, every=2)",
}
DEFAULTS = ["--seq-len", "4096,8192", "--threads", "2", "--repeats", "5", "--no-gradients", "--methods", ",".join(METHODS), "--out",
            str(ROOT / "out/step-times")]


def interval(numbers):
    """Median and range."""
    return f"{statistics.median(numbers):.2f} ({min(numbers):.2f} to {max(numbers):.2f})"


def table(records, methods):
    """The rows of one length."""
    rounds = {method: {each["repeat"]: each for each in records if each["method"] == method and each["status"] == "ok"} for method in methods}
    rounds = {method: found for method, found in rounds.items() if found}
    median = {method: statistics.median(each["seconds"] for each in found.values()) for method, found in rounds.items()}
    memory = {method: max(each["peak_beyond_resident_bytes"] for each in found.values()) for method, found in rounds.items()}
    fastest = min((method for method in rounds if method.split("+")[0] in HF_METHODS), key=median.get, default=None)
    lines = ["| method | seconds | processor seconds | x the fastest of Hugging Face's | MB beyond | x the engine's lane |", "| --- | --- | --- | --- | --- | --- |"]
    for method, found in rounds.items():
        ratios = [each["seconds"] / rounds[fastest][i]["seconds"] for i, each in found.items() if i in rounds[fastest]] if fastest else []
        lines.append(f"| {METHODS.get(method, method)} | {interval([each['seconds'] for each in found.values()])} "
                     f"| {statistics.median(each['cpu_seconds'] for each in found.values()):.2f} | {interval(ratios) if ratios else '-'} "
                     f"| {memory[method] / 1e6:.0f} | {format(memory[method] / memory['python-patch'], '.2f') if 'python-patch' in memory else '-'} |")
    return "\n".join(lines)


def main():
    options = compare_hf.parse_options([*DEFAULTS, *sys.argv[1:]])
    enter_venv()
    with tempfile.TemporaryDirectory() as folder:
        comparison = compare_hf.Comparison(options, Path(folder))
        try:
            for length in options.lengths:
                comparison.run_length(length)
        finally:
            comparison.close()
    records = list(map(parse_record, read_text(options.out / "results.jsonl").splitlines()))
    command = " ".join(["python3", *records[0]["environment"]["argv"]])
    parts = [f"# Time and memory of a step: Hugging Face's checkpointing and the package's lanes\n\n`{command}`: {options.model}, {options.dtype}, {options.threads} threads. Medians of "
             f"{options.repeats} in turns, each after {options.warmup} untimed, and their range; MB beyond weights and gradients.", "\n".join(made_by(records))]
    for length in sorted({record["seq_len"] for record in records}):
        parts.append(f"## {length:,} tokens\n\n{table([each for each in records if each['seq_len'] == length], METHODS)}")
    text = "\n\n".join(parts) + "\n"
    write_file(options.out / "README.md", text)
    print(text)
    return 1 if any(record["status"] == "error" for record in records) else 0


if __name__ == "__main__":
    run(main)
