#!/usr/bin/env bash
# streambp-bench: a method, a chunk and settings chosen for a budget (--method auto, --suggest).
# auto_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/cli_testing.sh"

refuses '--method auto' --budget 1GB
refuses '--method auto' --host-budget 1GB --method standard
refuses 'expected --budget' --method auto --device meta --seq-len 33
refuses 'one memory' --method auto --budget 1GB --host-budget 1GB
refuses '--budget' --method auto --budget 5XB
auto=(--method auto --seq-len 33,400 --device meta)
sweep 'the cheapest that fits' 0 auto "${auto[@]}" --budget 2MB
check 'a lean configuration for the longer one' '([r["choice"]["asked"] for r in records] == ["auto"] * 2 and records[0]["method"] == "standard"
  and records[1]["method"] in ("streambp", "chunk-major") and records[1]["chunk"] >= 1)' auto/results.jsonl
check 'what was predicted is what ran, within the budget, and nothing cheaper fits' 'all(r["peak_bytes"] == r["choice"]["predicted_peak_bytes"]
  <= r["choice"]["budget_bytes"] == 2000000 and not any(w["fits"] for w in r["choice"]["considered"]
  if w["relative_cost"] < r["choice"]["relative_cost"]) and any(w["why_not"] is None for w in r["choice"]["considered"])
  for r in records)' auto/results.jsonl
grep -q '^length 400, batch 1, sft: auto: .*fit.* 2.00 MB (predicted .*); standard needs' stderr || fail 'no line says why'
grep -Eq '400 +1 +sft +[a-z-]+ auto ' stdout || fail 'the table does not say that it was chosen'
cp auto/results.jsonl before
sweep 'a choice is resumed' 0 auto "${auto[@]}" --budget 2MB --resume
cmp -s auto/results.jsonl before || fail 'a choice was run again'
grep -q '^length 400, batch 1, sft: auto: ' stderr || fail 'no line says why'
sweep 'another budget is another question' 3 auto "${auto[@]}" --budget 1MB --resume
check 'it was run' 'len(records) == 4 and len({r["key"] for r in records}) == 4' auto/results.jsonl
check 'nothing fits' '([r["status"] for r in records] == ["ok", "ok", "ok", "oom"] and "nothing fits 1.00 MB: the leanest of" in records[3]["error"]
  and "--host-budget" in records[3]["error"] and records[3]["choice"]["relative_cost"] is None)' auto/results.jsonl
check 'what the leanest needs' 'records[3]["out_of_memory"] == {"asked_bytes": None, "alive_bytes": None, "limit_bytes": 1000000,
  "needed_bytes": min(w["predicted_peak_bytes"] for w in records[3]["choice"]["considered"] if w["predicted_peak_bytes"])}' auto/results.jsonl
# A model of four layers: where the last one's gradient overwrites its input, two layers leave nothing to offload.
offloaded=(--model qwen3-cpu --method auto --seq-len 4000 --every 1 --device meta --budget 410MB)
run 'too little without a host' 3 sweep "${offloaded[@]}" --out offloaded
run 'offloaded' 0 sweep "${offloaded[@]}" --out offloaded --host-budget 1GB --resume
check 'on the host' 'records[-1]["settings"]["offload"] == "host" and records[-1]["host_peak_bytes"] > 0' offloaded/results.jsonl
sweep 'what is fixed stays' 0 fixed --method auto --seq-len 400 --device meta --budget 2MB --chunk 48 --keep-attention --head streamed --every 1
check 'chunk, head and settings' 'all(w["chunk"] in (None, 48) and w["settings"]["head"] == "streamed"
  and w["settings"]["every"] in (None, 1) and w["settings"]["keep_attention"] in (None, True) for r in records for w in r["choice"]["considered"])' fixed/results.jsonl
sweep 'with a named method, for real' 0 with-named --method standard,auto --seq-len 33 --objective sft,dpo --memory-limit 2MB
check 'both ran, one loss each' '(len(records) == 4 and sum("choice" in r for r in records) == 2 and len({(r["objective"], round(r["loss"], 9)) for r in records}) == 2
  and all(r["choice"]["budget_bytes"] == 2000000 for r in records if "choice" in r))' with-named/results.jsonl
sweep 'with what the machine has' 0 machine --method auto --seq-len 33
check 'there is enough' 'records[0]["choice"]["budget_bytes"] > 1e8 and records[0]["status"] == "ok"' machine/results.jsonl
longest 'the furthest of all' 0 --budget 2MB --method standard,auto --json
check 'further than standard' '(len(records) == 2 and "choice" not in records[0] and records[1]["seq_len"] >
  2 * records[0]["seq_len"] and len(records[1]["choice"]["considered"]) > 3)' stdout
cp stdout furthest
longest 'the same by --suggest' 0 --budget 2MB --suggest --json
/usr/bin/python3 - <<'PYTHON' || fail 'auto and --suggest differ'
import json
best = [r for r in map(json.loads, open("stdout")) if r["suggested"]][0]
auto = [json.loads(line) for line in open("furthest")][1]
assert all(best[m] == auto[m] for m in ("method", "settings", "seq_len", "peak_bytes")), (best, auto)
PYTHON

finish
