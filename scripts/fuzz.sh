#!/usr/bin/env bash
# Gives the readers of files inputs that libFuzzer makes up, with the address and undefined-behaviour sanitizers.
# Each target runs ten minutes in turn, until it has had all its inputs: what was run adds up over sessions, a line of FILE.jsonl for each
# ten minutes with the seed, and FILE.md says what it comes to for the sources as they are now. One that is stopped (Ctrl-C) logs what it ran.
#   scripts/fuzz.sh [--runs N] [--seconds S] [--again] [--keep] [--table FILE.md] [TARGET...]
#   --runs N      inputs of each target, over all sessions since its sources changed (10000000)
#   --seconds S   at most so long for each target in this session (no limit)
#   --again       inputs of earlier sessions don't count
#   --keep        put what was found to reach more code into verify/tests/fuzz/corpus, a few KB, which ctest replays
#   --table FILE  results/trust/fuzz.md
# STREAMBP_FUZZ_ON=FOLDER: a release build that is there already; else build/release, whose libraries are built first.
# What makes a target fail is kept in out/fuzz/TARGET/findings. Exit codes: 0 nothing found; 1 something was; 2 bad usage.
set -euo pipefail
command_line="scripts/fuzz.sh $*"
runs=10000000 seconds=0 again= keep= table=results/trust/fuzz.md targets=()
while [ $# -gt 0 ]; do
  case $1 in
    --runs) runs=$2 && shift ;;
    --seconds) seconds=$2 && shift ;;
    --table) table=$2 && shift ;;
    --again) again=yes ;;
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
log=${table%.md}.jsonl

# Those that need no LibTorch first: they are built in minutes and run the fastest.
plain=(config_fuzz safetensors_fuzz index_fuzz adapter_config_fuzz)
[ ${#targets[@]} -gt 0 ] || targets=("${plain[@]}" tokens_fuzz records_fuzz)

compiler=$(clang++ --version | sed -n 's/.*clang version \([0-9.]*\).*/clang \1/p;q')
processor=$(sed -n 's/^model name[[:space:]]*: //p;T;q' /proc/cpuinfo)
[ -w /dev/shm ] && export TMPDIR=/dev/shm # files that readers open by name never reach a disk
export OMP_NUM_THREADS=1 UBSAN_OPTIONS=print_stacktrace=1
# Only a part of a program is compiled with sanitizers, so that marks of what a container holds would be incomplete. Two frames of an
# allocation rather than thirty, and less that was freed kept back, cost a half less; a finding can be run again with all of them.
export ASAN_OPTIONS=detect_container_overflow=0:malloc_context_size=2:quarantine_size_mb=64

build() {
  if [ -n "${STREAMBP_FUZZ_ON:-}" ]; then
    cmake_options+=(-DSTREAMBP_FUZZ_ON="$STREAMBP_FUZZ_ON")
  else
    local target
    for target in "$@"; do
      [[ " ${plain[*]} " == *" $target "* ]] || { (build_project release streambp_sweep) && break; }
    done
  fi
  build_project fuzz "$@"
}

# sources TARGET: the project's own files that its objects are made from, as the compiler listed them; a line each.
sources() {
  (
    cd build/fuzz
    ninja -t inputs "bin/$1" | grep -E '\.(o|pch)$' | xargs ninja -t deps | sed -n 's/^ \+//p' | LC_ALL=C sort -u | grep -v '^/usr/' |
      xargs realpath --relative-to="$project" --
  ) | grep -E '^(streambp|bench|verify)/' | LC_ALL=C sort -u
}

# read_as TARGET: a hash of what is in those files, by which runs add up while other files change, and the last commit of any of them; a +
# where they have been changed since.
read_as() {
  local files commit
  mapfile -t files < <(sources "$1")
  [ ${#files[@]} -gt 0 ] || { echo "fuzz: build/fuzz: ninja doesn't say what $1 is made from, expected ninja 1.11 or later" >&2 && exit 2; }
  commit=$(git log -1 --format=%h -- "${files[@]}")
  [ -z "$(git status --porcelain -- "${files[@]}")" ] || commit+=+
  echo "$(sha256sum "${files[@]}" | sha256sum | cut -c1-12) $commit"
}

# One of libFuzzer's final statistics.
statistic() {
  sed -n "s/^stat::$1: *//p" "$2" | tail -1
}

# log TARGET SEED RUNS SECONDS FINDINGS CORPUS SOURCES COMMIT: a line of the log, and the table made again from all of them.
log() {
  mkdir -p "$(dirname "$table")"
  python3 - "$log" "$table" "$@" "$command_line" "$compiler" "$processor" <<'PYTHON'
import collections, json, pathlib, sys
log, table, *values = sys.argv[1:]
names = ["target", "seed", "runs", "seconds", "findings", "corpus", "sources", "commit", "command", "compiler", "machine"]
line = {name: int(value) if name in names[1:5] else value for name, value in zip(names, values)}
with open(log, "a") as file:
    file.write(json.dumps(line) + "\n")
sessions = collections.defaultdict(list)
for line in map(json.loads, open(log)):
    sessions[line["target"]].append(line)
rows = []
for target, lines in sorted(sessions.items()):
    last = lines[-1]
    lines = [line for line in lines if line["sources"] == last["sources"]]
    runs, findings = (sum(line[name] for line in lines) for name in ("runs", "findings"))
    rows.append(f"| {target} | {runs:,} | {lines[0]['seed']} to {last['seed']} | {last['corpus']} | {findings} | {last['sources']} ({last['commit']}) | `{last['command']}` | {last['compiler']}, {last['machine']} |")
pathlib.Path(table).write_text("""# Fuzzing

Inputs that libFuzzer made up for each reader, with the address and undefined-behaviour sanitizers (leaks, 512 MiB for one request, 2 GiB
and twice 10 s for an input). Written by `scripts/fuzz.sh`, with a line for every ten minutes in the file of the same name that ends in `.jsonl`;
what each target asks of its reader is at the head of its file in `verify/tests/fuzz`. Runs are summed over sessions whose `sources` are the
same, a hash of the files that the target is compiled from (and the last commit of any of them); the aim is 10,000,000 runs of each. How long
they took, in the log, says more of what else the machine did. A finding is an input that the reader neither takes nor refuses as it should.

| target | runs | seeds | corpus | findings | sources | command | compiler, machine |
|---|---:|---:|---:|---:|---|---|---|
""" + "\n".join(rows) + "\n")
PYTHON
}

# logged TARGET SOURCES: how many inputs it has had for these sources, and the seed of the next.
logged() {
  python3 - "$log" "$@" <<'PYTHON'
import json, os, sys
log, target, sources = sys.argv[1:]
lines = [json.loads(line) for line in open(log)] if os.path.exists(log) else []
lines = [line for line in lines if line["target"] == target]
print(sum(line["runs"] for line in lines if line["sources"] == sources), 1 + max((line["seed"] for line in lines), default=0))
PYTHON
}

# keep_corpus TARGET: the smallest of its inputs that reach some edge of the code first, up to 6,000 characters.
keep_corpus() {
  local found=verify/tests/fuzz/corpus/$1.txt edges=out/fuzz/$1/edges
  rm -rf "$edges" && mkdir -p "$edges" "$(dirname "$found")"
  "build/fuzz/bin/$1" -merge=1 -use_counters=0 "$edges" "out/fuzz/$1/corpus" 2>>"out/fuzz/$1/log"
  find "$edges" -type f -printf '%s %p\n' | sort -n | cut -d' ' -f2 | xargs "build/fuzz/bin/$1" --pack |
    awk '{ size += length($0) + 1 } size <= 6000' >"$found"
}

# Ctrl-C and kill end the inputs, not this script: what was run is logged first. libFuzzer then ends with 72.
stopped= child=
stop() {
  stopped=yes
  trap '' INT TERM
  [ -z "$child" ] || kill -TERM "$child" 2>/dev/null || true
}
trap stop INT TERM

# libfuzzer PROGRAM FLAG...: a signal ends the first wait at once, the second says how the program ended (127: the first did).
libfuzzer() {
  local code=0 again=0
  "$@" &
  child=$!
  wait "$child" || code=$?
  if [ -n "$stopped" ]; then
    wait "$child" 2>/dev/null || again=$?
    [ "$again" -eq 127 ] || code=$again
  fi
  child=
  [ -n "$stopped" ] && [ "$code" -eq 72 ] && code=0
  return "$code"
}

# fuzz TARGET SEED RUNS SECONDS SOURCES COMMIT: runs it, minimises its corpus and logs that; `ran` is how many inputs it had. Fails where there is
# a finding.
fuzz() {
  local program=build/fuzz/bin/$1 folder=out/fuzz/$1 found=verify/tests/fuzz/corpus/$1.txt code=0
  rm -rf "$folder/small"
  mkdir -p "$folder/findings" "$folder/corpus" "$folder/seeds" "$folder/small"
  [ -e "$found" ] || found=
  "$program" --unpack "$folder/seeds" $found
  # Longer ones reach hardly an edge more (7,907 of records instead of 7,863) and take up
  # to twice as long.
  local longest=4096
  case $1 in
    tokens_fuzz) longest=512 ;;
    records_fuzz) longest=2048 ;;
  esac
  local start=$SECONDS before findings
  before=$(find "$folder/findings" -type f | wc -l)
  libfuzzer "$program" -runs="$3" -max_total_time="$4" -seed="$2" -dict="$folder/seeds.dict" -artifact_prefix="$folder/findings/" \
    -max_len="$longest" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=512 -print_final_stats=1 -entropic=0 \
    "$folder/corpus" "$folder/seeds" >"$folder/log" 2>&1 || code=$?
  local took=$((SECONDS - start)) size
  ran=$(statistic number_of_executed_units "$folder/log")
  # A machine may stand still: a timeout is a finding if its input takes as long once more.
  local slow
  for slow in "$folder"/findings/timeout-*; do
    [ -e "$slow" ] && "$program" -timeout=10 "$slow" >>"$folder/log" 2>&1 || continue
    echo "$1: ${slow##*/} took more than 10 s once, and not again" >&2
    rm "$slow"
    code=0
  done
  findings=$(($(find "$folder/findings" -type f | wc -l) - before))
  [ "$code" -eq 0 ] || [ "$findings" -gt 0 ] || { tail -20 "$folder/log" >&2 && exit 2; }
  if [ "$findings" -eq 0 ]; then
    "$program" -merge=1 "$folder/small" "$folder/corpus" "$folder/seeds" >>"$folder/log" 2>&1 && rm -rf "$folder/corpus" &&
      mv "$folder/small" "$folder/corpus"
  fi
  size=$(find "$folder/corpus" -type f -printf '%s\n' | awk '{ bytes += $1 } END { printf "%d inputs, %d KB", NR, (bytes + 999) / 1000 }')
  log "$1" "$2" "$ran" "$took" "$findings" "$size" "$5" "$6"
  echo "$1: $ran runs in $took s, $findings findings"
  [ "$findings" -eq 0 ]
}

build "${targets[@]}"
declare -A left=() seed=() budget=() of=() commit=()
for target in "${targets[@]}"; do
  identity=$(read_as "$target") || exit 2
  read -r of[$target] commit[$target] <<<"$identity"
  read -r had next < <(logged "$target" "${of[$target]}")
  [ -z "$again" ] || had=0
  if [ "$had" -ge "$runs" ]; then
    echo "$target: $had runs in $table for ${of[$target]} (${commit[$target]}) already"
  else
    left[$target]=$((runs - had)) seed[$target]=$next budget[$target]=$seconds
  fi
done
status=0
while [ ${#left[@]} -gt 0 ] && [ -z "$stopped" ]; do
  for target in "${targets[@]}"; do
    [ -n "${left[$target]:-}" ] && [ -z "$stopped" ] || continue
    slice=600
    [ "$seconds" -eq 0 ] || [ "${budget[$target]}" -ge "$slice" ] || slice=${budget[$target]}
    started=$SECONDS
    if fuzz "$target" "${seed[$target]}" "${left[$target]}" "$slice" "${of[$target]}" "${commit[$target]}"; then
      left[$target]=$((left[$target] - ran)) seed[$target]=$((seed[$target] + 1))
      [ "$seconds" -eq 0 ] || budget[$target]=$((budget[$target] - (SECONDS - started)))
      [ "${left[$target]}" -gt 0 ] || unset "left[$target]"
      [ "$seconds" -eq 0 ] || [ "${budget[$target]}" -gt 0 ] || unset "left[$target]"
      [ -z "$keep" ] || [ -n "${left[$target]:-}" ] || keep_corpus "$target"
    else
      status=1
      unset "left[$target]"
    fi
  done
done
exit "$status"
