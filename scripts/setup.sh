#!/usr/bin/env bash
# Everything a fresh Debian 12 machine needs, once: packages, a virtual environment with the torch wheel (its LibTorch), a
# configured build. Sourced by run.sh and test.sh; a second call finds its stamps and does nothing. python.sh sources it with
# setup_for=package, for what the Python package's build needs alone, or setup_for=package-on-own-torch.
#   STREAMBP_TORCH_VERSION=2.11.0   another torch than the default: .venv-2.11.0 and build/release-2.11.0 lie next to the default's
#   STREAMBP_TORCH=FOLDER           an existing torch instead of the wheel: the folder that holds its include/ and lib/
# Ubuntu 24.04 has the same packages under the same names; Ubuntu 22.04's are too old, and scripts/Containerfile is for it and for others.
# Without root it names what is missing and goes on where that is possible: cmake and ninja come from PyPI, and without
# GoogleTest, RapidCheck, Google Benchmark or ccache the programs are built all the same.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"

project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
default_torch=2.15.0
torch_version=${STREAMBP_TORCH_VERSION:-$default_torch}
apart=''  # what the names of folders end in
[ "$torch_version" = "$default_torch" ] || apart=-$torch_version
venv=${STREAMBP_VENV:-$project/.venv$apart}

debian_packages=(
  g++ cmake ninja-build ccache git ca-certificates python3 python3-venv
  libeigen3-dev libcli11-dev nlohmann-json3-dev libgtest-dev libbenchmark-dev librapidcheck-dev
)
if [ "${setup_for:-everything}" != everything ]; then
  debian_packages=(g++ cmake ninja-build python3 python3-venv nlohmann-json3-dev)
fi

# A header or a command that stands for each package, where it did not come from Debian.
declare -A found_by=(
  [g++]=g++ [cmake]=cmake [ninja-build]=ninja [ccache]=ccache [git]=git [python3]=python3 [libeigen3-dev]=eigen3/Eigen/Core
  [libcli11-dev]=CLI/CLI.hpp [nlohmann-json3-dev]=nlohmann/json.hpp [libgtest-dev]=gtest/gtest.h [libbenchmark-dev]=benchmark/benchmark.h
  [librapidcheck-dev]=rapidcheck/Gen.h
)

# dpkg answers without a network, so that a machine that has the packages is never asked for one.
is_there() {
  dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed' && return 0
  case ${found_by[$1]:-} in
    '') case $1 in python3-venv) python3 -c 'import ensurepip, venv' 2>/dev/null ;; *) [ -e /etc/ssl/certs ] ;; esac ;;
    */*) echo "#include <${found_by[$1]}>" | g++ -x c++ -fsyntax-only - 2>/dev/null ;;
    *) [ -x "$(command -v "${found_by[$1]}")" ] ;;
  esac
}

# What the build leaves out or takes from PyPI, where a package is missing and nobody may install it.
cmake_options=()
python_packages=()
do_without() {
  case $1 in
    cmake) python_packages+=('cmake>=3.25,<4') ;;
    ninja-build) python_packages+=(ninja) ;;
    ccache) echo "setup: no ccache: every build starts anew" >&2 ;;
    libgtest-dev)
      echo "setup: no libgtest-dev: no tests are built" >&2
      cmake_options+=(-DSTREAMBP_BUILD_TESTS=OFF)
      ;;
    librapidcheck-dev) echo "setup: no librapidcheck-dev: properties_test is not built" >&2 ;;
    libbenchmark-dev)
      echo "setup: no libbenchmark-dev: streambp-microbench is not built" >&2
      cmake_options+=(-DSTREAMBP_BUILD_BENCHMARKS=OFF)
      ;;
    *) return 1 ;;
  esac
}

install_debian_packages() {
  local missing=() needed=() package
  for package in "${debian_packages[@]}"; do
    is_there "$package" || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "setup: installing ${missing[*]}" >&2
    apt-get update -qq
    local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}")
    "${install[@]}" libtcmalloc-minimal4 >&2 || "${install[@]}" >&2  # with which tests take less time, and are the same
    return
  fi
  for package in "${missing[@]}"; do
    do_without "$package" || needed+=("$package")
  done
  [ ${#needed[@]} -eq 0 ] && return 0
  echo "setup: missing and needed: ${needed[*]}. With root: apt-get install ${missing[*]} (Debian 12, Ubuntu 24.04). Elsewhere: the packages" \
    "of the same libraries, or scripts/Containerfile" >&2
  exit 2
}

# torch without its 3 GB of GPU libraries: on a CPU it needs only the CUDA runtime's and CUPTI's shared objects to load.
install_python_packages() {
  local stamp="$venv/.torch-$torch_version-jinja2"
  [ -n "${STREAMBP_TORCH:-}" ] && stamp="$venv/.without-torch-jinja2"
  export PATH="$PATH:$venv/bin"
  [ -e "$stamp" ] && return 0
  /usr/bin/env python3 -m venv "$venv"
  local pip=("$venv/bin/pip" install --quiet --disable-pip-version-check --no-compile) beside_torch
  # Beside torch, not after it: pip would complain of what torch has no need of here.
  "${pip[@]}" 'matplotlib>=3.8,<4' 'numpy>=1.26,<3' 'jinja2>=3,<4' "${python_packages[@]}" &
  beside_torch=$!
  if [ -n "${STREAMBP_TORCH:-}" ]; then
    [ -e "$STREAMBP_TORCH/lib/libtorch_cpu.so" ] || {
      echo "setup: STREAMBP_TORCH=$STREAMBP_TORCH: no lib/libtorch_cpu.so in it, expected the folder that python3 -c" \
        "'import torch; print(torch.__path__[0])' prints" >&2
      exit 2
    }
  else
    echo "setup: installing torch $torch_version, matplotlib and jinja2 into $venv" >&2
    "${pip[@]}" --no-deps "torch==$torch_version"
    local cuda
    cuda=$(sed -n "s/^cuda.*= '\(.*\)'/\1/p" "$venv"/lib/python3*/site-packages/torch/version.py)
    "${pip[@]}" --no-deps "nvidia-cuda-runtime==$cuda.*" "nvidia-cuda-cupti==$cuda.*"
  fi
  wait "$beside_torch"
  touch "$stamp"
}

# As CMakePresets.json has it, whose presets know one folder each.
export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros} CCACHE_BASEDIR=${CCACHE_BASEDIR:-$project}

# build_project PRESET [TARGET...]: in build/PRESET, or build/PRESET-2.11.0
build_project() {
  local preset=$1 folder=build/$1$apart
  shift
  cd "$project"
  [ -n "${STREAMBP_TORCH:-}" ] && cmake_options+=(-DSTREAMBP_TORCH="$STREAMBP_TORCH")
  [ -e "$folder/build.ninja" ] || cmake --preset "$preset" -B "$folder" -DSTREAMBP_VENV="$venv" "${cmake_options[@]}" >&2
  local targets=()
  [ $# -gt 0 ] && targets=(--target "$@")
  cmake --build "$folder" "${targets[@]}" >&2
}

install_debian_packages
if [ "${setup_for:-everything}" != package-on-own-torch ]; then
  install_python_packages
fi
