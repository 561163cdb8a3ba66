# The parts of scripts/gpu.sh, which sources this: what each runs, and with which arguments. They read $project, $bin,
# $out, $device, $python and $rehearsal.

# What fails is noted and the part goes on: it fails at its end.
failed=0

check() {  # COMMAND...
  local status=0
  "$@" || status=$?
  [ "$status" -eq 0 ] || { failed=1 && echo "gpu.sh: exit code $status: $*" >&2; }
}

sweep() {  # NAME ARGUMENT...: records into $out/NAME, those that are there are not run again
  local name=$1 status=0
  shift
  "$bin/streambp-bench" sweep --device "$device" --resume --quiet --out "$out/$name" "$@" || status=$?
  # Running out of memory (3) is a result.
  [ "$status" -eq 0 ] || [ "$status" -eq 3 ] || { failed=1 && echo "gpu.sh: exit code $status: sweep $name $*" >&2; }
}

# At the same time: passes of tests are small, they wait for the launch of kernels rather than for the GPU.
declare -A together=()
begin() {  # LOG COMMAND...
  local log=$1
  shift
  "$@" >"$log" 2>&1 &
  together[$!]="$*"
}
finish_all() {
  local process status
  for process in "${!together[@]}"; do
    status=0
    wait "$process" || status=$?
    [ "$status" -eq 0 ] || { failed=1 && echo "gpu.sh: exit code $status: ${together[$process]}" >&2; }
  done
  together=()
}

processes=${STREAMBP_GPU_PROCESSES:-4}  # of a GPU's tests

tests() {
  local checked=(--device cuda) goldens=$project/verify/goldens filter='*device*:*cuda*:-*host*:NcclRanks.*' number
  if [ -n "$rehearsal" ]; then
    checked=() goldens+=/cases/llama-sft-b1 filter='*host_forward*' processes=1
  fi
  export OMP_NUM_THREADS=2
  for ((number = 0; number < processes; ++number)); do
    GTEST_TOTAL_SHARDS=$processes GTEST_SHARD_INDEX=$number begin "$out/tests-$number.txt" \
      "$bin/cuda_test" --gtest_filter="$filter" --gtest_output="xml:$out/tests-$number.xml"
    begin "$out/goldens-$number.txt" "$bin/streambp-verify" goldens "$goldens" "${checked[@]}" \
      --method standard,checkpoint,streambp,tiled,chunk-major --chunk 7,auto --part "$((number + 1))/$processes"
  done
  finish_all
  check "$python" "$project/scripts/gpu/gpu_checks.py" tests "$out"/tests-*.xml
}

equality() {
  local checked=(--device cuda --family qwen3,gemma3 --batch left) number
  if [ -n "$rehearsal" ]; then
    checked=(--family qwen3 --batch left --objective sft --tuning full --method checkpoint) processes=1
  fi
  export OMP_NUM_THREADS=2
  for ((number = 1; number <= processes; ++number)); do
    begin "$out/equality-$number.txt" "$bin/streambp-verify" sweep --quick "${checked[@]}" --part "$number/$processes"
  done
  finish_all
}

# Ranks whose messages go over NCCL: one on this GPU, two where there are two.
nccl() {
  local filter='NcclRanks.*device*'
  [ -z "$rehearsal" ] || filter='NcclWithoutDevice.SaysWhyThereIsNone'
  check "$bin/cuda_test" --gtest_filter="$filter" --gtest_output="xml:$out/nccl.xml"
  check "$python" "$project/scripts/gpu/gpu_checks.py" tests "$out/nccl.xml"
}

# The package in that Python: Hugging Face's models there, patched and lent, against its own autograd.
use_package() {
  package_tests=$project/verify/tests/streambp/python
  export PYTHONPATH=$project/streambp/python:$project/scripts:$package_tests:$project/build/carry/liger STREAMBP_TORCH_LIBRARY=$bin/libstreambp_torch.so
  [ -e "$STREAMBP_TORCH_LIBRARY" ] || STREAMBP_TORCH_LIBRARY=$bin/../lib/libstreambp_torch.so
  export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error PYTHONDONTWRITEBYTECODE=1
}

package() {
  use_package
  if [ -n "$rehearsal" ]; then
    "$python" -c "import ast, sys; ast.parse(open(sys.argv[1]).read())" "$package_tests/cuda_test.py"
    return
  fi
  begin "$out/package-families.txt" "$python" "$package_tests/cuda_test.py" OnCuda.test_families
  begin "$out/package-packed.txt" "$python" "$package_tests/cuda_test.py" OnCuda.test_packed
  begin "$out/package-stream.txt" "$python" "$package_tests/gradients_test.py" OnCuda
  begin "$out/package-measure.txt" "$python" "$package_tests/measure_test.py" -k test_on_cuda
  finish_all
}

# Its checkpointing and ours, in turns.
hugging_face() {
  use_package
  if [ -n "$rehearsal" ]; then
    "$python" -c "import ast, sys; ast.parse(open(sys.argv[1]).read())" "$project/scripts/compare_gpu.py"
    return
  fi
  check "$python" "$project/scripts/compare_gpu.py" --repeats 2 --out "$out/hugging-face" >"$out/compare.txt" 2>&1
}

sanitize() {  # TOOL: our kernels alone run under it
  # A call of the driver that torch makes to find out whether it may is no error.
  export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False
  local sanitizer=(compute-sanitizer --tool "$1" --error-exitcode 1 --kernel-name kns=streambp) filter='*CudaKernels.*device*'
  [ -z "$rehearsal" ] || sanitizer=() filter='*CudaKernels.Gate*host_forward*'
  check "${sanitizer[@]}" "$bin/cuda_test" --gtest_filter="$filter" --gtest_output="xml:$out/$1.xml" >"$out/$1.txt" 2>&1
  check "$python" "$project/scripts/gpu/gpu_checks.py" tests "$out/$1.xml"
  tail -n 1 "$out/$1.txt"
}

memcheck() { sanitize memcheck; }
racecheck() { sanitize racecheck; }

# Where a library has no kernel for a shape that the headline figures need, this part fails, and the call ends.
microbench() {
  check "$bin/streambp-microbench" --benchmark_filter=cuda --benchmark_out="$out/microbench.json" --benchmark_out_format=json \
    >"$out/microbench.txt"
  [ -n "$rehearsal" ] || check "$python" "$project/scripts/gpu/gpu_checks.py" microbench "$out/microbench.json"
}

eight_b=(--model qwen3-8b --dtype bfloat16)

# The figures that the project stands for: StreamBP against checkpointing, and how near to the chip's speed. At 32,768
# tokens a full head's logits don't fit a card of 80 GiB: checkpointing has a streamed one there too.
speed() {
  sweep speed "${eight_b[@]}" --method checkpoint,streambp --seq-len 8192 --chunk 2048,4096,8192 --repeats 3
  sweep speed-streamed-head "${eight_b[@]}" --method checkpoint --head streamed --seq-len 32768 --repeats 2
  sweep speed-auto "${eight_b[@]}" --method auto --budget 130GiB --seq-len 32768 --repeats 2
  sweep speed-kept "${eight_b[@]}" --method streambp --keep attention --seq-len 32768 --chunk 8192,16384,32768 --repeats 2
  sweep speed-kept "${eight_b[@]}" --method streambp --keep attention,keys-values,attention-half --seq-len 32768 --chunk 8192 --repeats 2
  sweep speed "${eight_b[@]}" --method checkpoint,streambp --seq-len 32768 --chunk 8192,16384,32768 --repeats 2
}

# Sets `capped`: one pass a cell, and on a card of more than 80 GiB, which stands for the paper's then, as much and no
# more.
cap_memory() {
  capped=(--repeats 1)
  local mebibytes=0
  if [ -n "$rehearsal" ]; then
    mebibytes=143771
  elif [ "$device" = cuda ]; then
    mebibytes=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -n 1)
  fi
  [ "$mebibytes" -le 81920 ] || capped+=(--memory-cap 80GiB)
}

# Lengths are multiples of the chunk. A long pass has no warm-up of its own: the first length is short and has chunks
# of every shape that the others have; what it makes of plans and choices they find.
long_chunk=(--chunk 8192)
long_first=49152

lengths() {
  cap_memory
  sweep lengths "${eight_b[@]}" "${capped[@]}" --warmup 0 --method streambp "${long_chunk[@]}" --seq-len "$long_first,147456,163840"
  sweep lengths "${eight_b[@]}" "${capped[@]}" --method checkpoint --seq-len 16384,24576
}

# A full warm-up pins the host's memory, which later passes find.
offload() {
  cap_memory
  sweep offload "${eight_b[@]}" "${capped[@]}" --method streambp --offload host "${long_chunk[@]}" --seq-len 147456
}

offload300k() {
  cap_memory
  sweep offload300k "${eight_b[@]}" "${capped[@]}" --warmup 0 --method streambp --offload host "${long_chunk[@]}" \
    --seq-len "$long_first,303104"
}

# 500,000 tokens in one pass on the whole card: 32 chunks of 15,625; the first length is three. Every sixth input and
# attention's outputs of 14 layers stay, those of 22 go to the host: 131 GB on the device and 92 there, by dry runs.
whole_card=(--method streambp --every 6 --keep attention --offload host:22 --chunk 15625)

long() {
  sweep long "${eight_b[@]}" "${whole_card[@]}" --repeats 1 --warmup 0 --seq-len 46875,500000
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
  local status=0
  mkdir -p "$out/table8"
  "$bin/streambp-bench" linear --device "$device" --json >"$out/table8/results.new" || status=$?
  [ "$status" -eq 0 ] || [ "$status" -eq 3 ] || return "$status"
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
