#!/usr/bin/env python3
"""Shows which files know a method, a setting, an objective and a family by name, and that they are those which the READMEs list.

    scripts/house/check_additions.py              the files of one example each; exit code 1 where a file is not listed
    scripts/house/check_additions.py --objective kto --family phi3

A README lists the files that an addition touches as paths in backquotes, in the first column of the table under its heading
"Add a ...", relative to its own folder. Searched are the sources of streambp/, bench/, verify/ and reference/ without their
comments; tests are free to use any method or model as their example, and are left out. A name that also stands in an example
of a help text or in a table of the paper (dpo, mistral) shows up there as not listed: that is a use, which no addition needs.
"""
import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROOMS = ("streambp", "bench", "verify", "reference")
KINDS = {  # what: default example, README
    "method": ("logits-only", "streambp/backprop/README.md"),
    "setting": ("keep-attention", "streambp/backprop/README.md"),
    "objective": ("rloo", "streambp/objective/README.md"),
    "family": ("gemma2", "streambp/model/README.md"),
}
# A string, or a comment: strings are matched so that comment signs in them are not taken for comments.
STRING_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)


def code(path):
    """A source file's text, without comments."""
    text = path.read_text()
    if path.name == "CMakeLists.txt":
        return re.sub(r"#.*", "", text)
    return STRING_OR_COMMENT.sub(lambda match: match[0] if match[0].startswith('"') else " ", text)


def sources():
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*")):
            is_source = path.suffix in (".cc", ".h", ".cu", ".cuh") or path.name == "CMakeLists.txt"
            if is_source and not {"tests", "goldens"} & set(path.relative_to(ROOT).parts):
                yield path


def spellings(name):
    """keep-attention as a word: keep-attention, keep_attention, keepAttention, kKeepAttention, KeepAttention..."""
    parts = [re.escape(part) for part in name.split("-")]
    camel = "".join(part.capitalize() for part in parts)
    words = [r"[-_]".join(parts), "k?" + camel, parts[0] + camel[len(parts[0]):]]
    # As a part of a longer identifier too (rloo_kind, mistral-tiny), but not inside a word.
    return re.compile(r"(?<![A-Za-z])(?:" + "|".join(words) + r")(?![a-z])")


def listed(kind, name, readme):
    """The files of the table under the heading "Add a KIND"; NAME in a path stands for `name`."""
    text = readme.read_text() if readme.exists() else ""
    section = re.search(rf"^#+ Add an? {kind}\b.*?$(.*?)(?=^#|\Z)", text, re.DOTALL | re.MULTILINE)
    if section is None:
        raise SystemExit(f"{readme.relative_to(ROOT)}: no heading 'Add a {kind}'")
    files = set()
    for cell in re.findall(r"^\|([^|]*)\|", section[1], re.MULTILINE):
        for path in re.findall(r"`([^`]+)`", cell):
            for one in expanded(path):
                pattern = one.replace("NAME", name.replace("-", "_"))
                files.update(found.resolve() for found in readme.parent.glob(pattern) if found.is_file())
    return files


def expanded(path):
    """a.{h,cc} as a.h and a.cc; ../ stays, for pathlib's glob takes it."""
    braces = re.fullmatch(r"(.*)\{(.*)\}(.*)", path)
    return [braces[1] + part + braces[3] for part in braces[2].split(",")] if braces else [path]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for kind, (example, _) in KINDS.items():
        parser.add_argument(f"--{kind}", default=example, help=f"default: {example}")
    arguments = vars(parser.parse_args())
    files = {path: code(path) for path in sources()}
    unlisted = 0
    for kind, (_, readme) in KINDS.items():
        name = arguments[kind]
        known = listed(kind, name, ROOT / readme)
        pattern = spellings(name)
        print(f"{kind} {name} ({readme}):")
        found = [path for path, text in files.items() if pattern.search(text)]
        if not found:
            raise SystemExit(f"no file names the {kind} '{name}'")
        for path in found:
            mark = "" if path in known else "   NOT LISTED"
            unlisted += path not in known
            line = files[path][: pattern.search(files[path]).start()].count("\n") + 1
            print(f"  {path.relative_to(ROOT)}" + (f":{line}{mark}" if mark else ""))
    print(f"{unlisted} files not listed")
    return 1 if unlisted else 0


if __name__ == "__main__":
    sys.exit(main())
