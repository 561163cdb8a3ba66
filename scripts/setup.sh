#!/usr/bin/env bash
# Everything a fresh Debian 12 machine needs, once: packages, a virtual environment with the torch wheel (its LibTorch), a
# configured build. Sourced by run.sh and test.sh; a second call finds its stamps and does nothing. python.sh sources it with
# setup_for=package, for what the Python package's build needs alone, or setup_for=package-on-own-torch.
set -euo pipefail

project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${STREAMBP_VENV:-$project/.venv}
torch_version=2.11.0

debian_packages=(
  g++ cmake ninja-build ccache git ca-certificates python3 python3-venv
  libeigen3-dev libcli11-dev nlohmann-json3-dev libgtest-dev libbenchmark-dev
)
if [ "${setup_for:-everything}" != everything ]; then
  debian_packages=(g++ cmake ninja-build python3 python3-venv nlohmann-json3-dev)
fi

# dpkg answers without a network, so that a machine that has the packages is never asked for one.
install_debian_packages() {
  local missing=() package
  for package in "${debian_packages[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  echo "setup: installing ${missing[*]}" >&2
  if [ "$(id -u)" -ne 0 ]; then
    echo "setup: these Debian packages are missing and need root: apt-get install ${missing[*]}" >&2
    exit 2
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
}

# torch without its 3 GB of GPU libraries: on a CPU it needs only the CUDA runtime's and CUPTI's shared objects to load.
install_python_packages() {
  local stamp="$venv/.torch-$torch_version"
  [ -e "$stamp" ] && return 0
  echo "setup: installing torch $torch_version and matplotlib into $venv" >&2
  /usr/bin/python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps \
    "torch==$torch_version" 'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cupti==13.0.*'
  "$venv/bin/pip" install --quiet --disable-pip-version-check 'matplotlib>=3.8,<4' 'numpy>=1.26,<3'
  touch "$stamp"
}

# build_project PRESET [TARGET...]
build_project() {
  local preset=$1
  shift
  cd "$project"
  [ -e "build/$preset/build.ninja" ] || cmake --preset "$preset" -DSTREAMBP_VENV="$venv" >&2
  local targets=()
  [ $# -gt 0 ] && targets=(--target "$@")
  cmake --build --preset "$preset" "${targets[@]}" >&2
}

install_debian_packages
if [ "${setup_for:-everything}" != package-on-own-torch ]; then
  install_python_packages
fi
