# Sourced first by the scripts of this folder: --help prints the comment that the called one begins with, and an argument of one that takes folders
# or versions alone is no option.
case ${1:-} in
  -h | --help)
    sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"
    exit 0
    ;;
esac

# no_option ARGUMENT...: exits with 2 where one begins with a dash.
no_option() {
  local argument
  for argument in "$@"; do
    [[ $argument != -* ]] || { echo "$(basename "$0"): $argument: no such option; --help says what there is" >&2 && exit 2; }
  done
}
