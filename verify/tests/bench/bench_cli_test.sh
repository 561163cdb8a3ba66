#!/usr/bin/env bash
# streambp-bench from the outside: what it refuses, what it writes, that a killed sweep resumes and running out of memory is a result.
# bench_cli_test.sh PROGRAM
set -uo pipefail

program=$(realpath "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
dtype=float64
failures=0

fail() {
  echo "FAILED: $name: $1"
  sed 's/^/    stdout: /' stdout | head -n 30
  sed 's/^/    stderr: /' stderr | head -n 5
  failures=$((failures + 1))
}

# run NAME CODE ARGUMENT...: the exit code has to be CODE.
run() {
  name=$1
  local code=$2
  shift 2
  "$program" "$@" >stdout 2>stderr
  local got=$?
  [ "$got" -eq "$code" ] || fail "exit $got, expected $code"
}

# A sweep small enough for a test, in the folder OUT.
sweep() {
  local what=$1 code=$2 out=$3
  shift 3
  run "$what" "$code" sweep --model qwen3-tiny --dtype "$dtype" --threads 1 --repeats 2 --out "$out" "$@"
}

# refuses TEXT ARGUMENT...: a sweep exits with 2, says one line on stderr with TEXT in it, and leaves no record behind.
refuses() {
  local text=$1
  shift
  run "refusing $*" 2 sweep "$@"
  [ "$(wc -l <stderr)" -eq 1 ] || fail "expected one line on stderr"
  grep -qF -- "$text" stderr || fail "stderr does not say '$text'"
  [ ! -s stdout ] || fail "expected nothing on stdout"
  [ ! -s out/sweep/results.jsonl ] || fail "expected no record"
}

# check WHAT EXPRESSION FILE: a Python expression over `records`, the lines of FILE, has to be true.
check() {
  python3 - "$2" "$3" <<'PYTHON' >check-output 2>&1 || fail "$1: $(tail -n 1 check-output)"
import json, sys
records = [json.loads(line) for line in open(sys.argv[2], encoding="utf-8")]
if not eval(sys.argv[1]):
    sys.exit(f"not so: {sys.argv[1]}; statuses: {[(r['method'], r['seq_len'], r['status']) for r in records]}")
PYTHON
}

refuses '--chunk' --chunk 0
refuses '--chunk' --chunk 7,-1
refuses '--chunk' --chunk 1e3
refuses '--seq-len' --seq-len 0
refuses '--seq-len' --seq-len -5
refuses '--seq-len' --seq-len 9,,10
refuses '--seq-len' --seq-len ''
refuses '--seq-len' --seq-len 99999999999999999999
refuses '--batch' --batch 0
refuses '--threads' --threads 0
refuses '--repeats' --repeats 0
refuses '--repeats' --repeats many
refuses '--head-chunk' --head-chunk 0
refuses 'auto, full or streamed' --head half
refuses 'reverse or forward' --order sideways
refuses '--order' --order forward --method checkpoint,tiled
refuses 'logits-only: its head is streamed' --method logits-only --head full
refuses 'standard, checkpoint, streambp' --method standard,magic
refuses 'sft' --objective nonesuch
refuses 'float64, float32, bfloat16' --dtype int8
refuses 'same or float32' --grad-dtype float16
refuses 'float64' --dtype float64 --grad-dtype float32
refuses 'cpu, cuda, meta or meta:cuda' --device tpu
refuses '--deterministic' --deterministic
refuses '--deterministic' --deterministic --device meta
refuses '--memory-limit' --memory-cap 5XB
refuses 'qwen3-cpu' --model no-such-model
refuses 'config.json' --model .
refuses '--memory-limit' --memory-limit 5XB
refuses 'positive' --divisor 0
refuses 'positive' --divisor nan
refuses 'no parameter' --freeze embed_tokens,nonesuch
refuses 'nonesuch' --tokens nonesuch.safetensors
refuses '--tokens' --tokens nonesuch.safetensors --batch 2
refuses '--frobnicate' --frobnicate
refuses 'expected some of' --set nonesuch=1
refuses 'name=value' --set beta
refuses 'beta' --objective dpo --set beta=-1
refuses 'loss_type' --objective grpo --set loss_type=nonesuch
refuses '--teacher' --objective distill
refuses 'vocabulary' --objective distill --teacher qwen3-tiny
refuses 'nonesuch' --objective dpo --reference nonesuch
refuses 'rank' --lora-rank 0
refuses 'no such linear map' --lora-rank 4 --lora-targets q_proj,nonesuch
refuses 'alpha' --lora-rank 4 --lora-alpha -1
refuses '--lora-rank' --lora-targets q_proj
refuses 'adapter_config.json' --adapter nonesuch
refuses '--micro-batches' --micro-batches 0
refuses 'exactly one cell' --dump-gradients gradients.safetensors
refuses "can't be written" --method standard --seq-len 9 --dump-gradients nonesuch/gradients.safetensors
: >file
refuses "can't be created" --out file/below
refuses "can't be" --out file

run "no subcommand" 2
run "unknown subcommand" 2 swepe
run "version" 0 --version
grep -Eq '^streambp-bench [0-9.]+ \(([0-9a-f]{12}|unknown)(, modified)?\)$' stdout || fail "unexpected version"
run "help" 0 sweep --help
grep -q -- '--memory-limit' stdout || fail "help does not name --memory-limit"

objectives=(--objective sft,dpo,simpo,orpo,kto,grpo,ppo --seq-len 17 --batch 4 --chunk 5)
sweep "every objective" 0 objectives "${objectives[@]}"
check "one loss for all methods" 'len(records) == 21 and all(
  len({round(r["loss"], 4) for r in records if r["objective"] == o}) == 1 for o in {r["objective"] for r in records})' \
  objectives/results.jsonl
sweep "every method" 0 methods --seq-len 33 --method standard,checkpoint,streambp,tiled,logits-only,chunk-major --chunk 7,9
check "one loss for all, chunks where there are some" 'len(records) == 9 and len({round(r["loss"], 9) for r in records}) == 1 and all(
  (r["chunk"] in (7, 9)) == (r["method"] in ("streambp", "tiled", "chunk-major")) for r in records)' methods/results.jsonl
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
grep -q "^records: $results\$" stdout || fail "the table does not end with the place of the records"
[ "$(wc -l <stdout)" -eq 19 ] || fail "expected a table of 16 rows"
[ ! -s stderr ] || fail "expected nothing on stderr away from a terminal"

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

sed -i '5s/.*/{"schema": 1/' "$results"
sweep "a line within is damaged" 2 whole "${first[@]}" --resume
grep -q "results.jsonl line 5" stderr || fail "stderr does not name file and line"

# At length 33 standard takes 895 KB, and at 65 nothing but chunks fits.
limited=(--seq-len 9,33,65 --chunk 7 --memory-limit 850KB)
sweep "a memory limit" 3 limited "${limited[@]}"
results=limited/results.jsonl
check "9 records" 'len(records) == 9' "$results"
check "statuses" '{(r["method"], r["seq_len"]): r["status"] for r in records} == {("standard", 9): "ok", ("checkpoint", 9): "ok",
  ("streambp", 9): "ok", ("standard", 33): "oom", ("checkpoint", 33): "ok", ("streambp", 33): "ok", ("standard", 65): "oom",
  ("checkpoint", 65): "oom", ("streambp", 65): "ok"}' "$results"
check "not tried" '[r["error"] for r in records if r["method"] == "standard"][2].startswith("not run: length 33")' "$results"
check "tried" '"out of memory on cpu" in [r["error"] for r in records if r["method"] == "checkpoint"][2]' "$results"
cp "$results" before
sweep "out of memory is a result" 3 limited "${limited[@]}" --resume
cmp -s "$results" before || fail "cells that ran out of memory were run again"
sweep "the model does not fit" 3 unfit --seq-len 9 --memory-limit 100KB
check "3 records" '[r["status"] for r in records] == ["oom"] * 3' unfit/results.jsonl

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
dtype=bfloat16 sweep "half precision" 0 half --seq-len 33 --chunk 7 --grad-dtype float32
check "sums in float32" 'all(r["settings"]["gradient_dtype"] == "float32" for r in records)' half/results.jsonl
sweep "nothing to score" 0 unscored --seq-len 1 --batch 3
grep -q 'warning: .* no token has a label' stderr || fail "no warning"
check "loss 0" 'all(r["loss"] == 0 for r in records)' unscored/results.jsonl

sweep "gradients" 0 dumped --method streambp --seq-len 33 --chunk 7 --freeze embed_tokens --dump-gradients gradients
python3 - gradients <<'PYTHON' || fail "the gradients are not what they should be"
import json, struct, sys
data = open(sys.argv[1], "rb").read()
header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
names = header.keys() - {"__metadata__"}
assert "lm_head.weight" in names and "model.layers.1.self_attn.q_norm.weight" in names, names
assert "model.embed_tokens.weight" not in names, "frozen, but dumped"
assert header["lm_head.weight"]["dtype"] == "F64" and header["lm_head.weight"]["shape"] == [101, 32], header["lm_head.weight"]
assert any(data[8 + struct.unpack("<Q", data[:8])[0] :]), "all zero"
PYTHON

# The file just written is none with tokens; one with tokens sets length and batch.
refuses 'input_ids' --tokens gradients
python3 - tokens <<'PYTHON'
import json, struct, sys
ids, mask = list(range(1, 15)), [1] * 7 + [0] * 2 + [1] * 5
shape = {"dtype": "I64", "shape": [2, 7]}
header = json.dumps({"input_ids": {**shape, "data_offsets": [0, 112]}, "attention_mask": {**shape, "data_offsets": [112, 224]}}).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(header)) + header + struct.pack("<28q", *ids, *mask))
PYTHON
sweep "tokens from a file" 0 packed --tokens tokens --chunk 5
check "length and batch" 'all((r["seq_len"], r["batch"], r["tokens"]) == (7, 2, 12) for r in records)' packed/results.jsonl
# Documents of packed rows: a sequence each. Labels of padded rows that padding would predict.
python3 - <<'PYTHON'
import json, struct
def write(path, **tensors):
    header, data = {}, b""
    for name, rows in tensors.items():
        numbers = [number for row in rows for number in row]
        end = len(data) + 8 * len(numbers)
        header[name] = {"dtype": "I64", "shape": [len(rows), len(rows[0])], "data_offsets": [len(data), end]}
        data += struct.pack(f"<{len(numbers)}q", *numbers)
    text = json.dumps(header).encode()
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + data)
ids = [[5, 6, 7, 8, 9, 10, 11]]
write("documents", input_ids=ids, labels=ids, position_ids=[[0, 1, 2, 0, 1, 0, 1]])
write("left", input_ids=ids, labels=[[-100, -100, 7, 8, 9, 10, 11]], attention_mask=[[0, 0, 1, 1, 1, 1, 1]])
write("unknown", input_ids=ids, tool_mask=ids)
PYTHON
sweep "packed rows" 0 documents-out --tokens documents --method streambp --chunk 2
check "a sequence a document" 'all((r["seq_len"], r["batch"], r["tokens"]) == (3, 3, 7) for r in records)' documents-out/results.jsonl
grep -qF "documents: labels of documents' first tokens: 2" stderr || fail "nothing said of labels across documents"
refuses "'tool_mask' is none of sft's: expected input_ids" --tokens unknown
refuses '--first-labels ignore' --tokens left
refuses "--first-labels 'drop'" --tokens left --first-labels drop
sweep "first labels ignored" 0 left-out --tokens left --method streambp --first-labels ignore
grep -qF 'left: first labels ignored because padding would predict them: 1' stderr || fail "nothing said of the label"

# The longest sequence for a budget: what is refused, what it is made of, and that it is the longest.
longest() {
  local what=$1 code=$2
  shift 2
  run "$what" "$code" max-length --model qwen3-tiny --dtype float64 "$@"
}
rejects() {
  local text=$1
  shift
  longest "rejecting $*" 2 "$@"
  [ "$(wc -l <stderr)" -eq 1 ] || fail "expected one line on stderr"
  grep -qF -- "$text" stderr || fail "stderr does not say '$text'"
  [ ! -s stdout ] || fail "expected nothing on stdout"
}
rejects '--budget'
rejects '--budget' --budget 5XB
rejects 'expected meta' --budget 1MB --device cpu
longest "for a GPU" 0 --budget 80MB --device meta:cuda --method streambp --json
check "a GPU's workspace counts" 'all(r["breakdown"]["kernel workspace"] >= 2**26 for r in records)' stdout
rejects '--suggest' --budget 1MB --seq-len 9
rejects 'none, sgd or adamw' --budget 1MB --optimizer adam
rejects '--optimizer-bits' --budget 1MB --optimizer adamw --optimizer-bits 4
rejects '--master-weights' --budget 1MB --master-weights
rejects 'gradients 219 KB, weights 219 KB' --budget 400KB
rejects 'optimizer 219 KB' --budget 600KB --optimizer adamw
longest "no length fits" 3 --budget 440KB
grep -q 'at 16 tokens: ' stdout || fail "the table does not say what the shortest needs"
longest "every method and objective" 0 --budget 2MB --objective sft,dpo,grpo --batch 1,2 --chunk 7,auto --json
check "24 objects, sums" 'len(records) == 24 and all(sum(r["breakdown"].values()) == r["peak_bytes"] <= r["budget_bytes"]
  and r["seq_len"] > 0 and 0 < r["resolution_tokens"] <= 1 for r in records)' stdout
python3 - stdout "$program" <<'PYTHON' || fail "not the longest"
import json, subprocess, sys
for number, line in enumerate(open(sys.argv[1], encoding="utf-8")):
    r = json.loads(line)
    chunk = str(r["settings"]["chunk"] or "auto")
    lengths = f"{r['seq_len']},{r['seq_len'] + r['resolution_tokens']}"
    command = [sys.argv[2], "sweep", "--model", "qwen3-tiny", "--dtype", "float64", "--device", "meta", "--threads", "1", "--json", "--seq-len", lengths,
               "--objective", r["objective"], "--method", r["method"], "--batch", str(r["batch"]), "--chunk", chunk, "--out", f"fit{number}"]
    fits, beyond = map(json.loads, subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines())
    assert fits["peak_bytes"] == r["peak_bytes"] and beyond["peak_bytes"] > r["budget_bytes"], (r, fits, beyond)
PYTHON
longest "optimizer states" 0 --budget 4MB --optimizer adamw --optimizer-bits 8 --method streambp --json
check "two bytes a parameter" 'records[0]["breakdown"]["optimizer"] == 2 * records[0]["parameters"]' stdout
longest "a wanted length" 0 --budget 2MB --suggest --seq-len 200 --json
check "the cheapest that fits comes last" '(records[-1]["suggested"] and not any(r["suggested"] for r in records[:-1])
  and [r["relative_cost"] for r in records] == sorted(r["relative_cost"] for r in records))' stdout
longest "a length out of reach" 3 --budget 1MB --suggest --seq-len 100000
longest "the greatest length" 0 --budget 2MB --suggest --json
check "one is suggested" 'sum(r["suggested"] for r in records) == 1' stdout

# A method, a chunk and settings chosen for the budget.
refuses '--method auto' --budget 1GB
refuses '--method auto' --host-budget 1GB --method standard
refuses 'expected --budget' --method auto --device meta --seq-len 33
refuses 'one memory' --method auto --budget 1GB --host-budget 1GB
refuses '--budget' --method auto --budget 5XB
auto=(--method auto --seq-len 33,400 --device meta)
sweep 'the cheapest that fits' 0 auto "${auto[@]}" --budget 2MB
check 'a lean way for the longer one' '([r["choice"]["asked"] for r in records] == ["auto"] * 2 and records[0]["method"] == "standard"
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
# A model of four layers: where the last one's gradient lies in its input's place, two layers leave nothing to offload.
offloaded=(--model qwen3-cpu --method auto --seq-len 4000 --every 1 --device meta --budget 410MB)
run 'too little without a host' 3 sweep "${offloaded[@]}" --out offloaded
run 'offloaded' 0 sweep "${offloaded[@]}" --out offloaded --host-budget 1GB --resume
check 'on the host' 'records[-1]["settings"]["offload"] == "host" and records[-1]["host_peak_bytes"] > 0' offloaded/results.jsonl
sweep 'what is fixed stays' 0 fixed --method auto --seq-len 400 --device meta --budget 2MB --chunk 48 --keep-attention --head streamed --every 1
check 'chunk, head and settings' 'all(w["chunk"] in (None, 48) and w["settings"]["head"] == "streamed"
  and w["settings"]["every"] in (None, 1) and w["settings"]["keep_attention"] in (None, True) for r in records for w in r["choice"]["considered"])' fixed/results.jsonl
sweep 'beside a named method, for real' 0 beside --method standard,auto --seq-len 33 --objective sft,dpo --memory-limit 2MB
check 'both ran, one loss each' '(len(records) == 4 and sum("choice" in r for r in records) == 2 and len({(r["objective"], round(r["loss"], 9)) for r in records}) == 2
  and all(r["choice"]["budget_bytes"] == 2000000 for r in records if "choice" in r))' beside/results.jsonl
sweep 'with what the machine has' 0 machine --method auto --seq-len 33
check 'there is enough' 'records[0]["choice"]["budget_bytes"] > 1e8 and records[0]["status"] == "ok"' machine/results.jsonl
longest 'the furthest of all' 0 --budget 2MB --method standard,auto --json
check 'further than standard' '(len(records) == 2 and "choice" not in records[0] and records[1]["seq_len"] >
  2 * records[0]["seq_len"] and len(records[1]["choice"]["considered"]) > 3)' stdout
cp stdout furthest
longest 'the same by --suggest' 0 --budget 2MB --suggest --json
python3 - <<'PYTHON' || fail 'auto and --suggest differ'
import json
best = [r for r in map(json.loads, open("stdout")) if r["suggested"]][0]
auto = [json.loads(line) for line in open("furthest")][1]
assert all(best[m] == auto[m] for m in ("method", "settings", "seq_len", "peak_bytes")), (best, auto)
PYTHON

# Memory over time: three files that tell the same peak as the record.
sweep 'recording a dry run' 0 recorded --device meta --method streambp --chunk 24 --seq-len 100 --trace trace.json --snapshot snapshot.pickle --timeline timeline.csv
python3 - <<'PYTHON' >check-output 2>&1 || fail "$(tail -n 1 check-output)"
import csv, json, pickle
peak = json.loads(open("recorded/results.jsonl").read())["peak_bytes"]
live = highest = 0
for event in pickle.load(open("snapshot.pickle", "rb"))["device_traces"][0]:
    live += event["size"] * {"alloc": 1, "free_completed": -1}.get(event["action"], 0)
    highest = max(highest, live)
assert highest == peak, f"the snapshot's peak is {highest}, the record's {peak}"
counters = [event["args"] for event in json.load(open("trace.json"))["traceEvents"] if event["ph"] == "C" and event["name"] == "memory by scope"]
assert max(sum(counter.values()) for counter in counters) == peak, "the trace has another peak"
rows = list(csv.reader(line for line in open("timeline.csv") if not line.startswith("#")))[1:]
assert max(sum(map(int, row[3:])) for row in rows) == peak, "the timeline has another peak"
assert any("layer 0 backward/chunk 3" == row[2] for row in rows), "no chunk of a layer is named"
PYTHON
sweep 'recording what runs out of memory' 3 refused --device meta --method standard --seq-len 512 --memory-limit 2MB --timeline refused.csv --trace refused.json
grep -q '"name":"out of memory"' refused.json || fail 'the trace does not show the refusal'
refuses '--trace' --trace no/such/folder/trace.json --seq-len 8 --method streambp
refuses '--timeline' --timeline timeline.csv --seq-len 8,16 --method streambp
refuses '--snapshot' --snapshot snapshot.pickle --seq-len 8 --method streambp --resume

# The paper's linear example for real, and its tables beside predictions.
run 'the linear example on the CPU' 0 linear --rows 400 --size 65 --chunks 3,7,400 --device cpu --dtype float64
run 'the linear example in too many chunks' 2 linear --rows 400 --size 65 --chunks 401 --device cpu
run 'the linear example at paper scale' 0 paper --table 8 --out paper --quiet
grep -q 'Table 8' paper/paper.md || fail 'paper.md has no table 8'
[ -s paper/cells.csv ] || fail 'no cells of the paper'
run 'a table that the paper does not have' 2 paper --table 12 --out paper --quiet

# The slope of the peak by model and way, small models first.
bytes=(bytes-per-token --model gemma3-tiny,qwen3-tiny --dtype float64 --quiet)
run 'bytes a token' 0 "${bytes[@]}" --seq-len 4096,8192 --out bytes
check 'eight ways of two models' '(len(records) == 16 and all(r["kind"] == "predicted" and r["status"] == "ok" for r in records)
  and len({r["key"] for r in records}) == 16 and [r["model"] for r in records] == ["qwen3-tiny"] * 8 + ["gemma3-tiny"] * 8)' bytes/results.jsonl
check 'slopes through both peaks' 'all(abs(r["bytes_per_token"] * (r["seq_lens"][i] - 0) + r["intercept_bytes"] - r["peaks"][i]) < 1
  and r["peaks"][1] == r["peak_bytes"] for r in records for i in (0, 1))' bytes/results.jsonl
check 'the host has what the device has not' 'all((r["host_bytes_per_token"] > 0) == (r["settings"]["offload"] == "host") for r in records)' bytes/results.jsonl
# Of two layers one input is kept, in whose place the gradient comes.
check 'layer inputs, with keys and values of a layer' '0 <= [r for r in records if r["way"] == "streambp"][0]["bytes_per_token"] - (8 * 32 * (2 - 1) + 4 * 8 * 32) <= 200' bytes/results.jsonl
grep -q '^| qwen3-tiny | ' bytes/bytes-per-token.md || fail 'no row of the model in the report'
run 'one way, as records' 0 "${bytes[@]}" --seq-len 4096,8192 --method streambp --every 2 --chunk 64 --json --out bytes
cmp -s stdout bytes/results.jsonl || fail 'stdout differs from results.jsonl'
check 'that way' 'len(records) == 2 and all(r["way"] == "streambp, chunk 64, every 2" and r["measured_winner"] == "-" for r in records)' stdout
run 'three lengths' 2 "${bytes[@]}" --seq-len 64,128,256 --out bytes
grep -q 'two lengths' stderr || fail 'stderr does not say what was expected'
run 'no such model' 2 bytes-per-token --model qwen3-tiny,nonesuch --out bytes
run 'no folder' 2 "${bytes[@]}"

# A preset as a folder is the preset.
run 'exporting a preset' 0 export --model gemma3-tiny --dtype float32 --seed 5 --out exported
run 'exporting over a folder' 2 export --model gemma3-tiny --out exported
grep -q 'holds a config.json already' stderr || fail 'stderr does not say what is in the way'
run 'exporting what is no preset' 2 export --model nonesuch --out nowhere
both=(--dtype float32 --seed 5 --seq-len 33 --method streambp --threads 1 --out both)
run 'a preset' 0 sweep --model gemma3-tiny "${both[@]}"
run 'its folder' 0 sweep --model exported --resume "${both[@]}"
check 'the folder gives another loss' 'records[0]["loss"] == records[1]["loss"] and records[0]["parameters"] == records[1]["parameters"]' both/results.jsonl

# Sizes beyond the limits that --help states.
refuses '--seq-len 67108865' --method streambp --seq-len 67108865
refuses '67108864 tokens' --method streambp --seq-len 1000000 --batch 100

[ "$failures" -eq 0 ] || { echo "$failures checks failed"; exit 1; }
echo "all checks passed"
