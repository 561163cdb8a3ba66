#!/usr/bin/env bash
# streambp-verify from the outside: exit codes, one line on stderr for bad input, and that a tampered file is caught.
# verify_cli_test.sh PROGRAM GOLDENS
set -uo pipefail

program=$1
goldens=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0

fail() {
  echo "FAILED: $1"
  sed 's/^/    stdout: /' "$folder/out" | head -n 40
  sed 's/^/    stderr: /' "$folder/err" | head -n 5
  failures=$((failures + 1))
}

# run NAME CODE ARGUMENT...: the exit code has to be CODE.
run() {
  name=$1
  local code=$2
  shift 2
  "$program" "$@" --threads 1 >"$folder/out" 2>"$folder/err"
  local got=$?
  [ "$got" -eq "$code" ] || fail "$name: exit $got, expected $code"
}

# says TEXT: the last run's stdout holds TEXT.
says() { grep -qF -- "$1" "$folder/out" || fail "$name: stdout does not say '$1'"; }

# refuses NAME TEXT ARGUMENT...: exit 2 and exactly one line on stderr, which holds TEXT.
refuses() {
  local what=$1 text=$2
  shift 2
  run "$what" 2 "$@"
  [ "$(wc -l <"$folder/err")" -eq 1 ] || fail "$what: expected one line on stderr"
  grep -qF -- "$text" "$folder/err" || fail "$what: stderr does not say '$text'"
}

# edit FILE NEW EXPRESSION: copies a safetensors file with its gradients changed. EXPRESSION gets name and values (a list of
# doubles) of every grad.* tensor and returns the new values.
edit() {
  /usr/bin/python3 - "$@" <<'PYTHON'
import json, math, struct, sys

path, new, expression = sys.argv[1:4]
data = bytearray(open(path, "rb").read())
(length,) = struct.unpack_from("<Q", data)
header = json.loads(data[8 : 8 + length])
change = eval("lambda name, values: " + expression)
for name, entry in header.items():
    if not name.startswith("grad."):
        continue
    begin, end = (8 + length + offset for offset in entry["data_offsets"])
    count = (end - begin) // 8
    values = change(name[5:], list(struct.unpack_from(f"<{count}d", data, begin)))
    struct.pack_into(f"<{count}d", data, begin, *values)
open(new, "wb").write(data)
PYTHON
}

# rename FILE NEW OLD-PREFIX NEW-PREFIX: copies a safetensors file with other names.
rename() {
  /usr/bin/python3 - "$@" <<'PYTHON'
import json, struct, sys

path, new, old_prefix, new_prefix = sys.argv[1:5]
data = open(path, "rb").read()
(length,) = struct.unpack_from("<Q", data)
header = json.loads(data[8 : 8 + length])
names = {name: new_prefix + name[len(old_prefix) :] if name.startswith(old_prefix) else name for name in header}
text = json.dumps({names[name]: entry for name, entry in header.items()}).encode()
text += b" " * (-len(text) % 8)
open(new, "wb").write(struct.pack("<Q", len(text)) + text + data[8 + length :])
PYTHON
}

# A set of one case and its model, to be tampered with.
case=qwen3-sft-b3_left
model=$goldens/models/qwen3
tensors=$goldens/cases/$case/tensors.safetensors
set=$folder/set
mkdir -p "$set/models" "$set/cases"
cp -r "$model" "$set/models/"
cp -r "$goldens/cases/$case" "$set/cases/"
tampered=$set/cases/$case/tensors.safetensors
parameter=model.layers.1.self_attn.k_proj.weight

# Bad usage and bad input.
refuses 'no command' 'subcommand'
refuses 'unknown command' 'subcommand' nonsense
refuses 'unknown flag' '--nonsense' goldens --nonsense "$goldens"
refuses 'no folder given' 'DIR' goldens
refuses 'missing folder' "$folder/none" goldens "$folder/none"
refuses 'no set' 'expected a set of golden cases' goldens "$goldens/models"
refuses 'unknown method' "expected one of standard, checkpoint, streambp, tiled, logits-only, chunk-major, reference" goldens "$set" --method nonsense
refuses 'chunk 0' "--chunk '0'" goldens "$set" --chunk 0
refuses 'empty list' '--chunk' goldens "$set" --chunk 1,,2
refuses 'limit 0' '--limit' goldens "$set" --limit 0
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
refuses 'another dtype' 'expected float64' sweep --dtype float32
refuses 'unknown preset' 'presets:' compare --model nonsense --tokens "$tensors" --gradients "$tensors"
refuses 'missing tokens' 'none.safetensors' compare --model "$model" --tokens "$folder/none.safetensors" --gradients "$tensors"
refuses 'divisor 0' 'divisor is 0' compare --model "$model" --tokens "$tensors" --gradients "$tensors" --divisor 0
refuses 'tolerance' "expected a number above 0, or auto" compare --model "$model" --tokens "$tensors" --gradients "$tensors" --tolerance 1e-3x
refuses 'compute dtype' "'nonsense'" compare --model "$model" --tokens "$tensors" --gradients "$tensors" --compute-dtype nonsense
refuses 'token outside the vocabulary' 'expected a token id' compare --model "$goldens/models/qwen2-small" --tokens "$tensors" --gradients "$tensors"
refuses 'unknown dtype' 'nonsense' compare --model qwen3-cpu --dtype nonsense --tokens "$tensors" --gradients "$tensors"

head -c 5000 "$tensors" >"$tampered"
refuses 'truncated safetensors' 'tensors.safetensors' goldens "$set"
head -c -8 "$tensors" >"$folder/short.safetensors"
refuses 'truncated gradients' 'short.safetensors' compare --model "$model" --tokens "$tensors" --gradients "$folder/short.safetensors"
cp "$tensors" "$tampered"
printf '\xff\xff\xff\xff\xff\xff\xff\x7f' | dd of="$tampered" conv=notrunc status=none
refuses 'flipped header' 'tensors.safetensors' goldens "$set"
rm "$tampered"
refuses 'missing tensors' 'tensors.safetensors' goldens "$set"
cp "$tensors" "$tampered"
mv "$set/models/qwen3" "$set/models/other"
refuses 'missing model' 'qwen3' goldens "$set"
mv "$set/models/other" "$set/models/qwen3"
cp "$set/cases/$case/case.json" "$folder/case.json"
sed -i 's/"num_valid_labels": 65/"num_valid_labels": 66/' "$set/cases/$case/case.json"
refuses 'labels miscounted' 'num_valid_labels' goldens "$set"
echo '{"name": ' >"$set/cases/$case/case.json"
refuses 'case.json is no JSON' 'case.json' goldens "$set"
sed 's/"objective": "sft"/"objective": "nonsense"/' "$folder/case.json" >"$set/cases/$case/case.json"
refuses 'nothing that could be run' 'none of the 1 cases could be run' goldens "$set"

"$program" gradcheck --threads 0 >"$folder/out" 2>"$folder/err"
[ $? -eq 2 ] && grep -q -- '--threads 0' "$folder/err" || fail 'no threads'

# A set with a case that this build does not know: named, counted, no failure.
mkdir "$set/cases/unknown"
cp "$set/cases/$case/case.json" "$set/cases/unknown/"
cp "$folder/case.json" "$set/cases/$case/case.json"
run 'one case unsupported' 0 goldens "$set" --method streambp --chunk 7
says 'unsupported: objective "nonsense"'
says '1 passed, 0 failed, 1 unsupported'
rm -r "$set/cases/unknown"

# Goldens: the case alone, and one entry off by 1e-6 of its tensor's norm.
run 'one case' 0 goldens "$set/cases/$case" --chunk 1,16,auto --json
says '"verdict":"pass"'
edit "$tensors" "$tampered" \
  "values if name != '$parameter' else [values[0] + 1e-6 * math.sqrt(sum(x * x for x in values))] + values[1:]"
run 'tampered golden' 1 goldens "$set"
says "$parameter  1.0e-06"
says '0 passed, 1 failed'
run 'tampered golden as JSON' 1 goldens "$set" --method streambp --chunk 7 --json
says "\"worst_parameter\":\"$parameter\""
says '"verdict":"FAIL"'
run 'tampered golden within a wider limit' 0 goldens "$set" --method streambp --chunk 7 --limit 1e-5
edit "$tensors" "$tampered" "values if name != '$parameter' else values[:-1] + [math.nan]"
run 'NaN in a golden' 1 goldens "$set" --method streambp --chunk 7 --limit 1e300
says "$parameter  NaN"

# Compare: exact, scaled, wrong, NaN.
compare() {
  local what=$1 code=$2
  shift 2
  run "$what" "$code" compare --model "$model" --tokens "$tensors" --gradients "$@"
}
compare 'the truth' 0 "$tensors"
says 'exact: all'
says 'factor: 1 ('
compare 'the truth as JSON' 0 "$tensors" --json
says '"verdict":"exact"'
for field in compute_dtype factor_low factor_high factor_differs noise_runs median_ratio notes noise ratio limit; do
  says "\"$field\":"
done
compare 'another divisor' 1 "$tensors" --divisor 133
says 'the loss divided by scored tokens = 65 instead of 133'
edit "$tensors" "$folder/scaled.safetensors" '[0.9 * x for x in values]'
compare 'times 0.9' 1 "$folder/scaled.safetensors"
says 'scaled: all'
says 'times 0.9 (1/1.11111111111)'
edit "$tensors" "$folder/flipped.safetensors" "values if name != '$parameter' else [-x for x in values]"
compare 'one sign flipped' 1 "$folder/flipped.safetensors"
says 'wrong: 1 of'
says "$parameter"
compare 'one sign flipped, as JSON' 1 "$folder/flipped.safetensors" --json
says "\"worst_parameter\":\"$parameter\""
says '"verdict":"wrong"'
narrow='[struct.unpack("f", struct.pack("f", x))[0] for x in values]'
edit "$tensors" "$folder/narrow.safetensors" "$narrow"
compare 'rounded to float32' 1 "$folder/narrow.safetensors"
says 'undecided: '
says 'every number is one of float32'
compare 'computed in float32' 0 "$folder/narrow.safetensors" --compute-dtype float32
says 'exact: all'
says 'the noise of float32'
edit "$folder/scaled.safetensors" "$folder/narrow.safetensors" "$narrow"
compare 'times 0.9 in float32' 1 "$folder/narrow.safetensors" --compute-dtype float32 --json
says '"verdict":"scaled"'
rename "$tensors" "$folder/renamed.safetensors" 'grad.model.layers.0.' 'grad._orig_mod.model.layers.0._checkpoint_wrapped_module.'
compare 'names of a wrapper' 0 "$folder/renamed.safetensors"
says "note: taken out of names: _checkpoint_wrapped_module., _orig_mod."
edit "$tensors" "$folder/nan.safetensors" "values if name != '$parameter' else [math.nan] * len(values)"
compare 'NaN' 1 "$folder/nan.safetensors" --tolerance 1e300
says 'wrong: 1 of'
says "holds NaN or infinity"

# What is the matter with wrong gradients.
compare 'diagnosis of a factor' 1 "$folder/scaled.safetensors" --diagnose
says 'diagnosis: times 0.9'
edit "$tensors" "$folder/frozen.safetensors" "[0.0] * len(values) if name.endswith(('q_norm.weight', 'k_norm.weight')) else values"
compare 'diagnosis of frozen norms' 1 "$folder/frozen.safetensors" --diagnose
says 'diagnosis: qk-norms-frozen'
compare 'diagnosis as JSON' 1 "$folder/frozen.safetensors" --diagnose-chunk 3 --json
says '"finding":"explained"'
says '"name":"qk-norms-frozen"'
compare 'diagnosis of the truth' 0 "$tensors" --diagnose
says 'diagnosis: the truth'
compare 'a hint at the diagnosis' 1 "$folder/frozen.safetensors"
says '--diagnose'
refuses 'chunk of a diagnosis' '--diagnose-chunk' compare --model "$model" --tokens "$tensors" --gradients "$tensors" --diagnose-chunk 0

# Other objectives: a golden case's tokens and gradients, and what they need beside them.
other() {
  local what=$1 code=$2 name=$3
  shift 3
  local file=$goldens/cases/$name/tensors.safetensors
  run "$what" "$code" compare --model "$goldens/models/qwen3" --tokens "$file" --gradients "$file" "$@"
}
refuses_other() {
  local what=$1 text=$2 name=$3
  shift 3
  local file=$goldens/cases/$name/tensors.safetensors
  refuses "$what" "$text" compare --model "$goldens/models/qwen3" --tokens "$file" --gradients "$file" "$@"
}
other 'dpo' 0 qwen3-dpo-robust --objective dpo --set loss_type=robust,label_smoothing=0.1
says 'exact: all'
other 'dpo with other options' 1 qwen3-dpo-robust --objective dpo
says 'wrong: '
other 'grpo' 0 qwen3-grpo-grpo_kl --objective grpo --set beta=0.04,epsilon_high=0.28,temperature=0.7
says 'exact: all'
other 'ppo with a value head' 0 qwen3-ppo-shared --objective ppo --set temperature=0.7000000999999999
says 'exact: all'
other 'adapters' 0 qwen3-lora-dpo-sigmoid --objective dpo --adapter "$goldens/cases/qwen3-lora-dpo-sigmoid/adapter"
says 'exact: all 28 gradients'
other 'adapters with saved modules' 0 qwen3-lora-saved-dpo --objective dpo --set beta=0.3 \
  --adapter "$goldens/cases/qwen3-lora-saved-dpo/adapter"
says 'exact: all 14 gradients'
mixture=$goldens/cases/qwen3-moe-lora-all_linear
run 'adapters of a mixture' 0 compare --model "$goldens/models/qwen3-moe" --tokens "$mixture/tensors.safetensors" \
  --gradients "$mixture/tensors.safetensors" --adapter "$mixture/adapter"
says 'exact: all 36 gradients'
cp -r "$goldens/cases/qwen3-lora-saved-dpo/adapter" "$folder/pissa"
sed -i 's/"init_lora_weights": true/"init_lora_weights": "pissa"/' "$folder/pissa/adapter_config.json"
refuses_other 'adapter that changes base weights' 'init_lora_weights' qwen3-lora-saved-dpo --objective dpo \
  --adapter "$folder/pissa"
refuses_other 'unknown objective of compare' 'expected one of sft, dpo' qwen3-dpo-sigmoid --objective nonsense
refuses_other 'no completions in it' 'completion_mask' qwen3-sft-b3_left --objective grpo
refuses_other 'inputs of another objective' "is none of simpo's" qwen3-ppo-shared --objective simpo
refuses_other 'no reference' 'needs the reference' qwen3-grpo-grpo --objective grpo --set beta=0.1
refuses_other 'no value head' 'value head' qwen3-ppo-separate --objective ppo
refuses_other 'no teacher' 'teacher' qwen3-sft-b3_left --objective distill
refuses_other 'another vocabulary' 'vocabulary' qwen3-sft-b3_left --objective distill --teacher qwen3-tiny
refuses_other 'beta below 0' 'beta is ' qwen3-dpo-sigmoid --objective dpo --set beta=-0.1
refuses_other 'divisor of another objective' '--divisor' qwen3-dpo-sigmoid --objective dpo --divisor 2
refuses_other 'adapter of another model' 'adapter_model.safetensors' qwen3-sft-b3_left --adapter "$goldens/cases/llama-lora-sft-b3_right/adapter"

# Goldens of other kinds, tampered with: another adapter weight, a reference that is not the case's, an unknown setting.
kinds=$folder/kinds
mkdir -p "$kinds/cases" "$kinds/models"
cp -r "$goldens/models/qwen3" "$kinds/models/"
for name in qwen3-lora-dpo-sigmoid qwen3-dpo-sigmoid_refmodel qwen3-ppo-separate; do
  cp -r "$goldens/cases/$name" "$kinds/cases/"
done
run 'three kinds' 0 goldens "$kinds" --chunk 7
says '3 passed, 0 failed'
cp "$kinds/models/qwen3/model.safetensors" "$kinds/cases/qwen3-dpo-sigmoid_refmodel/reference.safetensors"
run 'another reference' 1 goldens "$kinds/cases/qwen3-dpo-sigmoid_refmodel" --method streambp --chunk 7
says "(the reference's log-probabilities)"
sed -i 's/"lora_alpha": 8/"lora_alpha": 9/' "$kinds/cases/qwen3-lora-dpo-sigmoid/adapter/adapter_config.json"
run 'another scale' 1 goldens "$kinds/cases/qwen3-lora-dpo-sigmoid" --method streambp --chunk 7
says '(merged weights: loss)'
critic=$kinds/cases/qwen3-ppo-separate
edit "$critic/tensors.safetensors" "$critic/edited.safetensors" \
  "values if name != 'value_model.score.weight' else [-x for x in values]"
mv "$critic/edited.safetensors" "$critic/tensors.safetensors"
run 'another critic' 1 goldens "$critic" --chunk 7
says 'value_model.score.weight  2.0e+00'
sed -i 's/"ld_alpha": null/"sync_ref_model": true/' "$kinds/cases/qwen3-dpo-sigmoid_refmodel/case.json"
refuses 'unknown setting' 'none of the 1 cases' goldens "$kinds/cases/qwen3-dpo-sigmoid_refmodel"
sed -i 's/"lora_alpha": 9/"lora_alpha": 9, "use_dora": true/;s/"use_dora": false,//' \
  "$kinds/cases/qwen3-lora-dpo-sigmoid/adapter/adapter_config.json"
refuses 'adapter of another kind' 'use_dora' goldens "$kinds/cases/qwen3-lora-dpo-sigmoid"

# Batches as trainers write them: what is counted, dropped and refused is said.
# warns TEXT: the last run's stderr is one line, which holds TEXT.
warns() {
  [ "$(wc -l <"$folder/err")" -eq 1 ] || fail "$name: expected one line on stderr"
  grep -qF -- "$1" "$folder/err" || fail "$name: stderr does not say '$1'"
}
jumps=$goldens/cases/llama-pad-sft-packed_jumps/tensors.safetensors
run 'labels across documents' 0 compare --model "$goldens/models/llama-pad" --tokens "$jumps" --gradients "$jumps"
says 'exact'
warns "labels of documents' first tokens: 3"
sed 's/in\.position_ids/in.position_idz/' "$jumps" >"$folder/unknown.safetensors"
refuses 'unknown tensor' "'in.position_idz' is none of sft's: expected input_ids" compare --model "$goldens/models/llama-pad" \
  --tokens "$folder/unknown.safetensors" --gradients "$jumps"
# labels = input_ids, -100 under the padding, as Hugging Face's collators write them.
/usr/bin/python3 - "$tensors" "$folder/labelled.safetensors" <<'PYTHON'
import json, struct, sys

data = bytearray(open(sys.argv[1], "rb").read())
(length,) = struct.unpack_from("<Q", data)
header = json.loads(data[8 : 8 + length])
begin = {name: 8 + length + header["in." + name]["data_offsets"][0] for name in ("input_ids", "attention_mask", "labels")}
rows, columns = header["in.labels"]["shape"]
for i in range(rows * columns):
    read = lambda name: struct.unpack_from("<q", data, begin[name] + 8 * i)[0]
    struct.pack_into("<q", data, begin["labels"] + 8 * i, read("input_ids") if read("attention_mask") else -100)
open(sys.argv[2], "wb").write(data)
PYTHON
refuses 'first labels' 'predicted from padding: expected -100 there, or --first-labels ignore' compare --model "$model" \
  --tokens "$folder/labelled.safetensors" --gradients "$tensors"
run 'first labels ignored' 0 compare --model "$model" --tokens "$folder/labelled.safetensors" --gradients "$tensors" \
  --first-labels ignore
says 'exact'
warns 'first labels ignored because padding would predict them: 2'
refuses 'another word' "--first-labels 'drop'" compare --model "$model" --tokens "$tensors" --gradients "$tensors" \
  --first-labels drop
# A factor of YaRN that versions of transformers take in two ways is noted on stderr, once.
yarn=$goldens/cases/llama-yarn-mscale-sft-b1/tensors.safetensors
run 'yarn' 0 compare --model "$goldens/models/llama-yarn-mscale" --tokens "$yarn" --gradients "$yarn"
[ "$(grep -c '^note: .*512 / 64 = 8' "$folder/err")" -eq 1 ] || fail 'no note of another factor'

# Equality and the reference's own checks.
run 'sweep' 0 sweep --quick --family qwen3 --batch three,unscored,packed --json
says '"verdict":"pass"'
run 'sweep of one objective' 0 sweep --family qwen3 --seq-len 9 --objective kto --set beta=0.4 --tuning lora --batch none
says '0 failed'
run 'sweep of documents' 0 sweep --family qwen3 --seq-len 9 --objective dpo --tuning lora --batch documents
says '0 failed'
refuses 'documents of an objective of rows' 'nothing to check' sweep --objective grpo --batch documents
refuses 'precision of distill' 'needs a teacher' precision --objective distill
refuses 'precision of float64' 'expected one of float32, bfloat16' precision --dtype float64
run 'precision' 0 precision --dtype float32 --method streambp --chunk 8 --repeats 24 --seq-len 24 --json
says '"gradient_dtype":"float32"'
run 'gradcheck' 0 gradcheck
says ' 0 failed'

if [ "$failures" -ne 0 ]; then
  echo "$failures checks failed"
  exit 1
fi
echo 'all checks passed'
