#!/usr/bin/env python3
"""What the records of scripts/gpu.sh say, as Markdown: times, memory and utilisation, predicted (DIR/predicted) and measured
(DIR) side by side, next to what must be reached.

    gpu_report.py DIR

Predicted bytes are a dry run's. Predicted seconds are the record's `work` at the rates of bench/roofline.json, an H200's.
"""

import argparse
import json
import pathlib
import re
import sys
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))  # scripts/
from files import Parser, parse_record
from gpu_rates import FITTED_MODEL, samples_lines
from printable import printable_values

ROOFLINE = pathlib.Path(__file__).resolve().parents[2] / "bench" / "roofline.json"

# Of a record's settings, what says nothing of the memory that a pass takes.
UNRELATED_SETTINGS = {"threads", "repeats", "seed", "memory_limit", "content"}

IN_SAMPLE = f"in sample: measured {FITTED_MODEL}"  # of predicted seconds

KINDS = ("products", "attention_forward", "attention_backward")


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
    if settings.get("keep"):
        words.append(f"kept {settings['keep']}")
    if (settings.get("every") or 1) > 1:
        words.append(f"every {settings['every']}")
    if (settings.get("offload") or "none") != "none":
        words.append(f"on the {settings['offload']}")
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


class Gpu:
    """The rates of one GPU of bench/roofline.json."""

    def __init__(self, rates):
        self.name, self.words = rates["name"], rates["words"]
        self.flops, self.memory, self.link = (rates[f"{what}_per_second"] for what in ("flops", "memory_bytes", "host_bytes"))
        self.part = {kind: reach["part"] for kind, reach in rates["reaches"].items()}

    def seconds(self, work, deterministic):
        """What a pass takes at the rates that its kinds of work reach."""
        busy = work["moved_bytes"] / (self.memory * self.part["moved"])
        for kind in KINDS:
            reach = f"deterministic_{kind}" if deterministic and kind != "products" else kind
            busy += work[f"{kind}_flops"] / (self.flops * self.part[reach])
        return max(busy, work["host_bytes"] / (self.link * self.part["host"]))  # copies go on at the same time

    def roofline(self, work):
        """The least seconds that the published peaks allow."""
        flops = sum(work[f"{kind}_flops"] for kind in KINDS)
        return max(flops / self.flops, work["moved_bytes"] / self.memory, work["host_bytes"] / self.link)


def load_gpus():
    return {name: Gpu(rates) for name, rates in json.loads(ROOFLINE.read_text())["gpus"].items()}


def gpu_of(record, gpus):
    """By the name that the driver gives it; an H200 where the machine had another one or none."""
    name = record.get("environment", {}).get("gpu") or ""
    return next((gpu for gpu in gpus.values() if any(word in name for word in gpu.words)), gpus["H200"])


def is_cold(record):
    """Whether it is the first pass of a sweep without warm-up: that of the others."""
    arguments = record["environment"].get("argv") or []
    value = {flag: arguments[i + 1] for i, flag in enumerate(arguments[:-1]) if flag.startswith("--")}
    return value.get("--warmup") == "0" and value.get("--seq-len", "").split(",")[0] == str(record["seq_len"])


class Cell:
    """One configuration in one part: its dry run and its measurement, either of which may be missing."""

    def __init__(self, part, predicted, measured, gpus):
        self.part, self.predicted, self.measured = part, predicted, measured
        self.record = measured or predicted
        self.fits = predicted is not None and predicted["status"] == "ok"
        gpu = gpu_of(self.record, gpus)
        work = self.record.get("work")
        self.predicted_seconds = gpu.seconds(work, self.setting("deterministic")) if work and self.fits else None
        self.roofline = gpu.roofline(work) if work else None
        self.peak_flops = gpu.flops
        self.cold = measured is not None and is_cold(measured)
        self.measured_seconds = measured.get("gpu_seconds_median") if measured and measured["status"] == "ok" else None

    def key(self):
        return (self.record["model"], self.record["objective"], self.record["tokens"], self.record["batch"])

    def setting(self, name):
        return self.record["settings"].get(name)

    def seconds(self, which):
        """Of "predicted" or "measured"; none where the time says nothing."""
        return None if which == "measured" and self.cold else getattr(self, f"{which}_seconds")

    def utilisation(self, which):
        seconds = self.seconds(which)
        return self.record["model_flops"] / seconds / self.peak_flops if seconds else None

    def difference(self):
        """Of the predicted peak, relative to the measured one."""
        if self.measured_seconds is None or not self.fits:
            return None
        return self.predicted["peak_bytes"] / self.measured["peak_bytes"] - 1


def all_cells(everything, gpus):
    pairs = {}
    for part, record in everything:
        pairs.setdefault((part, identity(record)), {})[record["kind"]] = record
    return [Cell(part, pair.get("predicted"), pair.get("measured"), gpus) for (part, _), pair in pairs.items()]


def shown(value, form):
    return "-" if value is None else format(value, form)


def cells_table(cells):
    print("\n## Cells, predicted and measured\n")
    print("Seconds of one pass, and the share of them that the roofline is; memory allocated at the peak, of a cap where one is set. Predicted memory is a dry run's, "
          "fitted to nothing.\n")
    print(f"| part | model | objective | tokens | method | predicted s ({IN_SAMPLE}) | of roofline | measured s | spread | of roofline | tokens/s | "
          "of peak FLOP/s | predicted GiB | measured GiB | difference | reserved GiB | status |")
    print("|---|---|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|")
    for cell in cells:
        record, measured = cell.record, cell.measured
        taken, spread = cell.measured_seconds, None
        if taken and len(measured["gpu_seconds"]) > 1:
            spread = (max(measured["gpu_seconds"]) - min(measured["gpu_seconds"])) / taken
        share = [cell.roofline / one if cell.roofline and one else None for one in (cell.predicted_seconds, taken)]
        row = [cell.part, record["model"], record["objective"], f"{record['tokens']:,}", configuration(record),
               shown(cell.predicted_seconds, ".3f"), shown(share[0], ".0%"),
               shown(taken, ".3f") + (" (cold)" if cell.cold and taken else ""), shown(spread, ".1%"), shown(share[1], ".0%"),
               shown(record["tokens"] / taken if taken else None, ",.0f"), shown(cell.utilisation("measured"), ".1%"),
               gib(cell.predicted.get("peak_bytes")) if cell.predicted else "-",
               gib(measured.get("peak_bytes")) if measured else "-", shown(cell.difference(), "+.2%"),
               gib(measured.get("reserved_peak_bytes")) if measured else "-", measured["status"] if measured else "not run"]
        print(f"| {' | '.join(row)} |")


def checkpointing(cells, which):
    """Of each model, objective and length the fastest cell of our own checkpointing."""
    best = {}
    for cell in cells:
        if cell.record["method"] != "checkpoint" or cell.setting("baseline") != "fair" or cell.setting("deterministic"):
            continue
        seconds = cell.seconds(which)
        if seconds and (cell.key() not in best or seconds < best[cell.key()].seconds(which)):
            best[cell.key()] = cell
    return best


def ratio(cell, bases, which):
    base, seconds = bases[which].get(cell.key()), cell.seconds(which)
    return seconds / base.seconds(which) if base and seconds else None


def ratios_table(cells):
    """StreamBP's times relative to checkpointing's, of the same model, objective and length."""
    bases = {which: checkpointing(cells, which) for which in ("predicted", "measured")}
    rows = [(cell, ratio(cell, bases, "predicted"), ratio(cell, bases, "measured")) for cell in cells
            if cell.record["method"] == "streambp"]
    rows = [row for row in rows if row[1] or row[2]]
    if not rows:
        return
    print("\n## StreamBP's time against the faster checkpointing\n")
    print(f"| part | model | objective | tokens | method | predicted x checkpoint ({IN_SAMPLE}) | measured x checkpoint |")
    print("|---|---|---|---:|---|---:|---:|")
    for cell, predicted, measured in rows:
        print(f"| {cell.part} | {cell.record['model']} | {cell.record['objective']} | {cell.record['tokens']:,} | "
              f"{configuration(cell.record)} | {shown(predicted, '.3f')} | {shown(measured, '.3f')} |")


def targets(cells, which):
    """Of "predicted" or "measured": what must be reached, how far it has come, and whether that is enough (none: not run)."""
    bases = {which: checkpointing(cells, which)}
    ours = [cell for cell in cells if cell.record["method"] == "streambp" and cell.record["model"] == "qwen3-8b"]

    def least(values):
        return min((value for value in values if value is not None), default=None)

    def of(parts, tokens):
        return [cell for cell in ours if cell.part in parts and cell.record["tokens"] == tokens]

    def row(what, wanted, value, form, enough):
        return what, wanted, "not run" if value is None else format(value, form), None if value is None else enough(value)

    def known(cell):
        return cell.fits if which == "predicted" else cell.measured is not None and cell.measured["status"] == "ok"

    def fit_row(what, part, tokens):
        found = [known(cell) for cell in of([part], tokens) if which == "predicted" or cell.measured is not None]
        return what, "fit", ("fit" if all(found) else "do not") if found else "not run", all(found) if found else None

    speed = ["speed", "speed-kept", "speed-auto"]
    plain, host = (least(cell.seconds(which) for cell in of([part], 147456)) for part in ("lengths", "offload"))
    rows = [
        row("streambp's time at 8,192 tokens", "at most 1.0 x checkpoint",
            least(ratio(cell, bases, which) for cell in of(["speed"], 8192)), ".3f", lambda value: value <= 1.0),
        row("the same at 32,768 with what may be kept", "at most 0.9 x checkpoint",
            least(ratio(cell, bases, which) for cell in of(speed, 32768)), ".3f", lambda value: value <= 0.9),
        row("model FLOPs utilisation at 32,768", "at least 45 %",
            max((share for cell in of(speed, 32768) if (share := cell.utilisation(which))), default=None), ".1%",
            lambda value: value >= 0.45),
        row("500,000 tokens in one pass", "at most 540 s", least(cell.seconds(which) for cell in of(["long"], 500000)), ".0f",
            lambda value: value <= 540),
        fit_row("147,456 tokens within 80 GiB", "lengths", 147456),
        fit_row("303,104 tokens within 80 GiB, offloaded", "offload300k", 303104),
        row("offloading's time at 147,456", "at most 1.1 x without", host / plain if host and plain else None, ".3f",
            lambda value: value <= 1.1),
    ]
    worst = max((abs(one) for cell in cells if (one := cell.difference()) is not None), default=None)
    if which == "measured":
        rows.append(row("predicted peaks, the worst of all cells", "within 2 %", worst, ".2%", lambda value: value <= 0.02))
    else:
        rows.append(("predicted peaks, the worst of all cells", "within 2 %", "-", None))
    return rows


def targets_table(cells):
    print("\n## Must reach\n")
    print("Qwen3-8B in bfloat16 on one H200.\n")
    print("| what | target | predicted (seconds: in sample where measured) | measured | reached |")
    print("|---|---|---:|---:|---|")
    for predicted, measured in zip(targets(cells, "predicted"), targets(cells, "measured")):
        reached = {None: "-", True: "yes", False: "no"}[measured[3]]
        print(f"| {predicted[0]} | {predicted[1]} | {predicted[2]} | {measured[2]} | {reached} |")


def rates_table(gpus):
    rates = json.loads(ROOFLINE.read_text())["gpus"]["H200"]
    print("\n## Rates of the prediction\n")
    print(f"{gpus['H200'].name}: {rates['flops_per_second'] / 1e12:.0f} TFLOP/s, {rates['memory_bytes_per_second'] / 1e12:.1f} TB/s, "
          f"{rates['host_bytes_per_second'] / 1e9:.0f} GB/s to the host ({rates['source']}). Of these each kind of work reaches:\n")
    print("Windows and sequences packed into one call are FlashAttention's, and slower than predicted.\n")
    print("| work | part | source |")
    print("|---|---:|---|")
    for kind, reach in rates["reaches"].items():
        print(f"| {kind.replace('_', ' ')} | {reach['part']:.0%} | {reach['source']} |")


def of_tests(files):
    """What GoogleTest's reports say together: "44 passed, 0 failed, 1 skipped: NAME"."""
    cases = [case for file in files for case in xml.etree.ElementTree.parse(file).getroot().iter("testcase") if case.get("status") == "run"]
    failed = [case for case in cases if case.find("failure") is not None]
    skipped = [f"{case.get('classname')}.{case.get('name')}" for case in cases if case.get("result") == "skipped"]
    names = f": {', '.join(skipped)}" if skipped else ""
    return f"{len(cases) - len(failed) - len(skipped)} passed, {len(failed)} failed, {len(skipped)} skipped{names}"


def of_rows(files):
    """What the rows of `streambp-verify sweep` say, and the summaries of those that came to their end."""
    rows = [line for file in files for line in file.read_text().splitlines() if re.search(r" (pass|FAIL) ", line)]
    failed = sum(" FAIL " in line for line in rows)
    comparisons = sum(int(re.search(r"(\d+) +[\d.e+-]+ +[\d.e+-]+ +(?:pass|FAIL) ", line).group(1)) for line in rows)
    ended = sum("comparisons, " in file.read_text() for file in files)
    return (f"{len(rows) - failed} rows passed, {failed} failed, {comparisons:,} comparisons; "
            f"{ended} of {len(files)} processes came to their end")


def of_goldens(files):
    found = [re.search(r"^(\d+) passed, (\d+) failed, (\d+) unsupported", file.read_text(), re.MULTILINE) for file in files]
    passed, failed, unsupported = (sum(int(one.group(i)) for one in found if one) for i in (1, 2, 3))
    return f"{passed} passed, {failed} failed, {unsupported} unsupported"


def of_package(files):
    """What unittest says, with the models that failed."""
    texts = [file.read_text() for file in files]
    failed = sorted({name for text in texts for name in re.findall(r"^FAIL: .*\(model='([^']*)'\)", text, re.MULTILINE)})
    good = sum(len(re.findall(r"^[.FEs]*[a-z0-9.-]+(?:, packed)?: [\d.]+e-\d+$", text, re.MULTILINE)) for text in texts)
    ok = sum(bool(re.search(r"^OK", text, re.MULTILINE)) for text in texts)
    return f"{good} comparisons within the limit, failed: {', '.join(failed) or 'none'}; {ok} of {len(files)} files OK"


def checks_table(folder):
    """What the parts that check values left."""
    def summary(files):
        return next((line for line in reversed(files[0].read_text().splitlines()) if "SUMMARY" in line), "no summary").strip("= ")

    kinds = [("cuda_test on the device", "tests-*.xml", of_tests), ("golden cases", "goldens-*.txt", of_goldens),
             ("every method = standard and the reference", "equality-*.txt", of_rows), ("NCCL", "nccl.xml", of_tests),
             ("Python package, float64, both levels", "package-*.txt", of_package), ("memcheck: tests", "memcheck.xml", of_tests),
             ("memcheck", "memcheck.txt", summary), ("racecheck: tests", "racecheck.xml", of_tests), ("racecheck", "racecheck.txt", summary)]
    rows = [(what, of(files)) for what, pattern, of in kinds if (files := sorted(folder.glob(pattern)))]
    if not rows:
        return
    print("\n## Checks\n")
    print("| check | result |\n|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")


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
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="out/gpu, or wherever gpu.sh left its records")
    folder, gpus = parser.parse_args().folder, load_gpus()
    if not folder.is_dir():
        parser.error(f"{folder}: no such folder")
    checks_table(folder)
    everything = list(records(folder))
    cells = all_cells(everything, gpus)
    if cells:
        targets_table(cells)
        ratios_table(cells)
        cells_table(cells)
        for line in samples_lines(cells, gpus["H200"], configuration):
            print(line)
        rates_table(gpus)
    microbench_table(folder / "microbench.json")
    measured = [record for _, record in everything if record["kind"] == "measured"]
    choices = sorted({line for record in measured for line in record["environment"].get("attention_choices", [])})
    if choices:
        print("\n## Attention kernels chosen by measurement\n")
        for line in choices:
            print(f"- {line}")


if __name__ == "__main__":
    main()
