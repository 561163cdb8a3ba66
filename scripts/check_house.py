#!/usr/bin/env python3
"""Checks the rules of the house: what may include what, one name for one thing, lengths, and the words of the field.

Prints a line for each violation, `path:line: rule: what`, and exits with 1 if there is one. The rules:

  room      a file includes only what the table ROOMS permits its room (the folders' READMEs say why)
  library   CLI11, nlohmann/json, Google Benchmark, GoogleTest, Eigen and torch are included only where LIBRARIES permits
  private   parts of torch that are no public interface are named only where TORCH_PRIVATE permits
  one-name  a type or free function of one qualified name is defined in one file (unnamed namespaces aside)
  length    no file over 400 lines, no function over 80 (C++, CUDA, Python, shell)
  words     (with --words) none of the old names in code, comments and pages: house/words.py says what to write instead
"""

import argparse
import ast
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from house.cpp_scan import scan
from house.rules import ALTERNATIVES, LIBRARIES, ROOMS, TORCH_PRIVATE, UNCHECKED, WORDS_UNCHECKED
from house.words import find_words

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


def check_one_name(house, definitions):
    """The one-definition rule, as far as names tell."""
    where = defaultdict(dict)
    for found in definitions:
        if found.local or (found.kind == "function" and found.member):
            continue
        if found.name.split("::")[-1] != "main":
            where[(found.kind, found.name, found.signature)].setdefault(found.path, found)
    for (kind, name, _), found in where.items():
        first, *others = found.values()
        for other in others:
            if any({first.path, other.path} <= set(files) for files in ALTERNATIVES):
                continue
            house.report(other.path, other.line, "one-name", f"{kind} {name} is also defined in {first.path}:{first.line}")


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


def check_lengths(house, definitions):
    for path, text in house.texts.items():
        lines = len(text.splitlines())
        if lines > MAX_FILE_LINES:
            house.report(path, MAX_FILE_LINES + 1, "length", f"{lines} lines, at most {MAX_FILE_LINES}")
    functions = [(one.path, one.name, one.line, one.lines) for one in definitions if one.kind == "function"]
    for reader, suffix in ((python_functions, ".py"), (shell_functions, ".sh")):
        for path, text in house.code({suffix}).items():
            functions += [(path, *found) for found in reader(text)]
    for path, name, line, lines in functions:
        if lines > MAX_FUNCTION_LINES:
            house.report(path, line, "length", f"{name} has {lines} lines, at most {MAX_FUNCTION_LINES}")


def check_words(house):
    for path, text in house.texts.items():
        if path in WORDS_UNCHECKED:
            continue
        for line, word, instead in find_words(text):
            house.report(path, line, "words", f"'{word}': {instead}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).parent.parent, help="the project (default: this one)")
    parser.add_argument("--words", action="store_true", help="look for old names as well")
    parser.add_argument("--only", help="rules to check, as room,length (default: all)")
    arguments = parser.parse_args()
    house = House(arguments.root)
    definitions = [found for path, text in house.code(CPP).items() for found in scan(path, text)]
    checks = {
        "room": check_rooms,
        "library": check_libraries,
        "private": check_private,
        "one-name": lambda house: check_one_name(house, definitions),
        "length": lambda house: check_lengths(house, definitions),
        "words": check_words,
    }
    wanted = arguments.only.split(",") if arguments.only else [name for name in checks if name != "words" or arguments.words]
    for name in wanted:
        if name not in checks:
            parser.error(f"--only {name}: expected some of {', '.join(checks)}")
        checks[name](house)
    for path, line, rule, what in sorted(house.violations):
        print(f"{path}:{line}: {rule}: {what}")
    print(f"{len(house.texts)} files, {len(definitions)} definitions: {len(house.violations)} violations", file=sys.stderr)
    return 1 if house.violations else 0


if __name__ == "__main__":
    sys.exit(main())
