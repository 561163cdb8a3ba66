#!/usr/bin/env bash
# streambp-verify compare: objectives, adapters, and batches as trainers write them.
# compare_objectives_cli_test.sh PROGRAM GOLDENS
source "$(dirname "${BASH_SOURCE[0]}")/cli_testing.sh"

# Other objectives: a golden case's tokens and gradients, and what they need in addition.
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
other 'grpo' 0 qwen3-grpo-grpo_kl --objective grpo --set beta=0.04 --set epsilon_high=0.28,temperature=0.7
says 'exact: all'
other 'ppo with a value head' 0 qwen3-ppo-shared --objective ppo --set temperature=0.7000000999999999
says 'exact: all'
other 'adapters' 0 qwen3-lora-dpo-sigmoid --objective dpo --adapter "$goldens/cases/qwen3-lora-dpo-sigmoid/adapter"
says 'exact: all 28 gradients'
other 'adapters with saved modules' 0 qwen3-lora-saved-dpo --objective dpo --set beta=0.3 \
  --adapter "$goldens/cases/qwen3-lora-saved-dpo/adapter"
says 'exact: all 14 gradients'
# What an adapter that is trained already is compared with is said, or in the file.
/usr/bin/python3 - "$goldens/cases/qwen3-lora-dpo-sigmoid/tensors.safetensors" "$folder/unreferred.safetensors" <<'PYTHON'
import json, struct, sys

data = open(sys.argv[1], "rb").read()
(length,) = struct.unpack_from("<Q", data)
kept, parts, size = {}, [], 0
for name, entry in json.loads(data[8 : 8 + length]).items():
    if name.startswith("in.ref_") or name == "__metadata__":
        continue
    begin, end = entry["data_offsets"]
    parts.append(data[8 + length + begin : 8 + length + end])
    kept[name] = {**entry, "data_offsets": [size, size + end - begin]}
    size += end - begin
header = json.dumps(kept).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(header)) + header + b"".join(parts))
PYTHON
trained() { # NAME CODE ARGUMENT...
  local what=$1 code=$2
  shift 2
  run "$what" "$code" compare --model "$goldens/models/qwen3" --tokens "$folder/unreferred.safetensors" --objective dpo \
    --gradients "$goldens/cases/qwen3-lora-dpo-sigmoid/tensors.safetensors" "$@"
}
refuses 'an adapter that is trained already' '--reference base (the model without them' compare --model "$goldens/models/qwen3" \
  --tokens "$folder/unreferred.safetensors" --gradients "$folder/unreferred.safetensors" --objective dpo \
  --adapter "$goldens/cases/qwen3-lora-dpo-sigmoid/adapter"
trained 'its base' 0 --reference base --adapter "$goldens/cases/qwen3-lora-dpo-sigmoid/adapter"
says 'exact: all 28 gradients'
trained 'a frozen copy of it' 1 --reference adapter --adapter "$goldens/cases/qwen3-lora-dpo-sigmoid/adapter"
says '0.6931471805'
refuses 'the base of no adapter' '--reference base: expected --adapter' compare --model "$goldens/models/qwen3" \
  --tokens "$folder/unreferred.safetensors" --gradients "$folder/unreferred.safetensors" --objective dpo --reference base
# Names that belong to another run than the flags say: which flag helps.
lora=$goldens/cases/qwen3-lora-dpo-sigmoid
other "an adapter's gradients without --adapter" 1 qwen3-lora-dpo-sigmoid --objective dpo --reference "$goldens/models/qwen3"
says 'incomplete: '
says "is a LoRA adapter's: --adapter DIR, its PEFT folder"
other "the weights' gradients under --adapter" 1 qwen3-dpo-robust --objective dpo --adapter "$lora/adapter"
says "under --adapter the adapter's own parameters are judged: without --adapter"
rename "$lora/tensors.safetensors" "$folder/peft.safetensors" 'grad.base_model.' 'grad.module.base_model.'
run "PEFT's names under DDP" 0 compare --model "$model" --tokens "$lora/tensors.safetensors" --gradients "$folder/peft.safetensors" \
  --objective dpo --adapter "$lora/adapter"
says 'exact: all 28 gradients'
other_module() { # FILE PATTERN REPLACEMENT: a file with other names of the same length
  LC_ALL=C sed "s/$2/$3/" "$lora/tensors.safetensors" >"$folder/$1"
  run "$1" 1 compare --model "$model" --tokens "$lora/tensors.safetensors" --gradients "$folder/$1" --objective dpo --adapter "$lora/adapter"
}
other_module another-module 'self_attn\.q_proj\.lora_A' 'self_attn.r_proj.lora_A'
says 'expected the PEFT folder of this run; target_modules'
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

# Batches as trainers write them: what is counted, dropped and refused is said.
# warns TEXT: the last run's stderr is one line, which holds TEXT.
warns() {
  [ "$(wc -l <"$folder/err")" -eq 1 ] || fail "$name: expected one line on stderr"
  grep -qF -- "$1" "$folder/err" || fail "$name: stderr does not say '$1'"
}
jumps=$goldens/cases/llama-pad-sft-packed_jumps/tensors.safetensors
run 'labels across documents' 0 compare --model "$goldens/models/llama-pad" --tokens "$jumps" --gradients "$jumps"
says 'exact'
says "labels of documents' first tokens: 3"
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
says 'labels ignored because padding would predict them: 2'
refuses 'another word' "--first-labels 'drop'" compare --model "$model" --tokens "$tensors" --gradients "$tensors" \
  --first-labels drop
# A factor of YaRN that versions of transformers take differently is noted on stderr, once.
yarn=$goldens/cases/llama-yarn-mscale-sft-b1/tensors.safetensors
run 'yarn' 0 compare --model "$goldens/models/llama-yarn-mscale" --tokens "$yarn" --gradients "$yarn"
[ "$(grep -c '^note: .*512 / 64 = 8' "$folder/err")" -eq 1 ] || fail 'no note of another factor'

# Rollouts of an inference engine.
rollout() {
  local what=$1 code=$2 name=$3
  shift 3
  run "$what" "$code" rollout --model "$goldens/models/llama-small" --tokens "$goldens/cases/$name/tensors.safetensors" "$@"
}
rollout 'a rollout' 0 llama-small-grpo-off_policy_mask --set loss_type=dapo
says 'Without a correction the gradient is 0.3522 x as long as the unbiased one and 16.3 degrees off'
says 'sequence_mask'
rollout 'without a bound' 0 llama-small-grpo-off_policy_mask --set loss_type=dapo --clip-max inf --json
says '"kind":"rollout"'
refuses 'no log-probabilities of an engine' 'no sampling_per_token_logps in it' rollout --model "$goldens/models/llama-small" \
  --tokens "$goldens/cases/llama-small-grpo-is_token/tensors.safetensors"
refuses 'bounds the wrong way' 'expected 0 or more' rollout --model "$goldens/models/llama-small" --clip-min 4 \
  --tokens "$goldens/cases/llama-small-grpo-off_policy_mask/tensors.safetensors"

finish
