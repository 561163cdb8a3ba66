#!/usr/bin/env python3
"""Picture of `streambp-bench bytes-per-token`: what a token costs by model and configuration, and where streambp and chunk-major cross.

    .venv/bin/python scripts/plot_bytes.py --folder results/bytes-per-token

Reads results.jsonl from the folder and writes bytes-per-token.png next to it. Models are sorted by what streambp keeps of a token by
design, the layer inputs, over what chunk-major keeps, keys and values of all layers and their gradients: below 1 streambp takes less, above it
chunk-major.
"""

from pathlib import Path

from pictures.style import COLOURS, plain, plt, save  # first: says what to do without matplotlib
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

from files import InputError, Parser, parse_record, read_text, run
from printable import printable_values

# Configuration to colour (the palette of pictures/style.py), marker, filled.
STYLES = {
    "standard": (COLOURS["standard"], "s", True),
    "checkpoint": (COLOURS["checkpoint"], "s", True),
    "logits-only": ("#56B4E9", "s", True),
    "tiled": ("#E69F00", "s", True),
    "streambp": (COLOURS["streambp"], "o", True),
    "streambp, keep-attention": (COLOURS["streambp"], "o", False),
    "streambp, offload host": (COLOURS["streambp"], "<", False),
    "chunk-major": ("#CC79A7", "D", True),
}
CONFIGURATION = "way"  # the member of a record that names it
CROSSING = ("streambp", "chunk-major")
TICKS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50, 100]


def read_models(path):
    """Model to {"ratio": layer inputs over keys and values, by design, "bytes": {configuration: bytes a token}}, by rising ratio."""
    models = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        try:
            record = printable_values(parse_record(line))
            if (record["objective"], record["batch"]) != ("sft", 1):
                continue
            ratio = record["analytic_layer_inputs"] / record["analytic_keys_values"]
            model = models.setdefault(record["model"], {"ratio": ratio, "bytes": {}})
            model["bytes"][record[CONFIGURATION]] = record["bytes_per_token"]
        except (ValueError, KeyError, TypeError, ZeroDivisionError):
            raise InputError(f"{path} line {number}: expected a record of streambp-bench bytes-per-token") from None
    if not models:
        raise InputError(f"{path}: no records of sft with batch 1")
    return dict(sorted(models.items(), key=lambda item: (item[1]["ratio"], item[1]["bytes"].get("streambp", 0.0))))


def kilobytes(value, _=None):
    return f"{value / 1e6:g} MB" if value >= 1e6 else f"{value / 1e3:g} KB"


def rows(models):
    """Model to its row on the left panel, from the top, and the row of the crossing, an empty one, if there is one."""
    positions, crossing, next_row = {}, None, 0
    for name, model in models.items():
        if crossing is None and model["ratio"] >= 1.0 and positions:
            crossing, next_row = next_row, next_row - 1
        positions[name], next_row = next_row, next_row - 1
    return positions, crossing


def draw_models(axes, models):
    positions, crossing = rows(models)
    for name, model in models.items():
        both = [model["bytes"][configuration] for configuration in CROSSING if configuration in model["bytes"]]
        if len(both) == 2:
            less = CROSSING[0] if both[0] < both[1] else CROSSING[1]
            axes.plot(both, [positions[name]] * 2, color=STYLES[less][0], linewidth=4, alpha=0.35, solid_capstyle="butt", zorder=1)
    for configuration, (colour, marker, filled) in STYLES.items():
        points = [(model["bytes"][configuration], positions[name]) for name, model in models.items() if configuration in model["bytes"]]
        if points:
            axes.plot(*zip(*points), linestyle="none", marker=marker, markersize=6.5, color=colour, label=configuration,
                      markerfacecolor=colour if filled else "white", zorder=3 if configuration in CROSSING else 2)
    if crossing is not None:
        axes.axhline(crossing, color="#555555", linewidth=1, linestyle="--")
        for text, align, shift in (("above: layer inputs are less, streambp's order", "bottom", 0.05), ("below: keys and values are less, chunk-major's", "top", -0.1)):
            axes.text(0.995, crossing + shift, text, transform=axes.get_yaxis_transform(), ha="right", va=align, fontsize=7.5, color="#555555")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(kilobytes))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(list(positions.values()), [f"{name}  {models[name]['ratio']:4.2f}" for name in positions], family="monospace", fontsize=8.5)
    axes.set_ylim(min(positions.values()) - 0.6, 0.6)
    axes.set_xlabel("bytes a token on the device")
    axes.set_title("by model, with layer inputs / keys and values", fontsize="medium")
    axes.legend(fontsize="small", frameon=False, loc="upper center", bbox_to_anchor=(0.4, -0.07), ncols=4, columnspacing=1.2, handletextpad=0.3)
    plain(axes)


def groups(models):
    """Models that lie close together on the right panel and share a label, at the first one: [x, y, names]."""
    found = []
    for name, model in models.items():
        if not all(configuration in model["bytes"] for configuration in CROSSING):
            continue
        x, y = model["ratio"], model["bytes"]["chunk-major"] / model["bytes"]["streambp"]
        near = [group for group in found if abs(group[0] / x - 1) < 0.06 and abs(group[1] / y - 1) < 0.08]
        near[0][2].append(name) if near else found.append([x, y, [name]])
    return found


def draw_crossing(axes, models):
    found = groups(models)
    xs = [x for x, _, _ in found]
    ends = [min(xs) / 1.4, max(xs) * 1.8]
    axes.plot(ends, [1 / x for x in ends], color="#555555", linewidth=1, label="by design")
    axes.axhline(1.0, color="#000000", linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    low, high = min(y for _, y, _ in found) / 1.5, max(y for _, y, _ in found) * 1.5
    axes.axhspan(1.0, high, color=STYLES["streambp"][0], alpha=0.08, linewidth=0)
    axes.axhspan(low, 1.0, color=STYLES["chunk-major"][0], alpha=0.10, linewidth=0)
    axes.text(0.97, 0.95, "streambp takes less", transform=axes.transAxes, ha="right", va="top", color=STYLES["streambp"][0], fontweight="bold")
    axes.text(0.03, 0.04, "chunk-major takes less", transform=axes.transAxes, ha="left", va="bottom", color="#A3527C", fontweight="bold")
    for model in models.values():
        if all(configuration in model["bytes"] for configuration in CROSSING):
            y = model["bytes"]["chunk-major"] / model["bytes"]["streambp"]
            axes.plot([model["ratio"]], [y], marker="o", markersize=6, color=STYLES["streambp"][0] if y > 1 else STYLES["chunk-major"][0])
    for number, (x, y, names) in enumerate(sorted(found, key=lambda group: group[:2])):
        # Labels on both sides of the line in turn, so that neighbours don't meet.
        shift, align = ((8, 3), "left") if number % 2 == 0 else ((-8, -9), "right")
        label = names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        axes.annotate(label, (x, y), xytext=shift, textcoords="offset points", ha=align, fontsize=7.5)
    axes.set_xlim(*ends)
    axes.set_ylim(low, high)
    for axis, (least, most) in ((axes.xaxis, ends), (axes.yaxis, (low, high))):
        axis.set_major_locator(FixedLocator([tick for tick in TICKS if least <= tick <= most]))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("bytes a token by design, layer inputs / keys and values")
    axes.set_ylabel("bytes a token, chunk-major / streambp")
    axes.set_title("the crossing", fontsize="medium")
    axes.legend(fontsize="small", frameon=False, loc="upper right", bbox_to_anchor=(0.99, 0.92))
    plain(axes)


def draw(models, stem):
    height = 2.2 + 0.24 * len(models)
    crosses = any(all(configuration in model["bytes"] for configuration in CROSSING) for model in models.values())
    if crosses:
        figure, (left, right) = plt.subplots(1, 2, figsize=(14, max(height, 6)), width_ratios=(1.25, 1))
        draw_crossing(right, models)
    else:
        figure, left = plt.subplots(figsize=(8, max(height, 4)))
    draw_models(left, models)
    figure.tight_layout()
    save(figure, stem, formats=("png",))


def main():
    parser = Parser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--folder", type=Path, default=Path("results/bytes-per-token"), help="what streambp-bench bytes-per-token wrote (default: results/bytes-per-token)")
    arguments = parser.parse_args()
    draw(read_models(arguments.folder / "results.jsonl"), arguments.folder / "bytes-per-token")


if __name__ == "__main__":
    run(main)
