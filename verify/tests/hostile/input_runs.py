"""What stands around a run: records that are there, targets of outputs, environments, scripts; and inputs that are odd, but right."""

import json
import os
import struct
import subprocess
import sys
from functools import cache

from input_files import DEEP, RED, ROW, sweep
from running import Case
from stored import loaded, numbers, rows, stored

SFT = b'"objective":"sft"'
# results.jsonl made of three good records: what becomes of them, exit codes with --resume, and whether the file stays to the byte.
SPOILED = {
    "whole": (lambda good: good, (0,), False),
    "nothing": (lambda good: b"", (0,), False),
    "a byte less": (lambda good: good[:-1], (0,), False),
    "ten bytes less": (lambda good: good[:-10], (0,), False),
    "twenty bytes": (lambda good: good[:20], (0,), False),
    "NUL bytes behind": (lambda good: good + b"\0" * 4096, (0,), False),
    "twice": (lambda good: good + good, (0,), False),
    "40 MB of it": (lambda good: good * (40_000_000 // len(good)), (0,), False),
    "a line of 5 MB": (lambda good: b'{"schema":1,"x":"' + b"y" * 5_000_000 + b'"}\n' + good, (0,), False),
    "a line of letters before": (lambda good: b"hello\n" + good, (2,), True),
    "a line of letters behind": (lambda good: good + b"hello\n", (2,), True),
    "notes without an end": (lambda good: good + b"two hours of work", (2,), True),
    "notes alone": (lambda good: b"my notes", (2,), True),
    "another schema": (lambda good: good.replace(b'"schema":1', b'"schema":2'), (2,), True),
    "no schema": (lambda good: good.replace(b'"schema":1,', b""), (2,), True),
    "a schema in letters": (lambda good: good.replace(b'"schema":1', b'"schema":"1"'), (2,), True),
    "a list before": (lambda good: b"[]\n" + good, (2,), True),
    "noise": (lambda good: bytes(range(256)) * 400, (2,), True),
    "UTF-16": (lambda good: good.decode().encode("utf-16"), (2,), True),
    "a deep line": (lambda good: b'{"schema":1,"a":' + DEEP.encode() + b"]" * len(DEEP) + b"}\n" + good, (0, 2), True),
    "a deep key": (lambda good: b'{"schema":1,"status":"ok","key":' + DEEP.encode() + b"]" * len(DEEP) + b"}\n" + good, (0, 2), True),
    "a method that is none": (lambda good: good.replace(b'"method":', b'"mezzod":'), (0, 2), True),
    "a loss in letters": (lambda good: good.replace(b'"loss":', b'"loss":"x","l":'), (0, 2), True),
    "a loss of 1e400": (lambda good: good.replace(b'"loss":', b'"loss":1e400,"l":'), (0, 2), True),
    "seconds in letters": (lambda good: good.replace(b'"seconds_median":', b'"seconds_median":"x","s":'), (0, 2), True),
    "a status in numbers": (lambda good: good.replace(b'"status":"ok"', b'"status":3'), (0, 2), True),
    "an objective of escapes": (lambda good: good.replace(SFT, b'"objective":"\\u001b[31mred"'), (0, 2), True),
    "an objective that is no UTF-8": (lambda good: good.replace(SFT, b'"objective":"\xff\xfe"'), (0, 2), True),
}
# What --out may be, and results.jsonl in it, made by a function of a new folder; the exit codes.
TARGETS = {
    "results.jsonl a folder": (lambda folder: (folder / "results.jsonl").mkdir(), (2,)),
    "results.jsonl a FIFO": (lambda folder: os.mkfifo(folder / "results.jsonl"), (2,)),
    "results.jsonl a link to itself": (lambda folder: (folder / "results.jsonl").symlink_to("results.jsonl"), (2,)),
    "results.jsonl /dev/full": (lambda folder: (folder / "results.jsonl").symlink_to("/dev/full"), (2,)),
    "results.jsonl /dev/zero": (lambda folder: (folder / "results.jsonl").symlink_to("/dev/zero"), (2,)),
    "results.jsonl /dev/null": (lambda folder: (folder / "results.jsonl").symlink_to("/dev/null"), (2,)),
}
ENVIRONMENTS = {
    "OMP_NUM_THREADS 0": {"OMP_NUM_THREADS": "0"},
    "OMP_NUM_THREADS x": {"OMP_NUM_THREADS": "x"},
    "MKL_NUM_THREADS -5": {"MKL_NUM_THREADS": "-5"},
    "no HOME": {"HOME": None},
    "no PATH": {"PATH": ""},
    "a locale with commas": {"LANG": "de_DE.UTF-8", "LC_ALL": "de_DE.UTF-8"},
    "a locale that is none": {"LC_ALL": "xx_YY.nope"},
    "no TERM": {"TERM": None},
    "a TMPDIR that is none": {"TMPDIR": "/nonexistent"},
    "none": dict.fromkeys(os.environ),
}
SCRIPTS = ("plot.py", "plot_bytes.py", "plot_paper.py", "pages/prediction.py", "gpu/gpu_report.py", "compare_hf.py", "make_goldens.py", "pages/qlora.py", "proofs.py")
NO_RECORDS = {
    "nothing": b"",
    "letters": b"hello\n",
    "a torn line": b'{"schema":1,"met',
    "no members": b'{"schema":1}\n',
    "another schema": b'{"schema":9}\n',
    "a list": b"[]\n",
    "NUL bytes": b"\0" * 100,
    "no UTF-8": b"\xff\xfe\n",
    "members that are null": b'{"schema":1,"status":"ok","method":null,"seq_len":null,"seconds_median":null,"objective":null,"batch":null,"chunk":null}\n',
    "a deep line": DEEP.encode() + b"\n",
}


@cache
def good_records(bench, shop):
    """Those of three lengths."""
    out = shop.folder()
    subprocess.run([*sweep(bench, shop.base, out, "--seq-len", "8,9,10", lengths=False)], check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return (out / "results.jsonl").read_bytes()


def lost_of(file, before, whole):
    """None where every whole record of `before` is in the file, and all of it where `whole`."""
    now = file.read_bytes()
    if whole and now != before:
        return "the file has changed"
    lost = [line for line in before.split(b"\n") if line.startswith(b"{") and line.endswith(b"}") and line not in now]
    return f"{len(lost)} records are lost" if lost else None


def records_that_are_there(bench, shop):
    def case(what, spoil, want, stays, *more):
        out, before = shop.folder(), []

        def prepare():
            before.append(spoil(good_records(bench, shop)))
            (out / "results.jsonl").write_bytes(before[0])

        def after(code):
            return lost_of(out / "results.jsonl", before[0], stays and code == 2)

        argv = sweep(bench, shop.base, out, "--seq-len", "8,9,10", *more, lengths=False)
        return Case(f"results.jsonl: {what}{' ' * bool(more)}{' '.join(more)}", argv, want, prepare=prepare, after=after, lines=None if 0 in want else 1)

    for what, (spoil, want, stays) in SPOILED.items():
        yield case(what, spoil, want, stays, "--resume")
    yield case("whole", lambda good: good, (2,), True)
    yield case("a byte less", lambda good: good[:-1], (2,), True)
    yield case("an objective that is no UTF-8", SPOILED["an objective that is no UTF-8"][0], (0, 2), True, "--resume", "--json")


def targets_of_outputs(bench, shop):
    for what, (make, want) in TARGETS.items():
        out = shop.folder()
        make(out)
        yield Case("--out: " + what, sweep(bench, shop.base, out), want, says=("results.jsonl",))
    file = shop.file("file", b"x")
    for out in (file, file / "below", "/proc/hostile", "/dev/null", shop.folder() / ("n" * 300)):
        yield Case(f"--out: {str(out)[-20:]}", sweep(bench, shop.base, out))
    # One file that is two outputs, or an output and an input.
    tokens = shop.file("tokens.safetensors", stored({"input_ids": rows([ROW])}))
    for flag in ("--dump-gradients", "--trace", "--timeline", "--snapshot"):
        out = shop.folder()
        yield Case(f"{flag} onto results.jsonl", sweep(bench, shop.base, out, flag, out / "results.jsonl"), says=("results.jsonl",))
        argv = sweep(bench, shop.base, shop.folder(), "--tokens", tokens, flag, tokens, lengths=False)
        yield Case(f"{flag} onto --tokens", argv, says=("tokens.safetensors",), after=lambda _, before=tokens.read_bytes(): None if tokens.read_bytes() == before else "the tokens are gone")
    for flag in ("--trace", "--dump-gradients", "--timeline", "--snapshot"):
        yield Case(f"{flag} /proc/x", sweep(bench, shop.base, shop.folder(), flag, "/proc/x"), says=("/proc/x",))
    measured = shop.folder()
    (measured / "a").mkdir()
    os.mkfifo(measured / "a" / "results.jsonl")
    yield Case("paper --measured with a FIFO", [bench, "paper", "--table", "9", "--quiet", "--measured", str(measured), "--out", str(shop.folder())], (0, 2), lines=None)


def memory(bench, shop):
    """What runs out at once, or by a byte, is a record and exit code 3."""
    for what, more in {
        "a limit of a byte": ("--memory-limit", "1B"),
        "a limit below a pass": ("--memory-limit", "100KB"),
    }.items():
        yield Case("memory: " + what, sweep(bench, shop.base, shop.folder(), *more), (3,), lines=None)
    yield Case("memory: a pass of many pieces", [bench, "sweep", "--model", "qwen3-8b", "--dtype", "bfloat16", "--device", "meta", "--method", "streambp", "--seq-len", "16777216", "--chunk", "1", "--out", str(shop.folder())],
               (1,), says=("--chunk 1: a dry run would take 16777216 tokens in 16777216 chunks",), lines=None, quick=True)  # fmt: skip


def odd_but_right(bench, shop):
    """Accepted, as transformers and PEFT do."""

    def tokens(what, tensors, *more, want=(0,)):
        return Case("right: tokens " + what, sweep(bench, shop.base, shop.folder(), "--tokens", shop.file("tokens.safetensors", stored(tensors)), *more, lengths=False), want, lines=None)

    yield tokens("in uint8", {"input_ids": rows([ROW], "U8")})
    yield tokens("of one column", {"input_ids": rows([[1]])})
    yield tokens("without a label", {"input_ids": rows([ROW]), "labels": rows([[-100] * 8])})
    yield tokens("beyond the vocabulary under padding", {"input_ids": rows([[999, *ROW[1:]]]), "attention_mask": rows([[0] + [1] * 7])}, want=(0, 2))
    yield tokens("with a row of padding", {"input_ids": rows([ROW] * 2), "attention_mask": rows([[0] * 8, [1] * 8])}, want=(0, 2))
    weights = loaded((shop.adapter / "adapter_model.safetensors").read_bytes())
    for key, value, want in (("bias", "all", (0, 2)), ("rank_pattern", {str(i): 1 for i in range(10_000)}, (0,)), ("lora_dropout", 0.1, (0,))):
        folder = shop.adapted({key: value}, stored(weights))
        yield Case(f"right: adapter {key}", sweep(bench, shop.base, shop.folder(), "--adapter", folder), want, lines=None)
    for what, more in (("lengths twice", ("--seq-len", "8,8")), ("chunks alike", ("--chunk", "8,auto,16"))):
        out = shop.folder()

        def once(_, out=out):
            keys = [json.loads(line)["key"] for line in (out / "results.jsonl").read_text().splitlines()]
            return None if len(keys) == len(set(keys)) else "a cell is on record twice"

        yield Case("right: " + what, sweep(bench, shop.base, out, *more, lengths="--seq-len" not in more), (0,), lines=None, after=once)
    for what, change in ENVIRONMENTS.items():
        yield Case("environment: " + what, sweep(bench, shop.base, shop.folder()), (0,), environment=change, lines=None)


def spoiled_goldens(verify, shop):
    """Gradients that differ, or are not there, are seen: exit code 1, or a refusal."""
    tensors = loaded((shop.case / "tensors.safetensors").read_bytes())
    name = next(name for name in tensors if name.startswith("grad."))
    dtype, shape, data = tensors[name]
    first = struct.unpack("<d", data[:8])[0]
    for what, changed, want in (
        ("as they are", tensors, (0,)),
        ("1e-6 off", {**tensors, name: (dtype, shape, struct.pack("<d", first + 1e-6) + data[8:])}, (1,)),
        ("NaN", {**tensors, name: (dtype, shape, struct.pack("<d", float("nan")) + data[8:])}, (1, 2)),
        ("one missing", {other: entry for other, entry in tensors.items() if other != name}, (1, 2)),
        ("none", {other: entry for other, entry in tensors.items() if not other.startswith("grad.")}, (1, 2)),
        ("one too many", {**tensors, "grad.nope": numbers([0.0], "F64")}, (1, 2)),
        ("of another shape", {**tensors, name: numbers([0.0], "F64")}, (1, 2)),
    ):
        argv = [verify, "goldens", "--threads", "1", "--method", "streambp", "--chunk", "7", str(shop.golden({}, stored(changed)))]
        yield Case("golden: gradients " + what, argv, want, lines=None)


def scripts(shop):
    folder = shop.goldens.parent.parent / "scripts"
    environment = {"STREAMBP_HF_VENV": str(shop.folder()), "PYTHONDONTWRITEBYTECODE": "1"}

    def case(script, *arguments):
        return Case(f"script: {script} {' '.join(map(str, arguments))[-40:]}", [sys.executable, str(folder / script), *map(str, arguments)], (1, 2), environment=environment, lines=None)

    for script in SCRIPTS:
        yield case(script, "--frobnicate")
        yield case(script, "--out", "/proc/hostile", "--" + RED)
    for script in ("plot.py", "plot_bytes.py", "plot_paper.py", "pages/prediction.py"):
        yield case(script, "/nonexistent")
    for what, data in NO_RECORDS.items():
        file = shop.file("results.jsonl", data)
        yield Case(f"script: plot.py on {what}", [sys.executable, str(folder / "plot.py"), str(file.parent), "--out", str(shop.folder())], (1, 2), environment=environment, lines=None)


def all_cases(bench, verify, shop):
    for kind in (records_that_are_there, targets_of_outputs, memory, odd_but_right):
        yield from kind(bench, shop)
    yield from spoiled_goldens(verify, shop)
    yield from scripts(shop)
