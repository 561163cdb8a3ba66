#!/usr/bin/env bash
# streambp-bench: what is kept of the layers (--keep) and where (--offload host:LAYERS).
# keep_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/cli_testing.sh"

refuses "--keep ''" --method streambp --keep ''
refuses 'expected none, or some of attention, queries, keys-values, attention-half, gate-up' --method streambp --keep inputs
refuses '--keep' --method streambp --keep attention:0
refuses '9 layers, the model has 4' --method streambp --keep keys-values,gate-up:9
refuses 'every layer of the model is a mixture' --model qwen3-moe-cpu --method streambp --keep gate-up
refuses 'a setting of streambp' --method checkpoint --keep attention
refuses '--offload' --method streambp --offload disk
refuses '--offload' --method streambp --offload host:
refuses 'the model has 4 layers' --method streambp --keep attention --offload host:5

kept=(--seq-len 33 --method streambp --chunk 7)
sweep 'nothing kept' 0 plain "${kept[@]}"
sweep 'attention, in two words' 0 flag "${kept[@]}" --keep-attention
sweep 'attention' 0 attention "${kept[@]}" --keep attention
sweep 'a list' 0 list "${kept[@]}" --keep attention,gate-up:1,keys-values
cat plain/results.jsonl flag/results.jsonl attention/results.jsonl list/results.jsonl >all.jsonl
check 'one loss, and records say what was kept' '(len({r["loss"] for r in records}) == 1
  and [r["settings"]["keep_attention"] for r in records] == [False, True, True, True]
  and [r["settings"].get("keep") for r in records] == [None, None, None, "keys-values,gate-up:1"])' all.jsonl
check 'keys of older records stay what they are' 'records[1]["key"] == records[2]["key"] != records[3]["key"]' all.jsonl

# A limit of the device decides how many layers go to the host.
offload=(sweep --model qwen3-cpu --device meta --repeats 1 --out offload --method streambp --keep attention --offload host --memory-limit 520MB)
run 'as many layers as must go' 0 "${offload[@]}" --seq-len 2048,7168,8192,12288
layers='[int((r["settings"]["offload"] + ":99").split(":")[1]) for r in records]'  # 99: everything
check 'more for a longer sequence, none where all fits' "(lambda m: m[0] == 0 and m == sorted(m) and 0 < m[2] < 99 and m[3] == 99)($layers)" offload/results.jsonl
check 'within the limit' 'all(r["peak_bytes"] <= 520e6 for r in records) and records[0]["host_peak_bytes"] == 0' offload/results.jsonl
run 'known again by what was asked' 0 "${offload[@]}" --seq-len 2048,7168,8192,12288 --resume
check 'nothing was run twice' 'len(records) == 4' offload/results.jsonl

# Two budgets reach further than one.
both=(max-length --device meta --model qwen3-cpu --dtype float32 --method streambp --keep attention --budget 600MB --json)
run 'on the device alone' 0 "${both[@]}"
cp stdout alone.jsonl
run 'on both' 0 "${both[@]}" --offload host --host-budget 200MB
cat alone.jsonl stdout >both.jsonl
check 'both budgets hold' 'all(r["peak_bytes"] <= 600e6 and r["host_peak_bytes"] <= 200e6 for r in records)' both.jsonl
check 'and reach further' 'records[1]["seq_len"] > 1.2 * records[0]["seq_len"]' both.jsonl

finish
