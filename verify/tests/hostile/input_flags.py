"""Command lines that the programs have to refuse."""

import json
import os

from input_files import RED, sweep
from running import Case
from stored import loaded, stored

# Values of the flags of `streambp-bench sweep` that mean nothing.
SWEEP = {
    "--chunk": ("0", "-1", "1e99", "abc", "", "1.5", " 4", "0x10", "+4", "9223372036854775808", "1,,2", ",", "NaN", "\u0663"),
    "--seq-len": ("0", "-1", "8, 16", "8,", "1e3", "2147483648", "9223372036854775808", "", "8\n9", "9" * 100_000),
    "--batch": ("0", "-1", "x", "4611686018427387904", "1,,1"),
    "--threads": ("0", "-1", "x"),
    "--repeats": ("0", "-1", "1e3", "1000001"),
    "--micro-batches": ("0", "-1", "2", "x"),
    "--prompt": ("-1", "5", "x", "99999999999999999999"),
    "--seed": ("-1", "x", "18446744073709551616", "1.5", ""),
    "--lora-rank": ("0", "-1", "x", "1000000000000"),
    "--dtype": ("int8", "", "FLOAT32", "float16"),
    "--grad-dtype": ("x",),
    "--head-dtype": ("x",),
    "--device": ("tpu", "meta:tpu", ""),
    "--method": ("", "x", "auto,standard,", "standard,,", "STREAMBP", RED),
    "--objective": ("", "x", "sft,x", "distill"),
    "--memory-limit": ("0", "-1", "1", "x", "1e30", "nan", "inf", "10 GB", "GB", "0x10"),
    "--head-chunk": ("0", "-1", "x"),
    "--offload": ("x", "disk"),
    "--fuse-optimizer": ("x",),
    "--freeze": ("nope", ","),
    "--model": ("", "nope", "a\nb" + RED),
    "--reference": ("nope", ""),
    "--teacher": ("nope", ""),
    "--adapter": ("nope", ""),
    "--tokens": ("", "/dev/null", "/dev/stdin", "/nonexistent/\udcff\udcfe.safetensors"),
    "--budget": ("1GB",),
    "--learning-rate": ("nan", "x", "-1", "inf", "1e-3"),
    "--galore-rank": ("0", "-1", "4"),
    "--galore-history": ("0", "-1", "4"),
    "--divisor": ("0", "-1", "nan", "inf", "x", "1,5"),
    "--set": ("nope", "nope=1", "=1", "divisor=0", "label_smoothing=nan", "divisor=1,divisor=2"),
    "--trace": ("/nonexistent/x",),
    "--frobnicate": ("1",),
}
SWEEP_QUICK = {
    "--chunk": ("9223372036854775808",),
    "--seq-len": ("9" * 100_000,),
    "--batch": ("4611686018427387904",),
    "--micro-batches": ("2",),
    "--prompt": ("5",),
    "--seed": ("-1", "18446744073709551616"),
    "--lora-rank": ("1000000000000",),
    "--dtype": ("float16",),
    "--reference": ("",),
    "--tokens": ("",),
    "--set": ("divisor=1,divisor=2",),
    "--learning-rate": ("nan",),
    "--model": ("a\nb" + RED,),
}
# Flags that contradict one another, or a length of 8.
TOGETHER = (
    ("--divisor", "3", "--set", "divisor=4"),
    ("--divisor", "3", "--set", "divisor=3"),
    ("--tokens", "x"),
    ("--prompt", "3", "--objective", "dpo", "--lora-rank", "2"),
    ("--micro-batches", "3", "--batch", "2"),
    ("--objective", "dpo", "--lora-rank", "2", "--set", "beta=0.1,beta=0.2"),
    ("--objective", "dpo", "--lora-rank", "2", "--set", "beta=inf"),
    ("--objective", "dpo", "--lora-rank", "2", "--set", "loss_type=" + RED),
    ("--lora-rank", "2", "--lora-targets", RED),
    ("--lora-rank", "2", "--lora-targets", "x" * 100_000),
    ("--lora-rank", "2", "--lora-alpha", "nan"),
    ("--lora-targets", "q_proj"),
    ("--adapter", "x", "--lora-rank", "2"),
    ("stray",),
    ("@/etc/passwd",),
    ("--config", "/etc/passwd"),
    ("--chunk", "4", "--chunk", "5", "--set", "x"),
)
OTHERS = (
    (),
    ("swep",),
    ("",),
    (RED,),
    ("max-length",),
    ("max-length", "--budget", "x"),
    ("max-length", "--budget", "1"),
    ("max-length", "--budget", "80GiB", "--model", "nope"),
    ("max-length", "--budget", "80GiB", "--batch", "99999999999"),
    ("max-length", "--budget", "80GiB", "--model", "qwen3-tiny", "--micro-batches", "2"),
    ("max-length", "--budget", "80GiB", "--seed", "-1"),
    ("max-length", "--budget", "80GiB", "--batch", "1000000"),
    ("max-length", "--budget", "80GiB", "--method", "streambp", "--chunk", "1"),
    ("ranks", "--ranks", "1025", "--out", "OUT"),
    ("ranks", "--ranks", "9223372036854775807", "--device", "meta", "--out", "OUT"),
    ("ranks", "--model", RED, "--out", "OUT"),
    ("linear", "--rows", "0"),
    ("linear", "--rows", "9223372036854775807"),
    ("linear", "--chunks", "x"),
    ("linear", "--dtype", "float16"),
    ("linear", "--seed", "-1"),
    ("paper", "--table", "x"),
    ("paper", "--out", "/proc/x"),
    ("export",),
    ("export", "--model", "nope", "--out", "OUT"),
    ("export", "--out", "/proc/x"),
    ("export", "--out", "OUT", "--dtype", "int8"),
    ("export", "--out", "OUT", "--seed", "-1"),
    ("export", "--out", ""),
    ("bytes-per-token", "--out", "OUT", "--seq-len", "5"),
)
VERIFY = (
    (),
    ("x",),
    ("compare",),
    ("goldens",),
    ("goldens", "/nonexistent"),
    ("goldens", "OUT"),
    ("goldens", "CASE", "--limit", "nan"),
    ("goldens", "CASE", "--limit", "inf"),
    ("goldens", "CASE", "--limit", "-1"),
    ("goldens", "CASE", "--limit", "x"),
    ("goldens", "CASE", "--part", "2/1"),
    ("goldens", "CASE", "--jobs", "0"),
    ("sweep", "--seq-len", "2049"),
    ("sweep", "--family", RED),
    ("sweep", "--objective", "x"),
    ("sweep", "--set", "beta=1"),
    ("sweep", "--objective", "dpo", "--set", "beta=1,beta=1"),
    ("sweep", "--model", "/nonexistent"),
    ("sweep", "--seed", "-1"),
    ("gradcheck", "--seed", "-1"),
    ("gradcheck", "--seed", "18446744073709551616"),
    ("gradcheck", "--threads", "99999"),
    ("precision", "--seed", "-1"),
    ("precision", "--seeds", "-1"),
    ("precision", "--dtype", RED),
    ("precision", "--out", "/proc/x"),
    ("long", "--case", RED),
    ("long", "--max-memory", "x"),
)


def filled(argument, shop):
    return {"OUT": str(shop.folder() / "out"), "CASE": str(shop.case)}.get(argument, argument)


def named(arguments):
    return " ".join(one if len(one) < 40 else one[:20] + "..." for one in arguments).encode("ascii", "backslashreplace").decode()


def bench_flags(bench, shop):
    def case(arguments, quick=False, lengths=True):
        argv = sweep(bench, shop.base, shop.folder(), *arguments, lengths=lengths)
        return Case("sweep " + named(arguments), argv, quick=quick)

    for flag, values in SWEEP.items():
        for value in values:
            given = (flag, value)
            if flag in ("--model", "--method", "--threads", "--repeats"):  # once only
                plain = sweep(bench, shop.base, shop.folder())
                plain[plain.index(flag) + 1] = value
                yield Case("sweep " + named(given), plain, says=(flag.strip("-"),), quick=value in SWEEP_QUICK.get(flag, ()))
            else:
                yield case(given, value in SWEEP_QUICK.get(flag, ()), lengths=flag not in ("--seq-len", "--tokens"))
    for arguments in TOGETHER:
        yield case(arguments, quick=arguments[0] == "--divisor" or RED in arguments)
    for arguments in OTHERS:
        yield Case("bench " + named(arguments), [bench, *(filled(one, shop) for one in arguments)], quick="-1" in arguments)
    wrong = sweep(bench, shop.base, shop.folder())
    yield Case("STREAMBP_ISA", wrong, says=("STREAMBP_ISA", "nope"), environment={"STREAMBP_ISA": "nope"}, quick=True)
    half = shop.model(config={**shop.config, "dtype": "float16", "torch_dtype": "float16"})
    yield Case("a model in float16", sweep(bench, half, shop.folder(), "--dtype", "model"), says=("float16", "bfloat16"), quick=True)


def config_files(bench, shop):
    """TOML that means something else than it seems to."""
    for what, text in {
        "a key twice": "[sweep]\nseq-len = 9\nseq-len = 17\n",
        "a section twice": "[sweep]\nseq-len = 9\n[train]\nsteps = 1\n[sweep]\nbatch = 2\n",
        "a marker as a key": "[sweep]\n++ = 1\n",
        "a switch of -1": "[sweep]\nquiet = -1\n",
    }.items():
        argv = sweep(bench, shop.base, shop.folder(), "--config", str(shop.file("flags.toml", text.encode())))
        yield Case("TOML with " + what, argv, says=("flags.toml",), quick=what == "a key twice")
    yield Case("TOML that can't be read", sweep(bench, shop.base, shop.folder(), "--config", "/proc/self/mem"), says=("--config",))


def folders_of_ranks(bench, shop):
    """What stands where a rank that runs out of memory leaves its record, and records that are there."""
    record = ".streambp-out-of-memory.json"
    for what, make in {
        "a folder": os.mkdir,
        "a FIFO": os.mkfifo,
        "a link": lambda path: os.symlink("/etc/passwd", path),
    }.items():
        out = shop.folder()
        make(out / record)
        argv = [bench, "ranks", "--model", str(shop.base), "--method", "streambp", "--seq-len", "8", "--repeats", "1", "--out", str(out)]
        yield Case(f"{what} of the record's name", argv, says=(record,), quick=what == "a FIFO")
    out = shop.folder()
    (out / "results.jsonl").write_text('{"schema":1}\n')
    yield Case("ranks without --resume", [bench, "ranks", "--out", str(out)], says=("--resume",), quick=True)


def verify_flags(verify, shop):
    for arguments in VERIFY:
        argv = [verify, *(filled(one, shop) for one in arguments)]
        yield Case("verify " + named(arguments), argv, quick="inf" in arguments or "-1" in arguments[2:3])
    tensors = (shop.case / "tensors.safetensors").read_bytes()
    good = {name[5:]: entry for name, entry in loaded(tensors).items() if name.startswith("grad.")}
    first = sorted(good)[0]
    compare = [verify, "compare", "--threads", "1", "--model", str(shop.base), "--tokens", str(shop.case / "tensors.safetensors")]

    def case(what, data, *more, want=(1, 2), quick=False):
        gradients = shop.file("gradients.safetensors", data)
        return Case("compare " + what, [*compare, "--gradients", str(gradients), *more], want, quick=quick)

    for flag, value in (("--tolerance", "inf"), ("--tolerance", "nan"), ("--chunk", "0"), ("--set", "x=1"), ("--seed", "-1")):
        yield case(f"{flag} {value}", stored(good), flag, value, want=(2,), quick=value == "inf")
    yield case("nothing", stored({}))
    yield case("noise", b"xx")
    yield case("gradients in int64", stored({**good, first: ("I64", *good[first][1:])}))
    yield case("a surplus name of escapes", stored({**good, RED: ("F64", [1], b"\0" * 8)}), want=(1,), quick=True)
    yield case("a long name", stored({**good, "n" * 1_000_000: ("F64", [1], b"\0" * 8)}), want=(1,))


def failing_weights(bench, shop):
    """Weights that give no loss: one line says which tensor."""
    name = "model.layers.0.mlp.down_proj.weight"
    tensors = loaded(shop.weights)
    dtype, shape, data = tensors[name]
    nan = bytes.fromhex("000000000000f87f") + data[8:]
    model = shop.model(stored({**tensors, name: (dtype, shape, nan)}))
    yield Case("a weight of nan", sweep(bench, model, shop.folder(), "--dtype", "float64"), (1,), (name, "not finite"), quick=True)


def records(bench, shop):
    """Records with names of escapes, shown in tables, and as JSON."""
    out = shop.folder()
    argv = sweep(bench, shop.base, out, "--resume")
    record = {"schema": 1, "status": "ok", "key": "x", "objective": RED, "method": "\u202e\x9b", "settings": {}}
    (out / "results.jsonl").write_text(json.dumps(record) + "\n")
    yield Case("another's record", argv, (0,))
    folder = os.fsencode(shop.folder()) + b"/\xff\xfe" + RED.encode()
    os.makedirs(folder)
    for file in shop.base.iterdir():
        with open(os.path.join(folder, os.fsencode(file.name)), "wb") as copy:
            copy.write(file.read_bytes())
    yield Case("a folder's name", sweep(bench, os.fsdecode(folder), os.fsdecode(folder) + "/out"), (0,), quick=True)
    yield Case("a folder's name as JSON", sweep(bench, os.fsdecode(folder), shop.folder(), "--json"), (0,), quick=True)


def all_cases(bench, verify, shop):
    for kind in (bench_flags, config_files, folders_of_ranks, failing_weights, records):
        yield from kind(bench, shop)
    yield from verify_flags(verify, shop)
