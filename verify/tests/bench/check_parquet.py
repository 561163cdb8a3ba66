#!/usr/bin/env python3
"""A Parquet file of streambp-bench records holds what its CSV holds, with numbers as numbers: read here from the format's description, and
by pyarrow where that is installed. check_parquet.py FILE.parquet FILE.csv
"""

import csv
import struct
import sys


class Thrift:
    """The compact protocol: a structure becomes a dictionary by field number."""

    def __init__(self, data, at=0):
        self.data, self.at = data, at

    def byte(self):
        self.at += 1
        return self.data[self.at - 1]

    def varint(self):
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def value(self, kind):
        if kind in (5, 6):
            value = self.varint()
            return value >> 1 ^ -(value & 1)
        if kind == 8:
            size = self.varint()
            self.at += size
            return self.data[self.at - size : self.at].decode()
        if kind == 9:
            head = self.byte()
            count = self.varint() if head >> 4 == 15 else head >> 4
            return [self.value(head & 15) for _ in range(count)]
        assert kind == 12, kind
        fields, field = {}, 0
        while head := self.byte():
            assert head >> 4, "fields by ascending number"
            field += head >> 4
            fields[field] = self.value(head & 15)
        return fields


def column_of(data, meta, count):
    """The values of a column chunk, None where there is none."""
    reader = Thrift(data, meta[9])
    head = reader.value(12)
    page = data[reader.at : reader.at + head[3]]
    assert head[2] == head[3] and reader.at - meta[9] + head[3] == meta[7] == meta[6] and head[5][1] == meta[5] == count
    size = struct.unpack_from("<I", page)[0]
    runs, present = Thrift(page, 4), []
    while runs.at < 4 + size:
        length = runs.varint()
        assert length & 1 == 0, "runs of equal levels"
        present += [runs.byte() == 1] * (length >> 1)
    assert len(present) == count
    at, values = 4 + size, []
    for i in range(sum(present)):
        if meta[1] == 0:
            values.append(bool(page[at + i // 8] >> i % 8 & 1))
        elif meta[1] == 6:
            length = struct.unpack_from("<I", page, at)[0]
            values.append(page[at + 4 : at + 4 + length].decode())
            at += 4 + length
        else:
            values.append(struct.unpack_from({2: "<q", 5: "<d"}[meta[1]], page, at)[0])
            at += 8
    values = iter(values)
    return [next(values) if one else None for one in present]


def read(path):
    data = open(path, "rb").read()
    assert data[:4] == data[-4:] == b"PAR1"
    size = struct.unpack("<I", data[-8:-4])[0]
    footer = Thrift(data, len(data) - 8 - size).value(12)
    (group,) = footer[4]
    assert group[3] == footer[3] and len(group[1]) == footer[2][0][5] == len(footer[2]) - 1
    metas = [chunk[3] for chunk in group[1]]
    assert [meta[3] for meta in metas] == [[element[4]] for element in footer[2][1:]]
    return {meta[3][0]: column_of(data, meta, footer[3]) for meta in metas}


def same(value, text):
    if value is None or isinstance(value, str):
        return (value or "") == text
    return text == str(value).lower() if isinstance(value, bool) else float(text) == value


columns = read(sys.argv[1])
rows = list(csv.DictReader(open(sys.argv[2], encoding="utf-8", newline="")))
assert rows and list(columns) == list(rows[0]), "other columns"
for name, values in columns.items():
    assert len(values) == len(rows)
    wrong = [(value, row[name]) for value, row in zip(values, rows) if not same(value, row[name])]
    assert not wrong, (name, wrong[:2])
numbers = [name for name, values in columns.items() if any(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)]
assert "seq_len" in numbers, numbers
try:
    import pyarrow.parquet
except ImportError:
    print("read without pyarrow", end="; ")
else:
    assert pyarrow.parquet.read_table(sys.argv[1]).to_pydict() == columns, "pyarrow reads something else"
print(f"{len(columns)} columns, {len(numbers)} of numbers, {len(rows)} rows")
