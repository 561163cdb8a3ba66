# The parts of `scripts/gpu.sh visit`, which sources this after gpu_parts.sh: fifteen minutes on a GPU in two calls, what
# matters most first. Each is a part as those are; they read $project, $bin, $out, $device, $python and $rehearsal.

visit_parts=(visit_versions visit_profile visit_gemm visit_kernels visit_hugging_face visit_8k visit_32k visit_131k
  visit_147k visit_new_lengths visit_models visit_tests visit_deterministic visit_objectives visit_gemma)
expected+=([visit_versions]=20 [visit_profile]=60 [visit_gemm]=25 [visit_kernels]=25 [visit_hugging_face]=100
  [visit_8k]=15 [visit_32k]=65 [visit_131k]=65 [visit_147k]=90 [visit_new_lengths]=25 [visit_models]=50
  [visit_tests]=100 [visit_deterministic]=20 [visit_objectives]=30 [visit_gemma]=10)

# Of Python, which in a rehearsal computes something tiny on the CPU, where that Python has transformers.
measured_by() {  # SCRIPT ARGUMENT...
  local script=$1 tiny=()
  shift
  if [ -n "$rehearsal" ]; then
    tiny=(--tiny)
    if ! "$python" -c 'import transformers' 2>/dev/null; then
      check "$python" -c "import ast, sys; ast.parse(open(sys.argv[1]).read())" "$project/scripts/$script"
      return
    fi
  fi
  check "$python" "$project/scripts/$script" "$@" "${tiny[@]}"
}

visit_versions() {
  use_package
  "$bin/streambp-bench" --version
  measured_by gpu/gpu_visit.py versions --out "$out/visit-versions"
}
visit_profile() { use_package; measured_by gpu/gpu_visit.py profile --out "$out/visit-profile"; }
visit_gemm() { use_package; measured_by gpu/gpu_visit.py gemm --out "$out/visit-gemm"; }
visit_new_lengths() { use_package; measured_by gpu/gpu_visit.py lengths --out "$out/visit-new-lengths"; }

visit_kernels() {
  check "$bin/streambp-microbench" --benchmark_filter=cuda --benchmark_min_time=0.05 --benchmark_out="$out/visit-kernels.json" \
    --benchmark_out_format=json >"$out/visit-kernels.txt"
  [ -n "$rehearsal" ] || check "$python" "$project/scripts/gpu/gpu_checks.py" microbench "$out/visit-kernels.json"
}

# The strongest that others have, and ours with and without idle memory, in turns.
visit_hugging_face() {
  use_package
  measured_by compare_gpu.py --seq-len 8192 --repeats 3 --out "$out/visit-hugging-face" \
    --methods hf-checkpoint,hf-liger,hf-selective,python-patch,python,python-patch+idle,python+idle
}

visit_8k() { sweep visit-8k "${eight_b[@]}" --method checkpoint,standard,auto --budget "$(budget)" --seq-len 8192 --repeats 3; }

visit_32k() {
  sweep visit-32k "${eight_b[@]}" --method streambp --keep attention,queries,keys-values,attention-half --seq-len 32768 --chunk 8192,16384,32768 --repeats 2
  sweep visit-32k "${eight_b[@]}" --method streambp --seq-len 32768 --chunk 8192,16384 --repeats 2
}

visit_131k() { sweep visit-131k "${eight_b[@]}" --method streambp --keep attention "${long_chunk[@]}" --seq-len 131072 --repeats 1 --warmup 0; }
visit_147k() { sweep visit-147k "${eight_b[@]}" --method streambp --offload host "${long_chunk[@]}" --seq-len 147456 --repeats 1 --warmup 0; }

visit_models() {
  sweep visit-models --model gpt-oss-20b --dtype bfloat16 --lora-rank 16 --method streambp --seq-len 8192 --repeats 1
  sweep visit-models --model qwen3-30b-a3b --dtype bfloat16 --lora-rank 16 --method streambp --seq-len 8192 --repeats 1
  sweep visit-models "${eight_b[@]}" --quantize nf4 --double-quant --lora-rank 16 --method streambp --seq-len 8192 --repeats 1
}

# Small passes wait for launches rather than for the GPU: eight processes beside the package's.
visit_tests() {
  processes=8
  tests
  package
}

visit_deterministic() {
  sweep visit-deterministic --model qwen3-4b --dtype bfloat16 --deterministic --method checkpoint,streambp --seq-len 8192 --repeats 2
}
visit_objectives() {
  sweep visit-objectives --model qwen3-4b --dtype bfloat16 --objective dpo,grpo --method checkpoint,streambp --seq-len 8192 --repeats 1
}
visit_gemma() { sweep visit-gemma --model gemma-3-1b --dtype bfloat16 --method checkpoint,streambp --seq-len 8192 --repeats 2; }

# What --method auto has to fit: the meta device has no memory of its own.
budget() {
  if [ -n "$rehearsal" ]; then
    echo 75GiB
  else
    nvidia-smi --query-gpu=memory.free --format=csv,noheader,nounits | awk 'NR == 1 { printf "%dMiB", 0.95 * $1 }'
  fi
}
