#!/usr/bin/env python3
"""scripts/readme_figures.py holds for the pages and finds a figure that differs. readme_figures_test.py ROOT"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

root = Path(sys.argv[1])
CHANGES = (("README.md", "22.32 s", "22.23 s"), ("README.md", "(21 x)", "(22 x)"), ("README.md", "0.023 % over 62", "0.023 % over 63"),
           ("README.md", "339 cases", "338 cases"), ("README.md", "356,633", "907,045"), ("verify/proofs.md", "53 models", "54 models"),
           ("results/README.md", "0.857 x", "0.875 x"), ("results/README.md", "11.6 GB", "16.1 GB"), ("results/README.md", "0.0004 %", "0.0003 %"),
           ("results/README.md", "0.048 x", "0.047 x"), ("bench/longest.md", "12.2 KB", "12.1 KB"), ("bench/longest.md", "128,512", "128,521"))


def check(pages):
    command = [sys.executable, root / "scripts" / "readme_figures.py", "--check", "--pages", pages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


code, text = check(root)
assert code == 0, text
with tempfile.TemporaryDirectory() as folder:
    for name in sorted({name for name, _, _ in CHANGES}):
        (Path(folder) / name).parent.mkdir(exist_ok=True)
        shutil.copy(root / name, Path(folder) / name)
    for name, figure, other in CHANGES:
        page = (root / name).read_text(encoding="utf-8")
        assert figure in page, figure
        (Path(folder) / name).write_text(page.replace(figure, other, 1), encoding="utf-8")
        code, text = check(folder)
        assert code == 1 and "1 differ from the records" in text, (figure, text)
        (Path(folder) / name).write_text(page, encoding="utf-8")
print(f"the figures hold, and {len(CHANGES)} that differ are found")
