"""Records of scripts/compare_hf.py, one for each repeat, in the form of a sweep's, one for each cell."""

import statistics

CHUNKED = ("streambp", "tiled", "chunk-major")
SAME = ("schema", "model", "dtype", "objective", "method", "seq_len", "threads", "folder", "hf_gradients")


def is_repeat(record):
    return record.get("schema") == 1 and "repeat" in record and "settings" not in record


def value_of(text):
    return int(text) if text.isdecimal() else text


def settings_of(record, method, settings):
    """As a sweep of the same names them; of Hugging Face and the package what all cells share."""
    found = {"threads": record["threads"], "gradient_dtype": record["dtype"], "micro_batches": 1, "seed": record["seed"], "release_reference": False,
             "chunk": "auto" if method in CHUNKED else None}
    for setting in settings:
        name, sign, value = setting.partition("=")
        found[name.replace("-", "_")] = value_of(value) if sign else True
    return found


def cell_of(repeats, cpu):
    first = repeats[0]
    method, *settings = first["method"].split("+")
    lost = [one for one in repeats if one["status"] == "oom"]
    failed = [one for one in repeats if one["status"] not in ("ok", "oom")]
    good = [one for one in repeats if one["status"] == "ok"]
    median = {f"{name}_median": statistics.median(one[name] for one in good) if good else None for name in ("seconds", "cpu_seconds")}
    return {"schema": 1, "key": first["key"], "model": first["model"], "dtype": first["dtype"], "device": "cpu", "objective": first["objective"],
            "batch": 1, "method": method, "seq_len": first["seq_len"], "settings": settings_of(first, method, settings),
            "environment": {"cpu": cpu, "threads": first["threads"]}, "status": "oom" if lost else "error" if failed else "ok",
            "peak_beyond_resident_bytes": max((one["peak_beyond_resident_bytes"] for one in good), default=None), **median}


def as_cells(records):
    """One record for each cell, its medians and its largest peak; a cell of which any repeat ran out of memory has. Hugging Face's name no
    processor: it is that of ours next to them. Raises KeyError or TypeError where a member is missing or none of its kind."""
    cpus = {record["environment"].get("cpu") for record in records} - {None}
    cpu = cpus.pop() if len(cpus) == 1 else None
    cells = {}
    for record in records:
        cells.setdefault(tuple(record[name] for name in SAME), []).append(record)
    return [cell_of(repeats, cpu) for repeats in cells.values()]
