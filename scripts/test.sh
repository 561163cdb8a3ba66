#!/usr/bin/env bash
# Builds everything and runs all tests; sets the machine up first where that is still to be done. Arguments go to ctest.
#   scripts/test.sh              all tests
#   scripts/test.sh --quick      those of the library's and the programs' parts alone (ctest -L unit), in a few minutes
#   scripts/test.sh -R Goldens   those whose name matches
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

[ "${1:-}" != --quick ] || set -- -L unit "${@:2}"
if [[ " ${cmake_options[*]} " == *STREAMBP_BUILD_TESTS=OFF* ]]; then
  echo "test.sh: the tests need GoogleTest (libgtest-dev), which is not installed" >&2
  exit 2
fi
# Beside the build: it waits for a network, and the build for processors.
STREAMBP_VENV="$venv" /usr/bin/python3 "$project/scripts/python_environment.py" >/dev/null &
environment=$!
trap 'kill "$environment" 2>/dev/null' ERR
build_project release
wait "$environment" || echo "test.sh: no environment for the Python package: its tests will be listed as skipped" >&2
# Processes with one thread each: threads that wait for one another on shared cores lose more than they gain. Two more than there are cores, for a
# third of the tests' time goes by waiting: for ranks, kills, files and other processes.
OMP_NUM_THREADS=1 exec ctest --test-dir "build/release$apart" --output-on-failure --no-tests=error -j "$(($(nproc) + 2))" "$@"
