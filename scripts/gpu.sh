#!/usr/bin/env bash
# The experiments of one short stretch on a GPU machine: CMake, Ninja, nvcc 13 and a Python with torch 2.11 are all
# that it needs there; no package manager and no network.
#
#   scripts/gpu.sh pack                  here: what the build needs of Debian's packages, and our programs if they
#                                        are built, into build/carry (this travels with the working tree)
#   scripts/gpu.sh run DIR [PART...]     there: the parts (default: all, in this order), records and logs below DIR,
#                                        all of it in DIR/gpu.tar.gz. A call ends after ten minutes and is repeated
#                                        until nothing is left: a part that is done is not run again
#   scripts/gpu.sh visit DIR [--rehearse]  there: fifteen minutes in two calls, what matters most first (gpu/gpu_visit.sh);
#                                        what no longer fits a call is left to the next one, and said at its end.
#                                        --rehearse: the same list without a GPU, tiny, in any time
#   scripts/gpu.sh predict DIR           here: dry runs of every cell into DIR/predicted, and the table
#   scripts/gpu.sh report DIR            here, afterwards: the same, the paper's tables and curves with the
#                                        measurements in them, pictures, the table
#   scripts/gpu.sh table DIR             the table of what was predicted, run and not run, into DIR/README.md
#
# Parts: build tests equality nccl package hugging_face microbench speed lengths long offload offload300k tables table8
#        table9 curves memcheck racecheck deterministic published
#
# STREAMBP_PYTHON names the Python (default: python3), STREAMBP_BIN a folder of programs, STREAMBP_ARCHIVE another file
# for the archive, STREAMBP_RUN_SECONDS the time that a call may take (560). With STREAMBP_GPU_REHEARSAL=1 all parts run
# on a machine without a GPU: sweeps as dry runs of the same arguments, checks as far as the CPU goes; it takes a minute
# and measures nothing.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"

project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
carry=$project/build/carry
for name in STREAMBP_BIN STREAMBP_ARCHIVE; do
  [ -z "${!name:-}" ] || export "$name=$(realpath -m "${!name}")"
done

# A path as records name it: from the project's folder, where it is below that.
from_project() {
  realpath -m --relative-base="$project" "$1"
}

all_parts=(build tests equality nccl package hugging_face microbench speed lengths long offload offload300k tables table8
  table9 curves memcheck racecheck deterministic published)
# Those whose memory a dry run predicts.
sweeps=(speed lengths long offload offload300k tables table8 table9 curves deterministic published)
# Seconds that a part is expected to take on an H200, passes as `predict` says and some 15 for each sweep's model: a
# call of `run` begins none that would not end within it.
declare -A expected=([build]=20 [tests]=150 [equality]=90 [nccl]=30 [package]=60 [hugging_face]=120 [microbench]=150
  [speed]=240 [lengths]=210 [long]=560 [offload]=160 [offload300k]=290 [tables]=200 [table8]=30 [table9]=120 [curves]=240 [memcheck]=200 [racecheck]=200
  [deterministic]=60 [published]=110)
rehearsal=${STREAMBP_GPU_REHEARSAL:-}
device=${rehearsal:+meta:}cuda

# ---------------------------------------------------------------------------------------------------------------- pack

packages=(libeigen3-dev nlohmann-json3-dev libcli11-dev libgtest-dev libgmock-dev googletest libbenchmark-dev libbenchmark1debian)

pack() {
  rm -rf "$carry"
  mkdir -p "$carry"
  # Pure Python: `pip install --no-deps --target out/liger liger-kernel` has put it there.
  [ ! -d "$project/out/liger" ] || cp -a "$project/out/liger" "$carry/liger"
  local package file
  for package in "${packages[@]}"; do
    while IFS= read -r file; do
      case $file in
        # Headers, libraries, what CMake asks for, and each package's licence.
        /usr/include/* | /usr/lib/*/cmake/* | /usr/lib/cmake/* | /usr/share/*cmake* | /usr/lib/*.a | \
          /usr/lib/*.so* | /usr/share/doc/*/copyright) ;;
        *) continue ;;
      esac
      [ -f "$file" ] || [ -L "$file" ] || continue
      mkdir -p "$carry$(dirname "$file")"
      cp -a "$file" "$carry$file"
    done < <(dpkg -L "$package" 2>/dev/null || true)
  done
  local program
  for program in streambp-bench streambp-verify streambp-microbench cuda_test libstreambp_cuda.so libstreambp_nccl.so; do
    [ -e "$project/build/release/bin/$program" ] || continue
    mkdir -p "$carry/bin"
    strip -o "$carry/bin/$program" "$project/build/release/bin/$program"
  done
  # The library for Python, which names the torch that it was built with.
  if [ -e "$project/build/release/lib/libstreambp_torch.so" ] && [ -d "$carry/bin" ]; then
    strip -o "$carry/bin/libstreambp_torch.so" "$project/build/release/lib/libstreambp_torch.so"
    cp "$project/build/release/lib/libstreambp_torch.torch" "$carry/bin"
  fi
  [ ! -d "$carry/bin" ] || git -C "$project" rev-parse HEAD >"$carry/bin/commit"
  (cd "$carry" && tar -cJf packed.tar.xz -- * && find . -mindepth 1 -not -name packed.tar.xz -delete)
  # A machine takes what travels up to 64 MiB.
  local bytes most=$((64 * 1024 * 1024))
  bytes=$({ git -C "$project" ls-files -coz --exclude-standard | (cd "$project" && du --files0-from=- -cb) | tail -n 1; du -sb "$carry"; } |
    awk '{ sum += $1 } END { printf "%d", sum }')
  echo "pack: $((bytes / 1024)) KiB travel: the checkout and build/carry" >&2
  [ "$bytes" -le "$most" ] || { echo "gpu.sh pack: $bytes bytes, expected at most $most: move aside what is not needed there (results/)" >&2; exit 1; }
}

# ----------------------------------------------------------------------------------------------------------------- run

python=${STREAMBP_PYTHON:-python3}
run_seconds=${STREAMBP_RUN_SECONDS:-560}

# A folder that looks like a virtual environment with the given Python's torch in it, for scripts/cmake/Torch.cmake.
link_torch() {
  [ -d "$carry/usr" ] || [ ! -e "$carry/packed.tar.xz" ] || "$python" -m tarfile -e "$carry/packed.tar.xz" "$carry"
  venv=$project/build/gpu-venv
  local site version
  site=$("$python" -c 'import os, importlib.util as u; print(os.path.dirname(os.path.dirname(u.find_spec("torch").origin)))')
  version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
  mkdir -p "$venv/lib/$version"
  ln -sfn "$site" "$venv/lib/$version/site-packages"
  local folder
  for folder in "$site"/torch/lib "$site"/nvidia/*/lib; do
    [ -d "$folder" ] && LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  done
  export LD_LIBRARY_PATH=$carry/usr/lib/x86_64-linux-gnu:$LD_LIBRARY_PATH
}

# Programs: STREAMBP_BIN's, those that were packed, or, without them or with STREAMBP_BUILD set, those that are built here.
find_programs() {
  if [ -n "${STREAMBP_BIN:-}" ]; then
    bin=$STREAMBP_BIN
  elif [ -n "$rehearsal" ]; then
    bin=$project/build/release/bin
  elif [ -x "$carry/bin/streambp-bench" ] && [ -e "$carry/bin/libstreambp_cuda.so" ] && [ -z "${STREAMBP_BUILD:-}" ]; then
    bin=$carry/bin
  else
    bin=$project/build/release/bin
  fi
  bin=$(from_project "$bin")
}

build() {
  find_programs
  if [ -n "$rehearsal" ] || [ "$bin" != build/release/bin ]; then
    "$bin/streambp-bench" --version
    return 0
  fi
  [ -e build/release/build.ninja ] || cmake --preset release -DSTREAMBP_VENV="$venv" \
    -DCMAKE_PREFIX_PATH="$carry/usr;$carry/usr/lib/x86_64-linux-gnu/cmake" -DSTREAMBP_WERROR=OFF
  cmake --build --preset release --target streambp-bench streambp-verify streambp-microbench cuda_test
}

source "$project/scripts/gpu/gpu_parts.sh"
source "$project/scripts/gpu/gpu_visit.sh"

# -------------------------------------------------------------------------------------------------------------- report

# All sweeps as dry runs, into DIR/predicted.
predict() {
  local folder=$1 part
  bin=$(from_project "${STREAMBP_BIN:-build/release/bin}")
  [ -n "${STREAMBP_PYTHON:-}" ] || [ ! -x "$project/.venv/bin/python" ] || python=$project/.venv/bin/python
  mkdir -p "$folder/predicted"
  (
    out=$folder/predicted device=meta:cuda rehearsal=
    for part in "${sweeps[@]}"; do "$part"; done
    exit "$failed"
  ) >"$folder/predicted.log" 2>&1 || { tail -n 5 "$folder/predicted.log" >&2 && return 1; }
  rm "$folder/predicted.log"
  table "$folder"
}

report() {
  local folder=$1 records
  predict "$folder"
  "$bin/streambp-bench" paper --table curves,8,9 --measured "$folder" --out "$folder/paper" --quiet >/dev/null
  "$python" "$project/scripts/plot_paper.py" --folder "$folder/paper"
  for records in "$folder"/{speed,lengths,curves,tables}/results.jsonl; do
    [ ! -s "$records" ] || "$python" "$project/scripts/plot.py" --records "$records" --out "$(dirname "$records")"
  done
  table "$folder"
}

# All that was written so far as one file. What programs print of paths is from the project's folder, as in records.
archive() {
  find "$out" -maxdepth 1 \( -name '*.txt' -o -name '*.log' \) -exec sed -i "s#$project/##g" {} +
  local file=${STREAMBP_ARCHIVE:-$out/gpu.tar.gz} new
  new=$(mktemp)
  tar -czf "$new" -C "$out" --exclude=./gpu.tar.gz . && mv "$new" "$file"
}

# One part as a process of its own, so that one that fails or takes too long costs the others nothing.
run_part() {  # PART SECONDS
  local start=$SECONDS status=0
  STREAMBP_OUT=$out timeout "$2" bash "$project/scripts/gpu.sh" part "$1" >"$out/$1.log" 2>&1 || status=$?
  rm -f "$out/$1.done" "$out/$1.failed"
  if [ "$status" -eq 0 ]; then
    echo "$((SECONDS - start)) s" >"$out/$1.done"
  else
    [ "$status" -ne 124 ] || status='124, out of time,'
    echo "exit code $status after $((SECONDS - start)) s" >"$out/$1.failed"
  fi
  printf '%-12s %s\n' "$1" "$(cat "$out/$1.done" 2>/dev/null || cat "$out/$1.failed")"
  [ -e "$out/$1.done" ]
}

run() {
  out=$1
  shift
  local parts=("$@") part left begun=
  [ ${#parts[@]} -gt 0 ] || parts=("${all_parts[@]}")
  for part in "${parts[@]}"; do
    [[ " ${all_parts[*]} ${visit_parts[*]} " == *" $part "* ]] || { echo "gpu.sh: part '$part': expected one of ${all_parts[*]}" >&2; exit 2; }
  done
  link_torch
  find_programs
  [ -n "$rehearsal" ] || nvidia-smi >"$out/nvidia-smi.txt" 2>&1 || true
  trap archive EXIT
  for part in "${parts[@]}"; do
    [ -e "$out/$part.done" ] && [ "$part" != build ] && continue
    left=$((run_seconds - SECONDS))
    if [ -n "$rehearsal" ]; then
      left=3600
    elif [ -n "$begun" ] && [ "${expected[$part]}" -gt "$left" ]; then
      echo "$part and what comes after it: another call of 'scripts/gpu.sh run'"
      break
    fi
    # One pass of 500,000 tokens has the whole call; the archive takes a second.
    [ "$part" != long ] || left=$((left + 20))
    # Without programs nothing else runs; without cuDNN's attention no figure means anything.
    if ! run_part "$part" "$left" && { [ "$part" = build ] || [ "$part" = microbench ]; }; then
      echo "$part failed: see $out/$part.log; the other parts can be asked for by name"
      break
    fi
    [ "$part" = build ] || begun=yes
  done
  table "$out"
}

# Parts are begun in their order as long as there is time for them; a shorter one further down may still fit.
visit() {
  out=$1
  local part left begun=$SECONDS missing=()
  link_torch
  find_programs
  trap archive EXIT
  for part in "${visit_parts[@]}"; do
    [ ! -e "$out/$part.done" ] || continue
    left=$((run_seconds - (SECONDS - begun)))
    [ -z "$rehearsal" ] || [ -n "${STREAMBP_RUN_SECONDS:-}" ] || left=3600
    [ "${expected[$part]}" -le "$left" ] || continue
    run_part "$part" "$left" || true
    [ "$part" != visit_versions ] || [ -e "$out/$part.done" ] || { echo "visit: $part failed, see $out/$part.log" && break; }
  done
  for part in "${visit_parts[@]}"; do
    [ -e "$out/$part.done" ] || missing+=("$part")
  done
  echo "not run to the end: ${missing[*]:-nothing}"
}

table() {
  mkdir -p "$1"
  local folder=$1 part
  {
    echo "# On a GPU: what is predicted, what was run"
    echo
    [ -z "$rehearsal" ] || echo "A rehearsal without a GPU: nothing was measured."
    echo "Written by \`scripts/gpu.sh\` (\`predict\`, \`run\`, \`report\`); records are in each folder's results.jsonl, with their machine and"
    echo "commit, those of dry runs below \`predicted\`."
    echo
    echo "| part | result |"
    echo "|---|---|"
    for part in "${all_parts[@]}"; do
      if [ -e "$folder/$part.done" ]; then
        echo "| $part | done, $(cat "$folder/$part.done") |"
      elif [ -e "$folder/$part.failed" ]; then
        echo "| $part | failed: $(cat "$folder/$part.failed") |"
      elif compgen -G "$folder/$part[.-]*" >/dev/null; then
        echo "| $part | asked for by itself: see below |"
      else
        echo "| $part | not run |"
      fi
    done
    if command -v "$python" >/dev/null; then "$python" "$project/scripts/gpu/gpu_report.py" "$folder"; fi
  } >"$folder/README.md.new"
  mv "$folder/README.md.new" "$folder/README.md"
}

# The folder DIR, and from now on paths from the project's.
enter() {
  [ $# -ge 2 ] || { echo "usage: scripts/gpu.sh $1 DIR" >&2; exit 2; }
  mkdir -p "$2"
  folder=$(from_project "$2")
  cd "$project"
}

case ${1:-} in
  pack) pack ;;
  run)
    enter "$@"
    shift 2
    run "$folder" "$@"
    ;;
  visit)
    enter "$1" "${@:2:1}"
    [ "${3:-}" != --rehearse ] || export STREAMBP_GPU_REHEARSAL=1 rehearsal=1 device=meta:cuda
    [ $# -lt 3 ] || [ "$3" = --rehearse ] || { echo "usage: scripts/gpu.sh visit DIR [--rehearse]" >&2; exit 2; }
    visit "$folder"
    ;;
  part)
    cd "$project"
    out=$STREAMBP_OUT
    link_torch
    find_programs
    "$2"
    exit "$failed"
    ;;
  predict | report | table)
    enter "$@"
    "$1" "$folder"
    ;;
  *)
    sed -n '2,/^set/p' "${BASH_SOURCE[0]}" | grep '^#' | sed 's/^# \{0,1\}//' >&2
    exit 2
    ;;
esac
