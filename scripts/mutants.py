#!/usr/bin/env python3
"""Do the tests find mistakes? Mistakes are planted one at a time, and the fast tests have to fail for each.

    .venv/bin/python scripts/mutants.py --part 1/8 --out results/trust

All mutants of a part are compiled in one build (build/mutants), where STREAMBP_MUTANT chooses one as a program starts: operators swapped,
bounds one further, statements left out, sums that become stores, conditions negated (scripts/mutation/operators.py), and mistakes of
this field by name (verify/tests/mutants/named.toml). A run without a mutant records what each test reaches; a mutant is tried with the tests
that reach it, at most --seconds of them, until one fails. One that no test kills is listed with the reason why it changes nothing
(verify/tests/mutants/reasons.toml) or as a survivor.

A mutant that was tried is not tried again (--runs holds the outcomes). Writes mutants.jsonl and mutants.md. Exit codes: 0 at least 97 %
are killed, 1 fewer, 2 bad usage or input.
"""

import argparse
import concurrent.futures
import json
import subprocess
import sys
import tomllib
import zlib
from collections import Counter
from pathlib import Path

from files import InputError, Parser, run, write_file
from machine import machine_name

PROJECT = Path(__file__).resolve().parent.parent
LIMIT = 0.97
WHERE = "backprop/, objective/, ops/ (the portable paths) and model/batch, in what judges in verify/"  # the page's
REASONS = PROJECT / "verify/tests/mutants/reasons.toml"


def key(mutant):
    """What a mutant keeps wherever its line stands; `nth` tells apart those of a file that read the same."""
    return "\t".join((mutant["file"], mutant["kind"], mutant["before"], mutant["after"], str(mutant["nth"])))


class Reasons:
    """Why a mutant that is not killed changes nothing that a test on a CPU could see; "" where nobody has said so."""

    def __init__(self):
        self.entries = tomllib.loads(REASONS.read_text())["unseen"]
        self.lines = {}  # of each file

    def __call__(self, mutant):
        file = mutant["file"]
        if file not in self.lines:
            self.lines[file] = (PROJECT / file).read_text().splitlines()
        line = self.lines[file][mutant["line"] - 1]
        for entry in self.entries:
            if file == entry["file"] and entry.get("kind", mutant["kind"]) == mutant["kind"] and \
                    entry.get("text", "") in mutant["before"] and entry.get("line", "") in line:
                return entry["reason"]
        return ""


def outcomes_of(path):
    found = {}
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue  # torn by a kill: tried again
            if "nth" in record:  # not from before records had it
                found[key(record)] = record
    return found


def page(records, count, part, sources, seconds, machine):
    """mutants.md: a table by file and by kind, then every one that was not killed."""
    explain = Reasons()
    for record in records:
        record["reason"] = explain(record)
    judged = [r for r in records if not (r["outcome"] != "killed" and r["reason"])]
    of_library = [r for r in judged if not r["file"].startswith("verify/")]
    of_judges = [r for r in judged if r["file"].startswith("verify/")]
    how = Counter("signal" if r["how"].startswith("signal") else r["how"] for r in judged if r["outcome"] == "killed")
    chosen = f" --sources '{sources}'" if sources else ""
    lines = ["# Mutants", "",
             f"Mistakes planted one at a time in {sources or WHERE}, and by name wherever one belongs, "
             f"part {part}: {len(records)} of its {count} were tried, in an order drawn by their text; a mutant is tried with the "
             f"fast tests that reach it, at most {seconds:g} s of them. Made by `.venv/bin/python scripts/mutants.py --part {part}{chosen}` on {machine}.", "",
             f"**{share_text(of_library)}** in the library, {share_text(of_judges)} in verify/; {len(records) - len(judged)} more change nothing that a "
             f"test could see, and are listed with the reason. Killed by a failure: {how['failure']}, by a signal: {how['signal']}, at a time limit: "
             f"{how['time limit']}. Median time of a killed one: {median_of(judged):.1f} s.", ""]
    for title, field in (("kind", "kind"), ("file", "file")):
        total, dead = Counter(r[field] for r in judged), Counter(r[field] for r in judged if r["outcome"] == "killed")
        lines += [f"| {title} | mutants | killed | |", "|---|---:|---:|---:|"]
        lines += [f"| {name} | {count} | {dead[name]} | {100 * dead[name] / count:.0f} % |" for name, count in sorted(total.items())] + [""]
    named = [r for r in records if r["kind"] == "named"]
    if named:
        lines += ["## By name", "", "| mistake | file | outcome | by |", "|---|---|---|---|"]
        lines += [f"| {r['before']} | {r['file']} | {r['outcome']} | {r['by'] and '`' + r['by'] + '`'} |" for r in named] + [""]
    for title, chosen in (("Survivors", [r for r in judged if r["outcome"] != "killed"]),
                          ("Those that change nothing", [r for r in records if r["outcome"] != "killed" and r["reason"]])):
        lines += [f"## {title}", "", "| line | kind | before | after | |", "|---|---|---|---|---|"]
        lines += [f"| {r['file']}:{r['line']} | {r['kind']} | {code(r['before'])} | {code(r['after'])} | {r['reason'] or r['outcome']} |"
                  for r in chosen] + [""]
    return "\n".join(lines), share_of(of_library)


def share_of(records):
    return sum(r["outcome"] == "killed" for r in records) / max(len(records), 1)


def share_text(records):
    return f"{sum(r['outcome'] == 'killed' for r in records)} of {len(records)} killed ({100 * share_of(records):.1f} %)"


def code(text):
    text = text if len(text) <= 90 else text[:87] + "..."
    return f"`{text}`".replace("|", "\\|") if text else ""


def median_of(records):
    times = sorted(r["seconds"] for r in records if r["outcome"] == "killed")
    return times[len(times) // 2] if times else 0.0


def arguments():
    parser = Parser(description=__doc__.split("\n")[0], epilog=__doc__.split("\n\n", 2)[2],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="1/8", help="K/N: the K-th of N parts of all mutants, drawn by their text (default 1/8); named ones always")
    parser.add_argument("--files", default="", metavar="REGEX", help="only those of files whose path matches, such as backprop/(streambp|head); named ones always")
    parser.add_argument("--sources", default="", metavar="GLOBS", help="other files than the page's, patterns with commas between: streambp/model/*.cc")
    parser.add_argument("--seconds", type=float, default=30, help="of tests for each mutant (default 30)")
    parser.add_argument("--jobs", type=int, default=2, help="files compiled and mutants tried at the same time (default 2)")
    parser.add_argument("--again", action="store_true", help="try those that survived before, and have no reason, once more")
    parser.add_argument("--known", type=Path, metavar="FILE", help="outcomes of earlier runs, such as results/trust/mutants.jsonl: not tried again")
    parser.add_argument("--most", type=int, help="stop after so many more mutants")
    parser.add_argument("--venv", default=PROJECT / ".venv", help="the virtual environment with the torch wheel (default .venv)")
    parser.add_argument("--runs", default=PROJECT / "build/mutants", type=Path, help="folder of the build and the outcomes (default build/mutants)")
    parser.add_argument("--out", default=Path("out/mutants"), type=Path, help="folder of mutants.jsonl and mutants.md (default out/mutants)")
    parser.add_argument("--report", action="store_true", help="write the pages from the outcomes there are, without building or trying")
    return parser.parse_args()


def main():
    options = arguments()
    try:
        part, parts = map(int, options.part.split("/"))
    except ValueError:
        raise InputError(f"--part {options.part}: expected K/N, such as 1/8") from None
    if not 1 <= part <= parts:
        raise InputError(f"--part {options.part}: expected K from 1 to N")
    try:
        import tree_sitter  # noqa: F401
        import tree_sitter_cpp  # noqa: F401
    except ImportError:
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "tree-sitter==0.26.*",
                        "tree-sitter-cpp==0.23.*"], check=True)
    from mutation.schemata import SOURCES, Schemata
    from mutation.trials import baseline, try_mutant

    kept = options.runs / "outcomes.jsonl"
    done = {**(outcomes_of(options.known) if options.known else {}), **outcomes_of(kept)}
    schemata = Schemata(options.runs, part, parts, options.files, options.sources.split(",") if options.sources else SOURCES)
    if options.report:
        schemata.write()
    else:
        schemata.build(options.venv, options.jobs)
        tests = baseline(schemata)
        explain = Reasons()
        waiting = [mutant for mutant in schemata.mutants if key(mutant) not in done or
                   (options.again and done[key(mutant)]["outcome"] != "killed" and not explain(mutant))]
        waiting = sorted(waiting, key=lambda m: (m["kind"] != "named", key(m) not in done, zlib.crc32(key(m).encode())))[:options.most]
        print(f"mutants: {len(schemata.mutants)}, {len(waiting)} to try", flush=True)
        with open(kept, "a") as file, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            futures = {pool.submit(try_mutant, schemata, mutant["number"], tests, options.seconds): mutant for mutant in waiting}
            for count, future in enumerate(concurrent.futures.as_completed(futures), 1):
                record = {**futures[future], **future.result()}
                done[key(record)] = record
                file.write(json.dumps(record) + "\n")
                file.flush()
                if record["outcome"] != "killed" or count % 50 == 0:
                    print(f"mutants: {count}/{len(waiting)} {record['outcome']} {record['file']}:{record['line']} {record['kind']}: "
                          f"{record['before'][:60]} -> {record['after'][:60]}", flush=True)
    records = [{**done[key(mutant)], "line": mutant["line"]} for mutant in schemata.mutants if key(mutant) in done]
    if not records:
        raise InputError(f"{kept}: no outcome of part {options.part}")
    text, share = page(records, len(schemata.mutants), options.part, options.sources, options.seconds, machine_name())
    options.out.mkdir(parents=True, exist_ok=True)
    write_file(options.out / "mutants.jsonl", "".join(json.dumps({k: v for k, v in r.items() if k != "number"}) + "\n" for r in records))
    write_file(options.out / "mutants.md", text)
    print(f"mutants: {options.out / 'mutants.md'}: {100 * share:.1f} % killed of those in the library that have no reason")
    return 0 if share >= LIMIT else 1


if __name__ == "__main__":
    run(main)
