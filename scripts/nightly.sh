#!/usr/bin/env bash
# Every check at full size, one after another: the equality sweep, the golden cases, the reference's gradients, precision,
# compare's verdicts on gradients of Hugging Face, and the long-index suite. Says at the end which held; a check that fails
# does not keep the later ones from running.
#   scripts/nightly.sh [ARGUMENT...]   arguments go to `streambp-verify long` (--max-memory 20GB, --case NAME, ...)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

build_project release streambp-verify
cd "$project"
verify=build/release/bin/streambp-verify
summary=()
status=0

# check TITLE COMMAND...: its exit code goes into the summary, the first one that is not 0 becomes ours.
check() {
  local title=$1 code=0 start=$SECONDS
  shift
  echo "== $title"
  "$@" || code=$?
  echo
  case $code in
    0) summary+=("pass  $title, $((SECONDS - start)) s") ;;
    *) summary+=("FAIL  $title, $((SECONDS - start)) s, exit code $code") ;;
  esac
  [ "$status" -ne 0 ] || status=$code
}

check 'Equality of all methods on random small models, every objective' "$verify" sweep
check 'Golden cases: losses, log-probabilities and gradients of Hugging Face' "$verify" goldens verify/goldens
check 'The reference against finite differences' "$verify" gradcheck
check 'Errors of float32 and bfloat16 beside those of standard back-propagation' "$verify" precision
check "compare's verdicts on gradients of Hugging Face" python3 scripts/compare_verdicts.py --out out/compare-verdicts
check 'Lengths, products and element counts across 2^16, 2^31 and 2^32' "$verify" long "$@"

echo "== Summary"
printf '%s\n' "${summary[@]}"
exit "$status"
