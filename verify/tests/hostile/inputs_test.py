#!/usr/bin/env python3
"""Hostile inputs: each has to be refused with exit code 2 and one line that says what is wrong, at once.

    inputs_test.py BIN GOLDENS [--all] [--only REGEX] [--timeout SECONDS] [--list]

BIN holds the programs, GOLDENS is verify/goldens. Each case is a process of its own with 4 GiB of address space. A fault
is a signal, a wrong exit code, more or less than one line on stderr, a line of more than 1000 characters, characters that
a terminal would obey, words of libraries, or no answer in time (running.py). Without --all a selection of a minute.
Standard library only.
"""

import argparse
import re
import sys
import tempfile
from pathlib import Path

import input_files
import input_flags
import input_runs
from running import run
from stored import Workshop


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=Path)
    parser.add_argument("goldens", type=Path)
    parser.add_argument("--all", action="store_true", help="every case: minutes")
    parser.add_argument("--only", default="", help="cases whose names match, of all")
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--memory", type=int, default=4, help="GiB of address space; 0: no limit, as sanitizers need")
    parser.add_argument("--list", action="store_true", help="print the cases' names, and run none")
    options = parser.parse_args()
    programs = [str((options.bin / name).resolve()) for name in ("streambp-bench", "streambp-verify")]
    with tempfile.TemporaryDirectory(prefix="streambp-hostile-") as folder:
        shop = Workshop(folder, options.goldens.resolve())
        cases = [case for kind in (input_files, input_flags, input_runs) for case in kind.all_cases(*programs, shop)]
        if options.only:
            cases = [case for case in cases if re.search(options.only, case.name)]
        elif not options.all:
            cases = [case for case in cases if case.quick]
        if options.list:
            print("\n".join(ascii(case.name)[1:-1] for case in cases))
            return 0
        wrong, slowest = 0, (0.0, "")
        for case in cases:
            faults, err, seconds = run(case, options.timeout, options.memory << 30)
            slowest = max(slowest, (seconds, case.name))
            if faults:
                wrong += 1
                print(f"FAILED: {ascii(case.name)[1:-1]}: {'; '.join(faults)}\n    stderr: {ascii(err[:300])[1:-1]}", flush=True)
    print(f"{len(cases)} cases, {wrong} failed; the slowest took {slowest[0]:.1f} s ({ascii(slowest[1])[1:-1]})")
    return 1 if wrong or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
