#!/usr/bin/env bash
# Gives the readers of files inputs that libFuzzer makes up, with the address and undefined-behaviour sanitizers.
#   scripts/fuzz.sh [--runs N] [--seconds S] [--keep] [--table FILE.md] [TARGET...]
#   --runs N      inputs of each target (10000000)
#   --seconds S   at most so long for each target (no limit)
#   --keep        put what was found to reach more code into verify/tests/fuzz/corpus, a few KB, which ctest replays
#   --table FILE  out/fuzz/fuzz.md; a line for each run goes to the file of that name that ends in .jsonl
# STREAMBP_FUZZ_ON=FOLDER: a release build that is there already; else build/release, whose libraries are built first.
# What makes a target fail is kept in out/fuzz/TARGET/findings. Exit codes: 0 nothing found; 1 something was; 2 bad usage.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
command_line="scripts/fuzz.sh $*"
runs=10000000 seconds=0 keep= table=out/fuzz/fuzz.md targets=()
while [ $# -gt 0 ]; do
  case $1 in
    --runs) runs=$2 && shift ;;
    --seconds) seconds=$2 && shift ;;
    --table) table=$2 && shift ;;
    --keep) keep=yes ;;
    -*) echo "fuzz: $1: no such flag, see the head of scripts/fuzz.sh" >&2 && exit 2 ;;
    *) targets+=("$1") ;;
  esac
  shift
done
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
debian_packages=(clang) found_by[clang]=clang++
install_debian_packages
cd "$project"
[ ${#targets[@]} -gt 0 ] || targets=(config_fuzz safetensors_fuzz index_fuzz adapter_config_fuzz tokens_fuzz records_fuzz)
[ -w /dev/shm ] && export TMPDIR=/dev/shm # files that readers open by name never reach a disk
export OMP_NUM_THREADS=1 UBSAN_OPTIONS=print_stacktrace=1
# Only a part of a program is compiled with sanitizers, so that marks of what a container holds would be incomplete. Two frames of an
# allocation rather than thirty, and less that was freed kept back, cost a half less; a finding can be run again with all of them.
export ASAN_OPTIONS=detect_container_overflow=0:malloc_context_size=2:quarantine_size_mb=64
if [ -n "${STREAMBP_FUZZ_ON:-}" ]; then
  cmake_options+=(-DSTREAMBP_FUZZ_ON="$STREAMBP_FUZZ_ON")
elif [[ " ${targets[*]} " =~ \ (tokens|records)_fuzz\  ]]; then
  build_project release streambp_sweep
fi
build_project fuzz "${targets[@]}"

# log TARGET SEED RUNS SECONDS FINDINGS CORPUS: a line of the log, and the table made again from all of them.
log() {
  mkdir -p "$(dirname "$table")"
  python3 - "${table%.md}.jsonl" "$table" "$@" "$(clang++ --version | sed -n 's/.*clang version \([0-9.]*\).*/\1/p;q')" "$command_line" <<'PYTHON'
import json, pathlib, sys
sys.path.insert(0, "scripts")
from machine import environment
log, table, *values, clang, command = sys.argv[1:]
names = ["target", "seed", "runs", "seconds", "findings", "corpus"]
with open(log, "a") as file:
    line = {name: int(value) if name in names[1:5] else value for name, value in zip(names, values)}
    file.write(json.dumps(line | {"environment": environment() | {"argv": command.split(), "clang": clang}}) + "\n")
lines = [json.loads(line) for line in open(log)]
latest = {line["target"]: line for line in lines}
rows = []
for target, last in sorted(latest.items()):
    made = last["environment"]
    same = [line for line in lines if (line["target"], line["environment"]["commit"]) == (target, made["commit"])]
    runs, findings = (sum(line[name] for line in same) for name in ("runs", "findings"))
    rows.append(f"| {target} | {runs:,} | {last['corpus']} | {findings} | {made['commit'][:12]} | `{' '.join(made['argv'])}` | clang {made['clang']}, {made['cpu']} |")
pathlib.Path(table).write_text("""# Fuzzing

Inputs that libFuzzer made up for each reader, with the address and undefined-behaviour sanitizers (leaks, 512 MiB for one request, 2 GiB
and 30 s for an input). Written by `scripts/fuzz.sh`, with a line for each run in the file of the same name that ends in `.jsonl`; runs of one commit
are summed. What each target asks of its reader is at the head of its file in `verify/tests/fuzz`. A finding is an input that the reader neither takes
nor refuses as it should.

| target | runs | corpus | findings | commit | command | compiler, machine |
|---|---:|---:|---:|---|---|---|
""" + "\n".join(rows) + "\n")
PYTHON
}

status=0
for target in "${targets[@]}"; do
  program=build/fuzz/bin/$target folder=out/fuzz/$target found=verify/tests/fuzz/corpus/$target.txt seed=$(date +%s) longest=4096 code=0 start=$SECONDS
  rm -rf "$folder/findings" "$folder/edges"
  mkdir -p "$folder/findings" "$folder/corpus" "$folder/seeds" "$folder/edges"
  [ ! -e "$found" ] || "$program" --unpack "$folder/seeds" "$found"
  [ -e "$found" ] || "$program" --unpack "$folder/seeds"
  # Longer ones reach hardly an edge more (7,907 of records instead of 7,863) and take up to twice as long.
  case $target in
    tokens_fuzz) longest=512 ;;
    records_fuzz) longest=2048 ;;
  esac
  "$program" -runs="$runs" -max_total_time="$seconds" -seed="$seed" -dict="$folder/seeds.dict" -artifact_prefix="$folder/findings/" \
    -max_len="$longest" -timeout=30 -rss_limit_mb=2048 -malloc_limit_mb=512 -print_final_stats=1 -entropic=0 \
    "$folder/corpus" "$folder/seeds" >"$folder/log" 2>&1 || code=$?
  findings=$(find "$folder/findings" -type f | wc -l)
  [ "$code" -eq 0 ] || [ "$findings" -gt 0 ] || { tail -20 "$folder/log" >&2 && exit 2; }
  ran=$(sed -n 's/^stat::number_of_executed_units: *//p' "$folder/log" | tail -1)
  log "$target" "$seed" "$ran" "$((SECONDS - start))" "$findings" "$(find "$folder/corpus" -type f | wc -l) inputs"
  echo "$target: $ran runs in $((SECONDS - start)) s, $findings findings"
  [ "$findings" -eq 0 ] || status=1
  if [ -n "$keep" ] && [ "$findings" -eq 0 ]; then  # the smallest that reach some edge of the code first, up to 6,000 characters
    "$program" -merge=1 -use_counters=0 "$folder/edges" "$folder/corpus" 2>>"$folder/log"
    find "$folder/edges" -type f -printf '%s %p\n' | sort -n | cut -d' ' -f2 | xargs "$program" --pack |
      awk '{ size += length($0) + 1 } size <= 6000' >"$found"
  fi
done
exit "$status"
