#!/usr/bin/env python3
"""One process that has imported torch, transformers, TRL and PEFT, and forks for each test of the Python package: the imports take ten seconds.

    imports.py start SOCKET     starts it in the background, and returns once it serves
    imports.py end SOCKET       ends it

run_test.py hands a test over where STREAMBP_IMPORTS names the socket and somebody serves there. The test gets the caller's streams, folder
and environment, and ends if the caller does. A socket's address has room for 107 bytes: all go to its folder first.
"""

import array
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT / "scripts"))

from python_environment import venv_python  # noqa: E402

PATIENCE = 300  # seconds in which the imports are done on a slow machine
IDLE = 3600  # seconds after which nobody needs them, where CTest was killed
LIBRARIES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")
FORKS_WELL = {"jemalloc_bg_thd"}  # pyarrow's, which jemalloc starts again in a child


def environment(library):
    """What a test finds in its environment; the library of the package is `library`."""
    here = Path(__file__).parent
    paths = [ROOT / "streambp/python", ROOT / "scripts", ROOT / "scripts/pages", here, *sorted({test.parent for test in here.glob("*/*_test.py")})]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "STREAMBP_TORCH_LIBRARY": str(library),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


@contextlib.contextmanager
def at(path):
    """The socket's name, in its folder."""
    here = os.getcwd()
    os.chdir(Path(path).parent)
    try:
        yield Path(path).name
    finally:
        os.chdir(here)


def connect(path):
    """A connection to who serves there; None where nobody does."""
    client = socket.socket(socket.AF_UNIX)
    try:
        with at(path) as name:
            client.connect(name)
    except OSError:
        client.close()
        return None
    return client


def hand_over(path, arguments, variables):
    """Has a test run; its exit code, or None where nobody serves."""
    client = connect(path)
    if client is None:
        return None
    request = json.dumps({"arguments": arguments, "environment": variables, "folder": os.getcwd()}).encode()
    with client:
        socket.send_fds(client, [len(request).to_bytes(4, "little")], [0, 1, 2])
        client.sendall(request)
        answer = client.recv(4)
    return int.from_bytes(answer, "little") if answer else 1


def run_here(request, streams):
    """The test as a program of its own; never returns."""
    code = 1
    try:
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
            os.close(stream)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv = request["arguments"]
        sys.path[:0] = [str(Path(sys.argv[0]).parent), *request["environment"]["PYTHONPATH"].split(os.pathsep)]
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_forked(*arguments):
    """A script with its arguments as a program of its own, which has what this process has imported: (exit code, stdout, stderr)."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            streams = [os.open(os.devnull, os.O_RDONLY), os.dup(output.fileno()), os.dup(errors.fileno())]
            run_here({"arguments": [*map(str, arguments)], "environment": dict(os.environ), "folder": os.getcwd()}, streams)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        errors.seek(0)
        return code, output.read(), errors.read()


def serve_one(connection):
    """Forks for the test and waits for its end or its caller's."""
    head, streams, _, _ = socket.recv_fds(connection, 4, 3)
    if not head:
        return
    size, text = int.from_bytes(head, "little"), b""
    while len(text) < size:
        part = connection.recv(size - len(text))
        if not part:  # the caller is gone
            return
        text += part
    test = os.fork()
    if test == 0:
        connection.close()
        os.setpgid(0, 0)
        run_here(json.loads(text), streams)
    ended = os.pidfd_open(test)
    ready, _, _ = select.select([ended, connection], [], [])
    if ended not in ready:  # the caller is gone
        os.killpg(test, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(test, 0)[1])
    with contextlib.suppress(OSError):
        connection.sendall((code if code >= 0 else 128 - code).to_bytes(4, "little"))


def serve(path):
    listener = socket.socket(socket.AF_UNIX)
    with at(path) as name:
        Path(name).unlink(missing_ok=True)
        for library in LIBRARIES:
            __import__(library)
        import transformers.models.qwen3.modeling_qwen3, trl.trainer.sft_trainer, trl.trainer.dpo_trainer  # noqa: E401, F401
        threads = {name.read_text().strip() for name in Path("/proc/self/task").glob("*/comm")} - {Path("/proc/self/comm").read_text().strip()}
        if threads - FORKS_WELL:
            raise RuntimeError(f"threads {sorted(threads)} after the imports: a child would have none of them")
        gc.collect()
        gc.freeze()  # no test's collections walk the libraries' two million objects
        listener.bind(name)
    listener.listen(64)
    listener.settimeout(IDLE)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            return 0
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            serve_one(connection)
            os._exit(0)
        connection.close()


def start(path):
    python = venv_python()
    if not python.exists():
        print(f"skipped: no {python}")
        return 0
    end(path)
    log = Path(path + ".log")
    with log.open("wb") as output:
        server = subprocess.Popen([python, "-W", "ignore::FutureWarning", __file__, "serve", path], stdin=subprocess.DEVNULL, stdout=output,
                                  stderr=output, env=environment(""), start_new_session=True)
    for _ in range(PATIENCE * 10):
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(0.1)
            print(log.read_text())
            return 1
        if connection := connect(path):
            connection.close()
            return 0
    server.kill()
    print(f"nobody serves at {path} after {PATIENCE} s")
    return 1


def end(path):
    """Ends who serves there: asked for by the socket's own credentials, so that no other process is ever meant."""
    connection = connect(path)
    if connection is not None:
        with connection:
            peer = array.array("i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        os.kill(peer[0], signal.SIGTERM)
    Path(path).unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit({"start": start, "end": end, "serve": serve}[sys.argv[1]](sys.argv[2]))
