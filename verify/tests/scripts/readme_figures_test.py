#!/usr/bin/env python3
"""scripts/readme_figures.py holds for README.md and finds a figure that differs. readme_figures_test.py ROOT"""

import subprocess
import sys
import tempfile
from pathlib import Path

root = Path(sys.argv[1])
script = root / "scripts" / "readme_figures.py"


def check(readme):
    done = subprocess.run([sys.executable, script, "--check", "--readme", readme], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


page = (root / "README.md").read_text(encoding="utf-8")
code, text = check(root / "README.md")
assert code == 0, text
with tempfile.TemporaryDirectory() as folder:
    for figure, other in (("22.32 s", "22.23 s"), ("(21 x)", "(22 x)"), ("0.048 x", "0.047 x"), ("12.2 KB", "12.1 KB"), ("0.023 % over 62", "0.023 % over 63")):
        assert figure in page, figure
        changed = Path(folder) / "README.md"
        changed.write_text(page.replace(figure, other, 1), encoding="utf-8")
        code, text = check(changed)
        assert code == 1 and "1 differ from the records" in text, (figure, text)
print("the figures hold, and 5 that differ are found")
