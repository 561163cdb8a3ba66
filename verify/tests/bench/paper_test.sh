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

finish
