#!/usr/bin/env bash
# streambp-bench under faults: closed descriptors, full disks, readers that go away, memory that runs out between passes,
# writers at the same time, kills. No record is lost, torn or doubled, no older file destroyed, no loss unsaid.
# faults_test.sh PROGRAM [KILLS]   KILLS: runs that are killed (default: 8)
source "$(dirname "${BASH_SOURCE[0]}")/cli_testing.sh"
kills=${2:-8}
base=(sweep --model qwen3-tiny --threads 1 --repeats 1 --warmup 0 --method streambp)

says() {
  grep -qF -- "$1" stderr || fail "stderr does not say '$1'"
}

# whole FILE COUNT: that many lines, each a record, no key twice.
whole() {
  check "$2 whole records" "len(records) == $2 and len({r['key'] for r in records}) == $2" "$1"
}

# expect WHAT CODE: of the command before.
expect() {
  local got=$?
  name=$1
  [ "$got" -eq "$2" ] || fail "exit $got, expected $2"
}

# --- Descriptors that the caller closed do not become results.jsonl.
: >stdout
"$program" "${base[@]}" --seq-len 8,9,10 --out closed-1 >&- 2>stderr
expect "stdout is closed" 0
whole closed-1/results.jsonl 3
"$program" "${base[@]}" --seq-len 8,9,10 --json --out closed-2 <&- >&- 2>&-
expect "all are closed" 0
whole closed-2/results.jsonl 3
"$program" "${base[@]}" --seq-len 1,8 --out closed-3 >stdout 2>&-
expect "stderr is closed, and there is a warning" 0
whole closed-3/results.jsonl 2
"$program" "${base[@]}" --seq-len 8 --out closed-4 --dump-gradients closed-gradients >&- 2>&-
expect "gradients" 0
"$program" "${base[@]}" --seq-len 8 --out open-4 --dump-gradients gradients >stdout 2>stderr
expect "gradients with descriptors open" 0
cmp -s gradients closed-gradients || fail "the gradients are others"
"$program" export --model qwen3-tiny --out closed-model >&- 2>&-
expect "export" 0
"$program" "${base[@]}" --seq-len 8 --out closed-5 --resume >&- 2>stderr
expect "resume" 0
"$program" "${base[@]}" --seq-len 8 --out closed-5 --resume >stdout 2>&-
expect "again" 0
whole closed-5/results.jsonl 1

# --- Output that is lost is said, and is exit code 2; what was to be measured is.
for arguments in --version --help 'max-length --model qwen3-cpu --device meta --budget 1GiB' 'linear --rows 100 --size 10 --chunks 5'; do
  # shellcheck disable=SC2086
  "$program" $arguments >/dev/full 2>stderr
  expect "$arguments on a full disk" 2
  says 'stdout: a part of the output was lost: No space left on device'
  [ "$(wc -l <stderr)" -eq 1 ] || fail "expected one line on stderr"
done
for more in --json --quiet; do
  "$program" "${base[@]}" --seq-len 8,9,10 $more --out "full$more" >/dev/full 2>stderr
  expect "a sweep $more on a full disk" 2
  says 'stdout: a part of the output was lost'
  whole "full$more/results.jsonl" 3
done
{ "$program" "${base[@]}" --seq-len 8,9,10 --json --out reader 2>stderr; echo $? >code; } | head -n 1 >stdout
name="a reader that goes away"
whole reader/results.jsonl 3
{ "$program" "${base[@]}" --seq-len 8,9,10 --json --out no-reader 2>stderr; echo $? >code; } | true
name="no reader"
[ "$(cat code)" -eq 2 ] || fail "exit $(cat code), expected 2"
says 'stdout: a part of the output was lost: Broken pipe'
whole no-reader/results.jsonl 3
"$program" "${base[@]}" --seq-len 1,8 --out full-stderr >stdout 2>/dev/full
expect "a warning on a full disk" 0
whole full-stderr/results.jsonl 2

# --- A disk that is full: a limit on the size of files stands in for one.
# limited KIB ARGUMENT...: no file grows beyond it.
limited() {
  local size=$1
  shift
  (ulimit -f "$size" && exec "$program" "$@") >stdout 2>stderr
}
lengths=$(seq -s, 8 30)
limited 16 "${base[@]}" --seq-len "$lengths" --out disk
expect "records on a full disk" 2
says "disk/results.jsonl: can't be written: File too large"
name="records on a full disk"
check "whole records" '0 < len(records) < 23' disk/results.jsonl
cp disk/results.jsonl before
"$program" "${base[@]}" --seq-len "$lengths" --out disk --resume >stdout 2>stderr
expect "the disk has room again" 0
whole disk/results.jsonl 23
head -c "$(stat -c %s before)" disk/results.jsonl | cmp -s - before || fail "earlier records changed"
for flag in --trace --snapshot --timeline --dump-gradients; do
  echo old >product
  limited 8 "${base[@]}" --seq-len 300 --chunk 2 --out "disk$flag" $flag product
  expect "$flag on a full disk" 2
  says "product: can't be written: File too large"
  [ "$(cat product)" = old ] || fail "the older file is gone"
  whole "disk$flag/results.jsonl" 1
done
mkdir report && echo old | tee report/paper.md report/cells.csv >report/results.jsonl
rm report/results.jsonl
limited 2 paper --table 9 --quiet --out report
expect "a report on a full disk" 2
[ "$(cat report/paper.md report/cells.csv)" = $'old\nold' ] || fail "the older report is gone"
limited 8 export --model qwen3-tiny --out disk-model
expect "a model on a full disk" 2
[ ! -e disk-model/model.safetensors ] || fail "a part of a model was written"
rm -f product
name="what failed"
[ -z "$(find . -name '*.tmp')" ] || fail "temporary files are left: $(find . -name '*.tmp')"

# --- Memory that runs out outside of a pass is a record, and the next cell goes on.
run "a batch beyond memory" 3 "${base[@]}" --seq-len 16,4000000,17 --memory-limit 20MB --out batch
check "16 and 17 are measured" '[(r["seq_len"], r["status"]) for r in records] == [(16, "ok"), (4000000, "oom"), (17, "ok")]' batch/results.jsonl
run "a batch beyond memory, chosen" 3 sweep --model qwen3-tiny --threads 1 --repeats 1 --method auto --seq-len 16,4000000,17 --memory-limit 20MB --out batch-auto
check "16 and 17 are measured" '[(r["seq_len"], r["status"]) for r in records] == [(16, "ok"), (4000000, "oom"), (17, "ok")]' batch-auto/results.jsonl
run "it is known" 3 "${base[@]}" --seq-len 16,4000000,17 --memory-limit 20MB --out batch --resume
whole batch/results.jsonl 3

# --- Four writers at once: one has the file, the others are refused, together with what follows all is there once.
writers=()
for writer in 1 2 3 4; do
  "$program" "${base[@]}" --seq-len "$lengths" --out writers --resume >/dev/null 2>"writer-$writer" &
  writers+=($!)
done
name="four writers"
for writer in "${writers[@]}"; do
  wait "$writer"
  code=$?
  [ $code -eq 0 ] || [ $code -eq 2 ] || fail "exit $code"
done
whole writers/results.jsonl 23
for writer in 1 2 3 4; do
  [ ! -s "writer-$writer" ] || grep -q 'another run is writing to it' "writer-$writer" || fail "$(cat "writer-$writer")"
done

# --- Kills at any time: what was on disk stays as it was, the rest is measured once.
storm() {
  /usr/bin/python3 - "$program" "$kills" "$RANDOM" <<'PYTHON'
import json, os, random, signal, subprocess, sys, time
program, kills, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(seed)
cells = 25 * kills
sweep = [program, "sweep", "--model", "qwen3-tiny", "--threads", "1", "--repeats", "1", "--warmup", "0", "--method", "standard,streambp",
         "--seq-len", ",".join(str(n) for n in range(8, 8 + cells)), "--out", "storm", "--resume"]
lost = f"seed {seed}: "
seen = {}
def records():
    lines = open("storm/results.jsonl", "rb").read().split(b"\n")[:-1] if os.path.exists("storm/results.jsonl") else []
    found = {}
    for number, line in enumerate(lines, start=1):
        key = json.loads(line)["key"]
        assert key not in found, f"{lost}line {number} is there twice"
        found[key] = line
    return found
for kill in range(kills):
    with open("storm-errors", "ab") as errors:
        process = subprocess.Popen(sweep, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
    before, begin = os.path.getsize("storm/results.jsonl") if os.path.exists("storm/results.jsonl") else 0, time.monotonic()
    # Only once it writes: the time to start is no one's to guess. Every fourth one earlier.
    while process.poll() is None and time.monotonic() - begin < 60 and kill % 4 != 3:
        if os.path.exists("storm/results.jsonl") and os.path.getsize("storm/results.jsonl") > before:
            break
        time.sleep(0.002)
    time.sleep(chance.uniform(0, 0.3))
    process.send_signal(signal.SIGTERM if kill % 4 == 1 else signal.SIGKILL)
    process.wait()
    now = records()
    for key, line in seen.items():
        assert now.get(key) == line, f"{lost}kill {kill}: a record is lost or changed"
    seen = now
done = subprocess.run(sweep, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
assert done.returncode == 0, f"{lost}exit {done.returncode} at the end"
now = records()
assert len(now) == 2 * cells, f"{lost}{len(now)} records, expected {2 * cells}"
assert all(now[key] == line for key, line in seen.items()), f"{lost}a record changed at the end"
print(f"{kills} kills, {len(seen)} records before the last run, {2 * cells} after")
PYTHON
}
# --- A stack that is too small is named, where it would end the process by a signal.
small_stack() { (ulimit -s 64; exec "$@"); }
name="small stack"
small_stack "$program" sweep --model qwen3-tiny --seq-len 8 --out stack >stdout 2>stderr
[ $? -eq 2 ] && grep -q 'stack may have 65536 bytes' stderr && [ ! -e stack ] || fail "$(cat stderr)"

name="kills"
storm >stdout 2>stderr || fail "$(tail -n 1 stderr)"
cat stdout
for attempt in 0.2 0.3 0.4; do  # in the foreground timeout waits for the end of what it kills
  { timeout --foreground -s KILL "$attempt" "$program" export --model qwen3-cpu --out killed-model; } >stdout 2>stderr
done
rm -f killed-model/config.json killed-model/model.safetensors
run "export after kills" 0 export --model qwen3-cpu --out killed-model
[ "$(find killed-model -type f | wc -l)" -eq 2 ] || fail "temporary files stay: $(ls killed-model)"

finish
