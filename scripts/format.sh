#!/usr/bin/env bash
# Formats our C++ in place with clang-format 14, Debian 12's; other versions break lines elsewhere.
#   scripts/format.sh --check   says which files are not formatted and fails; without clang-format 14 it says so and passes
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mode=(-i)
[ "${1:-}" != --check ] || mode=(--dry-run --Werror)
tool=
for name in clang-format-14 clang-format; do
  if command -v "$name" >/dev/null && "$name" --version | grep -q 'version 14\.'; then tool=$name; break; fi
done
if [ -z "$tool" ]; then
  echo "format.sh: no clang-format 14 here, formatting not checked" >&2
  [ "${1:-}" = --check ] && exit 0
  exit 2
fi
git ls-files -co --exclude-standard '*.cc' '*.h' '*.cu' '*.cuh' | xargs "$tool" "${mode[@]}"
