#!/usr/bin/env python3
"""Runs one test of the Python package in the environment that has Hugging Face's libraries; exit code 77, for "skipped", where there is none.

    run_test.py LIBRARY TEST.py     LIBRARY: libstreambp_torch.so of the build under test

scripts/test.sh makes the environment (scripts/python_environment.py). Without a network it can't, and ctest then lists the tests as skipped.
"""

import os
import sys
from pathlib import Path

SKIPPED = 77
ROOT = Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT / "scripts"))

from python_environment import venv_python  # noqa: E402


def main():
    library, test = (Path(argument).absolute() for argument in sys.argv[1:3])
    python = venv_python()
    if not python.exists():
        print(f"{test.name}: skipped: no {python}; python3 scripts/python_environment.py makes it, with a network")
        return SKIPPED
    paths = [ROOT / "streambp/python", ROOT / "scripts", test.parent]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "STREAMBP_TORCH_LIBRARY": str(library),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    sys.stdout.flush()
    os.execve(python, [str(python), "-W", "ignore::FutureWarning", str(test), *sys.argv[3:]], environment)


if __name__ == "__main__":
    sys.exit(main())
