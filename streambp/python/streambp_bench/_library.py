"""Finds and loads libstreambp_torch.so, the engine: a library of torch's operators and classes, without Python's ABI."""

import os
import re
import threading
from pathlib import Path

import torch

from ._programs import major_minor

LIBRARY = "libstreambp_torch.so"
REBUILD = "rebuild it with `scripts/python.sh VENV`, or `pip install --no-build-isolation .`, in streambp's folder"
PREFIX = "streambp: "

_lock = threading.Lock()
_classes = None


class InputError(ValueError):
    """What was given can't be computed: the message names the thing, the quantity and what to do, in one line."""


def library_path():
    """The file that `STREAMBP_TORCH_LIBRARY` names, else the one in the package's folder `lib`. Raises InputError where there is none."""
    given = os.environ.get("STREAMBP_TORCH_LIBRARY")
    path = Path(given) if given else Path(__file__).parent / "lib" / LIBRARY
    if not path.is_file():
        source = "STREAMBP_TORCH_LIBRARY" if given else "the package is not installed with its library"
        raise InputError(f"{path}: no such file ({source}); {REBUILD}")
    return path


def check_version(built_with, path):
    """Raises InputError unless the running torch is the one, to its minor version, that `path` was built with."""
    if major_minor(built_with) != major_minor(torch.__version__):
        raise InputError(f"{path}: built with torch {built_with}, this is torch {torch.__version__}; {REBUILD}")


def library():
    """`torch.classes.streambp`, loaded once in a process.

    The version of torch that the library was built with stands in a text file next to it, and is compared before it is loaded: another
    torch's library may not even load. With it comes the library's CPU allocator, which keeps freed blocks of a megabyte and more and counts
    bytes (`STREAMBP_METER=off` leaves torch's own in place).

    Raises InputError for a library that is missing, can't be loaded, or was built with another torch.
    """
    global _classes
    with _lock:
        if _classes is None:
            _classes = _load(library_path())
    return _classes


def _load(path):
    version = path.with_suffix(".torch")
    if version.is_file():
        check_version(version.read_text().strip(), path)
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise InputError(f"{path}: can't be loaded with torch {torch.__version__} ({first_line(error)}); {REBUILD}") from None
    check_version(torch.ops.streambp.built_with(), path)
    if os.environ.get("STREAMBP_METER", "") != "off":
        torch.ops.streambp.meter_install()
    return torch.classes.streambp


def once(kept):
    """`kept`, what a streamed loss holds for its backward pass. Raises RuntimeError where it is None: given away already."""
    if kept is None:
        raise RuntimeError("Trying to backward through the graph of a streamed loss a second time: its gradients are computed once, "
                           "and were given to the first; compute the loss again")
    return kept


def first_line(error):
    """The first line of an error's message: torch appends its own call stack."""
    return (str(error).splitlines() or [""])[0].strip()


def checked(call, *args):
    """`call(*args)`; an error of the engine's that begins with "streambp: " becomes an InputError with the text after that.

    Flags of the command line in it become the settings of these names: --head-chunk, head_chunk.
    """
    try:
        return call(*args)
    except RuntimeError as error:
        text = first_line(error)
        if not text.startswith(PREFIX):
            raise
        message = re.sub(r"--([a-z]+(-[a-z]+)*)", lambda flag: flag[1].replace("-", "_"), text[len(PREFIX):])
    raise InputError(message)
