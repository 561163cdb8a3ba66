#!/usr/bin/env python3
"""Where the records under results/ come from: machine, commit, versions. What names none of them, or a changed checkout, is no evidence.

    scripts/provenance.py            writes the table of results/README.md anew
    scripts/provenance.py --check    exit code 1 where the table is another (but for the commits since), or a record's environment lacks a member
                                     or versions of libraries, has modified sources or a commit that HEAD does not descend from
    scripts/provenance.py --behind   prints for each folder how many commits, and how many to the engine, are newer than its records
    scripts/provenance.py --fresh NAME   exit code 1 where results/NAME has no records, incomplete ones, or older ones than the engine

Records that were made before every driver wrote its environment are named in OLD by their folder, and the table says of them what is missing;
that alone is excused. A folder that is made again leaves that list.
"""

import argparse
import json
import re
import sys
from pathlib import Path

from files import run, write_file
from machine import ROOT, git

RESULTS = ROOT / "results"
ENGINE = ("streambp", ":!*.md")
PAGE = RESULTS / "README.md"
BEGIN, END = "<!-- scripts/provenance.py -->\n", "<!-- end -->\n"
MEMBERS = ("argv", "commit", "cores", "cpu", "date", "modified")
# Folder that holds the file of records, below results/: what they lack.
OLD = {
    "cuda/hugging-face": "of Hugging Face's rows: processor, date, command, whether sources were modified",
}


def environments(folder):
    """The environment of every record below a folder of results/."""
    for path in sorted(folder.rglob("*.jsonl")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            record = json.loads(line)
            made = record.get("environment") or {name: record[name] for name in ("commit", "machine") if name in record}
            # Records of the matrix state torch beside their environment.
            yield f"{path.relative_to(ROOT)}:{number}", {**({"torch": record["torch"]} if "torch" in record else {}), **made}


def complaint(made, known, excused=False):
    """What is wrong with an environment, or None; known: by commit, whether HEAD descends from it; excused: members may be missing."""
    missing = [name for name in MEMBERS if name not in made]
    if "torch" not in made and "libraries" not in made:
        missing.append("versions of libraries")
    if missing and not excused:
        return f"its environment has no {', '.join(missing)}"
    if made.get("modified"):
        return "it was made by modified sources"
    if ", modified)" in made.get("program", ""):
        return "its program was built from modified sources"
    commit = made.get("commit")
    if commit not in known:
        known[commit] = bool(commit) and git("merge-base", "--is-ancestor", commit, "HEAD", code=True) == 0
    return None if known[commit] else f"HEAD does not descend from its commit {commit}"


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
    lacks = "; ".join(text for name, text in OLD.items() if Path(name).parts[0] == folder.name)
    since = max((newer(commit, *ENGINE) for commit in commits), default="")
    return f"| [{folder.name}]({folder.name}) | {len(found):,} | {'; '.join(machines)} | {' '.join(few)} | {when} | {lacks} | {since} |"


def table():
    return "\n".join(["| folder | records | machine | commit | date | not stated | commits to the engine since |", "|---|---:|---|---|---|---|---:|", *map(row, folders())]) + "\n"


def without_ages(text):
    """A page whose rows end before the last column, which every commit changes."""
    return re.sub(r"^(\| \[.*\|)[^|]*\|$", r"\1", text, flags=re.MULTILINE)


def problems():
    """Lines about records that are no evidence and that the table does not say so of."""
    known = {}
    for folder in folders():
        found, lacking = [], set()
        for where, made in environments(folder):
            name = str(Path(where).parent.relative_to("results"))
            if text := complaint(made, known, excused=name in OLD):
                found.append(f"{where}: {text}")
            elif name in OLD and complaint(made, known):
                lacking.add(name)
        yield from found[:3]
        yield from (f"results/{name}: every record says where it comes from; take it out of OLD in scripts/provenance.py"
                    for name in OLD if Path(name).parts[0] == folder.name and name not in lacking)


def newer(commit, *where):
    """How many commits, to these files, came after; -1 of a commit that is not there."""
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
    if options.check and without_ages(written) != without_ages(text):
        complaints.append("results/README.md: its table of records is not that of scripts/provenance.py")
    print("\n".join(complaints), end="\n" if complaints else "", file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    run(main)
