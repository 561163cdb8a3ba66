#!/usr/bin/env bash
# streambp-bench max-length: what it refuses, what a peak is made of, and that the length is the longest.
# max_length_test.sh PROGRAM
goldens=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../../goldens")
source "$(dirname "${BASH_SOURCE[0]}")/cli_testing.sh"

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
rejects '--budget 24: of what? Expected a unit, as in 24GB' --budget 24
rejects 'expected a size such as 80GB, or a card: rtx-3090, rtx-4090, l40s, a100-40, a100-80, h100-80, h200, b200' --budget rtx-9090
rejects 'expected meta' --budget 1MB --device cpu
name='cards by name'
"$program" max-length --help >help
/usr/bin/python3 - help "$(dirname "${BASH_SOURCE[0]}")/../../../bench/longest.md" <<'PYTHON' || fail "--help and bench/longest.md differ"
import re, sys
printed = re.findall(r"^  (\S+) +(\S.*?) +(\d+\.\d\d) GiB, +(\d+\.\d\d) GiB$", open(sys.argv[1]).read(), re.MULTILINE)
page = re.findall(r"^\| `(\S+)` \| (.*?) \| (\S+) GiB \| (\S+) GiB \|$", open(sys.argv[2]).read(), re.MULTILINE)
assert len(printed) == 8 and printed == page, (printed, page)
PYTHON
run "an 8B model on an H100" 0 max-length --model qwen3-8b --method streambp --budget h100-80 --json
check "what torch counts, less the usual margin" '(records[0]["budget_bytes"] == 7911 * 2**30 // 100
  and records[0]["margin_bytes"] == 10**9 + records[0]["budget_bytes"] // 50
  and 0 <= records[0]["budget_bytes"] - records[0]["margin_bytes"] - records[0]["peak_bytes"] < 10**7)' stdout
for card in h100-80 a100-80; do
  run "a pass on a card" 0 sweep --model qwen3-tiny --dtype bfloat16 --device meta:cuda --method auto --budget "$card" --seq-len 32 --chunk 32 --out "$card"
done
cat h100-80/results.jsonl a100-80/results.jsonl >cards
check "cuBLAS's workspaces are the card's" \
  'records[0]["breakdown_at_peak"]["kernel workspace"] - records[1]["breakdown_at_peak"]["kernel workspace"] == 2 * (2**25 - 8519680)' cards
longest "for a GPU" 0 --budget 80MB --device meta:cuda --margin 0 --method streambp --json
check "a GPU's workspace counts" 'all(r["breakdown"]["kernel workspace"] >= 2**26 for r in records)' stdout
rejects '--suggest' --budget 1MB --seq-len 9
rejects 'none, sgd, adamw' --budget 1MB --optimizer adam
rejects '--optimizer-bits' --budget 1MB --optimizer adamw --optimizer-bits 4
rejects '--master-weights' --budget 1MB --master-weights
rejects 'gradients 219 KB, weights 219 KB' --budget 400KB
rejects 'optimizer 219 KB' --budget 600KB --optimizer adamw
rejects 'nothing that was tried fits, the leanest needs ' --budget 20KB --method standard

# Each remedy that the last command named, after these arguments of max-length, reaches the length that it says.
remedies_hold() {
  /usr/bin/python3 - stderr "$program" "$@" <<'PYTHON' || fail "a remedy is not what it says"
import json, re, subprocess, sys
text = open(sys.argv[1], encoding="utf-8").read()
remedies = re.findall(r"(--method [^;]*), (\d+) tokens", text.split("what would fit: ")[1])
assert remedies and all(int(tokens) > 0 for _, tokens in remedies), text
for flags, tokens in remedies:
    command = [sys.argv[2], "max-length", *sys.argv[3:], *flags.split(), "--json"]
    record = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert record["seq_len"] == int(tokens), (command, record["seq_len"], tokens)
PYTHON
}
rejects 'what would fit: --method streambp --dtype bfloat16, ' --budget 430KB
remedies_hold --device meta --model qwen3-tiny --budget 430KB
longest "no length fits" 3 --budget 440KB
grep -q 'no length fits 440KB; what would fit: ' stderr || fail "stderr does not say what would"
remedies_hold --device meta --model qwen3-tiny --budget 440KB
half=(--device meta --model qwen3-cpu --dtype bfloat16 --budget 150MB)
run "weights fit, gradients do not" 2 max-length "${half[@]}"
grep -q 'what would fit: --method streambp --fuse-optimizer sgd, .*; --method streambp --lora-rank 16, ' stderr || fail "what would fit"
remedies_hold "${half[@]}"
run "no room for a second model" 2 max-length "${half[@]}" --objective dpo --reference qwen3-cpu
grep -q 'what would fit: --method streambp --lora-rank 16 without --reference, ' stderr || fail "adapters need no reference"
run "two changes" 2 max-length --device meta --model qwen3-cpu --budget 150MB
grep -q 'what would fit: --method streambp --fuse-optimizer sgd --dtype bfloat16, ' stderr || fail "two changes"
remedies_hold --device meta --model qwen3-cpu --budget 150MB
run "weights do not fit" 2 max-length --model qwen3-8b --lora-rank 16 --budget 8GB
grep -q 'what would fit: --method streambp --weights host, ' stderr || fail "weights in the host's memory"
remedies_hold --model qwen3-8b --lora-rank 16 --budget 8GB
longest "every method and objective" 0 --budget 2MB --objective sft,dpo,grpo --batch 1,2 --chunk 7,auto --json
check "24 objects, sums" 'len(records) == 24 and all(sum(r["breakdown"].values()) == r["peak_bytes"] <= r["budget_bytes"]
  and r["seq_len"] > 0 and 0 < r["resolution_tokens"] <= 1 for r in records)' stdout
cp stdout longest
/usr/bin/python3 - longest <<'PYTHON' >commands
import json, sys
for number, line in enumerate(open(sys.argv[1], encoding="utf-8")):
    r = json.loads(line)
    print("--seq-len", f"{r['seq_len']},{r['seq_len'] + r['resolution_tokens']}", "--objective", r["objective"], "--method", r["method"],
          "--batch", r["batch"], "--chunk", r["settings"]["chunk"] or "auto", "--reference", r["settings"]["reference"] or "none", "--out", f"fit{number}")
PYTHON
: >fits
while read -r -a cell <&3; do
  run "${cell[*]}" 0 sweep --model qwen3-tiny --dtype float64 --device meta --threads 1 --json "${cell[@]}"
  cat stdout >>fits
done 3<commands
/usr/bin/python3 - longest fits <<'PYTHON' || fail "not the longest"
import json, sys
longest, fits = ([json.loads(line) for line in open(path, encoding="utf-8")] for path in sys.argv[1:])
assert len(fits) == 2 * len(longest) == 48, len(fits)
for r, fit, beyond in zip(longest, fits[::2], fits[1::2]):
    assert fit["peak_bytes"] == r["peak_bytes"] and beyond["peak_bytes"] > r["budget_bytes"], (r, fit, beyond)
PYTHON
longest "optimizer states" 0 --budget 4MB --optimizer adamw --optimizer-bits 8 --method streambp --json
check "two bytes a parameter" 'records[0]["breakdown"]["optimizer"] == 2 * records[0]["parameters"]' stdout
longest "a wanted length" 0 --budget 2MB --suggest --seq-len 200 --json
check "the cheapest that fits comes last" '(records[-1]["suggested"] and not any(r["suggested"] for r in records[:-1])
  and [r["relative_cost"] for r in records] == sorted(r["relative_cost"] for r in records))' stdout
longest "a length out of reach" 3 --budget 1MB --suggest --seq-len 100000
longest "the greatest length" 0 --budget 2MB --suggest --json
check "one is suggested" 'sum(r["suggested"] for r in records) == 1' stdout
cp stdout all
longest "the greatest length, as a table" 0 --budget 2MB --suggest
/usr/bin/python3 - "$program" <<'PYTHON' || fail "the answer"
import json, re, subprocess, sys
records = [json.loads(line) for line in open("all", encoding="utf-8")]
best = next(r for r in records if r["suggested"])
text = open("stdout", encoding="utf-8").read()
lines = text.splitlines()
flags, tokens = re.fullmatch(r"sft, batch 1: (--method .*) reaches (\d+) tokens at [0-9.]+ x the time of standard", lines[0]).groups()
command = [sys.argv[1], "max-length", "--model", "qwen3-tiny", "--dtype", "float64", "--device", "meta", "--budget", "2MB", "--json", *flags.split()]
typed = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
# --suggest searches to a hundredth, a named method to a thousandth.
assert int(tokens) == best["seq_len"] and 0 <= typed["seq_len"] - best["seq_len"] <= 0.01 * best["seq_len"], (lines[0], typed["seq_len"], best["seq_len"])
begin = next(i for i, line in enumerate(lines) if line.startswith("---")) + 1
rows = lines[begin:next(i for i, line in enumerate(lines) if " configurations; --json" in line)]
assert all(len(line) <= 150 and re.search(r"  --method \S", line) for line in rows) and 1 < len(rows) < len(records), text
assert [line.endswith("<- the answer") for line in rows] == [False] * (len(rows) - 1) + [True], text
listed = [r for r in records if any(re.search(rf"(^| ){r['seq_len']} .* {r['relative_cost']:.3f}(  |$)", row) for row in rows)]
assert len(listed) == len(rows), (len(listed), rows)
assert all(b["seq_len"] >= 1.05 * a["seq_len"] or b["suggested"] for a, b in zip(listed, listed[1:])), rows
for r in records:  # nothing cheaper is about as far, and what is further is not worth it
    gain, price = r["seq_len"] / best["seq_len"], r["relative_cost"] / best["relative_cost"]
    assert gain < 0.995 if price < 1 else gain < max(1.01, price) or r is best, r
PYTHON
run "sizes and dtypes as others write them" 0 max-length --model qwen3-tiny --device meta --dtype fp64 --budget 2mb --method streambp --json
check "they are taken" 'records[0]["budget_bytes"] == 2000000 and records[0]["dtype"] == "float64"' stdout

# What packs no experts, or asks for weights that can't lie in the host's memory, is told what would fit.
run "a mixture's experts in 16 bits" 2 max-length --model qwen3-moe-cpu --dtype bfloat16 --device meta:cuda --margin 0 --budget 210MB \
  --lora-rank 16 --quantize nf4 --method streambp
grep -q -e 'what would fit: .*--weights host without --quantize' stderr && grep -q -e '--quantize nf4-experts, [0-9]* tokens' stderr || fail "what would fit"
longest "no length fits, suggested" 3 --budget 441KB --suggest
grep -q 'at 16 tokens\|no length fits' stdout stderr || fail "what comes nearest"

# Without a word of the device the answer is a GPU's: its kernels and chunks, and less than the card, whose driver and libraries take their part.
small=(max-length --model qwen3-0.6b --budget 24GB --method streambp --json)
run "for a GPU by default" 0 "${small[@]}"
cp stdout default
check "a margin is left" '(records[0]["margin_bytes"] == 1.48e9 and records[0]["budget_bytes"] == 24e9
  and 23.9e9 - 1.49e9 < records[0]["peak_bytes"] <= 24e9 - 1.48e9 and records[0]["breakdown"]["kernel workspace"] >= 2**26)' stdout
run "as asked for" 0 "${small[@]}" --device meta:cuda --margin 1.48GB
cmp -s stdout default || fail "the default is not meta:cuda with that margin"
run "to the last byte" 0 "${small[@]}" --margin 0
check "further" 'records[0]["margin_bytes"] == 0 and records[0]["seq_len"] > json.loads(open("default").read())["seq_len"]' stdout
run "for a CPU" 0 "${small[@]}" --device meta
check "a limit on the CPU is that of tensors" 'records[0]["margin_bytes"] == 0 and 23.9e9 < records[0]["peak_bytes"] <= 24e9' stdout
run "as a table" 0 "${small[@]:0:7}"
grep -q '^qwen3-0.6b in bfloat16 on a GPU, no optimizer' stdout || fail "device and optimizer are not said"
grep -q '^budget: 24.0 GB (24000000000 bytes), 1.48 GB of them left to the driver, libraries and fragmentation (--margin)$' stdout || fail "the margin is not said"
run "with AdamW" 0 "${small[@]:0:7}" --optimizer adamw
grep -q '^qwen3-0.6b in bfloat16 on a GPU, adamw in 32 bits' stdout || fail "the optimizer is not said"
run "a margin of all" 2 max-length --model qwen3-0.6b --budget 24GB --margin 24GB
grep -q 'budget 24.0 GB: a margin of 24.0 GB leaves nothing' stderr || fail "why"

# A folder with config.json alone is predicted as it is with its weights.
mkdir config
cp "$goldens/models/qwen3/config.json" config
whole=(--device meta --dtype model --budget 4MiB --method standard,streambp --objective sft,dpo --json)
run "with weights" 0 max-length --model "$goldens/models/qwen3" "${whole[@]}"
cp stdout whole
run "config.json alone" 0 max-length --model config "${whole[@]}"
check "the same" 'len(records) == 4 and all(r["seq_len"] == w["seq_len"] > 0 and r["breakdown"] == w["breakdown"]
  for r, w in zip(records, map(json.loads, open("whole"))))' stdout
run "nothing to run" 2 sweep --model config --seq-len 8 --out ran
grep -q 'no weights, expected model.safetensors' stderr || fail "what is missing"
mkdir quantized vast
cp "$goldens/quantized/nf4/config.json" quantized
run "quantised weights" 2 max-length --device meta --model quantized --budget 4MiB
grep -q 'no weights next to config.json.*with --quantize nf4' stderr || fail "what to do"
# Published in MXFP4 or FP8: config.json is enough for a prediction, of what is trained, bfloat16; weights are read where there are values.
mkdir mxfp4
/usr/bin/python3 -c 'import json, sys; config = json.load(sys.stdin); config.pop("dtype", None); config.pop("torch_dtype", None)
print(json.dumps({**config, "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}))' \
  <"$goldens/models/gpt-oss/config.json" >mxfp4/config.json
run "MXFP4's config.json" 0 max-length --device meta --model mxfp4 --budget 4MiB --method streambp --json
check "it is bfloat16" 'records[0]["dtype"] == "bfloat16" and records[0]["seq_len"] > 0' stdout
cp "$goldens/models/gpt-oss/model.safetensors" mxfp4
run "MXFP4 with weights, predicted" 0 max-length --device meta --model mxfp4 --budget 4MiB --method streambp --json
for packed in mxfp4 fp8; do
  run "weights in $packed" 0 sweep --model "$goldens/quantized/$packed" --seq-len 8 --method standard,streambp --repeats 1 --out "ran-$packed"
  grep -q "note: .*its ${packed^^} weights are dequantised to bfloat16" stderr || fail "no note"
done
/usr/bin/python3 -c 'import json, sys; print(json.dumps({**json.load(sys.stdin), "num_hidden_layers": 4096, "hidden_size": 262144, "head_dim": 8192,
"intermediate_size": 4194304, "num_attention_heads": 4096, "num_key_value_heads": 4096, "layer_types": None}))' <config/config.json >vast/config.json
run "sizes that nobody has" 2 max-length --model vast --budget 80GiB
[ "$(wc -l <stderr)" -eq 1 ] || fail "expected one line on stderr"
grep -q -- '--budget 80GiB: below what vast needs before any pass.*no settings make up for more than 1024 times' stderr || fail "it is not said"

# What is counted: a reference next to the policy where the objective compares with one, none with adapters or where it is left out.
longest "objectives with and without a reference" 0 --budget 4MB --method streambp --objective sft,dpo,kto,grpo --json
cp stdout default
check "it is the model itself" '([r["settings"]["reference"] for r in records] == [None, None, "qwen3-tiny", "qwen3-tiny"]
  and [r["objective"] for r in records] == ["sft", "grpo", "dpo", "kto"]
  and all(r["breakdown"]["weights"] == 8 * r["parameters"] * (1 if r["settings"]["reference"] is None else 2) for r in records))' stdout
check "it is counted" 'all(any("reference model qwen3-tiny" in text for text in r["counted"]) == (r["settings"]["reference"] is not None) for r in records)' stdout
longest "the same, asked for" 0 --budget 4MB --method streambp --objective dpo --reference qwen3-tiny --json
check "the same length" 'records[0]["seq_len"] == json.loads(open("default").readlines()[2])["seq_len"]' stdout
longest "none" 0 --budget 4MB --method streambp --objective dpo --reference none --json
check "further without" '(records[0]["seq_len"] > 1.05 * json.loads(open("default").readlines()[2])["seq_len"]
  and any("a reference model" in text for text in records[0]["not_counted"]))' stdout
longest "adapters" 0 --budget 4MB --method streambp --objective dpo --lora-rank 2 --json
check "their base is one" 'records[0]["settings"]["reference"] is None and any("base without its adapters" in text for text in records[0]["not_counted"])' stdout
longest "grpo with a weight on it" 0 --budget 4MB --method streambp --objective grpo --set beta=0.1 --json
check "has one" 'records[0]["settings"]["reference"] == "qwen3-tiny"' stdout
longest "under the table" 0 --budget 4MB --objective sft,dpo
grep -q '^seq_len: tokens of a sequence (sft); of a pair, half for each of its two sequences (dpo)$' stdout || fail "what a length is"
grep -q '^counted (dpo): .*the weights of the reference model qwen3-tiny (--reference none leaves it out)' stdout || fail "what is counted"
grep -q '^not counted (sft): optimizer states (--optimizer adamw adds 219 KB), ' stdout || fail "what is not counted"
longest "with the states that it named" 0 --budget 4MB --optimizer adamw --method streambp --json
check "as much as it named" '218500 <= records[0]["breakdown"]["optimizer"] <= 219500' stdout

# The base in 4 bits: its bytes, and those of a layer while it is run.
qlora=(max-length --model qwen3-0.6b --dtype bfloat16 --budget 4GB --method streambp --lora-rank 8 --json)
run "a base in 16 bits" 0 "${qlora[@]}"
cp stdout wide
run "a base in 4 bits" 0 "${qlora[@]}" --quantize nf4 --double-quant
check "it goes further" 'records[0]["seq_len"] > 1.2 * json.loads(open("wide").read())["seq_len"]' stdout
check "it is a setting" 'records[0]["settings"]["quantize"] == "nf4" and records[0]["settings"]["double_quant"] and "quantize" not in json.loads(open("wide").read())["settings"]' stdout
# 155.6 million numbers outside of the layers in 16 bits, 440.5 million in 4.127 bits and at most 1/28 of them in 16, adapters.
check "its bytes" '0.98 * (2 * 155.6e6 + 4.127 / 8 * 440.5e6) < records[0]["breakdown"]["weights"] < 1.1 * (2 * 155.6e6 + (4.127 / 8 + 2 / 28) * 440.5e6)' stdout
check "it is said" '"in nf4, double quantised, and one" in records[0]["counted"][0]' stdout
cp stdout packed
run "standard back-propagation keeps the bits too" 0 "${qlora[@]/streambp/standard}" --quantize nf4 --double-quant
check "as bitsandbytes dequantises a matrix again in the backward pass" \
  'records[0]["method"] == "standard" and records[0]["breakdown"]["weights"] <= json.loads(open("packed").read())["breakdown"]["weights"]' stdout
for experts in ":not" "-experts:too"; do
  run "a mixture in 4 bits" 0 max-length --device meta --model qwen3-moe-tiny --dtype bfloat16 --budget 4MB --method streambp --lora-rank 2 --quantize "nf4${experts%:*}"
  grep -q "(the layers' matrices in nf4, experts ${experts#*:}, and one layer's dequantised)" stdout || fail "whether its experts are"
done
longest "training a base in 4 bits" 2 --budget 4MB --quantize nf4
grep -q -e '--lora-rank' stderr || fail "stderr does not say what to do"
longest "4 bits in the host's memory" 2 --budget 4MB --quantize nf4 --lora-rank 2 --weights host
grep -q -e '--weights host' stderr || fail "stderr does not name the flag"
longest "maxima of nothing" 2 --budget 4MB --double-quant
grep -q 'nf4 and fp4' stderr || fail "stderr does not say of what"

# Somebody else's loop: gradients appear as layers finish, and what its optimizer's step takes counts.
loop=(max-length --model qwen3-0.6b --budget 24GB --method checkpoint --optimizer adamw --optimizer-bits 16 --json)
run "the engine's own" 0 "${loop[@]}" --baseline hugging-face
cp stdout own
run "a trainer's" 0 "${loop[@]}" --trainer hf
check "gradients appear" 'records[0]["seq_len"] > json.loads(open("own").read())["seq_len"] and records[0]["settings"]["trainer"] == "hf"' stdout
check "with Hugging Face's layers" 'records[0]["settings"]["baseline"] == "hugging-face" and any("loop hf" in text for text in records[0]["counted"])' stdout
step() { "$program" sweep --device meta:cuda --model qwen3-0.6b --dtype bfloat16 --method checkpoint --seq-len 64 --json --quiet --trainer "$1" --optimizer "$2" \
  --optimizer-bits 16 --out "step-$1-$2" "${@:3}" 2>stderr; }
step hf adamw-foreach >stdout
# Weights, gradients and two states of 596 million numbers in 16 bits, and the square roots of one state.
check "its step" '9.99 * 596.05e6 < records[0]["peak_bytes"] < 10.01 * 596.05e6 + 2**27 and records[0]["breakdown_at_peak"]["optimizer'"'"'s step"] > 1.19e9' stdout
step hf paged-adamw >stdout
check "paged states are not there" '"optimizer" not in records[0]["breakdown_at_peak"] and records[0]["settings"]["optimizer"]["name"] == "paged-adamw"' stdout
qlora=(--lora-rank 8 --quantize nf4 --double-quant)
step trl adamw "${qlora[@]}" >stdout
cp stdout trl
step peft-kbit adamw "${qlora[@]}" >stdout
# Embedding and head are one: 155.6 million numbers in float32, autocast's copy of the head in 16 bits, and adapters of 4 bytes.
check "upcasts" '4 * 155.5e6 < records[0]["breakdown_at_peak"]["weights"] - json.loads(open("trl").read())["breakdown_at_peak"]["weights"] < 4.3 * 155.6e6' stdout
run "a loop on ranks" 2 ranks --model qwen3-tiny --device meta --ranks 2 --trainer hf --out on-ranks
grep -q -e '--trainer and adamw-foreach: of one process' stderr || fail "why"
run "a loop that is measured" 2 sweep --model qwen3-tiny --trainer hf --seq-len 16
grep -q -e '--trainer hf: .*expected --device meta' stderr || fail "why"

# What would take hours is refused before it begins.
refuses_slow() {
  local start=$SECONDS
  run "refusing $*" 2 max-length --model qwen3-8b --budget 80GiB "$@"
  [ "$(wc -l <stderr)" -eq 1 ] && grep -qF -- "$1 $2:" stderr || fail "expected one line that names $1"
  [ $((SECONDS - start)) -lt 60 ] || fail "took $((SECONDS - start)) s"
}
refuses_slow --chunk 1 --method streambp
refuses_slow --batch 1000000
finish
