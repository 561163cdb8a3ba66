#!/usr/bin/env bash
# The main job: checks the methods on the golden cases, then measures memory and time of three of them on a small Qwen3
# over lengths 512 to 4096, prints the table, predicts the paper's curve of Qwen3-8B and what a token takes by model and
# method, writes records and pictures.
#   scripts/run.sh [DIR]   DIR for records and pictures, default out/main; finished cells found there are not run again
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
no_option "$@"
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
out=${1:-out/main}  # relative to the project, so that records name no folder of the machine
bin=build/release$apart/bin

# What takes long comes after what is short. test.sh takes two chunk sizes a case, and results/cpu has longer lengths.
build_project release streambp-verify streambp-bench
cd "$project"
echo "== Golden cases: losses, log-probabilities and gradients of Hugging Face, in float64, in chunks of 7"
"$bin/streambp-verify" goldens verify/goldens --quick --chunk 7 --jobs "$(nproc)"

echo
echo "== Sweep: peak memory and time of back-propagation, Qwen3 with 4 layers of 512, vocabulary 32000, float32"
"$bin/streambp-bench" sweep --model qwen3-cpu --method standard,checkpoint,streambp \
  --seq-len 512,1024,2048,4096 --chunk auto --repeats 3 --out "$out" --resume
"$venv/bin/python" scripts/plot.py --records "$out/results.jsonl" --out "$out"

# Predictions take one core each: these wait in a file for their turn on the screen.
mkdir -p "$out/bytes-per-token"
"$bin/streambp-bench" bytes-per-token --model qwen3-0.6b,qwen3-8b,llama-3.1-8b,gemma-3-4b,gpt-oss-20b,qwen3.5-9b,granite-4.0-h-350m \
  --out "$out/bytes-per-token" >"$out/bytes-per-token/table.txt" &
echo
echo "== Paper scale: the peak of Qwen3-8B and its kin against length, predicted (no GPU needed), next to the paper's"
"$bin/streambp-bench" paper --table curves --out "$out/paper"
"$venv/bin/python" scripts/plot_paper.py --folder "$out/paper"

echo
echo "== Bytes a token by model and method, predicted: layer inputs (streambp) or keys and values (chunk-major)"
wait $!
cat "$out/bytes-per-token/table.txt"
"$venv/bin/python" scripts/plot_bytes.py --folder "$out/bytes-per-token"
