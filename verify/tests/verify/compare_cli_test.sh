#!/usr/bin/env bash
# streambp-verify compare: bad input, verdicts and diagnoses.
# compare_cli_test.sh PROGRAM GOLDENS
source "$(dirname "${BASH_SOURCE[0]}")/cli_testing.sh"

refuses 'unknown preset' 'neither a folder nor a preset' compare --model nonsense --tokens "$tensors" --gradients "$tensors"
refuses 'missing tokens' 'none.safetensors' compare --model "$model" --tokens "$folder/none.safetensors" --gradients "$tensors"
refuses 'divisor 0' 'divisor is 0' compare --model "$model" --tokens "$tensors" --gradients "$tensors" --divisor 0
refuses 'tolerance' "expected a number above 0, or auto" compare --model "$model" --tokens "$tensors" --gradients "$tensors" --tolerance 1e-3x
refuses 'compute dtype' "'nonsense'" compare --model "$model" --tokens "$tensors" --gradients "$tensors" --compute-dtype nonsense
refuses 'token outside the vocabulary' 'expected a token id' compare --model "$goldens/models/qwen2-small" --tokens "$tensors" --gradients "$tensors"
python3 -c 'import struct, sys
header = b"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"
sys.stdout.buffer.write(struct.pack("<Q", len(header)) + header + bytes(4))' >"$folder/one.safetensors"
refuses 'more memory than there is' 'in float64 take 3.76 TB, ' compare --model qwen3-235b-a22b --tokens "$tensors" --gradients "$folder/one.safetensors"
refuses "another model's gradients" 'gradients of another model than qwen3-cpu: ' compare --model qwen3-cpu --tokens "$tensors" --gradients "$tensors"
refuses 'unknown dtype' 'nonsense' compare --model qwen3-cpu --dtype nonsense --tokens "$tensors" --gradients "$folder/one.safetensors"

head -c -8 "$tensors" >"$folder/short.safetensors"
refuses 'truncated gradients' 'short.safetensors' compare --model "$model" --tokens "$tensors" --gradients "$folder/short.safetensors"

for other in 'PK\003\004:a zip archive' '\223NUMPY:numpy' 'GGUF:GGUF' '{"metadata"\072 {}}:JSON'; do
  printf "${other%%:*} and more" >"$folder/other.safetensors"
  refuses "${other#*:}" "of a safetensors file: this is ${other#*:}" compare --model "$model" --tokens "$tensors" --gradients "$folder/other.safetensors"
done

# The embedding's padding_idx: what a trainer sets in the config after the model was made is not the module's.
refuses 'no pad token' "expected none" compare --model "$model" --tokens "$tensors" --gradients "$tensors" --set pad_token_id=-1
refuses 'a pad token beyond' 'the vocabulary has' compare --model "$model" --tokens "$tensors" --gradients "$tensors" --set pad_token_id=1000000
padded=$goldens/cases/llama-pad-sft-real_pad/tensors.safetensors
of_padded() { run "$1" "$2" compare --model "$goldens/models/llama-pad" --tokens "$padded" --gradients "$padded" "${@:3}"; }
of_padded "the config's padding_idx" 0
of_padded 'another padding_idx' 1 --set pad_token_id=none
says 'model.embed_tokens.weight'
set_later=$folder/set-later
cp -r "$model" "$set_later"
python3 - "$set_later/config.json" "$tensors" <<'PYTHON'
import json, struct, sys
file = open(sys.argv[2], "rb")
header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
data = file.read()
def numbers(name):
    begin, end = header[name]["data_offsets"]
    return struct.unpack(f"<{(end - begin) // 8}q", data[begin:end])
ids = numbers("in.input_ids")
mask = numbers("in.attention_mask") if "in.attention_mask" in header else [1] * len(ids)
token = next(token for token, real in zip(ids, mask) if real)
config = json.load(open(sys.argv[1]))
config["pad_token_id"] = token
json.dump(config, open(sys.argv[1], "w"))
PYTHON
later() { run "$1" "$2" compare --model "$set_later" --tokens "$tensors" --gradients "$tensors" "${@:3}"; }
later 'set after the model was made, not said' 1
says 'model.embed_tokens.weight'
later 'set after the model was made, and said' 0 --set pad_token_id=none

# Compare: exact, scaled, wrong, NaN.
compare() {
  local what=$1 code=$2
  shift 2
  run "$what" "$code" compare --model "$model" --tokens "$tensors" --gradients "$@"
}
compare 'the truth' 0 "$tensors"
says 'exact: all'
says 'factor: 1 ('
compare "another batch's" 1 "$goldens/cases/qwen3-sft-b3_right/tensors.safetensors"
says 'factor: none in common, '
! grep -q 'the factor fits' "$folder/out" || fail 'a hint that explains nothing'
compare 'the truth as JSON' 0 "$tensors" --json
says '"verdict":"exact"'
for field in compute_dtype factor_low factor_high factor_differs noise_runs median_ratio unseen_error notes noise ratio limit; do
  says "\"$field\":"
done
says '"divisor":65.0'
says '"scored_tokens":65'
python3 - "$folder/out" "$tensors" "$folder/loss" <<'PYTHON' || fail "$name: not the loss that Hugging Face computed"
import json, struct, sys
file = open(sys.argv[2], "rb")
header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
file.seek(header["out.loss"]["data_offsets"][0], 1)
theirs, = struct.unpack("<d", file.read(8))
ours = json.load(open(sys.argv[1]))["loss"]
assert abs(ours - theirs) <= 1e-10 * theirs, (ours, theirs)
open(sys.argv[3], "w").write(repr(theirs))
PYTHON
loss=$(cat "$folder/loss")
compare 'the loss of Hugging Face' 0 "$tensors" --loss "$loss"
says "--loss ${loss:0:10}"
says ' within 1.0e-10'
compare 'a loss that is a sum' 1 "$tensors" --loss "$(python3 -c "print(65 * $loss)")"
says 'exact: all'
says 'beyond 1.0e-10'
says '--loss fits the loss divided by nothing (a sum) = 1 instead of 65'
compare 'a loss that is no number' 1 "$tensors" --loss nan --json
says '"given_loss":{'
compare 'another divisor' 1 "$tensors" --divisor 133
says 'true loss: 2.848856'
says 'of 65 scored tokens out of '
says ', their sum divided by 133'
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
edit "$tensors" "$folder/close.safetensors" '[x * (1 + 3e-7 * (i % 7 - 3)) for i, x in enumerate(values)]'
compare 'off by 1e-7' 1 "$folder/close.safetensors"
says 'compute softmax, norms and rotary tables in float32 whatever their dtype'
narrow='[struct.unpack("f", struct.pack("f", x))[0] for x in values]'
edit "$tensors" "$folder/narrow.safetensors" "$narrow"
compare 'rounded to float32' 1 "$folder/narrow.safetensors"
says 'undecided: '
says 'every number is one of float32'
compare 'computed in float32' 0 "$folder/narrow.safetensors" --compute-dtype float32
says 'exact: all'
says 'the noise of float32'
says 'power: an error of'
edit "$folder/scaled.safetensors" "$folder/narrow.safetensors" "$narrow"
compare 'times 0.9 in float32' 1 "$folder/narrow.safetensors" --compute-dtype float32 --json
says '"verdict":"scaled"'
rename "$tensors" "$folder/renamed.safetensors" 'grad.model.layers.0.' 'grad._orig_mod.model.layers.0._checkpoint_wrapped_module.'
compare 'names of a wrapper' 0 "$folder/renamed.safetensors"
says "note: taken out of names: _checkpoint_wrapped_module., _orig_mod."
# Shards: their folder, or the index next to them.
mkdir -p "$folder/shards" "$folder/empty"
python3 - "$tensors" "$folder/shards" <<'PYTHON'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
(length,) = struct.unpack_from("<Q", data)
header, body, map = json.loads(data[8 : 8 + length]), data[8 + length :], {}
names = sorted(name for name in header if name.startswith("grad."))
for part, own in (("a.safetensors", names[::2]), ("b.safetensors", names[1::2])):
    shard, blobs, at = {}, b"", 0
    for name in own:
        begin, end = header[name]["data_offsets"]
        shard[name[5:]] = {**header[name], "data_offsets": [at, at + end - begin]}
        blobs += body[begin:end]
        at += end - begin
        map[name[5:]] = part
    text = json.dumps(shard).encode()
    open(f"{sys.argv[2]}/{part}", "wb").write(struct.pack("<Q", len(text)) + text + blobs)
json.dump({"weight_map": map}, open(f"{sys.argv[2]}/model.safetensors.index.json", "w"))
PYTHON
compare 'a folder of shards' 0 "$folder/shards"
compare 'an index of shards' 0 "$folder/shards/model.safetensors.index.json"
compare 'one shard' 1 "$folder/shards/a.safetensors"
says 'incomplete: '
refuses 'an empty folder' 'a folder without safetensors files' compare --model "$model" --tokens "$tensors" --gradients "$folder/empty"
cp "$folder/shards/a.safetensors" "$folder/shards/c.safetensors"
refuses 'a gradient in two files' 'expected each gradient once, whole' compare --model "$model" --tokens "$tensors" --gradients "$folder/shards"
echo '{"weight_map":{"x":"a.safetensors"}}' >"$folder/shards/other.index.json"
refuses 'an index of what no shard has' 'is not in "a.safetensors", where the index has it' compare --model "$model" --tokens "$tensors" --gradients "$folder/shards/other.index.json"
echo '{"weight_map":{"x":"../a.safetensors"}}' >"$folder/shards/out.index.json"
refuses 'a shard elsewhere' 'expected a file name in the same folder' compare --model "$model" --tokens "$tensors" --gradients "$folder/shards/out.index.json"
edit "$tensors" "$folder/nan.safetensors" "values if name != '$parameter' else [math.nan] * len(values)"
compare 'NaN' 1 "$folder/nan.safetensors" --tolerance 1e300
says 'wrong: 1 of'
says "holds NaN or infinity"
says "hint: 1 of 25 gradients hold NaN or infinity"
/usr/bin/python3 - "$tensors" "$folder/transposed.safetensors" "grad.model.layers.0.self_attn.q_proj.weight" <<'PYTHON'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
(length,) = struct.unpack_from("<Q", data)
header = json.loads(data[8 : 8 + length])
header[sys.argv[3]]["shape"].reverse()
text = json.dumps(header).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + data[8 + length :])
PYTHON
run 'diagnosis of another shape' 1 compare --model "$model" --tokens "$tensors" --gradients "$folder/transposed.safetensors" --diagnose --junit "$folder/junit.xml"
says 'incomplete: '
grep -qF 'no diagnosis of gradients that are incomplete' "$folder/err" || fail 'a diagnosis'
[ -s "$folder/junit.xml" ] || fail 'no file for CI'

# What is the matter with wrong gradients.
compare 'diagnosis of a factor' 1 "$folder/scaled.safetensors" --diagnose
says 'diagnosis: all gradients have a factor of 0.9'
edit "$tensors" "$folder/frozen.safetensors" "[0.0] * len(values) if name.endswith(('q_norm.weight', 'k_norm.weight')) else values"
compare 'diagnosis of frozen norms' 1 "$folder/frozen.safetensors" --diagnose
says 'diagnosis: no gradient reaches self_attn.k_norm.weight of all layers, self_attn.q_norm.weight of all layers, while all else is right'
compare 'diagnosis as JSON' 1 "$folder/frozen.safetensors" --diagnose-chunk 3 --json
says '"finding":"explained"'
says '"name":"parameters-without-gradient"'
compare 'diagnosis of NaN' 1 "$folder/nan.safetensors" --diagnose
says "a number has overflown"
says "$parameter holds numbers that are not finite"
edit "$tensors" "$folder/huge.safetensors" '[1e308] + values[1:]'
compare 'diagnosis of huge numbers' 1 "$folder/huge.safetensors" --diagnose
says 'a number has overflown'
says 'holds 1e+308, the truth at most'
compare 'diagnosis of the truth' 0 "$tensors" --diagnose
says 'diagnosis: nothing is wrong'
compare 'a hint at the diagnosis' 1 "$folder/frozen.safetensors"
says '--diagnose'
gemma4=$goldens/cases/gemma4-sft-b3_left/tensors.safetensors  # layers of two sizes, to which other configs don't fit
edit "$gemma4" "$folder/off.safetensors" '[x + 0.01 * (i % 3) for i, x in enumerate(values)]'
run 'a diagnosis that names nothing' 1 compare --model "$goldens/models/gemma4" --tokens "$gemma4" --gradients "$folder/off.safetensors" --diagnose
says 'diagnosis: not named'
refuses 'chunk of a diagnosis' '--diagnose-chunk' compare --model "$model" --tokens "$tensors" --gradients "$tensors" --diagnose-chunk 0

finish
