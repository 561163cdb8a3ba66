"""From the records of a comparison to its tables, verdicts and picture."""

import io
import statistics

from compare.runners import HF_METHODS
from files import write_file

HEADER = ["method", "median s", "quartiles s", "range s", "cpu s", "x HF std", "x HF ckpt", "MB beyond", "mem / HF std", "mem / HF ckpt",
          "gradient error", "against", "verdict"]
FEWEST = 5  # measurements of each side that a verdict takes
# Okabe and Ito's palette, as in plot.py; Hugging Face's bars are grey.
COLOURS = {"hf-standard": "#BDBDBD", "hf-checkpoint": "#7F7F7F", "standard": "#D55E00", "checkpoint": "#0072B2", "streambp": "#009E73"}
OTHER_COLOURS = ["#56B4E9", "#E69F00", "#CC79A7", "#F0E442", "#000000"]


def baseline_of(method):
    """What keeps every layer's activations is compared with standard back-propagation, the rest with checkpointing."""
    return "hf-standard" if method.split("+")[0] in ("standard", "logits-only") else "hf-checkpoint"


class Summary:
    """What one method gave at one length."""

    def __init__(self, method, records):
        good = [record for record in records if record["status"] == "ok"]
        self.method = method
        self.status = "ok" if good and len(good) == len(records) else next(r["status"] for r in records if r["status"] != "ok")
        self.seconds = sorted(record["seconds"] for record in good)
        self.error = next((record["gradient_error"] for record in records if "gradient_error" in record), None)
        if not good:
            return
        self.median = statistics.median(self.seconds)
        first, _, third = statistics.quantiles(self.seconds, method="inclusive") if len(good) > 1 else [self.median] * 3
        self.quartiles = (first, third)
        self.cpu = statistics.median(record["cpu_seconds"] for record in good)
        self.memory = max(record["peak_beyond_resident_bytes"] for record in good)


def verdict(ours, theirs):
    """By the intervals between the quartiles; a few measurements say nothing."""
    if min(len(ours.seconds), len(theirs.seconds)) < FEWEST:
        return "too few"
    if ours.quartiles[1] < theirs.quartiles[0]:
        return "faster"
    return "slower" if ours.quartiles[0] > theirs.quartiles[1] else "ambiguous"


def summaries(records, methods):
    """Length to method to Summary, in the order of `methods`."""
    by_length = {}
    for length in sorted({record["seq_len"] for record in records}):
        of_length = {}
        for method in methods:
            found = [r for r in records if r["seq_len"] == length and r["method"] == method]
            if found:
                of_length[method] = Summary(method, found)
        by_length[length] = of_length
    return by_length


def row(summary, others):
    if not summary.seconds:
        return [summary.method, *["-"] * (len(HEADER) - 2), summary.status]
    bases = [others.get(method) for method in HF_METHODS]
    bases = [base if base and base.seconds else None for base in bases]
    cells = [summary.method, f"{summary.median:.4f}", "{:.4f}..{:.4f}".format(*summary.quartiles),
             f"{summary.seconds[0]:.4f}..{summary.seconds[-1]:.4f}", f"{summary.cpu:.4f}"]
    cells += [f"{summary.median / base.median:.3f}" if base else "-" for base in bases]
    cells.append(f"{summary.memory / 1e6:.1f}")
    cells += [f"{summary.memory / base.memory:.3f}" if base else "-" for base in bases]
    cells.append("-" if summary.error is None else f"{summary.error:.2e}")
    if summary.method in HF_METHODS:
        return [*cells, "-", "baseline"]
    base = others.get(baseline_of(summary.method))
    return [*cells, baseline_of(summary.method), verdict(summary, base) if base and base.seconds else "-"]


def tables(by_length):
    return {length: [row(summary, of_length) for summary in of_length.values()] for length, of_length in by_length.items()}


def text_table(rows):
    widths = [max(len(line[column]) for line in [HEADER, *rows]) for column in range(len(HEADER))]

    def line(cells):
        return "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(cells, widths)))

    return "\n".join([line(HEADER), line(["-" * width for width in widths]), *map(line, rows)])


def markdown(title, notes, by_length):
    lines = [f"# {title}", "", *notes, ""]
    for length, rows in tables(by_length).items():
        lines += [f"## {length:,} tokens", "", "| " + " | ".join(HEADER) + " |", "|---|" + "---:|" * (len(HEADER) - 1)]
        lines += ["| " + " | ".join(cells) + " |" for cells in rows]
        lines.append("")
    return "\n".join(lines)


def draw(by_length, title, folder):
    """Bars of time, with the quartiles, and of memory, both for each token, as compare.svg and compare.png."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    methods = list(dict.fromkeys(method for of_length in by_length.values() for method in of_length))
    others = iter(OTHER_COLOURS * len(methods))
    colours = {method: COLOURS.get(method) or next(others) for method in methods}
    figure, panels = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    width = 0.8 / len(methods)
    for panel, name in zip(panels, ("ms of a step for each token", "KB for each token, beyond weights and gradients")):
        for index, method in enumerate(methods):
            points = [(x, length, of_length[method]) for x, (length, of_length) in enumerate(by_length.items())
                      if method in of_length and of_length[method].seconds]
            at = [x + (index - (len(methods) - 1) / 2) * width for x, _, _ in points]
            if panel is panels[0]:
                heights = [1e3 * s.median / n for _, n, s in points]
                spread = [[1e3 * (s.median - s.quartiles[0]) / n for _, n, s in points],
                          [1e3 * (s.quartiles[1] - s.median) / n for _, n, s in points]]
            else:
                heights, spread = [s.memory / 1e3 / n for _, n, s in points], None
            panel.bar(at, heights, width, yerr=spread, color=colours[method], label=method, error_kw={"linewidth": 0.8})
        panel.set_xticks(range(len(by_length)), [f"{length:,}" for length in by_length])
        panel.set_xlabel("sequence length (tokens)")
        panel.set_ylabel(name)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    panels[1].legend(frameon=False, fontsize="small")
    figure.suptitle(title)
    for kind in ("svg", "png"):
        picture = io.BytesIO()
        figure.savefig(picture, format=kind, dpi=150)
        write_file(folder / f"compare.{kind}", picture.getvalue())
    plt.close(figure)
