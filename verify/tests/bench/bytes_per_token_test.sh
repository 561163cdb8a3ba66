#!/usr/bin/env bash
# streambp-bench bytes-per-token: the slope of the peak by model and configuration.
# bytes_per_token_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/cli_testing.sh"

bytes=(bytes-per-token --model gemma3-tiny,qwen3-tiny --dtype float64 --quiet)
run 'bytes a token' 0 "${bytes[@]}" --seq-len 4096,8192 --out bytes
check 'nine configurations of two models' '(len(records) == 18 and all(r["kind"] == "predicted" and r["status"] == "ok" for r in records)
  and len({r["key"] for r in records}) == 18 and [r["model"] for r in records] == ["qwen3-tiny"] * 9 + ["gemma3-tiny"] * 9)' bytes/results.jsonl
check 'slopes through both peaks' 'all(abs(r["bytes_per_token"] * (r["seq_lens"][i] - 0) + r["intercept_bytes"] - r["peaks"][i]) < 1
  and r["peaks"][1] == r["peak_bytes"] for r in records for i in (0, 1))' bytes/results.jsonl
check 'the host has what the device has not' 'all((r["host_bytes_per_token"] > 0) == (r["settings"]["offload"] == "host") for r in records)' bytes/results.jsonl
# Of two layers one input is kept, and the gradient overwrites it.
check 'layer inputs, with keys and values of a layer' '0 <= [r for r in records if r["way"] == "streambp"][0]["bytes_per_token"] - (8 * 32 * (2 - 1) + 4 * 8 * 32) <= 200' bytes/results.jsonl
grep -q '^| qwen3-tiny | ' bytes/bytes-per-token.md || fail 'no row of the model in the report'
run 'one configuration, as records' 0 "${bytes[@]}" --seq-len 4096,8192 --method streambp --every 2 --chunk 64 --json --out bytes
cmp -s stdout bytes/results.jsonl || fail 'stdout differs from results.jsonl'
check 'that configuration' 'len(records) == 2 and all(r["way"] == "streambp, chunk 64, every 2" and r["measured_winner"] == "-" for r in records)' stdout
# Each op of theirs has a kernel for the meta device, on which predictions run.
kinds=cohere2-tiny,granite-hybrid-tiny,nemotron-h-tiny,bamba-tiny,lfm2-tiny,falcon-h1-tiny,lfm2-moe-tiny,granite-moe-tiny,ernie4-5-moe-tiny,deepseek-v32-tiny,glm-moe-dsa-tiny,kimi-linear-tiny,hy-v4-tiny,mistral-large4-tiny,minimax-m3-tiny,glm5-next-tiny,qwen4-exp-tiny,lfm3-tiny,muse-spark-tiny
run 'models with layers of other kinds' 0 bytes-per-token --model "$kinds" --dtype float64 --quiet --seq-len 64,128 --method streambp --out kinds
check 'one of each' 'len(records) == 19 and all(r["status"] == "ok" for r in records)' kinds/results.jsonl
run 'three lengths' 2 "${bytes[@]}" --seq-len 64,128,256 --out bytes
grep -q 'two lengths' stderr || fail 'stderr does not say what was expected'
run 'no such model' 2 bytes-per-token --model qwen3-tiny,nonesuch --out bytes
run 'no folder' 2 "${bytes[@]}"

finish
