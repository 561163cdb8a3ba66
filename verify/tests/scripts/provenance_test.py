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
    made = machine.environment() | {"modified": False, "torch": "2.15.0"}
    assert set(provenance.MEMBERS) <= set(made), made
    known = {made["commit"]: True, NOT_OURS: False}
    assert provenance.complaint(made, known) is None
    assert "modified" in provenance.complaint(made | {"modified": True}, known)
    assert "its program" in provenance.complaint(made | {"program": "streambp-verify 0.1.0 (0123456789ab, modified)"}, known)
    assert "descend" in provenance.complaint(made | {"commit": NOT_OURS}, known)
    for name in provenance.MEMBERS:
        less = {one: value for one, value in made.items() if one != name}
        assert name in provenance.complaint(less, known), name
        assert name == "commit" or provenance.complaint(less, known, excused=True) is None, name
    assert "libraries" in provenance.complaint({name: value for name, value in made.items() if name != "torch"}, known)
    assert "modified" in provenance.complaint(made | {"modified": True}, known, excused=True), "missing members alone are excused"
    assert provenance.without_ages("| [a](a) | 1 | 7 |\ntext | 7 |") == provenance.without_ages("| [a](a) | 1 | 8 |\ntext | 7 |") != provenance.without_ages("| [a](a) | 2 | 7 |\ntext | 7 |")
    assert "modified" in machine.complaint_of_program("streambp-verify 0.1.0 (0123456789ab, modified)")
    assert machine.complaint_of_program("streambp-verify 0.1.0") is None
    assert machine.complaint_of_program(f"streambp-verify 0.1.0 ({made['commit'][:12]})") is None
    assert made["cpu"] in machine.made_by([{"environment": made}])[0]
    if machine.git("rev-parse", "--is-shallow-repository") != "false":
        print("environments alone: this checkout has no history")
        return
    assert "descend" in provenance.complaint(made | {"commit": NOT_OURS}, {}), "git does not know it"
    first = machine.git("rev-list", "--max-parents=0", "HEAD").split()[0][:12]
    assert "sources have changed" in machine.complaint_of_program(f"streambp-verify 0.1.0 ({first})")
    done = subprocess.run([sys.executable, PROJECT / "scripts/provenance.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


main()
