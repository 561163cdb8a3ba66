#!/usr/bin/env python3
"""Recipes of TRL as people copy them, five steps, with one line more: sb.patch(trainer). Losses and gradients against the same recipe without it.

    scripts/pages/recipes.py [--only NAME...] [--lanes auto,module] [--resume] [--out results/recipes]

SFTTrainer with its defaults, packed, with LoRA, with QLoRA (NF4) and over 8 bits, DPO, KTO, GRPO and reward models with and without LoRA, on a tiny Qwen3. Each runs as it is
(TRL's defaults: bf16 autocast over float32 weights, gradient checkpointing) and in float32 (bf16=False). Runs of each: plain; plain with
attn_implementation="eager" for "sdpa", and without oneDNN's matrix products, whose differences are the noise that Hugging Face itself has; patched, once for each of --lanes. Losses count over five steps, gradients before the first.

Limits: losses NOISE x that noise or 1e-5, in bfloat16 an eighth of its rounding; gradients 1e-5 of a parameter's largest entry in float32, and where something is computed in bfloat16 or 8 bits (autocast, quantized
bases, whose adapters TRL casts to bfloat16) NOISE x the noise or NOISE roundings of bfloat16. Writes results.jsonl and README.md.
Exit codes: 0 all within limits, 1 not, 2 bad usage.
"""

import json
import logging
import os
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # scripts/
from files import Parser, write_file
from machine import environment, made_by
from python_environment import ROOT, enter_venv

STEPS, CHUNK, LIMIT, NOISE, ROUNDING = 5, 8, 1e-5, 4.0, 2.0 ** -8
GOOD = "as Hugging Face"
PACKAGES = ("torch", "transformers", "trl", "peft", "bitsandbytes")
# name: (trainer, rows, settings, with LoRA, quantized)
RECIPES = {
    "SFT": ("SFT", "texts", {}, False, None),
    "SFT, packing": ("SFT", "texts", {"packing": True, "max_length": 40}, False, None),
    "SFT, LoRA": ("SFT", "texts", {}, True, None),
    "SFT, QLoRA NF4": ("SFT", "texts", {}, True, "nf4"),
    "SFT, LoRA over 8 bits": ("SFT", "texts", {}, True, "int8"),
    "DPO": ("DPO", "pairs", {}, False, None),
    "DPO, LoRA": ("DPO", "pairs", {}, True, None),
    "KTO": ("KTO", "judged", {"per_device_train_batch_size": 4}, False, None),
    "KTO, LoRA": ("KTO", "judged", {"per_device_train_batch_size": 4}, True, None),
    "GRPO": ("GRPO", "prompts", {"num_generations": 4, "max_completion_length": 10}, False, None),
    "GRPO, LoRA": ("GRPO", "prompts", {"num_generations": 4, "max_completion_length": 10}, True, None),
    "reward": ("Reward", "scored", {}, False, None),
    "reward, LoRA": ("Reward", "scored", {}, True, None),
}
PAGE = """# Recipes of TRL with one line more

Five steps of each recipe as it is and in float32, patched (`sb.patch(trainer)`, whose `lane` is "auto", and with `lane="module"`) against plain Hugging Face: the largest relative difference of a loss, the largest of a gradient before the
first step (of its parameter's largest entry), and what "eager" attention for "sdpa", or other matrix products than oneDNN's, change in plain Hugging Face at the most. Tiny Qwen3, chunks of {chunk} tokens. {made}
Made by `scripts/pages/recipes.py`.

| recipe | computed in | lane | what the package said | loss | its noise | gradient | its noise | verdict |
|---|---|---|---|---:|---:|---:|---:|---|
{rows}

{summary}
"""


def base_model(folder, scores, quantized, attention):
    """The folder's model as people load it."""
    import torch
    import transformers

    kind = transformers.AutoModelForSequenceClassification if scores else transformers.AutoModelForCausalLM
    if quantized is None:
        return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention)
    settings = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"} if quantized == "nf4" else {"load_in_8bit": True}
    return kind.from_pretrained(folder, quantization_config=transformers.BitsAndBytesConfig(**settings), device_map={"": "cpu"}, dtype=torch.float32,
                                attn_implementation=attention)


class Said(logging.Handler):
    """Collects the package's lines while it is entered."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())

    def __enter__(self):
        logging.getLogger("streambp_bench").addHandler(self)
        logging.getLogger("streambp_bench").setLevel(logging.INFO)
        return self

    def __exit__(self, *error):
        logging.getLogger("streambp_bench").removeHandler(self)


def run(recipe, autocast, attention="sdpa", lane=None):
    """(losses of the steps, gradients before the first step)."""
    import datasets
    import streambp_bench as sb
    import torch
    import trl
    from live.recipes import ROWS, byte_tokenizer, make_model, surprise
    from peft import LoraConfig

    name, rows, settings, lora, quantized = RECIPES[recipe]
    with tempfile.TemporaryDirectory() as folder:
        model = make_model("qwen3", name == "Reward")
        model.save_pretrained(folder)
        more = {"peft_config": LoraConfig(task_type="SEQ_CLS" if name == "Reward" else "CAUSAL_LM")} if lora else {}
        if name == "GRPO":
            more["reward_funcs"] = surprise
        arguments = getattr(trl, f"{name}Config")(output_dir=folder, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True, max_steps=STEPS, logging_steps=1,
                                                  **{"per_device_train_batch_size": 4 if name == "GRPO" else 2, **settings}, **({} if autocast else {"bf16": False}))
        torch.manual_seed(8)
        trainer = getattr(trl, f"{name}Trainer")(model=base_model(folder, name == "Reward", quantized, attention), args=arguments, processing_class=byte_tokenizer(),
                                                 train_dataset=datasets.Dataset.from_list(ROWS[rows]), **more)
        if lane:
            sb.patch(trainer, lane=lane, chunk=CHUNK)
        losses, gradients, own = [], {}, trainer.training_step

        def stepping(*args, **kwargs):
            losses.append(float(own(*args, **kwargs)))
            if not gradients:
                gradients.update((each, parameter.grad.double()) for each, parameter in trainer.model.named_parameters() if parameter.grad is not None)
            return torch.tensor(losses[-1])

        trainer.training_step = stepping
        torch.manual_seed(9)
        trainer.train()
        return losses, gradients


def differences(ours, theirs):
    """(of losses, of gradients)."""
    if ours[1].keys() != theirs[1].keys() or len(ours[0]) != len(theirs[0]):
        return float("inf"), float("inf")
    top = max(float(each.abs().max()) for each in theirs[1].values())
    of_losses = [abs(a - b) / max(abs(b), 1e-2) for a, b in zip(ours[0], theirs[0], strict=True)]
    of_gradients = [float((ours[1][name] - each).abs().max()) / max(float(each.abs().max()), 1e-6 * top) for name, each in theirs[1].items()]
    return tuple(max(each) if all(x == x for x in each) else float("nan") for each in (of_losses, of_gradients))


def records_of(recipe, autocast, lanes):
    """One for each lane."""
    import torch

    plain = run(recipe, autocast)
    with torch.backends.mkldnn.flags(enabled=False):  # other matrix products; a single run can come out the same by luck
        products = differences(run(recipe, autocast), plain)
    noise = tuple(map(max, products, differences(run(recipe, autocast, "eager"), plain)))
    for lane in lanes:
        record = {"recipe": recipe, "dtype": "bfloat16 autocast" if autocast else "float32", "lane": lane, "said": [], "loss": None, "loss_noise": noise[0], "gradient": None,
                  "gradient_noise": noise[1]}
        try:
            with Said() as said:
                record["loss"], record["gradient"] = differences(run(recipe, autocast, lane=lane), plain)
            yield record | {"said": said.lines, "verdict": verdict(record)}
        except Exception as error:  # of whatever kind a trainer raises
            traceback.print_exc()
            yield record | {"said": said.lines, "verdict": f"failed: {type(error).__name__}: {error}".splitlines()[0][:200]}


def verdict(record):
    autocast, recipe = record["dtype"] != "float32", record["recipe"]
    exact = not autocast and RECIPES[recipe][4] is None
    within = record["loss"] <= max(LIMIT if exact else ROUNDING / 8, NOISE * record["loss_noise"])
    within = within and record["gradient"] <= (LIMIT if exact else NOISE * max(ROUNDING, record["gradient_noise"]))
    return GOOD if within else "WRONG"


def row_of(record):
    figures = ["" if record[name] is None else f"{record[name]:.1e}" for name in ("loss", "loss_noise", "gradient", "gradient_noise")]
    said = "; ".join(line.removeprefix("streambp: ") for line in record["said"]).replace("|", " ")
    return f"| {record['recipe']} | {record['dtype']} | {record['lane']} | {said} | {' | '.join(figures)} | {record['verdict'].replace('|', ' ')} |"


def written(folder, records):
    """Writes records and page to `folder`; returns the page's summary."""
    good = sum(record["verdict"] == GOOD for record in records)
    summary = f"{good} as Hugging Face, {len(records) - good} not."
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "results.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    write_file(folder / "README.md", PAGE.format(chunk=CHUNK, rows="\n".join(map(row_of, records)), summary=summary,
                                                 made="\n".join(made_by(records))))
    return summary


def main():
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--lanes", default="auto,module", help="of patch(), by commas")
    parser.add_argument("--resume", action="store_true", help="keep the records that results.jsonl has")
    parser.add_argument("--out", type=Path, default=ROOT / "results/recipes", metavar="FOLDER")
    options = parser.parse_args()
    enter_venv()
    os.environ.setdefault("STREAMBP_TORCH_LIBRARY", str(ROOT / "build/release/lib/libstreambp_torch.so"))
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRL_EXPERIMENTAL_SILENCE": "1"}
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(ROOT / "streambp/python"))
    import datasets
    import torch
    import transformers

    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    common = {"environment": environment(*PACKAGES)}
    found = options.out / "results.jsonl"
    records = [json.loads(line) for line in found.read_text(encoding="utf-8").splitlines()] if options.resume and found.exists() else []
    for recipe in RECIPES:
        if options.only and recipe not in options.only or any(record["recipe"] == recipe for record in records):
            continue
        for autocast in (True, False):
            for record in records_of(recipe, autocast, options.lanes.split(",")):
                records.append(record | common)
                print(row_of(records[-1]), flush=True)
                written(options.out, records)
    summary = written(options.out, records)
    print(summary)
    return 0 if records and all(record["verdict"] == GOOD for record in records) else 1


if __name__ == "__main__":
    sys.exit(main())
