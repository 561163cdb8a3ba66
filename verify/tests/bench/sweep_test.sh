#!/usr/bin/env bash
# streambp-bench sweep: objectives, methods, adapters, models next to the trained one, dtypes and devices.
# sweep_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/cli_testing.sh"

objectives=(--objective sft,dpo,simpo,orpo,kto,grpo,ppo --seq-len 17 --batch 4 --chunk 5)
sweep "every objective" 0 objectives "${objectives[@]}"
check "one loss for all methods" 'len(records) == 21 and all(
  len({round(r["loss"], 4) for r in records if r["objective"] == o}) == 1 for o in {r["objective"] for r in records})' \
  objectives/results.jsonl
sweep "every method" 0 methods --seq-len 33 --method standard,checkpoint,streambp,tiled,logits-only,chunk-major --chunk 7,9
check "one loss for all, chunks where there are some" 'len(records) == 9 and len({round(r["loss"], 9) for r in records}) == 1 and all(
  (r["chunk"] in (7, 9)) == (r["method"] in ("streambp", "tiled", "chunk-major")) for r in records)' methods/results.jsonl
for unread in '--chunk: --method standard --chunk 7' '--reference: --reference qwen3-tiny' '--teacher: --teacher qwen3-tiny' \
  '--freeze: --freeze .'; do
  sweep "a flag that nothing looks at" 0 "unread${unread%%:*}" --seq-len 9 --device meta ${unread#*: }
  grep -qF -- "streambp-bench: ${unread%%: *}: " stderr || fail "stderr does not say ${unread%%: *}"
done
sweep "flags that some cell looks at" 0 read --seq-len 9 --device meta --method standard,streambp --chunk 7 --objective sft,dpo --reference qwen3-tiny
[ ! -s stderr ] || fail "stderr is not empty"
sweep "forward order" 0 forward --seq-len 33 --method streambp --chunk 7 --order forward
check "the same loss, a key of its own" 'records[0]["settings"]["order"] == "forward" and records[0]["key"] not in {
  json.loads(line)["key"] for line in open("methods/results.jsonl")}' forward/results.jsonl
sweep "adapters" 0 adapters "${objectives[@]}" --lora-rank 2
check "adapters alone have gradients" 'len(records) == 21 and all(
  r["resident_bytes"] < base["resident_bytes"] for r, base in zip(records, map(json.loads, open("objectives/results.jsonl"))))' \
  adapters/results.jsonl
sweep "micro-batches" 0 micro --objective sft,dpo,grpo,ppo "${objectives[@]:2}" --micro-batches 2
check "micro-batches have the loss of the whole" 'all(abs(r["loss"] - [json.loads(line) for line in open("objectives/results.jsonl")
  if json.loads(line)["objective"] == r["objective"]][0]["loss"]) < 1e-4 for r in records)' micro/results.jsonl
sweep "teacher and reference" 0 teacher --objective distill,dpo --teacher qwen3-tiny --reference qwen3-tiny --seq-len 17 --batch 2
sweep "released reference" 0 released --objective dpo --reference qwen3-tiny --release-reference --seq-len 17,23 --batch 2
check "a released reference says the same and takes no memory" '(len(records) == 6 and all(r["status"] == "ok" for r in records)
  and records[0]["resident_bytes"] < [json.loads(line) for line in open("teacher/results.jsonl")][-1]["resident_bytes"]
  and abs(records[0]["loss"] - [json.loads(line) for line in open("teacher/results.jsonl")][-1]["loss"]) < 1e-4)' released/results.jsonl
sweep "reference on meta" 0 meta-reference --objective dpo --reference qwen3-tiny --device meta --seq-len 17 --batch 2
check "teacher and reference ran" 'len(records) == 6 and all(r["status"] == "ok" for r in records)' teacher/results.jsonl

sweep "records on stdout" 0 json --seq-len 33 --chunk 7 --json
cmp -s stdout json/results.jsonl || fail "stdout differs from results.jsonl"
# The meta device that stands for a GPU: its kernels' workspace, its allocator's blocks.
dtype=bfloat16
sweep "the meta device for a GPU" 0 meta-cuda --seq-len 300 --chunk 128 --device meta:cuda --method streambp --offload host
check "blocks are whole" 'all(r["peak_beyond_resident_bytes"] % 512 == 0 and r["peak_beyond_resident_bytes"] > 0 for r in records)' meta-cuda/results.jsonl
check "the device is named" 'all(r["device"] == "meta:cuda" and r["kind"] == "predicted" for r in records)' meta-cuda/results.jsonl
check "rows from the host are counted" 'all(r["host_peak_bytes"] > 0 for r in records)' meta-cuda/results.jsonl
sweep "equal bits on a GPU, predicted" 0 meta-deterministic --seq-len 300 --chunk 128 --device meta:cuda --method streambp --deterministic
check "it is a setting" 'all(r["settings"]["deterministic"] for r in records)' meta-deterministic/results.jsonl
dtype=float64
sweep "the meta device" 0 meta --seq-len 33 --chunk 7 --device meta
check "predictions" 'all(r["kind"] == "predicted" and r["seconds"] == [] and r["loss"] is None and r["peak_bytes"] > 0
  for r in records)' meta/results.jsonl
dtype=float16 sweep "float16 on a GPU, predicted" 0 float16 --seq-len 300 --chunk 128 --device meta:cuda
check "as much as in bfloat16" 'len(records) == 3 and all(r["dtype"] == "float16" and r["status"] == "ok" for r in records)' float16/results.jsonl
dtype=bfloat16 sweep "half precision" 0 half --seq-len 33 --chunk 7 --grad-dtype float32
check "sums in float32" 'all(r["settings"]["gradient_dtype"] == "float32" for r in records)' half/results.jsonl
dtype=bfloat16 sweep "lm_head in float32" 0 head --seq-len 33 --chunk 7 --grad-dtype float32 --head-dtype float32
check "a setting, of two bytes more for each of its weights" 'all(r["settings"]["head_dtype"] == "float32" and
  r["resident_bytes"] - of_half["resident_bytes"] == 2 * 101 * 32 for r, of_half in zip(records, map(json.loads, open("half/results.jsonl"))))' head/results.jsonl
sweep "nothing to score" 0 unscored --seq-len 1 --batch 3
grep -q 'warning: .* no token has a label' stderr || fail "no warning"
check "loss 0" 'all(r["loss"] == 0 for r in records)' unscored/results.jsonl

finish
