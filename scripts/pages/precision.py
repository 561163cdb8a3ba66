#!/usr/bin/env python3
"""How precise are gradients in float32, bfloat16 and mixed, by how many chunks? The paper's table 6, by `streambp-verify precision`.

    .venv/bin/python scripts/pages/precision.py --out results/precision

Every method is measured against the float64 truth, relative to standard back-propagation's own error in the same precision, parameter by parameter, with
the layers and the head cut into 1, 2, 4, ... chunks up to one a token; medians over three seeds of weights and batches. A job that is finished is not run
again (--runs holds them). Writes errors.jsonl (a record of each configuration), precision.md and precision.png and .svg. Exit codes: 0 all within 1.25 x, 1 one
is not, 2 bad usage or input.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/
from pictures.style import COLOURS, plain, plt, save  # first: says what to do without matplotlib

from files import InputError, Parser, parse_record, read_text, run, write_file
from machine import git

PROJECT = Path(__file__).resolve().parents[2]
# Model, objective, methods next to standard.
JOBS = [
    ("qwen3-tiny", "sft", "logits-only,chunk-major,streambp"),
    ("llama-tied-tiny", "dpo", "streambp"),
    ("gemma3-tiny", "sft", "streambp"),
    ("qwen3-moe-tiny", "sft", "streambp"),
    ("gpt-oss-tiny", "sft", "streambp"),
]
LINES = ["--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1))]  # of all but the first job
PRECISIONS = ["float32", "mixed", "bfloat16"]
LIMIT = 1.25
SHOWN = [1, 2, 4, 8, 16, 32, 64, 128]  # numbers of chunks in the table
STYLES = {"logits-only": COLOURS["checkpoint"], "chunk-major": "#E69F00", "streambp": COLOURS["streambp"]}


def measure(job, options):
    """The records of a job."""
    model, objective, methods = job
    out = options.runs / f"{model}-{objective}"
    done = out / "done"
    if not done.exists():
        (out / "results.jsonl").unlink(missing_ok=True)
        command = [str(options.program.relative_to(PROJECT)), "precision", "--model", model, "--objective", objective, "--method", methods, "--curve"]
        command += ["--seeds", str(options.seeds), "--threads", "1", "--out", str(out.relative_to(PROJECT))]
        result = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
        if result.returncode not in (0, 1):
            raise InputError(f"{' '.join(command)}: exit code {result.returncode}: {result.stderr.strip()}")
        done.touch()
    return [parse_record(line) for line in read_text(out / "results.jsonl").splitlines()]


def layers_curve(records):
    """Of a method's records in one precision, those in which the layers are cut and the head is not, by the number of chunks."""
    return {r["chunks"]: r for r in records if r["chunks"] > 0 and r["head_chunks"] <= 1}


def head_curve(records):
    return {r["head_chunks"]: r for r in records if r["head_chunks"] > 0 and r["chunks"] <= 1}


def select(records, **members):
    return [r for r in records if all(r[name] == value for name, value in members.items())]


def ratio_rows(records):
    lines = ["| model | objective | precision | method | cut | " + " | ".join(map(str, SHOWN)) + " | at the most, in |",
             "|---|---|---|---|---|" + "---:|" * len(SHOWN) + "---|"]
    for model, objective, methods in JOBS:
        for precision in PRECISIONS:
            for method in methods.split(","):
                own = select(records, model=model, objective=objective, precision=precision, method=method)
                for cut, curve in (("layers", layers_curve(own)), ("head", head_curve(own))):
                    if not curve:
                        continue
                    worst = max(curve.values(), key=lambda r: r["times_standard"])
                    cells = [f"{curve[n]['times_standard']:.2f}" if n in curve else "" for n in SHOWN]
                    name = worst["times_standard_in"].removeprefix("model.").removesuffix(".weight")
                    lines.append(f"| {model} | {objective} | {precision} | `{method}` | {cut} | {' | '.join(cells)} | `{name}` |")
    return lines


def error_rows(records):
    lines = ["| model | objective | precision | loss | worst gradient | of | up to 1/2 | 1 | 2 | 4 | 8 | 16 | more |",
             "|---|---|---|---:|---:|---|" + "---:|" * 7]
    for model, objective, _ in JOBS:
        for precision in PRECISIONS:
            own = select(records, model=model, objective=objective, precision=precision, method="standard")[0]
            shares = shares_of(own)
            cells = [f"{100 * share:.1f}" for share in (*shares[:6], sum(shares[6:]))]
            name = own["worst_parameter"].removeprefix("model.").removesuffix(".weight")
            lines.append(f"| {model} | {objective} | {precision} | {own['loss_error']:.1e} | {own['worst_error']:.1e} | `{name}` | {' | '.join(cells)} |")
    return lines


def shares_of(record):
    """Of all entries but zeros, the share in each bin."""
    sums = [sum(bins) for bins in zip(*(part["ulps"] for part in record["parts"].values()))]
    return [count / sum(sums) for count in sums]


def part_cells(record):
    cells = []
    for part in ("head", "layers"):
        one = record["parts"][part]
        cells += [f"{one['mean_absolute_error']:.2e}", f"{100 * one['relative_error']:.2g}"]
    return " | ".join(cells)


def paper_rows(records):
    """The paper's table 6, and ours of one model: StreamBP with a chunk of an eighth of the tokens."""
    model, objective, _ = JOBS[0]
    lines = ["| | LM head | % | layers | % |", "|---|---:|---:|---:|---:|"]
    for precision, method, published in (("bfloat16", "standard", "2.56e-07 | 1.43 | 2.46e-05 | 6.63"),
                                         ("bfloat16", "streambp", "2.64e-07 | 1.47 | 2.47e-05 | 6.59"),
                                         ("float32", "streambp", "6.66e-09 | 0.04 | 1.75e-07 | 0.04"),
                                         ("float32", "standard", None), ("mixed", "standard", None), ("mixed", "streambp", None)):
        own = select(records, model=model, objective=objective, precision=precision, method=method)
        own = layers_curve(own)[8] if method == "streambp" else own[0]
        lines.append(f"| {method} {precision} | {part_cells(own)} |")
        if published:
            lines.append(f"| the paper's {method} {precision} | {published} |")
    return lines


def beyond_rows(records):
    """What is beyond the limit where one holds: by how much, and the error itself next to standard's."""
    lines = []
    for r in records:
        if r["verdict"] != "worse":
            continue
        name = r["times_standard_in"]
        standard = select(records, model=r["model"], objective=r["objective"], precision=r["precision"], method="standard")[0]
        lines.append(f"- {r['model']}, {r['precision']}, `{r['method']}`, {r['chunks']} chunks, {r['head_chunks']} of the head: {r['times_standard']:.2f} x in `{name}`, "
                     f"whose error is {r['parameters'][name]['error']:.2g} and standard's {standard['parameters'][name]['error']:.2g}.")
    if lines:
        lines += ["", "float32 rounds by up to 6e-08: where standard's error is little more than the rounding of its one sum, a sum of as many parts as",
                  "tokens shows its own roundings."]
    return [*lines, ""] if lines else []


def report(records, options):
    rounded = [r for r in records if r["precision"] == "bfloat16" and r["method"] == "chunk-major"]
    limited = [r for r in records if r not in rounded]
    good = sum(r["verdict"] == "ok" for r in limited)
    first = records[0]
    environment = first["environment"]
    tokens = first["sequences"] * first["seq_len"]
    names = ", ".join(f"`{model}` ({objective})" for model, objective, _ in JOBS)
    return "\n".join([
        "# Errors of lower precisions, by the number of chunks",
        "",
        f"`scripts/pages/precision.py`: {names}, {first['sequences']} sequences of {first['seq_len']} tokens ({tokens} in all), {first['batches']} batches, over which",
        f"errors are root mean squares, {first['seeds']} seeds of weights and batches, over which they are medians. {environment['cpu']}, one thread,",
        f"commit {environment['commit'][:12]}{', modified' if environment['modified'] else ''}.",
        "",
        "mixed: bfloat16 with gradients summed in float32 and lm_head in float32. The sums of a log-softmax are float32 in all.",
        "",
        f"{good} of {len(limited)} rows are within {LIMIT} x standard back-propagation's own error in every parameter, {sum(r['verdict'] == 'ok' for r in rounded)} of {len(rounded)} more of",
        "chunk-major in bfloat16, of which none has to be: its chunks go through all layers, and each one's sum of a weight's gradient is rounded, which mixed is there to avoid.",
        "",
        *beyond_rows(records),
        "![Errors relative to standard's, and of single entries](precision.png)",
        "",
        "## Times standard's own error, by the number of chunks",
        "",
        "The worst parameter. `layers`: they are cut, the head is not; `head`: the head is, the layers are not. One chunk of both has the bits of\ncheckpoint with its head in one chunk.",
        "",
        *ratio_rows(records),
        "",
        "## Standard back-propagation's own errors",
        "",
        "The last columns: percent of all entries of all gradients by their distance from the truth, in units in the last place of the truth in the",
        "precision computed in (mixed: bfloat16); entries that are 0 as the truth is are left out.",
        "",
        *error_rows(records),
        "",
        "## The paper's table 6",
        "",
        f"Next to `{JOBS[0][0]}`, {JOBS[0][1]}, StreamBP in 8 chunks: mean |error| of an entry, and sum |error| / sum |truth| in %. The paper does not say of which model,",
        "length and mean its figures are; its truth is float32, ours float64. Absolute errors go with the size of gradients; ratios of methods can be compared.",
        "",
        *paper_rows(records),
    ]) + "\n"


def draw_ratios(axis, records, precision):
    model, objective, methods = JOBS[0]
    for method in methods.split(","):
        own = select(records, model=model, objective=objective, precision=precision, method=method)
        for curve, line in ((layers_curve(own), "-"), (head_curve(own), ":")):
            if curve:
                counts = sorted(curve)
                axis.plot(counts, [curve[n]["times_standard"] for n in counts], line, color=STYLES[method], marker="o", markersize=3,
                          label=f"{method}, {'layers' if line == '-' else 'head'} cut")
    for number, (model, objective, _) in enumerate(JOBS[1:]):
        curve = layers_curve(select(records, model=model, objective=objective, precision=precision, method="streambp"))
        counts = sorted(curve)
        axis.plot(counts, [curve[n]["times_standard"] for n in counts], linestyle=LINES[number], color=STYLES["streambp"], linewidth=1,
                  label=f"streambp, {model}, {objective}")
    axis.axhline(LIMIT, color="0.4", linewidth=1, label=f"limit {LIMIT}")
    axis.set_xscale("log", base=2)
    axis.set_xticks(SHOWN, [str(n) for n in SHOWN])
    axis.minorticks_off()
    axis.set_title(precision + (" (chunk-major: no limit)" if precision == "bfloat16" else ""))
    axis.set_xlabel("chunks")
    plain(axis)


def draw_ulps(axis, records, precision):
    model, objective, _ = JOBS[0]
    own = select(records, model=model, objective=objective, precision=precision)
    curve = layers_curve(select(own, method="streambp"))
    shown = [("standard", select(own, method="standard")[0], COLOURS["standard"]), ("streambp, 1 chunk", curve[1], "#56B4E9"),
             (f"streambp, {max(curve)} chunks", curve[max(curve)], COLOURS["streambp"])]
    names = ["½" if end == 0.5 else "more" if end is None else f"{end:g}" for end in shown[0][1]["ulp_ends"]]
    for number, (name, record, colour) in enumerate(shown):
        positions = [index + 0.27 * (number - 1) for index in range(len(names))]
        axis.bar(positions, [100 * share for share in shares_of(record)], 0.27, color=colour, label=name)
    axis.set_xticks(range(len(names)), names, fontsize=9)
    axis.set_xlabel(f"distance from the truth, up to … units of {'float32' if precision == 'float32' else 'bfloat16'}")
    plain(axis)


def draw(records, options):
    figure, axes = plt.subplots(2, len(PRECISIONS), figsize=(13, 7.6))
    for column, precision in enumerate(PRECISIONS):
        draw_ratios(axes[0][column], records, precision)
        draw_ulps(axes[1][column], records, precision)
    low = min(axis.get_ylim()[0] for axis in axes[0][:2])
    high = max(LIMIT + 0.1, *(axis.get_ylim()[1] for axis in axes[0][:2]))
    for axis in axes[0][:2]:
        axis.set_ylim(low, high)
    axes[0][0].set_ylabel("times standard's error, worst parameter")
    axes[1][0].set_ylabel("entries of gradients, %")
    axes[1][0].legend(frameon=False, fontsize="small")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=4, frameon=False, fontsize="small", bbox_to_anchor=(0.5, 0.0))
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    save(figure, options.out / "precision")


def main():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/precision"), help="folder for records, table and picture")
    parser.add_argument("--runs", type=Path, default=Path("out/precision", git("rev-parse", "--short=12", "HEAD")),
                        help="folder of the jobs, below the project's (default: out/precision/COMMIT, as another commit's are no part of these)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--program", type=Path, default=Path("build/release/bin/streambp-verify"))
    options = parser.parse_args()
    options.out, options.runs, options.program = (path.resolve() for path in (options.out, options.runs, options.program))
    if not options.program.is_file():
        raise InputError(f"{options.program}: not there; expected the built streambp-verify, or --program")
    for path in (options.program, options.runs):
        if not path.is_relative_to(PROJECT):
            raise InputError(f"{path}: expected below {PROJECT}, since records hold the command line")
    options.out.mkdir(parents=True, exist_ok=True)
    records = []
    for number, job in enumerate(JOBS, start=1):
        print(f"{number}/{len(JOBS)} {' '.join(job)}", flush=True)
        records += measure(job, options)
    text = report(records, options)
    write_file(options.out / "errors.jsonl", "".join(json.dumps(record, separators=(",", ":"), sort_keys=True) + "\n" for record in records))
    write_file(options.out / "precision.md", text)
    draw(records, options)
    print(text, end="")
    return 0 if all(record["verdict"] != "worse" for record in records) else 1


if __name__ == "__main__":
    run(main)
