#!/usr/bin/env bash
# Every check at full size, one after another: the equality sweep, random passes, random configs, the golden cases, the reference's gradients, precision,
# compare's verdicts on gradients of Hugging Face and on published mistakes, trainers of TRL, kills of sweeps, trainings and ranks and other faults, allocations that fail,
# mistakes planted in the sources, the long-index suite, hostile inputs, libFuzzer's inputs, the Python package with an older and a newer transformers, every torch, a wheel,
# scripts/gpu.sh without a GPU, headers by themselves, a selection of tests with sanitizers and with assertions, the CUDA kernels on the host with sanitizers and in many orders, ranks
# with the thread sanitizer, and one definition of each name. Says at the end which held; a check that fails does not keep the later ones from running.
#   scripts/nightly.sh [--only REGEX] [--keep FOLDER] [ARGUMENT...]
#     --only REGEX    only checks whose titles it matches
#     --keep FOLDER   write what each check printed, its command, commit and machine to FOLDER/TITLE.txt
#     ARGUMENT...     go to `streambp-verify long` (--max-memory 20GB, --case NAME, ...)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
only='' keep=''
while [ $# -gt 0 ]; do
  case $1 in
    --only) only=${2:?} && shift 2 ;;
    --keep) keep=$(realpath -m "${2:?}") && shift 2 ;;
    *) break ;;
  esac
done
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
build_project release streambp-verify streambp-bench
cd "$project"
verify=build/release/bin/streambp-verify
summary=()
status=0

# check TITLE COMMAND...: its exit code goes into the summary, the first one that is not 0 becomes ours.
check() {
  local title=$1 code=0 start=$SECONDS printed
  shift
  [[ $title =~ $only ]] || return 0
  echo "== $title"
  printed=$(mktemp)
  "$@" 2>&1 | tee "$printed" || code=${PIPESTATUS[0]}
  echo
  [ -z "$keep" ] || kept "$title" "$code" "$((SECONDS - start))" "$printed" "$*"
  rm -f "$printed"
  case $code in
    0) summary+=("pass  $title, $((SECONDS - start)) s") ;;
    *) summary+=("FAIL  $title, $((SECONDS - start)) s, exit code $code") ;;
  esac
  [ "$status" -ne 0 ] || status=$code
}

# kept TITLE CODE SECONDS FILE COMMAND: the end of what a check printed, and what made it, as a file of the folder `keep`.
kept() {
  local name
  name=$(tr '[:upper:]' '[:lower:]' <<<"$1" | tr -cs 'a-z0-9\n' '-' | sed 's/-$//')
  mkdir -p "$keep"
  {
    printf '%s\nscripts/nightly.sh --only %q: %s\n' "$1" "$1" "${5//$project\//}"
    printf 'exit code %s, %s s, commit %s%s, %s\n\n' "$2" "$3" "$(git rev-parse --short=12 HEAD)" \
      "$(git diff --quiet HEAD -- ':!results' || echo ', modified')" "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
    tail -n 40 "$4"
  } >"$keep/$name.txt"
}

# tests_of PRESET: tests of files, records, faults, memory, ops, methods and hostile inputs, built with another preset.
tests_of() {
  (build_project "$1" files_test fuzzers reference_test library_test bench_records_test streambp-bench streambp-verify) || return
  OMP_NUM_THREADS=1 ctest --preset "$1" -j "$(nproc)" \
    -R 'Config|Safetensors|safetensors|Checkpoint|TensorFile|Printable|hostile|fuzz|Reference|Meter|Recorder|Snapshot|Ops|Attention|Adapters|Backpropagate|Fused|OutputFile|ContentKey|ModelFiles|RecordFile|CellRun|bench_cli_faults|bench_cli_resume'
}

# The CUDA kernels under their twin on the host: many orders of blocks and threads, no race, no access out of bounds; and where there is nvcc,
# code for every architecture.
cuda_on_host() {
  (build_project release cuda_host_test cuda_test streambp-bench) || return
  ctest --preset release -R '^cuda_(architectures|code)$' || return
  STREAMBP_ORDERS=200 build/release/bin/cuda_host_test --gtest_brief=1 || return
  STREAMBP_THOROUGH=1 OMP_NUM_THREADS=1 build/release/bin/cuda_test --gtest_brief=1 --gtest_filter='*CudaKernels*host*'
}
cuda_with_sanitizers() {
  (build_project asan cuda_host_test cuda_test && build_project tsan cuda_host_test) || return
  build/asan/bin/cuda_host_test --gtest_brief=1 || return
  STREAMBP_THOROUGH=1 OMP_NUM_THREADS=1 build/asan/bin/cuda_test --gtest_brief=1 --gtest_filter='*CudaKernels*host*' || return
  # The sanitizer wants its own addresses free. It is asked for races alone, not for far indices.
  setarch -R build/tsan/bin/cuda_host_test --gtest_brief=1 --gtest_filter='-LongIndex*'
}

# Ranks as threads, and those that wait for messages. libtorch is as its wheel has it: where it frees what its own counts of references say is
# free, the sanitizer would see no order.
ranks_with_thread_sanitizer() {
  (build_project tsan distributed_test) || return
  TSAN_OPTIONS=ignore_noninstrumented_modules=1 OMP_NUM_THREADS=1 setarch -R build/tsan/bin/distributed_test --gtest_brief=1
}

# The Python package's tests with the oldest and the newest transformers that it is for; everything else is held against one between.
other_transformers() {
  export STREAMBP_TRANSFORMERS_VERSION
  (build_project release streambp_torch streambp_judge streambp_plan) || return
  for STREAMBP_TRANSFORMERS_VERSION in 5.20.0 5.24.0; do
    STREAMBP_VENV="$venv" /usr/bin/python3 scripts/python_environment.py || return
    OMP_NUM_THREADS=1 ctest --preset release -R '^python_' || return
  done
}

# Thirty draws of settings of each golden model, made and run by the newest transformers.
random_configs() {
  export STREAMBP_TRANSFORMERS_VERSION=5.24.0 STREAMBP_THOROUGH=1
  (build_project release streambp_torch && STREAMBP_VENV="$venv" /usr/bin/python3 scripts/python_environment.py) || return
  OMP_NUM_THREADS=1 ctest --preset release -V -R '^python_random_configs'
}

headers() {
  local torch
  torch=$(echo "$venv"/lib/python3*/site-packages/torch)
  bash verify/tests/install/headers_test.sh build/release "$torch" build/release/headers
}

check 'Equality of all methods on random small models, every objective' "$verify" sweep
random_passes() {
  (build_project release properties_test) || return
  OMP_NUM_THREADS=1 RC_PARAMS='max_success=12000' build/release/bin/properties_test --gtest_brief=1
}
check 'Random passes: models, rows, objectives, methods and settings, from a new seed' random_passes
check 'Random configs: gradients of the Python package on settings that nobody chose' random_configs
check 'Golden cases: losses, log-probabilities and gradients of Hugging Face' "$verify" goldens verify/goldens
check 'The reference against complex steps' "$verify" gradcheck
check "Errors of float32 and bfloat16 relative to standard back-propagation's" "$verify" precision
check "Errors of float32 where targets lead by 20 nats, relative to standard's" "$verify" precision --dtype float32 --lead 20 --seeds 5
check "compare's verdicts on gradients of Hugging Face" python3 scripts/pages/compare_verdicts.py --out out/compare-verdicts
check 'Published mistakes and their verdicts' python3 scripts/pages/conformance.py
check "Trainers of TRL: gradients of a patched trainer's and of backward" python3 scripts/pages/live_models.py --out out/live-models
check 'Every causal LM of transformers by its own code' python3 scripts/any_model.py --out out/any-model
check 'Recipes of TRL, patched and plain' python3 scripts/pages/recipes.py --out out/recipes
check 'Kills, full disks, closed descriptors, writers at the same time' \
  bash verify/tests/bench/faults_test.sh build/release/bin/streambp-bench 50
check 'Training by every method: losses of 300 steps' "$venv/bin/python" scripts/pages/train_parity.py --out out/train-parity --runs "$(mktemp -d)"
check 'Ninety-five kills of a training, signals, eight writers at once, weights that shrink while they are read' \
  python3 verify/tests/hostile/storms_test.py build/release/bin --kills 95
check 'Twenty ranks killed at random moments' bash verify/tests/bench/ranks_test.sh build/release/bin/streambp-bench 20
every_request() {
  (build_project release library_test) || return
  STREAMBP_EVERY_REQUEST=1 OMP_NUM_THREADS=1 build/release/bin/library_test --gtest_brief=1 --gtest_filter='*FailingAllocation*'
}
check 'An allocation that fails, at every request of fifteen kinds of passes' every_request
check 'Mistakes of this field, planted in the sources one at a time' \
  "$venv/bin/python" scripts/house/mutants.py --venv "$venv" --jobs "$(nproc)" --out out/mutants
check 'Lengths, products and element counts across 2^16, 2^31 and 2^32' "$verify" long "$@"
check 'Hostile inputs: files, folders, records and command lines that have to be refused, and what is odd but right' \
  python3 verify/tests/hostile/inputs_test.py build/release/bin verify/goldens --all
check 'Readers of files under libFuzzer' scripts/fuzz.sh --runs 100000 --seconds 300 --table out/fuzz/fuzz.md
thorough() {
  (build_project release) || return
  STREAMBP_VENV="$venv" /usr/bin/python3 scripts/python_environment.py || return
  STREAMBP_THOROUGH=1 OMP_NUM_THREADS=1 ctest --preset release -j "$(nproc)" -L 'unit|package'
}
check 'Tests of the library and the Python package with every setting, where ordinary runs take turns' thorough
check 'The Python package with transformers 5.20 and 5.24' other_transformers
check 'Each torch that the project is for: library, programs, tests and Python package' scripts/matrix.sh
wheel() {
  scripts/wheel.sh out/wheel && bash verify/tests/install/wheel_test.sh out/wheel/*.whl "${STREAMBP_HF_VENV:-.venv-hf}" out/wheel/empty
}
check 'A wheel, installed into an empty environment and used' wheel
check "scripts/gpu.sh rehearsed on a machine without a GPU" \
  bash verify/tests/scripts/gpu_script_test.sh "$project" "$project/build/release/bin" "$venv/bin/python"
check 'Every public header by itself' headers
check 'The whole library as a subdirectory of another project' \
  bash verify/tests/install/install_test.sh add_subdirectory . "$venv" build/release/subdirectory
check 'A selection of tests with the address and undefined-behaviour sanitizers' tests_of asan
check 'CUDA kernels on the host, in 200 orders of blocks and threads' cuda_on_host
check 'CUDA kernels on the host with the address, undefined-behaviour and thread sanitizers' cuda_with_sanitizers
check 'Ranks with the thread sanitizer' ranks_with_thread_sanitizer
check 'A selection of tests with assertions of libstdc++ and Eigen' tests_of debug
check 'One definition of each name across the files of both programs, at link time' build_project odr streambp-verify streambp-bench

echo "== Summary"
printf '%s\n' "${summary[@]}"
exit "$status"
