"""Names of other people's records reach terminals, tables and pictures escaped and short; bad flags are refused.

printable_test.py PROJECT
"""

import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPTS = Path(sys.argv[1]) / "scripts"
sys.path.insert(0, str(SCRIPTS))

from files import parse_record  # noqa: E402
from printable import printable, printable_values  # noqa: E402


def main():
    assert printable("\x1b[31m\x9b\u202e\n\t\ud800caf\xe9") == r"\x1b[31m\x9b\u202e\n\t\ud800café"
    assert printable("x" * 1000, 100) == "x" * 49 + "..." + "x" * 48
    assert printable("x" * 100, 100) == "x" * 100
    assert printable_values(parse_record('{"\\u001bkey": ["\\u009b31m", {"deep": "\\u202e"}, 3]}')) == {r"\x1bkey": [r"\x9b31m", {"deep": r"\u202e"}, 3]}
    for text in ("[" * 100_000, "{", ""):
        try:
            parse_record(text)
            raise AssertionError(f"{text[:5]!r} was accepted")
        except ValueError:
            pass

    report = [sys.executable, str(SCRIPTS / "gpu/gpu_report.py")]
    with tempfile.TemporaryDirectory() as folder:
        name = r"\u001b]0;owned\u0007"
        common = '"settings": {}, "objective": "sft", "method": "streambp", "seq_len": 8, "batch": 1, "dtype": "float32"'
        record = f'{{"kind": "predicted", "model": "{name}", "tokens": 8, "peak_bytes": 1, "status": "ok", {common}}}\n'
        Path(folder, "results.jsonl").write_text(record)
        shown = subprocess.run([*report, folder], capture_output=True)
        assert shown.returncode == 0 and b"\x1b" not in shown.stdout + shown.stderr, shown
        for wrong in ("--frobnicate", f"{folder}/none"):
            refused = subprocess.run([*report, wrong], capture_output=True)
            assert refused.returncode == 2 and b"Traceback" not in refused.stderr, refused
    print("escaped, cut, refused")


if __name__ == "__main__":
    main()
