#!/usr/bin/env python3
"""Records become curves: one for each set of settings, named by all that differs, whatever the order of the files.

series_test.py PROJECT, run by a Python with matplotlib
"""

import itertools
import json
import re
import tempfile
from pathlib import Path

from plotting import plot  # first: finds scripts/
from pictures.series import base_of, read_records, series_of  # noqa: E402

METHOD_SETTINGS = {"standard": {"baseline": "fair", "chunk": None, "every": None, "head": "full", "keep_attention": None},
                   "checkpoint": {"baseline": "fair", "chunk": None, "every": None, "head": "full", "keep_attention": None},
                   "streambp": {"baseline": None, "chunk": "auto", "every": 1, "head": "streamed", "keep_attention": False}}
numbers = itertools.count()


def record(method, seq_len, memory, cpu="Xeon", status="ok", choice=None, **changed):
    settings = {"threads": 2, "repeats": 3, "lora": None, "optimizer": None, **METHOD_SETTINGS[method], **changed}
    return {"schema": 1, "key": f"{next(numbers):016x}", "model": "tiny", "dtype": "float32", "device": "cpu", "objective": "sft", "batch": 1,
            "method": method, "seq_len": seq_len, "status": status, "settings": settings, "environment": {"cpu": cpu, "threads": settings["threads"]},
            "peak_beyond_resident_bytes": memory if status == "ok" else None, "seconds_median": memory * 1e-6 if status == "ok" else None,
            "cpu_seconds_median": None, **({"choice": choice} if choice else {})}


def write(folder, records):
    folder.mkdir(parents=True)
    (folder / "results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return folder / "results.jsonl"


def named(paths):
    """Name to values by length; the same, and in the same order, for every order of the files."""
    found = [[(one.name, one.points("peak_beyond_resident_bytes")) for one in series_of(read_records(order))] for order in itertools.permutations(paths)]
    assert all(other == found[0] for other in found), found
    assert len(dict(found[0])) == len(found[0]), f"two series have one name: {found[0]}"
    return dict(found[0])


def check_spread(folder):
    """Bands: of all repeats, and of ratios round by round, where there are as many."""
    rounds = {"checkpoint": [2.0, 4.0, 5.0], "streambp": [1.0, 3.0, 4.0]}
    write(folder / "rounds", [{**record(method, 8, 100), "seconds": seconds} for method, seconds in rounds.items()] + [{**record("streambp", 16, 110), "seconds": [1.0]}])
    base, ours = series_of(read_records([folder / "rounds/results.jsonl"]))
    assert ours.spread("seconds") == {8: (1.0, 4.0), 16: (1.0, 1.0)}, ours.spread("seconds")
    assert ours.spread("seconds", base) == {8: (0.5, 0.8)}, ours.spread("seconds", base)


def check_settings(folder):
    plain = write(folder / "plain", [record("standard", 8, 900), record("streambp", 8, 100), record("streambp", 16, 110)])
    assert named([plain]) == {"standard": {8: 900}, "streambp, chunk auto": {8: 100, 16: 110}}
    kept = write(folder / "kept", [record("streambp", 8, 200, keep_attention=True), record("streambp", 8, 300, every=4, head="full")])
    names = named([plain, kept])
    assert names["streambp, chunk auto, keep attention"] == {8: 200} and names["streambp, chunk auto, every 4, head full"] == {8: 300}, names
    assert names["streambp, chunk auto"] == {8: 100, 16: 110}, names
    more = write(folder / "more", [record("streambp", 8, 400, threads=1), record("streambp", 8, 500, lora={"r": 8}),
                                   record("streambp", 8, 600, cpu="Epyc", optimizer={"name": "adamw", "bits": 8, "master_weights": False})])
    names = named([plain, more])
    assert names["streambp, chunk auto, Xeon, 2 threads"] == {8: 100, 16: 110} and names["streambp, chunk auto, Xeon, 1 thread"] == {8: 400}, names
    assert names["streambp, chunk auto, LoRA rank 8, Xeon, 2 threads"] == {8: 500}, names
    assert names["streambp, chunk auto, Epyc, adamw in 8 bits, 2 threads"] == {8: 600}, names
    chosen = write(folder / "chosen", [record("streambp", 8, 700, choice={"budget_bytes": 2e9}), record("standard", 16, 800, choice={"budget_bytes": 2e9})])
    assert named([chosen]) == {"auto, budget 2 GB": {8: 700, 16: 800}}


def check_folders(folder):
    first = write(folder / "a" / "main", [record("streambp", 8, 100), record("streambp", 16, 110)])
    longer = write(folder / "longer", [record("streambp", 32, 120)])
    assert named([first, longer]) == {"streambp, chunk auto": {8: 100, 16: 110, 32: 120}}, "one curve of two folders"
    again = write(folder / "b" / "main", [record("streambp", 8, 105), record("checkpoint", 8, 50)])
    assert named([first, again]) == {"checkpoint": {8: 50}, "streambp, chunk auto, a/main": {8: 100, 16: 110}, "streambp, chunk auto, b/main": {8: 105}}
    copy = write(folder / "copy", json.loads(f"[{first.read_text().strip().replace(chr(10), ',')}]"))
    assert named([first, copy]) == {"streambp, chunk auto": {8: 100, 16: 110}}, "equal records are one"


def check_bases(folder):
    path = write(folder / "bases", [record(m, 8, 100 * t, threads=t) for m in ("checkpoint", "streambp") for t in (1, 2)]
                 + [record("streambp", 8, 1, threads=3), record("checkpoint", 8, 9, head="streamed", threads=2)])
    series = series_of(read_records([path]))
    bases = {one.name: base_of(one, series) for one in series if one.method == "streambp"}
    assert {name: base and base.name for name, base in bases.items()} == {
        "streambp, chunk auto, 1 thread": "checkpoint, 1 thread", "streambp, chunk auto, 2 threads": "checkpoint, 2 threads",
        "streambp, chunk auto, 3 threads": None}, bases


def texts_of(picture):
    return re.findall(r"<text[^>]*>([^<]*)</text>", picture.read_text())


def check_picture(folder):
    first = write(folder / "first", [record("streambp", n, n * 1000) for n in (8, 16)] + [record("checkpoint", n, n * 3000) for n in (8, 16)])
    second = write(folder / "second", [record("streambp", n, n * 2000, keep_attention=True, threads=1) for n in (8, 16)])
    for order, out in (([first, second], folder / "x"), ([second, first], folder / "y")):
        assert plot("--records", *order, "--out", out)[0] == 0
    for name in ("memory.svg", "time.svg", "memory.png"):
        assert (folder / "x" / name).read_bytes() == (folder / "y" / name).read_bytes(), f"{name} depends on the order of the files"
    texts = texts_of(folder / "x" / "memory.svg")
    assert "streambp, chunk auto, 2 threads" in texts and "streambp, chunk auto, keep attention, 1 thread" in texts, texts


def check_small_picture(folder):
    path = write(folder / "small", [record("streambp", n, n * 1000, threads=1) for n in (8, 16)] + [record("checkpoint", 8, 6000, threads=1)]
                 + [record("checkpoint", 16, 0, threads=1, status="oom"), record("standard", 8, 0, threads=1, status="oom")])
    assert plot("--records", path.parent, "--out", folder)[0] == 0
    texts = texts_of(folder / "memory.svg")
    for text in ("peak beyond weights and gradients (KB)", "tiny, float32, sft \u00b7 Xeon, 1 thread", "Peak memory of one forward and backward pass",
                 "checkpoint (out of memory from 16)", "standard (out of memory)", "streambp, chunk auto", "10"):
        assert text in texts, (text, texts)
    leaders = len(re.findall(r"opacity: 0\.6;", (folder / "memory.svg").read_text()))
    assert leaders == 1, f"{leaders} lines lead to names, expected one: to the curve that does not end in want of memory"
    assert "wall time (ms)" in texts_of(folder / "time.svg")
    code, _, said = plot("--records", folder, "--out", folder)
    assert code == 2 and str(folder / "results.jsonl") in said, said


def repeat(method, number, seconds, memory, cpu=None, status="ok"):
    """A record as scripts/compare_hf.py writes them."""
    ok = status == "ok"
    return {"schema": 1, "key": f"{next(numbers):016x}", "model": "tiny", "folder": "f0", "objective": "sft", "dtype": "float32", "threads": 2, "warmup": 1,
            "seed": 0, "hf_gradients": "zeros", "method": method, "seq_len": 8, "repeat": number, "status": status,
            "environment": {"cpu": cpu, "threads": 2} if cpu else {"threads": 2},
            **({"seconds": seconds, "cpu_seconds": 2 * seconds, "peak_beyond_resident_bytes": memory} if ok else {})}


def check_repeats(folder):
    path = write(folder / "compare", [repeat("hf-checkpoint", i, seconds, 900 + i) for i, seconds in enumerate((3.0, 1.0, 2.0))]
                 + [repeat("streambp+keep-attention+chunk=4", i, 0.5 * i, 100, "Xeon") for i in (1, 2, 3)]
                 + [repeat("checkpoint", 1, 4.0, 800, "Xeon"), repeat("standard", 1, 1.0, 700, "Xeon"), repeat("standard", 2, 0, 0, "Xeon", "oom")])
    assert named([path]) == {"hf-checkpoint": {8: 902}, "streambp, chunk 4, keep attention": {8: 100}, "checkpoint": {8: 800}, "standard": {}}
    series = {one.name: one for one in series_of(read_records([path]))}
    assert series["hf-checkpoint"].points("seconds_median") == {8: 2.0} and series["hf-checkpoint"].points("cpu_seconds_median") == {8: 4.0}
    assert series["standard"].lost() == [8] and base_of(series["hf-checkpoint"], list(series.values())) is series["checkpoint"]
    swept = write(folder / "swept", [record("streambp", 8, 110, seed=0, micro_batches=1, gradient_dtype="float32", objective_options={})])
    assert named([path, swept])["streambp, chunk auto"] == {8: 110}, "a sweep next to it differs in nothing that has to be said"
    assert plot("--records", path.parent, "--out", folder)[0] == 0
    assert "hf-checkpoint" in texts_of(folder / "time.svg")
    verdicts = folder / "verdicts.jsonl"
    verdicts.write_text('{"verdict": "exact", "worst_error": 1e-6}\n{"verdict": "exact", "worst_error": 1e-6}\n')
    code, _, said = plot("--records", verdicts, "--out", folder)
    assert code == 2 and "streambp-bench report shows these" in said and said.count("\n") == 1, said
    torn = {name: value for name, value in repeat("checkpoint", 1, 4.0, 800).items() if name != "seconds"}
    verdicts.write_text(json.dumps(torn) + "\n{}\n")
    code, _, said = plot("--records", verdicts, "--out", folder)
    assert code == 2 and "line 1: expected a record of schema 1" in said, said


def main():
    for check in (check_spread, check_settings, check_folders, check_bases, check_picture, check_small_picture, check_repeats):
        with tempfile.TemporaryDirectory() as folder:
            check(Path(folder))
    print("all checks passed")


if __name__ == "__main__":
    main()
