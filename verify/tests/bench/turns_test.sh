#!/usr/bin/env bash
# streambp-bench sweep: methods in turns, as often as asked or (--repeats auto) until their times are known; a line of progress for terminals only.
# turns_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/cli_testing.sh"
auto=(sweep --model qwen3-tiny --dtype float64 --threads 1 --seq-len 33 --repeats auto)

run 'until it is known' 0 "${auto[@]}" --method standard,checkpoint,streambp --out known
grep -Eq 'wall s +x ckpt +interval' stdout || fail 'no column of the interval'
check 'from 6 to 40 rounds, the same for all' 'len({len(r["seconds"]) for r in records}) == 1 and 6 <= len(records[0]["seconds"]) <= 40' known/results.jsonl
check 'relative to checkpoint' '[r.get("relative_time", {}).get("to") for r in records] == ["checkpoint", None, "checkpoint"]' known/results.jsonl
check 'the interval is that of the paired ratios' 'all((lambda ratios, k: ratios[k - 1] == t["low"] and ratios[-k] == t["high"] and t["rounds"] == len(ratios) and 0.95 <= t["coverage"] < 1
  and (t["high"] - t["low"] <= 0.04 * t["ratio"] or t["rounds"] == 40))(sorted(a / b for a, b in zip(r["seconds"], records[1]["seconds"])),
  next(k for k in range(20, 0, -1) if 1 - 2 * sum(__import__("math").comb(t["rounds"], i) for i in range(k)) / 2 ** t["rounds"] >= 0.95)) for r in records if (t := r.get("relative_time")))' known/results.jsonl
check 'what was asked for' 'all(r["settings"]["repeats"] == "auto" for r in records)' known/results.jsonl
cp known/results.jsonl before
run 'resumed' 0 "${auto[@]}" --method standard,checkpoint,streambp --out known --resume
cmp -s before known/results.jsonl || fail 'a cell that was known ran again'
run 'without checkpoint and standard' 0 "${auto[@]}" --method streambp --out alone
check 'nothing to relate it to' '"relative_time" not in records[0] and len(records[0]["seconds"]) >= 6' alone/results.jsonl
run 'on the meta device' 0 "${auto[@]}" --device meta --out meta
check 'one pass' 'all(r["seconds"] == [] and r["settings"]["repeats"] == 1 for r in records)' meta/results.jsonl
refuses '--repeats' --repeats often
refuses '--repeats' --repeats 3,4

/usr/bin/python3 - "$program" <<'PYTHON' >progress 2>&1 || { name='progress' && fail "$(tail -n 1 progress)"; }
import fcntl, os, pty, re, struct, subprocess, sys, termios
def stderr_of(columns, **environment):
    ours, theirs = pty.openpty() if columns else os.pipe()
    if columns:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [sys.argv[1], "sweep", "--model", "qwen3-tiny", "--threads", "1", "--seq-len", "17,65", "--out", "out-" + "".join(environment) + str(columns)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, env={**os.environ, "TERM": "xterm", **environment})
    os.close(theirs)
    text = b""
    try:
        while part := os.read(ours, 65536):
            text += part
    except OSError:  # a terminal whose other end is closed
        pass
    assert process.wait() == 0
    return text.decode()
shown = stderr_of(200)
assert re.search(r"\[2/6\] length 17, .*repeat 3/3 \| \d+ % done, \d+ s left, peak [\d.]+ [KMG]B", shown), shown[-300:]
passes = [(int(cell), int(repeat)) for cell, repeat in re.findall(r"\[(\d)/6\] length \d+, [^|\r]*?repeat (\d)/3", shown)]
turns = [(cell, repeat) for length in (0, 3) for repeat in (1, 2, 3) for cell in (length + 1, length + 2, length + 3)]
assert passes == turns, f"A B C A B C, length by length: {passes}"
assert max(map(len, re.split(r"\r?\x1b\[2K", stderr_of(60)))) < 60, "longer than the terminal"
assert stderr_of(0) == "" == stderr_of(80, TERM="dumb")
assert set(re.findall(r"\x1b\[[\d;]*(.)", shown)) == {"K"}, "no colours, whatever NO_COLOR says"
PYTHON
finish
