#!/usr/bin/env python3
"""scripts/proofs.py keeps the worst of what the programs print, and a proof that does not hold is none. proofs_test.py PROJECT"""

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(sys.argv[1]) / "scripts"))

import proofs  # noqa: E402

GOLDEN = {"kind": "golden", "case": "a", "model": "qwen3", "objective": "sft", "verdict": "pass", "tokens": 9, "checks": 5, "limit": 1e-10,
          "worst_parameter": "p", "worst_error": 1e-15, "loss_error": 2e-16, "logprob_error": 0.0, "value_error": 0.0}
ROW = {"kind": "equality", "model": "tiny", "objective": "sft", "tuning": "full", "batch": "left", "comparisons": 400, "failed": 0,
       "standard_error": 3e-15, "standard_limit": 1e-12, "reference_error": 2e-13, "reference_limit": 1e-10}
PRECISE = {"dtype": "float32", "gradient_dtype": "float32", "method": "standard", "times_standard": 1.0, "times_standard_in": "q", "limit": 1.25,
           "worst_error": 9.2e-7}


def record_of(name, lines, good=True):
    proofs.lines_of = lambda command, jobs: (lines, good)
    return proofs.PROOFS[name](1)


def check_goldens():
    lines = [GOLDEN, {**GOLDEN, "case": "b", "model": "llama", "loss_error": 1.5e-12}, {"kind": "golden", "case": "c", "model": "x", "verdict": "unsupported"}]
    record = record_of("goldens", lines)
    assert (record["cases"], record["models"], record["unsupported"], record["checks"]) == (2, 2, 1, 10), record
    figure, = record["figures"]
    assert (figure["reached"], figure["limit"], figure["at"]) == (1.5e-12, 1e-10, "b, p") and proofs.holds(record), figure
    for change in ({"worst_error": None}, {"value_error": 1.1e-10}):  # JSON has null for NaN
        record = record_of("goldens", [GOLDEN, {**GOLDEN, **change}, GOLDEN])
        assert not proofs.holds(record), change
    assert not proofs.holds(record_of("goldens", [GOLDEN], good=False))


def check_sweep():
    record = record_of("sweep", [ROW, {**ROW, "model": "other", "standard_error": 4e-13}])
    assert record["comparisons"] == 800 and record["failed"] == 0, record
    assert [(one["what"], one["reached"], one["limit"], one["at"]) for one in record["figures"]] == [
        ("to standard", 4e-13, 1e-12, "other, sft, full, left"), ("to reference", 2e-13, 1e-10, "tiny, sft, full, left")], record
    assert not proofs.holds(record_of("sweep", [ROW, {**ROW, "reference_error": 2e-10}]))


def check_precision():
    record = record_of("precision", [PRECISE, {**PRECISE, "method": "streambp", "times_standard": 1.04, "worst_error": 9.6e-7},
                                     {**PRECISE, "dtype": "bfloat16"}, {**PRECISE, "dtype": "bfloat16", "method": "tiled", "times_standard": 1.3}])
    single, half = record["figures"]
    assert (single["what"], single["reached"], single["worst_error"], single["worst_error_of_standard"]) == ("float32", 1.04, 9.6e-7, 9.2e-7), single
    assert half["what"] == "bfloat16, gradients summed in float32" and not half["holds"] and not proofs.holds(record), half


def check_gradcheck():
    exact = {"chain_rule_error": 1e-18, "chain_rule_limit": 1e-15, "gradient_error": 1e-16, "limit": 1e-13, "difference_error": 1e-11, "difference_limit": 1e-9}
    lines = [{**exact, "name": "norm", "chain_rule_error": 5e-17, "gradient_error": 9e-14}, {**exact, "name": "rope", "difference_error": 3e-10},
             {**exact, "name": "logits of a tiny qwen3", "gradient_error": 2e-14, "limit": 1e-12}]
    record = record_of("gradcheck", lines)
    assert [(one["what"], one["reached"], one["limit"], one["at"]) for one in record["figures"]] == [
        ("complex steps", 5e-17, 1e-15, "norm"), ("extended precision", 2e-14, 1e-12, "logits of a tiny qwen3"),
        ("six-point differences", 3e-10, 1e-9, "rope")] and record["checks"] == 3 and proofs.holds(record), record
    for change in ({"chain_rule_error": 2e-15}, {"gradient_error": 2e-12}, {"difference_error": None}):
        assert not proofs.holds(record_of("gradcheck", lines[:2] + [{**lines[2], **change}])), change


def check_files():
    """One proof anew, the others as they were; the exit code is that of all."""
    proofs.environment = lambda: {"program": "p", "cpu": "c", "cores": 2}
    with tempfile.TemporaryDirectory() as folder:
        def main(name, lines):
            proofs.lines_of = lambda command, jobs: (lines, True)
            sys.argv = ["proofs.py", "--only", name, "--out", folder]
            return proofs.main()

        assert main("sweep", [ROW]) == 0
        assert main("goldens", [{**GOLDEN, "loss_error": None}]) == 1
        records = [json.loads(line) for line in (Path(folder) / "results.jsonl").read_text().splitlines()]
        assert [record["proof"] for record in records] == ["goldens", "sweep"] and records[0]["figures"][0]["reached"] is None, records
        assert "FAILED" in (Path(folder) / "proofs.md").read_text()
        assert main("goldens", [GOLDEN]) == 0 and "FAILED" not in (Path(folder) / "proofs.md").read_text()


for check in (check_goldens, check_sweep, check_precision, check_gradcheck, check_files):
    check()
print("all checks passed")
