#!/usr/bin/env python3
"""The authors' code (github.com/Ledzy/StreamBP) beside ours: time and memory of a step, and whether its gradients are right.

    scripts/pages/authors_code.py --upstream DIR [--seq-len 512,2048,4096] [--repeats 5] [--out results/authors-code] [--resume]

DIR is a checkout of their repository, which nothing here fetches. It runs in an environment of its own with torch and transformers as its
requirements.txt pins them (.venv-authors-...), next to its own transformers' checkpointing there; ours runs on the project's torch. Measured as
compare_hf.py does: qwen3-cpu, float32, two threads, in turns. Ratios are taken round by round, each side's to checkpointing in its own
environment. Writes results.jsonl (a record for each measurement) and README.md.
"""

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/
import compare_hf
from compare.authors_environment import pins
from compare.runners import HuggingFace
from files import Parser, parse_record, read_text, run, write_file
from machine import made_by
from python_environment import ROOT, InputError, enter_venv

# Method: (words, what its ratios are to).
METHODS = {
    "authors-checkpoint": ("checkpointing, in the authors' environment", "authors-checkpoint"),
    "authors": ("**authors' code**", "authors-checkpoint"),
    "hf-checkpoint": ("checkpointing, in this project's", "hf-checkpoint"),
    "checkpoint": ("own checkpointing", "hf-checkpoint"),
    "streambp": ("`streambp`", "hf-checkpoint"),
    "python": ("`sb.backward`, `idle_memory=False`", "hf-checkpoint"),
}
PAGE = """# The authors' code beside ours

A step (forward and backward) of a small Qwen3 (qwen3-cpu) in {dtype} on {threads} threads, one sequence, medians of {repeats} in turns and their range, each after an
untimed one; memory beyond weights and gradients, by one allocator that counts for both. Their code ([Ledzy/StreamBP](https://github.com/Ledzy/StreamBP), commit
{commit}) runs on torch {torch} and transformers {transformers}, as it pins them; chunks of its layers and of its head by its defaults (500 and 500) and as in its
own script of times (a third of the sequence, and 100). Ratios are to Hugging Face's checkpointing in the same environment, so that two versions of torch
are not compared.

{tables}

Gradients are judged by `streambp-verify compare` at the shortest length. "Scaled" gradients are those of the loss but for one factor, here (T - 1) / T: the sum over T - 1 scored tokens is divided by T. Its attention is given a mask, as its
trainers give it, and computes all scores; without a mask each chunk of queries would be aligned with the first keys.

{made}

Made by `scripts/pages/authors_code.py`.
"""


class WithAuthors(compare_hf.Comparison):
    """A comparison whose methods `authors...` run in processes of their own: their layers can't be taken out of a model again."""

    def __init__(self, options, folder):
        super().__init__(options, folder)
        self.authors = {}

    def side(self, method):
        name = method.split("+")[0]
        if not name.startswith("authors"):
            return super().side(method)
        if name not in self.authors:
            self.authors[name] = HuggingFace(self.model, self.options, authors=self.options.upstream)
        return self.authors[name]

    def measure(self, length, method, repeat, tokens):
        # A judgement takes minutes: of their code alone, at the shortest length.
        self.options.no_gradients = not method.startswith("authors+") or length > min(self.options.lengths)
        return super().measure(length, method, repeat, tokens)

    def close(self):
        super().close()
        for worker in self.authors.values():
            worker.close()


def methods_of(length):
    """By default, and as scripts/test_bp.py of theirs has them: chunks of 5,000 in 15,000 tokens."""
    sizes = ("chunk=500+logits=500", f"chunk={-(-length // 3)}+logits=100")
    return ["authors-checkpoint", *(f"authors+{each}" for each in sizes), "hf-checkpoint", "checkpoint", "streambp", "python"]


def range_of(numbers):
    return f"{statistics.median(numbers):.2f} ({min(numbers):.2f} to {max(numbers):.2f})"


def verdict(rounds):
    judged = next((each for each in rounds.values() if "verdict" in each), None)
    if judged is None:
        return "-"
    return f"scaled by {judged['factor']:.6f}" if judged["verdict"] == "scaled" else judged["verdict"]


def table(records):
    """The rows of one length."""
    rounds = {}
    for each in records:
        if each["status"] == "ok":
            rounds.setdefault(each["method"], {})[each["repeat"]] = each
    lines = ["| | seconds | x its checkpointing | memory | x its checkpointing | gradients |", "|---|---:|---:|---:|---:|---|"]
    for method, found in rounds.items():
        name, *settings = method.split("+")
        words, base = METHODS[name]
        base = rounds.get(base, {})
        ratios = [each["seconds"] / base[i]["seconds"] for i, each in found.items() if i in base]
        memory = [max(each["peak_beyond_resident_bytes"] for each in of.values()) for of in (found, base) if of]
        sizes = ", ".join(each.replace("logits", "head's").replace("=", " of ") for each in settings)
        lines.append(f"| {words}{', ' if sizes else ''}{sizes} | {range_of([each['seconds'] for each in found.values()])} | {range_of(ratios) if ratios else '-'} "
                     f"| {memory[0] / 1e6:,.0f} MB | {memory[0] / memory[-1]:.3f} | {verdict(found)} |")
    return "\n".join(lines)


def head_of(folder):
    done = subprocess.run(["git", "-C", folder, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def main():
    parser = Parser(description=__doc__, add_help=False)
    parser.add_argument("--upstream", type=Path)
    known, rest = parser.parse_known_args()
    if "-h" in rest or "--help" in rest:
        print(__doc__)
        return 0
    if known.upstream is None:
        raise InputError("--upstream DIR is missing: expected a checkout of github.com/Ledzy/StreamBP")
    versions = pins(known.upstream)
    options = compare_hf.parse_options(["--seq-len", "512,2048,4096", "--threads", "2", "--repeats", "5", "--out", str(ROOT / "results/authors-code"), *rest])
    options.upstream = known.upstream.absolute()
    enter_venv()
    with tempfile.TemporaryDirectory() as folder:
        comparison = WithAuthors(options, Path(folder))
        comparison.settings = comparison.settings | {"authors": {"commit": head_of(options.upstream), **versions}}
        try:
            for length in options.lengths:
                options.methods = methods_of(length)
                comparison.run_length(length)
        finally:
            comparison.close()
    records = list(map(parse_record, read_text(options.out / "results.jsonl").splitlines()))
    tables = [f"## {length:,} tokens\n\n{table([each for each in records if each['seq_len'] == length])}" for length in sorted({each["seq_len"] for each in records})]
    page = PAGE.format(dtype=options.dtype, threads=options.threads, repeats=options.repeats, commit=records[0]["authors"]["commit"], **versions,
                       tables="\n\n".join(tables), made="\n".join(made_by(records)))
    write_file(options.out / "README.md", page)
    print(page)
    return 1 if any(each["status"] == "error" for each in records) else 0


if __name__ == "__main__":
    run(main)
