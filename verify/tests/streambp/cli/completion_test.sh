#!/usr/bin/env bash
# PROGRAM completion SHELL: in bash every command, flag and known value is offered; in zsh and fish, every flag is in the script, and it
# is read without an error where the shell is installed.
# completion_test.sh PROGRAM
set -euo pipefail
program=$(realpath "$1")
name=$(basename "$program")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
for shell in bash zsh fish; do "$program" completion $shell >$shell.txt; done

# offered WORD...: what bash offers for the last word, a line each.
cat >offered.sh <<'BASH'
name=$1 && shift
source bash.txt
read -ra entry <<<"$(complete -p "$name")"
[[ " ${entry[*]} " == *" -o default "* ]] || { echo 'no files are completed' >&2; exit 1; }
for ((i = 0; i < ${#entry[@]}; i++)); do [ "${entry[i]}" != -F ] || function=${entry[i + 1]}; done
while IFS= read -r line; do # a line of words, the last of which is completed
  IFS=$'\t' read -ra COMP_WORDS <<<"$name	$line"
  [[ $line != *$'\t' && -n $line ]] || COMP_WORDS+=('')
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  COMPREPLY=()
  "$function"
  printf '%s\n' "${COMPREPLY[*]}"
done
BASH

python3 - "$program" <<'PYTHON'
import re, shutil, subprocess, sys
program, name = sys.argv[1], sys.argv[1].rsplit("/", 1)[1]
def help_of(*command):
    return subprocess.run([program, *command, "--help"], capture_output=True, text=True, check=True).stdout
commands = re.findall(r"^  ([a-z-]+)  ", help_of().split("Subcommands:")[1], re.MULTILINE)
def flags_of(command):
    names = re.findall(r"^  (-[\w,-]+)", help_of(command).split("\nExamples:")[0], re.MULTILINE)
    return {name for group in names for name in group.split(",") if name.startswith("--")}
flags = {command: flags_of(command) for command in commands}
assert len(commands) > 5 and len(flags["sweep"]) > 8, (commands, flags)
questions = {"swe": {"sweep"}, "completion\tz": {"zsh"}, "sweep\t--models-that-are-none": set()}  # words typed: what is offered
for command in commands:
    questions[f"{command}\t--"] = flags[command]
with_model = next(command for command in commands if "--model" in flags[command])
questions[f"{with_model}\t--model\tqwen3-8"] = {"qwen3-8b"}
questions["sweep\t--method\tstandard,che"] = {"standard,checkpoint"}
questions["sweep\t--method\t=\tche"] = {"checkpoint"}  # --method=che as bash has it
questions["sweep\t--seed\t"] = set()  # a number
exact = set(questions)
questions |= {"": set(commands), "sweep\t--method\t": {"standard", "checkpoint", "streambp"}, "completion\t": {"bash", "zsh", "fish"}}  # among others
asked = subprocess.run(["bash", "--norc", "offered.sh", name], input="".join(q + "\n" for q in questions), capture_output=True, text=True)
assert asked.returncode == 0 and not asked.stderr, asked.stderr
answers = asked.stdout.split("\n")[:-1]
assert len(answers) == len(questions), answers
for (question, expected), answer in zip(questions.items(), answers):
    offered = set(answer.split())
    if question in exact:
        assert offered == expected, (question, offered ^ expected)
    else:
        assert offered >= expected, (question, expected - offered)
for shell, pattern in (("zsh", r"'{}=?\["), ("fish", r" -l {} ")):
    text = open(f"{shell}.txt").read()
    for command in commands:
        part = re.search(rf"^ +{command}\) _arguments(.*?);;$", text, re.DOTALL | re.MULTILINE)[1] if shell == "zsh" else "\n".join(
            line for line in text.split("\n") if f"__fish_seen_subcommand_from {command}'" in line)
        missing = {one for one in flags[command] if not re.search(pattern.format(re.escape(one if shell == "zsh" else one[2:])), part)}
        assert not missing, (shell, command, missing)
for shell in ("bash", "zsh", "fish"):
    if shutil.which(shell):
        done = subprocess.run([shell, "-n", f"{shell}.txt"], capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr, (shell, done.stderr)
refused = subprocess.run([program, "completion", "csh"], capture_output=True, text=True)
assert refused.returncode == 2 and refused.stderr.count("\n") == 1, refused
print(f"{len(questions)} questions answered, {sum(map(len, flags.values()))} flags of {len(commands)} commands")
PYTHON
