"""scripts/check_house.py finds what breaks each of its rules, where it is, and nothing else.

check_house_test.py PROJECT
"""

import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(sys.argv[1])

LONG_FUNCTION = "int long_one() {\n" + "  f();\n" * 79 + "}\n"  # 81 lines
SHORT_FUNCTION = "int short_one() {\n" + "  f();\n" * 78 + "}\n"

# Path, text, and what is to be found in it as (line, rule).
FILES = [
    ("streambp/ops/low.h", '#include "streambp/backprop/high.h"\n', [(1, "room")]),
    ("streambp/backprop/high.h", '#include "streambp/ops/low.h"\n#include <nlohmann/json.hpp>\n', [(2, "library")]),
    ("reference/judge.cc", '#include "streambp/ops/low.h"\n#include <ATen/ATen.h>\n', [(1, "room"), (2, "library")]),
    ("bench/judging.cc", '#include "reference/model.h"\n#include "streambp/cli/table.h"\n', [(1, "room")]),
    ("streambp/ops/lent.cc", "auto y = at::_flash_attention_forward(q);  // at::_flash\n// c10::impl::Guard\nc10::impl::Guard g;\n", [(1, "private"), (3, "private")]),
    ("streambp/runtime/torch_private.cc", "c10::impl::Guard g;\n", []),
    ("streambp/distributed/rank.cc", "c10d::ProcessGroupGloo g;\nc10d::ProcessGroupNCCL n;\n", [(1, "private"), (2, "private")]),
    ("attic/old.cc", "int x = 0;\n", [(1, "room")]),
    ("streambp/model/first.h", "namespace streambp {\nclass Settings {\n  int a;\n};\n}\n", []),
    ("streambp/plan/second.h", "namespace streambp {\nstruct Settings {\n  int b;\n};\n}\n", [(2, "one-name")]),
    ("streambp/plan/third.h", "namespace streambp::plan {\nstruct Settings {};\nstruct Row;\n}\n", []),
    ("streambp/plan/fourth.cc", "namespace streambp {\nnamespace {\nstruct Settings {};\n}\nvoid f(int a) {}\n}\n", [(5, "one-name")]),
    ("streambp/plan/fifth.cc", "namespace streambp {\nvoid f(double a) {}\n\nvoid f(int b) { g(); }\n}\n", []),
    ("verify/long.cc", "// a comment { of one brace\n" + LONG_FUNCTION + SHORT_FUNCTION, [(2, "length")]),
    ("bench/longer.py", "import os\n\n\ndef long_one():\n" + "    pass\n" * 80, [(4, "length")]),
    ("bench/longest.sh", "short() {\n  true\n}\nlong() {\n" + "  true\n" * 79 + "}\n", [(4, "length")]),
    ("bench/file.cc", "\n" * 401, [(401, "length")]),
    ("bench/old_words.cc", "// beside it\nint kScoredPlaces = 0;  // in place\n", [(1, "words"), (2, "words")]),
]


def check(root, *arguments):
    command = [sys.executable, PROJECT / "scripts/check_house.py", "--root", root, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def found_in(output):
    return sorted((line.split(":")[0], int(line.split(":")[1]), line.split(":")[2].strip()) for line in output.splitlines())


def main():
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        subprocess.run(["git", "init", "-q", root], check=True)
        clean = check(root)
        assert (clean.returncode, clean.stdout) == (0, ""), clean
        for path, text, _ in FILES:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        result = check(root, "--words")
        expected = sorted((path, line, rule) for path, _, found in FILES for line, rule in found)
        assert result.returncode == 1, result
        assert found_in(result.stdout) == expected, "\n".join(map(str, set(found_in(result.stdout)) ^ set(expected)))
        one = check(root, "--only", "room")
        assert found_in(one.stdout) == [entry for entry in expected if entry[2] == "room"], one.stdout
        assert check(root, "--only", "nonesuch").returncode == 2
    print(f"{len(expected)} violations found, each in its place")


if __name__ == "__main__":
    main()
