"""What the scripts that draw share: colours, plain axes, files that stay the same for the same figures, errors of one line."""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

from printable import printable  # noqa: E402

# Okabe and Ito's palette, distinguishable by every common kind of colour blindness.
COLOURS = {"standard": "#D55E00", "checkpoint": "#0072B2", "streambp": "#009E73"}

plt.rcParams["svg.hashsalt"] = "streambp"
plt.rcParams["text.parse_math"] = False  # a dollar sign in somebody's model name is one


class InputError(Exception):
    """Bad input: the message is one line for the user."""


def read_text(path):
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: can't be read: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None


def plain(axes):
    """A light grid behind the curves, and no frame above and to the right."""
    axes.grid(True, which="major", color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def save(figure, stem, dpi=150):
    """Writes stem.png and stem.svg, says where, and closes the figure."""
    for ending in ("png", "svg"):
        path = f"{stem}.{ending}"
        # No date and fixed ids: the same figures give the same file.
        figure.savefig(path, dpi=dpi, metadata={"Date": None} if ending == "svg" else None)
        print(path)
    plt.close(figure)


def run(main):
    """Calls main(); bad input is one line on stderr and exit code 2."""
    try:
        main()
    except InputError as error:
        print(f"{Path(sys.argv[0]).name}: {printable(error, 900)}", file=sys.stderr)
        sys.exit(2)
