#!/usr/bin/env bash
# streambp-bench report --diff: what changed between two folders, with the numbers that decided; cells of one folder only are listed.
# report_diff_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/cli_testing.sh"

sweep 'a grid' 0 before --seq-len 9,17
/usr/bin/python3 - <<'PYTHON'
import json, os
records = [json.loads(line) for line in open("before/results.jsonl")]
def write(folder, changed):
    os.makedirs(folder, exist_ok=True)
    with open(folder + "/results.jsonl", "w") as file:
        file.writelines(json.dumps(r) + "\n" for r in changed)
def copies(**members):
    return [json.loads(json.dumps({**r, **members})) for r in records]
for r in records:
    r["seconds"], r["seconds_median"] = [1.0, 1.001, 1.002], 1.001
write("before", records)
write("same", [{**r, "environment": {**r["environment"], "commit": "another", "cpu": "another"}} for r in copies()])
write("slower", copies(seconds=[1.5, 1.51, 1.52]))
write("faster", copies(seconds=[0.5, 0.51, 0.52]))
write("noisy", copies(seconds=[0.9, 1.0, 1.2]))
write("few", copies(seconds=[1.0, 1.0]))
for folder, factor in (("larger", 1.01), ("smaller", 0.9)):
    changed = copies()
    changed[0]["peak_beyond_resident_bytes"] = round(factor * changed[0]["peak_beyond_resident_bytes"])
    changed[0]["breakdown_at_peak"]["logits"] = changed[0]["breakdown_at_peak"].get("logits", 0) + 5000
    write(folder, changed)
changed = copies()
changed[1] |= {"status": "oom", "error": "the meter's limit", "seconds": []}
write("lost", changed)
changed = copies()
changed[0]["seconds"], changed[1]["peak_beyond_resident_bytes"] = [], None
write("unknown", changed)
changed = copies()
changed[2]["loss"] *= 1 + 1e-9
write("another-loss", changed)
changed = copies()[1:]
changed[0]["settings"]["threads"] = 7
write("unmatched", changed)
PYTHON
# verdict FOLDER CODE TEXT: the first line says TEXT.
verdict() {
  run "$1" "$2" report before "$1" --diff --markdown "$1.md"
  head -n 1 stdout | grep -qF "$3" || fail "expected '$3', got '$(head -n 1 stdout)'"
}
verdict same 0 '6 cells are in both: 0 WORSE, 0 AMBIGUOUS, 0 BETTER, 6 SAME; 0 are in the first folder only, 0 in the second only'
verdict slower 1 '6 WORSE'
verdict faster 0 '6 BETTER'
verdict noisy 0 '6 AMBIGUOUS'
verdict few 0 '6 AMBIGUOUS'
grep -q '2 timed passes on a side, 3 are judged' few.md || fail 'why it is ambiguous'
verdict larger 1 '1 WORSE, 0 AMBIGUOUS, 0 BETTER, 5 SAME'
grep -q 'memory 1.01' stdout || fail 'the ratio that decided'
grep -qF '+5 KB' larger.md || fail 'the purpose that grew'
grep -Eq '^\| qwen3-tiny \| sft \| standard \| 2 \| 1\.005. \| 2 \| 1\.0000 \| 2 \|' larger.md || fail 'the geometric mean of 1.01 and 1'
verdict smaller 0 '1 BETTER, 5 SAME'
verdict lost 1 '1 WORSE'
grep -q 'ok became oom' stdout || fail 'what happened to it'
verdict unknown 0 '0 WORSE, 2 AMBIGUOUS, 0 BETTER, 4 SAME'
for figure in time memory; do grep -qF "$figure in the first folder alone" unknown.md || fail "a $figure that is not known"; done
verdict another-loss 1 '1 WORSE'
grep -q 'loss differs by 1.0e-09, limit 1e-12' stdout || fail 'the loss'
verdict unmatched 0 '4 cells are in both: 0 WORSE, 0 AMBIGUOUS, 0 BETTER, 4 SAME; 2 are in the first folder only, 1 in the second only'
grep -q 'threads 7 / 1' unmatched.md || fail 'how the nearest cell differs'
run 'a wide threshold' 0 report before slower --diff --threshold 0.6
grep -q '6 SAME' stdout || fail 'the threshold'
run 'a threshold without --diff' 2 report before --threshold 0.1
run 'a threshold of nothing' 2 report before same --diff --threshold nan
run 'three folders' 2 report before same slower --diff
grep -q 'expected two' stderr || fail 'how many'

mkdir one two
sweep 'a timeline' 0 one --seq-len 33 --method streambp --chunk 8 --timeline one/cell.csv
sweep 'of another chunk' 0 two --seq-len 33 --method streambp --chunk 16 --timeline two/cell.csv
run 'timelines' 0 report one two --diff --output timelines.html
grep -q 'Memory over time' timelines.html || fail 'no timelines'
grep -q 'Bytes alive over the pass' timelines.html || fail 'they are not drawn'
finish
