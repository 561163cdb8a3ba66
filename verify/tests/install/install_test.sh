#!/usr/bin/env bash
# Builds and runs a project that uses the library, where no package but nlohmann_json can be found.
#   install_test.sh find_package BUILD VENV WORK             installs BUILD below WORK and finds it there
#   install_test.sh add_subdirectory SOURCE VENV WORK        takes SOURCE as a subdirectory and builds the library, in minutes
# VENV is the virtual environment with the torch wheel.
set -euo pipefail
mode=$1 from=$(realpath "$2") venv=$(realpath "$3")
mkdir -p "$4"
work=$(realpath "$4")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
project=$(cd "$here/../../.." && pwd)
parameters=27424  # of qwen3-tiny, by hand

# configure FOLDER ARGUMENT...: configures the consumer into FOLDER of WORK
configure() {
  local folder=$1 package arguments=()
  shift
  for package in CLI11 Eigen3 GTest benchmark; do arguments+=("-DCMAKE_DISABLE_FIND_PACKAGE_$package=ON"); done
  cmake --no-warn-unused-cli -S "$here/consumer" -B "$work/$folder" -G Ninja -DONE_STEP="$project/streambp/examples/one_step.cc" "${arguments[@]}" "$@"
}

# refuses WORDS ARGUMENT...: configuring fails with a message that has WORDS in it
refuses() {
  local words=$1
  shift
  rm -rf "$work/refused"
  if configure refused "$@" >"$work/refused.txt" 2>&1; then
    echo "configured, but should have been refused with: $words" >&2
    exit 1
  fi
  tr -s '\n ' ' ' <"$work/refused.txt" | grep -qF -- "$words" || { cat "$work/refused.txt" >&2; exit 1; }
}

case $mode in
  find_package)
    rm -rf "$work/prefix" "$work/build" "$work/fake"
    cmake --install "$from" --prefix "$work/prefix" >/dev/null
    configure build -DCMAKE_PREFIX_PATH="$work/prefix" -DSTREAMBP_VENV="$venv" -DCMAKE_BUILD_TYPE=Release \
      -DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON
    refuses "no torch wheel in" -DCMAKE_PREFIX_PATH="$work/prefix" -DSTREAMBP_VENV="$work"
    mkdir -p "$work/fake/lib"
    touch "$work/fake/lib/libtorch_cpu.so"
    echo "__version__ = '1.2.3+cpu'" >"$work/fake/version.py"
    refuses "this streambp was built with torch" -DCMAKE_PREFIX_PATH="$work/prefix" -DSTREAMBP_TORCH="$work/fake"
    ;;
  add_subdirectory)
    # Without optimisation, which is not what is tested.
    launcher=()
    ! command -v ccache >/dev/null || launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_FLAGS=-fpch-preprocess)
    export CCACHE_SLOPPINESS=pch_defines,time_macros
    configure build -DSTREAMBP_SOURCE="$from" -DSTREAMBP_VENV="$venv" -DSTREAMBP_CUDA=OFF "${launcher[@]}"
    ;;
  *)
    echo "install_test.sh: '$mode': expected find_package or add_subdirectory" >&2
    exit 2
    ;;
esac

cmake --build "$work/build" --target read_config one_step
"$work/build/read_config" | tee "$work/read_config.txt"
grep -qx "$parameters parameters" "$work/read_config.txt"
"$work/build/one_step" >"$work/one_step.txt"
head -n 3 "$work/one_step.txt"
# A loss near log(101), of random weights over 101 tokens, and a gradient of every parameter of a model of two layers.
awk '
  /^loss / { loss = $2; next }
  { gradients += 1; if (!($3 > 0) || $3 ~ /nan|inf/) bad = 1 }
  END { exit !(loss > 4.4 && loss < 4.9 && gradients == 25 && !bad) }' "$work/one_step.txt" ||
  { echo "one_step printed:" >&2; cat "$work/one_step.txt" >&2; exit 1; }
