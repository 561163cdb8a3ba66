# What the tests of streambp-verify from the outside share. A test is called as TEST PROGRAM GOLDENS, sources this file, and
# ends with `finish`.
set -uo pipefail

program=$1
goldens=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0
source "$(dirname "${BASH_SOURCE[0]}")/../forked_program.sh"

fail() {
  echo "FAILED: $1"
  sed 's/^/    stdout: /' "$folder/out" | head -n 40
  sed 's/^/    stderr: /' "$folder/err" | head -n 5
  failures=$((failures + 1))
}

# run NAME CODE ARGUMENT...: the exit code has to be CODE.
run() {
  name=$1
  local code=$2
  shift 2
  call "$folder/out" "$folder/err" "$@" --threads 1
  local got=$?
  [ "$got" -eq "$code" ] || fail "$name: exit $got, expected $code"
}

# says TEXT: the last run's stdout holds TEXT.
says() { grep -qF -- "$1" "$folder/out" || fail "$name: stdout does not say '$1'"; }

# refuses NAME TEXT ARGUMENT...: exit 2 and exactly one line on stderr, which holds TEXT.
refuses() {
  local what=$1 text=$2
  shift 2
  run "$what" 2 "$@"
  [ "$(wc -l <"$folder/err")" -eq 1 ] || fail "$what: expected one line on stderr"
  grep -qF -- "$text" "$folder/err" || fail "$what: stderr does not say '$text'"
}

# edit FILE NEW EXPRESSION: copies a safetensors file with its gradients changed. EXPRESSION gets name and values (a list of
# doubles) of every grad.* tensor and returns the new values.
edit() {
  /usr/bin/python3 - "$@" <<'PYTHON'
import json, math, struct, sys

path, new, expression = sys.argv[1:4]
data = bytearray(open(path, "rb").read())
(length,) = struct.unpack_from("<Q", data)
header = json.loads(data[8 : 8 + length])
change = eval("lambda name, values: " + expression)
for name, entry in header.items():
    if not name.startswith("grad."):
        continue
    begin, end = (8 + length + offset for offset in entry["data_offsets"])
    count = (end - begin) // 8
    values = change(name[5:], list(struct.unpack_from(f"<{count}d", data, begin)))
    struct.pack_into(f"<{count}d", data, begin, *values)
open(new, "wb").write(data)
PYTHON
}

# rename FILE NEW OLD-PREFIX NEW-PREFIX: copies a safetensors file with other names.
rename() {
  /usr/bin/python3 - "$@" <<'PYTHON'
import json, struct, sys

path, new, old_prefix, new_prefix = sys.argv[1:5]
data = open(path, "rb").read()
(length,) = struct.unpack_from("<Q", data)
header = json.loads(data[8 : 8 + length])
names = {name: new_prefix + name[len(old_prefix) :] if name.startswith(old_prefix) else name for name in header}
text = json.dumps({names[name]: entry for name, entry in header.items()}).encode()
text += b" " * (-len(text) % 8)
open(new, "wb").write(struct.pack("<Q", len(text)) + text + data[8 + length :])
PYTHON
}

# A set of one case and its model, for tests to tamper with.
case=qwen3-sft-b3_left
model=$goldens/models/qwen3
tensors=$goldens/cases/$case/tensors.safetensors
set=$folder/set
mkdir -p "$set/models" "$set/cases"
cp -r "$model" "$set/models/"
cp -r "$goldens/cases/$case" "$set/cases/"
tampered=$set/cases/$case/tensors.safetensors
parameter=model.layers.1.self_attn.k_proj.weight

finish() {
  end_calls
  [ "$failures" -eq 0 ] || { echo "$failures checks failed"; exit 1; }
  echo 'all checks passed'
}
