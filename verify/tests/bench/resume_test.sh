#!/usr/bin/env bash
# streambp-bench sweep: what --resume believes. The contents of weights and tokens are a part of a cell's key; of
# results.jsonl nothing is dropped but a torn line of our own; outputs replace no input.
# resume_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/cli_testing.sh"

# one NAME CODE OUT ARGUMENT...: a sweep of one cell of the model folder.
one() {
  local what=$1 code=$2 out=$3
  shift 3
  run "$what" "$code" sweep --model folder --threads 1 --repeats 1 --warmup 0 --method streambp --seq-len 8 --out "$out" "$@"
}

says() {
  grep -qF -- "$1" stderr || fail "stderr does not say '$1'"
}

# edit FILE PYTHON: PYTHON changes the bytearray `data`.
edit() {
  /usr/bin/python3 - "$1" "$2" <<'PYTHON'
import sys
data = bytearray(open(sys.argv[1], "rb").read())
exec(sys.argv[2])
open(sys.argv[1], "wb").write(data)
PYTHON
}

# --- The key holds what is in files.
run "export" 0 export --model qwen3-tiny --out folder
cp -r folder original
one "first" 0 keyed
one "nothing changed" 0 keyed --resume
check "1 record" 'len(records) == 1 and records[0]["settings"]["content"].keys() == {"model"}' keyed/results.jsonl
touch folder/model.safetensors
one "touched alone" 0 keyed --resume
check "1 record" 'len(records) == 1' keyed/results.jsonl
edit folder/model.safetensors 'data[-3] ^= 1'
one "weights changed" 0 keyed --resume
check "2 records" 'len(records) == 2 and len({r["key"] for r in records}) == 2' keyed/results.jsonl
edit folder/config.json 'data.replace(b"}", b" }")'
one "config.json changed to the same" 0 keyed --resume
sed -i 's/}$/ }/' folder/config.json
one "config.json changed" 0 keyed --resume
check "3 records" 'len(records) == 3' keyed/results.jsonl
for predicted in 0 1; do
  edit folder/model.safetensors 'data[-9] ^= 1'
  one "predictions do not read weights" 0 predicted --device meta --resume
  check "1 record" 'len(records) == 1' predicted/results.jsonl
done

# Records from before the key held that count unless a file has changed since.
/usr/bin/python3 - keyed/results.jsonl older/results.jsonl <<'PYTHON'
import json, os, sys
def fnv(text):
    value = 0xcbf29ce484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return f"{value:016x}"
record = json.loads(open(sys.argv[1]).read().splitlines()[-1])
members = ("model", "family", "parameters", "objective", "method", "settings", "seq_len", "batch", "dtype", "device")
def key_of(record):
    return fnv(json.dumps({name: record[name] for name in members}, sort_keys=True, separators=(",", ":")))
assert key_of(record) == record["key"], "the key is not that of the configuration"
del record["settings"]["content"]
record["key"] = key_of(record)
for folder, date in (("older", "2999-01-01T00:00:00Z"), ("stale", "2001-01-01T00:00:00Z")):
    os.makedirs(folder)
    record["environment"]["date"] = date
    open(folder + "/results.jsonl", "w").write(json.dumps(record, sort_keys=True) + "\n")
PYTHON
one "an older record, files unchanged since" 0 older --resume
check "1 record" 'len(records) == 1' older/results.jsonl
one "an older record, files changed since" 0 stale --resume
check "2 records" 'len(records) == 2' stale/results.jsonl

# tokens FILE: a byte that neither tokens nor labels show.
/usr/bin/python3 - <<'PYTHON'
import json, struct
for name, advantage in (("tokens", 0.5), ("others", 0.25)):
    header, data = {}, b""
    for tensor, dtype, shape, more in (("input_ids", "I64", [2, 4], struct.pack("<8q", *range(1, 9))),
                                       ("completion_mask", "I64", [2, 4], struct.pack("<8q", 0, 1, 1, 1, 0, 1, 1, 1)),
                                       ("advantages", "F32", [2], struct.pack("<2f", advantage, -1.0))):
        header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(more)]}
        data += more
    text = json.dumps(header).encode()
    open(name, "wb").write(struct.pack("<Q", len(text)) + text + data)
PYTHON
grpo=(sweep --model qwen3-tiny --threads 1 --repeats 1 --warmup 0 --method streambp --objective grpo --set beta=0 --tokens tokens --out tokens-out)
run "tokens" 0 "${grpo[@]}"
run "tokens again" 0 "${grpo[@]}" --resume
check "1 record" 'len(records) == 1' tokens-out/results.jsonl
cp others tokens
run "other advantages" 0 "${grpo[@]}" --resume
check "2 records" 'len(records) == 2 and records[0]["loss"] != records[1]["loss"]' tokens-out/results.jsonl

# --- Torn lines: ours alone, only when the run starts, and kept.
good=$(cat keyed/results.jsonl)
start() { # start FOLDER TAIL: the good records, then TAIL without its newline
  rm -rf "$1" && mkdir "$1"
  printf '%s\n%b' "$good" "$2" >"$1/results.jsonl"
  cp "$1/results.jsonl" before
}
for tail in 'These are my notes' '{"note": "two hours of work' '[1, 2' '{"batch"' '\0\0\0\0' '{"batch":1,"bre\0\0\0'; do
  start torn "$tail"
  case $tail in
    '{"batch"'* | '\0'*)
      one "refused without --resume" 2 torn
      cmp -s torn/results.jsonl before || fail "a run that was refused changed the file"
      one "torn: $tail" 0 torn --resume
      printf '%b\n' "$tail" | cmp -s - torn/results.jsonl.torn || fail "the torn line is not kept"
      printf '%s\n' "$good" | cmp -s - torn/results.jsonl || fail "not the whole records alone are left"
      says 'results.jsonl.torn'
      ;;
    *)
      one "foreign: $tail" 2 torn --resume
      cmp -s torn/results.jsonl before || fail "a foreign line was touched"
      says 'results.jsonl line 4'
      [ ! -e torn/results.jsonl.torn ] || fail "a foreign line was moved"
      ;;
  esac
done
start torn '{"batch":1,'
ln -s elsewhere torn/results.jsonl.torn
one "nowhere to keep a torn line" 2 torn --resume
cmp -s torn/results.jsonl before || fail "the torn line is lost"
[ ! -e torn/elsewhere ] || fail "a link was followed"

# --- Lines that are no records, records that are none of ours.
for member in '"choice":3' '"choice":{"reason":4}' '"choice":{"reason":null}' '"seq_len":"8"' '"seconds_median":[1]' '"settings":[]' '"error":3' '"environment":1'; do
  start typed ''
  sed -i "s/^{/{$member,\"old\":/; s/\"old\":/&0,/" typed/results.jsonl
  /usr/bin/python3 - typed/results.jsonl "$member" <<'PYTHON'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
for line in lines:
    line.pop("old")
    line.update(json.loads("{" + sys.argv[2] + "}"))
open(sys.argv[1], "w").write("".join(json.dumps(line, sort_keys=True, separators=(",", ":")) + "\n" for line in lines))
PYTHON
  one "a record with $member" 2 typed --resume
  says "results.jsonl line 3: $(sed 's/^"\([a-z_]*\)".*/\1/' <<<"$member"): "
done
deep=$(/usr/bin/python3 -c 'print("[" * 200000 + "]" * 200000)')
for line in "{\"schema\":1,\"a\":$deep}" "{\"schema\":1,\"key\":\"a\",\"key\":\"b\"}" '{"schema":1,"loss":1e400}' $'\xef\xbb\xbf{"schema":1}'; do
  mkdir -p strict && printf '%s\n%s\n' "$line" "$good" >strict/results.jsonl
  one "${line:0:40}" 2 strict --resume
  says 'results.jsonl line 1'
done

# --- results.jsonl is a regular file, or nothing.
special() { # special WHAT COMMAND...: makes special/results.jsonl
  rm -rf special && mkdir special && "${@:2}"
  name=$1
  timeout 20 "$program" sweep --model qwen3-tiny --threads 1 --method streambp --seq-len 8 --out special >stdout 2>stderr
  [ $? -eq 2 ] || fail "expected exit 2"
  says 'special/results.jsonl'
  [ "$(wc -l <stderr)" -eq 1 ] || fail "expected one line on stderr"
}
special "a FIFO" mkfifo special/results.jsonl
special "a link to itself" ln -s results.jsonl special/results.jsonl
special "an endless device" ln -s /dev/zero special/results.jsonl
special "a full device" ln -s /dev/full special/results.jsonl
special "a folder" mkdir special/results.jsonl
touch elsewhere
special "a link" ln -s ../elsewhere special/results.jsonl
special "a link to nothing" ln -s ../nothing special/results.jsonl
[ ! -s elsewhere ] && [ ! -e nothing ] || fail "a link was followed"
mkdir -p measured && mkfifo measured/results.jsonl
name="a FIFO among measured records"
timeout 60 "$program" paper --table 9 --measured measured --out paper --quiet >stdout 2>stderr || fail "exit $?"
printf '%s\n' '{"kind":"measured","device":"cuda","settings":3,"status":"ok"}' "{\"a\":$deep}" \
  '{"kind":"measured","device":"cuda","settings":{},"peak_bytes":"x","status":"ok"}' >lines
rm measured/results.jsonl && cp lines measured/results.jsonl
run "measured records of wrong types" 0 paper --table 9 --measured measured --out paper --quiet

# --- No output replaces an input, another output or measured records.
clash() { # clash TEXT ARGUMENT...
  find . -path ./stderr -o -path ./stdout -o -type f -print0 | sort -z | xargs -0 md5sum >before 2>/dev/null
  one "${*:2}" 2 clash-out "${@:2}"
  says "$1"
  find . -path ./stderr -o -path ./stdout -o -type f -print0 | sort -z | xargs -0 md5sum 2>/dev/null | grep -v ' ./before$' |
    cmp -s - <(grep -v ' ./before$' before) || fail "a file was changed"
}
mkdir -p clash-out && touch clash-out/results.jsonl
ln -f folder/model.safetensors weights-by-another-name
clash 'would replace' --dump-gradients clash-out/results.jsonl
clash 'would replace' --trace ./clash-out/../clash-out/results.jsonl
clash 'would replace' --trace clash-out/results.jsonl.torn
clash 'would replace' --trace memory --timeline memory
clash 'would replace' --trace memory --snapshot clash-out/../memory
clash 'would replace' --dump-gradients folder/model.safetensors
clash 'would replace' --dump-gradients weights-by-another-name
clash 'would replace' --trace folder/config.json
ln -sf folder/config.json linked
clash 'a symbolic link' --trace linked
# A node of our own: nobody's /dev/null is at stake. It takes the right to make one.
if mknod null c 1 3 2>/dev/null; then
  clash 'a device' --dump-gradients null
  [ -c null ] || fail "the device node is gone"
fi
mkfifo pipe
clash 'a FIFO' --timeline pipe
run "tokens" 2 "${grpo[@]::${#grpo[@]}-2}" --out clash-out --timeline tokens
says 'would replace --tokens tokens'
cmp -s tokens others || fail "the tokens are gone"
cp keyed/results.jsonl before
run "a report onto measured records" 2 paper --table 9 --quiet --out keyed
says 'holds measured records'
run "a table onto measured records" 2 bytes-per-token --model qwen3-8b --out keyed
says 'holds measured records'
cmp -s keyed/results.jsonl before || fail "measured records are gone"
[ "$(find keyed -type f | wc -l)" -eq 1 ] || fail "a part of a report was written"

for device in cuda:x cuda: cuda:-1 cuda:1x cuda:999 cuda:4294967296 cpu:0; do
  one "device $device" 2 devices --device "$device"
  says "device '$device'"
done

finish
