#!/usr/bin/env python3
"""Runs the proofs that README's table "What is proved" names, and keeps what each reached: results/proofs.

    scripts/proofs.py                              all of them, about six minutes of processor time
    scripts/proofs.py --only goldens,precision     these anew, the others as they are on record
    scripts/proofs.py --out results/proofs --jobs 2

goldens, sweep (--quick), precision and gradcheck are commands of streambp-verify, whose --json this reads; properties is properties_test, 500
random passes. Writes results.jsonl, a record for each proof: the command, how much was compared, each limit and what was reached where, the
program and the processor; and proofs.md. scripts/pages/readme_figures.py takes README's figures from the records. Exit codes: 0 all hold, 1 one does
not, 2 bad usage, or a program that is not built.
"""

import argparse
import json
import math
import os
import re
import shutil
import subprocess
from pathlib import Path

from files import InputError, Parser, parse_record, read_text, run, write_file
import machine

ROOT = Path(__file__).resolve().parent.parent
GOLDEN_ERRORS = ("worst_error", "loss_error", "logprob_error", "value_error")
PASSES = "seed=4 max_success=500"  # of which ctest runs the first 200
PAGE = """# Proofs

What each proof of the table in the top README reached, made by `scripts/proofs.py`.

| proof | compared | limit | reached | at |
|---|---:|---:|---:|---|
{rows}

{made}
"""


def program(name):
    found = ROOT / "build/release/bin" / name
    path = str(found) if found.is_file() else shutil.which(name)
    if not path:
        raise InputError(f"{name}: not in build/release/bin and not on the path; scripts/test.sh builds it")
    return path


def lines_of(command, jobs):
    """The JSON lines that `streambp-verify` prints, and whether it found all good."""
    words = [program("streambp-verify"), *command, "--json", *(["--jobs", str(jobs)] if command[0] in ("goldens", "sweep") else [])]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1):
        raise InputError(f"streambp-verify {' '.join(command)}: exit code {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines()], done.returncode == 0


def number(value):
    """JSON has no NaN: what is null is none."""
    return math.nan if value is None else value


def worst_of(records, names, where):
    """The largest of the members `names` of all records, no number before all, and where(record), what it is of."""
    found = [(number(record.get(name)), record) for record in records for name in names if name in record]
    value, record = max(found, key=lambda pair: (math.isnan(pair[0]), pair[0]))
    return value, where(record)


def reached(what, compared, limit, value, at):
    return {"what": what, "compared": compared, "limit": limit, "reached": None if math.isnan(value) else value, "at": at, "holds": value <= limit}


def reached_text(figure):
    return "nan" if figure["reached"] is None else f"{figure['reached']:.3g}"


def goldens(jobs):
    command = ["goldens", "verify/goldens"]
    records, good = lines_of(command, jobs)
    run_ones = [record for record in records if record["verdict"] != "unsupported"]
    value, at = worst_of(run_ones, GOLDEN_ERRORS, lambda record: f"{record['case']}, {record['worst_parameter']}")
    limits = {record["limit"] for record in run_ones}
    return {"command": "streambp-verify goldens verify/goldens", "good": good, "cases": len(run_ones), "models": len({record["model"] for record in run_ones}),
            "unsupported": len(records) - len(run_ones), "checks": sum(record["checks"] for record in run_ones),
            "figures": [reached("Hugging Face, PEFT and TRL", len(run_ones), limits.pop(), value, at)]}


def row_of(record):
    return f"{record['model']}, {record['objective']}, {record['tuning']}, {record['batch']}"


def sweep(jobs):
    records, good = lines_of(["sweep", "--quick"], jobs)
    comparisons = sum(record["comparisons"] for record in records)
    figures = []
    for name in ("standard", "reference"):
        value, at = worst_of(records, [f"{name}_error"], row_of)
        figures.append(reached(f"to {name}", comparisons, records[0][f"{name}_limit"], value, at))
    return {"command": "streambp-verify sweep --quick", "good": good, "rows": len(records), "comparisons": comparisons,
            "failed": sum(record["failed"] for record in records), "figures": figures}


def precision(jobs):
    records, good = lines_of(["precision"], jobs)
    figures = []
    for dtype, sums in dict.fromkeys((record["dtype"], record["gradient_dtype"]) for record in records):
        of_both = [record for record in records if (record["dtype"], record["gradient_dtype"]) == (dtype, sums)]
        value, at = worst_of(of_both, ["times_standard"], lambda record: f"{record['method']}, {record['times_standard_in']}")
        what = dtype if sums == dtype else f"{dtype}, gradients summed in {sums}"
        errors = {"worst_error": max(record["worst_error"] for record in of_both),
                  "worst_error_of_standard": max(record["worst_error"] for record in of_both if record["method"] == "standard")}
        figures.append(reached(what, len(of_both), of_both[0]["limit"], value, at) | errors)
    return {"command": "streambp-verify precision", "good": good, "figures": figures}


def gradcheck(jobs):
    records, good = lines_of(["gradcheck"], jobs)
    models = [record for record in records if " of a tiny " in record["name"]]
    figures = []
    for what, key, among in (("complex steps", "chain_rule", records), ("extended precision", "gradient", models),
                             ("six-point differences", "difference", records)):
        value, at = worst_of(among, [f"{key}_error"], lambda record: record["name"])
        limit = "limit" if key == "gradient" else f"{key}_limit"
        figures.append(reached(what, len(among), next(record[limit] for record in among if record["name"] == at), value, at))
    return {"command": "streambp-verify gradcheck", "good": good, "checks": len(records), "figures": figures}


def properties(jobs):
    done = subprocess.run([program("properties_test")], cwd=ROOT, env={**os.environ, "RC_PARAMS": PASSES}, stdout=subprocess.PIPE, text=True, check=False)
    found = re.search(r"(\d+) cases, (\d+) comparisons; worst (\S+) to standard, (\S+) to the reference", done.stdout)
    if not found:
        raise InputError(f"properties_test: exit code {done.returncode}, and no line of what was reached")
    cases, comparisons, to_standard, to_reference = (float(text) for text in found.groups())
    figures = [reached("to standard", int(comparisons), 1e-12, to_standard, ""), reached("to reference", int(comparisons), 1e-10, to_reference, "")]
    return {"command": f'RC_PARAMS="{PASSES}" properties_test', "good": done.returncode == 0, "passes": int(cases), "comparisons": int(comparisons), "figures": figures}


PROOFS = {one.__name__: one for one in (goldens, sweep, precision, gradcheck, properties)}


def environment():
    return machine.environment(program=program("streambp-verify"))


def holds(record):
    return record["good"] and all(figure["holds"] for figure in record["figures"])


def page(records):
    rows = [f"| `{record['command']}` | {figure['compared']:,} | {figure['limit']:.3g} | {reached_text(figure)}"
            f"{'' if figure['holds'] else ' **FAILED**'} | {figure['what']}: {figure['at'] or 'not said'} |"
            for record in records.values() for figure in record["figures"]]
    by = {}
    for name, record in records.items():
        made = record["environment"]
        by.setdefault(f"{made['program']} on {made['cores']} cores of {made['cpu']}", []).append(name)
    made = "\n".join(f"- {', '.join(names)}: {program}" for program, names in by.items())
    return PAGE.format(made=made, rows="\n".join(rows))


def main():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PROOFS), help="proofs to run, by commas (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=ROOT / "results/proofs", help="folder of results.jsonl and proofs.md (default: results/proofs)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="cases at the same time (default: every core)")
    options = parser.parse_args()
    chosen = options.only.split(",")
    for name in chosen:
        if name not in PROOFS:
            raise InputError(f"--only {name}: expected some of {', '.join(PROOFS)}")
    path = options.out / "results.jsonl"
    known = [parse_record(line) for line in read_text(path).splitlines()] if path.exists() else []
    records = {record["proof"]: record for record in known}
    options.out.mkdir(parents=True, exist_ok=True)
    made = environment()
    for name in chosen:
        records[name] = {"kind": "proof", "proof": name, **PROOFS[name](options.jobs), "environment": made}
        for figure in records[name]["figures"]:
            print(f"{name}: {figure['what']}: {reached_text(figure)}, limit {figure['limit']:.3g}, {figure['compared']:,} compared", flush=True)
        records = {proof: records[proof] for proof in PROOFS if proof in records}
        write_file(path, "".join(json.dumps(record) + "\n" for record in records.values()))
    write_file(options.out / "proofs.md", page(records))
    return 0 if all(holds(record) for record in records.values()) else 1


if __name__ == "__main__":
    run(main)
