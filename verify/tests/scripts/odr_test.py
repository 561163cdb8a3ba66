"""The flags of the preset `odr` refuse a program with two types of one name, and accept it with one.

odr_test.py PROJECT COMPILER
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT, COMPILER = Path(sys.argv[1]), sys.argv[2]

# Each file alone is good C++; together they break the one-definition rule, as two `struct Settings` once did here.
FILE = """
#include <string>
namespace streambp {{
struct Settings {{
  {member};
  int size() const {{ return static_cast<int>({value}); }}
}};
}}
{function} {{
  streambp::Settings settings;
  return settings.size(){more};
}}
"""


def link(folder, other_member, other_value):
    preset = next(one for one in json.loads((PROJECT / "CMakePresets.json").read_text())["configurePresets"] if one["name"] == "odr")
    flags = ["-std=c++20", *preset["cacheVariables"]["CMAKE_CXX_FLAGS"].split()]
    first = FILE.format(member="int chunk = 1", value="chunk", function="int other();\nint main()", more=" + other()")
    second = FILE.format(member=other_member, value=other_value, function="int other()", more="")
    for name, text in (("first", first), ("second", second)):
        (folder / f"{name}.cc").write_text(text)
        subprocess.run([COMPILER, *flags, "-c", f"{name}.cc", "-o", f"{name}.o"], cwd=folder, check=True)
    return subprocess.run([COMPILER, *flags, "first.o", "second.o", "-o", "program"], cwd=folder, capture_output=True, text=True)


def main():
    with tempfile.TemporaryDirectory() as folder:
        same = link(Path(folder), "int chunk = 1", "chunk")
        assert same.returncode == 0, same.stderr
        different = link(Path(folder), "std::string model", "model.size()")
        assert different.returncode != 0 and "violates the C++ One Definition Rule" in different.stderr, different.stderr
    print("one definition: accepted; two: refused at link")


if __name__ == "__main__":
    main()
