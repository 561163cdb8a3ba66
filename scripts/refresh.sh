#!/usr/bin/env bash
# Makes the CPU's results again, each folder by its own command: those whose records are older than the engine or don't say where they come
# from. It takes a night on two cores that nothing else uses; started again it goes on where it was. Run it on a commit, with nothing modified,
# and commit results/ afterwards.
#   scripts/refresh.sh [--list] [NAME...]     --list: only says which; NAME: these folders, fresh or not
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/help.sh"
list=''
[ "${1:-}" != --list ] || { list=1 && shift; }
no_option "$@"
asked=" $* "
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ -z "$list" ]; then
  [ -z "$(git status --porcelain -- CMakeLists.txt CMakePresets.json bench reference scripts streambp verify ':!*.md')" ] || {
    echo "refresh.sh: sources are modified, and records of them are no evidence: commit them first" >&2
    exit 2
  }
  source scripts/setup.sh
  build_project release
  scripts/python_environment.py >/dev/null
  export PATH="$project/build/release/bin:$venv/bin:$PATH"  # whose Python draws
fi
status=0

# make NAME COMMAND...: results/NAME, unless its records are fresh. A command that takes --resume goes on with what is there, if that is of
# this commit; else it starts anew.
make() {
  local name=$1 commit records
  shift
  if [ "$asked" != '  ' ]; then
    [[ $asked == *" $name "* ]] || return 0
  elif scripts/provenance.py --fresh "$name"; then
    return 0
  fi
  echo "== results/$name: $*"
  [ -z "$list" ] || return 0
  commit=$(git rev-parse HEAD)
  for records in "results/$name"/results.jsonl "results/$name"/*/results.jsonl; do
    [ ! -e "$records" ] || grep -q "$commit" "$records" || rm "$records"
  done
  bash -c "$*" || { status=1 && echo "refresh.sh: results/$name: its command failed" >&2; }
}

make live-models scripts/pages/live_models.py
make recipes scripts/pages/recipes.py --resume
make matrix CUDAARCHS=90 scripts/matrix.sh --out results/matrix
make any-model scripts/any_model.py --resume
make any-model-5.24 STREAMBP_TRANSFORMERS_VERSION=5.24.0 scripts/any_model.py --resume --out results/any-model-5.24
# The same on two kinds of processor; transformers' offload is not among the baselines, for it moves to the memory that a CPU computes in.
head_times=results/head-times
! grep -q Xeon /proc/cpuinfo || head_times+=-xeon
make "$(basename "$head_times")" STREAMBP_TRANSFORMERS_VERSION=5.24.0 scripts/step_times.py --resume --seq-len 4096 --repeats 5 --methods \
  hf-checkpoint,hf-checkpoint+torch-head,hf-checkpoint+fused-head,hf-checkpoint+every=2+torch-head,hf-checkpoint+selective+torch-head,python-module,python-patch,python \
  --out "$head_times"
make idle-times STREAMBP_TRANSFORMERS_VERSION=5.24.0 scripts/step_times.py --resume --seq-len 2048,4096,8192 --repeats 7 --methods \
  hf-checkpoint+selective,hf-checkpoint+selective+torch-head,python,python+idle,python-patch+idle,python+small+idle,python+small+every=2 --out results/idle-times
# The authors' repository is where `git clone https://github.com/Ledzy/StreamBP ../StreamBP` has put it.
if [ -d ../StreamBP ]; then
  make authors-code scripts/pages/authors_code.py --upstream ../StreamBP --resume
else
  echo "refresh.sh: results/authors-code stays as it is: no folder ../StreamBP" >&2
fi
drivers=hf-checkpoint,standard,checkpoint,logits-only,streambp,streambp+keep-attention,python,python-patch
make compare-2048 scripts/compare_hf.py --resume --seq-len 2048 --methods "$drivers" --out results/compare-2048
make compare-4096 scripts/compare_hf.py --resume --seq-len 4096 --methods "$drivers" --no-gradients --out results/compare-4096
make compare-8192 scripts/compare_hf.py --resume --seq-len 8192 --methods "$drivers" --no-gradients --repeats 5 --out results/compare-8192
make qwen3.5-2 scripts/compare_hf.py --resume --model qwen3.5-cpu --seq-len 8192 --methods hf-checkpoint,checkpoint,streambp --repeats 5 --no-gradients --out results/qwen3.5-2
make mamba2-times scripts/compare_hf.py --resume --model granite-4.0-h-cpu --seq-len 8192 --methods hf-checkpoint,checkpoint,streambp --repeats 5 --threads 2 --no-gradients --out results/mamba2-times
make cpu 'streambp-bench sweep --model qwen3-cpu --method standard,checkpoint,logits-only,streambp --seq-len 512,1024,2048,4096,8192 --chunk auto --repeats 3 --resume --out results/cpu && scripts/plot.py --records results/cpu --out results/cpu'
make cpu-16384 streambp-bench sweep --model qwen3-cpu --method streambp --seq-len 16384 --repeats 1 --out results/cpu-16384
make compare-verdicts scripts/pages/compare_verdicts.py --seq-len 40,2048 --out results/compare-verdicts
make confident-tokens scripts/pages/confident_tokens.py
make planted scripts/pages/planted_mistakes.py
make mutants scripts/house/mutants.py --out results/mutants
make proofs scripts/proofs.py
make precision scripts/pages/precision.py
make precision-hf scripts/pages/precision_hf.py
make training scripts/pages/train_parity.py
# More steps than hold: what the paper's page says of table 7.
make training-500 'scripts/pages/train_parity.py --steps 500 --runs out/training-500 --out results/training-500 || [ $? = 1 ]'
make prediction scripts/pages/prediction.py --out results/prediction
make paper-times-cpu OMP_NUM_THREADS=1 streambp-bench paper --table 1,2 --scale cpu --repeats 3 --out results/paper-times-cpu
make bytes-per-token 'streambp-bench bytes-per-token --out results/bytes-per-token && scripts/plot_bytes.py --folder results/bytes-per-token'
make qlora scripts/pages/qlora.py
make published-memory scripts/pages/published_memory.py
# Liger and Unsloth are where `pip install --no-deps --target out/liger liger-kernel` and `--target out/unsloth unsloth-zoo` have put them.
of_conformance='scripts/pages/conformance.py --records results/conformance/results.jsonl'
make conformance "$of_conformance && STREAMBP_TRANSFORMERS_VERSION=5.24.0 $of_conformance && PYTHONPATH=out/liger $of_conformance --only liger &&
  PYTHONPATH=out/unsloth $of_conformance --only unsloth && $of_conformance --page verify/ERRATA.md"
make timeline 'streambp-bench sweep --model qwen3-8b --dtype bfloat16 --device meta --method streambp --seq-len 32768 --timeline out/qwen3-8b.csv --out results/timeline && scripts/plot.py --timeline out/qwen3-8b.csv --format png --out results/timeline'
make paper 'streambp-bench paper --out results/paper --quiet && scripts/plot_paper.py --folder results/paper && scripts/pages/paper_claims.py'
predicted='streambp-bench ranks --model qwen3-8b --dtype bfloat16 --device meta --optimizer adamw'
make ranks "$predicted --ranks 8,16,32,64,128,256,512,1024 --method streambp --seq-len 32768 --out results/ranks > results/ranks/table.txt"
on_paper="$predicted --zero zero-2 --teraflops 400 --link 50GB --overlap"
of_both='--method checkpoint,streambp'
on_cards="$on_paper --ranks 3,4,5,6,7,8 --budget 80GB"
make ranks-zero2 "($on_cards $of_both --out results/ranks-zero2; $on_cards --method checkpoint --head streamed --out results/ranks-zero2/streamed-head) \
  > results/ranks-zero2/table.txt"
make ranks-times "$on_paper $of_both --ranks 8 --seq-len 6000,21000 --out results/ranks-times > results/ranks-times/table.txt"
make ranks-overlap "(for hide in '' --overlap; do streambp-bench ranks --ranks 2 --method streambp,checkpoint --zero zero-2,zero-3 --seq-len 2048 \
  --repeats 5 --link 200MB \$hide --resume --out results/ranks-overlap; done) > results/ranks-overlap/table.txt"
rows="$predicted --divide rows --method streambp --zero zero-2 --seq-len 131072,1048576,8388608 --out results/ranks-rows"
make ranks-rows "($rows --exchange gather,ring --ranks 1,2,4,8,16,32,64,128,256; $rows --exchange ulysses --ranks 2,4,8,16,32 --resume) \
  > results/ranks-rows/table.txt"
# What is said of several folders, when all are made.
if [ -z "$list" ]; then
  scripts/pages/paper_claims.py --page >/dev/null || status=1
  scripts/provenance.py
fi
exit "$status"
