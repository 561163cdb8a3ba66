"""libstreambp_cuda.so has machine code for every architecture that the build was configured for, and PTX of the last.

code_test.py LIBRARY ARCHITECTURES     ARCHITECTURES as CMake has them: "80-real;90"

The containers of the library's section .nv_fatbin are read as cuobjdump does: entries of kind 1 are PTX, of kind 2 machine code. One source
file has all kernels, compiled once for each architecture; that no kernel is there for some alone is read from the sources.
"""

import re
import struct
import sys
from pathlib import Path

PTX, MACHINE_CODE = 1, 2
MAGIC = struct.pack("<I", 0xBA55ED50)
SOURCES = Path(__file__).resolve().parents[5] / "streambp/ops/cuda"


def code_in(library):
    """{kind: set of architectures}."""
    found = {PTX: set(), MACHINE_CODE: set()}
    begin = -1
    while (begin := library.find(MAGIC, begin + 1)) >= 0:
        _, version, header, size = struct.unpack_from("<IHHQ", library, begin)
        if version != 1 or header != 16 or begin + header + size > len(library):
            continue  # the four bytes by chance
        at, end = begin + header, begin + header + size
        while at < end:
            kind, _, entry_header, entry_size = struct.unpack_from("<HHIQ", library, at)
            (architecture,) = struct.unpack_from("<I", library, at + 28)
            found.setdefault(kind, set()).add(architecture)
            at += entry_header + entry_size
    return found


def wanted_code(architectures):
    found = {PTX: set(), MACHINE_CODE: set()}
    for one in architectures.split(";"):
        number, _, kind = one.partition("-")
        if kind != "virtual":
            found[MACHINE_CODE].add(int(number))
        if kind != "real":
            found[PTX].add(int(number))
    return found


def main():
    found, wanted = code_in(Path(sys.argv[1]).read_bytes()), wanted_code(sys.argv[2])
    assert found == wanted, f"code {found}, configured {wanted}"
    for path in SOURCES.iterdir():
        if path.suffix in (".cu", ".cuh", ".h"):
            assert not re.search("__CUDA_ARCH", path.read_text()), f"{path}: a kernel for some architectures alone"
    print(f"machine code for {sorted(found[MACHINE_CODE])}, PTX for {sorted(found[PTX])}, {Path(sys.argv[1]).stat().st_size} bytes")


if __name__ == "__main__":
    main()
