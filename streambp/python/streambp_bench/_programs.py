"""The commands streambp-bench and streambp-verify of a wheel: programs that lie next to the engine's library, run with the libraries of this torch."""

import importlib.util
import os
import re
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "lib"


def libraries_of(torch_folder):
    """The environment in which a program finds torch's libraries."""
    paths = [str(Path(torch_folder) / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, paths))}


def version_of(torch_folder):
    """Without importing it, which takes seconds."""
    return re.search(r"^__version__ = '(.*)'", (Path(torch_folder) / "version.py").read_text(), re.MULTILINE)[1]


def major_minor(version):
    """(2, 11) of "2.11.0+cu130": libtorch keeps its ABI within these."""
    return tuple(version.split("+")[0].split(".")[:2])


def _complain(text):
    print(f"streambp: {text}", file=sys.stderr)
    sys.exit(2)


def _become(name):
    """Runs the program instead of this process. Ends with a line and code 2 where it, or the torch that it was built with, is missing."""
    program = FOLDER / name
    if not program.is_file():
        _complain(f"{program}: no such file; the package was built without programs, scripts/wheel.sh makes a wheel with them")
    torch = importlib.util.find_spec("torch")
    if torch is None:
        _complain("no torch in this Python's packages, whose libraries the program needs; install it there")
    folder = torch.submodule_search_locations[0]
    built = (FOLDER / "libstreambp_torch.torch").read_text().strip()
    if major_minor(built) != major_minor(version_of(folder)):
        _complain(f"{program}: built with torch {built}, this is torch {version_of(folder)}; install the wheel for its minor version")
    # Pages are drawn by this Python, unless the environment names another.
    os.execve(program, [str(program), *sys.argv[1:]], {"STREAMBP_PYTHON": sys.executable, **libraries_of(folder)})


def bench():
    _become("streambp-bench")


def verify():
    _become("streambp-verify")
