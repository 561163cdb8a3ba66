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
refuses 'unknown method' "expected one of standard, checkpoint, streambp, reference" goldens "$set" --method nonsense
refuses 'chunk 0' "--chunk '0'" goldens "$set" --chunk 0
refuses 'empty list' '--chunk' goldens "$set" --chunk 1,,2
refuses 'limit 0' '--limit' goldens "$set" --limit 0
refuses 'unknown family' 'expected qwen3, qwen2, llama or llama-tied' sweep --family nonsense
refuses 'unknown batch' 'expected one of single' sweep --quick --batch nonsense
refuses 'unknown sweep method' 'expected one of standard, checkpoint, streambp' sweep --quick --method reference
refuses 'unknown objective' 'expected sft' sweep --objective nonsense
refuses 'length 0' "--seq-len '0'" sweep --seq-len 0
refuses 'another dtype' 'expected float64' sweep --dtype float32
refuses 'unknown preset' 'presets:' compare --model nonsense --tokens "$tensors" --gradients "$tensors"
refuses 'missing tokens' 'none.safetensors' compare --model "$model" --tokens "$folder/none.safetensors" --gradients "$tensors"
refuses 'divisor 0' 'positive' compare --model "$model" --tokens "$tensors" --gradients "$tensors" --divisor 0
refuses 'tolerance' "expected a number above 0, or auto" compare --model "$model" --tokens "$tensors" --gradients "$tensors" --tolerance 1e-3x
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
compare 'the truth as JSON' 0 "$tensors" --json
says '"verdict":"exact"'
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
edit "$tensors" "$folder/nan.safetensors" "values if name != '$parameter' else [math.nan] * len(values)"
compare 'NaN' 1 "$folder/nan.safetensors" --tolerance 1e300
says 'wrong: 1 of'
says "holds NaN or infinity"

# Equality and the reference's own checks.
run 'sweep' 0 sweep --quick --family qwen3 --batch three,unscored --json
says '"verdict":"pass"'
run 'gradcheck' 0 gradcheck
says ' 0 failed'

if [ "$failures" -ne 0 ]; then
  echo "$failures checks failed"
  exit 1
fi
echo 'all checks passed'
