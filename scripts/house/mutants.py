#!/usr/bin/env python3
"""Do the tests find the mistakes of this field? Each of verify/tests/mutants/named.toml is planted alone, and a fast test has to fail.

    .venv/bin/python scripts/house/mutants.py --out out/mutants        builds, tries, writes mutants.jsonl and mutants.md
    .venv/bin/python scripts/house/mutants.py --only 'window|AdamW'    those whose name or file matches
    scripts/house/mutants.py --check                                   that every text stands in the sources as named.toml has it

All are compiled into one copy of the project (build/mutants), where STREAMBP_MUTANT chooses one as a program starts. A run of each program without a
mistake says which of them it reaches and takes; a mistake is then tried with the programs that reach it, the quickest first, until one fails: it is killed.
Of the others, one that no program comes by is unreached, one with `excused = "why"` in named.toml changes nothing that a test could see, and any
other has survived. Exit codes: 0 all are killed or excused, 1 some are not, 2 bad usage or input.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/
from files import InputError, Parser, run, write_file
from machine import bench_program, environment, made_by

PROJECT = Path(__file__).resolve().parents[2]
NAMED = PROJECT / "verify/tests/mutants/named.toml"
CALL = "streambp::mutant"  # of verify/tests/mutants/runtime.cc: mutant(7) is true where mistake 7 is chosen
# Tests of many processes or of a device say nothing here that the others don't.
PROGRAMS = {name: [name, "--gtest_brief=1", "--gtest_fail_fast", "--gtest_filter=-*ProcessRanks*:*Rendezvous*:*RankMemory*:*FailingAllocation*"]
            for name in ("files_test", "objective_test", "bench_records_test", "verify_test", "distributed_test", "cuda_test", "library_test")}
PROGRAMS["goldens"] = ["streambp-verify", "goldens", "--quick", "verify/goldens", "--part", "1/4"]
PROGRAMS["equality"] = ["streambp-verify", "sweep", "--quick", "--part", "1/16"]


def mistakes(pattern=""):
    """Those of named.toml, numbered from 1; `pattern` chooses by name or file."""
    named = [{"number": i, **entry} for i, entry in enumerate(tomllib.loads(NAMED.read_text())["mutant"], 1)]
    for entry in named:
        count = (PROJECT / entry["file"]).read_text().count(entry["find"]) if (PROJECT / entry["file"]).is_file() else 0
        if count != 1:
            raise InputError(f"{NAMED}: '{entry['name']}': its text is {count} times in {entry['file']}, expected once")
        if "$M" not in entry["replace"] or entry["replace"].rstrip("\n").count("\n") != entry["find"].rstrip("\n").count("\n"):
            raise InputError(f"{NAMED}: '{entry['name']}': expected a replacement with $M and as many lines")
    chosen = [entry for entry in named if re.search(pattern, entry["name"]) or re.search(pattern, entry["file"])]
    if not chosen:
        raise InputError(f"--only {pattern}: no mistake's name or file matches")
    return chosen


def planted(chosen):
    """The files of the copy that differ from the project's."""
    texts = {}
    for entry in chosen:
        text = texts.get(entry["file"]) or "namespace streambp { bool mutant(int number); }\n#line 1\n" + (PROJECT / entry["file"]).read_text()
        texts[entry["file"]] = text.replace(entry["find"], entry["replace"].replace("$M", f"{CALL}({entry['number']})"))
    for room in {"streambp", *(file.split("/")[0] for file in texts)}:
        files = " ".join(file.removeprefix(f"{room}/") for file in texts if file.startswith(f"{room}/") and file.endswith(".cc"))
        cmake = (PROJECT / room / "CMakeLists.txt").read_text().replace("add_library(streambp_error STATIC", "add_library(streambp_error STATIC mutants.cc")
        texts[f"{room}/CMakeLists.txt"] = cmake + f'set_source_files_properties({files} PROPERTIES COMPILE_OPTIONS "-w")\n' * bool(files)
    texts["streambp/mutants.cc"] = NAMED.with_name("runtime.cc").read_text()
    # The project's own cases: ccache then finds what its build has compiled with that path.
    tests = (PROJECT / "verify/tests/CMakeLists.txt").read_text()
    texts["verify/tests/CMakeLists.txt"] = tests.replace("set(goldens ${PROJECT_SOURCE_DIR}/", f"set(goldens {PROJECT}/")
    return texts


def build(folder, chosen, programs, venv, jobs):
    """The copy in `folder`, up to date; what did not change keeps its time, so that it is not compiled again."""
    texts = planted(chosen)
    tracked = subprocess.run(["git", "ls-files", "-z", ":!results"], cwd=PROJECT, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in {*filter(None, tracked), *texts}:
        target = folder / name
        data = texts[name].encode() if name in texts else (PROJECT / name).read_bytes() if (PROJECT / name).is_file() else None
        if data is None or (target.exists() and target.read_bytes() == data):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        if name not in texts:
            shutil.copymode(PROJECT / name, target)
    if not (folder / "build/release/build.ninja").exists():
        link = folder / ".venv"  # a path within the copy, for ccache
        link.unlink(missing_ok=True)
        link.symlink_to(Path(venv).resolve())
        subprocess.run(["cmake", "--preset", "release", f"-DSTREAMBP_VENV={link}"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    targets = sorted({PROGRAMS[name][0] for name in programs})
    done = subprocess.run(["cmake", "--build", "--preset", "release", "--target", *targets, "--", "-j", str(jobs)], cwd=folder, check=False)
    if done.returncode != 0:
        raise InputError(f"{folder}: the build with the mistakes fails, for the reason above")


def test(folder, program, limit, **variables):
    """(exit code, None at the time limit; seconds; the test that failed)"""
    begun = time.monotonic()
    command = [folder / "build/release/bin" / PROGRAMS[program][0], *PROGRAMS[program][1:]]
    try:
        done = subprocess.run(command, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1", **variables}, capture_output=True, text=True, errors="replace",
                              timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return None, time.monotonic() - begun, "time limit"
    failed = re.search(r"\[  FAILED  \] (\S+?),? ", done.stdout)
    return done.returncode, time.monotonic() - begun, failed[1] if failed else f"signal {-done.returncode}" if done.returncode < 0 else program


def reached_by(folder, programs):
    """program -> (seconds, numbers of the mistakes that it comes by), the quickest first."""
    found = {}
    for program in programs:
        marks = folder / "reached"
        marks.unlink(missing_ok=True)
        code, seconds, failed = test(folder, program, 3600, STREAMBP_MUTANTS_REACHED=str(marks))
        if code != 0:
            raise InputError(f"{program} fails without any mistake: {failed}")
        found[program] = (seconds, {i for i, byte in enumerate(marks.read_bytes()) if byte} if marks.exists() else set())
        print(f"mutants: {program} without a mistake: {seconds:.0f} s, comes by {len(found[program][1])}", flush=True)
    return dict(sorted(found.items(), key=lambda item: item[1][0]))


def outcome(folder, entry, programs):
    record = {name: entry[name] for name in ("name", "file")} | {"by": "", "seconds": 0.0}
    reaching = [program for program, (_, numbers) in programs.items() if entry["number"] in numbers]
    for program in reaching:
        code, seconds, failed = test(folder, program, 30 + 10 * programs[program][0], STREAMBP_MUTANT=str(entry["number"]))
        record["seconds"] = round(record["seconds"] + seconds, 1)
        if code != 0:
            return {**record, "outcome": "killed", "by": failed}
    return {**record, "outcome": "excused" if "excused" in entry else "survived" if reaching else "unreached", "by": entry.get("excused", "")}


def summary(records):
    counts = Counter(record["outcome"] for record in records)
    return ", ".join(f"{counts[word]} {word}" for word in ("killed", "survived", "excused", "unreached"))


def main():
    parser = Parser(description=__doc__.split("\n")[0], epilog=__doc__.split("\n\n", 1)[1], formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="REGEX", help="only mistakes whose name or file matches")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), help="the tests that they are tried with (default: all)")
    parser.add_argument("--venv", default=PROJECT / ".venv", help="the virtual environment with the torch wheel (default .venv)")
    parser.add_argument("--jobs", type=int, default=2, help="files compiled at the same time (default 2)")
    parser.add_argument("--folder", type=Path, default=PROJECT / "build/mutants", help="of the copy and its build (default build/mutants)")
    parser.add_argument("--out", type=Path, default=Path("out/mutants"), help="folder of mutants.jsonl and mutants.md (default out/mutants)")
    parser.add_argument("--check", action="store_true", help="build and try nothing")
    options = parser.parse_args()
    chosen = mistakes(options.only)
    if options.check:
        print(f"{len(chosen)} mistakes stand in the sources as {NAMED.name} has them")
        return 0
    folder = options.folder.resolve() / "source"
    build(folder, chosen, options.programs, options.venv, options.jobs)
    programs = reached_by(folder, options.programs)
    made, records = environment(program=bench_program()), []
    for entry in chosen:
        records.append(outcome(folder, entry, programs) | {"environment": made})
        print(f"mutants: {len(records)}/{len(chosen)} {records[-1]['outcome']}: {entry['name']} {records[-1]['by']}", flush=True)
    rows = [f"| {r['name']} | {r['file']} | {r['outcome']} | {r['by']} |" for r in sorted(records, key=lambda r: r["outcome"] == "killed")]
    page = ["# Mutants", "", f"Mistakes of this field, planted one at a time: {summary(records)}. Made by `{' '.join(made['argv'])}` on {made_by(records)[0]}", "",
            "| mistake | file | outcome | by |", "|---|---|---|---|", *rows, ""]
    options.out.mkdir(parents=True, exist_ok=True)
    write_file(options.out / "mutants.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    write_file(options.out / "mutants.md", "\n".join(page))
    print(f"mutants: {summary(records)}; {options.out / 'mutants.md'}")
    return 0 if all(record["outcome"] in ("killed", "excused") for record in records) else 1


if __name__ == "__main__":
    run(main)
