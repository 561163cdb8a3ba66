#!/usr/bin/env bash
# streambp-bench train: every method trains alike, a run that stops goes on with the same bits, schedule and clipping are what they
# say, the trained folder opens.
# train_test.sh PROGRAM
export OMP_NUM_THREADS=1
source "$(dirname "${BASH_SOURCE[0]}")/cli_testing.sh"

/usr/bin/python3 - <<'PY' >text
import random
random.seed(1)
words = "the chain rule of each layer is streamed over chunks of the sequence and nothing is lost".split()
print("\n".join(" ".join(random.choices(words, k=9)) for _ in range(80)))
PY
common=(train --model qwen3-tiny --text text --seq-len 33 --batch 2 --quiet)

# trained NAME OUT ARGUMENT...
trained() {
  local what=$1 out=$2
  shift 2
  run "$what" 0 "${common[@]}" --out "$out" "$@"
}

check() {
  name=$1
  shift
  /usr/bin/python3 - "$@" <<'PY' >stdout 2>stderr || fail 'the check of records or weights fails'
import json, math, struct, sys
from array import array

def steps(out):
    records = [json.loads(line) for line in open(out + "/results.jsonl")]
    assert [r["step"] for r in records] == list(range(1, len(records) + 1)), records
    return records

def weights(folder):
    with open(folder + "/model.safetensors", "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    return {n: array("d", data[t["data_offsets"][0] : t["data_offsets"][1]]) for n, t in header.items() if n != "__metadata__"}

what, arguments = sys.argv[1], sys.argv[2:]
if what == "alike":
    own, other = (steps(out) for out in arguments)
    assert len(own) == len(other)
    error = max(abs(a["loss"] - b["loss"]) / abs(a["loss"]) for a, b in zip(own, other))
    print(error)
    assert error <= 1e-12, error
elif what == "compared":
    (of_copy,), (of_base,) = ([json.loads(line) for line in open(out + "/results.jsonl")] for out in arguments)
    assert (of_copy["settings"]["reference"], of_base["settings"]["reference"]) == ("adapter", "base")
    assert abs(of_copy["loss"] - math.log(2)) <= 1e-12 and abs(of_base["loss"] - math.log(2)) > 1e-6, (of_copy["loss"], of_base["loss"])
elif what == "fresh":
    (record,) = (json.loads(line) for line in open(arguments[0] + "/results.jsonl"))
    assert record["settings"]["reference"] == "base" and abs(record["loss"] - math.log(2)) <= 1e-12, record
elif what == "stays":
    first, second = (record["loss"] for record in steps(arguments[0]))
    assert abs(first - math.log(2)) <= 1e-12 and abs(second - math.log(2)) > 1e-9, (first, second)
elif what == "falls":
    losses = [r["loss"] for r in steps(arguments[0])]
    print(losses)
    assert losses[-1] < 0.8 * losses[0]
elif what == "rates":
    # Two steps of warm-up, then half a cosine over the other eight, as transformers' get_cosine_schedule_with_warmup.
    rates = [r["learning_rate"] for r in steps(arguments[0])]
    expected = [0.05, 0.1] + [0.1 * 0.5 * (1 + math.cos(math.pi * i / 8)) for i in range(8)]
    print(rates, expected)
    assert all(abs(a - b) <= 1e-15 for a, b in zip(rates, expected)) and len(rates) == 10
elif what == "clipped":
    # One step of sgd moves the weights by the learning rate times the clipped norm, whatever the gradient is.
    before, after = weights(arguments[0]), weights(arguments[1])
    norm = steps(arguments[1] + "/..")[0]["gradient_norm"]
    moved = math.sqrt(sum((a - b) ** 2 for n in before for a, b in zip(before[n], after[n])))
    limit = float(arguments[2])
    expected = 0.01 * (limit * norm / (norm + 1e-6) if 0 < limit < norm else norm)
    print(norm, moved, expected)
    assert abs(moved - expected) <= 1e-10 * expected
PY
}

for objective in sft dpo; do
  for variant in full lora; do
    extra=(--objective "$objective" --dtype float64 --steps 8 --warmup-steps 2 --schedule cosine)
    [ "$variant" = lora ] && extra+=(--lora-rank 3)
    trained "$objective, $variant, standard" "$objective-$variant" --method standard "${extra[@]}"
    for method in checkpoint streambp tiled logits-only chunk-major; do
      chunk=()
      [[ $method =~ streambp|tiled|chunk-major ]] && chunk=(--chunk 10)
      trained "$objective, $variant, $method" "$objective-$variant-$method" --method "$method" "${chunk[@]}" "${extra[@]}"
      check "$objective, $variant: $method as standard" alike "$objective-$variant" "$objective-$variant-$method"
    done
  done
done

long=(--dtype float64 --learning-rate 0.01)
for optimizer in adamw galore natural-galore masters; do
  whole=("${long[@]}" --optimizer "$optimizer" --galore-rank 4)
  [ "$optimizer" = natural-galore ] && whole+=(--galore-history 7 --galore-damping 0.01)  # steps 10 and 17 are in the middle of it
  [ "$optimizer" = masters ] && whole=(--dtype bfloat16 --master-weights --learning-rate 0.01)
  trained "$optimizer, at one go" "$optimizer" "${whole[@]}" --steps 24
  # Killed between two states: the steps since the last one are taken again and have to be what is on record.
  trained "$optimizer, 10 steps" "$optimizer-again" "${whole[@]}" --steps 10
  cp "$optimizer-again/state.safetensors" kept
  trained "$optimizer, on to 17" "$optimizer-again" "${whole[@]}" --steps 17 --resume
  cp kept "$optimizer-again/state.safetensors"
  printf '{"environment":{"argv":["streambp-be' >>"$optimizer-again/results.jsonl"
  trained "$optimizer, on to the end" "$optimizer-again" "${whole[@]}" --steps 24 --resume
  for file in model/model.safetensors state.safetensors; do
    cmp -s "$optimizer/$file" "$optimizer-again/$file" || fail "$file differs from that of the run at one go"
  done
done
check 'the loss falls' falls adamw
check 'the loss falls in half precision' falls masters

trained 'a schedule' rates --dtype float64 --steps 10 --warmup-steps 2 --schedule cosine --learning-rate 0.1 --optimizer sgd
check 'the schedule by hand' rates rates
trained 'nothing learned' still --dtype float64 --steps 1 --optimizer sgd --learning-rate 0
for limit in 0 0.25 100; do
  trained "clipped at $limit" "clip-$limit" --dtype float64 --steps 1 --optimizer sgd --learning-rate 0.01 --clip-norm "$limit"
  check "clipped at $limit, by hand" clipped still/model "clip-$limit/model" "$limit"
done
run 'the trained folder opens' 0 sweep --model adamw/model --dtype float64 --method streambp --seq-len 16 --repeats 1 --out opened --quiet
run 'trained adapters open' 0 sweep --model qwen3-tiny --adapter sft-lora/model --dtype float64 --method streambp --seq-len 16 --repeats 1 --out adapted --quiet
# What TRL compares such an adapter with depends on how it began: it has to be said.
dpo=(sweep --model qwen3-tiny --adapter sft-lora/model --dtype float64 --method streambp --objective dpo --seq-len 16 --repeats 1 --quiet)
run 'an ambiguous reference' 2 "${common[@]}" --adapter sft-lora/model --dtype float64 --objective dpo --steps 2 --out dpo-unsaid
grep -q -- '--reference base' stderr && grep -q -- '--reference adapter' stderr || fail 'the choice is not named'
run 'the base' 0 "${dpo[@]}" --reference base --out dpo-base
run 'a frozen copy' 0 "${dpo[@]}" --reference adapter --out dpo-adapter
check 'log 2 of the copy alone' compared dpo-adapter dpo-base
run 'no adapter' 2 sweep --model qwen3-tiny --objective dpo --method streambp --seq-len 16 --reference adapter --out dpo-none
fresh=(sweep --model qwen3-tiny --lora-rank 4 --dtype float64 --method streambp --objective dpo --seq-len 16 --repeats 1 --quiet)
run 'the base of fresh adapters' 0 "${fresh[@]}" --reference base --out dpo-fresh
check 'log 2 of fresh adapters' fresh dpo-fresh
run 'a copy of fresh adapters' 2 "${fresh[@]}" --reference adapter --out dpo-copy
run 'steps from a frozen copy' 0 "${common[@]}" --adapter sft-lora/model --dtype float64 --objective dpo --reference adapter --steps 2 \
  --learning-rate 0.01 --out dpo-steps
check 'the copy stays what it was' stays dpo-steps

# A base in FP8: what is trained of it is a model as any other, and adapters know it by its folder.
run 'a folder' 0 export --model qwen3-tiny --dtype bfloat16 --out fp8
/usr/bin/python3 - <<'PY' || fail 'packing fails'
import json, struct
with open("fp8/model.safetensors", "rb") as file:
    header, data = json.loads(file.read(struct.unpack("<Q", file.read(8))[0])), file.read()
packed, blob = {}, b""
def add(name, dtype, shape, raw):
    global blob
    packed[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(blob), len(blob) + len(raw)]}
    blob += raw
for name, tensor in header.items():
    if name == "__metadata__":
        continue
    if not name.endswith("_proj.weight"):
        add(name, tensor["dtype"], tensor["shape"], data[slice(*tensor["data_offsets"])])
        continue
    rows, columns = tensor["shape"]
    add(name, "F8_E4M3", tensor["shape"], bytes(i * 37 % 127 + 128 * (i % 2) for i in range(rows * columns)))
    grid = [-(-rows // 128), -(-columns // 128)]
    add(name + "_scale_inv", "F32", grid, struct.pack("<f", 0.001) * grid[0] * grid[1])
text = json.dumps(packed).encode()
with open("fp8/model.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text + blob)
with open("fp8/config.json") as file:
    config = json.load(file)
config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
with open("fp8/config.json", "w") as file:
    json.dump(config, file)
PY
on_fp8=(train --model fp8 --text text --seq-len 33 --batch 2 --dtype bfloat16 --steps 2 --quiet)
run 'trained whole' 0 "${on_fp8[@]}" --out fp8-whole
/usr/bin/python3 - <<'PY' || fail 'not plain bfloat16'
import json, struct
with open("fp8-whole/model/model.safetensors", "rb") as file:
    header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
header.pop("__metadata__")
assert {tensor["dtype"] for tensor in header.values()} == {"BF16"}, header
assert not [name for name in header if "scale_inv" in name], header
with open("fp8-whole/model/config.json") as file:
    assert "quantization_config" not in json.load(file)
PY
run 'it opens' 0 sweep --model fp8-whole/model --method streambp --seq-len 16 --repeats 1 --out fp8-opened --quiet
run 'adapters' 0 "${on_fp8[@]}" --lora-rank 3 --out fp8-lora
run 'they open' 0 sweep --model fp8 --adapter fp8-lora/model --method streambp --seq-len 16 --repeats 1 --out fp8-adapted --quiet

# bad TEXT ARGUMENT...: exit code 2 and a line with TEXT.
bad() {
  local text=$1
  shift
  run "refusing $*" 2 "$@"
  grep -q -- "$text" stderr || fail "no word of '$text'"
}
bad 'holds a training run already' "${common[@]}" --out adamw
bad 'of a run with other options: .*training/weight_decay was 0.01, is 0.02;' "${common[@]}" "${long[@]}" --weight-decay 0.02 --steps 30 --out adamw --resume
bad 'with other options' "${common[@]}" "${long[@]}" --optimizer natural-galore --galore-rank 4 --galore-history 7 --steps 30 --out natural-galore --resume
bad 'damping is 0, expected above 0' "${common[@]}" --optimizer natural-galore --galore-damping 0 --out no
bad 'No such file' train --text nowhere --out no --quiet
mkfifo pipe
bad 'not a regular file' train --text pipe --out no --quiet
bad 'not a regular file' train --text /dev/zero --out no --quiet
bad 'not a regular file' train --text still --out no --quiet
bad 'data-seed' "${common[@]}" --data-seed -1 --out no
bad 'no parameter is left to train' "${common[@]}" --freeze model,lm_head --out no
bad 'expected at least 5000' train --text text --seq-len 5000 --out no --quiet
bad 'asks for more than text' "${common[@]}" --objective grpo --set beta=0 --out no
bad 'expected one' "${common[@]}" --method standard,streambp --out no
bad 'expected one of constant, linear, cosine' "${common[@]}" --schedule square --out no
bad 'the weights are in float32 already' "${common[@]}" --master-weights --out no
bad "can't be trained" "${common[@]}" --device meta --out no

# What a run goes on from has to be its own: the text by its contents, the state by its step and its records.
once=("${common[@]}" --dtype float64 --optimizer sgd)
trained 'to be resumed' resumed --dtype float64 --optimizer sgd --steps 4
tr 'a-z' 'b-za' <text >other
bad 'with other options' train --model qwen3-tiny --text other --seq-len 33 --batch 2 --quiet --dtype float64 --optimizer sgd --out resumed --steps 6 --resume
bad 'of step 4, beyond --steps 3' "${once[@]}" --out resumed --steps 3 --resume
mkdir stateless torn
cp resumed/state.safetensors stateless
bad 'of step 4, of which .*results.jsonl has no record' "${once[@]}" --out stateless --steps 6 --resume
cp resumed/state.safetensors torn
sed '2s/"step":2/"step":"two"/' resumed/results.jsonl >torn/results.jsonl
bad 'results.jsonl line 2: step "two", loss ' "${once[@]}" --out torn --steps 6 --resume

trained 'under a schedule' scheduled --optimizer sgd --schedule cosine --steps 4
bad 'with other options: training/steps was 4, is 6;' "${common[@]}" --optimizer sgd --schedule cosine --out scheduled --steps 6 --resume

# A folder's tokenizer goes with the model.
cp -r resumed/model spoken
echo '{"version": "1.0"}' >spoken/tokenizer.json
run 'a model with a tokenizer' 0 train --model spoken --text text --seq-len 33 --batch 2 --quiet --optimizer sgd --steps 1 --out spoke
cmp -s spoken/tokenizer.json spoke/model/tokenizer.json || fail 'no tokenizer'

# Nothing that a run reads is written over.
cp -r resumed/model model
mkdir -p into
cp -r model into/model
cp text into/model/config.txt
bad 'would replace --model .*which is read' train --model into/model --text text --seq-len 33 --dtype float64 --out into --steps 1 --quiet
cp text into/state.safetensors
bad 'would replace --text into/state.safetensors' train --model qwen3-tiny --text into/state.safetensors --seq-len 33 --out into --steps 1 --quiet
cmp -s model/model.safetensors into/model/model.safetensors || fail 'the weights were written over'

run 'not finite' 1 "${common[@]}" --optimizer sgd --clip-norm 0 --learning-rate 1e30 --steps 5 --out inf
grep -q 'the first gradient that is not: model' stderr || fail 'no word of which tensor'

finish
