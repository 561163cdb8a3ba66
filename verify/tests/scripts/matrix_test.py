"""scripts/pages/matrix_table.py: counts of ctest's report, gradients that are the same to the bit or so far apart, and the table of them.

matrix_test.py PROJECT
"""

import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(sys.argv[1])
sys.path.insert(0, str(PROJECT / "scripts/pages"))

import matrix_table  # noqa: E402


def gradients(path, dtype, tensors):
    header, data = {}, b""
    for name, numbers in tensors.items():
        code = {"F64": "d", "F32": "f", "BF16": "H"}[dtype]
        part = struct.pack(f"<{len(numbers)}{code}", *numbers)
        header[name] = {"dtype": dtype, "shape": [len(numbers)], "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def report(path, failing):
    cases = "".join(f'<testcase name="t{i}" status="{"fail" if i < failing else "run"}"/>' for i in range(10))
    path.write_text(f'<testsuite tests="10" failures="{failing}" disabled="0" skipped="2">{cases}</testsuite>')


def matrix(folder, *arguments):
    command = [sys.executable, PROJECT / "scripts/pages/matrix_table.py", folder, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        assert matrix(folder).returncode == 2, "no records"
        for version, failing, last in (("2.9.0", 0, 4.0), ("2.11.0", 1, 4.5)):
            report(folder / f"{version}.xml", failing)
            gradients(folder / f"{version}-float64-standard.safetensors", "F64", {"a": [3.0, last], "b": [1.0]})
            gradients(folder / f"{version}-bfloat16-streambp.safetensors", "BF16", {"a": [0x3F80, 0x4000]})  # 1 and 2
            added = matrix(folder, "--add", version, "--built", "600", "--tested", "60")
            assert added.returncode == 0, added.stderr
        text = matrix(folder).stdout
        assert text == (folder / "matrix.md").read_text() + "\n"
        assert "| 2.9.0 | 8 | 0 | 2 | 10 | 1 |  |" in text, text
        assert "| 2.11.0 | 7 | 1 | 2 | 10 | 1 | other: float64 standard 1.0e-01 |" in text, text
        assert "- 2.11.0: t0" in text, text
        a, b = {"w": ("F32", struct.pack("<f", 1.0))}, {"w": ("F32", struct.pack("<f", float("nan")))}
        assert matrix_table.difference(a, a) == 0.0 and not matrix_table.difference(a, b) < 1.0, "NaN"
        assert matrix_table.numbers("BF16", struct.pack("<HH", 0x3F80, 0xC000)) == (1.0, -2.0)
    print("table, counts and differences")


if __name__ == "__main__":
    main()
