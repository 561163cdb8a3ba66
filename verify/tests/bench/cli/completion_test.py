#!/usr/bin/env python3
"""PROGRAM completion bash: bash itself is asked, and offers every command, flag and known value.

completion_test.py PROGRAM
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = Path(sys.argv[1]).resolve()
NAME = PROGRAM.name
# Words, the last of which is completed; --flag=value is three of them, as bash has it.
BASH = r"""
name=$1
source ./script
read -ra entry <<<"$(complete -p "$name")"
[[ " ${entry[*]} " == *" -o default "* ]] || { echo 'no files are completed' >&2; exit 1; }
for ((i = 0; i < ${#entry[@]}; i++)); do [ "${entry[i]}" != -F ] || function=${entry[i + 1]}; done
while IFS= read -r line; do
  IFS=$'\t' read -ra COMP_WORDS <<<"$name	$line"
  [[ $line != *$'\t' && -n $line ]] || COMP_WORDS+=('')
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  COMPREPLY=()
  "$function"
  printf '%s\n' "${COMPREPLY[*]}"
done <questions
"""


def help_of(*command):
    return subprocess.run([PROGRAM, *command, "--help"], capture_output=True, text=True, check=True).stdout


def flags_of(command):
    names = re.findall(r"^  (-[\w,-]+)", help_of(command).split("\nExamples:")[0], re.MULTILINE)
    return {name for group in names for name in group.split(",") if name.startswith("--")}


def answers_to(questions):
    """What bash offers for each question."""
    Path("questions").write_text("".join(line + "\n" for line in questions))
    done = subprocess.run(["bash", "--norc", "-c", BASH, "shell", NAME], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done
    answers = done.stdout.split("\n")[:-1]
    assert len(answers) == len(questions), answers
    return [set(answer.split()) for answer in answers]


def main():
    Path("script").write_text(subprocess.run([PROGRAM, "completion", "bash"], capture_output=True, text=True, check=True).stdout)
    commands = re.findall(r"^  ([a-z-]+)  ", help_of().split("Subcommands:")[1], re.MULTILINE)
    flags = {command: flags_of(command) for command in commands}
    assert len(commands) > 5 and len(flags["sweep"]) > 8, (commands, flags)
    done = subprocess.run(["bash", "-n", "script"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    questions = {"swe": {"sweep"}, "completion\tb": {"bash"}, "sweep\t--models-that-are-none": set()}  # words typed: what is offered
    for command in commands:
        questions[f"{command}\t--"] = flags[command]
    with_model = next(command for command in commands if "--model" in flags[command])
    questions[f"{with_model}\t--model\tqwen3-8"] = {"qwen3-8b"}
    questions["sweep\t--method\tstandard,che"] = {"standard,checkpoint"}
    questions["sweep\t--method\t=\tche"] = {"checkpoint"}
    questions["sweep\t--seed\t"] = set()  # a number
    exact = set(questions)
    questions |= {"": set(commands), "sweep\t--method\t": {"standard", "checkpoint", "streambp"}, "completion\t": {"bash"}}  # among others
    for (question, expected), offered in zip(questions.items(), answers_to(list(questions))):
        if question in exact:
            assert offered == expected, (question, offered ^ expected)
        else:
            assert offered >= expected, (question, expected - offered)
    refused = subprocess.run([PROGRAM, "completion", "csh"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1, refused
    print(f"{len(questions)} questions answered, {sum(map(len, flags.values()))} flags of {len(commands)} commands")
    return 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        code = main()
        os.chdir("/")
    sys.exit(code)
