"""What the scripts that draw share: colours, plain axes, sizes, files that stay the same for the same figures."""

import io
import sys
import textwrap

try:
    import matplotlib
except ImportError as error:
    sys.exit(f"{sys.argv[0]}: {error}: run it with .venv/bin/python, which scripts/setup.sh makes")

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.backend_bases import RendererBase  # noqa: E402
from matplotlib.backends.backend_pgf import RendererPgf  # noqa: E402
from matplotlib.text import Text  # noqa: E402
from matplotlib.transforms import Bbox  # noqa: E402

from files import InputError, write_file  # noqa: E402
from pictures.latex import latex_text  # noqa: E402

# Okabe and Ito's palette, distinguishable by every common kind of colour blindness.
COLOURS = {"standard": "#D55E00", "checkpoint": "#0072B2", "streambp": "#009E73"}
FORMATS = ("png", "svg", "pdf", "pgf")
# What the same figures give must be the same file: no dates.
UNDATED = {"svg": {"metadata": {"Date": None}}, "pdf": {"metadata": {"CreationDate": None}}}
# Inches: a column of a paper of two, and the width of its text.
PAPER_SIZES = {"column": (3.25, 2.5), "text": (6.75, 2.8)}

plt.rcParams["svg.hashsalt"] = "streambp"
plt.rcParams["text.parse_math"] = False  # a dollar sign in somebody's model name is one
plt.rcParams["pdf.fonttype"] = 42  # fonts that publishers take
plt.rcParams["pgf.rcfonts"] = False  # the document's fonts
# Matplotlib would run a TeX to measure texts. Its own font is near enough, and no TeX has to be there.
RendererPgf.get_text_width_height_descent = RendererBase.get_text_width_height_descent


class Look:
    """A picture to be read by itself, with a title and names at the ends of its curves, or (size in inches) a figure of a paper, whose
    caption stands elsewhere: small type and a legend below."""

    def __init__(self, size=None):
        self.paper = size is not None
        self.size = size
        self.line, self.mark = (1.2, 3.5) if self.paper else (2, 5.5)
        self.small, self.cross = (6.5, 8) if self.paper else (9.5, 12)
        plt.rcParams.update({"font.size": 7.5 if self.paper else 10.5, "svg.fonttype": "none"})
        if self.paper:
            plt.rcParams.update({"axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6})

    def figure(self, panels, size):
        """The figure and its axes. A paper's column has panels above one another, its text side by side; `size` is that of no paper."""
        if not self.paper:
            return plt.subplots(1, panels, figsize=size, squeeze=False)
        width, height = self.size
        narrow = panels > 1 and width < 5
        rows, columns = (panels, 1) if narrow else (1, panels)
        return plt.subplots(rows, columns, figsize=(width, height * rows), squeeze=False, layout="constrained")

    def legend(self, figure, handles, names, title=None):
        """Below the axes, in as many columns as there is room for."""
        names = ["\n".join(textwrap.wrap(name, max(20, int(self.size[0] * 18)))) for name in names]
        for columns in range(min(4, len(names)), 0, -1):
            legend = figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=6.5, title=title, title_fontsize=6.5,
                                   handlelength=2.4, columnspacing=1.2)
            figure.canvas.draw()
            if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
                return
            legend.remove()


def look_of(text):
    """Of --size: "page", a name of PAPER_SIZES, or WIDTHxHEIGHT in inches."""
    if text == "page":
        return Look()
    if text in PAPER_SIZES:
        return Look(PAPER_SIZES[text])
    try:
        width, height = map(float, text.split("x"))
        if not (1 <= width <= 50 and 1 <= height <= 50):
            raise ValueError
    except ValueError:
        raise InputError(f"--size {text}: expected page, {', '.join(PAPER_SIZES)}, or WIDTHxHEIGHT in inches, 1 to 50 each") from None
    return Look((width, height))


def plain(axes):
    """A light grid behind the curves, and no frame above and to the right."""
    axes.grid(True, which="major", color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def save(figure, stem, dpi=150, formats=("png", "svg")):
    """Writes stem.png and so on, says where, and closes the figure. What lies beyond its edges makes it larger: nothing is cut off."""
    figure.canvas.draw()
    edges, needed = figure.bbox_inches, figure.get_tightbbox()
    overflows = needed.x0 < edges.x0 or needed.y0 < edges.y0 or needed.x1 > edges.x1 or needed.y1 > edges.y1
    whole = Bbox.union([edges, needed.padded(0.1)]) if overflows else None
    for ending in sorted(formats, key=FORMATS.index):  # PGF last: its texts are TeX from then on
        if ending == "pgf":
            for text in figure.findobj(Text):
                text.set_text(latex_text(text.get_text()))
        path = f"{stem}.{ending}"
        # No date and fixed ids: the same figures give the same file.
        picture = io.BytesIO()
        figure.savefig(picture, format=ending, dpi=dpi, bbox_inches=whole, **UNDATED.get(ending, {}))
        write_file(path, picture.getvalue())
        print(path)
    plt.close(figure)
