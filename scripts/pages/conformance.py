#!/usr/bin/env python3
"""What published code computes now, line by line through the golden batches, and what `streambp-verify compare` says of its gradients.

    python3 scripts/pages/conformance.py                                       the lines of what this environment has: transformers, PEFT, TRL, torch
    PYTHONPATH=DIR python3 scripts/pages/conformance.py --only liger           Liger, which DIR has (pip install --no-deps --target DIR liger-kernel)
    PYTHONPATH=DIR python3 scripts/pages/conformance.py --only unsloth         Unsloth's, likewise (pip install --no-deps --target DIR unsloth-zoo)
    STREAMBP_TORCH_VERSION=2.11.0 python3 scripts/pages/conformance.py --only torch     another torch's (scripts/python_environment.py makes the environment)
    python3 scripts/pages/conformance.py --records results/conformance/results.jsonl --page verify/ERRATA.md     no line: the page of what is on record

Each line is a loss that a project publishes, called as its users call it on the model of the golden cases in float32, or a mistake as it stands in
published code, made again in a few lines. Its gradients go into --out, the verdict into --records (one record for each line and version; those of other
versions stay). Layers are transformers' own. Exit codes: 0 every verdict is the expected one, 1 one is not, 2 bad usage or input.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/
from python_environment import ROOT, InputError, enter_venv
from compare.runners import VERIFY
from files import Parser, parse_record, read_text, run, write_file
from machine import environment

GOLDENS = Path("verify/goldens")
CHUNK = 10  # positions of a chunk of the head


def scored(labels):
    return int((labels[:, 1:] != -100).sum())


def inputs_of(batch):
    return {name: batch[name] for name in ("input_ids", "attention_mask", "position_ids") if name in batch}


def logits_of(model, batch):
    return model(**inputs_of(batch)).logits


def hidden_of(model, batch):
    return model.model(**inputs_of(batch)).last_hidden_state


def summed(torch, logits, labels):
    """The cross entropies of every position but the last, whose labels are the next tokens'."""
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="sum")


def transformers_loss(torch, model, batch):
    return model(**batch).loss


def checkpointed(torch, model, batch):
    model.gradient_checkpointing_enable()
    return model.train()(**batch).loss


def accumulated(torch, model, batch):
    """transformers.Trainer over one row at a time, all rows a step: leaves its gradients, and no loss to differentiate."""
    import transformers

    kept = {}

    class Keep(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, *_, **__):
            kept.update({name: parameter.grad.clone() for name, parameter in model.named_parameters()})

    rows = [{name: tensor[i] for name, tensor in batch.items()} for i in range(len(batch["labels"]))]
    arguments = transformers.TrainingArguments(output_dir="out/conformance/trainer", per_device_train_batch_size=1, max_steps=1, report_to=[], use_cpu=True,
                                               gradient_accumulation_steps=len(rows), max_grad_norm=0.0, save_strategy="no", disable_tqdm=True)
    trainer = transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[Keep()],
                                   data_collator=lambda some: {name: torch.stack([row[name] for row in some]) for name in some[0]})
    trainer.train()
    return kept


def chunk_counts(torch, model, batch):
    """Ledzy/StreamBP, src/streambp/stream_model.py, StreamModel.forward at 3b56c16 (2025)."""
    logits, labels = logits_of(model, batch), batch["labels"]
    columns, loss = labels.shape[1], 0.0
    for begin in range(0, columns, CHUNK):
        end = min(begin + CHUNK + 1, columns)
        counted = int((labels[:, begin:end] != -100).sum()) - len(labels)
        if counted > 0:
            loss = loss + summed(torch, logits[:, begin:end], labels[:, begin:end]) / scored(labels[:, begin:end]) * counted
    return loss / int((labels != -100).sum())


def mean_of_means(torch, model, batch):
    """transformers before 4.46 and trainers like it, gradient accumulation: the mean over micro-batches of their own means."""
    rows = [{name: tensor[row : row + 1] for name, tensor in batch.items()} for row in range(len(batch["labels"]))]
    return sum(summed(torch, logits_of(model, row), row["labels"]) / scored(row["labels"]) for row in rows) / len(rows)


def linear_cross_entropy(torch, model, batch, **settings):
    labels, hidden = batch["labels"], hidden_of(model, batch)
    return torch.nn.functional.linear_cross_entropy(hidden[:, :-1].flatten(0, 1), model.lm_head.weight, labels[:, 1:].flatten(), ignore_index=-100, **settings)


def chunked_cross_entropy(torch, model, batch):
    return linear_cross_entropy(torch, model, batch, options=torch.nn.LinearCrossEntropyOptions(batch_chunk_size=CHUNK))


def trl_dpo(loss_type):
    def loss(torch, model, batch):
        from goldens.preference import Dpo

        return Dpo().loss(model, {**Dpo.defaults, "loss_type": [loss_type]})(batch)

    return loss


def trl_grpo(loss_type):
    def loss(torch, model, batch):
        from goldens.policy_objectives import Grpo

        return Grpo(SimpleNamespace(model="qwen3", inputs={}, settings={"loss_type": loss_type, "epsilon_high": 0.28})).loss(model, batch)()

    return loss


def pairs(batch):
    """Labels of completions, shifted by the caller as Liger asks."""
    mask = batch["completion_mask"]
    return batch["input_ids"].masked_fill(mask == 0, -100)[:, 1:].contiguous()


def liger_pairs(name, **settings):
    def loss(torch, model, batch):
        import liger_kernel.chunked_loss as liger

        hidden = hidden_of(model, batch)[:, :-1].contiguous()
        more = {"nll_target": pairs(batch)} if name == "ORPO" else {}
        return getattr(liger, f"LigerFusedLinear{name}Loss")(compiled=False, **settings)(model.lm_head.weight, hidden, pairs(batch), **more)[0]

    return loss


def liger_grpo(**settings):
    def loss(torch, model, batch):
        import liger_kernel.chunked_loss as liger

        mask = batch["completion_mask"]
        count = mask.shape[1]
        hidden = hidden_of(model, batch)[:, -count - 1 : -1].contiguous()
        more = {"num_items_in_batch": batch["num_items_in_batch"]} if "num_items_in_batch" in batch else {}
        return liger.LigerFusedLinearGRPOLoss(beta=0.0, compiled=False, use_ref_model=False, epsilon_low=0.2, epsilon_high=0.28, **settings)(
            hidden, model.lm_head.weight, batch["input_ids"][:, -count:], mask, batch["advantages"], old_per_token_logps=batch["old_per_token_logps"], **more)[0]

    return loss


def unsloth(torch, module):
    """A module of unsloth_zoo without the patches for a GPU that importing all of it makes; its losses take torch's own operations, uncompiled."""
    os.environ.update(UNSLOTH_ZOO_DISABLE_GPU_INIT="1", UNSLOTH_COMPILE_DISABLE="1")
    importlib.import_module("torch._inductor.config")  # before its stand-ins for Triton
    return importlib.import_module(f"unsloth_zoo.{module}")


def unsloth_cross_entropy(torch, model, batch, **settings):
    loss = unsloth(torch, "fused_losses.cross_entropy_loss").unsloth_fused_ce_loss
    return loss(None, hidden_of(model, batch), model.lm_head.weight, None, batch["labels"], torch_compile=False, **settings)


def unsloth_chunks(torch, model, batch):
    return unsloth_cross_entropy(torch, model, batch, n_chunks=3)


def unsloth_grpo(loss_type):
    def loss(torch, model, batch):
        code, mask = unsloth(torch, "rl_replacements"), batch["completion_mask"]
        count = mask.shape[1]
        hidden, tokens = hidden_of(model, batch)[:, -count - 1 : -1], batch["input_ids"][:, -count:]
        logps = code.chunked_hidden_states_selective_log_softmax(hidden, model.lm_head.weight, tokens, chunks=3)
        return code.grpo_compute_loss(None, logps, batch["old_per_token_logps"], None, tokens, mask, 0.0, batch["advantages"], loss_type=loss_type,
                                      epsilon_high=0.28, num_items_in_batch=batch.get("num_items_in_batch"))[0]

    return loss


# project: whose code it is; what it does; where; a golden case; flags of compare; the loss; the verdict expected
Line = namedtuple("Line", "project what where case flags loss expected", defaults=("exact",))
PROMPTS = "qwen3-sft-b3_right_promptmask"
LINES = [
    Line("transformers", "the loss of a causal LM", "`model(**batch).loss`", "qwen3-sft-b3_left", "", transformers_loss),
    Line("transformers", "the same, prompts without labels", "`model(**batch).loss`", PROMPTS, "", transformers_loss),
    Line("transformers", "the same under gradient checkpointing", "`gradient_checkpointing_enable()`", PROMPTS, "", checkpointed),
    Line("transformers", "accumulation over uneven rows", "`Trainer`, one row a micro-batch", PROMPTS, "", accumulated),
    Line("peft", "LoRA's gradients", "`PeftModel.from_pretrained`", "qwen3-lora-sft-b3_right_promptmask", "--adapter", transformers_loss),
    Line("trl", "DPO's sigmoid loss", "`DPOTrainer._compute_loss`", "qwen3-dpo-sigmoid", "--objective dpo", trl_dpo("sigmoid")),
    Line("trl", "DPO's ipo loss", "`DPOTrainer._compute_loss`", "qwen3-dpo-ipo", "--objective dpo --set loss_type=ipo", trl_dpo("ipo")),
    Line("trl", "GRPO's loss", "`GRPOTrainer._compute_loss`", "qwen3-grpo-grpo", "--objective grpo --set epsilon_high=0.28", trl_grpo("grpo")),
    Line("trl", "GRPO's dapo loss", "`GRPOTrainer._compute_loss`", "qwen3-grpo-dapo",
         "--objective grpo --set loss_type=dapo,epsilon_high=0.28,num_items_in_batch=59", trl_grpo("dapo")),
    Line("torch", "head and cross entropy in one call", "`nn.functional.linear_cross_entropy`", PROMPTS, "", linear_cross_entropy),
    Line("torch", "the same in chunks of the head", "`nn.functional.linear_cross_entropy(options=...)`", PROMPTS, "", chunked_cross_entropy),
    Line("liger", "DPO without a reference", "`LigerFusedLinearDPOLoss`", "qwen3-dpo-sigmoid", "--objective dpo --set reference_free=true",
         liger_pairs("DPO", beta=0.1, use_ref_model=False)),
    Line("liger", "CPO", "`LigerFusedLinearCPOLoss`", "qwen3-dpo-sigmoid", "--objective cpo", liger_pairs("CPO", beta=0.1)),
    Line("liger", "SimPO", "`LigerFusedLinearSimPOLoss`", "qwen3-dpo-sigmoid", "--objective simpo --set beta=2,simpo_gamma=1",
         liger_pairs("SimPO", beta=2.0, gamma=1.0, compute_nll_loss=False)),
    Line("liger", "ORPO", "`LigerFusedLinearORPOLoss`", "qwen3-dpo-sigmoid", "--objective orpo --set nll=completion", liger_pairs("ORPO", beta=0.1)),
    *(Line("liger", f"GRPO, {kind}", "`LigerFusedLinearGRPOLoss`", f"qwen3-grpo-{kind}", f"--objective grpo --set loss_type={kind},epsilon_high=0.28",
           liger_grpo(loss_type=kind)) for kind in ("grpo", "bnpo", "dapo")),
    Line("Ledzy/StreamBP 3b56c16", "divides by the labels of all positions, the first among them, which nothing predicts: (T - 1) / T",
         "`StreamModel.forward`, one row without padding", "qwen3-sft-b1", "", chunk_counts, "scaled"),
    Line("Ledzy/StreamBP 3b56c16", "counts a chunk's labels as all of its labels less one for each row, whether or not the row's first is scored",
         "the same, padded rows", "qwen3-sft-b3_right", "", chunk_counts, "wrong"),
    Line("Ledzy/StreamBP 3b56c16", "the same; chunks of the head with no more labels than rows are left out", "the same, prompts without labels", PROMPTS, "",
         chunk_counts, "wrong"),
    Line("transformers before 4.46 (transformers#34191)", "mean of the micro-batches' own means, whatever number of labels each has",
         "gradient accumulation over uneven rows", PROMPTS, "", mean_of_means, "wrong"),
    Line("unsloth", "head and cross entropy in one call", "`unsloth_fused_ce_loss`", PROMPTS, "", unsloth_cross_entropy),
    Line("unsloth", "the same in three chunks", "`unsloth_fused_ce_loss(n_chunks=3)`", PROMPTS, "", unsloth_chunks),
    *(Line("unsloth", f"GRPO, {kind}", "`grpo_compute_loss`, log-probabilities by `chunked_hidden_states_selective_log_softmax`", f"qwen3-grpo-{kind}",
           f"--objective grpo --set loss_type={kind},epsilon_high=0.28", unsloth_grpo(kind)) for kind in ("grpo", "bnpo")),
]
# The distribution, and what has to be there; other projects' mistakes are made with the first one's.
PACKAGES = {"transformers": ("transformers", None), "peft": ("peft", None), "trl": ("trl", None), "torch": ("torch", "linear_cross_entropy"),
            "liger": ("liger-kernel", None), "unsloth": ("unsloth-zoo", None)}
IMPORTED = {"liger": "liger_kernel", "unsloth": "unsloth_zoo"}
PAGE = """\
# What published code computes

Losses of other projects through the golden batches, called as their users call them, and mistakes that stand in published code, made again in a few
lines: gradients of a small Qwen3 in float32, judged by `streambp-verify compare`. Stated of the named versions alone. Layers and attention are
transformers' own; of Liger and Unsloth the losses that take torch's operations are called: kernels in Triton and CUDA need a GPU. surogate is not here: it has no loss in
torch and is not on PyPI; its `surogate/grpo/loss.py` gives gradients of log-probabilities in NumPy, of an objective of its own (a mask by differences of probabilities, a
squared KL term), to an engine in CUDA. TRL's other losses and trainers: [golden cases](goldens/README.md), [live models](../results/live-models/live-models.md). Made by `scripts/pages/conformance.py`, whose `--help` says
in which environments; [records](../results/conformance/results.jsonl).

| project | what it computes | where | verdict | factor | worst parameter off by |
|---|---|---|---|---:|---:|
{rows}

Each row again, with the gradients that the script has left in `out/conformance`:

```sh
{commands}
```

Not a mistake of the loss, but of its arithmetic: in float32 the losses of transformers, torch and TRL lose the gradients of tokens that a model is sure of, where the
target leads by 12 nats and more ([measured](../results/confident-tokens/confident-tokens.md)).
"""


def is_here(line):
    """Whether this environment has the line's project, and torch the function."""
    if line.project not in PACKAGES:
        return True
    if importlib.util.find_spec(IMPORTED.get(line.project, line.project)) is None:
        return False
    function = PACKAGES[line.project][1]
    if function is None:
        return True
    import torch

    return hasattr(torch.nn.functional, function)


def version_of(line):
    if line.project not in PACKAGES:
        return line.project
    package = PACKAGES[line.project][0]
    return f"{IMPORTED.get(line.project, line.project)} {importlib.metadata.version(package)}"


def versions_of(line):
    """The version of the line's own distribution, as a record's environment has it; other projects' mistakes have none."""
    package = PACKAGES.get(line.project, (None,))[0]
    return {package: importlib.metadata.version(package)} if package else {}


def gradients_of(line, torch, transformers, read):
    folder = ROOT / GOLDENS / "models/qwen3"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    case = ROOT / GOLDENS / "cases" / line.case
    batch = {name[3:]: tensor.to(torch.float32) if tensor.is_floating_point() else tensor
             for name, tensor in read(case / "tensors.safetensors").items() if name.startswith("in.")}
    if line.flags == "--adapter":
        import peft

        model = peft.PeftModel.from_pretrained(model, case / "adapter", is_trainable=True)
    result = line.loss(torch, model, batch)
    if isinstance(result, dict):
        return result
    result.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def judge(line, gradients):
    case = GOLDENS / "cases" / line.case
    flags = [line.flags, str(case / "adapter")] if line.flags == "--adapter" else line.flags.split()
    words = ["--model", str(GOLDENS / "models/qwen3"), "--tokens", str(case / "tensors.safetensors"), "--gradients", str(gradients), *flags]
    done = subprocess.run([str(VERIFY), "compare", *words, "--json"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise InputError(f"streambp-verify compare {' '.join(words)}: exit code {done.returncode}: {done.stderr.strip()}")
    result = next(record for record in map(json.loads, done.stdout.splitlines()) if "verdict" in record)
    return {"command": ["streambp-verify", "compare", *words], **{name: result[name] for name in ("verdict", "factor", "worst_error", "worst_parameter")}}


def page(records):
    """A row for each line and verdict, with the versions that have it."""
    rows = {}
    for line in sorted(LINES, key=lambda one: one.expected != "exact"):  # mistakes last
        for record in sorted((one for one in records if (one["project"], one["what"]) == (line.project, line.what)), key=lambda one: one["version"]):
            rows.setdefault((line.project, line.what, line.where, record["verdict"]), []).append(record)
    lines, commands = [], []
    for (_, what, where, verdict), same in rows.items():
        versions = ", ".join([same[0]["version"], *(one["version"].split()[-1] for one in same[1:])])
        factor = f"{same[-1]['factor']:.6f}" if verdict == "scaled" else ""
        lines.append(f"| {versions} | {what} | {where} | `{verdict}` | {factor} | {max(one['worst_error'] for one in same):.1e} |")
        commands += [f"# {same[-1]['version']}: {what}", " ".join(same[-1]["command"])]
    return PAGE.format(rows="\n".join(lines), commands="\n".join(commands))


def main():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/conformance"), help="folder for gradients")
    parser.add_argument("--records", type=Path, default=Path("out/conformance/results.jsonl"), help="file of records, of other versions too")
    parser.add_argument("--only", choices=PACKAGES, help="the lines of one project")
    parser.add_argument("--page", type=Path, help="file for the table of --records; no line is run")
    options = parser.parse_args()
    if options.page:
        return write_file(options.page, page([parse_record(line) for line in read_text(options.records).splitlines()]))
    if not VERIFY.is_file():
        raise InputError(f"{VERIFY}: not there; expected the built streambp-verify")
    import torch
    import transformers
    from safetensors.torch import load_file, save_file

    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    options.out.mkdir(parents=True, exist_ok=True)
    options.records.parent.mkdir(parents=True, exist_ok=True)
    known = [parse_record(line) for line in read_text(options.records).splitlines()] if options.records.exists() else []
    made, good = environment("torch", "transformers", program=VERIFY), True
    for number, line in enumerate(LINES):
        if options.only and line.project != options.only:
            continue
        if not is_here(line):
            print(f"{line.project}, {line.what}: not in this environment", flush=True)
            continue
        file = options.out / f"{number}.safetensors"
        gradients = gradients_of(line, torch, transformers, load_file)
        save_file({name: tensor.contiguous() for name, tensor in gradients.items()}, file)
        version = version_of(line)
        result = {"project": line.project, "version": version, "what": line.what, "where": line.where, "case": line.case, "expected": line.expected,
                  **judge(line, file), "environment": made | versions_of(line)}
        known = [one for one in known if (one["version"], one["what"], one["where"]) != (version, line.what, line.where)] + [result]
        good = good and result["verdict"] == line.expected
        print(f"{version}, {line.what}: {result['verdict']}, expected {line.expected}, {result['worst_error']:.1e}", flush=True)
    write_file(options.records, "".join(json.dumps(one, sort_keys=True) + "\n" for one in known))
    return 0 if good else 1


if __name__ == "__main__":
    enter_venv()
    run(main)
