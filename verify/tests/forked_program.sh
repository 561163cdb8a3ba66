# Sourced by the tests of programs from the outside. Where STREAMBP_FORKED names forked_program.cc's library, one process of the program forks for
# each of their calls, instead of a start of the program each time.

# The environment, without what the shell itself changes.
environment() { env | grep -v '^\(_\|PWD\|OLDPWD\|SHLVL\)='; }

if [ -n "${STREAMBP_FORKED:-}" ]; then
  coproc forking { LD_PRELOAD=$STREAMBP_FORKED exec "$program"; }
  forking_environment=$(environment)
fi

# call STDOUT STDERR ARGUMENT...: the program's exit code, its output in these files. A subshell, which may have limits of its own, and another
# environment have a start of their own.
call() {
  local output=$1 errors=$2 code
  shift 2
  if [ -n "${STREAMBP_FORKED:-}" ] && [ "$BASH_SUBSHELL" -eq 0 ] && [ "$(environment)" = "$forking_environment" ]; then
    printf '%s\0' "$PWD" "$output" "$errors" $# "$@" >&"${forking[1]}"
    read -r code <&"${forking[0]}" || code=125
    return "$code"
  fi
  "$program" "$@" >"$output" 2>"$errors"
}

# Ends the process that forks.
end_calls() {
  [ -n "${STREAMBP_FORKED:-}" ] || return 0
  local input=${forking[1]} process=$forking_PID
  exec {input}>&-
  wait "$process"
}
