#!/usr/bin/env bash
# streambp-bench export: a preset as a folder is the preset.
# export_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/cli_testing.sh"

run 'exporting a preset' 0 export --model gemma3-tiny --dtype float32 --seed 5 --out exported
run 'exporting over a folder' 2 export --model gemma3-tiny --out exported
grep -q 'holds a config.json already' stderr || fail 'stderr does not say which file is there already'
run 'exporting what is no preset' 2 export --model nonesuch --out nowhere
both=(--dtype float32 --seed 5 --seq-len 33 --method streambp --threads 1 --out both)
run 'a preset' 0 sweep --model gemma3-tiny "${both[@]}"
run 'its folder' 0 sweep --model exported --resume "${both[@]}"
check 'the folder gives another loss' 'records[0]["loss"] == records[1]["loss"] and records[0]["parameters"] == records[1]["parameters"]' both/results.jsonl

finish
