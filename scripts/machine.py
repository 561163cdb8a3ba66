"""Where a script's record comes from: machine, commit, versions, command."""

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

from files import InputError

ROOT = Path(__file__).resolve().parent.parent
BUILT = ("CMakeLists.txt", "CMakePresets.json", "bench", "reference", "streambp", "verify", ":!*.md")  # a page is no source
SOURCES = (*BUILT, "scripts")


def machine_name():
    """As its processor calls itself."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "an unnamed processor"


def driver_version():
    """Of the GPU's driver, as the kernel's module says it; "unknown" without one."""
    try:
        first = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()[0]
    except (OSError, IndexError):
        return "unknown"
    return next(iter(re.findall(r"(?<=\s)\d+(?:\.\d+)+(?=\s)", first)), "unknown")


def git(*words, code=False):
    """What git prints of the checkout, or "" without one; code: its exit code instead."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return 127 if code else ""
    return done.returncode if code else done.stdout.strip()


def bench_program():
    """The path of streambp-bench. Raises InputError where there is none."""
    program = shutil.which("streambp-bench") or ROOT / "build/release/bin/streambp-bench"
    if not Path(program).is_file():
        raise InputError("streambp-bench: not on the path and not in build/release/bin; scripts/run.sh builds it")
    return program


def complaint_of_program(said):
    """Why a program is not of the commit that a record would name, or None. said: the first line of its --version, "NAME VERSION (COMMIT)"."""
    found = re.search(r"\(([0-9a-f]{7,})(, modified)?\)$", said)
    if not found:
        return None  # it was built without git
    if found[2]:
        return "it was built from modified sources"
    changed = git("diff", "--quiet", found[1], "HEAD", "--", *BUILT, code=True)
    return f"it was built from {found[1]}, and sources have changed since" if changed == 1 else None


def command_line():
    """The script's own, as a record names it: from the project's folder."""
    script = Path(sys.argv[0]).resolve()
    return [str(script.relative_to(ROOT)) if script.is_relative_to(ROOT) else script.name, *sys.argv[1:]]


def version_lines(program):
    """What its --version says, by lines. Raises InputError where the program is not of the commit that a record would name."""
    said = subprocess.run([program, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    if complaint := complaint_of_program(said[0]):
        raise InputError(f"{Path(program).name}: {complaint}, so that its records would be no evidence; commit, build again (scripts/test.sh --quick), and run this again")
    return said


def environment(*packages, gpu=None, program=None):
    """A record's member `environment`, with the names that streambp-bench gives its own (bench/records.md).

    packages: names on PyPI whose versions count, such as "torch"; gpu: its name, where one computes; program: path of the program whose answers
    are recorded; "libraries" are those that it was built with. Raises InputError where the program is not of the commit that the record names.
    """
    said = version_lines(program) if program else []
    return {
        **({"program": said[0], "libraries": " ".join(said[1:])} if said else {}),
        "argv": command_line(), "commit": git("rev-parse", "HEAD") or None, "modified": bool(git("status", "--porcelain", "--", *SOURCES)), "cpu": machine_name(),
        "cores": len(os.sched_getaffinity(0)), "gpu": gpu, **({"gpu_driver": driver_version()} if gpu else {}), "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "python": platform.python_version(), **{name: importlib.metadata.version(name) for name in packages},
    }


def made_by(records):
    """Lines for a page, one for each environment among records: machine, commit, versions."""
    lines = {}
    for record in records:
        made = record["environment"]
        versions = ", ".join(version if name == "libraries" else f"{name} {version}" for name, version in made.items()
                             if name not in ("argv", "commit", "modified", "program", "cpu", "cores", "gpu", "gpu_driver", "date", "python", "threads", "attention"))
        commit = f"commit {(made['commit'] or 'unknown')[:12]}" + (", sources modified" if made["modified"] else "")
        lines[f"{made['gpu'] or made['cpu']}, {made['cores']} cores, {commit}{'; ' if versions else ''}{versions}."] = None
    return list(lines)
