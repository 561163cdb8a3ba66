#!/usr/bin/env python3
"""Runs the command blocks of README.md and bench/longest.md as a reader would, and checks what the pages say against the files that are there.

    scripts/house/check_readme.py                        with the programs in build/release/bin
    scripts/house/check_readme.py --bin DIR --pages-only

1. Every block marked `sh` in these two runs without an error, all in one shell and one folder. Long sweeps are shortened.
2. The longest sequences that their tables state are those that the commands print, and `compare` says what is quoted.
3. Every relative link, and every path that names a file of a room in backquotes, leads to a file, in all pages, and to a heading where it names one.
4. Every script of scripts/ has --help, and prints the comment that it begins with.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = {"README.md": (3, 5), "bench/longest.md": (2, 6)}  # with at least so many blocks of commands, and longest sequences in tables
SHORTER = {"--seq-len 1024,2048": "--seq-len 32,64", "--seq-len 1024": "--seq-len 64", "--steps 20": "--steps 2"}
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
ROOM_PATH = re.compile(r"`((?:\.\./)*(?:scripts|streambp|bench|verify|reference|results)/[\w./-]*\.(?:sh|py|cc|h|md|cu|cuh|jsonl|cmake))\b")


def run_blocks(bin_folder):
    """What the blocks print. They run in a folder that holds links to the project's, so that what they write stays out of it."""
    blocks = []
    for page, (least, _) in PAGES.items():
        found = re.findall(r"^```sh\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
        if len(found) < least:
            raise SystemExit(f"{page}: {len(found)} command blocks, expected {least} or more")
        blocks += found
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
        raise SystemExit(f"a command failed with exit code {done.returncode}")
    return done.stdout


def check_figures(printed):
    wrong = []
    for page, (_, least) in PAGES.items():
        tables = re.findall(r"^\|[^\n]*predicted by these commands \| longest sequence \|\n(.*?)\n$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
        stated = re.findall(r"^\|.*\| ([\d,]+) \|$", "\n".join(tables), re.MULTILINE)
        if len(stated) < least:
            raise SystemExit(f"{page}: {len(stated)} rows in tables of longest sequences, expected {least} or more")
        wrong += [f"{page}: '{number}' is not what its commands print" for number in stated if not re.search(rf"\b{number.replace(',', '')}\b", printed)]
    quoted = re.search(r"prints `(exact: [^`]*)`", (ROOT / "README.md").read_text())[1]
    return wrong + [f"README.md: '{quoted}' is not what its commands print"] * (quoted not in printed)


def anchors(text):
    """What GitHub calls the headings of a page: small letters, digits, - and _ of what is read, - for a space; the second of a name ends in -1."""
    found, times = [], {}
    for heading in re.findall(r"^#{1,6} +(.*?)(?: +#+)? *$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE):
        read = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", read.lower()).replace(" ", "-")
        found.append(f"{slug}-{times[slug]}" if slug in times else slug)
        times[slug] = times.get(slug, 0) + 1
    return found + re.findall(r"<a (?:name|id)=\"([^\"]+)\"", text)


def complaint_of_link(page, text, target, anchor):
    """Why a link of a page with this text leads nowhere, or None."""
    if target.startswith(("http:", "https:")):
        return None
    path = page.parent / target if target else page
    if not path.exists():
        return f"link to {target}, which is not there"
    if anchor and path.suffix == ".md" and anchor not in anchors(text if path == page else path.read_text()):
        return f"link to {target}#{anchor}, where no heading is called that"
    return None


def check_paths():
    wrong = []
    listing = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, text=True, capture_output=True, check=True)
    for name in listing.stdout.split():
        page = ROOT / name
        text = page.read_text()
        wrong += [f"{name}: {complaint}" for target, anchor in LINK.findall(text) if (complaint := complaint_of_link(page, text, target, anchor))]
        for target in ROOM_PATH.findall(text):
            if not (ROOT / target).exists() and not (page.parent / target).exists():
                wrong.append(f"{name}: names {target}, which is not there")
    return wrong


def check_help():
    wrong = []
    for script in sorted((ROOT / "scripts").glob("*.sh")):
        said = re.match(r"#!.*\n((?:#.*\n)+)", script.read_text())
        if said is None:  # sourced alone
            continue
        done = subprocess.run([script, "--help"], text=True, capture_output=True)
        if done.returncode != 0 or done.stdout != re.sub(r"^# ?", "", said[1], flags=re.MULTILINE):
            wrong.append(f"{script.relative_to(ROOT)} --help: exit code {done.returncode}, and not the comment that it begins with")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin", help="folder of the programs")
    parser.add_argument("--pages-only", action="store_true", help="check links and paths alone, run nothing")
    arguments = parser.parse_args()
    wrong = check_paths() + check_help()
    if not arguments.pages_only:
        wrong += check_figures(run_blocks(arguments.bin.resolve()))
    print("\n".join(wrong) if wrong else "README.md and the other pages hold")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
