"""scripts/provenance.py: what is wrong with an environment, and that nothing is with those under results/.

provenance_test.py PROJECT
"""

import subprocess
import sys
from pathlib import Path

PROJECT = Path(sys.argv[1])
sys.path.insert(0, str(PROJECT / "scripts"))

import machine  # noqa: E402
import provenance  # noqa: E402

NOT_OURS = "0" * 40


def main():
    made = machine.environment() | {"modified": False}
    assert set(provenance.MEMBERS) <= set(made), made
    known = {made["commit"]: True, NOT_OURS: False}
    assert provenance.complaint(made, known) is None
    assert "modified" in provenance.complaint(made | {"modified": True}, known)
    assert "descend" in provenance.complaint(made | {"commit": NOT_OURS}, known)
    for name in provenance.MEMBERS:
        assert name in provenance.complaint({one: value for one, value in made.items() if one != name}, known), name
    assert made["cpu"] in machine.made_by([{"environment": made}])[0]
    if machine.git("rev-parse", "--is-shallow-repository") != "false":
        print("environments alone: this checkout has no history")
        return
    assert "descend" in provenance.complaint(made | {"commit": NOT_OURS}, {}), "git does not know it"
    done = subprocess.run([sys.executable, PROJECT / "scripts/provenance.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


main()
