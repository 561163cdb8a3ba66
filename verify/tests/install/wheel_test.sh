#!/usr/bin/env bash
# Installs a wheel of scripts/wheel.sh into an empty environment, which has torch alone from another one, next to a package that is named as the
# authors' own, and uses it: both commands, a prediction, a gradient. Without a compiler, and in less than a minute.
#   wheel_test.sh WHEEL VENV WORK     VENV: the environment whose torch the wheel is for, with what torch needs (.venv-hf)
set -euo pipefail
wheel=$(realpath "$1") venv=$(realpath "$2")
mkdir -p "$3"
work=$(realpath "$3")
rm -rf "$work/empty" "$work/swept"
start=$SECONDS
python3 -m venv "$work/empty"
site=$(echo "$work"/empty/lib/python3*/site-packages)
echo "import site; site.addsitedir('$(echo "$venv"/lib/python3*/site-packages)')" >"$site/torch_of_another.pth"
mkdir "$site/streambp"
echo "whose = 'the authors'" >"$site/streambp/__init__.py"
"$work/empty/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-index "$wheel"
cd "$work"  # away from the project's sources
export PATH="$work/empty/bin:/usr/bin:/bin"
unset PYTHONPATH STREAMBP_TORCH_LIBRARY LD_LIBRARY_PATH
fail() {
  echo "wheel_test.sh: $1" >&2
  exit 1
}

streambp-bench --version
streambp-bench max-length --model qwen3-8b --dtype bfloat16 --method streambp --budget 80GB --quiet | tail -n 2
streambp-bench sweep --model qwen3-tiny --seq-len 64 --chunk 16 --repeats 1 --threads 1 --quiet --out swept | tail -n 4
[ "$(wc -l <swept/results.jsonl)" -ge 3 ] || fail "streambp-bench sweep wrote fewer than three records"
streambp-bench report swept >report.md
grep -q '^# ' report.md || fail "streambp-bench report wrote no page"
streambp-bench report swept --output page.html 2>said || grep -q 'pip install matplotlib$' said || fail "streambp-bench report --output: $(cat said)"
streambp-verify --version
streambp-verify sweep --model qwen3-tiny --objective sft --batch three --quick >verified.txt || { cat verified.txt >&2 && fail "streambp-verify sweep fails"; }
python - <<'PYTHON'
import streambp
import streambp_bench as sb
from streambp_bench._library import library, library_path

assert streambp.whose == "the authors"
library()
print("engine:", library_path().name, "of", sb.__version__)
print(sb.predict("qwen3-8b", tokens=8192))
PYTHON
seconds=$((SECONDS - start))
echo "installed and used in $seconds s"
[ "$seconds" -lt 60 ] || fail "it took $seconds s, more than a minute"
