"""The picture of a timeline (streambp-bench sweep --timeline FILE): live bytes over one pass, stacked by what they are for."""

import csv
import itertools
from pathlib import Path

from pictures.style import plt, save
from matplotlib.ticker import FuncFormatter, MaxNLocator

from files import InputError, read_text
from printable import printable
from pictures.series import unit_of

OTHER_COLOURS = ["#CC79A7", "#56B4E9", "#E69F00", "#000000"]
RESIDENT = ("weights", "gradients", "master weights", "optimizer")
# From the bottom of the stack to its top: what stays, what grows with the length, what comes and goes with a chunk.
SCOPES = {"weights": "#BDBDBD", "gradients": "#8F8F8F", "master weights": "#A3A3A3", "optimizer": "#636363", "batch": "#DDDDDD",
          "other": "#EEEEEE", "teacher": "#B2A48C", "layer inputs": "#0072B2", "keys and values": "#56B4E9", "latent keys and values": "#86CDF2",
          "key and value gradients": "#9ADBC5", "recurrent states": "#1B7FA0", "attention outputs": "#F0E442", "attention": "#E69F00", "MLP": "#009E73",
          "activations": "#D8A0C0", "chunk": "#CC79A7", "head chunk": "#B98CE0", "logits": "#D55E00", "kernel workspace": "#000000"}


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


def mark_spans(axes, rows, times, look):
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
            axes.text((begin + end) / 2, 1.005, name, transform=axes.get_xaxis_transform(), ha="center", va="bottom", fontsize=look.small, color="#555555")


def size_text(count):
    unit, size = unit_of(count)
    return f"{count / size:,.{2 if unit in ('GB', 'TB') else 1 if unit == 'MB' else 0}f} {unit}"


def timeline_picture(path, out, look, formats):
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

    figure, ((axes,),) = look.figure(1, (11, 5.2))
    axes.stackplot([times[k] for k in kept], [values for values, _ in layers.values()], colors=colours, step="post", linewidth=0)
    axes.set_xlim(times[0], times[-1])
    axes.set_ylim(0, beyond * 1.08 / size)
    mark_spans(axes, rows, times, look)
    axes.plot([peak_time], [beyond / size], marker="v", color="#000000", markersize=6, clip_on=False)
    axes.annotate(f"peak {beyond / size:.4g} {unit}", xy=(peak_time, beyond / size), xytext=(7, 1), textcoords="offset points", fontsize=look.small,
                  ha="left" if peak_time < 0.8 * times[-1] else "right")
    axes.set_xlabel("time (s)" if timed else "allocations and frees, in order")
    axes.set_ylabel(f"memory ({unit})" if look.paper else " ".join(("live memory", *(["beyond", " and ".join(names[i] for i in resident)] if resident else []), f"({unit})")))
    if look.paper:
        axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.5g}" if timed else f"{x:,.0f}"))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in colours]
    labels = [f"{name}, {size_text(at_peak)}" for name, (_, at_peak) in layers.items()]
    handles = handles[::-1] + [plt.Rectangle((0, 0), 1, 1, fill=False, linewidth=0)] * len(resident)
    labels = labels[::-1] + [f"{names[i]}, {size_text(most[i])}" for i in resident]
    if look.paper:
        look.legend(figure, handles, labels, title="alive at the peak")
    else:
        figure.subplots_adjust(left=0.07, right=0.73, top=0.82, bottom=0.11)
        legend = axes.legend(handles, labels, title="alive at the peak", loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=9.5)
        legend.set_alignment("left")
        figure.text(0.07, 0.94, "Memory over one forward and backward pass", fontsize=14, fontweight="bold")
        chunk = f", chunk {about['chunk']}" if about.get("chunk", "null") != "null" else ""
        figure.text(0.07, 0.89, ", ".join(about[k] for k in ("model", "dtype", "objective", "method") if k in about) + chunk
                    + (f", {int(about['seq_len']):,} tokens" if about.get("seq_len", "").isdigit() else "")
                    + (" · predicted on the meta device" if not timed else " · measured" if about else ""), fontsize=10, color="#555555")
    save(figure, out / Path(path).stem, dpi=300 if look.paper else 160, formats=formats)
