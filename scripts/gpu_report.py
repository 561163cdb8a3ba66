#!/usr/bin/env python3
"""What the records of scripts/gpu.sh say, as Markdown: times, memory, utilisation, predicted against measured.

    gpu_report.py DIR
"""

import json
import pathlib
import sys

# Dense bf16 peak of a Hopper SXM GPU, without sparsity: what utilisation is relative to.
PEAK_FLOPS = 989e12


def records(folder):
    for file in sorted(folder.glob("*/results.jsonl")):
        for line in file.read_text().splitlines():
            yield file.parent.name, json.loads(line)


def way(record):
    settings = record["settings"]
    words = [record["method"]]
    if record.get("chunk"):
        words.append(f"chunk {record['chunk']}")
    if settings.get("keep_attention"):
        words.append("attention kept")
    if (settings.get("every") or 1) > 1:
        words.append(f"every {settings['every']}")
    if settings.get("offload") == "host":
        words.append("on the host")
    if settings.get("deterministic"):
        words.append("deterministic")
    return ", ".join(words)


def gib(count):
    return "-" if count is None else f"{count / 2**30:.2f}"


def identity(record):
    """What a prediction and a measurement have in common."""
    settings = record["settings"]
    return (record["model"], record["objective"], way(record), record["seq_len"], record["batch"], record["dtype"],
            settings.get("gradient_dtype"))


def measured_table(rows):
    print("\n## Measured\n")
    print("| part | model | objective | tokens | method | seconds | spread | tokens/s | of peak | allocated GiB | reserved GiB | status |")
    print("|---|---|---|---:|---|---:|---:|---:|---:|---:|---:|---|")
    for part, record in rows:
        seconds = record.get("gpu_seconds_median")
        spread = "-"
        if seconds and len(record["gpu_seconds"]) > 1:
            spread = f"{(max(record['gpu_seconds']) - min(record['gpu_seconds'])) / seconds:.1%}"
        share = f"{record['model_flops'] / seconds / PEAK_FLOPS:.1%}" if seconds else "-"
        rate = f"{record['tokens'] / seconds:,.0f}" if seconds else "-"
        print(f"| {part} | {record['model']} | {record['objective']} | {record['tokens']:,} | {way(record)} | "
              f"{f'{seconds:.3f}' if seconds else '-'} | {spread} | {rate} | {share} | {gib(record.get('peak_bytes'))} | "
              f"{gib(record.get('reserved_peak_bytes'))} | {record['status']} |")


def prediction_table(measured, predicted):
    by_identity = {identity(record): record for _, record in predicted}
    pairs = [(record, by_identity[identity(record)]) for _, record in measured
             if record["status"] == "ok" and identity(record) in by_identity]
    if not pairs:
        return
    print("\n## Predicted against measured peaks\n")
    print("| model | tokens | method | measured GiB | predicted GiB | difference |")
    print("|---|---:|---|---:|---:|---:|")
    for record, prediction in pairs:
        difference = prediction["peak_bytes"] / record["peak_bytes"] - 1
        print(f"| {record['model']} | {record['tokens']:,} | {way(record)} | {gib(record['peak_bytes'])} | "
              f"{gib(prediction['peak_bytes'])} | {difference:+.2%} |")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    everything = list(records(pathlib.Path(sys.argv[1])))
    measured = [(part, record) for part, record in everything if record["kind"] == "measured"]
    predicted = [(part, record) for part, record in everything if record["kind"] == "predicted"]
    if measured:
        measured_table(measured)
    prediction_table(measured, predicted)
    choices = sorted({line for _, record in measured for line in record["environment"].get("attention_choices", [])})
    if choices:
        print("\n## Attention kernels chosen by measurement\n")
        for line in choices:
            print(f"- {line}")


if __name__ == "__main__":
    main()
