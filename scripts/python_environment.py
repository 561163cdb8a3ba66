#!/usr/bin/env python3
"""The virtual environment in which Hugging Face's libraries run: for compare_hf.py, for the Python package and for its tests.

    python3 scripts/python_environment.py [VENV]     makes it unless it is there, and prints its Python; default .venv-hf or STREAMBP_HF_VENV

STREAMBP_TRANSFORMERS_VERSION=5.24.0 asks for another transformers, in an environment of its own (.venv-hf-5.24.0), and the package's tests
then run there. STREAMBP_TORCH_VERSION=2.11.0 asks for that torch, as scripts/setup.sh does (.venv-hf-torch-2.11.0).

torch is the project's wheel, lent by a .pth file: all sides run the same kernels. The wheel is built for CUDA, and asks for CUDA's libraries
before anything else; on a machine without them empty ones of the same names let it load, and nothing of them is ever called on a CPU. A
second .pth file opens these when the environment's Python starts, so that a plain `import torch` works there.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from files import InputError, run

ROOT = Path(__file__).resolve().parent.parent
TRANSFORMERS = "5.23.0"  # what everything is made and measured with
TORCH = re.search(r"^default_torch=(.*)$", (ROOT / "scripts/setup.sh").read_text(), re.MULTILINE)[1]
VERSIONS = {"torch": os.environ.get("STREAMBP_TORCH_VERSION", TORCH), "transformers": os.environ.get("STREAMBP_TRANSFORMERS_VERSION", TRANSFORMERS),
            "safetensors": "0.8.0", "trl": "1.16.0", "peft": "0.21.2", "accelerate": "1.15.0", "datasets": "5.2.0", "bitsandbytes": "0.50.2", "torchao": "0.18.0", "pytest": "9.0.2"}
ON_TORCH = ("accelerate", "bitsandbytes", "peft", "torchao", "trl")  # these ask for torch with its GPU libraries, and have no other dependency that is not below
# The rest of transformers' and datasets' dependencies comes with them; of the others numpy to networkx are torch's, the rest is theirs, and
# the last one builds the package.
PACKAGES = [*(f"{name}=={VERSIONS[name]}" for name in ("transformers", "safetensors", "datasets", "pytest")), "numpy>=1.26,<3", "sympy>=1.13.3",
            "networkx>=2.5.1", "jinja2", "psutil", "scikit-build-core>=0.11,<2"]
CUDA_LIBRARIES = ["libcublas.so.13", "libcublasLt.so.13", "libcudnn.so.9", "libcufft.so.12", "libcufile.so.0", "libcurand.so.10",
                  "libcusolver.so.12", "libcusparse.so.12", "libcusparseLt.so.0", "libnccl.so.2", "libnvshmem_host.so.3"]
# A name of data is looked up when a library is loaded: (its version, its definition), for torch 2.15.
DATA = {"libnvshmem_host.so.3": ("NVSHMEM", "char nvshmem_selected_device_transport[64];")}
# Run by each Python of the environment as it starts: the functions that the empty libraries lack are bound when called, which is never.
OPENS_STUBS = """\
import ctypes, os, pathlib, sys
sys.setdlopenflags(os.RTLD_LAZY)
for stub in sorted(pathlib.Path(__file__).with_name("streambp_cuda_stubs").glob("lib*")):
    ctypes.CDLL(str(stub), mode=os.RTLD_LAZY)
"""


def venv_folder():
    of_torch = "" if VERSIONS["torch"] == TORCH else f"-torch-{VERSIONS['torch']}"
    of_transformers = "" if VERSIONS["transformers"] == TRANSFORMERS else f"-{VERSIONS['transformers']}"
    return Path(os.environ.get("STREAMBP_HF_VENV", ROOT / f".venv-hf{of_torch}{of_transformers}")).absolute()


def venv_python(folder=None):
    return (folder or venv_folder()) / "bin" / "python"


def torch_packages():
    """The site-packages folder of the project's own environment."""
    own = ".venv" if VERSIONS["torch"] == TORCH else f".venv-{VERSIONS['torch']}"
    folder = Path(os.environ.get("STREAMBP_VENV", ROOT / own)) / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    if not (folder / "torch").is_dir():
        raise InputError(f"{folder}: no torch there; run scripts/setup.sh first, with this Python ({sys.version.split()[0]})")
    return folder.resolve()


def site_packages(folder):
    """Where the environment's own packages are, whatever its Python's version."""
    found = sorted((folder / "lib").glob("python3.*/site-packages"))
    if not found:
        raise InputError(f"{folder}: no virtual environment")
    return found[-1]


def imports_torch(folder):
    return subprocess.run([venv_python(folder), "-c", "import torch"], capture_output=True, check=False).returncode == 0


def lend_cuda_stubs(folder, libraries=CUDA_LIBRARIES):
    """Empty libraries of CUDA's names, opened when the environment's Python starts."""
    site = site_packages(folder)
    stubs = site / "streambp_cuda_stubs"
    stubs.mkdir(exist_ok=True)
    for name in libraries:
        command = ["g++", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", stubs / name, "-x", "c", "-"]
        version, definition = DATA.get(name, ("", ""))
        if version:
            (stubs / f"{version}.map").write_text(f"{version} {{ *; }};\n")
            command.append(f"-Wl,--version-script,{stubs / version}.map")
        subprocess.run(command, input=definition, text=True, check=True)
    (site / "streambp_open_cuda_stubs.py").write_text(OPENS_STUBS)
    (site / "streambp_open_cuda_stubs.pth").write_text("import streambp_open_cuda_stubs\n")


def ensure_venv(folder=None):
    """Makes the environment unless its stamp says that it is there."""
    folder = folder or venv_folder()
    stamp = folder / ("." + "-".join(f"{name}-{version}" for name, version in VERSIONS.items()))
    if stamp.exists():
        return
    packages = torch_packages()
    print(f"installing transformers {VERSIONS['transformers']}, trl {VERSIONS['trl']} and peft {VERSIONS['peft']} into {folder}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    site = site_packages(folder)
    (site / "streambp_torch.pth").write_text(f"{packages}\n")
    install = [venv_python(folder), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-warn-conflicts", "--no-compile"]  # Python compiles what is imported
    subprocess.run([*install, *PACKAGES], check=True)
    subprocess.run([*install, "--no-deps", *(f"{name}=={VERSIONS[name]}" for name in ON_TORCH)], check=True)
    if not imports_torch(folder):
        lend_cuda_stubs(folder)
    if not imports_torch(folder):
        raise InputError(f"{folder}: torch can't be imported there: {venv_python(folder)} -c 'import torch' says why")
    stamp.touch()


def enter_venv():
    """Runs this program again inside the environment, unless it is there already."""
    ensure_venv()
    if Path(sys.prefix).resolve() != venv_folder().resolve():
        os.execv(venv_python(), [str(venv_python()), *sys.argv])


def main():
    folder = Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else venv_folder()
    try:
        ensure_venv(folder)
    except subprocess.CalledProcessError as error:
        raise InputError(f"{folder}: {' '.join(map(str, error.cmd[:4]))} ... failed (exit code {error.returncode}); its message is above") from None
    print(venv_python(folder))


if __name__ == "__main__":
    run(main)
