"""Runs a program on an input that it has to refuse, and says what is wrong with how it went."""

import dataclasses
import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import Callable

# What belongs to libraries, not to people: names of their types and functions, their errors' words.
JARGON = re.compile(
    r"json\.exception|std::|basic_string|vector::|c10::|at::Tensor|terminate called|Exception \w+ from|\bsto[idlu]+\b|"
    r"_M_range|bad_alloc|Traceback|filesystem error|INTERNAL ASSERT|Stride calculation",
    re.IGNORECASE,
)
# Control characters but for the ends of lines and tabs; C1; separators of lines and changes of direction.
RAW = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xa8-\xae]|\xe2\x81[\xa6-\xa9]")
LONGEST_LINE = 1000


@dataclasses.dataclass
class Case:
    name: str
    argv: list
    want: tuple = (2,)  # exit codes
    says: tuple = ()  # what has to be on stderr
    environment: dict = dataclasses.field(default_factory=dict)  # None: without
    quick: bool = False  # among the few that every ctest runs
    lines: int | None = 1  # on stderr at exit code 2; None: any
    prepare: Callable = lambda: None  # called before it is run
    after: Callable = lambda code: None  # what is wrong with what it left, or None


def limits(memory):
    def set_limits():
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # whoever runs this may ignore them
            signal.signal(number, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if memory:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

    return set_limits


def judge(case, code, out, err):
    """What is wrong with an exit code and two outputs: a text for each fault."""
    text = err.decode("utf-8", "replace")
    lines = text.splitlines()
    faults = []
    if code < 0:
        return [f"ended by signal {-code}"]
    if code not in case.want:
        faults.append(f"exit code {code}, expected {' or '.join(map(str, case.want))}")
    if code == 2 and case.lines is not None and len(lines) != case.lines:
        faults.append(f"{len(lines)} lines on stderr, expected {case.lines}")
    if code == 1 and not lines + out.splitlines():
        faults.append("failed without a word")
    if any(len(line) > LONGEST_LINE for line in lines):
        faults.append(f"a line of {max(map(len, lines))} characters")
    for stream, data in (("stdout", out), ("stderr", err)):
        found = RAW.search(data)
        if found:
            faults.append(f"{stream} holds {found[0]!r}")
    if JARGON.search(text):
        faults.append(f"says '{JARGON.search(text)[0]}'")
    if code in (1, 2):
        faults += [f"does not say '{word}'" for word in case.says if word not in text]
    left = case.after(code)
    return faults + ([left] if left else [])


def run(case, timeout, memory):
    """The faults, what was on stderr, and seconds."""
    environment = {name: value for name, value in {**os.environ, "OMP_NUM_THREADS": "1", **case.environment}.items() if value is not None}
    case.prepare()
    start = time.monotonic()
    process = subprocess.Popen(
        case.argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, preexec_fn=limits(memory)
    )
    try:
        out, err = process.communicate(timeout=timeout)
        faults = judge(case, process.returncode, out, err)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        _, err = process.communicate()
        faults = [f"still running after {timeout:.0f} s"]
    return faults, err.decode("utf-8", "replace"), time.monotonic() - start
