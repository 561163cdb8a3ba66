#!/usr/bin/env bash
# Builds the Python package against the torch of a virtual environment and installs it there.
#   scripts/python.sh          into .venv-hf (STREAMBP_HF_VENV), which is made the first time, with transformers, TRL and PEFT
#   scripts/python.sh VENV     into VENV, which has torch already; or is made likewise where there is no such folder
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

target=${1:-${STREAMBP_HF_VENV:-$project/.venv-hf}}
if [ ! -e "$target" ] || [ $# -eq 0 ]; then
  python=$(STREAMBP_VENV="$venv" /usr/bin/python3 "$project/scripts/python_environment.py" "$target")
else
  python=$target/bin/python
  [ -x "$python" ] || { echo "python.sh: $target: no virtual environment (it has no bin/python)" >&2; exit 2; }
fi
torch_problem() {
  echo "python.sh: $target: $1" >&2
  exit 2
}
"$python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' ||
  torch_problem "no torch there: $target/bin/pip install torch==$torch_version"
"$python" -c 'import torch' 2>/dev/null ||
  torch_problem "torch can't be imported: $python -c 'import torch' says why; for a CPU without CUDA's libraries give no folder, or a new one"
"$python" -c 'import scikit_build_core' 2>/dev/null ||
  "$python" -m pip install --quiet --disable-pip-version-check 'scikit-build-core>=0.11,<2' ||
  torch_problem "scikit-build-core can't be installed: its message is above"

echo "python.sh: building streambp for torch $("$python" -c 'import torch; print(torch.__version__)') (some minutes the first time)" >&2
"$python" -m pip install --disable-pip-version-check --no-build-isolation --no-deps --force-reinstall --quiet "$project"
"$python" -c 'from streambp import InputError; from streambp._library import library, library_path; library(); print("installed:", library_path())'
