#!/usr/bin/env python3
"""Pictures of a sweep: memory against length and time against length, and memory over the time of one pass, as PNG and SVG.

    .venv/bin/python scripts/plot.py --records out/sweep --out out/sweep
    .venv/bin/python scripts/plot.py --records out/mine out/theirs/results.jsonl --out out/both
    .venv/bin/python scripts/plot.py --timeline out/sweep/timeline.csv --out out/sweep

A picture of records holds one model, dtype, device, objective and batch; records that differ in these give several, named after what differs.
A curve holds one method with one set of settings: every setting in which curves differ is in their names, and the folder where two hold the same.
Medians are drawn; lengths that ran out of memory are crosses at the top; errors are left out. Units follow the sizes.
A timeline (streambp-bench sweep --timeline FILE) gives a picture named after its file: live bytes stacked by what they are for.
"""

import argparse
import csv
import itertools
from pathlib import Path

from pictures import COLOURS, plain, plt, save  # first: says what to do without matplotlib
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from files import InputError, read_text, run
from printable import printable
from series import PICTURE_FIELDS, base_of, describe, read_records, series_of, unit_of

OTHER_COLOURS = ["#CC79A7", "#56B4E9", "#E69F00", "#000000"]
STYLES = [("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"), ((0, (1, 3)), "v")]
RESIDENT = ("weights", "gradients", "master weights", "optimizer")
# From the bottom of the stack to its top: what stays, what grows with the length, what comes and goes with a chunk.
SCOPES = {"weights": "#BDBDBD", "gradients": "#8F8F8F", "master weights": "#A3A3A3", "optimizer": "#636363", "batch": "#DDDDDD",
          "other": "#EEEEEE", "teacher": "#B2A48C", "layer inputs": "#0072B2", "keys and values": "#56B4E9", "latent keys and values": "#86CDF2",
          "key and value gradients": "#9ADBC5", "recurrent states": "#1B7FA0", "attention outputs": "#F0E442", "attention": "#E69F00", "MLP": "#009E73",
          "activations": "#D8A0C0", "chunk": "#CC79A7", "head chunk": "#B98CE0", "logits": "#D55E00", "kernel workspace": "#000000"}


def curves_of(series, field):
    """Those of `series` that have something to draw: (series, values by length, lengths out of memory)."""
    curves = [(one, one.points(field), one.lost()) for one in series]
    return [curve for curve in curves if curve[1] or curve[2]]


def styles_of(series):
    """Name to (colour, line, marker): the method gives the colour, its settings the rest."""
    others = itertools.cycle(OTHER_COLOURS)
    colours, used, styles = dict(COLOURS), {}, {}
    for one in series:
        if one.method not in colours:
            colours[one.method] = next(others)
        line, marker = STYLES[used.get(one.method, 0) % len(STYLES)]
        used[one.method] = used.get(one.method, 0) + 1
        styles[one.name] = (colours[one.method], line, marker)
    return styles


def set_scale(axes, scale, lengths):
    if scale == "log":
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_locator(NullLocator())
    step = -(-len(lengths) // 7)
    axes.xaxis.set_major_locator(FixedLocator(lengths[::-1][::step]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.set_xlabel("sequence length (tokens)")
    plain(axes)


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
    """Writes each (name, point, colour) to the right at its point's height, moved up or down where labels would touch. A line leads there from the
    last points alone: from others it would look measured. What has no point (None) is named at the top."""
    figure = axes.figure
    figure.canvas.draw()
    spacing = 13.5 * figure.dpi / 72
    corner = axes.transAxes.transform((1, 1))
    placed = sorted(((axes.transData.transform(point) if point else corner, point, name, colour) for name, point, colour in ends),
                    key=lambda e: e[0][1])
    heights = [pixel[1] for pixel, *_ in placed]
    for _ in range(200):
        for i in range(len(heights) - 1):
            overlap = spacing - (heights[i + 1] - heights[i])
            if overlap > 1e-6:
                heights[i] -= overlap / 2
                heights[i + 1] += overlap / 2
    right = max((pixel[0] for pixel, point, *_ in placed if point), default=corner[0])
    for (pixel, point, name, colour), height in zip(placed, heights):
        # As an offset in points: a picture may be saved at another resolution than it was measured at.
        offset = ((right - pixel[0]) * 72 / figure.dpi + 22, (height - pixel[1]) * 72 / figure.dpi)
        ends_here = point and pixel[0] > right - 1
        leader = {"arrowstyle": "-", "color": colour, "linewidth": 0.7, "alpha": 0.6, "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 5}
        axes.annotate(name, xy=point or (1, 1), xycoords="data" if point else "axes fraction", xytext=offset, textcoords="offset points",
                      color=colour, fontsize=10.5, va="center", annotation_clip=False, arrowprops=leader if ends_here else None)


def end_name(one, points, lost):
    """The name, and from where on a curve ends for want of memory."""
    beyond = [x for x in lost if x > max(points, default=0)]
    return f"{one.name} (out of memory{f' from {min(beyond):,}' if points else ''})" if beyond else one.name


def draw(axes, curves, styles, scale, factor=1.0):
    """All curves, their labels and, at the top, the lengths that ran out of memory."""
    lengths = sorted({x for _, points, lost in curves for x in (*points, *lost)})
    set_scale(axes, scale, lengths)
    for one, points, _ in curves:
        colour, line, marker = styles[one.name]
        axes.plot(list(points), [y * factor for y in points.values()], color=colour, linestyle=line, marker=marker,
                  linewidth=2, markersize=5.5)
    if scale == "log":
        axes.set_yscale("log")
    if any(lost for _, _, lost in curves):
        low, high = axes.get_ylim()
        axes.set_ylim(low, high * (high / low) ** 0.08 if scale == "log" else high * 1.08)
    set_values(axes, scale)
    top = axes.get_ylim()[1]
    at_length = {}
    ends = []
    for one, points, lost in curves:
        colour = styles[one.name][0]
        for x in lost:
            index = at_length.setdefault(x, itertools.count())
            axes.annotate("✕", xy=(x, top), xytext=(11 * next(index), 0), textcoords="offset points", color=colour,
                          fontsize=12, fontweight="bold", ha="center", va="center", annotation_clip=False)
        if points:
            x = max(points)
            ends.append((end_name(one, points, lost), (x, points[x] * factor), colour))
        else:
            ends.append((end_name(one, points, lost), None, colour))
    if at_length:
        axes.annotate("✕ out of memory", xy=(0, 1), xytext=(4, 0), xycoords="axes fraction", textcoords="offset points",
                      color="#555555", fontsize=9.5, va="center")
    return ends


def subtitle(records, series):
    """What all curves have in common."""
    first = records[0]
    batch = f", batch {first['batch']}" if first["batch"] != 1 else ""
    where = "predicted on the meta device"
    if not first["device"].startswith("meta"):
        common = ["machine"] + (["threads"] if first["device"] == "cpu" else [])
        known = [{one.shared.get(name) for one in series} for name in common]
        where = ", ".join(filter(None, (describe(name, *values) for name, values in zip(common, known) if len(values) == 1))) or "several machines"
    return f"{first['model']}, {first['dtype']}, {first['objective']}{batch} · {where}"


def memory_picture(records, scale, out, name):
    series = series_of(records)
    curves = curves_of(series, "peak_beyond_resident_bytes")
    if not any(points for _, points, _ in curves):
        return
    figure, axes = plt.subplots(figsize=(9, 5))
    figure.subplots_adjust(left=0.085, right=0.76, top=0.84, bottom=0.12)
    unit, size = unit_of(max(value for _, points, _ in curves for value in points.values()))
    ends = draw(axes, curves, styles_of(series), scale, 1 / size)
    axes.set_ylabel(f"peak beyond weights and gradients ({unit})")
    figure.text(0.085, 0.94, "Peak memory of one forward and backward pass", fontsize=14, fontweight="bold")
    figure.text(0.085, 0.89, subtitle(records, series), fontsize=10, color="#555555")
    label_curves(axes, ends)
    save(figure, out / name, dpi=160)


def relative_to_checkpoint(series, field):
    """(series, ratios by length) of those that share lengths with the checkpointing that they are relative to."""
    relative = []
    for one in series:
        base = base_of(one, series)
        basis = base.points(field) if base else {}
        shared = {x: y / basis[x] for x, y in one.points(field).items() if basis.get(x)}
        if shared:
            relative.append((one, shared))
    return relative


def time_picture(records, scale, clock, out, name):
    field = "seconds_median" if clock == "wall" else "cpu_seconds_median"
    series = series_of(records)
    curves = curves_of(series, field)
    if not any(points for _, points, _ in curves):
        return
    styles = styles_of(series)
    relative = relative_to_checkpoint(series, field)
    panels = 2 if len(relative) > 1 else 1
    figure, all_axes = plt.subplots(1, panels, figsize=(6.5 * panels, 4.8), squeeze=False)
    left, right = all_axes[0][0], all_axes[0][-1]
    figure.subplots_adjust(left=0.06 if panels == 2 else 0.11, right=0.85 if panels == 2 else 0.7, top=0.84, bottom=0.12,
                           wspace=0.2)
    what = {"wall": "wall time", "cpu": "processor time"}[clock]
    edge = 0.06 if panels == 2 else 0.11
    figure.text(edge, 0.94, "Time of one forward and backward pass", fontsize=14, fontweight="bold")
    figure.text(edge, 0.89, subtitle(records, series), fontsize=10, color="#555555")
    unit, size = ("s", 1.0) if max(value for _, points, _ in curves for value in points.values()) >= 0.1 else ("ms", 1e-3)
    ends = draw(left, curves, styles, scale, 1 / size)
    left.set_ylabel(f"{what} ({unit})")
    if panels == 2:
        lengths = sorted({x for _, points in relative for x in points})
        set_scale(right, scale, lengths)
        ends = []
        for one, points in relative:
            colour, line, marker = styles[one.name]
            right.plot(list(points), list(points.values()), color=colour, linestyle=line, marker=marker, linewidth=2, markersize=5.5)
            ends.append((end_name(one, one.points(field), one.lost()), (max(points), points[max(points)]), colour))
        right.set_ylabel(f"{what} relative to checkpoint")
        related = {one.name for one, _ in relative}
        ends += [(end_name(one, points, lost), None, styles[one.name][0]) for one, points, lost in curves if one.name not in related]
    label_curves(right, ends)
    save(figure, out / name, dpi=160)


def read_timeline(path):
    """The run's description, the scopes' names and the rows (event, seconds or None, spans, bytes by scope)."""
    lines = read_text(path).splitlines()
    about = dict(map(printable, line[2:].split(": ", 1)) for line in lines if line.startswith("# ") and ": " in line)
    table = csv.reader(line for line in lines if not line.startswith("#"))
    header = next(table, [])
    if header[:3] != ["event", "seconds", "spans"] or len(header) == 3:
        raise InputError(f"{path}: expected a timeline: event, seconds, spans, then scopes")
    try:
        rows = [(int(row[0]), float(row[1]) if row[1] else None, printable(row[2]).split("/"), [int(b) for b in row[3:]]) for row in table]
        if not rows or any(len(row[3]) != len(header) - 3 for row in rows):
            raise ValueError
    except (ValueError, IndexError):
        raise InputError(f"{path}: expected rows of {len(header)} numbers (spans: text)") from None
    return about, list(map(printable, header[3:])), rows


def thin(rows, times, most=600):
    """The lowest and the highest row of each of `most` equal stretches of time: what a picture can show."""
    begin, end = times[0], times[-1]
    stretches = {}
    for i, time in enumerate(times):
        stretches.setdefault(int((time - begin) / (end - begin or 1.0) * most), []).append(i)
    kept = set()
    for members in stretches.values():
        totals = [sum(rows[i][3]) for i in members]
        kept.update((members[totals.index(min(totals))], members[totals.index(max(totals))]))
    return sorted(kept)


def phase_of(spans):
    """What a pass is doing, from the outermost span: "layer 3 forward" is a part of "forward"."""
    words = spans[0].split()
    return " ".join(words[2:]) if words[:1] == ["layer"] else spans[0]


def mark_spans(axes, rows, times):
    """Light lines where a layer or, inside it, a chunk begins, and the name of what goes on above them."""
    layers, chunks, phases = [], [], []  # phases: [name, begin, end]
    outer = inner = ""
    for (_, _, spans, _), time in zip(rows, times):
        if spans[0] and spans[0] != outer:
            layers.append(time)
            if not phases or phases[-1][0] != phase_of(spans):
                phases.append([phase_of(spans), time, time])
        elif spans[1:2] and spans[1] != inner:
            chunks.append(time)
        outer, inner = spans[0] or outer, (spans[1:2] or [inner])[0]
        if phases and spans[0]:
            phases[-1][2] = time
    for times, colour in ((chunks, "#FFFFFF"), (layers, "#555555")):
        for time in times if len(times) <= 200 else []:
            axes.axvline(time, color=colour, linewidth=0.4, alpha=0.6)
    for name, begin, end in phases:
        if end - begin > 0.05 * (times[-1] - times[0]):
            axes.text((begin + end) / 2, 1.005, name, transform=axes.get_xaxis_transform(), ha="center", va="bottom", fontsize=9.5, color="#555555")


def size_text(count):
    unit, size = unit_of(count)
    return f"{count / size:,.{2 if unit in ('GB', 'TB') else 1 if unit == 'MB' else 0}f} {unit}"


def timeline_picture(path, out):
    about, names, rows = read_timeline(path)
    timed = all(row[1] is not None for row in rows)
    times = [row[1] if timed else row[0] for row in rows]
    peak = max(rows, key=lambda row: sum(row[3]))
    peak_time, peak_bytes = times[rows.index(peak)], sum(peak[3])
    most = [max(row[3][i] for row in rows) for i in range(len(names))]
    # What never changes and was there before the pass is left out, as in the picture over lengths.
    resident = [i for i, name in enumerate(names) if name in RESIDENT and most[i] == min(row[3][i] for row in rows)]
    beyond = peak_bytes - sum(most[i] for i in resident)
    # What never matters to the eye is one colour.
    small = [i for i, name in enumerate(names) if i not in resident and most[i] < 0.01 * beyond]
    order = sorted((i for i in range(len(names)) if i not in (*small, *resident)),
                   key=lambda i: list(SCOPES).index(names[i]) if names[i] in SCOPES else len(SCOPES))
    kept = thin(rows, times)
    unit, size = unit_of(beyond)
    layers = {names[i]: ([rows[k][3][i] / size for k in kept], peak[3][i]) for i in order}
    rest = [sum(rows[k][3][i] for i in small) / size for k in kept]
    if small:
        have, at_peak = layers.get("other", ([0.0] * len(kept), 0))
        layers["other"] = ([a + b for a, b in zip(have, rest)], at_peak + sum(peak[3][i] for i in small))
    unknown = itertools.cycle(OTHER_COLOURS)
    colours = [SCOPES.get(name) or next(unknown) for name in layers]

    figure, axes = plt.subplots(figsize=(11, 5.2))
    figure.subplots_adjust(left=0.07, right=0.73, top=0.82, bottom=0.11)
    axes.stackplot([times[k] for k in kept], [values for values, _ in layers.values()], colors=colours, step="post", linewidth=0)
    axes.set_xlim(times[0], times[-1])
    axes.set_ylim(0, beyond * 1.08 / size)
    mark_spans(axes, rows, times)
    axes.plot([peak_time], [beyond / size], marker="v", color="#000000", markersize=6, clip_on=False)
    axes.annotate(f"peak {beyond / size:.4g} {unit}", xy=(peak_time, beyond / size), xytext=(7, 1), textcoords="offset points", fontsize=9.5,
                  ha="left" if peak_time < 0.8 * times[-1] else "right")
    axes.set_xlabel("time (s)" if timed else "allocations and frees, in order")
    axes.set_ylabel(" ".join(("live memory", *(["beyond", " and ".join(names[i] for i in resident)] if resident else []), f"({unit})")))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.5g}" if timed else f"{x:,.0f}"))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in colours]
    labels = [f"{name}, {size_text(at_peak)}" for name, (_, at_peak) in layers.items()]
    handles = handles[::-1] + [plt.Rectangle((0, 0), 1, 1, fill=False, linewidth=0)] * len(resident)
    labels = labels[::-1] + [f"{names[i]}, {size_text(most[i])}" for i in resident]
    legend = axes.legend(handles, labels, title="alive at the peak", loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=9.5)
    legend.set_alignment("left")
    figure.text(0.07, 0.94, "Memory over one forward and backward pass", fontsize=14, fontweight="bold")
    chunk = f", chunk {about['chunk']}" if about.get("chunk", "null") != "null" else ""
    figure.text(0.07, 0.89, ", ".join(about[k] for k in ("model", "dtype", "objective", "method") if k in about) + chunk
                + (f", {int(about['seq_len']):,} tokens" if about.get("seq_len", "").isdigit() else "")
                + (" · predicted on the meta device" if not timed else " · measured" if about else ""), fontsize=10, color="#555555")
    save(figure, out / Path(path).stem, dpi=160)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", nargs="+", default=[], help="results.jsonl, or the folder that holds it; one or more")
    parser.add_argument("--timeline", nargs="+", default=[], help="CSV of --timeline, one or more")
    parser.add_argument("--out", required=True, help="folder for the pictures")
    parser.add_argument("--scale", choices=("log", "linear"), default="log", help="both axes (default: log)")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="time to draw: wall or processor (default: wall)")
    arguments = parser.parse_args()
    if not arguments.records and not arguments.timeline:
        parser.error("expected --records or --timeline")
    records = read_records(arguments.records)
    if arguments.records and not any(record["status"] == "ok" for record in records):
        raise InputError(f"{arguments.records[0]}: no record of a finished run")
    out = Path(arguments.out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: the folder can't be created: {error.strerror}") from None

    plt.rcParams.update({"font.size": 10.5, "svg.fonttype": "none"})
    for path in arguments.timeline:
        timeline_picture(path, out)
    pictures = {}
    for record in records:
        pictures.setdefault(tuple(record[field] for field in PICTURE_FIELDS), []).append(record)
    differing = [i for i in range(len(PICTURE_FIELDS)) if len({key[i] for key in pictures}) > 1]
    for key, members in pictures.items():
        suffix = "".join(f"-{PICTURE_FIELDS[i]}-{str(key[i]).strip('/').replace('/', '_')}" for i in differing)
        memory_picture(members, arguments.scale, out, "memory" + suffix)
        time_picture(members, arguments.scale, arguments.clock, out, "time" + suffix)


if __name__ == "__main__":
    run(main)
