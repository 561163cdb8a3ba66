#!/usr/bin/env python3
"""Pictures of a sweep: memory against length and time against length, and memory over the time of one pass; for a page or for a paper.

    .venv/bin/python scripts/plot.py --records out/sweep --out out/sweep
    .venv/bin/python scripts/plot.py --records out/mine out/theirs/results.jsonl --out out/both
    .venv/bin/python scripts/plot.py --timeline out/sweep/timeline.csv --out out/sweep
    .venv/bin/python scripts/plot.py --records out/mine out/theirs --size column --format pdf pgf tex --series checkpoint 'streambp*' \\
        --label 'streambp, chunk auto=StreamBP' --out out/paper

Records are those of streambp-bench sweep, and the repeats of scripts/compare_hf.py, gathered to a point for each length. A picture holds one
model, dtype, device, objective and batch; records that differ in these give several, named after what differs.
A curve holds one method with one set of settings: every setting in which curves differ is in their names, and the folder where two hold the same.
Medians are drawn, of times in a band of all repeats, of ratios round by round; lengths that ran out of memory are crosses at the top; errors are left out. Units follow the sizes.
A timeline (streambp-bench sweep --timeline FILE) gives a picture named after its file: live bytes stacked by what they are for.

--size column (3.25 inches wide, one of two columns), text (6.75, both) or WIDTHxHEIGHT in inches is for papers: small type, no title, a legend below.
PGF is for \\input in a document that loads pgf, whose fonts it takes; tex are the figures as tables of booktabs, memory.tex and time.tex.
"""

import argparse
import fnmatch
import itertools
from pathlib import Path

from pictures.style import COLOURS, FORMATS, PAPER_SIZES, look_of, plain, plt, save  # first: says what to do without matplotlib
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from files import InputError, Parser, run, write_file
from pictures.latex import booktabs, digits
from pictures.series import PICTURE_FIELDS, base_of, describe, read_records, series_of, unit_of
from pictures.timeline_picture import timeline_picture

OTHER_COLOURS = ["#CC79A7", "#56B4E9", "#E69F00", "#000000"]
STYLES = [("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"), ((0, (1, 3)), "v")]


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


def set_scale(axes, scale, lengths, most=7):
    if scale == "log":
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_locator(NullLocator())
    step = -(-len(lengths) // most)
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


def draw(axes, curves, styles, look, scale, factor=1.0):
    """All curves and, at the top, the lengths that ran out of memory: (names with the ends of the curves, handles for a legend)."""
    lengths = sorted({x for _, points, lost in curves for x in (*points, *lost)})
    set_scale(axes, scale, lengths, most=5 if look.paper else 7)
    handles = []
    for one, points, _ in curves:
        colour, line, marker = styles[one.name]
        handles += axes.plot(list(points), [y * factor for y in points.values()], color=colour, linestyle=line, marker=marker,
                             linewidth=look.line, markersize=look.mark)
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
            axes.annotate("✕", xy=(x, top), xytext=((look.cross - 1) * next(index), 0), textcoords="offset points", color=colour,
                          fontsize=look.cross, fontweight="bold", ha="center", va="center", annotation_clip=False)
        if points:
            x = max(points)
            ends.append((end_name(one, points, lost), (x, points[x] * factor), colour))
        else:
            ends.append((end_name(one, points, lost), None, colour))
    if at_length:
        axes.annotate("✕ out of memory", xy=(0, 1), xytext=(4, 0), xycoords="axes fraction", textcoords="offset points",
                      color="#555555", fontsize=look.small, va="center")
    return ends, handles


def subtitle(series):
    """What all curves have in common."""
    first = series[0].records[0]
    batch = f", batch {first['batch']}" if first["batch"] != 1 else ""
    where = "predicted on the meta device"
    if not first["device"].startswith("meta"):
        common = ["machine"] + (["threads"] if first["device"] == "cpu" else [])
        known = [{one.shared.get(name) for one in series} for name in common]
        where = ", ".join(filter(None, (describe(name, *values) for name, values in zip(common, known) if len(values) == 1))) or "several machines"
    return f"{first['model']}, {first['dtype']}, {first['objective']}{batch} · {where}"


def title(figure, edge, words, series):
    figure.text(edge, 0.94, words, fontsize=14, fontweight="bold")
    figure.text(edge, 0.89, subtitle(series), fontsize=10, color="#555555")


def band(axes, spread, colour):
    axes.fill_between(list(spread), *([pair[i] for pair in spread.values()] for i in (0, 1)), color=colour, alpha=0.15, linewidth=0)


class Picture:
    """What is drawn of the records of one picture, and how: files named after `suffix`."""

    def __init__(self, series, shown, arguments, look, suffix):
        self.series, self.shown, self.look = series, shown, look  # all of them: curves are relative to one that may not be shown
        self.scale, self.clock = arguments.scale, arguments.clock
        self.formats = [one for one in arguments.format if one in FORMATS]
        self.tables = "tex" in arguments.format
        self.out, self.suffix = Path(arguments.out), suffix

    def finish(self, figure, name, axes, ends, handles):
        if not self.formats:
            plt.close(figure)
            return
        if self.look.paper:
            self.look.legend(figure, handles, [end[0] for end in ends])
        else:
            label_curves(axes, ends)
        save(figure, self.out / (name + self.suffix), dpi=300 if self.look.paper else 160, formats=self.formats)

    def table(self, name, about, curves, cell):
        lengths = sorted({x for _, points, lost in curves for x in (*points, *lost)})
        rows = [(one.name, ["oom" if x in lost else cell(one, x, points[x]) if x in points else "--" for x in lengths]) for one, points, lost in curves]
        path = self.out / f"{name}{self.suffix}.tex"
        write_file(path, booktabs(f"{about}: {subtitle(self.shown)}", "", [f"{x:,}" for x in lengths], rows))
        print(path)

    def memory(self):
        curves = curves_of(self.shown, "peak_beyond_resident_bytes")
        if not any(points for _, points, _ in curves):
            return
        unit, size = unit_of(max(value for _, points, _ in curves for value in points.values()))
        what = f"peak beyond weights and gradients ({unit})"
        if self.tables:
            self.table("memory", what, curves, lambda one, x, value: digits(value / size))
        figure, ((axes,),) = self.look.figure(1, (9, 5))
        ends, handles = draw(axes, curves, styles_of(self.shown), self.look, self.scale, 1 / size)
        axes.set_ylabel(f"memory ({unit})" if self.look.paper else what)
        if not self.look.paper:
            figure.subplots_adjust(left=0.085, right=0.76, top=0.84, bottom=0.12)
            title(figure, 0.085, "Peak memory of one forward and backward pass", self.shown)
        self.finish(figure, "memory", axes, ends, handles)

    def relative_to_checkpoint(self, field):
        """(series, ratios by length) of those that share lengths with the checkpointing that they are relative to."""
        relative = []
        for one in self.shown:
            base = base_of(one, self.series)
            basis = base.points(field) if base else {}
            shared = {x: y / basis[x] for x, y in one.points(field).items() if basis.get(x)}
            if shared:
                relative.append((one, shared))
        return relative

    def time(self):
        field = "seconds_median" if self.clock == "wall" else "cpu_seconds_median"
        curves = curves_of(self.shown, field)
        if not any(points for _, points, _ in curves):
            return
        styles = styles_of(self.shown)
        relative = self.relative_to_checkpoint(field)
        what = {"wall": "wall time", "cpu": "processor time"}[self.clock]
        unit, size = ("s", 1.0) if max(value for _, points, _ in curves for value in points.values()) >= 0.1 else ("ms", 1e-3)
        if self.tables:
            ratios = {one.name: points for one, points in relative}
            self.table("time", f"{what} ({unit}), in brackets relative to checkpoint", curves, lambda one, x, value: digits(value / size) + (
                f" ({ratios[one.name][x]:.2f})" if x in ratios.get(one.name, {}) else ""))
        panels = 2 if len(relative) > 1 else 1
        figure, all_axes = self.look.figure(panels, (6.5 * panels, 4.8))
        left, right = all_axes.flat[0], all_axes.flat[-1]
        if not self.look.paper:
            edge = 0.06 if panels == 2 else 0.11
            figure.subplots_adjust(left=edge, right=0.85 if panels == 2 else 0.7, top=0.84, bottom=0.12, wspace=0.2)
            title(figure, edge, "Time of one forward and backward pass", self.shown)
        ends, handles = draw(left, curves, styles, self.look, self.scale, 1 / size)
        for one, _, _ in curves:
            band(left, {x: (low / size, high / size) for x, (low, high) in one.spread(field.removesuffix("_median")).items()}, styles[one.name][0])
        left.set_ylabel(f"{what} ({unit})")
        if panels == 2:
            named = self.draw_relative(right, relative, styles, field)
            right.set_ylabel("relative to checkpoint" if self.look.paper else f"{what} relative to checkpoint")
            related = {one.name for one, _ in relative}
            if not self.look.paper:  # a legend names the curves of both panels, names at the ends those of the right one
                ends = named + [(end_name(one, points, lost), None, styles[one.name][0]) for one, points, lost in curves if one.name not in related]
        self.finish(figure, "time", right, ends, handles)

    def draw_relative(self, axes, relative, styles, field):
        set_scale(axes, self.scale, sorted({x for _, points in relative for x in points}), most=5 if self.look.paper else 7)
        ends = []
        for one, points in relative:
            colour, line, marker = styles[one.name]
            axes.plot(list(points), list(points.values()), color=colour, linestyle=line, marker=marker, linewidth=self.look.line,
                      markersize=self.look.mark)
            band(axes, one.spread(field.removesuffix("_median"), base_of(one, self.series)), colour)
            ends.append((end_name(one, one.points(field), one.lost()), (max(points), points[max(points)]), colour))
        return ends


def chosen(series, patterns):
    """Those whose name or method is one of the patterns; all where there are none."""
    def matches(one, pattern):
        return fnmatch.fnmatchcase(one.name, pattern) or one.method == pattern

    return [one for one in series if not patterns or any(matches(one, pattern) for pattern in patterns)]


def pictures_of(records, arguments, look):
    """A picture for each model, dtype, device, objective and batch. A pattern or a label that fits no curve of any is refused with the names."""
    groups = {}
    for record in records:
        groups.setdefault(tuple(record[field] for field in PICTURE_FIELDS), []).append(record)
    differing = [i for i in range(len(PICTURE_FIELDS)) if len({key[i] for key in groups}) > 1]
    pictures = []
    for key, members in groups.items():
        suffix = "".join(f"-{PICTURE_FIELDS[i]}-{str(key[i]).strip('/').replace('/', '_')}" for i in differing)
        series = series_of(members)
        pictures.append(Picture(series, chosen(series, arguments.series), arguments, look, suffix))
    names = sorted({one.name for picture in pictures for one in picture.series})
    for pattern in arguments.series:
        if not any(chosen(picture.series, [pattern]) for picture in pictures):
            raise InputError(f"--series {pattern}: no such curve: {'; '.join(names)}")
    for label in arguments.label:
        name, sign, text = label.partition("=")
        found = [one for picture in pictures for one in picture.series if one.name == name]
        if not sign or not text or not found:
            raise InputError(f"--label {label}: expected NAME=TEXT, of a curve: {'; '.join(names)}")
        for one in found:
            one.name = text
    for picture in pictures:
        labels = [one.name for one in picture.shown]
        if len(set(labels)) < len(labels):
            raise InputError(f"--label: two curves have one name: {'; '.join(sorted(labels))}")
    return [picture for picture in pictures if picture.shown]


def main():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", nargs="+", default=[], help="results.jsonl, or the folder that holds it; one or more")
    parser.add_argument("--timeline", nargs="+", default=[], help="CSV of --timeline, one or more")
    parser.add_argument("--out", required=True, help="folder for the pictures")
    parser.add_argument("--format", nargs="+", choices=(*FORMATS, "tex"), default=["png", "svg"], help="files to write (default: png svg)")
    parser.add_argument("--size", default="page", help=f"page (default), {', '.join(PAPER_SIZES)}, or WIDTHxHEIGHT in inches")
    parser.add_argument("--series", nargs="+", default=[], help="curves to show: methods, or patterns of names such as 'streambp*'")
    parser.add_argument("--label", nargs="+", default=[], metavar="NAME=TEXT", help="what a curve is called instead of its name")
    parser.add_argument("--scale", choices=("log", "linear"), default="log", help="both axes (default: log)")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="time to draw: wall or processor (default: wall)")
    arguments = parser.parse_args()
    if not arguments.records and not arguments.timeline:
        parser.error("expected --records or --timeline")
    look = look_of(arguments.size)
    records = read_records(arguments.records)
    if arguments.records and not any(record["status"] == "ok" for record in records):
        raise InputError(f"{arguments.records[0]}: no record of a finished run")
    pictures = pictures_of(records, arguments, look)
    out = Path(arguments.out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: the folder can't be created: {error.strerror}") from None
    for path in arguments.timeline:
        timeline_picture(path, out, look, [one for one in arguments.format if one in FORMATS])
    for picture in pictures:
        picture.memory()
        picture.time()


if __name__ == "__main__":
    run(main)
