#!/usr/bin/env bash
# Every installed header compiles by itself, and asks for no library but torch and its fmt.
#   headers_test.sh BUILD TORCH WORK   BUILD is a build tree, TORCH the wheel's folder
set -euo pipefail
build=$1 torch=$(realpath "$2")
rm -rf "$3"
mkdir -p "$3"
work=$(realpath "$3")
cmake --install "$build" --prefix "$work" --component streambp_headers >/dev/null
mkdir "$work/fmt"
ln -s "$torch/include/fmt" "$work/fmt/fmt"
export torch work

check() {
  local header=$1 messages
  local compile=(g++ -std=c++20 -fsyntax-only -Wall -Wextra -Wno-pragma-once-outside-header -I "$work/include" -x c++ -)
  messages=$("${compile[@]}" -isystem "$work/fmt" <<<"#include \"$header\"" 2>&1) && { echo "ok     $header"; return; }
  if grep -qE 'fatal error: (ATen|c10|torch)/' <<<"$messages"; then
    messages=$("${compile[@]}" -fopenmp -isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include" \
      <<<"#include \"$header\"" 2>&1) && { echo "ok     $header"; return; }
  fi
  printf 'FAIL   %s\n%s\n' "$header" "$messages"
}
export -f check

(cd "$work/include" && find streambp -name '*.h' | sort) |
  xargs -P "$(nproc)" -I{} bash -c 'check {}' >"$work/headers.txt"
cat "$work/headers.txt"
echo "$(grep -c '^ok' "$work/headers.txt") headers compile by themselves"
! grep -q '^FAIL' "$work/headers.txt" || exit 1
! grep -rnE '#include <(nlohmann|CLI|Eigen|gtest|benchmark)/' "$work/include"
