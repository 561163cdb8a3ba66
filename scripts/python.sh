#!/usr/bin/env bash
# Builds the Python package against the torch of a virtual environment and installs it there.
#   scripts/python.sh          into .venv-hf (STREAMBP_HF_VENV), which is made the first time, with transformers, TRL and PEFT
#   scripts/python.sh VENV     into VENV, which has torch already; or is made likewise where there is no such folder
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
no_option "$@"
target=${1:-${STREAMBP_HF_VENV:-$scripts/../.venv-hf}}
ours=yes  # whether the environment is one that python_environment.py makes and keeps
[ $# -gt 0 ] && [ -e "$target" ] && ours=no
setup_for=package
[ $ours = no ] && setup_for=package-on-own-torch
source "$scripts/setup.sh"

stop() {
  echo "python.sh: $target: $1" >&2
  exit 2
}
if [ $ours = yes ]; then
  python=$(STREAMBP_VENV="$venv" /usr/bin/python3 "$scripts/python_environment.py" "$target")
else
  python=$target/bin/python
  [ -x "$python" ] || stop "no virtual environment (it has no bin/python): python3 -m venv $target"
fi
"$python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' ||
  stop "no torch there: $target/bin/pip install torch==$torch_version, or give a folder that does not exist yet"
"$python" -c 'import torch' 2>/dev/null ||
  stop "torch can't be imported ($python -c 'import torch' says why): without GPU libraries give a folder that does not exist yet"
"$python" -c 'import scikit_build_core' 2>/dev/null ||
  "$python" -m pip install --quiet --disable-pip-version-check 'scikit-build-core>=0.11,<2' ||
  stop "scikit-build-core can't be installed: pip's message is above"

echo "python.sh: building streambp for torch $("$python" -c 'import torch; print(torch.__version__)'), some minutes the first time" >&2
export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros}
"$python" -m pip install --disable-pip-version-check --no-build-isolation --no-deps --force-reinstall --quiet "$project" ||
  stop "the build failed: its message is above"
cd /  # away from the package's source
env -u STREAMBP_TORCH_LIBRARY -u PYTHONPATH "$python" -c \
  'from streambp_bench._library import library, library_path; library(); print("installed:", library_path())' >&2
echo "python.sh: use it with $python" >&2
