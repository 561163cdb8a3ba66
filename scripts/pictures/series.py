"""Records of sweeps as series: which of them make one curve, and what it is called. Nothing here depends on the order of files."""

import hashlib
import json
import re
from pathlib import Path

from compare.sweep_form import as_cells, is_repeat
from files import InputError, parse_record, read_text
from printable import printable_values

# What one picture holds one of.
PICTURE_FIELDS = ("model", "dtype", "device", "objective", "batch")
# Settings of a method and their defaults: null where a method does not take them. A head's default is its method's.
DEFAULTS = {"baseline": "fair", "every": 1, "head": None, "head_chunk": "auto", "keep": "none", "keep_attention": False, "offload": "none",
            "order": "reverse"}
FULL_HEAD = ("standard", "checkpoint")
# How often something is measured does not change what is measured.
PASSED_OVER = ("chunk", "repeats", "budget", "host_budget")
# By which two records of one configuration are the same: those of a dry run are, those of two measurements are not.
FIGURES = ("status", "peak_beyond_resident_bytes", "seconds_median", "cpu_seconds_median")
METHODS = ("standard", "checkpoint", "logits-only", "tiled", "chunk-major", "streambp", "auto")


def what_instead(line):
    """What a line is that is no record of a sweep, and what shows it."""
    try:
        record = parse_record(line)
    except ValueError:
        record = {}
    if "verdict" in record:
        return "a verdict on gradients, not a cell of a sweep: streambp-bench report shows these"
    return "expected a record of schema 1 with settings, as streambp-bench sweep and scripts/compare_hf.py write them"


def read_records(paths):
    """The last record of each configuration in each file, with the member `file`. A folder stands for its results.jsonl; a torn last line is
    skipped. Repeats of scripts/compare_hf.py are gathered in a record for each cell."""
    records = []
    for path in sorted(set(map(str, paths))):
        file = Path(path) / "results.jsonl" if Path(path).is_dir() else Path(path)
        lines = read_text(file).split("\n")
        of_file, repeats = {}, []
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                record = printable_values(parse_record(line))
                if is_repeat(record):
                    as_cells([record])
                    repeats.append(record)
                    continue
                if record["schema"] != 1 or not isinstance(record["settings"], dict):
                    raise ValueError
                key = [record[field] for field in (*PICTURE_FIELDS, "method", "seq_len", "status", "key")]
                of_file[key[-1]] = {**record, "file": str(file)}
            except (ValueError, KeyError, TypeError):
                if number == len(lines):
                    continue
                raise InputError(f"{file} line {number}: {what_instead(line)}") from None
        records += of_file.values()
        records += [{**cell, "file": str(file)} for cell in as_cells(repeats)]
    return records


def method_of(record):
    return "auto" if record.get("choice") else record["method"]


def own_settings(record):
    """Those of the method that are not the default, chunk first."""
    if record.get("choice"):
        return {"budget": record["choice"].get("budget_bytes")}
    settings = record["settings"]
    own = {} if settings.get("chunk") is None else {"chunk": settings["chunk"]}
    for name, default in DEFAULTS.items():
        value = settings.get(name)
        if name == "head":
            default = "full" if record["method"] in FULL_HEAD else "streamed"
        if value is not None and value != default:
            own[name] = value
    return own


def shared_settings(record):
    """Those of the whole run that are not off, and the machine."""
    shared = {name: value for name, value in record["settings"].items() if name not in (*DEFAULTS, *PASSED_OVER) and describe(name, value)}
    environment = record.get("environment") or {}
    if record["device"] != "meta" and not record["device"].startswith("meta:"):
        shared["machine"] = environment.get("gpu") or environment.get("cpu")
    return shared


def fingerprint(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:6]


def unit_of(most):
    """Name and bytes of the unit in which `most` bytes are a number from 1 to 1,000."""
    return next((unit for unit in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)) if most >= unit[1]), ("bytes", 1.0))


def describe(name, value):
    """A setting in a few words; nothing where it is off."""
    if value is None or value is False or value in ("", [], {}, "none"):
        return ""
    words = name.replace("_", " ")
    if value is True:
        return words
    if name == "threads":
        return f"{value} thread{'' if value == 1 else 's'}"
    if name == "lora":
        return f"LoRA rank {value['r']}" if isinstance(value, dict) and "r" in value else f"adapter {value}"
    if name in ("optimizer", "fused_optimizer") and isinstance(value, dict):
        wide = f" in {value['bits']} bits" if value.get("bits") else ""
        return f"{'fused ' if name == 'fused_optimizer' else ''}{value.get('name')}{wide}{', master weights' if value.get('master_weights') else ''}"
    if name == "objective_options" and isinstance(value, dict):
        return ", ".join(f"{option} {text}" for option, text in sorted(value.items()))
    if name in ("budget", "memory_limit"):
        unit, size = unit_of(value)
        return f"{words} {value / size:.4g} {unit}"
    if name in ("content", "tokens_key"):
        return f"{'files' if name == 'content' else 'tokens'} {fingerprint(value)}"
    if name == "machine":
        return str(value)
    return f"{words} {' '.join(map(str, value)) if isinstance(value, list) else value}"


def natural(text):
    """A key by which chunk 512 comes before chunk 1024."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", text)]


class Series:
    """Records that differ in their length alone."""

    def __init__(self, records, folder):
        self.records = sorted(records, key=lambda record: record["seq_len"])
        self.method = method_of(records[0])
        self.own = own_settings(records[0])
        self.shared = shared_settings(records[0])
        self.folder = folder  # where another folder has the same series
        self.name = self.method

    def points(self, field):
        """Value by length, of those that finished."""
        return {r["seq_len"]: r[field] for r in self.records if r["status"] == "ok" and r.get(field) is not None}

    def repeats(self, field):
        """Values by length, of a field that has one for each repeat."""
        return {r["seq_len"]: r[field] for r in self.records if r["status"] == "ok" and r.get(field)}

    def spread(self, field, base=None):
        """The least and the most by length; with a base, whose repeats took turns with these, of the ratios round by round."""
        values = self.repeats(field)
        if base:
            other = base.repeats(field)
            values = {x: [a / b for a, b in zip(of, other[x])] for x, of in values.items() if len(other.get(x, ())) == len(of)}
        return {x: (min(of), max(of)) for x, of in values.items()}

    def lost(self):
        """Lengths that ran out of memory."""
        return [r["seq_len"] for r in self.records if r["status"] == "oom"]


def shortest_names(files):
    """File to the shortest end of its folder's path that no other has."""
    parts = {file: Path(file).resolve().parent.parts for file in files}
    names = {}
    for file, path in parts.items():
        for count in range(1, len(path) + 1):
            name = "/".join(path[-count:])
            if all("/".join(other[-count:]) != name for that, other in parts.items() if that != file):
                break
        names[file] = name
    return names


def split(records):
    """The records of one curve each, and the folder that names it: files that say different things of a length are never mixed."""
    by_file, by_length = {}, {}
    for record in records:
        by_file.setdefault(record["file"], []).append(record)
        figures = tuple(map(repr, map(record.get, FIGURES)))
        by_length.setdefault(record["seq_len"], {})[figures] = record
    if len(by_file) == 1 or all(len(distinct) == 1 for distinct in by_length.values()):
        return [([record for distinct in by_length.values() for record in distinct.values()], "")]
    names = shortest_names(by_file)
    return [(members, names[file]) for file, members in by_file.items()]


def series_of(records):
    """All series of one picture, named by every setting in which they differ, in an order of their own."""
    groups = {}
    for record in records:
        identity = json.dumps([method_of(record), own_settings(record), shared_settings(record)], sort_keys=True)
        groups.setdefault(identity, []).append(record)
    series = [Series(members, folder) for group in groups.values() for members, folder in split(group)]
    shared = sorted({name for one in series for name in one.shared})
    differing = [name for name in shared if len({json.dumps(one.shared.get(name), sort_keys=True) for one in series}) > 1]
    for one in series:
        words = [describe(name, value) for name, value in one.own.items()]
        words += [describe(name, one.shared.get(name)) for name in differing]
        one.name = ", ".join(filter(None, [one.method, *words, one.folder]))
    rank = {method: i for i, method in enumerate(METHODS)}
    return sorted(series, key=lambda one: (rank.get(one.method, len(rank)), natural(one.name)))


def base_of(one, series):
    """The series of checkpointing that `one` is relative to: of the same run (whatever the memory limit, which changes no figure), as little
    changed as possible. None where there is none."""
    run = {**one.shared, "memory_limit": None}
    same = [other for other in series
            if other.method == "checkpoint" and {**other.shared, "memory_limit": None} == run and other.folder in ("", one.folder)]
    return min(same, key=lambda other: (other.folder != one.folder, len(other.own)), default=None)
