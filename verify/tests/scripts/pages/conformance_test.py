"""scripts/pages/conformance.py: the page is that of its records, each row has its own command, and a record names its project's version.

conformance_test.py PROJECT
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

PROJECT = Path(sys.argv[1])
sys.path.insert(0, str(PROJECT / "scripts/pages"))

import conformance  # noqa: E402


def main():
    records = [json.loads(line) for line in (PROJECT / "results/conformance/results.jsonl").read_text().splitlines()]
    page = conformance.page(records)
    assert (PROJECT / "verify/ERRATA.md").read_text() == page, "conformance.py --records results/conformance/results.jsonl --page verify/ERRATA.md makes another page"
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    commands = [line for line in page.splitlines() if line.startswith("streambp-verify compare --model ")]
    assert len(rows) == len(commands) > 20, (len(rows), len(commands))
    assert all(" ".join(record["command"]) in commands for record in records if record["project"] == "liger")
    conformance.importlib.metadata.version = lambda package: f"version of {package}"
    assert conformance.versions_of(SimpleNamespace(project="liger")) == {"liger-kernel": "version of liger-kernel"}
    assert conformance.versions_of(SimpleNamespace(project="Ledzy/StreamBP 3b56c16")) == {}


main()
