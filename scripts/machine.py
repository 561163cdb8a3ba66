"""Where a script's record comes from: machine, commit, versions, command."""

import importlib.metadata
import os
import platform
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("CMakeLists.txt", "CMakePresets.json", "bench", "reference", "scripts", "streambp", "verify")


def machine_name():
    """As its processor calls itself."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "an unnamed processor"


def git(*words, code=False):
    """What git prints of the checkout, or "" without one; code: its exit code instead."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return 127 if code else ""
    return done.returncode if code else done.stdout.strip()


def command_line():
    """The script's own, as a record names it: from the project's folder."""
    script = Path(sys.argv[0]).resolve()
    return [str(script.relative_to(ROOT)) if script.is_relative_to(ROOT) else script.name, *sys.argv[1:]]


def environment(*packages, gpu=None):
    """A record's member `environment`, with the names that streambp-bench gives its own (bench/records.md).

    packages: names on PyPI whose versions count, such as "torch"; gpu: its name, where one computes.
    """
    return {
        "argv": command_line(), "commit": git("rev-parse", "HEAD") or None, "modified": bool(git("status", "--porcelain", "--", *SOURCES)), "cpu": machine_name(),
        "cores": len(os.sched_getaffinity(0)), "gpu": gpu, "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "python": platform.python_version(), **{name: importlib.metadata.version(name) for name in packages},
    }


def made_by(records):
    """Lines for a page, one for each environment among records: machine, commit, versions."""
    lines = {}
    for record in records:
        made = record["environment"]
        versions = ", ".join(f"{name} {version}" for name, version in made.items()
                             if name not in ("argv", "commit", "modified", "cpu", "cores", "gpu", "date", "python", "threads", "attention"))
        commit = f"commit {(made['commit'] or 'unknown')[:12]}" + (", sources modified" if made["modified"] else "")
        lines[f"{made['gpu'] or made['cpu']}, {made['cores']} cores, {commit}{'; ' if versions else ''}{versions}."] = None
    return list(lines)
