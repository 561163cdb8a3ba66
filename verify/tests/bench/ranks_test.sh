#!/usr/bin/env bash
# streambp-bench ranks: processes of this machine, and ranks that are only counted.
# ranks_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/cli_testing.sh"

# refuses_ranks TEXT ARGUMENT...: one line on stderr, and no record.
refuses_ranks() {
  local text=$1
  shift
  run "refusing $*" 2 ranks --out refused "$@"
  [ "$(wc -l <stderr)" -eq 1 ] || fail "expected one line on stderr"
  grep -qF -- "$text" stderr || fail "stderr does not say '$text'"
  [ ! -e refused ] || fail "expected no record"
}
refuses_ranks '--ranks 2,3: expected one number of processes' --ranks 2,3
refuses_ranks '--ranks' --ranks 0
refuses_ranks "--zero 'zero-4'" --zero none,zero-4
refuses_ranks '--weights host' --weights host
refuses_ranks '--device cuda' --device cuda
refuses_ranks '--fuse-optimizer sgd' --fuse-optimizer sgd
refuses_ranks '--method auto' --method auto
refuses_ranks '--micro-batches 2' --micro-batches 2

of_all=(--model qwen3-tiny --dtype float64 --method streambp --chunk 7 --objective sft,dpo --seq-len 33 --batch 2 --optimizer adamw)
run 'two processes' 0 ranks "${of_all[@]}" --ranks 2 --repeats 2 --out two
run 'counted ranks' 0 ranks "${of_all[@]}" --ranks 2,8,1024 --device meta --out counted
cat two/results.jsonl counted/results.jsonl >all.jsonl
check 'every stage and objective' 'len(records) == 8 + 24' all.jsonl
cat >figures.py <<'PYTHON'
import json, sys
records = [json.loads(line) for line in open("all.jsonl", encoding="utf-8")]
def of(kind, ranks):
    chosen = [r for r in records if r["kind"] == kind and r["settings"]["ranks"] == ranks]
    return {(r["objective"], r["settings"]["zero"]): r for r in chosen}
two, counted = of("measured", 2), of("predicted", 2)
for cell, record in two.items():
    assert record["sent_by_pass"] == counted[cell]["sent_by_pass"], cell
    assert record["sent_by_step"] == counted[cell]["sent_by_step"], cell
    assert record["loss"] == two[cell[0], "none"]["loss"], cell
    assert len(record["seconds"]) == 2 and record["tokens"] == counted[cell]["tokens"] == 132, cell
# Parameters that 2, 8 and 1,024 ranks may not divide: the rest of a group is at most P - 1 numbers.
parameters, groups = 8 * records[0]["parameters"], 4
for ranks in (2, 8, 1024):
    for stage in ("zero-1", "zero-2", "zero-3"):
        sent = of("predicted", ranks)["sft", stage]["sent_by_pass"]["reduce_scatter"]
        exact = parameters * (ranks - 1) / ranks
        assert abs(sent["bytes"] - exact) <= 8 * groups, (ranks, stage, sent, exact)
        assert sent["messages"] <= groups * (ranks - 1)
for stage in ("zero-2", "zero-3"):
    memory = [of("predicted", ranks)["sft", stage]["resident_bytes"] for ranks in (2, 8, 1024)]
    assert memory == sorted(memory, reverse=True) and memory[0] > memory[2], memory
weights, divided = (of("predicted", 8)["sft", stage]["resident_bytes"] for stage in ("zero-2", "zero-3"))
assert divided < weights, (weights, divided)
PYTHON
name='figures' && { python3 figures.py 2>stderr || fail "$(tail -n 1 stderr)"; }

# Two that torchrun might have started, of which one has another command line.
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port
RANK=1 "$program" ranks --model qwen3-tiny --method streambp --seq-len 34 --out other >other 2>&1 &
RANK=0 run 'another command line' 2 ranks --model qwen3-tiny --method streambp --seq-len 33 --out one
wait $!
grep -q 'rank 1 disagrees with rank 0 on the command line' stderr || fail 'stderr does not name the rank'
unset WORLD_SIZE MASTER_ADDR MASTER_PORT

# A rank that is killed, early or late: all end, the message names it, whole records stay.
for moment in 0 0.5 2; do
  name="killed after $moment s"
  "$program" ranks "${of_all[@]}" --ranks 3 --repeats 100000 --out "killed-$moment" >stdout 2>stderr &
  parent=$!
  ranks=()
  while kill -0 "$parent" 2>/dev/null && [ "${#ranks[@]}" -lt 3 ]; do
    mapfile -t ranks < <(pgrep -P "$parent")
    sleep 0.05
  done
  sleep "$moment"
  victim=$((RANDOM % 3))
  start=$SECONDS
  kill -9 "${ranks[$victim]}" || kill "$parent"
  wait "$parent"
  code=$?
  [ "$code" -eq 137 ] || fail "exit $code, expected 137"
  [ $((SECONDS - start)) -lt 30 ] || fail "took $((SECONDS - start)) s"
  grep -q "rank $victim was ended by signal 9" stderr || fail 'stderr does not name the rank'
  for rank in "${ranks[@]}"; do
    kill -0 "$rank" 2>/dev/null && fail "process $rank is left over"
  done
  [ ! -s "killed-$moment/results.jsonl" ] || check 'whole records' 'all(r["status"] == "ok" for r in records)' "killed-$moment/results.jsonl"
done

finish
