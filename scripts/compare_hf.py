#!/usr/bin/env python3
"""Hugging Face's standard and checkpointed back-propagation and ours: same folder, tokens, dtype, threads and kernels, in turns.

    python3 scripts/compare_hf.py --seq-len 512,1024,2048 --out out/compare
    python3 scripts/compare_hf.py --model path/to/Qwen3-0.6B --dtype bfloat16 --methods hf-checkpoint,streambp,streambp+chunk=512

Each measurement is --warmup untimed passes and one timed one (forward and backward). Methods take turns, repeat by repeat, every second
round backwards. Hugging Face's model lives in one process that is stopped while ours runs; ours is a process for each measurement. Both
count memory by the same allocator. Gradients are held against the float64 truth (streambp-verify compare). `faster` and `slower` mean
that the intervals between the quartiles don't overlap, `ambiguous` that they do; a verdict takes five measurements of each side.

Writes results.jsonl (a record for each measurement), compare.md, compare.svg and compare.png into --out. The first run makes a virtual
environment (.venv-hf, or STREAMBP_HF_VENV) with transformers.
"""

import argparse
import fcntl
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from python_environment import ROOT, VERSIONS, InputError, enter_venv
from compare.report import draw, markdown, summaries, tables, text_table
from compare.runners import BENCH, ENGINE, HF_METHODS, METER, PYTHON_METHODS, VERIFY, HuggingFace, Ours, gradient_error
from files import Parser, check_replaceable, open_standard_descriptors, parse_record, read_text, write_file

METHODS = [*HF_METHODS, "standard", "checkpoint", "streambp", "streambp+keep-attention"]


def parse_options(words=None):
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen3-cpu", help="a Hugging Face folder, or a preset of streambp-bench (default: qwen3-cpu)")
    parser.add_argument("--seq-len", default="512,1024,2048,4096", help="lengths, by commas (default: 512,1024,2048,4096)")
    parser.add_argument("--methods", default=",".join(METHODS),
                        help="by commas; ours are sweep's, settings after + (streambp+chunk=512+keep=attention/gate-up), or python, python-patch and python-module, the package's backward() and patch() by either lane; hf-checkpoint takes +every=2, +selective, and +torch-head or +fused-head (default: %(default)s)")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float64"])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: every core")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--warmup", type=int, default=1, help="untimed passes before each timed one, on both sides (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="of a preset's weights and of the tokens")
    parser.add_argument("--hf-gradients", default="zeros", choices=["zeros", "none"],
                        help="before a step of Hugging Face: zeros are there, as in ours, or none and the step makes them (default: zeros)")
    parser.add_argument("--no-gradients", action="store_true", help="don't compare gradients")
    parser.add_argument("--out", type=Path, default=ROOT / "out/compare")
    parser.add_argument("--resume", action="store_true", help="keep the measurements that --out holds and make those that are missing")
    options = parser.parse_args(words)
    try:
        options.lengths = [int(word) for word in options.seq_len.split(",")]
    except ValueError:
        options.lengths = [0]
    if min(options.lengths) < 2:
        raise InputError(f"--seq-len {options.seq_len}: expected lengths of at least 2, by commas")
    if min(options.threads, options.repeats) < 1 or options.warmup < 0:
        raise InputError("--threads, --repeats: expected at least 1; --warmup: at least 0")
    options.methods = options.methods.split(",")
    return options


class Records:
    """results.jsonl: known measurements by key, and the file for new ones, held for this process alone."""

    def __init__(self, folder, resume):
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "results.jsonl"
        check_replaceable(self.path)
        self.file = open(self.path, "a", encoding="utf-8")
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{self.path}: another run is writing to it") from None
        self.known = {}
        *lines, last = read_text(self.path).split("\n")
        for number, line in enumerate(lines, start=1):
            self.add_known(line, number)
        if self.known and not resume:
            raise InputError(f"{self.path}: holds {len(self.known)} records already; expected --resume, or another --out")
        if last:
            self.repair(last, len(lines) + 1)

    def add_known(self, line, number):
        try:
            record = parse_record(line)
            self.known[record["key"]] = record
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{self.path} line {number}: expected a record of compare_hf") from None

    def repair(self, last, number):
        """A last line without its end gets it; one that a killed run left torn moves to results.jsonl.torn."""
        start = '{"schema":'  # of every record
        try:
            self.add_known(last, number)
            self.file.write("\n")
        except InputError:
            if last[: len(start)] != start[: len(last)]:
                raise
            write_file(f"{self.path}.torn", last + "\n")
            os.truncate(self.path, self.path.stat().st_size - len(last.encode()))
        self.file.flush()

    def add(self, record):
        self.known[record["key"]] = record
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()
        os.fsync(self.file.fileno())


def model_folder(options):
    """The folder that both sides read: the user's, or the preset's, exported once."""
    if Path(options.model).is_dir():
        return Path(options.model).resolve()
    folder = options.out.absolute() / f"{options.model}-{options.dtype}-{options.seed}"
    if not (folder / "config.json").exists():
        command = [BENCH, "export", "--model", options.model, "--dtype", options.dtype, "--seed", str(options.seed), "--out", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise InputError(done.stderr.strip())
    return folder


def write_tokens(path, length, vocabulary, seed):
    import numpy
    from safetensors.numpy import save_file

    ids = numpy.random.default_rng([seed, length]).integers(0, vocabulary, (1, length), dtype=numpy.int64)
    save_file({"input_ids": ids, "labels": ids.copy()}, path)


def configuration(options, model):
    """What decides the figures, in addition to method, length and repeat."""
    return {"model": str(options.model), "folder": hashlib.sha256((model / "config.json").read_bytes()).hexdigest()[:16],
            "objective": "sft", "dtype": options.dtype, "threads": options.threads, "warmup": options.warmup, "seed": options.seed,
            "hf_gradients": options.hf_gradients, "versions": VERSIONS}


class Comparison:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.records = Records(options.out, options.resume)
        self.model = model_folder(options)
        self.settings = configuration(options, self.model)
        self.vocabulary = json.loads((self.model / "config.json").read_text())["vocab_size"]
        self.ours = Ours(self.model, options)
        self.hugging_face = self.python = None
        self.lost = {}  # method to the shortest length that ran out of memory

    def side(self, method):
        if method in PYTHON_METHODS:
            if self.python is None:
                self.python = HuggingFace(self.model, self.options, engine=True)
            return self.python
        if method.split("+")[0] not in HF_METHODS:
            return self.ours
        if self.hugging_face is None:
            self.hugging_face = HuggingFace(self.model, self.options)
        return self.hugging_face

    def key(self, length, method, repeat):
        text = json.dumps([self.settings, length, method, repeat], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def measure(self, length, method, repeat, tokens):
        key = self.key(length, method, repeat)
        known = self.records.known.get(key)
        if known and known["status"] != "error":
            return known
        gradients = None
        if repeat == 1 and not self.options.no_gradients:
            gradients = self.folder / f"{method}.safetensors"
        if method in self.lost:
            result = {"status": "oom", "error": f"not run: length {self.lost[method]} already ran out of memory"}
        else:
            result = self.side(method).run(method, tokens, self.options.warmup, gradients)
        if gradients and gradients.exists():
            result |= gradient_error(self.model, tokens, gradients, self.options.threads)
            gradients.unlink()
        record = {"schema": 1, "key": key, "kind": "measured", **self.settings, "method": method, "seq_len": length, "repeat": repeat,
                  "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **result}
        self.records.add(record)
        return record

    def run_length(self, length):
        tokens = self.folder / f"tokens-{length}.safetensors"
        write_tokens(tokens, length, self.vocabulary, self.options.seed)
        records, failed = [], set()
        for repeat in range(1, self.options.repeats + 1):
            for method in self.options.methods if repeat % 2 else reversed(self.options.methods):
                if method in failed:
                    continue
                self.show(f"length {length}, repeat {repeat}/{self.options.repeats}, {method}")
                record = self.measure(length, method, repeat, tokens)
                records.append(record)
                if record["status"] != "ok":
                    failed.add(method)
                if record["status"] == "oom":
                    self.lost.setdefault(method, length)
        self.show("")
        return records

    def show(self, text):
        if sys.stderr.isatty():
            print(f"\r{text:100}\r" if not text else f"\r{text:100}", end="", file=sys.stderr, flush=True)

    def close(self):
        for worker in (self.hugging_face, self.python):
            if worker is not None:
                worker.close()


def notes(options, records):
    environment = next((r["environment"] for r in records if "commit" in r.get("environment", {})), {})
    attention = next((r["environment"]["attention"] for r in records if "attention" in r.get("environment", {})), "sdpa")
    gradients = "zeros before a step, as ours" if options.hf_gradients == "zeros" else "made by the step"
    return [
        f"`scripts/compare_hf.py`: {options.model}, {options.dtype}, {options.threads} threads, {environment.get('cpu', '')}, torch "
        f"{VERSIONS['torch']}, transformers {VERSIONS['transformers']} (not compiled, attention {attention}, checkpointing with "
        f"use_reentrant=False), commit {environment.get('commit', 'unknown')}. Each figure: {options.repeats} measurements in turns, "
        f"each after {options.warmup} untimed. Hugging Face's gradients: {gradients}. MB beyond: the allocator's peak beyond weights "
        "and gradients, counted alike. Gradient error: the worst parameter against float64. Verdicts: whether the intervals between "
        "the quartiles overlap."
    ]


def main():
    options = parse_options()
    enter_venv()
    for path in (BENCH, VERIFY, METER, ENGINE):
        if not path.exists():
            raise InputError(f"{path.relative_to(ROOT)} is missing: build first (cmake --build --preset release)")
    records = []
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(options, Path(folder))
        try:
            for length in sorted(set(options.lengths)):
                of_length = comparison.run_length(length)
                records += of_length
                print(f"{length} tokens\n{text_table(tables(summaries(of_length, options.methods))[length])}\n", flush=True)
        finally:
            comparison.close()
    by_length = summaries(records, options.methods)
    title = f"Hugging Face and StreamBP bench, {options.model}, {options.dtype}"
    write_file(options.out / "compare.md", markdown(title, notes(options, records), by_length))
    draw(by_length, title, options.out)
    print(f"records, tables and picture: {options.out}")
    return 1 if any(record["status"] == "error" for record in records) else 0


if __name__ == "__main__":
    open_standard_descriptors()
    try:
        sys.exit(main())
    except InputError as error:
        print(f"compare_hf: {error}", file=sys.stderr)
        sys.exit(2)
    except subprocess.CalledProcessError as error:
        sys.exit(f"compare_hf: {error}")
