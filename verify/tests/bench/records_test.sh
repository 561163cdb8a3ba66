#!/usr/bin/env bash
# streambp-bench records and models: records of several folders as a table, as CSV and as Parquet, presets by size and by repository.
# records_test.sh PROGRAM
root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../../..")
page=$root/bench/records.md
source "$(dirname "${BASH_SOURCE[0]}")/cli_testing.sh"

sweep 'two methods' 0 plain --seq-len 9,17 --method standard,streambp
grep -q 'x standard' stdout || fail 'without checkpoint, ratios are to standard'
grep -Eq '^ +9 +1 +sft +standard +- +[0-9.]+ KB +1.000 ' stdout || fail 'standard is 1 x itself'
sweep 'with settings' 0 kept --seq-len 9 --method streambp,checkpoint --keep-attention --every 2
grep -q 'x ckpt' stdout || fail 'with checkpoint, ratios are to it'
grep -q 'keep-attention, every 2' stdout || fail 'the table does not name the settings'
run 'the same from the records' 0 records kept
grep -q 'keep-attention, every 2' stdout || fail 'the table does not name the settings'
sweep 'an optimizer' 0 other --seq-len 9 --method streambp --optimizer adamw
run 'several folders' 0 records plain kept/results.jsonl other
[ "$(grep -c ' sft ' stdout)" -eq 7 ] || fail 'expected 7 rows'
grep -q 'optimizer bits:32,master_weights:false,name:adamw' stdout || fail 'what differs from run to run is not named'

run 'flat' 0 records plain kept other --flat
/usr/bin/python3 - stdout <<'PYTHON' || fail 'the CSV is not the records'
import csv, json, sys
rows = list(csv.DictReader(open(sys.argv[1], encoding="utf-8", newline="")))
records = [(f"{folder}/results.jsonl", json.loads(line)) for folder in ("plain", "kept", "other") for line in open(f"{folder}/results.jsonl")]
assert len(rows) == len(records) == 7, (len(rows), len(records))
def flat(value, path=""):
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from flat(inner, f"{path}{name}.")
        else:
            yield f"{path}{name}", inner
for row, (file, record) in zip(rows, records):
    assert row["file"] == file
    members = dict(flat(record))
    assert set(members) <= set(row), set(members) - set(row)
    for name, value in members.items():
        if value is None:
            assert row[name] == "", name
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            assert float(row[name]) == value, (name, row[name], value)
        elif isinstance(value, list) and value and all(isinstance(one, float) for one in value):
            assert list(map(float, row[name].split(";"))) == value, (name, row[name], value)
        elif isinstance(value, str):
            assert row[name] == value, (name, row[name], value)
assert rows[-1]["settings.optimizer.name"] == "adamw" and rows[0]["settings.optimizer.name"] == "" and rows[0]["breakdown_at_peak.weights"] == "219392"
PYTHON
sweep 'short of memory' 3 short --seq-len 9,400 --method standard --memory-limit 2MB
run 'flat' 0 records plain short --flat
/usr/bin/python3 - <<'PYTHON' || fail 'what an oom record needs, in columns'
import csv, json
rows, records = list(csv.DictReader(open("stdout", newline=""))), [json.loads(line) for line in open("short/results.jsonl")]
lost = rows[-1]
assert lost["status"] == "oom" and rows[0]["out_of_memory.needed_bytes"] == "", rows
assert int(lost["out_of_memory.asked_bytes"]) + int(lost["out_of_memory.alive_bytes"]) == int(lost["out_of_memory.needed_bytes"]) > 2000000 == int(lost["out_of_memory.limit_bytes"]), lost
PYTHON
/usr/bin/python3 - "$page" <<'PYTHON' || fail 'members that bench/records.md does not explain'
import json, re, sys
explained = set(re.findall(r"`([a-z_]+)`", open(sys.argv[1], encoding="utf-8").read()))
records = [json.loads(line) for folder in ("plain", "kept", "other") for line in open(f"{folder}/results.jsonl")]
records += map(json.loads, open("short/results.jsonl"))
members = {name for r in records for name in (*r, *r["settings"], *r["environment"], *r.get("out_of_memory", ()))}
assert members <= explained, members - explained
PYTHON
# parquet NAME FOLDER...: the Parquet file has what the CSV has, with numbers as numbers; where no Python has pyarrow, what to install is said.
parquet() {
  if "$root/.venv-hf/bin/python" -c 'import pyarrow' 2>/dev/null; then
    STREAMBP_PYTHON=$root/.venv-hf/bin/python run "$1" 0 records "${@:2}" --parquet table.parquet
    "$program" records "${@:2}" --flat >table.csv
    "$root/.venv-hf/bin/python" - <<'PYTHON' >parquet 2>&1 || fail "$(tail -n 1 parquet)"
import csv, pyarrow.parquet
columns = pyarrow.parquet.read_table("table.parquet").to_pydict()
rows = list(csv.DictReader(open("table.csv", encoding="utf-8", newline="")))
def same(value, text):
    if value is None or isinstance(value, str):
        return (value or "") == text
    return text == str(value).lower() if isinstance(value, bool) else float(text) == value
assert rows and list(columns) == list(rows[0]), "other columns"
for name, values in columns.items():
    wrong = [(value, row[name]) for value, row in zip(values, rows, strict=True) if not same(value, row[name])]
    assert not wrong, (name, wrong[:2])
assert all(isinstance(one, int) for one in columns["seq_len"]), columns["seq_len"]
PYTHON
  else
    STREAMBP_PYTHON=$PWD/bare/bin/python run "$1" 2 records "${@:2}" --parquet table.parquet
    grep -q 'pip install pyarrow$' stderr && [ "$(wc -l <stderr)" -eq 1 ] || fail 'expected one line that says what to install'
  fi
}
/usr/bin/python3 -m venv --without-pip bare
parquet 'Parquet' plain kept other
run 'Parquet over a folder' 2 records plain --parquet kept
cp plain/results.jsonl before.jsonl
for output in plain/results.jsonl plain/../plain/results.jsonl kept/results.jsonl; do
  run "Parquet over records" 2 records plain --parquet "$output"
  grep -q 'would replace\|would be lost' stderr || fail 'no word of what would be lost'
done
cmp -s plain/results.jsonl before.jsonl || fail 'the records were written over'
run 'both forms' 2 records plain --flat --parquet again.parquet
mkdir strange
printf '{"schema":1,"method":"x\\u001b[31m","error":"a \\"b\\", c\\nd","seq_len":3}\n' >strange/results.jsonl
run 'names that CSV and terminals would obey' 0 records strange --flat
/usr/bin/python3 -c 'import csv; row, = csv.DictReader(open("stdout", newline="")); assert row["error"] == "a \"b\", c\nd" and row["seq_len"] == "3", row' || fail 'quoting'
grep -q $'\x1b' stdout && fail 'an escape sequence in the CSV'
parquet 'the same in Parquet' strange
run 'and in the table' 0 records strange
grep -q $'\x1b' stdout && fail 'an escape sequence reached the terminal'
printf '{"schema":1,"file":"theirs","seq_len":3,"a":{"b":1},"a.b":2}\n' >strange/results.jsonl
run 'members of one name' 0 records strange --flat
[ "$(head -n 1 stdout)" = 'file,a.b,a.b_,file_,schema,seq_len' ] || fail 'columns of one name'
parquet 'the same in Parquet' strange
run 'no folder' 2 records nowhere
[ "$(wc -l <stderr)" -eq 1 ] && grep -q nowhere stderr || fail 'expected one line that names it'
printf '{"schema":1,"seq_len":"long"}\n' >strange/results.jsonl
run 'a member of the wrong type' 2 records strange
grep -q 'seq_len: expected a number' stderr || fail 'expected the member'
mkdir empty && : >empty/results.jsonl
run 'no record' 2 records empty

run 'presets' 0 models
grep -Eq '^qwen3-8b +8.19 B +36 +4096 +32 +8 +12288 +151936 +bfloat16$' stdout || fail 'Qwen3-8B'
run 'as JSON' 0 models --json
check 'by size, each once' '([r["parameters"] for r in records] == sorted(r["parameters"] for r in records) and len({r["preset"] for r in records})
  == len(records) > 50 and {r["preset"]: r["parameters"] for r in records}["qwen3-8b"] == 8190735360)' stdout
run 'by the name of a repository' 0 max-length --model Qwen/Qwen3-4B --budget 20GB --method streambp --json
grep -q 'Qwen/Qwen3-4B: no folder, taken as the preset qwen3-4b with random weights' stderr || fail 'it is not said'
cp stdout by-repository
run 'by its own' 0 max-length --model qwen3-4b --budget 20GB --method streambp --json
/usr/bin/python3 -c 'import json; a, b = (json.loads(open(n).read()) for n in ("by-repository", "stdout")); assert a["seq_len"] == b["seq_len"] > 1000' || fail 'another length'
run 'neither' 2 max-length --model Qwen/Qwen99-4B --budget 20GB
grep -q 'streambp-bench models' stderr || fail 'where presets are listed'
run 'all methods and objectives but distillation' 0 sweep --model qwen3-tiny --device meta --seq-len 24 --batch 2 --method all --objective sft,dpo --out all-methods
check 'twelve' 'len(records) == 12 and len({r["method"] for r in records}) == 6' all-methods/results.jsonl
run 'all objectives' 0 sweep --model qwen3-tiny --device meta --seq-len 24 --batch 2 --method standard --objective all --teacher qwen3-tiny --out all-objectives
check 'each once' 'len(records) == len({r["objective"] for r in records}) > 10' all-objectives/results.jsonl

finish
