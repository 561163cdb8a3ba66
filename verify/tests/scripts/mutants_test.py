#!/usr/bin/env python3
"""The named mistakes and the reasons of scripts/mutants.py fit the sources: each text stands there once, each reason names a line that exists.
mutants_test.py PROJECT"""

import sys
import tomllib
from pathlib import Path

PROJECT = Path(sys.argv[1])
MUTANTS = PROJECT / "verify/tests/mutants"


def faults(named, reasons):
    """A line for each entry that the sources have outgrown."""
    found = []
    for entry in named:
        text, lines = (PROJECT / entry["file"]).read_text(), entry["find"].rstrip("\n").count("\n")
        if text.count(entry["find"]) != 1:
            found.append(f"named.toml: '{entry['name']}': its text is {text.count(entry['find'])} times in {entry['file']}, expected once")
        if "$M" not in entry["replace"] or entry["replace"].rstrip("\n").count("\n") != lines:
            found.append(f"named.toml: '{entry['name']}': expected a replacement with $M and as many lines")
    for entry in reasons:
        file = PROJECT / entry["file"]
        if not file.is_file() or entry.get("line", "") not in file.read_text():
            found.append(f"reasons.toml: {entry['file']}: no such file, or without the line '{entry.get('line', '')}'")
    return found


named = tomllib.loads((MUTANTS / "named.toml").read_text())["mutant"]
reasons = tomllib.loads((MUTANTS / "reasons.toml").read_text())
reasons = next(iter(reasons.values()))
assert len({entry["name"] for entry in named}) == len(named), "two named mistakes have one name"
found = faults(named, reasons)
assert not found, "\n".join(found)
# It can fail.
moved = {**named[0], "find": "a text that is not there", "replace": "$M"}
assert len(faults([moved], [{"file": "streambp/none.cc"}, {"file": named[0]["file"], "line": "nor this one"}])) == 3
print(f"{len(named)} named mistakes and {len(reasons)} reasons hold")
