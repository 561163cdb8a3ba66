#!/usr/bin/env python3
"""Runs the command blocks of README.md as a reader would, and checks what the pages say against the files that are there.

    scripts/check_readme.py                        with the programs in build/release/bin
    scripts/check_readme.py --bin DIR --pages-only

1. Every block marked `sh` in README.md runs without an error, all in one shell and one folder. Long sweeps are shortened.
2. The longest sequences that the README's table states are those that its commands print, and `compare` says what is quoted.
3. Every relative link, and every path that names a file of a room in backquotes, leads to a file, in all pages.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHORTER = {"--seq-len 1024,2048": "--seq-len 32,64", "--seq-len 1024": "--seq-len 64"}
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
ROOM_PATH = re.compile(r"`((?:\.\./)*(?:scripts|streambp|bench|verify|reference|results)/[\w./-]*\.(?:sh|py|cc|h|md|cu|cuh|jsonl|cmake))\b")


def run_blocks(bin_folder):
    """What the blocks print. They run in a folder that holds links to the project's, so that what they write stays out of it."""
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    if len(blocks) < 4:
        raise SystemExit(f"README.md: {len(blocks)} command blocks, expected 4 or more")
    script = "set -euo pipefail\n" + "".join(blocks).replace("$PWD/build/release/bin", str(bin_folder))
    for long, short in SHORTER.items():
        script = script.replace(long, short)
    with tempfile.TemporaryDirectory() as folder:
        for entry in ROOT.iterdir():
            if entry.name != "out":
                (pathlib.Path(folder) / entry.name).symlink_to(entry)
        done = subprocess.run(["bash", "-xc", script], cwd=folder, text=True, capture_output=True)
    print(done.stdout, done.stderr, sep="\n")
    if done.returncode != 0:
        raise SystemExit(f"README.md: a command failed with exit code {done.returncode}")
    return done.stdout


def check_figures(printed):
    text = (ROOT / "README.md").read_text()
    section = re.search(r"^## What fits my card\?$(.*?)^## ", text, re.DOTALL | re.MULTILINE)[1]
    stated = re.findall(r"^\|.*\| ([\d,]+) \|$", section, re.MULTILINE)
    if len(stated) < 5:
        raise SystemExit(f"README.md: {len(stated)} rows in the table of what fits, expected 5 or more")
    wrong = [number for number in stated if not re.search(rf"\b{number.replace(',', '')}\b", printed)]
    quoted = re.search(r"prints `(exact: [^`]*)`", text)[1]
    return [f"README.md: '{words}' is not what its commands print" for words in wrong + [quoted] * (quoted not in printed)]


def check_paths():
    wrong = []
    listing = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, text=True, capture_output=True, check=True)
    for name in listing.stdout.split():
        page = ROOT / name
        text = page.read_text()
        for target in LINK.findall(text):
            if not target.startswith(("http:", "https:")) and not (page.parent / target).exists():
                wrong.append(f"{name}: link to {target}, which is not there")
        for target in ROOM_PATH.findall(text):
            if not (ROOT / target).exists() and not (page.parent / target).exists():
                wrong.append(f"{name}: names {target}, which is not there")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin", help="folder of the programs")
    parser.add_argument("--pages-only", action="store_true", help="check links and paths alone, run nothing")
    arguments = parser.parse_args()
    wrong = check_paths()
    if not arguments.pages_only:
        wrong += check_figures(run_blocks(arguments.bin.resolve()))
    print("\n".join(wrong) if wrong else "README.md and the other pages hold")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
