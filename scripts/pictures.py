"""What the scripts that draw share: colours, plain axes, files that stay the same for the same figures."""

import io
import sys

try:
    import matplotlib
except ImportError as error:
    sys.exit(f"{sys.argv[0]}: {error}: run it with .venv/bin/python, which scripts/setup.sh makes")

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.transforms import Bbox  # noqa: E402

from files import write_file  # noqa: E402

# Okabe and Ito's palette, distinguishable by every common kind of colour blindness.
COLOURS = {"standard": "#D55E00", "checkpoint": "#0072B2", "streambp": "#009E73"}

plt.rcParams["svg.hashsalt"] = "streambp"
plt.rcParams["text.parse_math"] = False  # a dollar sign in somebody's model name is one


def plain(axes):
    """A light grid behind the curves, and no frame above and to the right."""
    axes.grid(True, which="major", color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def save(figure, stem, dpi=150):
    """Writes stem.png and stem.svg, says where, and closes the figure. What lies beyond its edges makes it larger: nothing is cut off."""
    figure.canvas.draw()
    edges, needed = figure.bbox_inches, figure.get_tightbbox()
    overflows = needed.x0 < edges.x0 or needed.y0 < edges.y0 or needed.x1 > edges.x1 or needed.y1 > edges.y1
    whole = Bbox.union([edges, needed.padded(0.1)]) if overflows else None
    for ending in ("png", "svg"):
        path = f"{stem}.{ending}"
        # No date and fixed ids: the same figures give the same file.
        picture = io.BytesIO()
        figure.savefig(picture, format=ending, dpi=dpi, bbox_inches=whole, metadata={"Date": None} if ending == "svg" else None)
        write_file(path, picture.getvalue())
        print(path)
    plt.close(figure)
