#!/usr/bin/env bash
# The experiments of one short stretch on a GPU machine: CMake, Ninja, nvcc 13 and a Python with torch 2.11 are all
# that it needs there; no package manager and no network.
#
#   scripts/gpu.sh pack                  here: what the build needs of Debian's packages, and our programs if they
#                                        are built, into build/carry (this travels with the working tree)
#   scripts/gpu.sh run DIR [PART...]     there: the parts (default: all, the most valuable first), records and logs
#                                        below DIR; a part that is done there is not run again
#   scripts/gpu.sh report DIR            here, afterwards: dry runs of what was measured, the paper's tables and curves
#                                        with the measurements in them, pictures, the table
#   scripts/gpu.sh table DIR             the table of what was run and what was not, into DIR/README.md
#
# Parts: build tests speed lengths sanitizer offload curves table9 table8 microbench tables deterministic published long
# The first nine are meant for half an hour, `build` aside, which has nothing to do where programs were packed.
#
# STREAMBP_PYTHON names the Python (default: python3), STREAMBP_BIN a folder of programs, STREAMBP_PART_SECONDS the time
# that a part may take (470; `long`, one pass over 500,000 tokens, takes up to 590). With STREAMBP_GPU_REHEARSAL=1 all
# parts run on a machine without a GPU: sweeps as dry runs of the same arguments, checks as far as the CPU goes; it takes
# a minute and measures nothing.
set -euo pipefail

project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
carry=$project/build/carry
all_parts=(build tests speed lengths sanitizer offload curves table9 table8 microbench tables deterministic published long)
# Those whose memory a dry run predicts.
sweeps=(speed lengths offload curves table9 table8 tables deterministic published long)
rehearsal=${STREAMBP_GPU_REHEARSAL:-}
device=${rehearsal:+meta:}cuda

# ---------------------------------------------------------------------------------------------------------------- pack

packages=(libeigen3-dev nlohmann-json3-dev libcli11-dev libgtest-dev libgmock-dev googletest libbenchmark-dev libbenchmark1debian)

pack() {
  rm -rf "$carry"
  mkdir -p "$carry"
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
  for program in streambp-bench streambp-verify streambp-microbench cuda_test libstreambp_cuda.so; do
    [ -e "$project/build/release/bin/$program" ] || continue
    mkdir -p "$carry/bin"
    strip -o "$carry/bin/$program" "$project/build/release/bin/$program"
  done
  [ ! -d "$carry/bin" ] || git -C "$project" rev-parse HEAD >"$carry/bin/commit"
  du -sh "$carry" >&2
}

# ----------------------------------------------------------------------------------------------------------------- run

python=${STREAMBP_PYTHON:-python3}
part_seconds=${STREAMBP_PART_SECONDS:-470}

# A folder that looks like a virtual environment with the given Python's torch in it, for scripts/cmake/Torch.cmake.
link_torch() {
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
}

build() {
  find_programs
  if [ -n "$rehearsal" ] || [ "$bin" != "$project/build/release/bin" ]; then
    "$bin/streambp-bench" --version
    return 0
  fi
  cd "$project"
  [ -e build/release/build.ninja ] || cmake --preset release -DSTREAMBP_VENV="$venv" \
    -DCMAKE_PREFIX_PATH="$carry/usr;$carry/usr/lib/x86_64-linux-gnu/cmake" -DSTREAMBP_WERROR=OFF
  cmake --build --preset release --target streambp-bench streambp-verify streambp-microbench cuda_test
}

sweep() {  # NAME ARGUMENT...: records into $out/NAME, those that are there are not run again
  local name=$1
  shift
  # Running out of memory (3) is a result.
  "$bin/streambp-bench" sweep --device "$device" --resume --quiet --out "$out/$name" "$@" || [ $? -eq 3 ]
}

tests() {
  "$bin/cuda_test" --gtest_filter='*device*:*cuda*:-*host*' --gtest_output="xml:$out/tests.xml"
  local checked=(--device cuda) goldens=$project/verify/goldens sizes=(--family qwen3,gemma3 --batch left)
  if [ -n "$rehearsal" ]; then
    checked=() goldens+=/cases/llama-sft-b1 sizes+=(--objective sft --tuning full --method checkpoint)
  fi
  "$bin/streambp-verify" goldens "$goldens" "${checked[@]}" --method standard,checkpoint,streambp,tiled,chunk-major \
    --chunk 7,auto >"$out/goldens.txt"
  "$bin/streambp-verify" sweep --quick "${checked[@]}" "${sizes[@]}" >"$out/equality.txt"
}

sanitizer() {
  local tool failed=0 check
  for tool in memcheck racecheck synccheck initcheck; do
    check=(compute-sanitizer --tool "$tool" --error-exitcode 1 --kernel-regex kns=streambp)
    [ -z "$rehearsal" ] || check=()
    "${check[@]}" "$bin/cuda_test" --gtest_filter='*CudaKernels.*device*' >"$out/sanitizer-$tool.txt" 2>&1 || failed=1
    tail -n 1 "$out/sanitizer-$tool.txt"
  done
  return "$failed"
}

eight_b=(--model qwen3-8b --dtype bfloat16)

# The figures that the project stands for: StreamBP against checkpointing, and how near to the chip's speed. At 32,768
# tokens a full head's logits don't fit a card of 80 GiB: checkpointing has a streamed one there too.
speed() {
  sweep speed "${eight_b[@]}" --method checkpoint,streambp --seq-len 8192 --chunk auto,2048,4096,8192 --repeats 3
  sweep speed "${eight_b[@]}" --method checkpoint --seq-len 32768 --repeats 2
  sweep speed-streamed-head "${eight_b[@]}" --method checkpoint --head streamed --seq-len 32768 --repeats 2
  sweep speed-kept "${eight_b[@]}" --method streambp --keep-attention --seq-len 32768 --chunk auto,8192 --repeats 2
  sweep speed "${eight_b[@]}" --method streambp --seq-len 32768 --chunk 8192 --repeats 2
}

# Sets `capped`: one pass a cell, and on a card of more than 80 GiB, which stands for the paper's then, as much and no
# more.
cap_memory() {
  capped=(--repeats 1 --warmup 0)
  local mebibytes=0
  if [ -n "$rehearsal" ]; then
    mebibytes=143771
  elif [ "$device" = cuda ]; then
    mebibytes=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -n 1)
  fi
  [ "$mebibytes" -le 81920 ] || capped+=(--memory-cap 80GiB)
}

lengths() {
  cap_memory
  sweep lengths "${eight_b[@]}" "${capped[@]}" --method streambp --seq-len 110000,140000,160000
  sweep lengths "${eight_b[@]}" "${capped[@]}" --method checkpoint --seq-len 16384,24576
}

offload() {
  cap_memory
  sweep offload "${eight_b[@]}" "${capped[@]}" --method streambp --offload host --seq-len 140000
  sweep offload "${eight_b[@]}" "${capped[@]}" --method streambp --offload host --seq-len 300000
}

# The paper's figure of peak against length, at its points: `lengths` has the longest.
curves() {
  cap_memory
  local baseline
  for baseline in fair hugging-face; do
    sweep curves "${eight_b[@]}" "${capped[@]}" --baseline "$baseline" --method standard --seq-len 1000,2000,3000,4700
    sweep curves "${eight_b[@]}" "${capped[@]}" --baseline "$baseline" --method checkpoint --seq-len 5000,10000,15000,20000
  done
  sweep curves "${eight_b[@]}" "${capped[@]}" --method streambp --seq-len 10000,20000,50000,75000,100000
}

# The same with the published chunk of 500 tokens and head of 100.
published() {
  cap_memory
  sweep published "${eight_b[@]}" "${capped[@]}" --method streambp --chunk 500 --head-chunk 100 --seq-len 10000,20000,50000,75000
}

# Peaks of two further models.
table9() {
  cap_memory
  local model baseline lengths=3000,6000,9000,18000
  for model in llama-3.1-8b gemma-3-1b; do
    for baseline in fair hugging-face; do
      sweep table9 --model "$model" --dtype bfloat16 "${capped[@]}" --baseline "$baseline" --method checkpoint --seq-len "$lengths"
    done
    sweep table9 --model "$model" --dtype bfloat16 "${capped[@]}" --method streambp --seq-len "$lengths"
    sweep table9 --model "$model" --dtype bfloat16 "${capped[@]}" --method streambp --chunk 500 --head-chunk 100 --seq-len "$lengths"
  done
}

# The linear example; its records take no --resume: all or nothing.
table8() {
  mkdir -p "$out/table8"
  "$bin/streambp-bench" linear --device "$device" --json >"$out/table8/results.new" || [ $? -eq 3 ]
  mv "$out/table8/results.new" "$out/table8/results.jsonl"
}

# Times and peaks of the paper's tables 1 and 2: Qwen3 models on one GPU, objectives.
tables() {
  cap_memory
  sweep tables "${eight_b[@]}" "${capped[@]}" --method standard,checkpoint,streambp --seq-len 3072,6144,9216,15360
  sweep tables --model qwen3-4b --dtype bfloat16 "${capped[@]}" --method standard,checkpoint,streambp \
    --seq-len 3072,9216,15360,27648
  sweep tables-objectives --model qwen3-4b --dtype bfloat16 "${capped[@]}" --objective dpo,grpo \
    --method checkpoint,streambp --seq-len 8192,16384
}

# What it costs that equal passes give equal bits.
deterministic() {
  sweep deterministic --model qwen3-4b --dtype bfloat16 --deterministic --method checkpoint,streambp --seq-len 8192 --repeats 3
  sweep nondeterministic --model qwen3-4b --dtype bfloat16 --method checkpoint,streambp --seq-len 8192 --repeats 3
}

microbench() {
  "$bin/streambp-microbench" --benchmark_filter=cuda --benchmark_out="$out/microbench.json" --benchmark_out_format=json \
    >"$out/microbench.txt"
}

# 500k tokens in one pass on the whole card.
long() {
  sweep long "${eight_b[@]}" --repeats 1 --warmup 0 --method streambp --every 6 --seq-len 500000 --chunk 8192
}

# -------------------------------------------------------------------------------------------------------------- report

# All sweeps as dry runs, into DIR/predicted.
predict() {
  local part
  out=$1/predicted device=meta:cuda rehearsal=
  for part in "${sweeps[@]}"; do "$part"; done
}

report() {
  local folder=$1 records
  bin=${STREAMBP_BIN:-$project/build/release/bin}
  [ ! -x "$project/.venv/bin/python" ] || python=$project/.venv/bin/python
  (predict "$folder") >"$folder/predicted.log"
  "$bin/streambp-bench" paper --table curves,8,9 --measured "$folder" --out "$folder/paper" --quiet >/dev/null
  "$python" "$project/scripts/plot_paper.py" --folder "$folder/paper"
  for records in "$folder"/{speed,lengths,curves,tables}/results.jsonl; do
    [ ! -s "$records" ] || "$python" "$project/scripts/plot.py" --records "$records" --out "$(dirname "$records")"
  done
  table "$folder"
}

run() {
  out=$(mkdir -p "$1" && cd "$1" && pwd)
  shift
  local parts=("$@") part
  [ ${#parts[@]} -gt 0 ] || parts=("${all_parts[@]}")
  link_torch
  find_programs
  [ -n "$rehearsal" ] || nvidia-smi >"$out/nvidia-smi.txt" 2>&1 || true
  for part in "${parts[@]}"; do
    [[ " ${all_parts[*]} " == *" $part "* ]] || { echo "gpu.sh: part '$part': expected one of ${all_parts[*]}" >&2; exit 2; }
    [ -e "$out/$part.done" ] && [ "$part" != build ] && continue
    local start=$SECONDS status=0
    # A part is a process of its own, so that one that fails or takes too long costs the others nothing.
    local limit=$part_seconds
    [ "$part" != long ] || limit=590
    STREAMBP_OUT=$out timeout "$limit" bash "${BASH_SOURCE[0]}" part "$part" >"$out/$part.log" 2>&1 || status=$?
    if [ "$status" -eq 0 ]; then
      echo "$((SECONDS - start)) s" >"$out/$part.done"
    else
      echo "exit code $status after $((SECONDS - start)) s" >"$out/$part.failed"
    fi
    printf '%-12s %s\n' "$part" "$(cat "$out/$part.done" 2>/dev/null || cat "$out/$part.failed")"
    [ "$status" -eq 0 ] && rm -f "$out/$part.failed"
  done
  table "$out"
}

table() {
  mkdir -p "$1"
  local folder=$1 part
  {
    echo "# What was run on the GPU"
    echo
    [ -z "$rehearsal" ] || echo "A rehearsal without a GPU: nothing was measured."
    echo "Written by \`scripts/gpu.sh run\`; records are in each folder's results.jsonl, with their machine and commit."
    echo
    echo "| part | result |"
    echo "|---|---|"
    for part in "${all_parts[@]}"; do
      if [ -e "$folder/$part.done" ]; then
        echo "| $part | done, $(cat "$folder/$part.done") |"
      elif [ -e "$folder/$part.failed" ]; then
        echo "| $part | failed: $(cat "$folder/$part.failed") |"
      else
        echo "| $part | not run |"
      fi
    done
    if command -v "$python" >/dev/null; then "$python" "$project/scripts/gpu_report.py" "$folder"; fi
  } >"$folder/README.md.new"
  mv "$folder/README.md.new" "$folder/README.md"
}

case ${1:-} in
  pack) pack ;;
  run)
    [ $# -ge 2 ] || { echo "usage: scripts/gpu.sh run DIR [PART...]" >&2; exit 2; }
    shift
    run "$@"
    ;;
  part)
    out=$STREAMBP_OUT
    link_torch
    find_programs
    "$2"
    ;;
  report)
    [ $# -eq 2 ] && [ -d "$2" ] || { echo "usage: scripts/gpu.sh report DIR" >&2; exit 2; }
    report "$(cd "$2" && pwd)"
    ;;
  table)
    [ $# -eq 2 ] || { echo "usage: scripts/gpu.sh table DIR" >&2; exit 2; }
    table "$2"
    ;;
  *)
    sed -n '2,/^set/p' "${BASH_SOURCE[0]}" | grep '^#' | sed 's/^# \{0,1\}//' >&2
    exit 2
    ;;
esac
