#!/usr/bin/env python3
"""What `streambp-verify compare --diagnose` says of mistakes that are made in transformers' own code.

    python3 scripts/pages/planted_mistakes.py [--out results/planted] [NAME...]

Each mistake (scripts/planted/) changes one thing of a golden case's model, batch or loss, in float64 throughout and in float32 as transformers
computes; the judge is given nothing but the gradients. A mistake is named where the finding has the words that it should. Two of each dtype are
right, and nothing may be said of them. Writes results.jsonl, a record for each mistake and dtype, and planted.md. Exit codes: 0 all that are named on
record are named again and nothing is said of what is right, 1 not so, 2 bad usage or input.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/
from python_environment import ROOT, InputError, enter_venv
from compare.runners import VERIFY
from files import Parser, parse_record, read_text, run, write_file
from machine import environment

DTYPES = ("float64", "float32")
RIGHT = {"qwen3-sft-b3_left": "SFT as it should be", "qwen3-grpo-grpo_kl": "GRPO as it should be", "qwen3-dpo-sigmoid": "DPO as it should be"}
#: Hyperparameters that compare is told, of each objective.
OPTIONS = {"sft": (), "grpo": ("loss_type", "beta", "epsilon_low", "epsilon_high", "temperature", "importance_sampling_level"),
           "orpo": ("beta",),
           "dpo": ("beta", "loss_type"), "kto": ("loss_type", "beta", "desirable_weight", "undesirable_weight"),
           "simpo": ("beta", "simpo_gamma"), "distill": ("divergence", "beta", "temperature", "alpha")}
#: And those that cases have switched on.
SWITCHES = ("use_bias_correction_kl", "entropy_coef", "label_smoothing")
PAGE = """# Mistakes made in transformers' own code

What `streambp-verify compare --diagnose` says of each, given the gradients alone: {named} of {all} named (float64: {of64}, float32: {of32}). {machine}, commit
{commit}; transformers {transformers}, torch {torch}. Made by `scripts/pages/planted_mistakes.py`; [records](results.jsonl) have the whole sentences. Passes are those
of the search, over a batch of some 120 tokens.

| what was done | batch | named in | what is said (float64) | passes |
|---|---|---|---|---:|
{rows}

Not named in either: {unnamed}. This is no blind test: some of the names were added because this list showed that they were lacking.
"""


def gradients_of(planted, case, dtype):
    """Of a mistake; of what is right where it is None."""
    from planted.losses import Completions, pairs, sigmoid
    from planted.passes import Pass

    one = Pass(case, dtype)
    if planted is not None:
        return one, planted.gradients(one)
    if one.objective == "grpo":
        own = Completions(one)
        return one, one.gradients(own.of_rows(own.clipped() + own.divergence()))
    if one.objective == "dpo":
        return one, pairs(one, lambda c, r, rc, rr: sigmoid((c - rc) - (r - rr), one.settings["beta"]))
    return one, one.gradients()


def flags_of(one):
    settings = [f"{name}={one.settings[name]}" for name in OPTIONS.get(one.objective, ()) if name in one.settings]
    settings += [f"{name}={one.settings[name]}".lower() for name in SWITCHES if one.settings.get(name)]
    if one.settings.get("loss_type") == "dapo":
        settings.append(f"num_items_in_batch={one.settings['num_items_in_batch']}")
    if one.settings.get("loss_type") == "dr_grpo":
        settings.append(f"max_completion_length={one.settings['max_completion_length']}")
    others = ["--adapter", str(one.adapter.relative_to(ROOT))] if one.adapter else []
    if "teacher" in one.settings:
        others += ["--teacher", f"verify/goldens/{one.settings['teacher']}"]
    return ["--objective", one.objective, *(["--set", ",".join(settings)] if settings else []), *others]


def judged(one, case, file):
    words = ["--model", str(one.folder.relative_to(ROOT)), "--tokens", f"verify/goldens/cases/{case}/tensors.safetensors", "--gradients", str(file), *flags_of(one)]
    done = subprocess.run([str(VERIFY), "compare", *words, "--json", "--diagnose"], cwd=ROOT, capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode not in (0, 1):
        raise InputError(f"streambp-verify compare {' '.join(words)}: exit code {done.returncode}: {done.stderr.strip()}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    found = next(line for line in lines if line["kind"] == "diagnosis")
    alike = [each["sentence"] for each in found["explanations"][: found["equally_good"] + 1]] if found["finding"] in ("explained", "partly") else []
    return {"verdict": next(line["verdict"] for line in lines if "verdict" in line), "finding": found["finding"], "residual": found["residual"],
            "passes": found["passes"], "sentences": alike or [found["sentence"] if found["finding"] == "located" else found["finding"]], "command": ["streambp-verify", "compare", *words, "--diagnose"]}


def page(records):
    made = records[0]["environment"]
    counts = {dtype: [record["named"] for record in records if record["dtype"] == dtype and record["mistake"]] for dtype in DTYPES}
    rows = []
    for record in records:
        same = [one for one in records if one["what"] == record["what"]]
        if record is not same[0]:
            continue
        named = [one["dtype"] for one in same if one["named"]]
        said = record["sentences"][0]
        rows.append(f"| {record['what']} | {record['case']} | {', '.join(named) if record['mistake'] else 'nothing to name'} | "
                    f"{said if len(said) <= 150 else said[:147] + '...'} | {record['passes']:.0f} |")
    unnamed = [what for what in dict.fromkeys(record["what"] for record in records if record["mistake"])
               if not any(record["named"] for record in records if record["what"] == what)]
    named = sum(map(sum, counts.values()))
    return PAGE.format(unnamed="; ".join(unnamed) or "none", named=named, all=sum(map(len, counts.values())), of64=f"{sum(counts['float64'])} of {len(counts['float64'])}",
                       of32=f"{sum(counts['float32'])} of {len(counts['float32'])}", rows="\n".join(rows), machine=made["cpu"],
                       commit=made["commit"][:12] + (", modified" if made["modified"] else ""), transformers=made["transformers"], torch=made["torch"])


def main():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="these mistakes alone, of which nothing is written (default: all)")
    parser.add_argument("--out", type=Path, default=ROOT / "results/planted", help="folder of records and page")
    options = parser.parse_args()
    if not VERIFY.is_file():
        raise InputError(f"{VERIFY}: not there; expected the built streambp-verify")
    import torch
    import transformers
    from planted import families, losses, model, reports, reports_public, reports_public_later, reports_public_third, unmet, unmet_later, unmet_fifth, unmet_fourth, unmet_third  # noqa: F401: they fill the table
    from planted.passes import MISTAKES
    from safetensors.torch import save_file

    unknown = set(options.names) - {each.name for each in MISTAKES}
    if unknown:
        raise InputError(f"{', '.join(sorted(unknown))}: no such mistake; expected of {', '.join(each.name for each in MISTAKES)}")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    made, records, good = environment("torch", "transformers", program=None if options.names else VERIFY), [], True
    file = Path("out/planted.safetensors")  # of the project, whose folder is no part of a record
    (ROOT / file).parent.mkdir(exist_ok=True)
    jobs = [(each.what, each.case, each) for each in MISTAKES if not options.names or each.name in options.names]
    jobs += [(what, case, None) for case, what in RIGHT.items() if not options.names]
    for what, case, planted in jobs:
        for dtype in DTYPES:
            one, gradients = gradients_of(planted, case, getattr(torch, dtype))
            save_file({name: gradient.contiguous() for name, gradient in gradients.items()}, ROOT / file)
            found = judged(one, case, file)
            named = planted is not None and any(words in sentence for words in planted.words for sentence in found["sentences"])
            good = good and (named if planted else found["finding"] == "right")
            records.append({"kind": "planted", "mistake": planted.name if planted else "", "what": what, "case": case, "dtype": dtype, "named": named,
                            **found, "environment": made})
            print(f"{'named' if named else 'right' if found['finding'] == 'right' else 'NOT NAMED'}, {dtype}, {what}: {found['sentences'][0]}", flush=True)
    if options.names:
        return 0 if good else 1
    before = options.out / "results.jsonl"
    known = [parse_record(line) for line in read_text(before).splitlines()] if before.exists() else []
    lost = [record for record in known if record["named"]
            and not any(one["named"] for one in records if (one["mistake"], one["dtype"]) == (record["mistake"], record["dtype"]))]
    said = [record for record in records if not record["mistake"] and record["finding"] != "right"]
    options.out.mkdir(parents=True, exist_ok=True)
    write_file(before, "".join(json.dumps(record) + "\n" for record in records))
    write_file(options.out / "planted.md", page(records))
    return 1 if lost or said else 0


if __name__ == "__main__":
    enter_venv()
    run(main)
