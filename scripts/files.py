"""What the scripts share with the programs: files that are replaced whole or not at all, records that are read strictly, errors of one line."""

import argparse
import fcntl
import json
import os
import stat
import sys
from pathlib import Path

from printable import printable


class InputError(Exception):
    """Bad input: the message is one line for the user."""


class Parser(argparse.ArgumentParser):
    """Says of what was typed only what a terminal may show."""

    def error(self, message):
        super().error(printable(message, 900))


def open_standard_descriptors():
    """/dev/null on those of the descriptors 0 to 2 that the caller closed: else the next file would get what is printed."""
    while True:
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor > 2:
            os.close(descriptor)
            return
        os.set_inheritable(descriptor, True)


def check_replaceable(path):
    """The mode of the file at `path`, None where there is none. Devices, FIFOs, folders and links are refused."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise InputError(f"{path}: can't be written: it is a link, a folder or a device; expected a regular file or a free name")
    return stat.S_IMODE(mode)


def write_file(path, data):
    """Replaces a file by text or bytes in one step, as streambp/runtime/output_file.h does: an old one survives a full disk."""
    path = Path(path)
    temporary = path.with_name(f"{path.name}.{os.getpid()}-0.tmp")
    try:
        mode = check_replaceable(path)
        with open(temporary, "xb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # what is not locked was left behind by a killed process
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
            check_replaceable(path)
            os.rename(temporary, path)
    except OSError as error:
        raise InputError(f"{path}: can't be written: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)


def read_text(path):
    """A regular file's text: no FIFO is waited for."""
    try:
        if not Path(path).is_file():
            raise InputError(f"{path}: can't be read: {'not a regular file' if Path(path).exists() else 'no such file'}")
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: can't be read: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None


def parse_record(line):
    """The object of one line. ValueError for anything else, however deep."""
    try:
        record = json.loads(line)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(record, dict):
        raise ValueError("not an object")
    return record


def run(main):
    """Calls main() and exits with what it returns; bad input and lost output are one line on stderr and exit code 2."""
    open_standard_descriptors()
    name = Path(sys.argv[0]).name
    try:
        code = main()
        if sys.stdout:
            sys.stdout.flush()
    except InputError as error:
        print(f"{name}: {printable(error, 900)}", file=sys.stderr)
        code = 2
    except BrokenPipeError:
        code = lost_output(name, "Broken pipe")
    except OSError as error:
        if error.filename is not None:  # not stdout's
            raise
        code = lost_output(name, error.strerror)
    sys.exit(code)


def lost_output(name, why):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in the buffer goes there at exit
    print(f"{name}: stdout: a part of the output was lost: {why}", file=sys.stderr)
    return 2
