#!/usr/bin/env python3
"""Runs one test of the Python package in the environment that has Hugging Face's libraries; exit code 77, for "skipped", where there is none.

    run_test.py LIBRARY TEST.py     LIBRARY: libstreambp_torch.so of the build under test

scripts/test.sh makes the environment (scripts/python_environment.py). Without a network it can't, and ctest then lists the tests as skipped.
"""

import os
import sys
from pathlib import Path

from imports import environment, hand_over, venv_python

SKIPPED = 77


def main():
    library, test = (Path(argument).absolute() for argument in sys.argv[1:3])
    python = venv_python()
    if not python.exists():
        print(f"{test.name}: skipped: no {python}; python3 scripts/python_environment.py makes it, with a network")
        return SKIPPED
    arguments, variables = [str(test), *sys.argv[3:]], environment(library)
    sys.stdout.flush()
    if served_at := os.environ.get("STREAMBP_IMPORTS"):
        code = hand_over(served_at, arguments, variables)
        if code is not None:
            return code
    os.execve(python, [str(python), "-W", "ignore::FutureWarning", *arguments], variables)


if __name__ == "__main__":
    sys.exit(main())
