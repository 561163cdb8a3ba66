#!/usr/bin/env python3
"""PROGRAM completion SHELL: the shell itself is asked, and offers every command, flag and known value. Every flag is in its script.

completion_test.py PROGRAM SHELL (bash, zsh or fish); exit code 77 where the shell is not installed
"""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM, SHELL = Path(sys.argv[1]).resolve(), sys.argv[2]
NAME = PROGRAM.name
SKIPPED = 77
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
FISH = r"""
source ./script
while read -l line
    echo (complete -C "$line" | string replace -r '\t.*' '')
end <questions
"""
# Completion needs the line editor: a widget asks one question after another, and compadd writes down what is offered.
ZSH = r"""
PROMPT=
autoload -U compinit && compinit -u -d dump
source ./script
compadd() {
  local -a offered
  if [[ ${@[1,(i)(-|--)]} != *-[OAD]\ * ]]; then builtin compadd -A offered "$@"; hits+=($offered); fi
  builtin compadd "$@"
}
zstyle ':completion:*' insert-tab false
zle -C list-them list-choices _main_complete
ask() {
  local line
  while IFS= read -r line; do
    typeset -ga hits=()
    BUFFER=$line CURSOR=$#line
    zle list-them
    print -r -- "$hits"
  done <questions >answers.part
  mv answers.part answers
  exit 0
}
zle -N ask
bindkey '^G' ask
print ready
"""


def help_of(*command):
    return subprocess.run([PROGRAM, *command, "--help"], capture_output=True, text=True, check=True).stdout


def flags_of(command):
    names = re.findall(r"^  (-[\w,-]+)", help_of(command).split("\nExamples:")[0], re.MULTILINE)
    return {name for group in names for name in group.split(",") if name.startswith("--")}


def typed(question):
    """Words as they stand on a command line."""
    return f"{NAME} " + question.replace("\t=\t", "=").replace("\t", " ")


def ask_script(text, *arguments):
    done = subprocess.run([SHELL, *arguments, "-c", text, "shell", NAME], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done
    return done.stdout.split("\n")[:-1]


def wait_for(terminal, process, done):
    """Reads what the shell prints until done(text); its text at the end, or a failure after a minute."""
    text, end = "", time.monotonic() + 60
    while not done(text):
        assert time.monotonic() < end and process.poll() is None, text[-2000:]
        if select.select([terminal], [], [], 0.2)[0]:
            text += os.read(terminal, 65536).decode(errors="replace")
    return text


def ask_zsh():
    Path("zshrc").write_text(ZSH)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(["zsh", "-f", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "dumb"}, start_new_session=True)
    os.close(theirs)
    try:
        os.write(ours, b"source ./zshrc\n")
        wait_for(ours, process, lambda text: "\nready" in text.replace("\r", ""))
        os.write(ours, b"\x07")
        wait_for(ours, process, lambda text: Path("answers").exists())
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return Path("answers").read_text().split("\n")[:-1]


def answers_to(questions):
    """What the shell offers for each question: a flag without the = of zsh, and of what is typed already the last word."""
    lines = questions if SHELL == "bash" else list(map(typed, questions))
    Path("questions").write_text("".join(line + "\n" for line in lines))
    ask = {"bash": lambda: ask_script(BASH, "--norc"), "fish": lambda: ask_script(FISH, "--no-config"), "zsh": ask_zsh}
    answers = ask[SHELL]()
    assert len(answers) == len(lines), answers
    return [{re.sub(r"^--[\w-]+=(?=.)|=$", "", word) for word in answer.split()} for answer in answers]


def check_script(commands, flags):
    text = Path("script").read_text()
    if SHELL == "bash":
        return
    pattern = r"'{}=?\[" if SHELL == "zsh" else r" -l {} "
    for command in commands:
        part = re.search(rf"^ +{command}\) _arguments(.*?);;$", text, re.DOTALL | re.MULTILINE)[1] if SHELL == "zsh" else "\n".join(
            line for line in text.split("\n") if f"__fish_seen_subcommand_from {command}'" in line)
        missing = {one for one in flags[command] if not re.search(pattern.format(re.escape(one if SHELL == "zsh" else one[2:])), part)}
        assert not missing, (command, missing)


def main():
    Path("script").write_text(subprocess.run([PROGRAM, "completion", SHELL], capture_output=True, text=True, check=True).stdout)
    commands = re.findall(r"^  ([a-z-]+)  ", help_of().split("Subcommands:")[1], re.MULTILINE)
    flags = {command: flags_of(command) for command in commands}
    assert len(commands) > 5 and len(flags["sweep"]) > 8, (commands, flags)
    check_script(commands, flags)
    if not shutil.which(SHELL):
        print(f"skipped: no {SHELL} on this machine; its script names every flag")
        return SKIPPED
    done = subprocess.run([SHELL, "-n", "script"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    questions = {"swe": {"sweep"}, "completion\tz": {"zsh"}, "sweep\t--models-that-are-none": set()}  # words typed: what is offered
    for command in commands:
        questions[f"{command}\t--"] = flags[command]
    with_model = next(command for command in commands if "--model" in flags[command])
    questions[f"{with_model}\t--model\tqwen3-8"] = {"qwen3-8b"}
    last = "checkpoint" if SHELL == "zsh" else "standard,checkpoint"  # of a list zsh completes the last entry as a word
    questions["sweep\t--method\tstandard,che"] = {last}
    questions["sweep\t--method\t=\tche"] = {"checkpoint"}
    exact = set(questions)
    questions |= {"": set(commands), "sweep\t--method\t": {"standard", "checkpoint", "streambp"}, "completion\t": {"bash", "zsh", "fish"}}  # among others
    if SHELL == "bash":
        questions["sweep\t--seed\t"] = set()  # a number
    for (question, expected), offered in zip(questions.items(), answers_to(list(questions))):
        if question in exact:
            assert offered == expected, (question, offered ^ expected)
        else:
            assert offered >= expected, (question, expected - offered)
    refused = subprocess.run([PROGRAM, "completion", "csh"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1, refused
    print(f"{SHELL}: {len(questions)} questions answered, {sum(map(len, flags.values()))} flags of {len(commands)} commands")
    return 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        code = main()
        os.chdir("/")
    sys.exit(code)
