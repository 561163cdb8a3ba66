#!/usr/bin/env bash
# streambp-verify goldens: bad usage, tampered files of a set, cases that are unsupported or fail.
# goldens_cli_test.sh PROGRAM GOLDENS
source "$(dirname "${BASH_SOURCE[0]}")/cli_testing.sh"

refuses 'no command' 'subcommand'
refuses 'unknown command' 'no command' nonsense
refuses 'unknown flag' '--nonsense' goldens --nonsense "$goldens"
refuses 'no folder given' 'DIR' goldens
refuses 'missing folder' "$folder/none" goldens "$folder/none"
refuses 'no set' 'expected a set of golden cases' goldens "$goldens/models"
refuses 'unknown method' "expected one of standard, checkpoint, streambp, tiled, logits-only, chunk-major, reference" goldens "$set" --method nonsense
refuses 'chunk 0' "--chunk '0'" goldens "$set" --chunk 0
refuses 'empty list' '--chunk' goldens "$set" --chunk 1,,2
refuses 'limit 0' '--limit' goldens "$set" --limit 0
refuses 'limit inf' 'expected a finite number above 0' goldens "$set" --limit inf
refuses 'seed -1' '--seed' gradcheck --seed -1
for part in 0/2 3/2 2 1/2/3 a/b 1/ /2 1/2000; do refuses "part $part" "--part '$part'" goldens "$set" --part "$part"; done
for jobs in 0 -1 1000; do
  "$program" goldens "$set" --jobs "$jobs" >"$folder/out" 2>"$folder/err"
  [ $? -eq 2 ] && grep -qF -- "--jobs $jobs" "$folder/err" || fail "jobs $jobs"
done
refuses 'jobs and threads' '--threads: not with --jobs 2' goldens "$set" --jobs 2
for command in goldens sweep gradcheck precision compare long; do
  run "help of $command" 0 "$command" --help
  says "  streambp-verify $command"
  says 'Exit codes: 0 '
done

head -c 5000 "$tensors" >"$tampered"
refuses 'truncated safetensors' 'tensors.safetensors' goldens "$set"
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
sed "s|\"model\": \"models/qwen3\"|\"model\": \"../set/models/qwen3\"|" "$folder/case.json" >"$set/cases/$case/case.json"
refuses 'model outside of the set' 'model is "../set/models/qwen3", expected a path within the set' goldens "$set"
sed "s|\"model\": \"models/qwen3\"|\"model\": \"$set/models/qwen3\"|" "$folder/case.json" >"$set/cases/$case/case.json"
refuses 'an absolute model' 'expected a path within the set' goldens "$set"
echo '{"name": ' >"$set/cases/$case/case.json"
refuses 'case.json is no JSON' 'case.json' goldens "$set"
sed 's/"objective": "sft"/"objective": "nonsense"/' "$folder/case.json" >"$set/cases/$case/case.json"
refuses 'nothing that could be run' 'none of the 1 cases could be run' goldens "$set"


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
says '0 passed, 1 failed, 0 unsupported; limit 1.0e-10'
run 'tampered golden as JSON' 1 goldens "$set" --method streambp --chunk 7 --json
says "\"worst_parameter\":\"$parameter\""
says '"verdict":"FAIL"'
run 'tampered golden within a wider limit' 0 goldens "$set" --method streambp --chunk 7 --limit 1e-5
edit "$tensors" "$tampered" "values if name != '$parameter' else values[:-1] + [math.nan]"
run 'NaN in a golden' 1 goldens "$set" --method streambp --chunk 7 --limit 1e300
says "$parameter  NaN"

# Goldens of other kinds, tampered with: another adapter weight, a reference that is not the case's, an unknown setting.
kinds=$folder/kinds
mkdir -p "$kinds/cases" "$kinds/models"
cp -r "$goldens/models/qwen3" "$kinds/models/"
for name in qwen3-lora-dpo-sigmoid qwen3-dpo-sigmoid_refmodel qwen3-ppo-separate; do
  cp -r "$goldens/cases/$name" "$kinds/cases/"
done
run 'three kinds' 0 goldens "$kinds" --chunk 7
says '3 passed, 0 failed'
"$program" goldens "$kinds" --chunk 7 --jobs 3 --json >"$folder/together" 2>"$folder/err" || fail 'three jobs'
run 'one after another' 0 goldens "$kinds" --chunk 7 --json
cmp -s <(sort "$folder/out") <(sort "$folder/together") || fail 'three jobs find something else'
run 'first of two parts' 0 goldens "$kinds" --chunk 7 --part 1/2
says '2 passed, 0 failed'
run 'second of two parts' 0 goldens "$kinds" --chunk 7 --part 2/2
says '1 passed, 0 failed'
says 'qwen3-lora-dpo-sigmoid'
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

finish
