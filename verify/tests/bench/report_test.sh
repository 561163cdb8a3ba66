#!/usr/bin/env bash
# streambp-bench report: one HTML file and Markdown of records, good and hostile; nothing is lost and nothing escapes.
# report_test.sh PROGRAM
root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../../..")
source "$(dirname "${BASH_SOURCE[0]}")/cli_testing.sh"

sweep 'a grid' 0 grid --seq-len 9,17,33
run 'both files' 0 report grid --output page.html --markdown page.md
grep -q '^Smallest at 33 tokens' stdout || fail 'no verdict on memory'
grep -q '^Fastest at 33 tokens' stdout || fail 'no verdict on time'
grep -q 'Losses of 6 cells' stdout || fail 'no verdict on losses'
grep -q '9 of 9 cells are good' page.md || fail 'coverage'
/usr/bin/python3 - <<'PYTHON' || fail 'the page is not the records'
import html.parser, json, re
page = open("page.html", encoding="utf-8").read()
records = [json.loads(line) for line in open("grid/results.jsonl")]
class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.ids, self.links, self.open, self.code = set(), [], [], []
    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if "id" in attributes:
            assert attributes["id"] not in self.ids, attributes
            self.ids.add(attributes["id"])
        if tag == "a":
            self.links.append(attributes["href"])
        if tag not in ("meta", "input"):
            self.open.append(tag)
    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, (tag, self.open[-3:])
    def handle_data(self, text):
        if self.open and self.open[-1] == "code":
            self.code.append(text)
read = Page()
read.feed(page)
assert not read.open, read.open
inner = {link[1:] for link in read.links if link.startswith("#")}
assert inner <= read.ids, inner - read.ids
assert {f"cell-{i + 1}" for i in range(len(records))} <= read.ids & inner, "cells without an anchor or a point"
assert {link for link in read.links if not link.startswith("#")} == {"grid/results.jsonl"}, read.links
assert len(read.code) == len(records), read.code
assert all(f"--method {r['method']} --seq-len {r['seq_len']}" in code and "--out" not in code for r, code in zip(records, read.code)), read.code
assert "http://" not in page and "https://" not in page
open("commands", "w").write("\n".join(read.code) + "\n")
PYTHON
# The command of a cell runs it again: the same key.
read -r _ command <<<"$(sed -n 3p commands)"
# shellcheck disable=SC2086
run 'a command of the page' 0 $command --out again
check 'is that cell' "records[0]['key'] in open('grid/results.jsonl').read() and len(records) == 1" again/results.jsonl

printf '%s\n' '{"schema":1,"kind":"measured","method":"streambp","model":"<script>alert(1)</script>","seq_len":64,"status":"ok","seconds":[1,2],"error":"\u001b[31m"}' \
  'torn' '{"schema":1,"method":"streambp","seq_len":"long"}' '[1]' '{"method":"a|b`c](x)","seq_len":1e300}' '{"seq_len":3}' \
  '{"schema":1,"method":"--></style>\"onload=x","model":"javascript:x","seq_len":9,"status":"error","error":"<img src=x onerror=y>","environment":{"argv":["x","sweep","--model","a b'"'"'c"]}}' \
  '{}' '{"method":"x","seq_len":3,"seconds":[-1]}' \
  >lines
mkdir 'strange "folder' && cp lines 'strange "folder/results.jsonl'
run 'hostile lines' 0 report 'strange "folder' --output hostile.html --markdown hostile.md
[ "$(grep -c 'left out' stderr)" -eq 6 ] || fail 'six lines are to be named'
for number in 2 3 4 5 8 9; do grep -q "line $number: " stderr || fail "line $number is not named"; done
grep -qE '<(script>alert|img|/style>"on)' hostile.html && fail 'a name became markup'
grep -q $'\x1b' hostile.html hostile.md && fail 'an escape sequence came through'
grep -q '&lt;script&gt;alert(1)&lt;/script&gt;' hostile.html || fail 'the name is not shown'
grep -q 'href="strange%20%22folder/results.jsonl"' hostile.html || fail 'the link is not encoded'
grep -q 'results.jsonl:3: seq_len: expected a number' hostile.html || fail 'the bad line is not in the page'
grep -q "1 are neither cells nor verdicts" hostile.html || fail 'a record that is no cell is not counted'

years=("$root/results/paper" "$root"/results/{prediction,live-models,compare-verdicts})
run 'results of years' 0 report "${years[@]}" --output all.html
/usr/bin/python3 - "${years[@]}" <<'PYTHON' || fail 'a page of 500 records has more than 600 KB'
import os, sys
records = sum(1 for folder in sys.argv[1:] for _ in open(folder + "/results.jsonl"))
size = os.path.getsize("all.html")
assert records > 500 and size / records * 500 < 6e5, (records, size)
PYTHON
# Of two folders of one run each is relative to its own checkpoint; times whose interval holds 1 are no difference.
/usr/bin/python3 - <<'PYTHON'
import json, os
os.mkdir("half"), os.mkdir("noisy")
for folder, factor, seconds in (("half", 0.5, lambda r: [0.5, 0.5]), ("noisy", 1, lambda r: [0.8, 1.1] if r["method"] == "streambp" else [0.9, 1.0])):
    with open(f"{folder}/results.jsonl", "w") as file:
        for record in map(json.loads, open("grid/results.jsonl")):
            record["peak_beyond_resident_bytes"] = int(factor * record["peak_beyond_resident_bytes"])
            file.write(json.dumps({**record, "seconds": seconds(record)}) + "\n")
PYTHON
run 'two folders' 0 report grid half
/usr/bin/python3 - <<'PYTHON' || fail 'not relative to its own checkpoint'
rows = [line.split(" | ") for line in open("stdout") if line.startswith("| qwen3-tiny") and "| checkpoint" in line and "at tokens" not in line]
rows = [row for row in rows if len(row) == 8]
ratios = {row[1]: row[4] for row in rows}
assert ratios["streambp, grid"] == ratios["streambp, half"] and float(ratios["checkpoint, half"] if "checkpoint, half" in ratios else 1) == 1, ratios
PYTHON
# A folder without a checkpoint is relative to that of another folder of the same commit alone.
/usr/bin/python3 - <<'PYTHON'
import json, os
for folder, commit, modified, methods in (("base", "a", False, None), ("same", "a", False, ["streambp"]), ("later", "b", False, ["streambp"]), ("changed", "a", True, ["streambp"])):
    os.mkdir(folder)
    with open(f"{folder}/results.jsonl", "w") as file:
        for record in map(json.loads, open("grid/results.jsonl")):
            if not methods or record["method"] in methods:
                file.write(json.dumps({**record, "environment": {**record["environment"], "commit": commit, "modified": modified}}) + "\n")
PYTHON
for folder in same later changed; do
  run "of another folder: $folder" 0 report base half "$folder"
  grep '^| qwen3-tiny.* | checkpoint' stdout | grep " | streambp, $folder |" >rows
  if [ "$folder" = same ]; then
    grep -q ' | checkpoint, base |' rows || fail 'it is relative to the checkpoint of its commit'
  else
    [ ! -s rows ] || fail 'it is relative to the checkpoint of another commit'
  fi
  grep -q ' | streambp, half | checkpoint, half |' stdout || fail 'a base is called by another name'
done
run 'a time that is noise' 0 report noisy
grep -q '^| qwen3-tiny.* | streambp | checkpoint | [^|]* | [0-9.]* | at none | ' stdout || fail 'noise as a crossing'
run 'Markdown on stdout' 0 report grid
head -n 1 stdout | grep -q '^# ' || fail 'no title'
run 'twice the same' 0 report grid --output page2.html
cmp -s page.html page2.html || fail 'the same records give another page'
run 'no folder' 2 report nowhere
mkdir empty
run 'no records' 2 report empty
grep -q 'no results.jsonl in it or below it' stderr || fail 'it is not said'
cp grid/results.jsonl before.jsonl
for flag in --output --markdown; do
  run "$flag over what is read" 2 report grid "$flag" grid/results.jsonl
  grep -q 'would be lost' stderr || fail 'no word of what would be lost'
done
ln grid/results.jsonl linked
run 'by another name' 2 report grid --output linked
grep -q 'would replace records .*which is read' stderr || fail 'no word of the other name'
cmp -s grid/results.jsonl before.jsonl || fail 'the records were written over'
run 'one file for two pages' 2 report grid --output same --markdown ./same
grep -q 'which is written too' stderr || fail 'no word of the other page'
run 'a folder for a file' 2 report grid --output empty

# Numbers at the ends of a double have no axis: no chart, rather than one with nan in its paths.
/usr/bin/python3 - <<'PYTHON'
import json, os
records = [json.loads(line) for line in open("grid/results.jsonl", encoding="utf-8")]
for name, value in {"most": 1.7e308, "least": 5e-324}.items():
    os.mkdir(name)
    with open(f"{name}/results.jsonl", "w", encoding="utf-8") as file:
        for record in records:
            record["peak_beyond_resident_bytes"] = record["peak_bytes"] = value
            record["seconds"] = [value] * 3
            record["breakdown_at_peak"] = {"weights": value, "gradients": value}
            file.write(json.dumps(record) + "\n")
PYTHON
for folder in most least; do
  run "numbers without an axis: $folder" 0 report "$folder" --output ends.html
  grep -qE '"[^"]*[ LMHV](-?nan|-?inf)' ends.html && fail 'a path holds what is no number'
done

STREAMBP_PYTHON=nowhere run 'no Python' 2 report grid --output none.html
grep -q 'nowhere can.t be started.*STREAMBP_PYTHON' stderr && [ "$(wc -l <stderr)" -eq 1 ] || fail 'expected one line that names it'
/usr/bin/python3 -m venv --without-pip bare
STREAMBP_PYTHON=$PWD/bare/bin/python run 'a Python without packages' 2 report grid --output none.html
grep -q 'pip install jinja2 matplotlib$' stderr && [ "$(wc -l <stderr)" -eq 1 ] || fail 'expected one line that says what to install'
[ ! -e none.html ] || fail 'a page that was not drawn'
finish
