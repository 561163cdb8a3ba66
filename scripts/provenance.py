#!/usr/bin/env python3
"""Where the records under results/ come from: machine, commit, versions. What names none of them, or a changed checkout, is no evidence.

    scripts/provenance.py            writes the table of results/README.md anew
    scripts/provenance.py --check    exit code 1 where the table is another, or a record's environment lacks a member, has modified sources or a
                                     commit that HEAD does not descend from
    scripts/provenance.py --behind   prints for each folder how many commits, and how many to the engine, are newer than its records
    scripts/provenance.py --fresh NAME   exit code 1 where results/NAME has no records, incomplete ones, or older ones than the engine

Records that were made before every driver wrote its environment are named in OLD, and the table says of them what is missing; a folder that
is made again leaves that list.
"""

import argparse
import json
import sys
from pathlib import Path

from files import run, write_file
from machine import ROOT, git

RESULTS = ROOT / "results"
ENGINE = ("streambp", ":!*.md")
PAGE = RESULTS / "README.md"
BEGIN, END = "<!-- scripts/provenance.py -->\n", "<!-- end -->\n"
MEMBERS = ("argv", "commit", "cores", "cpu", "date", "modified")
# Folder, below results/: what its records lack.
OLD = {
    "cuda": "the machine of table 8; what is measured names its GPU",
    "paper-times-cpu": "unmodified sources",
    "qwen3.5-2": "the machine, in rows of Hugging Face",
}


def environments(folder):
    """The environment of every record below a folder of results/."""
    for path in sorted(folder.rglob("*.jsonl")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            record = json.loads(line)
            yield f"{path.relative_to(ROOT)}:{number}", record.get("environment") or {name: record[name] for name in ("commit", "machine") if name in record}


def complaint(made, known):
    """What is wrong with an environment, or None; known: by commit, whether HEAD descends from it."""
    missing = [name for name in MEMBERS if name not in made]
    if missing:
        return f"its environment has no {', '.join(missing)}"
    if made["modified"]:
        return "it was made by modified sources"
    if ", modified)" in made.get("program", ""):
        return "its program was built from modified sources"
    if made["commit"] not in known:
        known[made["commit"]] = git("merge-base", "--is-ancestor", made["commit"], "HEAD", code=True) == 0
    return None if known[made["commit"]] else f"HEAD does not descend from its commit {made['commit']}"


def folders():
    return sorted(path for path in RESULTS.iterdir() if path.is_dir() and any(path.rglob("*.jsonl")))


def machine_of(made):
    return made.get("gpu") or made.get("cpu") or made.get("machine")


def row(folder):
    found = [made for _, made in environments(folder)]
    machines = dict.fromkeys(filter(None, map(machine_of, found)))
    commits = dict.fromkeys(str(made["commit"])[:10] for made in found if made.get("commit"))
    dates = sorted(made["date"][:10] for made in found if made.get("date"))
    when = "" if not dates else dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    few = list(commits)[:3] + ([f"and {len(commits) - 3} more"] if len(commits) > 3 else [])
    return f"| [{folder.name}]({folder.name}) | {len(found):,} | {'; '.join(machines)} | {' '.join(few)} | {when} | {OLD.get(folder.name, '')} |"


def table():
    return "\n".join(["| folder | records | machine | commit | date | not stated |", "|---|---:|---|---|---|---|", *map(row, folders())]) + "\n"


def problems():
    """Lines about records that are no evidence and that the table does not say so of."""
    known = {}
    for folder in folders():
        found = [f"{where}: {text}" for where, made in environments(folder) if (text := complaint(made, known))]
        if folder.name not in OLD:
            yield from found[:3]
        elif not found:
            yield f"results/{folder.name}: every record says where it comes from; take it out of OLD in scripts/provenance.py"


def newer(commit, *where):
    """How many commits, to these files, came after."""
    return int(git("rev-list", "--count", f"{commit}..HEAD", "--", *where) or -1)


def is_fresh(folder):
    found, known = [made for _, made in environments(folder)], {}
    return bool(found) and not any(complaint(made, known) or newer(made["commit"], *ENGINE) for made in found)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--behind", action="store_true")
    parser.add_argument("--fresh", metavar="NAME")
    options = parser.parse_args()
    if options.fresh:
        return 0 if is_fresh(RESULTS / options.fresh) else 1
    if options.behind:
        for folder in folders():
            commits = dict.fromkeys(made["commit"] for _, made in environments(folder) if made.get("commit"))
            for commit in commits:
                print(f"{folder.name}: {commit[:10]}, {newer(commit)} commits behind, {newer(commit, *ENGINE)} of them to the engine")
        return 0
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    written = before + BEGIN + "\n" + table() + "\n" + END + rest.split(END)[1]
    if not options.check:
        write_file(PAGE, written)
    complaints = list(problems())
    if options.check and written != text:
        complaints.append("results/README.md: its table of records is not that of scripts/provenance.py")
    print("\n".join(complaints), end="\n" if complaints else "", file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    run(main)
