#!/usr/bin/env bash
# --help of every command of streambp-bench: groups, examples that parse, exit codes; as wide as the terminal, whole lines elsewhere.
# help_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/cli_testing.sh"
# The text that is no terminal's, of each command, in whole/COMMAND, and the program's own in whole/streambp-bench.
mkdir whole
run 'help' 0 --help
cp stdout whole/streambp-bench
while read -r command <&3; do
  run "help of $command" 0 "$command" --help
  cp stdout "whole/$command"
done 3< <(sed -n '/^Subcommands:/,$ s/^  \([a-z-]*\)  .*/\1/p' whole/streambp-bench)
name='help'
: >stdout && : >stderr
/usr/bin/python3 - "$program" <<'PYTHON' >help 2>&1 || fail "$(tail -n 1 help)"
import fcntl, os, pty, re, shlex, struct, subprocess, sys, termios
program = sys.argv[1]
def whole_text(command):
    with open(f"whole/{command}", encoding="utf-8") as file:
        return file.read()
def help_text(arguments, columns):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen([program, *arguments, "--help"], stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    text = b""
    try:
        while part := os.read(ours, 65536):
            text += part
    except OSError:  # a terminal whose other end is closed
        pass
    assert process.wait() == 0, arguments
    return text.decode().replace("\r\n", "\n")
commands = re.findall(r"^  ([a-z-]+)  ", whole_text("streambp-bench").split("Subcommands:")[1], re.MULTILINE)
assert {"sweep", "max-length", "report", "records", "ranks", "export"} <= set(commands), commands
examples, count = open("examples", "w"), 0
for command in commands:
    whole = whole_text(command)
    assert "Examples:\n" in whole and re.search(r"^Exit codes: 0 ", whole, re.MULTILINE), command
    for width in (60, 100) if command == "sweep" else (60,):
        lines = help_text([command], width).split("\n")
        long = [line for line in lines if len(line) > width and not re.match(r" +[^ ]+$", line) and "streambp-bench" not in line and " " in line[32:].strip()]
        assert not long, (command, width, long[:2])
        assert "".join(" ".join(lines).split()) == "".join(whole.split()), (command, "words got lost")
    for line in re.findall(r"^  (streambp-bench .*)$", whole.split("Examples:\n")[1], re.MULTILINE):
        words = shlex.split(re.sub(r" [>|] .*", "", line), comments=True)
        assert words[1] == command, line
        examples.write("\0".join([str(len(words) - 1), *words[1:]]) + "\0")
        count += 1
examples.close()
assert count > 20, count
sweep = whole_text("sweep")
found = re.findall(r"^(\w+):$", sweep.split("Examples:")[0], re.MULTILINE)
for group in ("Model", "Data", "Objective", "Method", "Memory", "Run", "Output"):
    assert group in found, (group, found)
for command in ("sweep", "max-length", "train"):
    text = whole_text(command)
    assert "sppo_hard" not in text and "arXiv" not in text and "\n\n\n" not in text and text.count("\n") < 115, (command, text.count("\n"))
def topic(name):
    return subprocess.run([program, "max-length", "--help", name], capture_output=True, text=True, check=True).stdout
assert topic("objectives").startswith("Objectives and their options (--set):\n  sft: ") and "sppo_hard" in topic("objectives"), topic("objectives")[:80]
assert topic("methods").startswith("Methods (--method) and the settings that they take:\n  standard: ") and "chunk-major: " in topic("methods"), topic("methods")[:80]
at = {group: sweep.index(f"\n{group}:\n") for group in found if f"\n{group}:\n" in sweep}
def group_of(flag):
    line = re.search(rf"^  {flag}\b", sweep, re.MULTILINE).start()
    return max((start, group) for group, start in at.items() if start < line)[1]
for flag, group in (("--model", "Model"), ("--seq-len", "Data"), ("--set", "Objective"), ("--teacher", "Objective"), ("--lora-rank", "Adapters"), ("--chunk", "Method"), ("--keep-attention", "Method"), ("--budget", "Memory"), ("--out", "Output")):
    assert group_of(flag) == group, (flag, group_of(flag))
PYTHON
# Every example is a command line that the program takes.
while read -r -d '' words <&3; do
  example=()
  while [ "${#example[@]}" -lt "$words" ] && read -r -d '' word <&3; do example+=("$word"); done
  rm -f parsed.toml
  run "example ${example[*]}" 0 "${example[@]}" --write-config parsed.toml
  [ -e parsed.toml ] || fail 'no file was written'
done 3<examples
finish
