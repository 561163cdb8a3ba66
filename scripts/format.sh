#!/usr/bin/env bash
# Formats our C++ in place; with --check, says which files are not formatted and fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mode=(-i)
[ "${1:-}" = --check ] && mode=(--dry-run --Werror)
git ls-files -co --exclude-standard '*.cc' '*.h' '*.cu' '*.cuh' | xargs clang-format "${mode[@]}"
