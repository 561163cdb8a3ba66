#!/usr/bin/env bash
# streambp-bench sweep: what a record holds, that a killed sweep resumes, and running out of memory is a result.
# sweep_records_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/cli_testing.sh"

first=(--seq-len 9,33 --batch 1,2 --chunk auto,7)
sweep "first sweep" 0 whole "${first[@]}"
results=whole/results.jsonl
check "16 records" 'len(records) == 16 and all(r["status"] == "ok" and r["schema"] == 1 for r in records)' "$results"
check "distinct keys" 'len({r["key"] for r in records}) == 16' "$results"
check "all that is promised" 'all({"kind", "model", "family", "parameters", "objective", "method", "settings", "seq_len", "batch",
  "chunk", "dtype", "device", "peak_bytes", "resident_bytes", "breakdown_at_peak", "seconds", "seconds_median", "cpu_seconds",
  "tokens_per_second", "model_flops", "loss", "status", "error"} <= r.keys() for r in records)' "$results"
check "environment" 'all({"cpu", "gpu", "threads", "torch", "compiler", "commit", "date", "argv"} <= r["environment"].keys()
  for r in records)' "$results"
check "sums" 'all(sum(r["breakdown_at_peak"].values()) == r["peak_bytes"] and len(r["seconds"]) == 2 for r in records)' "$results"
check "speed" 'all(r["hardware_flops"] > r["model_flops"] > 0 and r["gemm_flops_per_second"] > 0 and abs(r["percent_of_gemm"] / 100 *
  r["gemm_flops_per_second"] * r["seconds_median"] / r["hardware_flops"] - 1) <= 1e-12 for r in records)' "$results"
check "one loss for a batch" 'all(abs(r["loss"] - s["loss"]) <= 1e-12 * s["loss"] for r in records for s in records
  if (r["seq_len"], r["batch"]) == (s["seq_len"], s["batch"]))' "$results"
check "chunks" 'all((r["chunk"] is None) == (r["method"] != "streambp") for r in records)' "$results"
check "turns" '[r["method"] for r in records[:4]] == ["standard", "checkpoint", "streambp", "streambp"]' "$results"
grep -q "^records: $results\$" stdout || fail "the table does not end with the path of the records"
[ "$(wc -l <stdout)" -eq 19 ] || fail "expected a table of 16 rows"
[ ! -s stderr ] || fail "expected nothing on stderr away from a terminal"

OMP_NUM_THREADS=1 run "threads of the environment" 0 sweep --model qwen3-tiny --seq-len 9 --method streambp --out threads
check "one thread, as OMP_NUM_THREADS says" 'all(r["environment"]["threads"] == 1 and r["settings"]["threads"] == 1
  for r in records)' threads/results.jsonl

cp "$results" before
sweep "same again without --resume" 2 whole "${first[@]}"
cmp -s "$results" before || fail "the records were touched"
grep -qF -- '--resume' stderr || fail "stderr does not mention --resume"
sweep "nothing to resume" 0 whole "${first[@]}" --resume
cmp -s "$results" before || fail "records were written although none was missing"
[ "$(wc -l <stdout)" -eq 19 ] || fail "expected a table of 16 rows"

sed -i '$d' "$results"
sweep "a record is missing" 0 whole "${first[@]}" --resume
check "16 records" 'len(records) == 16 and len({r["key"] for r in records}) == 16' "$results"
[ "$(head -n 15 "$results")" = "$(head -n 15 before)" ] || fail "earlier records changed"

truncate -s -100 "$results"
sweep "the last line is torn" 0 whole "${first[@]}" --resume
check "16 records" 'len(records) == 16 and len({r["key"] for r in records}) == 16' "$results"
grep -q 'warning: line 16' stderr || fail "no warning about the torn line"

sed -i '3s/"status":"ok"/"status":"error"/' "$results"
sweep "an error is tried again" 0 whole "${first[@]}" --resume
check "17 records" 'len(records) == 17 and records[-1]["status"] == "ok" and records[-1]["key"] == records[2]["key"]' "$results"

# For later, a limit between what checkpoint and standard take for 33 tokens: how much that is depends on the processor's vectors.
limit=$(/usr/bin/python3 - whole/results.jsonl <<'END'
import json, sys
peaks = {r["method"]: r["peak_bytes"] for r in map(json.loads, open(sys.argv[1])) if (r["seq_len"], r["batch"]) == (33, 1)}
print((peaks["checkpoint"] + peaks["standard"]) // 2)
END
)

sed -i '5s/.*/{"schema": 1/' "$results"
sweep "a line within is damaged" 2 whole "${first[@]}" --resume
grep -q "results.jsonl line 5" stderr || fail "stderr does not name file and line"

# At length 33 standard takes more, and at 65 nothing but chunks fits.
limited=(--seq-len 9,33,65 --chunk 7 --memory-limit "${limit}B")
sweep "a memory limit" 3 limited "${limited[@]}"
results=limited/results.jsonl
check "9 records" 'len(records) == 9' "$results"
check "statuses" '{(r["method"], r["seq_len"]): r["status"] for r in records} == {("standard", 9): "ok", ("checkpoint", 9): "ok",
  ("streambp", 9): "ok", ("standard", 33): "oom", ("checkpoint", 33): "ok", ("streambp", 33): "ok", ("standard", 65): "oom",
  ("checkpoint", 65): "oom", ("streambp", 65): "ok"}' "$results"
check "not tried" '[r["error"] for r in records if r["method"] == "standard"][2].startswith("not run: length 33")' "$results"
check "tried" '"out of memory on cpu" in [r["error"] for r in records if r["method"] == "checkpoint"][2]' "$results"
check "what was asked, in use and allowed" 'all((m := r["out_of_memory"])["limit_bytes"] == '"$limit"' and m["asked_bytes"] > 0 and m["alive_bytes"] > 0
  and m["needed_bytes"] == m["asked_bytes"] + m["alive_bytes"] > m["limit_bytes"] and "{asked_bytes} bytes for".format(**m) in r["error"]
  for r in records if r["status"] == "oom" and not r["error"].startswith("not run"))' "$results"
check "not tried: at least what the shorter one needed" '(lambda at: at[65] == {"asked_bytes": None, "alive_bytes": None, "limit_bytes": '"$limit"',
  "needed_bytes": at[33]["needed_bytes"]})({r["seq_len"]: r.get("out_of_memory") for r in records if r["method"] == "standard"})' "$results"
check "others have no such member" 'all(("out_of_memory" in r) == (r["status"] == "oom") for r in records)' "$results"
grep -Eq 'oom, needs at least [0-9.]+ [KM]B$' stdout || fail "the table does not say what was needed"
cp "$results" before
sweep "out of memory is a result" 3 limited "${limited[@]}" --resume
cmp -s "$results" before || fail "cells that ran out of memory were run again"
sweep "the model does not fit" 3 unfit --seq-len 9 --memory-limit 100KB
check "3 records" '[r["status"] for r in records] == ["oom"] * 3' unfit/results.jsonl
check "what its weights need at the least" 'all(r["out_of_memory"]["needed_bytes"] > 100000 == r["out_of_memory"]["limit_bytes"] for r in records)' unfit/results.jsonl
/usr/bin/python3 - <<'PYTHON'
import json
lines = [json.loads(line) for line in open("limited/results.jsonl")]
open("before", "w").writelines(json.dumps({k: v for k, v in line.items() if k != "out_of_memory"}) + "\n" for line in lines)
PYTHON
mkdir older && cp before older/results.jsonl
sweep "records from before it was recorded" 3 older "${limited[@]}" --resume
cmp -s before older/results.jsonl || fail "older records are not taken"

finish
