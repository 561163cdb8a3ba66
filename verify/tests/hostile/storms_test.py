#!/usr/bin/env python3
"""Storms: kills, signals, writers and files that change at random moments. Nothing is lost, torn, doubled or left over.

    storms_test.py BIN [--kills N] [--only REGEX] [--seed N]

BIN holds streambp-bench. A training that is killed N times and goes on each time ends with the bits of one that was not; other storms
take as long whatever N is. Kills of sweeps and of ranks are in verify/tests/bench/faults_test.sh and ranks_test.sh. Standard library only.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from running import limits

MEMORY = 4 << 30
TINY = ["--model", "qwen3-tiny", "--threads", "1"]
MEASURED = ["--repeats", "1", "--warmup", "0", "--method", "streambp"]


class Storm(Exception):
    """What was lost, torn, doubled or left over."""


def require(held, what):
    if not held:
        raise Storm(what)


class Program:
    def __init__(self, bench, seed):
        self.bench, self.chance = bench, random.Random(seed)

    def start(self, *arguments):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [self.bench, *map(str, arguments)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, preexec_fn=limits(MEMORY))

    def run(self, *arguments, codes=(0,)):
        process = self.start(*arguments)
        errors = process.communicate(timeout=300)[1].decode()
        require(process.returncode in codes, f"{arguments[0]}: exit {process.returncode}: {errors[-300:]}")
        return errors


def whole_lines(file):
    """The records of a file but for a torn last line."""
    return [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]] if file.exists() else []


def size(file):
    return file.stat().st_size if file.exists() else 0


def only(folder, *names):
    left = sorted(path.name for path in folder.iterdir())
    require(left == sorted(names), f"{folder.name} holds {left}, expected {sorted(names)}")


def wait_for(process, happened):
    deadline = time.monotonic() + 60
    while process.poll() is None and not happened() and time.monotonic() < deadline:
        time.sleep(0.002)


def is_open(pid, name):
    """Whether a process has a file of this name open."""
    try:
        return any(os.readlink(descriptor).endswith(name) for descriptor in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # the process or the descriptor has gone meanwhile
        return False


def killed_training(program, folder, kills):
    """Bits of weights, of states and of losses are those of a run at one go."""
    text = folder / "text"
    text.write_text("".join(f"{number} is one more than {number - 1}.\n" for number in range(2000)))
    train = ["train", *TINY, "--text", text, "--dtype", "float64", "--seq-len", "65", "--batch", "4", "--save-every", "5", "--steps", 100 * kills, "--quiet", "--method", "streambp"]
    program.run(*train, "--out", folder / "whole")
    out, seen, landed = folder / "killed", [], 0
    for kill in range(4 * kills):
        if landed == kills:
            break
        process = program.start(*train, "--out", out, "--resume")
        if kill % 4 != 3:  # mostly not before it takes steps
            wait_for(process, lambda known=size(out / "results.jsonl"): size(out / "results.jsonl") > known)
        time.sleep(program.chance.uniform(0, 0.25))
        landed += process.poll() is None
        process.send_signal(signal.SIGTERM if kill % 4 == 1 else signal.SIGKILL)
        process.communicate()
        now = whole_lines(out / "results.jsonl")
        require(now[: len(seen)] == seen, f"kill {kill}: a record is lost or changed")
        require([record["step"] for record in now] == list(range(1, len(now) + 1)), f"kill {kill}: steps {[record['step'] for record in now]}")
        seen = now
    require(landed == kills, f"{landed} of {kills} kills met a run that was going on")
    program.run(*train, "--out", out, "--resume")
    records = [[(record["step"], record["loss"], record["gradient_norm"]) for record in whole_lines(folder / name / "results.jsonl")] for name in ("whole", "killed")]
    require(records[0] == records[1], "losses differ from those of a run at one go")
    for file in ("model/model.safetensors", "model/config.json", "state.safetensors"):
        require((folder / "whole" / file).read_bytes() == (out / file).read_bytes(), f"{file} differs from that of a run at one go")
    only(out, "model", "results.jsonl", "state.safetensors")
    return f"{kills} kills, {len(seen)} steps before the last run of {len(records[0])}"


def signals(program, folder, _):
    """A sweep ends at once, and by the signal; records stay whole."""
    kept = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        out = folder / number.name
        process = program.start("sweep", *TINY, *MEASURED, "--seq-len", ",".join(map(str, range(8, 2000))), "--out", out)
        wait_for(process, lambda out=out: len(whole_lines(out / "results.jsonl")) > 2)
        process.send_signal(number)
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            raise Storm(f"{number.name}: still running after 20 s") from None
        require(process.returncode in (-number, 128 + number), f"{number.name}: exit {process.returncode}")
        only(out, "results.jsonl")
        kept[number.name] = len(whole_lines(out / "results.jsonl"))
    return f"records kept: {kept}"


def writers(program, folder, _):
    """Eight runs in one folder, of a sweep and of a training: what one writes is whole, the others are refused."""
    (folder / "text").write_text("abc " * 4000)
    train = ["train", *TINY, "--text", folder / "text", "--seq-len", "33", "--steps", "40", "--quiet", "--method", "streambp"]
    lengths = ["--seq-len", ",".join(map(str, range(8, 48)))]
    said = []
    for name, arguments, member in (("sweep", ["sweep", *TINY, *MEASURED, *lengths], "key"), ("train", train, "step")):
        processes = [program.start(*arguments, "--out", folder / name, "--resume") for _ in range(8)]
        errors = [process.communicate(timeout=300)[1].decode() for process in processes]
        codes = sorted(process.returncode for process in processes)
        require(set(codes) <= {0, 2} and 0 in codes, f"{name}: exit codes {codes}: {errors}")
        for process, text in zip(processes, errors):
            require(process.returncode == 0 or "another run is writing to it" in text, f"{name}: {text}")
        records = [record[member] for record in whole_lines(folder / name / "results.jsonl")]
        require(len(records) == len(set(records)) == 40, f"{name}: {len(records)} records, expected 40, each once")
        said.append(f"{name} {codes}")
    return ", ".join(said)


def shrinking_weights(program, folder, _):
    """Weights that lose their end while they are read: an exit code, or a result, but no crash."""
    codes = []
    program.run("export", "--model", "qwen3-cpu", "--out", folder / "exported")
    for turn in range(3):
        model = folder / f"model-{turn}"
        shutil.copytree(folder / "exported", model)
        weights = model / "model.safetensors"
        process = program.start("sweep", "--model", model, "--threads", "1", *MEASURED, "--seq-len", "8", "--out", folder / f"out-{turn}")
        wait_for(process, lambda pid=process.pid, name=weights.name: is_open(pid, name))
        os.truncate(weights, program.chance.choice((0, 100, 1_000_000, weights.stat().st_size - 4096)))
        errors = process.communicate(timeout=300)[1].decode()
        require(process.returncode >= 0, f"signal {-process.returncode}: {errors[-200:]}")
        codes.append(process.returncode)
        weights.unlink()
    return f"exit codes {codes}"


def reports_of_what_grows(program, folder, _):
    """A page made while a sweep writes has whole records alone, and the sweep loses none."""
    out = folder / "grows"
    process = program.start("sweep", *TINY, *MEASURED, "--seq-len", ",".join(map(str, range(8, 208))), "--out", out)
    wait_for(process, lambda: len(whole_lines(out / "results.jsonl")) > 2)
    pages = 0
    while process.poll() is None and pages < 3:
        program.run("report", out, "--output", folder / "page.html")
        pages += 1
    errors = process.communicate()[1].decode()
    require(process.returncode == 0 and len(whole_lines(out / "results.jsonl")) == 200, f"exit {process.returncode}: {errors}")
    require(pages > 0, "no page was made in time")
    return f"{pages} pages"


STORMS = (killed_training, signals, writers, shrinking_weights, reports_of_what_grows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=Path)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--only", default="", help="storms whose names match")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    options = parser.parse_args()
    bench = str((options.bin / "streambp-bench").resolve())
    wrong, chosen = 0, [storm for storm in STORMS if re.search(options.only, storm.__name__)]
    with tempfile.TemporaryDirectory(prefix="streambp-storms-") as root:
        for storm in chosen:
            folder, start = Path(root) / storm.__name__, time.monotonic()
            folder.mkdir()
            try:
                said = storm(Program(bench, options.seed), folder, options.kills)
            except Storm as fault:
                wrong, said = wrong + 1, f"FAILED, seed {options.seed}: {fault}"
            print(f"{storm.__name__}: {said}; {time.monotonic() - start:.0f} s", flush=True)
    return 1 if wrong or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
