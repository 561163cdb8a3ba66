#!/usr/bin/env python3
"""scripts/plot.py for papers: sizes, formats, chosen and renamed curves, tables of LaTeX, and what is refused.

plot_test.py PROJECT, run by a Python with matplotlib
"""

import json
import re
import sys
import tempfile
from pathlib import Path

import plotting

KEEPS = {"standard": 3000, "checkpoint": 1000, "streambp": 100}


def record(method, seq_len, number, status="ok"):
    ok = status == "ok"
    settings = {"threads": 2, "chunk": "auto" if method == "streambp" else None}
    return {"schema": 1, "key": f"{number:016x}", "model": "my_tiny & co", "dtype": "float32", "device": "cpu", "objective": "sft", "batch": 1,
            "method": method, "seq_len": seq_len, "status": status, "settings": settings, "environment": {"cpu": "Xeon"},
            "peak_beyond_resident_bytes": seq_len * KEEPS[method] if ok else None, "seconds_median": seq_len * 1e-3 if ok else None}


def plot(folder, *arguments, code=0):
    got, output, errors = plotting.plot("--records", folder, "--out", folder / "out", *arguments)
    assert got == code, (arguments, output, errors)
    return errors


def check_paper(folder):
    renamed = "streambp, chunk auto=Ours_50% {x}"
    plot(folder, "--size", "column", "--format", "pgf", "pdf", "svg", "tex", "--label", renamed)
    out = folder / "out"
    assert sorted(path.name for path in out.iterdir()) == sorted(f"{name}.{ending}" for name in ("memory", "time") for ending in ("pdf", "pgf", "svg", "tex"))
    width = float(re.search(r'width="([\d.]+)pt"', (out / "memory.svg").read_text())[1])
    assert abs(width / 72 - 3.25) < 0.01, f"a column's picture is {width / 72} inches wide"
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", (out / "memory.svg").read_text())
    assert "Ours_50% {x}" in texts and "memory (MB)" in texts and not any("Peak memory" in text for text in texts), texts
    pgf = (out / "memory.pgf").read_text()
    assert r"Ours\_50\% \{x\}" in pgf and "Ours_50" not in pgf and r"\ensuremath{\times} out of memory" in pgf
    assert (out / "memory.pdf").read_bytes().startswith(b"%PDF")
    table = (out / "memory.tex").read_text()
    for line in (r"standard & 3.07 & oom \\", r"checkpoint & 1.02 & 2.05 \\", r"Ours\_50\% \{x\} & 0.102 & 0.205 \\", r" & 1,024 & 2,048 \\",
                 r"\begin{tabular}{lrr}"):
        assert line in table.splitlines(), (line, table)
    assert r"checkpoint & 1.02 (1.00) & 2.05 (1.00) \\" in (out / "time.tex").read_text().splitlines()
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    plot(folder, "--size", "column", "--format", "pgf", "pdf", "svg", "tex", "--label", renamed)
    differing = [path.name for path in out.iterdir() if path.read_bytes() != before[path.name]]
    assert not differing, f"equal figures give other files: {differing}"


def check_series(folder):
    plot(folder, "--series", "streambp", "check*", "--format", "tex")
    rows = [line.split(" & ")[0] for line in (folder / "out" / "time.tex").read_text().splitlines() if line.endswith(r"\\")]
    assert rows[2:] == ["checkpoint", "streambp, chunk auto"], rows
    plot(folder, "--series", "streambp", "--format", "tex")
    assert "streambp, chunk auto & 1.02 (1.00)" in (folder / "out" / "time.tex").read_text(), "relative to a curve that is not shown"


def check_refusals(folder):
    for arguments, words in ((("--size", "3x"), "--size 3x: expected page, column, text, or WIDTHxHEIGHT"),
                             (("--size", "nanx3"), "--size nanx3: expected"),
                             (("--series", "nothing*"), "--series nothing*: no such curve: checkpoint; standard; streambp, chunk auto"),
                             (("--label", "checkpoint"), "--label checkpoint: expected NAME=TEXT"),
                             (("--label", "nothing=x"), "--label nothing=x: expected NAME=TEXT"),
                             (("--label", "standard=checkpoint"), "--label: two curves have one name: checkpoint; checkpoint")):
        said = plot(folder, *arguments, code=2)
        assert words in said and said.count("\n") == 1, (arguments, said)
    assert not (folder / "out").exists(), "a refused command writes nothing"


def main():
    for check in (check_paper, check_series, check_refusals):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            cells = [(method, length) for method in KEEPS for length in (1024, 2048)]
            records = [record(*cell, i, "oom" if cell == ("standard", 2048) else "ok") for i, cell in enumerate(cells)]
            (folder / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
            check(folder)
    print("all checks passed")


if __name__ == "__main__":
    main()
