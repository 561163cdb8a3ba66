#!/usr/bin/env python3
"""What the records of scripts/gpu.sh say, as Markdown: times, memory, utilisation, predicted against measured."""

import argparse
import json
import pathlib

from files import parse_record
from printable import printable_values

# Of a record's settings, what says nothing of the memory that a pass takes.
UNRELATED_SETTINGS = {"threads", "repeats", "seed", "memory_limit", "content"}

# Dense bf16 peak of a Hopper SXM GPU, without sparsity: what utilisation is relative to.
PEAK_FLOPS = 989e12


def records(folder):
    for file in sorted(folder.rglob("results.jsonl")):
        for line in file.read_text().splitlines():
            record = printable_values(parse_record(line))
            if "settings" in record:  # not the linear example's, which the paper's tables show
                yield file.parent.name, record


def configuration(record):
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
    if settings.get("baseline") == "hugging-face":
        words.append("as in transformers")
    if settings.get("head") == "streamed" and record["method"] in ("standard", "checkpoint"):
        words.append("streamed head")
    if settings.get("deterministic"):
        words.append("deterministic")
    return ", ".join(words)


def gib(count):
    return "-" if count is None else f"{count / 2**30:.2f}"


def identity(record):
    """What a prediction and a measurement have in common."""
    settings = {name: value for name, value in record["settings"].items() if name not in UNRELATED_SETTINGS}
    return (record["model"], record["objective"], record["method"], record["seq_len"], record["batch"], record["dtype"],
            json.dumps(settings, sort_keys=True))


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
        print(f"| {part} | {record['model']} | {record['objective']} | {record['tokens']:,} | {configuration(record)} | "
              f"{f'{seconds:.3f}' if seconds else '-'} | {spread} | {rate} | {share} | {gib(record.get('peak_bytes'))} | "
              f"{gib(record.get('reserved_peak_bytes'))} | {record['status']} |")


def prediction_table(measured, predicted):
    by_identity = {identity(record): record for _, record in predicted if record["status"] == "ok"}
    pairs = [(record, by_identity[identity(record)]) for _, record in measured
             if record["status"] == "ok" and identity(record) in by_identity]
    if not pairs:
        return
    print("\n## Predicted against measured peaks\n")
    print("| model | tokens | method | measured GiB | predicted GiB | difference |")
    print("|---|---:|---|---:|---:|---:|")
    for record, prediction in pairs:
        difference = prediction["peak_bytes"] / record["peak_bytes"] - 1
        print(f"| {record['model']} | {record['tokens']:,} | {configuration(record)} | {gib(record['peak_bytes'])} | "
              f"{gib(prediction['peak_bytes'])} | {difference:+.2%} |")


def ratios_table(measured):
    """StreamBP's times relative to checkpointing's, of the same model, objective and length in the same part."""
    baselines = {}
    for part, record in measured:
        if record["method"] == "checkpoint" and record.get("gpu_seconds_median") and "baseline" in record["settings"]:
            if record["settings"]["baseline"] == "fair" and not record["settings"].get("deterministic"):
                cell = record["model"], record["objective"], record["tokens"], record["batch"]
                best = baselines.get(cell)
                if best is None or record["gpu_seconds_median"] < best["gpu_seconds_median"]:
                    baselines[cell] = record
    rows = []
    for part, record in measured:
        base = baselines.get((record["model"], record["objective"], record["tokens"], record["batch"]))
        if record["method"] == "streambp" and base and record.get("gpu_seconds_median"):
            rows.append((part, record, record["gpu_seconds_median"] / base["gpu_seconds_median"]))
    if not rows:
        return
    print("\n## StreamBP's time against the faster checkpointing\n")
    print("| part | model | objective | tokens | method | x checkpoint |")
    print("|---|---|---|---:|---|---:|")
    for part, record, ratio in rows:
        print(f"| {part} | {record['model']} | {record['objective']} | {record['tokens']:,} | {configuration(record)} | {ratio:.3f} |")


def microbench_table(file):
    if not file.exists():
        return
    rows = [row for row in json.loads(file.read_text())["benchmarks"] if not row.get("error_occurred")]
    if not rows:
        return
    print("\n## Kernels: share of the roofline\n")
    print("The larger of bytes over the rate of a copy and operations over the rate of a matrix product, both measured just before,")
    print("over the time measured.\n")
    print("| kernel | time | bytes/s | operations/s | of the roofline | chosen |")
    print("|---|---:|---:|---:|---:|---|")
    for row in rows:
        print(f"| {row['name'].removesuffix('/manual_time')} | {row['real_time']:,.0f} {row['time_unit']} | {row['bytes_per_s']:.3g} | "
              f"{row['flops']:.3g} | {row['of_roofline']:.1%} | {row.get('label', '')} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path, help="out/gpu, or wherever gpu.sh left its records")
    folder = parser.parse_args().folder
    if not folder.is_dir():
        parser.error(f"{folder}: no such folder")
    everything = list(records(folder))
    measured = [(part, record) for part, record in everything if record["kind"] == "measured"]
    predicted = [(part, record) for part, record in everything if record["kind"] == "predicted"]
    if measured:
        measured_table(measured)
        ratios_table(measured)
    prediction_table(measured, predicted)
    microbench_table(folder / "microbench.json")
    choices = sorted({line for _, record in measured for line in record["environment"].get("attention_choices", [])})
    if choices:
        print("\n## Attention kernels chosen by measurement\n")
        for line in choices:
            print(f"- {line}")


if __name__ == "__main__":
    main()
