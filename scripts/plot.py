#!/usr/bin/env python3
"""Pictures of a sweep: memory against length and time against length, as PNG and SVG.

    .venv/bin/python scripts/plot.py --records out/sweep/results.jsonl --out out/sweep

A picture holds one model, dtype, device, objective and batch; records that differ in these give several, named after what differs.
Medians are drawn; lengths that ran out of memory are crosses at the top; errors are left out.
"""

import argparse
import itertools
import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator  # noqa: E402

# Okabe and Ito's palette, told apart by every common kind of colour blindness.
COLOURS = {"standard": "#D55E00", "checkpoint": "#0072B2", "streambp": "#009E73"}
OTHER_COLOURS = ["#CC79A7", "#56B4E9", "#E69F00", "#000000"]
STYLES = [("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"), ((0, (1, 3)), "v")]
PICTURE_FIELDS = ("model", "dtype", "device", "objective", "batch")


class InputError(Exception):
    """Bad input: the message is one line for the user."""


def read_records(paths):
    """The last record of each configuration, in the order of the files. A torn last line is skipped."""
    records = {}
    for path in paths:
        try:
            lines = Path(path).read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: can't be read: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                if record["schema"] != 1:
                    raise ValueError
                place = [record[field] for field in (*PICTURE_FIELDS, "method", "seq_len", "status", "settings", "key")]
                records[place[-1]] = record
            except (ValueError, KeyError, TypeError):
                if number == len(lines):
                    continue
                raise InputError(f"{path} line {number}: expected a record of schema 1") from None
    return list(records.values())


def curve_name(record):
    chunk = record["settings"].get("chunk")
    return record["method"] if chunk is None else f"{record['method']}, chunk {chunk}"


def curves_of(records, field):
    """Name to (method, lengths, values, lengths out of memory), in the order of the records."""
    curves = {}
    for record in sorted(records, key=lambda r: r["seq_len"]):
        method, points, lost = curves.setdefault(curve_name(record), (record["method"], {}, []))
        if record["status"] == "oom":
            lost.append(record["seq_len"])
        elif record["status"] == "ok" and record.get(field) is not None:
            points[record["seq_len"]] = record[field]
    order = list(dict.fromkeys(curve_name(r) for r in records))
    return {name: curves[name] for name in order if curves[name][1] or curves[name][2]}


def styles_of(curves):
    """Name to (colour, line, marker): the method gives the colour, its chunks the rest."""
    others = itertools.cycle(OTHER_COLOURS)
    colours, used, styles = dict(COLOURS), {}, {}
    for name, (method, _, _) in curves.items():
        if method not in colours:
            colours[method] = next(others)
        line, marker = STYLES[used.get(method, 0) % len(STYLES)]
        used[method] = used.get(method, 0) + 1
        styles[name] = (colours[method], line, marker)
    return styles


def set_scale(axes, scale, lengths):
    if scale == "log":
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_locator(NullLocator())
    step = -(-len(lengths) // 7)
    axes.xaxis.set_major_locator(FixedLocator(lengths[::-1][::step]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.set_xlabel("sequence length (tokens)")
    axes.grid(True, which="major", color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def set_values(axes, scale):
    """Plain numbers on the value axis: 1, 2, 5, 10, ... where it is logarithmic."""
    if scale == "log":
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        ticks = [m * 10.0**e for e in range(-12, 7) for m in (1, 2, 5)]
        shown = [t for t in ticks if low <= t <= high]
        if len(shown) > 8:
            shown = [t for t in shown if f"{t:e}"[0] == "1"]
        axes.yaxis.set_major_locator(FixedLocator(shown))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))


def label_curves(axes, ends):
    """Writes each (name, x, y, colour) beside its point, moved up or down where labels would touch."""
    figure = axes.figure
    figure.canvas.draw()
    spacing = 13.5 * figure.dpi / 72
    placed = sorted(((axes.transData.transform((x, y)), (x, y), name, colour) for name, x, y, colour in ends), key=lambda e: e[0][1])
    heights = [pixel[1] for pixel, *_ in placed]
    for _ in range(200):
        for i in range(len(heights) - 1):
            overlap = spacing - (heights[i + 1] - heights[i])
            if overlap > 1e-6:
                heights[i] -= overlap / 2
                heights[i + 1] += overlap / 2
    right = max((pixel[0] for pixel, *_ in placed), default=0)
    for (pixel, point, name, colour), height in zip(placed, heights):
        # As an offset in points: a picture may be saved at another resolution than it was measured at.
        offset = ((right - pixel[0]) * 72 / figure.dpi + 22, (height - pixel[1]) * 72 / figure.dpi)
        axes.annotate(name, xy=point, xytext=offset, textcoords="offset points", color=colour, fontsize=10.5, va="center",
                      annotation_clip=False,
                      arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.7, "alpha": 0.6, "shrinkA": 1, "shrinkB": 5})


def draw(axes, curves, styles, scale, factor=1.0):
    """All curves, their labels and, at the top, the lengths that ran out of memory."""
    lengths = sorted({x for _, points, lost in curves.values() for x in (*points, *lost)})
    set_scale(axes, scale, lengths)
    for name, (_, points, _) in curves.items():
        colour, line, marker = styles[name]
        axes.plot(list(points), [y * factor for y in points.values()], color=colour, linestyle=line, marker=marker,
                  linewidth=2, markersize=5.5)
    if scale == "log":
        axes.set_yscale("log")
    if any(lost for _, _, lost in curves.values()):
        low, high = axes.get_ylim()
        axes.set_ylim(low, high * (high / low) ** 0.08 if scale == "log" else high * 1.08)
    set_values(axes, scale)
    top = axes.get_ylim()[1]
    at_length = {}
    ends = []
    for name, (_, points, lost) in curves.items():
        colour = styles[name][0]
        for x in lost:
            place = at_length.setdefault(x, itertools.count())
            axes.annotate("✕", xy=(x, top), xytext=(11 * next(place), 0), textcoords="offset points", color=colour,
                          fontsize=12, fontweight="bold", ha="center", va="center", annotation_clip=False)
        if points:
            x = max(points)
            ends.append((name, x, points[x] * factor, colour))
        else:
            ends.append((f"{name} (out of memory)", min(lost), top, colour))
    if at_length:
        axes.annotate("✕ out of memory", xy=(0, 1), xytext=(4, 0), xycoords="axes fraction", textcoords="offset points",
                      color="#555555", fontsize=9.5, va="center")
    return ends


def subtitle(records):
    first = records[0]
    environment = first.get("environment", {})
    machine = environment.get("gpu") or environment.get("cpu") or "unknown machine"
    threads = f", {environment['threads']} threads" if first["device"] == "cpu" and "threads" in environment else ""
    if first["device"] == "meta":
        machine, threads = "predicted on the meta device", ""
    batch = f", batch {first['batch']}" if first["batch"] != 1 else ""
    return f"{first['model']}, {first['dtype']}, {first['objective']}{batch} · {machine}{threads}"


def save(figure, out, name):
    for kind in ("png", "svg"):
        path = out / f"{name}.{kind}"
        # A fixed salt and no date: the same records give the same file.
        figure.savefig(path, dpi=160, metadata={"Date": None} if kind == "svg" else None)
        print(path)
    plt.close(figure)


def memory_picture(records, scale, out, name):
    curves = curves_of(records, "peak_beyond_resident_bytes")
    if not any(points for _, points, _ in curves.values()):
        return
    figure, axes = plt.subplots(figsize=(9, 5))
    figure.subplots_adjust(left=0.085, right=0.76, top=0.84, bottom=0.12)
    ends = draw(axes, curves, styles_of(curves), scale, 1e-9)
    axes.set_ylabel("peak beyond weights and gradients (GB)")
    figure.text(0.085, 0.94, "Peak memory of one training step", fontsize=14, fontweight="bold")
    figure.text(0.085, 0.89, subtitle(records), fontsize=10, color="#555555")
    label_curves(axes, ends)
    save(figure, out, name)


def relative_to_checkpoint(curves):
    base = next((points for method, points, _ in curves.values() if method == "checkpoint"), {})
    relative = {}
    for name, (method, points, _) in curves.items():
        shared = {x: y / base[x] for x, y in points.items() if base.get(x)}
        if shared:
            relative[name] = (method, shared, [])
    return relative


def time_picture(records, scale, clock, out, name):
    curves = curves_of(records, "seconds_median" if clock == "wall" else "cpu_seconds_median")
    if not any(points for _, points, _ in curves.values()):
        return
    styles = styles_of(curves)
    relative = relative_to_checkpoint(curves)
    panels = 2 if len(relative) > 1 else 1
    figure, all_axes = plt.subplots(1, panels, figsize=(6.5 * panels, 4.8), squeeze=False)
    left, right = all_axes[0][0], all_axes[0][-1]
    figure.subplots_adjust(left=0.06 if panels == 2 else 0.11, right=0.85 if panels == 2 else 0.7, top=0.84, bottom=0.12,
                           wspace=0.2)
    what = {"wall": "wall time", "cpu": "processor time"}[clock]
    edge = 0.06 if panels == 2 else 0.11
    figure.text(edge, 0.94, "Time of one training step", fontsize=14, fontweight="bold")
    figure.text(edge, 0.89, subtitle(records), fontsize=10, color="#555555")
    ends = draw(left, curves, styles, scale)
    left.set_ylabel(f"{what} (s)")
    if panels == 2:
        lengths = sorted({x for _, points, _ in relative.values() for x in points})
        set_scale(right, scale, lengths)
        ends = []
        for curve, (_, points, _) in relative.items():
            colour, line, marker = styles[curve]
            right.plot(list(points), list(points.values()), color=colour, linestyle=line, marker=marker, linewidth=2, markersize=5.5)
            ends.append((curve, max(points), points[max(points)], colour))
        right.set_ylabel(f"{what} relative to checkpoint")
        ends += [(f"{n} (out of memory)", min(lost), 1.0, styles[n][0]) for n, (_, points, lost) in curves.items() if not points]
    label_curves(right, ends)
    save(figure, out, name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", required=True, nargs="+", help="results.jsonl, one or more")
    parser.add_argument("--out", required=True, help="folder for the pictures")
    parser.add_argument("--scale", choices=("log", "linear"), default="log", help="both axes (default: log)")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="time to draw: wall or processor (default: wall)")
    arguments = parser.parse_args()
    records = read_records(arguments.records)
    if not any(record["status"] == "ok" for record in records):
        raise InputError(f"{arguments.records[0]}: no record of a finished run")
    out = Path(arguments.out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: the folder can't be created: {error.strerror}") from None

    plt.rcParams.update({"font.size": 10.5, "svg.hashsalt": "streambp", "svg.fonttype": "none"})
    pictures = {}
    for record in records:
        pictures.setdefault(tuple(record[field] for field in PICTURE_FIELDS), []).append(record)
    differing = [i for i in range(len(PICTURE_FIELDS)) if len({place[i] for place in pictures}) > 1]
    for place, members in pictures.items():
        suffix = "".join(f"-{PICTURE_FIELDS[i]}-{str(place[i]).strip('/').replace('/', '_')}" for i in differing)
        memory_picture(members, arguments.scale, out, "memory" + suffix)
        time_picture(members, arguments.scale, arguments.clock, out, "time" + suffix)


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        print(f"plot.py: {error}", file=sys.stderr)
        sys.exit(2)
