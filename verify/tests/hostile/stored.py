"""Model folders, adapters and tokens files for the tests to spoil, and the bytes of safetensors."""

import json
import shutil
import struct
from pathlib import Path

LETTERS = {"I64": "q", "I32": "i", "U8": "B", "BOOL": "?", "F32": "f", "F64": "d"}


def framed(header, data=b"", length=None):
    """A safetensors file: its header's length, its header (text, bytes or an object), its data."""
    if not isinstance(header, (str, bytes)):
        header = json.dumps(header)
    if isinstance(header, str):
        header = header.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(header) if length is None else length % 2**64) + header + data


def split(data):
    """The header as an object, and the data, of a safetensors file."""
    (length,) = struct.unpack_from("<Q", data)
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def stored(tensors):
    """A safetensors file of {name: (dtype, shape, bytes)}."""
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    return framed(header, data)


def loaded(data):
    header, body = split(data)
    return {
        name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def rows(values, dtype="I64"):
    flat = [value for row in values for value in row]
    return dtype, [len(values), len(values[0])], struct.pack(f"<{len(flat)}{LETTERS[dtype]}", *flat)


def numbers(values, dtype="F32"):
    return dtype, [len(values)], struct.pack(f"<{len(values)}{LETTERS[dtype]}", *values)


class Workshop:
    """Makes folders, each new, under one."""

    def __init__(self, folder, goldens):
        self.root = Path(folder)
        self.goldens = Path(goldens)
        self.count = 0
        self.base = self.goldens / "models" / "qwen3"
        self.weights = (self.base / "model.safetensors").read_bytes()
        self.config = json.loads((self.base / "config.json").read_text())
        self.sharded = self.goldens / "models" / "qwen3-bf16-sharded"
        self.adapter = self.goldens / "cases" / "qwen3-lora-dpo-sigmoid" / "adapter"
        self.case = self.goldens / "cases" / "qwen3-sft-b3_left"

    def folder(self):
        self.count += 1
        path = self.root / f"{self.count:04d}"
        path.mkdir(parents=True)
        return path

    def file(self, name, data):
        path = self.folder() / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    def model(self, weights=None, config=None):
        """A model folder. `weights` are bytes, `config` an object or text; None is the good one, False none."""
        folder = self.folder()
        if weights is not False:
            (folder / "model.safetensors").write_bytes(self.weights if weights is None else weights)
        if config is not False:
            text = config if isinstance(config, (str, bytes)) else json.dumps(self.config if config is None else config)
            (folder / "config.json").write_bytes(text.encode() if isinstance(text, str) else text)
        return folder

    def sharded_model(self, change):
        """A sharded model whose index is what `change` makes of the good one: an object, text or bytes."""
        folder = self.folder()
        for file in self.sharded.iterdir():
            shutil.copy(file, folder)
        index = folder / "model.safetensors.index.json"
        made = change(json.loads(index.read_text()))
        index.write_bytes(made.encode() if isinstance(made, str) else json.dumps(made).encode())
        return folder

    def adapted(self, config=None, weights=None):
        """An adapter folder: keys of adapter_config.json that change (text: all of it), and the other file's bytes."""
        folder = self.folder()
        good = json.loads((self.adapter / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(config if isinstance(config, str) else json.dumps({**good, **(config or {})}))
        file = (self.adapter / "adapter_model.safetensors").read_bytes() if weights is None else weights
        (folder / "adapter_model.safetensors").write_bytes(file)
        return folder

    def golden(self, change, tensors=None):
        """A set of one golden case, whose case.json is changed as `change` says (text: all of it)."""
        root = self.folder()
        (root / "models").symlink_to(self.goldens / "models")
        case = root / "cases" / "case"
        case.mkdir(parents=True)
        good = json.loads((self.case / "case.json").read_text())
        (case / "case.json").write_text(change if isinstance(change, str) else json.dumps({**good, **change}))
        (case / "tensors.safetensors").write_bytes((self.case / "tensors.safetensors").read_bytes() if tensors is None else tensors)
        return case
