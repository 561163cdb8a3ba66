"""A copy of the project in which every mutant of a part is compiled, to be chosen as a program starts: one build for all of them."""

import json
import re
import shutil
import subprocess
import tomllib
import zlib
from collections import Counter
from pathlib import Path

from files import InputError

from mutation.operators import CALL, Rewriter

PROJECT = Path(__file__).resolve().parent.parent.parent
MUTANTS = PROJECT / "verify/tests/mutants"
SOURCES = ["streambp/backprop/*.cc", "streambp/objective/*.cc", "streambp/ops/*.cc", "streambp/model/batch.cc",
           # What judges the others.
           "verify/error_measure.cc", "verify/evaluation.cc", "verify/compare/compare.cc", "verify/compare/fit.cc", "verify/compare/judge.cc",
           "verify/compare/names.cc", "verify/compare/noise.cc", "verify/compare/ties.cc", "verify/equality/check.cc",
           "verify/golden_cases/check_case.cc"]
NAMED = MUTANTS / "named.toml"
GOLDENS = PROJECT / "verify/goldens"
# Test programs, and the file of each to which the listener of reached mutants is appended.
PROGRAMS = {"library_test": "verify/tests/streambp/backprop/backpropagate_test.cc",
            "objective_test": "verify/tests/streambp/objective/objective_test.cc",
            "bench_records_test": "verify/tests/bench/work_test.cc",
            "verify_test": "verify/tests/verify/error_measure_test.cc",
            "files_test": "verify/tests/streambp/model/checkpoint_test.cc",
            "cuda_test": "verify/tests/streambp/backprop/stream_buffer_test.cc",
            "distributed_test": "verify/tests/streambp/distributed/communicator_test.cc"}
TARGETS = [*PROGRAMS, "streambp-verify"]


def named_mutants():
    return tomllib.loads(NAMED.read_text())["mutant"]


def with_named(file, text, first_number):
    """The text with the named mutants of `file` in it, and their (number, name, line)."""
    found = []
    for entry in named_mutants():
        if entry["file"] != file:
            continue
        if text.count(entry["find"]) != 1:
            raise InputError(f"{NAMED}: '{entry['name']}': its text is {text.count(entry['find'])} times in {file}, expected once")
        number = first_number + len(found)
        line = text[:text.index(entry["find"])].count("\n") + 1
        replacement = entry["replace"].replace("$M", f"{CALL}({number})").rstrip("\n")
        if replacement.count("\n") != entry["find"].rstrip("\n").count("\n"):
            raise InputError(f"{NAMED}: '{entry['name']}': its replacement has another number of lines")
        text = text.replace(entry["find"].rstrip("\n"), replacement)
        found.append((number, entry["name"], line))
    return text, found


def part_of(mutant):
    """A number that a mutant keeps while its line stays what it is, wherever that stands."""
    return zlib.crc32(f"{mutant.file}\0{mutant.kind}\0{mutant.before}\0{mutant.after}".encode())


class Schemata:
    """The mutants of part `part` of `parts`, of all files that the patterns `sources` name or those of them whose path `files` matches, and the
    build in `folder` that holds them."""

    def __init__(self, folder, part, parts, files="", sources=SOURCES):
        self.folder, self.part, self.parts = Path(folder).resolve(), part, parts
        self.source = self.folder / "source"
        paths = {str(path.relative_to(PROJECT)) for pattern in sources for path in PROJECT.glob(pattern)}
        self.whole = {path for path in paths if re.search(files, path)}
        self.files = sorted(self.whole | {entry["file"] for entry in named_mutants()})
        self.kept_dropped = self.folder / "dropped.json"
        # file -> {(line, kind)}: they don't compile
        self.dropped = {file: set(map(tuple, lines)) for file, lines in json.loads(self.kept_dropped.read_text()).items()} \
            if self.kept_dropped.exists() else {}
        self.mutants = []

    def binary(self, name):
        return self.source / "build" / "release" / "bin" / name

    def write(self):
        """The copy, up to date; what did not change keeps its time, so that it is not compiled again."""
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, check=True, capture_output=True, text=True).stdout
        names = [name for name in tracked.split("\0") if name and not name.startswith("results/") and (PROJECT / name).exists()]
        texts = {}
        self.mutants, number = [], 1
        for file in self.files:
            text, named = with_named(file, (PROJECT / file).read_text(), number)
            number += len(named)
            rewriter = PartOf(self.part, self.parts, file, text, number, self.dropped.get(file, frozenset()))
            rewritten = rewriter.rewritten() if file in self.whole else text
            if rewriter.mutants or named:
                texts[file] = f"namespace streambp {{ bool mutant(int number); }}\n#line 1\n{rewritten}"
            self.mutants += [{"number": n, "file": file, "line": line, "kind": "named", "before": name, "after": ""}
                             for n, name, line in named]
            self.mutants += [vars(mutant) for mutant in rewriter.mutants]
            number = rewriter.next
        nth = Counter()
        for mutant in self.mutants:
            same = (mutant["file"], mutant["kind"], mutant["before"], mutant["after"])
            mutant["nth"] = nth[same]
            nth[same] += 1
        for program in PROGRAMS.values():
            texts[program] = (PROJECT / program).read_text() + (MUTANTS / "listener.cc").read_text()
        for room in sorted({file.split("/")[0] for file in self.files}):
            cmake = (PROJECT / room / "CMakeLists.txt").read_text()
            cmake = cmake.replace("add_library(streambp_error STATIC", "add_library(streambp_error STATIC mutants.cc")
            rewritten = " ".join(file.removeprefix(f"{room}/") for file in self.files if file.startswith(f"{room}/"))
            texts[f"{room}/CMakeLists.txt"] = f'{cmake}\nset_source_files_properties({rewritten} PROPERTIES COMPILE_OPTIONS "-w;-O1")\n'
        texts["streambp/mutants.cc"] = (MUTANTS / "runtime.cc").read_text()
        # The project's own: ccache then finds what its build has compiled with that path.
        tests = "verify/tests/CMakeLists.txt"
        texts[tests] = (PROJECT / tests).read_text().replace("set(goldens ${PROJECT_SOURCE_DIR}/verify/goldens)", f"set(goldens {GOLDENS})")
        for name in {*names, *texts}:
            target = self.source / name
            data = texts[name].encode() if name in texts else (PROJECT / name).read_bytes()
            if target.exists() and target.read_bytes() == data:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            if name not in texts:
                shutil.copymode(PROJECT / name, target)

    def build(self, venv, jobs):
        """Compiles; what does not compile is left out, line by line, until all does."""
        # By a path within the copy: ccache then finds what the project's own build has compiled.
        link = self.source / ".venv"
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to(Path(venv).resolve())
        for _ in range(12):
            self.write()
            print(f"mutants: {len(self.mutants)} in the build, which follows", flush=True)
            if not (self.source / "build/release/build.ninja").exists():
                subprocess.run(["cmake", "--preset", "release", f"-DSTREAMBP_VENV={link}"], cwd=self.source, check=True,
                               stdout=subprocess.DEVNULL)
            made = subprocess.run(["cmake", "--build", "--preset", "release", "--target", *TARGETS, "--", "-k", "0", "-j", str(jobs)],
                                  cwd=self.source, capture_output=True, text=True)
            if made.returncode == 0:
                return
            if not self.drop_from(made.stdout + made.stderr):
                raise InputError(f"{self.source}: the build fails, and no mutant is named:\n{made.stdout[-3000:]}{made.stderr[-1000:]}")
        raise InputError(f"{self.source}: mutants that don't compile are left after 12 tries")

    def drop_from(self, log):
        """Leaves out the mutants at the lines that a compiler's messages name. True if there was one."""
        found = 0
        for block in re.split(r"(?m)^FAILED: ", log)[1:]:
            for file, line in set(re.findall(r"((?:streambp|verify|bench)/[\w/]+\.cc):(\d+):\d+:", block)):
                starts = [m["line"] for m in self.mutants if m["file"] == file and m["line"] <= int(line) and m["kind"] != "named"]
                if not starts:
                    continue
                nearest = max(starts)
                for mutant in self.mutants:
                    if mutant["file"] == file and mutant["line"] == nearest and mutant["kind"] != "named":
                        self.dropped.setdefault(file, set()).add((nearest, mutant["kind"]))
                        found += 1
        self.kept_dropped.write_text(json.dumps({file: sorted(lines) for file, lines in self.dropped.items()}))
        print(f"mutants: {found} don't compile and are left out", flush=True)
        return found > 0


class PartOf(Rewriter):
    """A file with the mutants of one part alone."""

    def __init__(self, part, parts, *arguments):
        super().__init__(*arguments)
        self.part, self.parts = part, parts

    def is_wanted(self, mutant):
        return part_of(mutant) % self.parts == self.part - 1
