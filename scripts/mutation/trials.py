"""Tests that reach a mutant, run with that mutant chosen: killed by the first that fails, or survived."""

import json
import os
import re
import subprocess
import time
from dataclasses import dataclass, field

from files import InputError

from mutation.schemata import PROGRAMS

VERIFY = "streambp-verify"
# Its commands, in addition to the tests of PROGRAMS; each is one test.
COMMANDS = {**{f"goldens {part}/16": ["goldens", "--quick", "verify/goldens", "--part", f"{part}/16"] for part in range(1, 17)},
            **{f"equality {part}/64": ["sweep", "--quick", "--part", f"{part}/64"] for part in range(1, 13)}}
FIRST_SECONDS = 6  # of the tests that reach the fewest mutants
MADE_ONCE = 2  # tests that reach a mutant in one program: it may be in a table that the first of them makes
MOST_QUICK = 400  # tests
MOST_MEMORY = 10 << 30
# Tests of many processes or of a device, which say nothing that the others don't.
LEFT_OUT = "-*ProcessRanks*:*Rendezvous*:*RankMemory*:*FailingAllocation*"


@dataclass
class Test:
    program: str
    name: str
    seconds: float
    reached: frozenset = field(repr=False)


def environment(**more):
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


def run(command, seconds, folder, **variables):
    """(exit code or None at its time limit, output, seconds)."""
    begun = time.monotonic()
    with subprocess.Popen(["prlimit", f"--as={MOST_MEMORY}", *command], cwd=folder, env=environment(**variables), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
            code = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            output, _ = process.communicate()
            code = None
    return code, output, time.monotonic() - begun


def baseline(schemata):
    """Every test's seconds and the mutants it reaches, without any mutant; a test that fails there is an error. Kept in the build's folder
    for each program, until that is built anew."""
    kept = schemata.folder / "baseline.json"
    data = json.loads(kept.read_text()) if kept.exists() else {}
    for program in [*PROGRAMS, VERIFY]:
        stamp = schemata.binary(program).stat().st_mtime
        if data.get(program, {}).get("stamp") == stamp:
            continue
        print(f"mutants: {program} without a mutant", flush=True)
        tests = baseline_of_commands(schemata) if program == VERIFY else baseline_of(schemata, program)
        data[program] = {"stamp": stamp, "tests": [{**vars(test), "reached": sorted(test.reached)} for test in tests]}
        kept.write_text(json.dumps(data))
    return [Test(t["program"], t["name"], t["seconds"], frozenset(t["reached"]))
            for program in [*PROGRAMS, VERIFY] for t in data[program]["tests"]]


def baseline_of(schemata, program):
    tests = []
    reached, lines = schemata.folder / "reached", schemata.folder / f"{program}.tests"
    for file in (reached, lines):
        file.unlink(missing_ok=True)
    run([schemata.binary(program), f"--gtest_filter={LEFT_OUT}", "--gtest_brief=1"], 3600, schemata.source,
        STREAMBP_MUTANTS_REACHED=str(reached), STREAMBP_MUTANTS_TESTS=str(lines))
    for line in lines.read_text().splitlines():
        name, milliseconds, passed, *numbers = line.split("\t")
        if passed == "1":
            tests.append(Test(program, name, int(milliseconds) / 1000, frozenset(map(int, numbers))))
        elif numbers:
            print(f"mutants: {program} {name} is left out: it fails or is skipped without any mutant", flush=True)
    return tests


def baseline_of_commands(schemata):
    tests = []
    reached = schemata.folder / "reached"
    for name, arguments in COMMANDS.items():
        reached.unlink(missing_ok=True)
        code, output, seconds = run([schemata.binary(VERIFY), *arguments], 900, schemata.source, STREAMBP_MUTANTS_REACHED=str(reached))
        if code != 0:
            raise InputError(f"{VERIFY} {' '.join(arguments)} fails without any mutant:\n{output[-2000:]}")
        numbers = frozenset(i for i, byte in enumerate(reached.read_bytes()) if byte)
        print(f"mutants: {name} without a mutant: {seconds:.1f} s, reaches {len(numbers)}", flush=True)
        tests.append(Test(VERIFY, name, seconds, numbers))
    return tests


def batches(number, tests, most_seconds):
    """The tests that reach a mutant, in groups of a process each: those of few mutants first, then the quickest, at most `most_seconds`."""
    reaching = [test for test in tests if number in test.reached]
    first, total = [], 0.0
    for test in sorted(reaching, key=lambda t: (len(t.reached), t.seconds)):
        if test.seconds <= 3 and total + test.seconds <= FIRST_SECONDS:
            first.append(test)
            total += test.seconds
    then = []
    for test in sorted((t for t in reaching if t not in first), key=lambda t: t.seconds):
        if total + test.seconds <= most_seconds:
            then.append(test)
            total += test.seconds
    # What is made once for a process is reached by its first test there, whoever reads it later.
    once = []
    for program in {test.program for test in reaching}:
        if sum(test.program == program for test in reaching) <= MADE_ONCE:
            quick = [test for test in tests if test.program == program and test not in reaching and test.seconds <= 1]
            once += sorted(quick, key=lambda t: t.seconds)[:MOST_QUICK]
    for group in (first, then, once):
        for program in [*PROGRAMS, VERIFY]:
            of_program = [test for test in group if test.program == program]
            if program == VERIFY:
                yield from ([test] for test in of_program)
            elif of_program:
                yield of_program


def try_mutant(schemata, number, tests, most_seconds):
    """{"outcome": killed, survived or unreached; "by"; "seconds"; "tests"}: what the tests say of a mutant."""
    spent, tried = 0.0, 0
    for batch in batches(number, tests, most_seconds):
        expected = sum(test.seconds for test in batch)
        program = batch[0].program
        if program == VERIFY:
            command = [schemata.binary(program), *COMMANDS[batch[0].name]]
        else:
            command = [schemata.binary(program), "--gtest_brief=1", "--gtest_fail_fast",
                       "--gtest_filter=" + ":".join(test.name for test in batch)]
        code, output, seconds = run(command, 30 + 10 * expected, schemata.source, STREAMBP_MUTANT=str(number))
        spent += seconds
        tried += len(batch)
        if code != 0:
            failed = re.search(r"\[  FAILED  \] (\S+?),? ", output)
            by = failed.group(1) if failed else batch[0].name if len(batch) == 1 else program
            how = "time limit" if code is None else f"signal {-code}" if code < 0 else "failure"
            return {"outcome": "killed", "by": by, "how": how, "seconds": round(spent, 2), "tests": tried}
    return {"outcome": "survived" if tried else "unreached", "by": "", "how": "", "seconds": round(spent, 2), "tests": tried}
