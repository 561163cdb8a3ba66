"""The charts of a report, as SVG within its page. Lines and texts take their colours from the page's style sheet, which has a light and a dark look.

A chart is a list of plots, of three kinds:
  lines     {"title", "quantity": "bytes"|"seconds", "series": [{"name", "colour", "points": [{"length", "value", "low"?, "high"?, "anchor"}],
            "lost": [{"length", "anchor"}]}]}: against length, on logarithmic axes; `lost` ran out of memory, and is a cross at the top
  bars      {"bars": [{"name", "anchor", "parts": {purpose: bytes}}]}: what is alive at a peak, with and without what is there before a pass
  timeline  {"title", "curves": [{"name", "colour", "time": from 0 to 1, "bytes"}]}
"""

import io
import math
import re

import matplotlib

matplotlib.use("svg")
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator  # noqa: E402

matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "streambp", "text.parse_math": False, "font.sans-serif": ["DejaVu Sans"],
                            "font.size": 8.5, "axes.linewidth": 0.6, "axes.spines.top": False, "axes.spines.right": False})
# Colours that become the style sheet's: --c0 to --c7 of series, --ink of texts, --line of axes.
SERIES = [f"#c0ff0{i}" for i in range(8)]
INK, LINE = "#c0ff10", "#c0ff11"
MARKS = [("^", "▲"), ("s", "■"), ("o", "●"), ("D", "◆"), ("v", "▼"), ("P", "✚"), ("X", "✖"), ("*", "★")]
DASHES = ["--", "-", "-", ":", "-."]
# From what stays to what comes and goes with a chunk, in Okabe and Ito's colours and tints of them.
PURPOSES = {"weights": "#bdbdbd", "gradients": "#8f8f8f", "master weights": "#a3a3a3", "optimizer": "#6e6e6e", "batch": "#dddddd", "other": "#cfcfcf",
            "teacher": "#b2a48c", "layer inputs": "#0072b2", "keys and values": "#56b4e9", "latent keys and values": "#86cdf2",
            "key and value gradients": "#9adbc5", "recurrent states": "#1b7fa0", "attention outputs": "#f0e442", "attention": "#e69f00", "MLP": "#009e73",
            "activations": "#d8a0c0", "chunk": "#cc79a7", "head chunk": "#b98ce0", "logits": "#d55e00", "kernel workspace": "#4d4d4d"}
RESIDENT = ("weights", "gradients", "master weights", "optimizer")  # there before the pass, and for all of it


def look(number):
    """Colour, mark, its character, and line of a series: eight colours, and other marks with each of them from the ninth on."""
    mark, character = MARKS[(number + number // 8) % 8]
    return SERIES[number % 8], mark, character, DASHES[number % 5]


def is_drawn(value):
    """Axes reach to powers of ten around it, and beyond a double there are none."""
    return value is not None and 1e-300 <= value <= 1e300


def length_text(length):
    whole = round(length)
    return f"{whole // 1024}K" if whole >= 100_000 and whole % 1024 == 0 else f"{whole:,}"


def quantity_text(quantity, value):
    if quantity == "seconds":
        return f"{value:.3g} s"
    unit, size = next(((unit, size) for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)) if abs(value) >= size), ("B", 1))
    return f"{value / size:.4g} {unit}"


def canvas(height, title):
    figure = Figure(figsize=(4.6, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=9.5, color=INK)
    for spine in axes.spines.values():
        spine.set_color(LINE)
    axes.tick_params(color=LINE, labelcolor=INK)
    return figure, axes


def embedded(figure, title, prefix):
    """The drawing as an element of a page: with ids of its own, and no address of anything outside it."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = file.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text[text.index("<svg"):], flags=re.DOTALL)
    box = re.search(r'viewBox="([^"]*)"', text)[1]
    text = f'<svg viewBox="{box}" role="img" aria-label="{title}">' + text[text.index(">") + 1:]
    ids = set(re.findall(r'\bid="([^"]+)"', text))
    used = {name for name in re.findall(r'(?:url\(|href=")#([^")]+)', text) if name in ids}
    text = re.sub(r' id="([^"]+)"', lambda match: f' id="{prefix}{match[1]}"' if match[1] in used else "", text)
    text = re.sub(r'(url\(|href=")#([^")]+)', lambda match: f"{match[1]}#{prefix if match[2] in used else ''}{match[2]}", text)
    for i, colour in enumerate(SERIES):
        text = text.replace(colour, f"var(--c{i})")
    text = text.replace(INK, "var(--ink)").replace(LINE, "var(--line)").replace("xlink:href", "href")
    # A hundredth of a point, and no spaces that say nothing: a third of the page.
    short = re.sub(r"<[^>]*>", lambda tag: re.sub(r"\s+", " ", re.sub(r"(\.\d\d)\d{3,}", r"\1", tag[0])), text)
    return re.sub(r">\s+<", "><", short)


def value_ticks(low, high):
    """1, 2, 5, 10, ... where they are few, else powers of ten."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [factor * 10.0**power for power in decades for factor in (1, 2, 5) if low <= factor * 10.0**power <= high]
    tens = [10.0**power for power in decades if low <= 10.0**power <= high]
    return (ticks if len(ticks) <= 8 else tens[:: max(1, len(tens) // 6)]) or [low]


def length_ticks(lengths):
    """Those that have room, from the longest down."""
    width = math.log(lengths[-1] / lengths[0]) or 1.0
    shown = []
    for length in reversed(lengths):
        if not shown or math.log(shown[-1] / length) > 0.13 * width:
            shown.append(length)
    return shown


def draw_lines(plot, prefix):
    points = [point for series in plot["series"] for point in series["points"]]
    values = [point.get(name, point["value"]) for point in points for name in ("low", "value", "high")]
    if not points or not all(is_drawn(one) for one in (*values, *(point["length"] for point in points))):
        return
    figure, axes = canvas(3.1, plot["title"])
    axes.set(xscale="log", yscale="log", xlabel="tokens")
    axes.xaxis.label.set_color(INK)
    axes.grid(True, axis="y", color=LINE, linewidth=0.6)
    for i, series in enumerate(plot["series"]):
        colour, mark, _, line = look(series["colour"])
        x, y = [p["length"] for p in series["points"]], [p["value"] for p in series["points"]]
        if x:
            # Later curves are narrower: of two that are the same, both are seen.
            axes.plot(x, y, color=colour, linestyle=line, linewidth=max(1.1, 2.4 - 0.3 * i))
            axes.scatter(x, y, s=22, marker=mark, color=colour, linewidths=0, zorder=3, urls=[f"#{p['anchor']}" for p in series["points"]])
            low, high = ([p.get(name, p["value"]) for p in series["points"]] for name in ("low", "high"))
            if low != high:
                axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
        if series["lost"]:
            axes.scatter([p["length"] for p in series["lost"]], [1.0] * len(series["lost"]), s=34, marker="x", color=colour, clip_on=False, zorder=4,
                         transform=axes.get_xaxis_transform(), urls=[f"#{p['anchor']}" for p in series["lost"]])
    lengths = sorted({p["length"] for series in plot["series"] for p in (*series["points"], *series["lost"])})
    least, most = min(values), max(values)
    axes.set_xlim(lengths[0] / 1.12, lengths[-1] * 1.12)
    room = (most / least) ** 0.06 if most > 1.2 * least else 1.1
    axes.set_ylim(least / room, most * room)
    for axis, ticks, text in ((axes.xaxis, length_ticks(lengths), length_text),
                              (axes.yaxis, value_ticks(*axes.get_ylim()), lambda value: quantity_text(plot["quantity"], value))):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _, text=text: text(value)))
    yield embedded(figure, plot["title"], prefix)


def order(purpose):
    return list(PURPOSES).index(purpose) if purpose in PURPOSES else len(PURPOSES)


def draw_bars(plot, prefix):
    for title, hidden in (("Beyond weights, gradients and optimizer", RESIDENT), ("All that is alive at the peak", ())):
        bars = [(bar, {name: bar["parts"][name] for name in sorted(bar["parts"], key=order) if name not in hidden and is_drawn(bar["parts"][name])})
                for bar in plot["bars"]]
        most = max(sum(parts.values()) for _, parts in bars)
        if not is_drawn(most):
            continue
        figure, axes = canvas(0.5 + 0.42 * len(bars), title)
        axes.set_axis_off()
        axes.set(xlim=(0, most), ylim=(len(bars) - 0.35, -0.65))
        for row, (bar, parts) in enumerate(bars):
            left = 0.0
            axes.text(0, row - 0.28, f"{bar['name']}: {quantity_text('bytes', sum(parts.values()))}", color=INK, va="bottom")
            for purpose, count in parts.items():
                if count >= 0.001 * most:
                    (rectangle,) = axes.barh(row, count, 0.5, left, color=PURPOSES.get(purpose, "#aaaaaa"))
                    rectangle.set_url(f"#{bar['anchor']}" if bar["anchor"] else None)
                left += count
        yield embedded(figure, title, f"{prefix}{len(hidden)}")


def draw_timeline(plot, prefix):
    most = max((count for curve in plot["curves"] for count in curve["bytes"]), default=0)
    if not is_drawn(most):
        return
    figure, axes = canvas(3.1, plot["title"])
    axes.set(xlim=(0, 1), ylim=(0, 1.05 * most), xlabel="of the pass, begin to end", xticks=[])
    axes.xaxis.label.set_color(INK)
    axes.grid(True, axis="y", color=LINE, linewidth=0.6)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: quantity_text("bytes", value)))
    for curve in plot["curves"]:
        axes.plot(curve["time"], curve["bytes"], color=look(curve["colour"])[0], linewidth=1.4)
    yield embedded(figure, plot["title"], prefix)


DRAW = {"lines": draw_lines, "bars": draw_bars, "timeline": draw_timeline}


def drawings(plots, prefix):
    return [svg for i, plot in enumerate(plots) for svg in DRAW[plot["kind"]](plot, f"{prefix}{i}-")]


def legend(plots):
    """(character, colour, name) of each series or purpose."""
    entries = {}
    for plot in plots:
        for purpose in sorted({name for bar in plot.get("bars", ()) for name in bar["parts"]}, key=order):
            entries[purpose] = ("■", PURPOSES.get(purpose, "#aaaaaa"))
        for series in (*plot.get("series", ()), *plot.get("curves", ())):
            entries[series["name"]] = (look(series["colour"])[2] if "points" in series else "■", f"var(--c{series['colour'] % 8})")
    return [(character, colour, name) for name, (character, colour) in entries.items()]
