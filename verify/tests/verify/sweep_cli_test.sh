#!/usr/bin/env bash
# streambp-verify sweep, gradcheck, precision: bad usage and small runs.
# sweep_cli_test.sh PROGRAM GOLDENS
source "$(dirname "${BASH_SOURCE[0]}")/cli_testing.sh"

refuses 'unknown family' 'expected one of qwen3, qwen2, llama, llama-tied' sweep --family nonsense
refuses 'unknown batch' 'expected one of single' sweep --quick --batch nonsense
refuses 'unknown sweep method' 'expected one of standard, checkpoint, streambp' sweep --quick --method reference
refuses 'unknown objective' 'expected one of sft, dpo' sweep --objective nonsense
refuses 'one unknown objective of several' "'nonsense'" sweep --objective sft,nonsense
refuses 'options of several objectives' 'expected a single --objective' sweep --objective dpo,grpo --set beta=0.1
refuses 'unknown option' "no option 'nonsense'" sweep --objective dpo --set nonsense=1
refuses 'unknown choice' "loss_type is 'nonsense'" sweep --objective dpo --set loss_type=nonsense
refuses 'no name=value' "expected name=value" sweep --objective dpo --set beta
refuses 'beta below 0' 'beta is ' sweep --quick --family qwen3 --objective dpo --set beta=-0.1
refuses 'unknown tuning' 'expected one of full, lora' sweep --tuning nonsense
refuses 'length 3 for pairs' 'expected at least 4' sweep --seq-len 3 --objective dpo
refuses 'nothing left' 'nothing to check' sweep --objective dpo --batch single
refuses 'length 0' "--seq-len '0'" sweep --seq-len 0
refuses 'part 5 of 4' "--part '5/4'" sweep --part 5/4
refuses 'rows and a length' 'not with --seq-len' sweep --rows 3+2 --seq-len 5
refuses 'a row without a plus' 'expected PROMPT+COMPLETION' sweep --rows 3
refuses 'a row without a prompt' "--rows '0'" sweep --rows 0+3
refuses 'a row beyond the reference' 'expected at most 2048' sweep --rows 2000+49
refuses 'rows of a batch that has its own' 'nothing to check' sweep --rows 3+2 --batch three
refuses 'a setting without --alone' '--every: a setting of a run by itself' sweep --every 2
refuses 'micro-batches without --alone' 'expected --alone with it' sweep --micro-batches 2
refuses 'a setting of another method' 'takes no every' sweep --family qwen3 --method standard --alone --every 2
refuses 'no setting' "expected reverse or forward" sweep --method streambp --alone --order sideways
refuses 'changes of a config that are no object' 'expected a JSON object' sweep --model qwen3-tiny --config 3
refuses 'changes that contradict' 'a divisor of num_attention_heads' sweep --model qwen3-tiny --config '{"num_key_value_heads": 3}'
refuses 'changes of a folder' 'changes a preset' sweep --model "$goldens/models/qwen3" --config '{}'
refuses 'another dtype' 'expected one of float64' sweep --dtype float32

"$program" gradcheck --threads 0 >"$folder/out" 2>"$folder/err"
[ $? -eq 2 ] && grep -q -- '--threads 0' "$folder/err" || fail 'no threads'

run 'sweep' 0 sweep --quick --family qwen3 --batch three,unscored,packed --json
says '"verdict":"pass"'
cp "$folder/out" "$folder/whole"
for part in 1 2 3; do
  run "part $part" 0 sweep --quick --family qwen3 --batch three,unscored,packed --json --part "$part/3"
  [ "$(wc -l <"$folder/out")" -eq 1 ] || fail "part $part: expected one row of three"
  cat "$folder/out" >>"$folder/parts"
done
cmp -s <(sort "$folder/whole") <(sort "$folder/parts") || fail 'three parts are not the whole'
"$program" sweep --quick --family qwen3 --batch three,unscored,packed --json --jobs 3 >"$folder/together" || fail 'three jobs'
cmp -s <(sort "$folder/whole") <(sort "$folder/together") || fail 'three jobs find something else'
run 'sweep of one objective' 0 sweep --family qwen3 --seq-len 9 --objective kto --set beta=0.4 --tuning lora --batch none
says '0 failed'
run 'sweep of documents' 0 sweep --family qwen3 --seq-len 9 --objective dpo --tuning lora --batch documents
says '0 failed'
refuses 'documents of an objective of rows' 'nothing to check' sweep --objective grpo --batch documents
run 'one run by itself' 0 sweep --model gemma3-tiny --config '{"num_hidden_layers":1,"sliding_window":3}' --objective dpo \
  --tuning full --batch documents --rows 3+5,1+1,2+7,1+2 --method streambp --chunk 4 --head-chunk 3 --alone --every 2 --keep-attention \
  --micro-batches 2
says ' 8+2+9+3 '
says '0 failed'
refuses 'precision of distill' 'needs a teacher' precision --objective distill
refuses 'precision of float64' 'expected one of float32, bfloat16' precision --dtype float64
run 'precision' 0 precision --dtype float32 --method streambp --chunk 8 --repeats 24 --seq-len 24 --json
says '"gradient_dtype":"float32"'
refuses 'precision of a curve with chunks' 'excludes' precision --curve --chunk 3
refuses 'precision of no seed' 'expected 1 to 1000' precision --seeds 0
run 'precision, a curve' 0 precision --dtype bfloat16 --method streambp --curve --histogram --repeats 2 --seeds 2 --seq-len 6 \
  --out "$folder/curve"
says 'the paper'
[ "$(awk 'length > 120' "$folder/out")" = '' ] || fail 'lines of more than 120 characters'
# Standard; 12 tokens in 1, 2, 4, 8 chunks and one a token, of the layers and (but for the first) of the head.
python3 - "$folder/curve/results.jsonl" <<'PY' || fail 'the records of the curve are not those expected'
import json, sys
records = [json.loads(line) for line in open(sys.argv[1])]
points = [(r["method"], r["chunks"], r["head_chunks"]) for r in records]
assert points == [("standard", 0, 0)] + [("streambp", n, 1) for n in (1, 2, 4, 6, 12)] + [("streambp", 1, n) for n in (2, 4, 6, 12)], points
for r in records:
    assert r["schema"] == 1 and r["kind"] == "precision" and r["seeds"] == 2 and r["environment"]["argv"], r
    largest = max(p["times_standard"] for p in r["parameters"].values())
    assert abs(r["times_standard"] - largest) <= 1e-5 * largest, r
    entries = sum(part["entries"] for part in r["parts"].values())
    assert entries == sum(sum(part["ulps"]) + part["zeros"] for part in r["parts"].values()) > 0, r
assert len({r["key"] for r in records}) == len(records)
PY
refuses 'precision into a folder of records' 'holds records already' precision --repeats 1 --out "$folder/curve"

finish
