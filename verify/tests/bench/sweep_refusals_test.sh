#!/usr/bin/env bash
# streambp-bench sweep: bad input ends in exit code 2, one line on stderr, and no record.
# sweep_refusals_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/cli_testing.sh"

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
refuses '--head-dtype' --head-dtype bfloat16
refuses 'float64' --dtype float64 --head-dtype float32
refuses 'expected cpu, cuda, cuda:N' --device tpu
refuses '--deterministic' --deterministic
refuses '--deterministic' --deterministic --device meta
refuses '--memory-limit' --memory-cap 5XB
refuses "model 'no-such-model': neither a folder nor a preset (streambp-bench models lists them)" --model no-such-model
refuses 'did you mean qwen3-8b?' --model Qwen3-8
refuses 'did you mean gemma-4-26b-a4b?' --model gemma-4-26b
refuses 'sweep takes no --metod streambp; did you mean --method?' --metod streambp
run "a command misspelt" 2 maxlength --model qwen3-8b
grep -q '^streambp-bench: maxlength: no command; did you mean max-length? ' stderr || fail "which command"
refuses 'config.json' --model .
refuses '--memory-limit' --memory-limit 5XB
refuses 'positive' --divisor 0
refuses 'positive' --divisor nan
refuses 'no parameter' --freeze embed_tokens,nonesuch
refuses 'nonesuch' --tokens nonesuch.safetensors
refuses '--tokens' --tokens nonesuch.safetensors --batch 2
refuses '--frobnicate' --frobnicate
refuses 'whole number from 0 to 18446744073709551615' --seed -1
refuses '--seed' --seed 18446744073709551616
refuses 'label_smoothing is given twice' --set label_smoothing=0.1,label_smoothing=0.2
refuses 'given with --set divisor=4' --divisor 3 --set divisor=4
refuses '--micro-batches 3: expected at most 2' --batch 2 --micro-batches 3
refuses '--prompt 5: expected at most 4' --seq-len 9 --prompt 5
refuses '--prompt 3: expected at most 2' --seq-len 9 --prompt 3 --objective dpo --lora-rank 2
refuses "--reference '': expected a folder or a preset" --reference ''
refuses "--tokens '': expected a safetensors file" --tokens ''
refuses '--batch 4611686018427387904: expected at most' --batch 4611686018427387904
refuses '--lora-rank' --lora-rank 1000000000000
refuses '--fuse-optimizer' --learning-rate nan
refuses 'standard keeps all gradients, expected --method checkpoint, ' --method standard,streambp --fuse-optimizer sgd
refuses '--threads: given more than once' --threads 1 --threads 1
refuses 'expected float32 or bfloat16, or --device cuda, meta or meta:cuda' --dtype float16
STREAMBP_ISA=nope refuses "STREAMBP_ISA 'nope'" --seq-len 9
refuses 'expected some of' --set nonesuch=1
refuses 'name=value' --set beta
refuses 'expected none' --set pad_token_id=-1
refuses 'the vocabulary has' --set pad_token_id=1000000
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

# Sizes beyond the limits that --help states.
refuses '--seq-len 67108865' --method streambp --seq-len 67108865
refuses '67108864 tokens' --method streambp --seq-len 1000000 --batch 100

finish
