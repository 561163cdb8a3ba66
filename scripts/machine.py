"""The machine that a script runs on."""

from pathlib import Path


def machine_name():
    """As its processor calls itself."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "an unnamed processor"
