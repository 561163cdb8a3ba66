#!/usr/bin/env python3
"""What a part of scripts/gpu.sh must not pass over in silence: tests that were skipped, benchmarks that did not run, a
library without a kernel for a shape that we need. Exit code 1 where there is any, and a line for each.

    gpu_checks.py tests FILE.xml...      GoogleTest's reports, of one program's tests in several processes
    gpu_checks.py microbench FILE.json   Google Benchmark's report
"""

import json
import pathlib
import sys
import xml.etree.ElementTree

# Tests that may be skipped on a GPU, and why. Every other one that is skipped is a failure.
MAY_BE_SKIPPED = {
    "NcclRanks.step_on_two_devices": "most machines have one GPU",
    "cuda/DeviceLibrary.GivesTheFormulasValuesAndGradients/cudnn_large_heads":
        "cuDNN's backward pass with heads of 256 came late; FlashAttention has them",
    "cuda/DeviceLibrary.GivesTheFormulasValuesAndGradients/cudnn_few_queries":
        "blocks of so few queries are FlashAttention's anyway",
}


def failures_of_tests(reports):
    """Of GoogleTest's reports [list of xml.etree.ElementTree.Element]: what makes their part fail, one line each."""
    names = [(f"{case.get('classname')}.{case.get('name')}", case) for report in reports for case in report.iter("testcase")]
    ran = [(name, case) for name, case in names if case.get("status") == "run"]
    if not ran:
        return ["no test was run"]
    lines = [f"{name} failed" for name, case in ran if case.find("failure") is not None]
    for name, case in ran:
        skipped = case.find("skipped")
        if skipped is None and case.get("result") != "skipped":
            continue
        if name not in MAY_BE_SKIPPED:
            why = "" if skipped is None else " ".join((skipped.get("message") or "").split())
            lines.append(f"{name} was skipped: {why}")
    return lines


def failures_of_benchmarks(report):
    """Of a Google Benchmark report [dict]."""
    rows = report["benchmarks"]
    if not rows:
        return ["no benchmark was run"]
    lines = [f"{row['name']}: {row.get('error_message')}" for row in rows if row.get("error_occurred")]
    lines += [f"{row['name']}: {row['label']}" for row in rows if "unsupported" in row.get("label", "")]
    return lines


def main():
    kind, files = "".join(sys.argv[1:2]), [pathlib.Path(name) for name in sys.argv[2:]]
    if kind not in ("tests", "microbench") or not files or (kind == "microbench" and len(files) > 1):
        sys.exit(__doc__)
    lines = [f"{file}: no report, the program ended before it" for file in files if not file.is_file()]
    files = [file for file in files if file.is_file()]
    if kind == "tests":
        lines += failures_of_tests([xml.etree.ElementTree.parse(file).getroot() for file in files])
    elif files:
        lines += failures_of_benchmarks(json.loads(files[0].read_text()))
    for line in lines:
        print(line)
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
