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
for log in "$folder"/run/*.failed; do
  [ -e "$log" ] || continue
  fail "part $(basename "$log" .failed)"
  tail -n 5 "${log%.failed}.log"
done
grep -q 'nothing was measured' "$folder/run/README.md" || fail 'a rehearsal is marked as one'
! grep -q '| not run |' "$folder/run/README.md" || fail 'a part that was left out'

python3 - "$folder" <<'PYTHON' || fail 'records of the rehearsal'
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
records = {}
for file in sorted((folder / "run").rglob("results.jsonl")):
    records[file.parent.name] = [json.loads(line) for line in file.read_text().splitlines()]
wanted = {"speed", "speed-kept", "speed-streamed-head", "lengths", "offload", "curves", "published", "table9", "table8",
          "tables", "tables-objectives", "deterministic", "nondeterministic", "long"}
assert set(records) == wanted, set(records) ^ wanted
for name, lines in records.items():
    for record in lines:
        assert record["kind"] == "predicted", name
        # A card of 80 GiB is too small for some; no command is refused.
        assert record["status"] in ("ok", "oom"), (name, record["error"])
assert any(record["status"] == "oom" for record in records["tables"]), "the cap on memory is not in force"
assert all(record["status"] == "ok" for record in records["lengths"] + records["offload"] + records["curves"])

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
for text in '| speed | done, 61 s |' '| curves | failed: exit code 1 after 5 s |' '| lengths | not run |' '## Measured' \
  "## StreamBP's time" '## Predicted against measured peaks' '-0.99%' '## Attention kernels chosen'; do
  grep -qF -- "$text" "$folder/made/README.md" || fail "the table does not say '$text'"
done

[ "$failures" -eq 0 ] && echo 'gpu.sh: all good'
exit $((failures > 0))
