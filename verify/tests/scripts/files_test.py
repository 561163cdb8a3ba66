#!/usr/bin/env python3
"""scripts/files.py: files are replaced in one step over regular files alone, and an older one survives a full disk; closed
descriptors stay nobody's; lost output is exit 2. compare_hf's records: one writer, torn lines kept, foreign ones refused.

    files_test.py PROJECT
"""

import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPTS = Path(sys.argv[1]) / "scripts"
sys.path.insert(0, str(SCRIPTS))
from compare_hf import Records  # noqa: E402
from files import InputError, read_text, write_file  # noqa: E402


def refused(what, action, *arguments):
    """The message with which `action` refuses."""
    try:
        action(*arguments)
    except InputError as error:
        message = str(error)
        assert "\n" not in message and what in message, message
        return
    raise AssertionError(f"{arguments} was accepted")


def check_write_file(folder):
    target = folder / "target"
    write_file(target, "old")
    target.chmod(0o640)
    write_file(target, b"older")
    assert target.read_bytes() == b"older" and target.stat().st_mode & 0o7777 == 0o640
    (folder / "link").symlink_to(target)
    (folder / "dangling").symlink_to(folder / "nothing")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "fifo")
    for name in ("link", "dangling", "folder", "fifo"):
        refused(f"{name}: can't be written", write_file, folder / name, "x")
    for name in ("folder", "fifo", "none", "dangling"):
        refused(f"{name}: can't be read", read_text, folder / name)
    refused("can't be written", write_file, folder / "none" / "x", "x")

    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, old[1]))
    refused("File too large", write_file, target, "x" * 100_000)
    resource.setrlimit(resource.RLIMIT_FSIZE, old)
    signal.signal(signal.SIGXFSZ, handler)
    assert target.read_bytes() == b"older" and not (folder / "nothing").exists()
    assert not list(folder.glob("*.tmp"))


def check_streams(folder):
    program = folder / "program.py"
    program.write_text(f"""import os, sys
sys.path.insert(0, {str(SCRIPTS)!r})
from files import run, write_file
def main():
    file = open({str(folder / "records")!r}, "w")
    os.write(1, b"for the terminal")
    os.write(2, b"for the terminal")
    file.write("record")
    file.close()
    print("x" * 100_000)
run(main)
""")
    for closing in (">&-", "2>&-", "<&- >&- 2>&-"):
        done = subprocess.run(f"{sys.executable} {program} {closing}", shell=True, capture_output=True)
        assert done.returncode == 0, done
        assert (folder / "records").read_text() == "record", closing
    done = subprocess.run(f"{sys.executable} {program} >/dev/full", shell=True, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.endswith("a part of the output was lost: No space left on device\n"), done


def check_records(folder):
    path, torn = folder / "results.jsonl", folder / "results.jsonl.torn"
    first = Records(folder, False)
    first.add({"schema": 1, "key": "a"})
    first.add({"schema": 1, "key": "b"})
    refused("another run", Records, folder, True)
    first.file.close()
    whole = path.read_text()
    refused("--resume", Records, folder, False)
    lines = whole.splitlines(keepends=True)
    path.write_text(lines[0] + lines[1][:12])
    records = Records(folder, True)
    records.add({"schema": 1, "key": "c"})
    records.file.close()
    assert records.known.keys() == {"a", "c"} and torn.read_text() == lines[1][:12] + "\n"
    assert path.read_text() == lines[0] + lines[1].replace('"b"', '"c"')
    path.write_text(whole[:-1])
    Records(folder, True).file.close()
    assert path.read_text() == whole
    for foreign in ("my notes", '{"note": "two hours', "[" * 100_000):
        path.write_text(whole + foreign)
        refused("line 3", Records, folder, True)
        assert path.read_text() == whole + foreign


def main():
    for check in (check_write_file, check_streams, check_records):
        with tempfile.TemporaryDirectory() as folder:
            check(Path(folder))
    print("written, refused, kept")


if __name__ == "__main__":
    main()
