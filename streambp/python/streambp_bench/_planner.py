"""The program streambp_plan, next to the engine's library, which answers what a step would take (planning.h).

It is kept for the next question, and ends by itself ten seconds after the last: a fifth of a second of its first answer is the loading of torch's
libraries.
"""

import atexit
import json
import os
import subprocess
import tempfile
import threading
from pathlib import Path

import torch

from ._library import InputError, first_line, library_path
from ._programs import libraries_of

PROGRAM = "streambp_plan"
READ = ("STREAMBP_", "LD_", "ATEN_", "OMP_", "MKL_")  # variables that it may read: with others it is started anew
_lock = threading.Lock()
_kept = None  # (what its answers depend on, Popen, the file of its stderr)


def ask(question, request):
    """The answer of the program to `question` ("predict", "longest", "suggest", "choose", "keep"). It runs on one thread and computes nothing.

    Raises InputError for a request that can't be answered, RuntimeError where the program fails.
    """
    program = library_path().with_name(PROGRAM)
    if not program.is_file():
        raise InputError(f"{program}: no such file; it is built and installed together with the engine's library")
    with _lock:
        was_kept = _kept is not None
        answer = _exchange(program, question, request)
        if answer is None and was_kept:  # it had ended, or ends now
            answer = _exchange(program, question, request)
        if answer is None:
            raise RuntimeError(f"{program}: {_end()}")
    if "failed" in answer:
        raise RuntimeError(f"{program}: {answer['failed']}")
    if "refused" in answer:
        raise InputError(answer["refused"])
    return answer["answer"]


def _exchange(program, question, request):
    """The program's line, started first where none runs that would answer alike; None where it has ended instead."""
    global _kept
    environment = {**libraries_of(Path(torch.__file__).parent), "OMP_NUM_THREADS": "1"}
    how = program, os.getcwd(), {name: value for name, value in environment.items() if name.startswith(READ)}
    if _kept is None or _kept[0] != how or _kept[1].poll() is not None:
        _end()
        errors = tempfile.TemporaryFile("w+")
        _kept = how, subprocess.Popen([program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True), errors
    process = _kept[1]
    try:
        try:
            process.stdin.write(f"{question}\n{json.dumps(request)}\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            process.wait()
    except BaseException:
        _end()  # else its answer would be taken for that to the next question
        raise
    return json.loads(line) if line else None


def _end():
    """Ends the program that is kept, if any; the first line that it said of its end, or its exit status."""
    global _kept
    if _kept is None:
        return None
    _, process, errors = _kept
    _kept = None
    for pipe in (process.stdin, process.stdout):
        try:
            pipe.close()
        except BrokenPipeError:
            pass
    process.terminate()
    code = process.wait()
    errors.seek(0)
    with errors:
        return first_line(errors.read()) or f"exit status {code}"


def _forget():
    """In a child process, which shares the pipes: the program is its parent's."""
    global _kept, _lock
    _kept, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
atexit.register(_end)
