#!/usr/bin/env bash
# streambp-bench max-length: what it refuses, what a peak is made of, and that the length is the longest.
# max_length_test.sh PROGRAM
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
rejects 'expected meta' --budget 1MB --device cpu
longest "for a GPU" 0 --budget 80MB --device meta:cuda --method streambp --json
check "a GPU's workspace counts" 'all(r["breakdown"]["kernel workspace"] >= 2**26 for r in records)' stdout
rejects '--suggest' --budget 1MB --seq-len 9
rejects 'none, sgd or adamw' --budget 1MB --optimizer adam
rejects '--optimizer-bits' --budget 1MB --optimizer adamw --optimizer-bits 4
rejects '--master-weights' --budget 1MB --master-weights
rejects 'gradients 219 KB, weights 219 KB' --budget 400KB
rejects 'optimizer 219 KB' --budget 600KB --optimizer adamw
rejects 'nothing that was tried fits, the leanest needs ' --budget 20KB --method standard

# Each remedy that the last command named, after these arguments of max-length, reaches the length that it says.
remedies_hold() {
  python3 - stderr "$program" "$@" <<'PYTHON' || fail "a remedy is not what it says"
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
remedies_hold --model qwen3-tiny --budget 430KB
longest "no length fits" 3 --budget 440KB
grep -q 'no length fits 440KB; what would fit: ' stderr || fail "stderr does not say what would"
remedies_hold --model qwen3-tiny --budget 440KB
half=(--model qwen3-cpu --dtype bfloat16 --budget 150MB)
run "weights fit, gradients do not" 2 max-length "${half[@]}"
grep -q 'what would fit: --method streambp --fuse-optimizer sgd, .*; --method streambp --lora-rank 16, ' stderr || fail "what would fit"
remedies_hold "${half[@]}"
run "no room for a second model" 2 max-length "${half[@]}" --objective dpo --reference qwen3-cpu
grep -q 'what would fit: --method streambp --lora-rank 16 without --reference, ' stderr || fail "adapters need no reference"
run "two changes" 2 max-length --model qwen3-cpu --budget 150MB
grep -q 'what would fit: --method streambp --fuse-optimizer sgd --dtype bfloat16, ' stderr || fail "two changes"
remedies_hold --model qwen3-cpu --budget 150MB
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

finish
