"""The virtual environment that Hugging Face runs in, made on first use next to the project's own.

torch is the project's wheel, lent by a .pth file: both sides run the same kernels. The wheel is built for CUDA, and its Python part asks
for CUDA's libraries before anything else; on a machine without them empty ones of the same names let it load, and nothing of them is
ever called on a CPU.
"""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from files import InputError

ROOT = Path(__file__).resolve().parent.parent.parent
VERSIONS = {"torch": "2.11.0", "transformers": "5.23.0", "safetensors": "0.8.0"}
# transformers' own dependencies come with it; the last three are torch's.
PACKAGES = [f"transformers=={VERSIONS['transformers']}", f"safetensors=={VERSIONS['safetensors']}", "numpy>=1.26,<3", "sympy>=1.13.3",
            "networkx>=2.5.1", "jinja2"]
CUDA_LIBRARIES = ["libcublas.so.13", "libcublasLt.so.13", "libcudnn.so.9", "libcufft.so.12", "libcufile.so.0", "libcurand.so.10",
                  "libcusolver.so.12", "libcusparse.so.12", "libcusparseLt.so.0", "libnccl.so.2", "libnvshmem_host.so.3"]


def venv_folder():
    return Path(os.environ.get("STREAMBP_HF_VENV", ROOT / ".venv-hf")).absolute()


def venv_python():
    return venv_folder() / "bin" / "python"


def stub_folder():
    return venv_folder() / "cuda-stubs"


def torch_packages():
    """The site-packages folder of the project's own environment."""
    folder = Path(os.environ.get("STREAMBP_VENV", ROOT / ".venv")) / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    if not (folder / "torch").is_dir():
        raise InputError(f"{folder}: no torch there; run scripts/setup.sh first, with this Python ({sys.version.split()[0]})")
    return folder.resolve()


def write_stubs():
    stub_folder().mkdir(exist_ok=True)
    for name in CUDA_LIBRARIES:
        subprocess.run(["g++", "-shared", f"-Wl,-soname,{name}", "-o", stub_folder() / name, "-x", "c++", os.devnull], check=True)


def ensure_venv():
    """Makes the environment unless its stamp says that it is there."""
    folder = venv_folder()
    stamp = folder / ("." + "-".join(f"{name}-{version}" for name, version in VERSIONS.items()))
    if stamp.exists():
        return
    packages = torch_packages()
    print(f"installing transformers {VERSIONS['transformers']} into {folder}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([venv_python(), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES], check=True)
    site = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    (site / "streambp_torch.pth").write_text(f"{packages}\n")
    if subprocess.run([venv_python(), "-c", "import torch"], capture_output=True, check=False).returncode != 0:
        write_stubs()
    stamp.touch()


def enter_venv():
    """Runs this program again inside the environment, unless it is there already."""
    ensure_venv()
    if Path(sys.prefix).resolve() != venv_folder().resolve():
        os.execv(venv_python(), [str(venv_python()), *sys.argv])


def import_torch():
    """torch, with CUDA's libraries or without."""
    stubs = sorted(stub_folder().glob("lib*")) if stub_folder().is_dir() else []
    if stubs:
        sys.setdlopenflags(os.RTLD_LAZY)  # the functions that the empty libraries lack are never called
        for stub in stubs:
            ctypes.CDLL(str(stub), mode=os.RTLD_LAZY)
    import torch

    return torch
