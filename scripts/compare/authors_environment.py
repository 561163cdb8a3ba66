"""The virtual environment in which the authors' code runs (github.com/Ledzy/StreamBP): torch and transformers as its requirements.txt pins them, and
the project's meter of memory built for that torch."""

import re
import subprocess
import sys
from pathlib import Path

from files import InputError, read_text
from python_environment import ROOT, imports_torch, lend_cuda_stubs, site_packages, venv_python

CODE = "src/streambp/stream_model.py"
PINNED = ("torch", "transformers")  # what CODE imports; peft and trl serve its trainers
# Of CUDA 12.4, of which torch 2.6.0 is built: its runtime and its profiler have to be there, the others to be named.
CUDA = ("nvidia-cuda-runtime-cu12==12.4.127", "nvidia-cuda-cupti-cu12==12.4.127")
CUDA_LIBRARIES = ["libcublas.so.12", "libcublasLt.so.12", "libcudnn.so.9", "libcufft.so.11", "libcurand.so.10", "libcusolver.so.11",
                  "libcusparse.so.12", "libcusparseLt.so.0", "libnccl.so.2", "libnvrtc.so.12"]
# The meter of streambp_meter_c, as streambp/CMakeLists.txt lists it, with authors_meter.cc in place of torch's private parts.
METER_SOURCES = ("scripts/compare/authors_meter.cc", "streambp/error.cc", "streambp/interop/meter_c.cc", "streambp/memory/available_memory.cc",
                 "streambp/memory/fork_lock.cc", "streambp/memory/host_blocks.cc", "streambp/memory/meter.cc", "streambp/printable.cc", "streambp/runtime/processor.cc")
BESIDES = ("sympy==1.13.1", "networkx", "jinja2", "numpy>=1.26,<3", "safetensors")


def pins(folder):
    """{"torch": "2.6.0", ...} of their requirements.txt."""
    if not (Path(folder) / CODE).is_file():
        raise InputError(f"{folder}: no {CODE} there, expected a checkout of github.com/Ledzy/StreamBP")
    found = dict(re.findall(r"^([\w-]+)==([\w.]+)", read_text(Path(folder) / "requirements.txt"), re.MULTILINE))
    if missing := [name for name in PINNED if name not in found]:
        raise InputError(f"{folder}/requirements.txt: pins no {' and no '.join(missing)}")
    return {name: found[name] for name in PINNED}


def ensure_authors_venv(authors):
    """Makes the environment unless it is there; its Python and its meter."""
    versions = pins(authors)
    folder = ROOT / f".venv-authors-{versions['torch']}-{versions['transformers']}"
    meter = folder / "libstreambp_meter_c.so"
    stamp = folder / ".complete"
    if not stamp.exists():
        print(f"installing torch {versions['torch']} and transformers {versions['transformers']} into {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        install = [venv_python(folder), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
        subprocess.run([*install, f"transformers=={versions['transformers']}", *BESIDES], check=True)
        subprocess.run([*install, "--no-deps", f"torch=={versions['torch']}", *CUDA], check=True)
        if not imports_torch(folder):
            lend_cuda_stubs(folder, CUDA_LIBRARIES)
        if not imports_torch(folder):
            raise InputError(f"{folder}: torch can't be imported there: {venv_python(folder)} -c 'import torch' says why")
        build_meter(folder, meter)
        stamp.touch()
    return venv_python(folder), meter


def build_meter(folder, meter):
    torch = site_packages(folder) / "torch"
    # The build folder's link to fmt, which wheels of today bring along.
    subprocess.run(["g++", "-std=c++20", "-O2", "-fPIC", "-shared", "-Wl,--no-undefined", "-DFMT_HEADER_ONLY", "-D_GLIBCXX_USE_CXX11_ABI=0", f"-I{ROOT}",
                    f"-isystem{ROOT / 'build/release/include'}", f"-isystem{torch / 'include'}", "-o", meter, *METER_SOURCES, f"-L{torch / 'lib'}", "-lc10"],
                   cwd=ROOT, check=True)
