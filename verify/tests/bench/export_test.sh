#!/usr/bin/env bash
# streambp-bench export: a preset as a folder is the preset.
# export_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/cli_testing.sh"

run 'exporting a preset' 0 export --model gemma3-tiny --dtype float32 --seed 5 --out exported
run 'exporting over a folder' 2 export --model gemma3-tiny --out exported
grep -q 'holds a config.json already' stderr || fail 'stderr does not say which file is there already'
mkdir one
jobs=()
for run in 1 2 3 4; do
  "$program" export --model qwen3-tiny --dtype float32 --seed "$run" --out one >"one.$run" 2>&1 &
  jobs+=($!)
done
name='exports into one folder'
written=0
for job in "${jobs[@]}"; do
  wait "$job" && written=$((written + 1))
done
[ "$written" -eq 1 ] || fail "$written wrote to the folder, expected one"
cat one.? >stdout
run 'what one wrote' 0 sweep --model one --seq-len 9 --method streambp --threads 1 --out of-one
for run in 1 2 3 4; do
  "$program" export --model qwen3-tiny --dtype float32 --seed "$run" --out "alone-$run" >stdout 2>stderr
  cmp -s "alone-$run/model.safetensors" one/model.safetensors && grep -q '^one: ' "one.$run" && same=$run
done
[ -n "${same:-}" ] || fail 'the weights are not those of the export that said so'
run 'exporting what is no preset' 2 export --model nonesuch --out nowhere
both=(--dtype float32 --seed 5 --seq-len 33 --method streambp --threads 1 --out both)
run 'a preset' 0 sweep --model gemma3-tiny "${both[@]}"
run 'its folder' 0 sweep --model exported --resume "${both[@]}"
check 'the folder gives another loss' 'records[0]["loss"] == records[1]["loss"] and records[0]["parameters"] == records[1]["parameters"]' both/results.jsonl

run 'exporting in 4 bits' 0 export --model qwen3-tiny --dtype bfloat16 --seed 5 --quantize nf4 --double-quant --out nf4
run 'exporting in 8 bits' 0 export --model phi3-tiny --dtype float32 --seed 5 --quantize int8 --out int8
run 'exporting a mixture in 8 bits' 0 export --model mixtral-tiny --dtype float32 --quantize int8 --out mixtral
run 'reading it' 0 sweep --model mixtral --dtype float32 --seq-len 9 --method streambp --lora-rank 2 --threads 1 --out mixture
run 'exporting float64 in 4 bits' 2 export --model qwen3-tiny --dtype float64 --quantize nf4 --out nowhere
grep -q 'float32, bfloat16 and float16' stderr || fail 'stderr does not say which dtypes are quantised'
run 'exporting in 5 bits' 2 export --model qwen3-tiny --quantize nf5 --out nowhere
grep -q 'nf4, fp4 or int8' stderr || fail 'stderr does not name the formats'
lora=(--seed 5 --seq-len 33 --method streambp --lora-rank 4 --threads 1)
run 'a preset in 4 bits' 0 sweep --model qwen3-tiny --dtype bfloat16 --quantize nf4 --double-quant "${lora[@]}" --out four
run 'its folder' 0 sweep --model nf4 --dtype bfloat16 "${lora[@]}" --out four --resume
check 'a folder in 4 bits gives another loss' 'records[0]["loss"] == records[1]["loss"] and records[0]["peak_bytes"] == records[1]["peak_bytes"]' four/results.jsonl
run 'a preset in 8 bits' 0 sweep --model phi3-tiny --dtype float32 --quantize int8 "${lora[@]}" --out eight
run 'its folder' 0 sweep --model int8 --dtype float32 "${lora[@]}" --out eight --resume
check 'a folder in 8 bits gives another loss' 'records[0]["loss"] == records[1]["loss"]' eight/results.jsonl
run 'the preset in 16 bits' 0 sweep --model qwen3-tiny --dtype bfloat16 "${lora[@]}" --out four --resume
check '4 bits give the loss of 16' 'len(records) == 3 and records[0]["loss"] != records[2]["loss"]' four/results.jsonl
run 'training 4 bits' 2 sweep --model nf4 --dtype bfloat16 --seed 5 --seq-len 33 --method streambp --threads 1 --out full4
grep -q -e "which can't be trained" stderr || fail 'stderr does not say that 4 bits are not trained'
grep -q -e '--lora-rank' stderr || fail 'stderr does not say what to do'
run 'quantising what is quantised' 2 sweep --model nf4 --quantize nf4 --dtype bfloat16 "${lora[@]}" --out twice
grep -q 'expected no --quantize' stderr || fail 'stderr does not say that the folder is quantised'
run 'a quantised folder in the host'"'"'s memory' 2 sweep --model nf4 --dtype bfloat16 --weights host "${lora[@]}" --out hosted
grep -q -e '--weights' stderr || fail 'stderr does not name the flag'

finish
