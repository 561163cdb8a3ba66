#!/usr/bin/env bash
# streambp-bench ranks: processes of this machine, and ranks that are only counted.
# ranks_test.sh PROGRAM [KILLS]     KILLS: instead of all else, a rank is killed at as many random moments
source "$(dirname "${BASH_SOURCE[0]}")/cli_testing.sh"

of_one=(--model qwen3-tiny --dtype float64 --method streambp --chunk 7 --seq-len 33 --batch 2 --optimizer adamw)
of_all=("${of_one[@]}" --objective sft,dpo)
if [ $# -lt 2 ]; then

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
refuses_ranks '--zero zero-2,zero-3: gradients are divided layer by layer' --zero zero-2,zero-3 --method standard
refuses_ranks '--weights host' --weights host
refuses_ranks '--device cuda' --device cuda
refuses_ranks '--fuse-optimizer sgd' --fuse-optimizer sgd
refuses_ranks '--method auto' --method auto
refuses_ranks '--micro-batches 2 with --divide rows: expected 1' --divide rows --method streambp --batch 2 --micro-batches 2
refuses_ranks '--micro-batches 3: expected at most 2' --device meta --method streambp --batch 2 --micro-batches 3
refuses_ranks "--divide 'tokens': expected sequences or rows" --divide tokens
refuses_ranks '--memory-limit: of measured runs' --device meta --memory-limit 1GB
refuses_ranks '--teraflops: of predictions alone' --teraflops 3
refuses_ranks '--resume with --budget' --device meta --resume --budget 1GB
refuses_ranks '--divide rows: expected --method streambp' --divide rows
refuses_ranks "--exchange 'star': expected gather, ring or ulysses" --divide rows --method streambp --exchange star
refuses_ranks '--exchange ring: of ranks that divide rows, expected --divide rows' --exchange ring
refuses_ranks '8 heads and 4 of keys over 3 ranks' --device meta --ranks 3 --divide rows --method streambp --exchange ulysses

refuses_ranks '--ranks 1025: expected at most 1024 processes of one machine' --ranks 1025
refuses_ranks '--ranks 9223372036854775807: expected at most 65536 ranks' --device meta --ranks 8,9223372036854775807
refuses_ranks '--seq-len 8,16 with --budget' --device meta --seq-len 8,16 --budget 1GB
refuses_ranks 'no model' --model 'no model'
run 'a number, a stage twice' 0 ranks "${of_one[@]}" --device meta --ranks 2,2 --zero none,zero-1,none --out once
[ "$(wc -l <once/results.jsonl)" -eq 2 ] || fail 'a cell was run twice'
(failures=0; ulimit -n 50; run 'too few descriptors' 2 ranks "${of_one[@]}" --ranks 2 --out starved; exit $failures)
failures=$((failures + $?))
grep -q 'open files' stderr && [ ! -e starved ] || fail 'stderr does not say what ran out'

# A cell that fails is recorded, and ends the program with 1.
run 'a loss that is not finite' 1 ranks "${of_one[@]}" --set divisor=1e-320 --zero none,zero-1 --ranks 2 --repeats 1 --out failing
[ "$(grep -c 'the loss is' stderr)" -eq 2 ] || fail 'stderr does not say what failed'
check 'failed cells' '[r["status"] for r in records] == ["error", "error"]' failing/results.jsonl

# One run at a time has a folder, and what is in it stays.
"$program" ranks "${of_one[@]}" --zero none --ranks 2 --repeats 1000000 --out held >held.txt 2>&1 &
first=$!
while [ ! -e held/results.jsonl ]; do sleep 0.05; done
start=$SECONDS
run 'a second run in a folder' 2 ranks "${of_one[@]}" --zero none --ranks 2 --repeats 1 --out held
[ $((SECONDS - start)) -le 2 ] || fail "took $((SECONDS - start)) s"
grep -q 'held: another run is writing to it' stderr || fail 'stderr does not say why'
kill -0 "$first" || fail 'the first run has ended'
kill "$first"
wait "$first" 2>/dev/null

# The record of a rank that runs out is a file as results are: nothing else that has its name is touched.
mkdir planted planted/.streambp-out-of-memory.json piped linked-to
mkfifo piped/.streambp-out-of-memory.json
echo kept >precious
ln -s ../precious linked-to/.streambp-out-of-memory.json
for what in 'planted folder' 'piped FIFO' 'linked-to link'; do
  run "a ${what#* } of the record's name" 2 ranks "${of_one[@]}" --zero none --ranks 2 --repeats 1 --out "${what% *}"
  grep -qF "${what% *}/.streambp-out-of-memory.json: can't be written: it is a" stderr || fail 'stderr does not name it'
done
[ "$(cat precious)" = kept ] || fail 'a file was overwritten'

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
name='figures' && { /usr/bin/python3 figures.py 2>stderr || fail "$(tail -n 1 stderr)"; }

run 'records that are there' 2 ranks "${of_all[@]}" --ranks 2 --repeats 2 --out two
grep -q 'two/results.jsonl: holds 8 records already; expected --resume' stderr || fail 'stderr does not name them'
run 'records that are there, counted' 2 ranks "${of_all[@]}" --ranks 2,8,1024 --device meta --out counted
[ "$(cat two/results.jsonl counted/results.jsonl | wc -l)" -eq 32 ] || fail 'records were added'

# What is on record is not run again; what a killed run has left out is.
head -n 5 two/results.jsonl >some.jsonl
mkdir resumed && cp some.jsonl resumed/results.jsonl
run 'resumed' 0 ranks "${of_all[@]}" --ranks 2 --repeats 2 --resume --out resumed
[ "$(grep -c ' zero-\| none ' stdout)" -eq 8 ] || fail 'the table has not all runs'
cmp -s some.jsonl <(head -n 5 resumed/results.jsonl) && [ "$(wc -l <resumed/results.jsonl)" -eq 8 ] || fail 'expected three more records'
run 'resumed, counted' 0 ranks "${of_all[@]}" --ranks 2,8,1024 --device meta --resume --out counted
[ "$(wc -l <counted/results.jsonl)" -eq 24 ] || fail 'counted ranks were run twice'
run 'a page of records of ranks' 0 report two counted --output ranks.html
grep -q 'zero-3' ranks.html || fail 'the page does not name the stages'

# Micro-batches: the loss of one pass, and gradients sent once; under ZeRO-2 with each micro-batch.
run 'micro-batches on two processes' 0 ranks "${of_one[@]}" --zero none,zero-1,zero-2 --ranks 2 --micro-batches 2 --repeats 2 --out parts
cat parts/results.jsonl >>all.jsonl
cat >parts.py <<'PYTHON'
import json
records = [json.loads(line) for line in open("all.jsonl", encoding="utf-8")]
chosen = [r for r in records if r["kind"] == "measured" and r["objective"] == "sft"]
whole, parts = ({r["settings"]["zero"]: r for r in chosen if r["settings"]["micro_batches"] == count} for count in (1, 2))
assert sorted(parts) == ["none", "zero-1", "zero-2"], parts.keys()
for stage, record in parts.items():
    one, kind = whole[stage], "all_reduce" if stage == "none" else "reduce_scatter"
    assert abs(record["loss"] / one["loss"] - 1) <= 1e-12 and record["tokens"] == one["tokens"], (stage, record["loss"], one["loss"])
    passes = 2 if stage == "zero-2" else 1
    assert record["sent_by_pass"][kind]["bytes"] == passes * one["sent_by_pass"][kind]["bytes"], stage
    assert record["key"] != one["key"], stage
PYTHON
name='micro-batches' && { /usr/bin/python3 parts.py 2>stderr || fail "$(tail -n 1 stderr)"; }

# Float32 master weights of bfloat16 ones: what two processes hold before a pass is what is predicted, 12 bytes a number of a share.
masters=(--model qwen3-tiny --dtype bfloat16 --method streambp --chunk 7 --seq-len 33 --optimizer adamw --repeats 1)
run 'master weights on two processes' 0 ranks "${masters[@]}" --master-weights --ranks 2 --out masters-2
run 'master weights on counted ranks' 0 ranks "${masters[@]}" --master-weights --ranks 2 --device meta --out masters-counted
run 'no master weights' 0 ranks "${masters[@]}" --ranks 2 --device meta --out masters-none
refuses_ranks '--master-weights: steps are taken of them, expected --optimizer' --dtype bfloat16 --master-weights
cat masters-2/results.jsonl masters-counted/results.jsonl masters-none/results.jsonl >masters.jsonl
cat >masters.py <<'PYTHON'
import json
records = [json.loads(line) for line in open("masters.jsonl", encoding="utf-8")]
measured, counted, none = ({r["settings"]["zero"]: r for r in records[i : i + 4]} for i in (0, 4, 8))
numbers = records[0]["parameters"]
for stage, record in measured.items():
    assert record["settings"]["optimizer"]["master_weights"] is True, stage
    assert abs(record["resident_bytes"] / counted[stage]["resident_bytes"] - 1) <= 0.01, (stage, record["resident_bytes"], counted[stage]["resident_bytes"])
    assert record["sent_by_step"] == counted[stage]["sent_by_step"], stage
    share = numbers if stage == "none" else numbers / 2
    more = counted[stage]["resident_bytes"] - none[stage]["resident_bytes"]
    assert abs(more / (4 * share) - 1) <= 0.01, (stage, more, share)
PYTHON
name='master weights' && { /usr/bin/python3 masters.py 2>stderr || fail "$(tail -n 1 stderr)"; }

# One batch whose rows two processes divide: the losses of one process, and memory that many ranks divide.
of_rows=(--divide rows --model gemma3-tiny --dtype float64 --method streambp --chunk 7 --objective sft,dpo --seq-len 135 --zero none,zero-2 --repeats 1)
run 'rows on two processes' 0 ranks "${of_rows[@]}" --ranks 2 --out rows-2
run 'rows on one process' 0 ranks "${of_rows[@]}" --ranks 1 --out rows-1
run 'rows on counted ranks' 0 ranks "${of_rows[@]}" --ranks 2,8 --device meta --out rows-counted
cat rows-1/results.jsonl rows-2/results.jsonl rows-counted/results.jsonl >rows.jsonl
check 'rows are named' 'all(r["settings"]["divide"] == "rows" for r in records) and len(records) == 16' rows.jsonl
cat >rows.py <<'PYTHON'
import json
records = [json.loads(line) for line in open("rows.jsonl", encoding="utf-8")]
def of(kind, ranks):
    chosen = [r for r in records if r["kind"] == kind and r["settings"]["ranks"] == ranks]
    return {(r["objective"], r["settings"]["zero"]): r for r in chosen}
one, two, counted, eight = of("measured", 1), of("measured", 2), of("predicted", 2), of("predicted", 8)
for cell, record in two.items():
    assert abs(record["loss"] / one[cell]["loss"] - 1) <= 1e-12, (cell, record["loss"], one[cell]["loss"])
    assert record["tokens"] == one[cell]["tokens"] == counted[cell]["tokens"] == eight[cell]["tokens"], cell
    assert "send_receive" in record["sent_by_pass"] and "send_receive" not in one[cell]["sent_by_pass"], cell
    inputs = [counted[cell]["breakdown_at_peak"]["layer inputs"], eight[cell]["breakdown_at_peak"]["layer inputs"]]
    assert inputs[0] > 3 * inputs[1], (cell, inputs)
PYTHON
name='rows' && { /usr/bin/python3 rows.py 2>stderr || fail "$(tail -n 1 stderr)"; }

# The three exchanges: one loss, and the memory and messages that are predicted.
exchanges=(--divide rows --exchange gather,ring,ulysses --model qwen3-cpu --lora-rank 4 --method streambp --chunk 32 --seq-len 201 --zero zero-2 --repeats 1)
run 'exchanges on two processes' 0 ranks "${exchanges[@]}" --ranks 2 --out exchanges-2
run 'exchanges on counted ranks' 0 ranks "${exchanges[@]}" --ranks 2,4 --device meta --out exchanges-counted
cat >exchanges.py <<'PYTHON'
import json
measured = [json.loads(line) for line in open("exchanges-2/results.jsonl", encoding="utf-8")]
counted = [json.loads(line) for line in open("exchanges-counted/results.jsonl", encoding="utf-8")]
by_exchange = lambda records: {r["settings"].get("exchange", "gather"): r for r in records}
two, same = by_exchange(measured), by_exchange(counted[:3])
assert sorted(two) == sorted(same) == ["gather", "ring", "ulysses"] and len(counted) == 6, (two.keys(), len(counted))
for exchange, record in two.items():
    assert abs(record["loss"] / two["gather"]["loss"] - 1) <= 1e-6, (exchange, record["loss"])
    assert record["sent_by_pass"] == same[exchange]["sent_by_pass"], exchange
    error = same[exchange]["peak_bytes"] / record["peak_bytes"] - 1
    print(f"{exchange}: predicted peak off by {100 * error:.3f} %")
    assert abs(error) <= 0.01, (exchange, error)
PYTHON
name='exchanges' && { /usr/bin/python3 exchanges.py 2>stderr || fail "$(tail -n 1 stderr)"; }

# Two that torchrun might have started, of which one has another command line.
port=$(/usr/bin/python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port
RANK=1 "$program" ranks --model qwen3-tiny --method streambp --seq-len 34 --out other >other 2>&1 &
RANK=0 run 'another command line' 2 ranks --model qwen3-tiny --method streambp --seq-len 33 --out one
wait $!
grep -q 'rank 1 disagrees with rank 0 on the command line' stderr || fail 'stderr does not name the rank'
unset WORLD_SIZE MASTER_ADDR MASTER_PORT

# Messages on a thread of their own: the same losses and messages, and a trace with both threads.
run 'overlapped' 0 ranks "${of_one[@]}" --zero zero-2 --ranks 2 --repeats 2 --overlap --trace overlap.json --out overlapped
cp stdout overlapped.txt
run 'several runs in a trace' 2 ranks "${of_all[@]}" --ranks 2 --trace several.json --out several
grep -q 'zero-2, streambp, 33 tokens: .* % of .* s of communication hidden' overlapped.txt || fail 'stdout does not say what was hidden'
cat >overlap.py <<'PYTHON'
import json
record = json.loads(open("overlapped/results.jsonl", encoding="utf-8").readline())
plain = [json.loads(line) for line in open("two/results.jsonl", encoding="utf-8")]
plain = next(r for r in plain if r["objective"] == "sft" and r["settings"]["zero"] == "zero-2")
assert record["settings"]["overlap"] is True and "overlap" not in plain["settings"]
assert record["loss"] == plain["loss"] and record["sent_by_pass"] == plain["sent_by_pass"]
communication = record["communication"]
assert 0 < communication["seconds"] < 60 and communication["waited_seconds"] >= 0 and plain["communication"] is None, communication
assert 0 < communication["last_seconds"] < communication["seconds"] and 0 <= communication["hidden_before_last"] <= 1, communication
assert abs(communication["hidden"] - max(0, 1 - communication["waited_seconds"] / communication["seconds"])) <= 1e-12, communication
events = json.load(open("overlap.json", encoding="utf-8"))["traceEvents"]
sums = [e for e in events if e["ph"] == "B" and e["name"] == "sums over ranks"]
assert sums and all(e["tid"] == 2 for e in sums), sums
assert any(e["ph"] == "B" and e["tid"] == 1 and "backward" in e["name"] for e in events)
PYTHON
name='overlap' && { /usr/bin/python3 overlap.py 2>stderr || fail "$(tail -n 1 stderr)"; }

# A link of 4 MB/s: what ZeRO-2 sends of a step, 0.6 MB and its weights, takes so long, and a link has its own key.
run 'a simulated link' 0 ranks "${of_one[@]}" --zero zero-2 --ranks 2 --repeats 2 --link 4MB --out linked
cat >link.py <<'PYTHON'
import json
record = json.loads(open("linked/results.jsonl", encoding="utf-8").readline())
plain = json.loads(open("two/results.jsonl", encoding="utf-8").readlines()[2])
assert record["settings"]["link"] == 4000000 and "link" not in plain["settings"] and record["key"] != plain["key"]
assert record["loss"] == plain["loss"] and record["sent_by_pass"] == plain["sent_by_pass"], (record["loss"], plain["loss"])
sent = sum(t["bytes"] for member in ("sent_by_pass", "sent_by_step") for t in record[member].values())
assert record["seconds_median"] >= sent / 4e6, (record["seconds_median"], sent)
PYTHON
name='a simulated link' && { /usr/bin/python3 link.py 2>stderr || fail "$(tail -n 1 stderr)"; }

# A rank that runs out of memory is a result: it is recorded, and the rest is run.
short=(--model qwen3-tiny --dtype float64 --ranks 2 --zero none --method standard,streambp --chunk 16 --seq-len 64,1024 --repeats 1)
run 'out of memory' 3 ranks "${short[@]}" --memory-limit 6MB --out short
[ "$(grep -c ' none ' stdout)" -eq 4 ] && [ "$(grep -c ' oom ' stdout)" -eq 1 ] || fail 'the table has not all runs'
grep -q '^none, standard, 1024 tokens: rank [01]: out of memory on cpu: .* limit 6000000$' stderr || fail 'stderr does not say what ran out'
check 'one that ran out' '[r["status"] for r in records] == ["ok", "ok", "oom", "ok"]' short/results.jsonl
check 'its bytes' 'records[2]["out_of_memory"]["limit_bytes"] == 6000000 < records[2]["out_of_memory"]["needed_bytes"]' short/results.jsonl
[ "$(ls short)" = results.jsonl ] || fail 'expected no other file'
run 'out of memory, resumed' 3 ranks "${short[@]}" --memory-limit 6MB --resume --out short
[ "$(wc -l <short/results.jsonl)" -eq 4 ] || fail 'a cell was run twice'
run 'out of memory, in JSON' 3 ranks "${short[@]}" --memory-limit 6MB --json --out short-json
/usr/bin/python3 -c 'import json; assert [json.loads(line)["status"] for line in open("stdout")] == ["ok", "ok", "oom", "ok"]' || fail 'expected each record once'

# A cell that fails before one that runs out: it is known when ranks are started again, and the exit code is its own.
run 'failed and out of memory' 1 ranks "${short[@]}" --set divisor=1e-320 --memory-limit 6MB --out short-failing
check 'each cell once' '[r["status"] for r in records] == ["error", "error", "oom", "error"]' short-failing/results.jsonl

# The paper's rows next to predictions of its model.
of_paper=(--model qwen3-8b --dtype bfloat16 --device meta --zero zero-2 --method checkpoint,streambp --optimizer adamw)
run 'table 5' 0 ranks "${of_paper[@]}" --ranks 8 --seq-len 6000 --teraflops 312 --link 400GB --out table-5
grep -q '^paper, table 5, checkpoint, 6K tokens, ranks and batch not known: 8.4 s; on paper here, 8 ranks: ' stdout || fail "no word of the paper's 8.4 s"
grep -q "^paper, table 5, 6000 tokens: streambp takes 0.762 of checkpoint's time" stdout || fail 'no ratio'
check 'the published figure' '[r["published"]["seconds"] for r in records] == [8.4, 6.4]' table-5/results.jsonl

fi

# A rank that is killed, early or late: all end, the message names it, whole records stay.
moments=(0 0.3 1)
for ((kill = 0; kill < ${2:-0}; ++kill)); do
  moments[kill]="$((RANDOM % 5)).$((RANDOM % 1000))"
done
for moment in "${moments[@]}"; do
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
