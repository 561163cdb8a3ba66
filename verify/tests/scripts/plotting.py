"""scripts/plot.py as a program of its own, forked from a process that has matplotlib: each start takes it a second."""

import os
import sys
from pathlib import Path

PROJECT = Path(sys.argv[1]).absolute()
SCRIPTS = PROJECT / "scripts"
os.environ["PYTHONPATH"] = str(SCRIPTS)
sys.path[:0] = [str(SCRIPTS), str(PROJECT / "verify/tests/streambp/python")]

import pictures.style  # noqa: E402, F401 - what takes the second
from imports import run_forked  # noqa: E402


def plot(*arguments):
    """(exit code, stdout, stderr)"""
    return run_forked(SCRIPTS / "plot.py", *arguments)
