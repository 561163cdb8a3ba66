"""Files and folders that the programs have to refuse: weights, configs, indices, adapters, tokens, golden cases."""

import json
import os
import struct

from running import Case
from stored import framed, loaded, numbers, rows, split, stored

FAST = ["--threads", "1", "--repeats", "1", "--warmup", "0", "--method", "streambp"]
RED = "\x1b[31mred\x1b]0;owned\x07"
ROW = [1, 2, 3, 4, 5, 6, 7, 8]
DEEP = "[" * 100_000

# Headers; they have the four bytes of data that some of them count on.
HEADERS = {
    "not JSON": "hello",
    "null": "null",
    "a list": "[]",
    "two objects": "{}{}",
    "nothing": "{}",
    "NaN": '{"a":NaN}',
    "a number without end": '{"a":1e400}',
    "a byte order mark": "\ufeff{}",
    "a NUL byte": "{}\0",
    "deep": '{"a":' + DEEP + "]" * 100_000 + "}",
    "deep and open": DEEP,
    "a key twice": '{"a":{"dtype":"F32","dtype":"F64","shape":[0],"data_offsets":[0,0]}}',
    "an entry that is null": '{"a":null}',
    "no dtype": '{"a":{"shape":[1],"data_offsets":[0,4]}}',
    "a dtype of a million letters": '{"a":{"dtype":"' + "F" * 1_000_000 + '","shape":[0],"data_offsets":[0,0]}}',
    "a negative size": '{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}',
    "a size that is a fraction": '{"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}}',
    "a size of 2^64": '{"a":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4]}}',
    "sizes whose product overflows": '{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}',
    "sizes that overflow next to a zero": '{"a":{"dtype":"F32","shape":[0,4611686018427387904,4],"data_offsets":[0,0]}}',
    "a hundred thousand sizes": '{"a":{"dtype":"F32","shape":[' + ",".join(["1"] * 100_000) + '],"data_offsets":[0,4]}}',
    "offsets backwards": '{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}',
    "an offset of 2^64": '{"a":{"dtype":"F32","shape":[1],"data_offsets":[18446744073709551612,18446744073709551616]}}',
    "three offsets": '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}}',
    "a name that is no UTF-8": b'{"\xff\xfe":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}',
    "a lone surrogate": '{"\\ud800":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}',
}


def sweep(bench, model, out, *more, lengths=True):
    return [bench, "sweep", "--model", str(model), *FAST, "--out", str(out), *(["--seq-len", "8"] if lengths else []), *map(str, more)]


def weights(bench, shop):
    """Case of each file of weights."""
    good = shop.weights
    header, body = split(good)
    size = len(good) - len(body) - 8

    def case(name, data, says=("model.safetensors",), quick=False):
        return Case("weights: " + name, sweep(bench, shop.model(data), shop.folder()), says=says, quick=quick)

    for cut in (0, 7, 8, 8 + size // 2, 8 + size, len(good) // 2, len(good) - 1):
        yield case(f"cut at byte {cut}", good[:cut], quick=cut in (7, len(good) - 1))
    yield case("a byte more", good + b"\0")
    for length in (0, size - 1, size + 1, len(good), 2**63, 2**64 - 1):
        yield case(f"header length {length}", framed(json.dumps(header), body, length), quick=length == 2**63)
    for name, text in HEADERS.items():
        quick = name in ("deep", "a NUL byte", "a hundred thousand sizes", "a dtype of a million letters")
        data = b"" if "[0,0]" in str(text) else b"\0" * 4
        yield case("a header that is " + name, framed(text, data), quick=quick)
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [len(body)] * 2}
    for name in (RED, "a\nb", "\x9b31m\u202e\u2028", "n" * 1_000_000, "", "a\0b"):
        yield case(f"a tensor named {name[:20]!r}", framed({**header, name: empty}, body), quick=name == RED)
    yield case("raw escapes", framed(json.dumps({**header, "\x9b31m\u202e": empty}, ensure_ascii=False), body))
    tensors = loaded(good)
    norm = tensors["model.norm.weight"]
    for dtype, bytes_each in (("I64", 8), ("BOOL", 1), ("F8_E4M3", 1)):
        changed = (dtype, norm[1], b"\1" * norm[1][0] * bytes_each)
        yield case(f"a norm in {dtype}", stored({**tensors, "model.norm.weight": changed}), ("model.norm.weight",))
    del tensors["model.norm.weight"]
    yield case("a tensor is missing", stored(tensors), ("model.safetensors", "model.norm.weight"), quick=True)


def special_files(bench, shop):
    """Pipes, folders, devices and links where files should be."""

    def made(name, file, make):
        folder = shop.model(**({"weights": False} if file == "model.safetensors" else {"config": False}))
        make(folder / file)
        return Case(f"{file}: {name}", sweep(bench, folder, shop.folder()), says=(file,), quick=name != "a folder")

    for file in ("model.safetensors", "config.json"):
        yield made("a pipe", file, os.mkfifo)
        yield made("a folder", file, os.mkdir)
        yield made("a link to itself", file, lambda path: path.symlink_to(path.name))
        yield made("/dev/zero", file, lambda path: path.symlink_to("/dev/zero"))
    loop = shop.folder() / "a"
    loop.symlink_to("b")
    loop.with_name("b").symlink_to("a")
    yield Case("model: links in a circle", sweep(bench, loop, shop.folder()), says=("/a",), quick=True)
    yield Case("model: a name too long", sweep(bench, "m" * 100_000, shop.folder()), quick=True)
    yield Case("model: a path too long", sweep(bench, "/" + "d/" * 3000, shop.folder()))
    yield Case("model: a name of escapes", sweep(bench, RED, shop.folder()))


def indices(bench, shop):
    first = json.loads((shop.sharded / "model.safetensors.index.json").read_text())["weight_map"]
    name = sorted(first)[0]

    def case(what, change, quick=False):
        return Case("index: " + what, sweep(bench, shop.sharded_model(change), shop.folder()), says=("index.json",), quick=quick)

    def shard(value):
        return lambda index: {**index, "weight_map": {**index["weight_map"], name: value}}

    for value in ("nope.safetensors", "../../../etc/passwd", "/etc/passwd", "..", "", ".", "a\0b", RED, "x" * 100_000, "config.json", 3, None):
        yield case(f"a shard {str(value)[:30]!r}", shard(value), quick=value in (RED, "nope.safetensors"))
    yield case("without a map", lambda index: {})
    yield case("a list", lambda index: [])
    yield case("deep", lambda index: '{"weight_map":' + DEEP)
    yield case("a tensor twice", lambda index: '{"weight_map":{"a":"x","a":"y"}}')


def configs(bench, shop):
    def case(what, config, says=("config.json",), quick=False):
        return Case("config: " + what, sweep(bench, shop.model(config=config), shop.folder()), says=says, quick=quick)

    for text in ("", "hi", "null", "[]", "{}", "{}\0", DEEP, '{"model_type":' + DEEP, json.dumps(shop.config) + "x"):
        yield case(f"text {text[:20]!r}", text, quick=text == DEEP)
    for key in ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size", "intermediate_size"):
        for value in (0, -1, 24.0, "24", [24], True, 2**62, 2**64):
            yield case(f"{key} {value!r}", {**shop.config, key: value}, ("config.json", key), quick=value == 2**62)
    for key, values in {
        "rms_norm_eps": (0, -1, "x"),
        "model_type": ("gpt2", 3, "", RED, "q" * 100_000),
        "hidden_act": ("relu", 3),
        "dtype": ("int8", 3),
        "rope_parameters": (3, [], {"rope_type": "nope"}, {"rope_type": "default", "rope_theta": 0}),
        "layer_types": (["x"], 3, ["full_attention"] * 100_000),
    }.items():
        for value in values:
            yield case(f"{key} {str(value)[:30]!r}", {**shop.config, key: value}, quick=value == RED)


def adapters(bench, shop):
    tensors = loaded((shop.adapter / "adapter_model.safetensors").read_bytes())
    a = sorted(tensors)[0]
    dtype, shape, data = tensors[a]

    def case(what, config=None, file=None, says=("adapter",), quick=False):
        folder = shop.adapted(config, file)
        return Case("adapter: " + what, sweep(bench, shop.base, shop.folder(), "--adapter", folder), says=says, quick=quick)

    for key, values in {
        "r": (0, -1, 4.0, "4", None, 2**63, 2**64 - 1, 5, 1_000_000),
        "lora_alpha": (0, -1, "x"),
        "target_modules": (["nope"], [RED], [], None, [1], ["q_proj"], ["x" * 1_000_000], "(" * 1000, "(.*.*)*x",
                           "(.{1,1000}){1,1000}"),
        "exclude_modules": ("(" * 1000, "(.{0,50}){0,50}"),
        "peft_type": ("IA3", RED, None),
        "rank_pattern": ({"q_proj": 1_000_000}, {"q_proj": 0}, {"(": 2}, {"x{999}{999}": 2}),
        "use_dora": (True,),
        "lora_magic": (3,),
    }.items():
        for value in values:
            quick = value in (1_000_000, [RED], ["x" * 1_000_000], "(.*.*)*x")
            yield case(f"{key} {str(value)[:30]!r}", {key: value}, quick=quick)
    for text in ("x", "[]", DEEP):
        yield case(f"text {text[:10]!r}", text)
    yield case("another model's weights", None, shop.weights)
    for name in (RED, "n" * 100_000, "a\nexit 0\nall good"):
        yield case(f"a tensor named {name[:10]!r}", None, stored({**tensors, name: numbers([0.0])}), quick=name == RED)
    yield case("a tensor transposed", None, stored({**tensors, a: (dtype, shape[::-1], data)}))
    yield case("a tensor in int64", None, stored({**tensors, a: ("I64", shape, b"\0" * 8 * shape[0] * shape[1])}))


def tokens(bench, shop):
    vocabulary = shop.config["vocab_size"]
    mask = rows([[0, 0, 0, 0, 1, 1, 1, 1]] * 2)
    nan, inf = float("nan"), float("inf")

    def case(what, tensors, *more, says=("tokens.safetensors",), quick=False):
        data = tensors if isinstance(tensors, bytes) else stored(tensors)
        argv = sweep(bench, shop.base, shop.folder(), "--tokens", shop.file("tokens.safetensors", data), *more, lengths=False)
        return Case("tokens: " + what, argv, says=says, quick=quick)

    ids = rows([ROW])
    flat = struct.pack("<8q", *ROW)
    for what, tensor in {
        "floats": rows([ROW], "F32"),
        "one dimension": ("I64", [8], flat),
        "a thousand dimensions": ("I64", [1] * 1000, flat[:8]),
        "a hundred thousand dimensions": ("I64", [1] * 100_000, flat[:8]),
        "no rows": ("I64", [0, 8], b""),
        "a shape that overflows": ("I64", [0, 2**62, 4], b""),
        "another shape that overflows": ("I64", [0, 2**62, 2**62], b""),
        "a negative token": rows([[1, -1, 2]]),
        "a token beyond the vocabulary": rows([[1, vocabulary, 2]]),
        "uint64": ("U64", [1, 8], flat),
    }.items():
        yield case(what, {"input_ids": tensor}, quick="overflows" in what or "hundred" in what)
    for what, more in {
        "a label beyond the vocabulary": {"labels": rows([[-100] + ROW[1:7] + [vocabulary]])},
        "labels of another shape": {"labels": rows([ROW[:-1]])},
        "a mask with a hole": {"attention_mask": rows([[1, 1, 0, 1, 1, 1, 1, 1]])},
        "a mask of twos": {"attention_mask": rows([[2] * 8])},
        "no token": {"attention_mask": rows([[0] * 8])},
        "a negative position": {"position_ids": rows([[-1, 0, 1, 2, 3, 4, 5, 6]])},
        "positions of 2^62": {"position_ids": rows([[2**62] * 8])},
        "a misspelt mask": {"atention_mask": rows([[0, 0, 1, 1, 1, 1, 1, 1]])},
        "a name of escapes": {RED: ids},
    }.items():
        yield case(what, {"input_ids": ids, **more}, quick="2^62" in what or "misspelt" in what or "escapes" in what)
    pairs = {"input_ids": rows([ROW] * 2), "completion_mask": mask, "ref_rejected_logps": numbers([0.0])}
    for value in (nan, inf):
        yield case(f"a reference of {value}", {**pairs, "ref_chosen_logps": numbers([value])}, "--objective", "dpo",
                   says=("tokens.safetensors", "ref_chosen_logps", "finite"), quick=value == inf)  # fmt: skip
    group = {"input_ids": rows([ROW] * 2), "completion_mask": rows([[1] * 4] * 2), "advantages": numbers([1.0, -1.0])}
    yield case("an advantage of nan", {**group, "advantages": numbers([nan, 1.0])}, "--objective", "grpo", says=("advantages", "finite"))
    old = ("F32", [2, 4], struct.pack("<8f", *[-inf] * 8))
    yield case("old log-probabilities of -inf", {**group, "old_per_token_logps": old}, "--objective", "grpo", says=("old_per_token_logps",))
    for objective in ("dpo", "kto", "grpo", "ppo"):
        yield case(f"nothing for {objective}", {"input_ids": rows([ROW] * 2)}, "--objective", objective)
    yield case("four kilobytes of noise", bytes(range(256)) * 16)


def goldens(verify, shop):
    tensors = (shop.case / "tensors.safetensors").read_bytes()

    def case(what, change, data=None, want=(2,), says=("case.json",), quick=False):
        argv = [verify, "goldens", "--threads", "1", "--method", "streambp", "--chunk", "7", str(shop.golden(change, data))]
        return Case("golden: " + what, argv, want, says, quick=quick)

    for text in ("", "x", "[]", DEEP):
        yield case(f"text {text[:10]!r}", text)
    for key, values in {
        "model": (3, "models/nope", "../../../../etc", "/etc", "models/../../x", ""),
        "expected": (None, {"loss": "1"}, {"loss": 1.0}),
    }.items():
        for value in values:
            quick = value in ("../../../../etc", "/etc")
            yield case(f"{key} {value!r}", {key: value}, says=() if value == "models/nope" else ("case.json",), quick=quick)
    leaves = {**json.loads((shop.adapter.parent / "case.json").read_text()), "adapter": "../case/adapter"}
    yield case("an adapter elsewhere", leaves, (shop.adapter.parent / "tensors.safetensors").read_bytes(), quick=True)
    yield case("a name of escapes", {"name": RED}, want=(0,), quick=True)
    yield case("an objective of escapes", {"objective": RED}, says=())
    yield case("tensors cut", {}, tensors[:-1], says=("tensors.safetensors",))


def all_cases(bench, verify, shop):
    for kind in (weights, special_files, indices, configs, adapters, tokens):
        yield from kind(bench, shop)
    yield from goldens(verify, shop)
