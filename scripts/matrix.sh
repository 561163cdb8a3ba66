#!/usr/bin/env bash
# Builds library, programs, tests and the Python package with each torch that the project is for, each in folders of its own
# (.venv-2.11.0, build/release-2.11.0), and runs the quick tests (scripts/test.sh --quick), the golden cases, and what the Python package
# does with every golden model. Writes FOLDER/matrix.md and results.jsonl: version, tests passed, failed and skipped, minutes of both. One
# pass of each dtype and method is made with every torch; where its gradients' bits are not the first one's, the table says
# how far apart they are.
#   scripts/matrix.sh [--out FOLDER] [VERSION...]   FOLDER: default out/matrix (results/matrix is the recorded one)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=out/matrix
[ "${1:-}" != --out ] || { out=${2:?} && shift 2; }
no_option "$@"
versions=("$@")
[ $# -gt 0 ] || versions=(2.11.0 2.13.0 2.15.0)
mkdir -p "$out"
proofs='^(goldens_[0-9]+|python_(package|gradients|whole_models|patch_exact|module_lane|patch_trainers))$'
status=0

# The folder that setup.sh builds VERSION in.
build_of() {
  STREAMBP_TORCH_VERSION=$1 bash -c 'source scripts/setup.sh && echo "build/release$apart"'
}

for version in "${versions[@]}"; do
  echo "== torch $version"
  export STREAMBP_TORCH_VERSION=$version
  build=$(build_of "$version")
  start=$SECONDS
  bash -c 'source scripts/setup.sh && build_project release' || { status=1 && continue; }
  built=$((SECONDS - start)) start=$SECONDS
  /usr/bin/python3 scripts/python_environment.py >/dev/null || echo "matrix.sh: no environment for the Python package: its tests are skipped" >&2
  OMP_NUM_THREADS=1 ctest --test-dir "$build" -j "$(nproc)" --no-tests=error --output-junit "$PWD/$out/$version.xml" -L unit >"$out/$version.txt" || status=1
  OMP_NUM_THREADS=1 ctest --test-dir "$build" -j "$(nproc)" --no-tests=error --output-junit "$PWD/$out/$version-proofs.xml" \
    -R "$proofs" >"$out/$version-proofs.txt" || status=1
  tail -qn 20 "$out/$version.txt" "$out/$version-proofs.txt"
  tested=$((SECONDS - start))
  for dtype in float64 float32 bfloat16; do
    for method in standard streambp; do
      "$build/bin/streambp-bench" sweep --model qwen3-tiny --dtype "$dtype" --method "$method" --seq-len 192 --chunk 64 --repeats 1 --threads 1 \
        --quiet --dump-gradients "$out/$version-$dtype-$method.safetensors" --out "$out/passes-$version/$dtype-$method" >/dev/null || status=1
    done
  done
  python3 scripts/pages/matrix_table.py "$out" --add "$version" --built "$built" --tested "$tested"
done
python3 scripts/pages/matrix_table.py "$out"
exit "$status"
