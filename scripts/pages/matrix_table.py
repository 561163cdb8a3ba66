#!/usr/bin/env python3
"""The table of scripts/matrix.sh, from what it left in a folder.

    matrix_table.py FOLDER --add VERSION --built SECONDS --tested SECONDS     a record of FOLDER/VERSION*.xml (ctest's) to FOLDER/results.jsonl
    matrix_table.py FOLDER                                                    FOLDER/matrix.md from the latest record of each version

Of the gradients in FOLDER/VERSION-DTYPE-METHOD.safetensors the record has, in place of the numbers, whether they are those of the first
version's to the bit, or the largest relative difference of a parameter's gradient.
"""

import argparse
import json
import struct
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/
import machine
from files import InputError, Parser, run, write_file

FORMATS = {"F64": "d", "F32": "f", "BF16": "H"}


def read_gradients(path):
    """{name: (dtype, bytes)} of a safetensors file."""
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size])
    return {name: (one["dtype"], data[8 + size + one["data_offsets"][0]:8 + size + one["data_offsets"][1]])
            for name, one in header.items() if name != "__metadata__"}


def numbers(dtype, data):
    """As floats; bfloat16 is the upper half of a float32."""
    if dtype == "BF16":
        halves = struct.unpack(f"<{len(data) // 2}H", data)
        return struct.unpack(f"<{len(halves)}f", b"".join(struct.pack("<HH", 0, half) for half in halves))
    return struct.unpack(f"<{len(data) // struct.calcsize(FORMATS[dtype])}{FORMATS[dtype]}", data)


def difference(first, other):
    """The largest of |a - b| / |a| over the parameters, 0.0 for equal bits. NaN is different from everything."""
    if set(first) != set(other):
        raise InputError(f"gradients of other parameters: {sorted(set(first) ^ set(other))[:3]}")
    most = 0.0
    for name, (dtype, data) in first.items():
        if other[name] == (dtype, data):
            continue
        a, b = numbers(dtype, data), numbers(*other[name])
        apart = sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5
        length = sum(x * x for x in a) ** 0.5
        relative = apart / length if length > 0.0 else float("inf")
        most = relative if not relative <= most else most
    return most


def passes_of(folder, version):
    """{(dtype, method): path}."""
    found = {}
    for path in sorted(folder.glob(f"{version}-*.safetensors")):
        dtype, method = path.stem.removeprefix(f"{version}-").split("-")
        found[f"{dtype} {method}"] = path
    return found


def test_counts(paths):
    """Passed, failed and skipped of files of ctest's --output-junit."""
    total = failed = skipped = 0
    failures = []
    for path in paths:
        suite = ElementTree.parse(path).getroot()
        total += int(suite.get("tests", 0))
        failed += int(suite.get("failures", 0))
        skipped += int(suite.get("skipped", 0)) + int(suite.get("disabled", 0))
        failures += [case.get("name") for case in suite.iter("testcase") if case.get("status") == "fail"]
    return {"passed": total - failed - skipped, "failed": failed, "skipped": skipped, "failures": failures}


def read_records(folder):
    """The latest of each version, in order of versions."""
    path = folder / "results.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    latest = {record["torch"]: record for record in records}
    return [latest[version] for version in sorted(latest, key=lambda text: [int(part) for part in text.split(".")])]


def add(folder, version, built, tested):
    record = {"torch": version, **test_counts(sorted(folder.glob(f"{version}*.xml"))), "build_seconds": built, "test_seconds": tested,
              "environment": machine.environment() | {"torch": version}, "differences": {}}
    known = [one["torch"] for one in read_records(folder)]
    first = known[0] if known else version
    of_first = passes_of(folder, first)
    for name, path in passes_of(folder, version).items():
        if name in of_first:
            record["differences"][name] = difference(read_gradients(of_first[name]), read_gradients(path))
    record["compared_with"] = first
    with (folder / "results.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")


def bits(record):
    if record["compared_with"] == record["torch"]:
        return ""
    other = {name: apart for name, apart in record["differences"].items() if apart != 0.0}
    if not other:
        return f"all {len(record['differences'])} passes"
    return "other: " + ", ".join(f"{name} {apart:.1e}" for name, apart in other.items())


def table(records):
    first = records[0]["torch"]
    lines = ["# torch by torch", "", f"Written by `scripts/matrix.sh`: the quick tests with each torch, and whether gradients are those of torch {first} to the bit.",
             "", f"| torch | tests passed | failed | skipped | minutes to build | to test | bits of {first} |", "|---|---:|---:|---:|---:|---:|---|"]
    for one in records:
        lines.append(f"| {one['torch']} | {one['passed']:,} | {one['failed']} | {one['skipped']} | {one['build_seconds'] / 60:.0f} | "
                     f"{one['test_seconds'] / 60:.0f} | {bits(one)} |")
    failures = [f"- {one['torch']}: {', '.join(one['failures'])}" for one in records if one["failures"]]
    lines += ["", *(["Failed:", "", *failures, ""] if failures else []), *machine.made_by(records)]
    return "\n".join(lines) + "\n"


def main():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--add")
    parser.add_argument("--built", type=int, default=0)
    parser.add_argument("--tested", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.add:
        return add(arguments.folder, arguments.add, arguments.built, arguments.tested)
    records = read_records(arguments.folder)
    if not records:
        raise InputError(f"{arguments.folder}: no records, expected those of scripts/matrix.sh")
    write_file(arguments.folder / "matrix.md", table(records))
    print(table(records))


if __name__ == "__main__":
    run(main)
