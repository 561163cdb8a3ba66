#!/usr/bin/env bash
# Gives the readers of files and of the command line inputs that libFuzzer makes up, with the address and undefined-behaviour sanitizers,
# and keeps a table of what was run and found. A target with a row of as many runs for these sources is not run again.
#   scripts/fuzz.sh [--runs N] [--seconds S] [--again] [--keep] [--table FILE] [TARGET...]
#   --runs N      inputs of each target (10000000)
#   --seconds S   at most so long for each target (no limit)
#   --again       targets that the table has already, too
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

# Those that need no LibTorch first: they are built in minutes and run the fastest.
plain=(config_fuzz safetensors_fuzz index_fuzz adapter_config_fuzz)
[ ${#targets[@]} -gt 0 ] || targets=("${plain[@]}" tokens_fuzz sweep_toml_fuzz command_line_fuzz)

# The commit of the sources that a row stands for; a + where they have been changed since.
sources=(streambp bench verify/tests/fuzz ':!verify/tests/fuzz/corpus')
commit=$(git log -1 --format=%h -- "${sources[@]}")
[ -z "$(git status --porcelain -- "${sources[@]}")" ] || commit+=+
compiler=$(clang++ --version | sed -n 's/.*clang version \([0-9.]*\).*/clang \1/p;q')
processor=$(sed -n 's/^model name[[:space:]]*: //p;T;q' /proc/cpuinfo)
[ -w /dev/shm ] && export TMPDIR=/dev/shm # files that readers open by name never reach a disk
export OMP_NUM_THREADS=1 UBSAN_OPTIONS=print_stacktrace=1
# Only a part of a program is compiled with sanitizers, so that marks of what a container holds would be incomplete.
export ASAN_OPTIONS=detect_container_overflow=0

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

# One of libFuzzer's final statistics.
statistic() {
  sed -n "s/^stat::$1: *//p" "$2" | tail -1
}

# put_row ROW: into the table, in place of the target's earlier one.
put_row() {
  local name=${1%% |*}
  mkdir -p "$(dirname "$table")"
  {
    echo "# Fuzzing"
    echo
    echo "Inputs that libFuzzer made up for each reader, seed 1, with the address and undefined-behaviour sanitizers (leaks, 512 MiB for one"
    echo "request, 2 GiB and 10 s for an input). Written by \`scripts/fuzz.sh\`; what each target asks of its reader is at the head of its file in"
    echo "\`verify/tests/fuzz\`. \`sources\` is the commit of the readers; a finding is an input that the reader neither takes nor refuses as it"
    echo "should."
    echo
    echo "| target | runs | runs a second | seconds | corpus | findings | sources | command | compiler, machine |"
    echo "|---|---:|---:|---:|---:|---:|---|---|---|"
    { [ ! -e "$table" ] || grep '^| [a-z_]*_fuzz |' "$table" | grep -v "^$name |" || true; } | cat - <(echo "$1") | sort
  } >"$table.new"
  mv "$table.new" "$table"
}

# keep_corpus TARGET: the smallest of its inputs that reach some edge of the code first, up to 6,000 characters.
keep_corpus() {
  local found=verify/tests/fuzz/corpus/$1.txt edges=out/fuzz/$1/edges
  rm -rf "$edges" && mkdir -p "$edges" "$(dirname "$found")"
  "build/fuzz/bin/$1" -merge=1 -use_counters=0 "$edges" "out/fuzz/$1/corpus" 2>>"out/fuzz/$1/log"
  find "$edges" -type f -printf '%s %p\n' | sort -n | cut -d' ' -f2 | xargs "build/fuzz/bin/$1" --pack |
    awk '{ size += length($0) + 1 } size <= 6000' >"$found"
}

# fuzz TARGET: runs it, minimises its corpus and puts a row into the table. Fails where there is a finding.
fuzz() {
  local program=build/fuzz/bin/$1 folder=out/fuzz/$1 found=verify/tests/fuzz/corpus/$1.txt code=0
  rm -rf "$folder/findings" "$folder/small"
  mkdir -p "$folder/findings" "$folder/corpus" "$folder/seeds" "$folder/small"
  [ -e "$found" ] || found=
  "$program" --unpack "$folder/seeds" $found
  local start=$SECONDS
  "$program" -runs="$runs" -max_total_time="$seconds" -seed=1 -dict="$folder/seeds.dict" -artifact_prefix="$folder/findings/" \
    -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=512 -print_final_stats=1 -verbosity=1 \
    "$folder/corpus" "$folder/seeds" >"$folder/log" 2>&1 || code=$?
  local took=$((SECONDS - start)) executed findings
  executed=$(statistic number_of_executed_units "$folder/log")
  findings=$(find "$folder/findings" -type f | wc -l)
  [ "$code" -eq 0 ] || [ "$findings" -gt 0 ] || { tail -20 "$folder/log" >&2 && return 2; }
  if [ "$findings" -eq 0 ]; then
    "$program" -merge=1 "$folder/small" "$folder/corpus" "$folder/seeds" >>"$folder/log" 2>&1
    rm -rf "$folder/corpus" && mv "$folder/small" "$folder/corpus"
    [ -z "$keep" ] || keep_corpus "$1"
  fi
  local size
  size=$(find "$folder/corpus" -type f -printf '%s\n' | awk '{ bytes += $1 } END { printf "%d inputs, %d KB", NR, (bytes + 999) / 1000 }')
  put_row "| $1 | $executed | $((executed / (took > 0 ? took : 1))) | $took | $size | $findings | $commit | \`$command_line\` | $compiler, $processor |"
  echo "$1: $executed runs in $took s, $findings findings"
  [ "$findings" -eq 0 ]
}

wanted=()
for target in "${targets[@]}"; do
  row=$( [ ! -e "$table" ] || grep "^| $target |" "$table" | grep -F "| $commit |" || true)
  had=$(cut -d'|' -f3 <<<"$row")
  if [ -z "$again" ] && [ "${had:-0}" -ge "$runs" ]; then
    echo "$target: in $table for $commit already"
  else
    wanted+=("$target")
  fi
done
[ ${#wanted[@]} -gt 0 ] || exit 0
build "${wanted[@]}"
status=0
for target in "${wanted[@]}"; do
  fuzz "$target" || status=1
done
exit "$status"
