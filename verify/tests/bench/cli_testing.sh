# What the tests of streambp-bench from the outside share. A test is called as TEST PROGRAM, sources this file, and ends with
# `finish`. It runs in a folder of its own that goes away at its end.
set -uo pipefail

program=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
dtype=float64
failures=0
source "$(dirname "${BASH_SOURCE[0]}")/../forked_program.sh"
cd "$folder" || exit 1

fail() {
  echo "FAILED: $name: $1"
  sed 's/^/    stdout: /' stdout | head -n 30
  sed 's/^/    stderr: /' stderr | head -n 5
  failures=$((failures + 1))
}

# run NAME CODE ARGUMENT...: the exit code has to be CODE.
run() {
  name=$1
  local code=$2
  shift 2
  call stdout stderr "$@"
  local got=$?
  [ "$got" -eq "$code" ] || fail "exit $got, expected $code"
}

# A sweep small enough for a test, in the folder OUT.
sweep() {
  local what=$1 code=$2 out=$3
  shift 3
  run "$what" "$code" sweep --model qwen3-tiny --dtype "$dtype" --threads 1 --repeats 2 --out "$out" "$@"
}

# refuses TEXT ARGUMENT...: a sweep exits with 2, says one line on stderr with TEXT in it, and leaves no record behind.
refuses() {
  local text=$1
  shift
  run "refusing $*" 2 sweep "$@"
  [ "$(wc -l <stderr)" -eq 1 ] || fail "expected one line on stderr"
  grep -qF -- "$text" stderr || fail "stderr does not say '$text'"
  [ ! -s stdout ] || fail "expected nothing on stdout"
  [ ! -s out/sweep/results.jsonl ] || fail "expected no record"
}

# check WHAT EXPRESSION FILE: a Python expression over `records`, the lines of FILE, has to be true.
check() {
  /usr/bin/python3 - "$2" "$3" <<'PYTHON' >check-output 2>&1 || fail "$1: $(tail -n 1 check-output)"
import json, sys
records = [json.loads(line) for line in open(sys.argv[2], encoding="utf-8")]
if not eval(sys.argv[1]):
    sys.exit(f"not so: {sys.argv[1]}; statuses: {[(r['method'], r['seq_len'], r['status']) for r in records]}")
PYTHON
}

# longest NAME CODE ARGUMENT...: max-length of a small model, for a CPU where nothing else is said: its kernels keep no workspace.
longest() {
  local what=$1 code=$2
  shift 2
  [[ " $* " == *" --device "* ]] || set -- --device meta "$@"
  run "$what" "$code" max-length --model qwen3-tiny --dtype float64 "$@"
}

finish() {
  end_calls
  [ "$failures" -eq 0 ] || { echo "$failures checks failed"; exit 1; }
  echo "all checks passed"
}
