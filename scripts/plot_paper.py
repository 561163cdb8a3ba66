#!/usr/bin/env python3
"""Pictures of `streambp-bench paper`: peak memory against length, the paper's curves next to the predicted ones, as PNG and SVG.

    .venv/bin/python scripts/plot_paper.py --folder results/paper

Reads results.jsonl (predictions) and cells.csv (the paper's figures, and measurements where there are some) from the folder and writes
curves-MODEL.png and .svg next to them. The paper's points are drawn as crosses, its longest lengths on the line of the budget.
"""

import csv
from pathlib import Path

from pictures.style import COLOURS, plain, plt, save  # first: says what to do without matplotlib
from matplotlib.ticker import FuncFormatter

from files import InputError, Parser, parse_record, read_text, run
from printable import printable_values

STYLES = ["-", "--", ":", "-.", (0, (1, 3))]
GIB = 2**30
CONFIGURATION = "way"  # the member of a record that names it


def read_curves(path):
    """Model to method and configuration to peaks in GiB by length."""
    curves = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        try:
            record = printable_values(parse_record(line))
            if record["paper_table"] == "curves":
                of_model = curves.setdefault(record["model"], {})
                of_model.setdefault((record["method"], record[CONFIGURATION]), {})[record["seq_len"]] = record["peak_bytes"] / GIB
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{path} line {number}: expected a record of streambp-bench paper") from None
    return curves


def read_points(path, budget):
    """Model to method to the paper's and the measured points, ("paper" or "measured", thousands of tokens, GiB)."""
    points = {}
    try:
        rows = [row for row in csv.DictReader(read_text(path).splitlines()) if row["table"] == "curves"]
    except (csv.Error, KeyError) as error:
        raise InputError(f"{path}: expected the cells.csv of streambp-bench paper ({error})") from None
    for row in rows:
        of = points.setdefault(row["section"], {}).setdefault(row["row"], set())
        for name, column in (("paper", "published"), ("measured", "measured")):
            if not row[column]:
                continue
            if row["column"].startswith("longest"):
                of.add((name, float(row[column]), budget))
            elif row["column"].endswith("K") and row["column"] != "per 1K":
                of.add((name, float(row["column"][:-1]), float(row[column])))
    return points


def draw(model, curves, points, budget, stem):
    figure, axes = plt.subplots(figsize=(8, 5))
    used = {}
    for (method, configuration), peaks in curves.items():
        lengths = sorted(peaks)
        colour = COLOURS.get(method, "#000000")
        style = STYLES[used.get(method, 0) % len(STYLES)]
        used[method] = used.get(method, 0) + 1
        axes.plot([x / 1000 for x in lengths], [peaks[x] for x in lengths], color=colour, linestyle=style, label=f"{method}, {configuration}")
    for method, of in points.items():
        for name, marker in (("paper", "x"), ("measured", "o")):
            chosen = sorted((x, y) for kind, x, y in of if kind == name)
            if chosen:
                label = f"{method}, {'the paper' if name == 'paper' else 'measured'}"
                axes.plot(*zip(*chosen), linestyle="none", marker=marker, color=COLOURS.get(method, "#000000"), label=label)
    axes.axhline(budget, color="#888888", linewidth=0.8)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}K"))
    axes.set_xlabel("sequence length (thousands of tokens)")
    axes.set_ylabel("peak of one back-propagation (GiB)")
    axes.set_ylim(bottom=0)
    axes.set_title(model)
    plain(axes)
    axes.legend(fontsize="small", frameon=False, loc="lower right")
    figure.tight_layout()
    save(figure, stem)


def main():
    parser = Parser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--folder", type=Path, default=Path("results/paper"), help="what streambp-bench paper wrote (default: results/paper)")
    parser.add_argument("--budget", type=float, default=78.0, help="GiB at which the longest lengths are drawn (default: 78)")
    arguments = parser.parse_args()
    curves = read_curves(arguments.folder / "results.jsonl")
    points = read_points(arguments.folder / "cells.csv", arguments.budget)
    if not curves:
        raise InputError(f"{arguments.folder}: no curves; run streambp-bench paper --table curves")
    for model, of_model in curves.items():
        draw(model, of_model, points.get(model, {}), arguments.budget, arguments.folder / f"curves-{model}")


if __name__ == "__main__":
    run(main)
