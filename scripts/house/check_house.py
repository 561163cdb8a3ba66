#!/usr/bin/env python3
"""Checks the rules of the house: what may include what, lengths, and what can be called.

Prints a line for each violation, `path:line: rule: what`, and exits with 1 if there is one. The rules:

  room      a file includes only what the table ROOMS permits its room (the folders' READMEs say why)
  library   CLI11, nlohmann/json, Google Benchmark, GoogleTest, Eigen and torch are included only where LIBRARIES permits
  private   parts of torch that are no public interface are named only where TORCH_PRIVATE permits
  program   what begins with #! under scripts/ is executable
  length    no file over 400 lines, no function over 80 (C++, CUDA, Python, shell)

That a name has one definition is for the preset `odr`, whose programs don't link where it has two.
"""

import argparse
import ast
import os
import re
import subprocess
import sys
from pathlib import Path

from rules import LIBRARIES, ROOMS, TORCH_PRIVATE, UNCHECKED

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 80
CPP = {".cc", ".h", ".cu", ".cuh"}
CODE = CPP | {".py", ".sh", ".cmake"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


class House:
    """The project's files, and the violations found so far."""

    def __init__(self, root):
        self.root = root
        git = ["git", "ls-files", "-co", "--exclude-standard"]
        listed = subprocess.run(git, cwd=root, check=True, capture_output=True, text=True).stdout.splitlines()
        self.texts = {}
        for path in sorted(set(listed)):
            known = Path(path).suffix in CODE | {".md"} or Path(path).name == "CMakeLists.txt"
            if known and not path.startswith(UNCHECKED) and (root / path).is_file():
                self.texts[path] = (root / path).read_text(encoding="utf-8")
        self.violations = []

    def report(self, path, line, rule, what):
        self.violations.append((path, line, rule, what))

    def code(self, suffixes):
        return {path: text for path, text in self.texts.items() if Path(path).suffix in suffixes}


def room_of(path, rooms):
    """The longest entry of `rooms` that is `path` or a folder above it."""
    fitting = [room for room in rooms if path == room or path.startswith(room.rstrip("/") + "/")]
    return max(fitting, key=len, default=None)


def includes_of(text):
    """(line, kind, name): kind is `<` or `"`."""
    for number, line in enumerate(text.splitlines(), start=1):
        match = INCLUDE.match(line)
        if match:
            yield number, match[1], match[2]


def check_rooms(house):
    for path, text in house.code(CPP).items():
        room = room_of(path, ROOMS)
        if room is None:
            house.report(path, 1, "room", "in no room of house/rules.py")
            continue
        for line, kind, name in includes_of(text):
            other = room_of(name, ROOMS) if kind == '"' else None
            if other in (None, room) or "*" in ROOMS[room] or any(room_of(name, [one]) for one in ROOMS[room]):
                continue
            house.report(path, line, "room", f"{room} may not include {name} (of {other})")


def check_libraries(house):
    for path, text in house.code(CPP).items():
        for line, _, name in includes_of(text):
            for library, (pattern, files) in LIBRARIES.items():
                if re.match(pattern, name) and not any(re.match(file, path) for file in files):
                    house.report(path, line, "library", f"{library} is not for this file: {name}")


def check_private(house):
    for path, text in house.code(CPP).items():
        for names, files in TORCH_PRIVATE:
            if any(re.match(file, path) for file in files):
                continue
            for number, line in enumerate(text.splitlines(), start=1):
                found = re.search(names, line.split("//")[0])
                if found:
                    house.report(path, number, "private", f"{found[0]} is torch's own: streambp/runtime/torch_private.h is where it is named")


def cpp_functions(text):
    """(head, line, lines) of every block of formatted C++ but those of namespaces, types and tables: from the line that begins its statement to the brace
    below it. A function's is the longest of those in it."""
    last = {}  # by indentation, of lines that are not blank
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        indent = len(line) - len(line.lstrip())
        if line.lstrip().startswith("}") and indent in last:
            first = last[indent]
            head = lines[first - 1].strip()
            if "(" in head and not re.match(r"(inline )?namespace|class|struct|union|enum|extern|(inline |static )?constexpr [^(]*=", head):
                yield head, first, number - first + 1
        last[indent] = number


def python_functions(text):
    """(name, line, lines), decorators included."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            yield node.name, first, node.end_lineno - first + 1


def shell_functions(text):
    """(name, line, lines) of functions whose closing brace stands alone."""
    name, begin = None, 0
    for number, line in enumerate(text.splitlines(), start=1):
        match = re.match(r"(?:function\s+)?([\w-]+)\s*\(\)\s*\{\s*$", line)
        if match:
            name, begin = match[1], number
        elif line.rstrip() == "}" and name:
            yield name, begin, number - begin + 1
            name = None


def check_lengths(house):
    for path, text in house.texts.items():
        lines = len(text.splitlines())
        if lines > MAX_FILE_LINES:
            house.report(path, MAX_FILE_LINES + 1, "length", f"{lines} lines, at most {MAX_FILE_LINES}")
    functions = []
    for reader, suffixes in ((cpp_functions, CPP), (python_functions, {".py"}), (shell_functions, {".sh"})):
        for path, text in house.code(suffixes).items():
            functions += [(path, *found) for found in reader(text)]
    for path, name, line, lines in functions:
        if lines > MAX_FUNCTION_LINES:
            house.report(path, line, "length", f"{name} has {lines} lines, at most {MAX_FUNCTION_LINES}")


def check_programs(house):
    """What begins with #! is called by its name, by users and by scripts/refresh.sh."""
    for path, text in house.code({".py", ".sh"}).items():
        if path.startswith("scripts/") and text.startswith("#!") and not os.access(house.root / path, os.X_OK):
            house.report(path, 1, "program", "begins with #! and is not executable")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2], help="the project (default: this one)")
    parser.add_argument("--only", help="rules to check, as room,length (default: all)")
    arguments = parser.parse_args()
    house = House(arguments.root)
    checks = {"room": check_rooms, "library": check_libraries, "private": check_private, "length": check_lengths, "program": check_programs}
    wanted = arguments.only.split(",") if arguments.only else list(checks)
    for name in wanted:
        if name not in checks:
            parser.error(f"--only {name}: expected some of {', '.join(checks)}")
        checks[name](house)
    for path, line, rule, what in sorted(house.violations):
        print(f"{path}:{line}: {rule}: {what}")
    print(f"{len(house.texts)} files: {len(house.violations)} violations", file=sys.stderr)
    return 1 if house.violations else 0


if __name__ == "__main__":
    sys.exit(main())
