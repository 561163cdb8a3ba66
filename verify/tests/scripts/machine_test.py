"""scripts/machine.py: a record names the program whose answers it has, and the libraries that it was built with.

machine_test.py PROJECT
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(sys.argv[1]) / "scripts"))

import machine  # noqa: E402


def main():
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "streambp-verify"
        program.write_text("#!/bin/sh\necho 'streambp-verify 0.1.0'\necho 'torch 2.15.0, fmt 12.2.1, g++ 12.2.0'\n")
        program.chmod(0o755)
        made = machine.environment(program=program)
    assert made["program"] == "streambp-verify 0.1.0" and made["libraries"] == "torch 2.15.0, fmt 12.2.1, g++ 12.2.0", made
    line, = machine.made_by([{"environment": made}])
    assert line.endswith("; torch 2.15.0, fmt 12.2.1, g++ 12.2.0."), line
    assert "libraries" not in machine.environment() and "program" not in machine.environment()
    assert machine.environment(gpu="a card")["gpu_driver"] == machine.driver_version() and "gpu_driver" not in machine.environment()


main()
