#!/usr/bin/env bash
# streambp-bench sweep: gradients that it writes, token files that it reads, memory over time.
# sweep_files_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/cli_testing.sh"

sweep "gradients" 0 dumped --method streambp --seq-len 33 --chunk 7 --freeze embed_tokens --dump-gradients gradients
/usr/bin/python3 - gradients <<'PYTHON' || fail "the gradients are not what they should be"
import json, struct, sys
data = open(sys.argv[1], "rb").read()
header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
names = header.keys() - {"__metadata__"}
assert "lm_head.weight" in names and "model.layers.1.self_attn.q_norm.weight" in names, names
assert "model.embed_tokens.weight" not in names, "frozen, but dumped"
assert header["lm_head.weight"]["dtype"] == "F64" and header["lm_head.weight"]["shape"] == [101, 32], header["lm_head.weight"]
assert any(data[8 + struct.unpack("<Q", data[:8])[0] :]), "all zero"
PYTHON

# The file just written is none with tokens; one with tokens sets length and batch.
refuses 'input_ids' --tokens gradients
/usr/bin/python3 - tokens <<'PYTHON'
import json, struct, sys
ids, mask = list(range(1, 15)), [1] * 7 + [0] * 2 + [1] * 5
shape = {"dtype": "I64", "shape": [2, 7]}
header = json.dumps({"input_ids": {**shape, "data_offsets": [0, 112]}, "attention_mask": {**shape, "data_offsets": [112, 224]}}).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(header)) + header + struct.pack("<28q", *ids, *mask))
PYTHON
sweep "tokens from a file" 0 packed --tokens tokens --chunk 5
check "length and batch" 'all((r["seq_len"], r["batch"], r["tokens"]) == (7, 2, 12) for r in records)' packed/results.jsonl
# Documents of packed rows: a sequence each. Labels of padded rows that padding would predict.
/usr/bin/python3 - <<'PYTHON'
import json, struct
def write(path, **tensors):
    header, data = {}, b""
    for name, rows in tensors.items():
        numbers = [number for row in rows for number in row]
        end = len(data) + 8 * len(numbers)
        header[name] = {"dtype": "I64", "shape": [len(rows), len(rows[0])], "data_offsets": [len(data), end]}
        data += struct.pack(f"<{len(numbers)}q", *numbers)
    text = json.dumps(header).encode()
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + data)
ids = [[5, 6, 7, 8, 9, 10, 11]]
write("documents", input_ids=ids, labels=ids, position_ids=[[0, 1, 2, 0, 1, 0, 1]])
write("left", input_ids=ids, labels=[[-100, -100, 7, 8, 9, 10, 11]], attention_mask=[[0, 0, 1, 1, 1, 1, 1]])
write("unknown", input_ids=ids, tool_mask=ids)
PYTHON
sweep "packed rows" 0 documents-out --tokens documents --method streambp --chunk 2
check "a sequence a document" 'all((r["seq_len"], r["batch"], r["tokens"]) == (3, 3, 7) for r in records)' documents-out/results.jsonl
grep -qF "documents: labels of documents' first tokens: 2" stderr || fail "nothing said of labels across documents"
refuses "'tool_mask' is none of sft's: expected input_ids" --tokens unknown
refuses '--first-labels ignore' --tokens left
refuses "--first-labels 'drop'" --tokens left --first-labels drop
sweep "first labels ignored" 0 left-out --tokens left --method streambp --first-labels ignore
grep -qF 'left: labels ignored because padding would predict them: 1' stderr || fail "nothing said of the label"

# Memory over time: three files that tell the same peak as the record.
sweep 'recording a dry run' 0 recorded --device meta --method streambp --chunk 24 --seq-len 100 --trace trace.json --snapshot snapshot.pickle --timeline timeline.csv
/usr/bin/python3 - <<'PYTHON' >check-output 2>&1 || fail "$(tail -n 1 check-output)"
import csv, json, pickle
peak = json.loads(open("recorded/results.jsonl").read())["peak_bytes"]
live = highest = 0
for event in pickle.load(open("snapshot.pickle", "rb"))["device_traces"][0]:
    live += event["size"] * {"alloc": 1, "free_completed": -1}.get(event["action"], 0)
    highest = max(highest, live)
assert highest == peak, f"the snapshot's peak is {highest}, the record's {peak}"
counters = [event["args"] for event in json.load(open("trace.json"))["traceEvents"] if event["ph"] == "C" and event["name"] == "memory by scope"]
assert max(sum(counter.values()) for counter in counters) == peak, "the trace has another peak"
rows = list(csv.reader(line for line in open("timeline.csv") if not line.startswith("#")))[1:]
assert max(sum(map(int, row[3:])) for row in rows) == peak, "the timeline has another peak"
assert any("layer 0 backward/chunk 3" == row[2] for row in rows), "no chunk of a layer is named"
PYTHON
sweep 'recording what runs out of memory' 3 refused --device meta --method standard --seq-len 512 --memory-limit 2MB --timeline refused.csv --trace refused.json
grep -q '"name":"out of memory"' refused.json || fail 'the trace does not show the refusal'
refuses '--trace' --trace no/such/folder/trace.json --seq-len 8 --method streambp
refuses '--timeline' --timeline timeline.csv --seq-len 8,16 --method streambp
refuses '--snapshot' --snapshot snapshot.pickle --seq-len 8 --method streambp --resume

finish
