#!/usr/bin/env bash
# streambp-bench --config and --write-config: flags from TOML files; the files of bench/sweeps run.
# config_test.sh PROGRAM
sweeps=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../../../bench/sweeps")
source "$(dirname "${BASH_SOURCE[0]}")/cli_testing.sh"

count=0
for file in "$sweeps"/*.toml; do
  out=$(basename "$file" .toml)
  count=$((count + 1))
  shorter=()
  ! grep -q '^method = "auto"' "$file" || shorter=(--seq-len 256,512,1024)  # a length has a hundred dry runs, which take as long as it is long
  run "$file" 0 sweep --config "$file" --device meta --out "$out" --quiet "${shorter[@]}"
  check 'a dry run of all of it' 'len(records) >= 3 and all(r["status"] == "ok" for r in records)' "$out/results.jsonl"
  grep -qF "streambp-bench sweep --config bench/sweeps/$(basename "$file")" "$file" || fail 'its first lines do not say how to run it'
done
[ "$count" -ge 4 ] || fail 'files of bench/sweeps'

printf '[sweep]\nmodel = "qwen3-tiny"\nseq-len = [9, 17]\nmethod = "streambp"\nkeep-attention = true\nout = "from-file"\ndevice = "meta"\n' >flags.toml
run 'an array, a switch' 0 sweep --config flags.toml
check 'are flags' '[r["seq_len"] for r in records] == [9, 17] and all(r["settings"]["keep_attention"] for r in records)' from-file/results.jsonl
run 'before the command, and what is typed wins' 0 --config flags.toml sweep --seq-len 33 --out typed
check 'the length' '[r["seq_len"] for r in records] == [33]' typed/results.jsonl
run 'written' 0 sweep --config flags.toml --seq-len 33,65 --objective dpo --set beta=0.1 --write-config written.toml
[ ! -e from-file/written ] && [ "$(head -n 1 written.toml)" = '[sweep]' ] || fail 'its section'
run 'read again' 0 sweep --config written.toml --out again
run 'typed' 0 sweep --model qwen3-tiny --seq-len 33,65 --objective dpo --set beta=0.1 --method streambp --keep-attention --device meta --out all-typed
/usr/bin/python3 - <<'PYTHON' || fail 'what was written is not what was typed'
import json
a, b = ([json.loads(line)["key"] for line in open(folder + "/results.jsonl")] for folder in ("again", "all-typed"))
assert a == b and len(a) == 2, (a, b)
PYTHON
run 'of another command' 0 max-length --model qwen3-tiny --device meta --budget 20MB --method streambp --write-config longest.toml
run 'read' 0 max-length --config longest.toml

# complains TEXT CONTENT: a file that is refused in one line with its name and TEXT.
complains() {
  printf '%b' "$2" >wrong.toml
  run "refusing $1" 2 sweep --config wrong.toml --out never
  [ "$(wc -l <stderr)" -eq 1 ] && grep -qF -- 'wrong.toml' stderr && grep -qF -- "$1" stderr || fail "expected one line with its name and '$1'"
  [ ! -e never ] || fail 'it ran'
}
complains 'sweep.lengths: no flag' '[sweep]\nlengths = 9\n'
complains '[swep]: no command' '[swep]\nseq-len = 9\n'
complains 'seq-len: no flag' 'seq-len = 9\n'
complains 'seq-len: its array has no ]' '[sweep]\nseq-len = [9, 17\n'
complains 'seq-len: its array has no ]' '[sweep]\nseq-len = [\n  9,\n  17  # the last\n'
complains "sweep.out: \"a: a quote that is not closed; a value can't hold a #" '[sweep]\nout = "a#b"\n'
complains 'seq-len: is there twice' '[sweep]\nseq-len = 9\n"seq-len" = 17\n'
complains '[sweep]: is there twice' '[sweep]\nseq-len = 9\n[train]\nsteps = 1\n[ sweep ]\nbatch = 2\n'
complains '++: no flag' '[sweep]\nseq-len = 9\n++ = 1\n'
complains 'sweep.quiet is -1: expected true or false' '[sweep]\nquiet = -1\n'
run 'a file that can be opened and not read' 2 sweep --config /proc/self/mem --out never
[ "$(wc -l <stderr)" -eq 1 ] && grep -q 'config' stderr || fail 'expected one line'
printf '[sweep]\nseq-len = "nine"\n' >wrong.toml
run 'a value that is none' 2 sweep --config wrong.toml --out never
grep -qF -- "--seq-len 'nine'" stderr || fail 'the flag'
run 'no file' 2 sweep --config nowhere.toml
grep -q nowhere.toml stderr || fail 'its name'
mkfifo pipe
for special in pipe /dev/zero .; do
  run "$special" 2 sweep --config "$special"
  grep -qF -- "--config: $special: not a regular file" stderr || fail 'its name, and what it is'
done
# unwritable WHAT VALUE
unwritable() {
  run "$1" 2 sweep --model "$2" --write-config quotes.toml
  grep -qF -- "--write-config: --model is '$2': a file can't hold" stderr || fail 'the flag and its value'
}
unwritable 'both kinds of quotes' "it's \"mine\""
unwritable 'a backslash before a quote' 'a b\'
unwritable 'what begins a comment' 'a#b'
[ ! -e quotes.toml ] || fail 'a file that says something else was written'
finish
