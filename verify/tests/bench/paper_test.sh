#!/usr/bin/env bash
# streambp-bench linear and paper: the linear example for real, and the paper's tables next to predictions.
# paper_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/cli_testing.sh"

run 'the linear example on the CPU' 0 linear --rows 400 --size 65 --chunks 3,7,400 --device cpu --dtype float64
run 'the linear example in too many chunks' 2 linear --rows 400 --size 65 --chunks 401 --device cpu
run 'the linear example at paper scale' 0 paper --table 8 --out paper --quiet
grep -q 'Table 8' paper/paper.md || fail 'paper.md has no table 8'
[ -s paper/cells.csv ] || fail 'no cells of the paper'
run 'a table that the paper does not have' 2 paper --table 12 --out paper --quiet
run 'measurements in a folder that is not there' 2 paper --table 8 --measured nowhere --out paper --quiet

times=(paper --table 1,2 --scale cpu --model qwen3-tiny --thousand 5 --repeats 2 --threads 1 --out times --quiet)
run 'tables 1 and 2 in turns on a tiny model' 0 "${times[@]}"
[ "$(wc -l < times/results.jsonl)" -eq 52 ] || fail "expected 52 records, there are $(wc -l < times/results.jsonl)"
grep -q '## Table 2: by batch' times/times.md || fail 'times.md has no table 2'
# The paper's own ratio: 25.8 s of nothing at 27K, 21.2 of 24.3 s at 24K.
grep -q '^| streambp | paper | 1.040 | 1.000 | 0.946 | 0.926 | 0.898 | 0.891 | 0.872 | - |$' times/times.md ||
  fail "the paper's ratios are not its own"
# Counted operations of the paper's model: none saved against a causal baseline, more the longer against all scores.
grep -q '^| 24K | 0.872 | 0.998 | 0.658 |' times/times.md || fail 'no operations at 24K'
run 'again: every cell is known' 0 "${times[@]}"
[ "$(wc -l < times/results.jsonl)" -eq 52 ] || fail 'cells were run twice'
run 'times without a scale' 2 paper --table 1 --out times --quiet
run 'times and predictions in one report' 2 paper --table 1,3 --scale cpu --out times --quiet
run 'a scale of predictions' 2 paper --table 8 --scale cpu --out paper --quiet
run 'a scale that there is not' 2 paper --table 1 --scale tpu --out times --quiet

finish
