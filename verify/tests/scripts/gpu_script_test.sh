#!/usr/bin/env bash
# scripts/gpu.sh on a machine without a GPU: every part's commands are taken, what was run and what was not is listed apart,
# and records as a GPU gives them become tables.
# gpu_script_test.sh PROJECT BIN PYTHON
set -uo pipefail

project=$1
export STREAMBP_BIN=$2 STREAMBP_PYTHON=$3 STREAMBP_GPU_REHEARSAL=1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0

fail() {
  echo "FAILED: $1"
  failures=$((failures + 1))
}

"$project/scripts/gpu.sh" run "$folder/run" speed nothing >"$folder/stdout" 2>"$folder/stderr"
[ $? -eq 2 ] && grep -q "part 'nothing'" "$folder/stderr" || fail 'a part that does not exist'
rm -rf "$folder/run"

# The longest part's dry runs are those of `tables`: other parts first, so that a wrong one shows at once.
"$project/scripts/gpu.sh" run "$folder/run" >"$folder/stdout" 2>&1 || fail 'a rehearsal'
cat "$folder/stdout"
[ -s "$folder/run/README.md" ] || fail 'no table'
tar -tzf "$folder/run/gpu.tar.gz" >"$folder/archived"
grep -q '/speed/results.jsonl$' "$folder/archived" || fail 'no archive of the records'
! grep -q 'gpu.tar.gz' "$folder/archived" || fail 'an archive within the archive'
for log in "$folder"/run/*.failed; do
  [ -e "$log" ] || continue
  fail "part $(basename "$log" .failed)"
  tail -n 5 "${log%.failed}.log"
done
grep -q 'nothing was measured' "$folder/run/README.md" || fail 'a rehearsal is marked as one'
! grep -q '^| [a-z0-9]* | not run |$' "$folder/run/README.md" || fail 'a part that was left out'

python3 - "$folder" <<'PYTHON' || fail 'records of the rehearsal'
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
records = {}
for file in sorted((folder / "run").rglob("results.jsonl")):
    records[file.parent.name] = [json.loads(line) for line in file.read_text().splitlines()]
wanted = {"speed", "speed-auto", "speed-kept", "speed-streamed-head", "lengths", "offload", "offload300k", "curves",
          "published", "table9", "table8", "tables", "tables-objectives", "deterministic", "nondeterministic", "long"}
assert set(records) == wanted, set(records) ^ wanted
for name, lines in records.items():
    for record in lines:
        assert record["kind"] == "predicted", name
        # A card of 80 GiB is too small for some; no command is refused.
        assert record["status"] in ("ok", "oom"), (name, record["error"])
assert any(record["status"] == "oom" for record in records["tables"]), "the cap on memory is not in force"
assert all(record["status"] == "ok" for record in records["lengths"] + records["offload"] + records["curves"])
for name, lines in records.items():
    keys = [record["key"] for record in lines if "key" in record]
    assert len(keys) == len(set(keys)), f"{name}: a cell twice"
# Long passes are whole chunks, so that no shape is met once alone.
for name in ("lengths", "offload", "offload300k", "long"):
    for record in records[name]:
        assert record["method"] != "streambp" or record["seq_len"] % record["chunk"] == 0, (name, record["seq_len"])

# The same as a GPU would have measured them, a hundredth larger, next to the dry runs.
made = folder / "made"
for name in ("speed", "curves"):
    (made / name).mkdir(parents=True)
    with open(made / name / "results.jsonl", "w") as file:
        for number, record in enumerate(records[name]):
            if record["status"] == "ok":
                record = dict(record, kind="measured", device="cuda", seconds=[2.0, 2.1], seconds_median=2.05,
                              gpu_seconds=[2.0, 2.1], gpu_seconds_median=2.05 + number, reserved_peak_bytes=record["peak_bytes"],
                              peak_bytes=round(record["peak_bytes"] * 1.01))
                record["environment"] = dict(record["environment"], attention_choices=["forward 8 x 8: flash 1 ms: flash"])
            file.write(json.dumps(record) + "\n")
    (made / "predicted" / name).mkdir(parents=True)
    (made / "predicted" / name / "results.jsonl").write_text((folder / "run" / name / "results.jsonl").read_text())
(made / "speed.done").write_text("61 s\n")
(made / "curves.failed").write_text("exit code 1 after 5 s\n")
PYTHON

"$project/scripts/gpu.sh" table "$folder/made" || fail 'a table of measurements'
for text in '| speed | done, 61 s |' '| curves | failed: exit code 1 after 5 s |' '| lengths | not run |' '## Must reach' \
  '| 500,000 tokens in one pass | at most 540 s | not run | not run | - |' "## StreamBP's time" '## Cells, predicted and measured' \
  '-0.99%' '## Rates of the prediction' '## Attention kernels chosen'; do
  grep -qF -- "$text" "$folder/made/README.md" || fail "the table does not say '$text'"
done

# Fifteen minutes: the list in its order, records as they come, what there is no time for named at the end.
with_models=$project/.venv-hf/bin/python
[ -x "$with_models" ] || with_models=
visit() {
  STREAMBP_PYTHON=${with_models:-$STREAMBP_PYTHON} "$project/scripts/gpu.sh" visit "$folder/visit" --rehearse >"$folder/stdout" 2>&1
}
STREAMBP_RUN_SECONDS=70 visit || fail 'a visit that is cut short'
cat "$folder/stdout"
grep -q '^not run to the end: .*visit_hugging_face .*visit_131k.* visit_147k .*visit_tests' "$folder/stdout" || fail 'what was left out is not named'
[ -e "$folder/visit/visit_gemm.done" ] || fail 'a short part that fits did not run'
[ -e "$folder/visit/visit_versions.done" ] || fail 'the first record'
visit || fail 'the rest of a visit'
cat "$folder/stdout"
grep -q '^not run to the end: nothing$' "$folder/stdout" || fail 'parts of a rehearsed visit that did not run'
! grep -q '^visit_versions' "$folder/stdout" || fail 'a part that was done is run again'
tail -n 5 "$folder"/visit/visit*.failed 2>/dev/null
tar -tzf "$folder/visit/gpu.tar.gz" | grep -q '/visit-32k/results.jsonl$' || fail 'no archive of a visit'
python3 - "$folder/visit" "$with_models" <<'PYTHON' || fail 'records of a visit'
import json, pathlib, sys
records = {file.parent.name: [json.loads(line) for line in file.read_text().splitlines()] for file in pathlib.Path(sys.argv[1]).rglob("results.jsonl")}
for name in ("8k", "32k", "131k", "147k", "models", "deterministic", "objectives", "gemma"):
    assert records[f"visit-{name}"] and all(record["status"] in ("ok", "oom") for record in records[f"visit-{name}"]), name
if not sys.argv[2]:
    sys.exit()
assert records["visit-versions"] and len(records["visit-gemm"]) == 7 and len(records["visit-new-lengths"]) == 10
assert [record["settings"] for record in records["visit-profile"]][:2] == [{}, {}] and records["visit-profile"][2]["kernels"]
methods = {record["method"]: record["status"] for record in records["visit-hugging-face"]}
assert all(status == "ok" for method, status in methods.items() if method != "hf-liger"), methods
assert methods["hf-liger"] in ("ok", "not run"), methods  # without triton there is no Liger
assert len({record["loss"] for record in records["visit-hugging-face"] if record["method"].startswith("python")}) <= 2, "idle memory changes no bit"
PYTHON

# What was not run is said to be so, next to what is predicted of it.
grep -q '^| 500,000 tokens in one pass | at most 540 s | [0-9]* | not run | - |$' "$folder/run/README.md" || fail 'no predicted seconds'
grep -q '^| long | qwen3-8b | sft | 500,000 | .* | not run |$' "$folder/run/README.md" || fail 'a predicted cell that is not run'

# A part goes on after a failure, and fails at its end.
mkdir -p "$folder/broken/bin"
cat >"$folder/broken/bin/streambp-bench" <<'PROGRAM'
#!/bin/sh
echo "$@" >>"$(dirname "$0")/calls"
exit 1
PROGRAM
chmod +x "$folder/broken/bin/streambp-bench"
STREAMBP_BIN=$folder/broken/bin "$project/scripts/gpu.sh" run "$folder/broken/run" speed >/dev/null 2>&1
grep -q 'exit code 1' "$folder/broken/run/speed.failed" || fail 'a part whose sweeps fail'
[ "$(grep -c '^sweep' "$folder/broken/bin/calls")" -ge 4 ] || fail 'a failed sweep ended its part'
[ -s "$folder/broken/run/gpu.tar.gz" ] || fail 'no archive of a call that failed'

# Tests that were skipped and kernels that are missing.
checks() {  # EXPECTED-CODE KIND TEXT
  printf '%s\n' "$3" >"$folder/report"
  "$STREAMBP_PYTHON" "$project/scripts/gpu/gpu_checks.py" "$2" "$folder/report" >"$folder/checks" 2>&1
  [ $? -eq "$1" ] || fail "gpu_checks.py $2 of $3"
}
case_of() {  # SUITE NAME RESULT
  echo "<testcase name='$2' classname='$1' status='run' result='$3'>$([ "$3" = completed ] || echo "<skipped message='why'/>")</testcase>"
}
suite=cuda/DeviceLibrary test=GivesTheFormulasValuesAndGradients
checks 0 tests "<testsuites>$(case_of "$suite" "$test/flash_square" completed)</testsuites>"
checks 1 tests "<testsuites>$(case_of "$suite" "$test/cudnn_square" skipped)</testsuites>"
grep -q 'cudnn_square was skipped: why' "$folder/checks" || fail 'which test was skipped'
checks 0 tests "<testsuites>$(case_of "$suite" "$test/cudnn_large_heads" skipped)</testsuites>"
checks 1 tests '<testsuites></testsuites>'
checks 0 microbench '{"benchmarks": [{"name": "cuda_attention", "label": "forward 8192 x 8192: flash 2 ms, cudnn 1 ms: cudnn"}]}'
checks 1 microbench '{"benchmarks": [{"name": "cuda_attention", "label": "forward 8192 x 8192: flash 2 ms, cudnn unsupported: flash"}]}'
checks 1 microbench '{"benchmarks": [{"name": "cuda_gate", "error_occurred": true, "error_message": "needs a CUDA device"}]}'
checks 1 microbench '{"benchmarks": []}'

[ "$failures" -eq 0 ] && echo 'gpu.sh: all good'
exit $((failures > 0))
