#!/usr/bin/env python3
"""Hugging Face's gradient checkpointing and the package's patch() and backward() on one GPU: the same model object, tokens and dtype, in turns.

    python3 scripts/compare_gpu.py --seq-len 8192,32768 --out out/compare-gpu

Weights are random (a model's published shape), gradients are there before a pass, as in a loop that accumulates. A measurement is the forward
and backward pass of one sequence, timed by CUDA events after a warm-up of each method and length; memory is what torch's caching allocator gave
out at its peak. A pass that runs out of memory is a result. At the first length gradients are held against those of Hugging Face's pass in the
same precision.

Writes results.jsonl, a record for each method and length, and compare.md into --out. It needs transformers, torch and a CUDA device, and
STREAMBP_TORCH_LIBRARY where the package is not installed.
"""

import argparse
import copy
import gc
import json
import os
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # as in streambp-bench

try:
    import torch
except ImportError as error:
    sys.exit(f"compare_gpu.py: {error}: it needs a Python with torch and transformers")

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "streambp/python"))
sys.path.insert(0, str(ROOT / "scripts"))

from compare.runners import kept_by_selective  # noqa: E402
from machine import environment  # noqa: E402

# Keys of config.json.
SHAPES = {
    "qwen3-8b": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
                 "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": False},
    "qwen3-1.7b": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16,
                   "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True},
    "qwen3-tiny": {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
                   "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 61, "tie_word_embeddings": False},
}
# Of others: checkpointing alone, with Liger's kernels, and with products and attention kept (torch's selective checkpointing). Of ours without and
# with idle memory.
METHODS = ("hf-checkpoint", "hf-standard", "hf-liger", "hf-selective", "python-patch", "python", "python-patch+idle", "python+idle")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen3-8b", choices=SHAPES)
    parser.add_argument("--seq-len", default="8192,32768", help="lengths, by commas (default: %(default)s)")
    parser.add_argument("--methods", default="hf-checkpoint,python-patch,python", help=f"of {', '.join(METHODS)} (default: %(default)s)")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32", "float64"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "out/compare-gpu")
    parser.add_argument("--tiny", action="store_true", help="rehearse with a tiny model, on the CPU where there is no GPU")
    options = parser.parse_args()
    try:
        options.lengths = [int(word) for word in options.seq_len.split(",")]
    except ValueError:
        options.lengths = [0]
    options.methods = options.methods.split(",")
    if min(options.lengths) < 2 or options.repeats < 1:
        parser.error("--seq-len: expected lengths of at least 2, by commas; --repeats: at least 1")
    if unknown := set(options.methods) - set(METHODS):
        parser.error(f"--methods: no {', '.join(sorted(unknown))}, expected some of {', '.join(METHODS)}")
    options.device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.tiny:
        options.model, options.dtype, options.lengths, options.repeats = "qwen3-tiny", "float32", [40], 1
    elif options.device == "cpu":
        parser.error("no CUDA device; on the CPU scripts/compare_hf.py compares")
    return options


def make_model(name, dtype, device="cuda"):
    import transformers

    transformers.utils.logging.set_verbosity_error()
    config = transformers.Qwen3Config(**SHAPES[name], max_position_embeddings=1 << 20, use_cache=False)
    config._attn_implementation = "sdpa"
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            torch.manual_seed(0)
            model = transformers.Qwen3ForCausalLM(config)
    finally:
        torch.set_default_dtype(default)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return model.train()


class Liger:
    """A twin of a model, with its parameters, whose modules have Liger's kernels; what Liger puts into transformers' file is there only while it runs."""

    def __init__(self, model):
        import transformers.models.qwen3.modeling_qwen3 as file
        from liger_kernel.transformers import apply_liger_kernel_to_qwen3

        self.file, self.own = file, dict(vars(file))
        self.model = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
        apply_liger_kernel_to_qwen3(model=self.model)
        self.theirs = {name: value for name, value in vars(file).items() if self.own.get(name) is not value}
        self.leave()

    def enter(self):
        vars(self.file).update(self.theirs)

    def leave(self):
        for name in self.theirs:
            if name in self.own:
                setattr(self.file, name, self.own[name])


class Clock:
    """torch.cuda.Event's part of it, on a CPU."""

    def record(self):
        self.time = time.perf_counter()

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return 1e3 * (end.time - self.time)


class Runner:
    def __init__(self, model):
        self.outer = self.model = model
        self.method, self.liger = None, None
        self.device = model.device

    def set_method(self, method):
        import streambp_bench as sb

        if self.method == method:
            return
        if (self.method or "").startswith("python-patch"):
            sb.unpatch(self.model)
        if self.method == "hf-liger":
            self.liger.leave()
        self.model, self.method = self.outer, None
        if method == "hf-liger":
            self.liger = self.liger or Liger(self.outer)
            self.liger.enter()
            self.model = self.liger.model
        self.model.gradient_checkpointing_disable()
        if method in ("hf-checkpoint", "hf-liger", "hf-selective"):
            more = {"context_fn": kept_by_selective} if method == "hf-selective" else {}
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False, **more})
        elif method.startswith("python-patch"):
            sb.patch(self.model, idle_memory=method.endswith("+idle"))
        self.method = method

    def step(self, tokens):
        """(loss, seconds, bytes at the peak beyond those before) of one pass into gradients of zero."""
        for parameter in self.model.parameters():
            parameter.grad.zero_()
        import streambp_bench as sb

        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        start, end = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if self.device.type == "cuda" else [Clock(), Clock()]
        with sb.measure(self.device) as memory:
            start.record()
            if self.method in ("python", "python+idle"):
                loss = sb.backward(self.model, tokens, idle_memory=self.method == "python+idle")
            else:
                loss = self.model(**tokens, use_cache=False).loss
                loss.backward()
            end.record()
            end.synchronize()
        return loss.item(), start.elapsed_time(end) / 1e3, memory.beyond_start

    def gradients(self):
        return {name: parameter.grad for name, parameter in self.model.named_parameters()}


def difference(ours, theirs):
    """Of all gradients as one vector, relative to the second's norm."""
    of_difference = sum((ours[name].float() - gradient.float()).pow(2).sum().item() for name, gradient in theirs.items())
    return (of_difference / sum(gradient.float().pow(2).sum().item() for gradient in theirs.values())) ** 0.5


def measure(runner, options, length, compared):
    """{method: record} of one length; with `compared` gradients are held against Hugging Face's."""
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(0, runner.model.config.vocab_size, (1, length), generator=generator).to(runner.device)
    tokens = {"input_ids": ids, "labels": ids}
    found, against = {method: {"seconds": [], "status": "ok"} for method in options.methods}, None
    for turn in range(options.repeats + 1):  # the first warms up
        for method in options.methods if turn % 2 == 0 else options.methods[::-1]:
            record = found[method]
            if record["status"] != "ok":
                continue
            try:
                runner.set_method(method)
                loss, seconds, peak = runner.step(tokens)
            except torch.OutOfMemoryError as error:
                record.update(status="oom", error=str(error).partition("\n")[0])
                torch.cuda.empty_cache()
                continue
            except ImportError as error:
                record.update(status="not run", error=str(error))
                continue
            print(f"{length} {method}: {seconds:.3f} s, {peak / 2**30:.2f} GiB beyond weights and gradients", file=sys.stderr, flush=True)
            if turn > 0:
                record["seconds"].append(seconds)
                record["peak_beyond_resident_bytes"] = max(peak, record.get("peak_beyond_resident_bytes", 0))
                record["loss"] = loss
            elif compared and method.startswith("hf-") and against is None:
                against = method, {name: gradient.clone() for name, gradient in runner.gradients().items()}
            elif against is not None:
                record["gradient_difference"] = difference(runner.gradients(), against[1])
                record["against"] = against[0]
        against = None
    return found


def markdown(records):
    of = records[0]
    lines = ["# Hugging Face and the package on one GPU", "",
             f"{of['model']}, {of['dtype']}, {of['environment']['gpu'] or 'a rehearsal on a CPU'}, torch {of['environment']['torch']}, "
             f"transformers {of['environment']['transformers']}: `scripts/compare_gpu.py {' '.join(of['environment']['argv'])}`. Medians.", "",
             "| tokens | method | s | spread | x HF ckpt | GiB beyond weights and gradients | x HF ckpt | difference of gradients | status |",
             "|---:|---|---:|---:|---:|---:|---:|---:|---|"]
    for record in records:
        base = next((one for one in records if one["seq_len"] == record["seq_len"] and one["method"] == "hf-checkpoint" and one["seconds"]), None)
        cells = [f"{record['seq_len']:,}", record["method"]]
        if record["seconds"]:
            median, peak = statistics.median(record["seconds"]), record["peak_beyond_resident_bytes"]
            spread = (max(record["seconds"]) - min(record["seconds"])) / median
            cells += [f"{median:.3f}", f"{spread:.1%}", f"{median / statistics.median(base['seconds']):.3f}" if base else "-",
                      f"{peak / 2**30:.2f}", f"{peak / base['peak_beyond_resident_bytes']:.3f}" if base else "-"]
        else:
            cells += ["-"] * 5
        cells += [f"{record['gradient_difference']:.2e}" if "gradient_difference" in record else "-", record["status"]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main():
    options = parse_options()
    options.out.mkdir(parents=True, exist_ok=True)
    runner = Runner(make_model(options.model, getattr(torch, options.dtype), options.device))
    records, of_all = [], environment("torch", "transformers", gpu=torch.cuda.get_device_name() if options.device == "cuda" else None)
    with open(options.out / "results.jsonl", "w", encoding="utf-8") as file:
        for length in options.lengths:
            for method, record in measure(runner, options, length, length == options.lengths[0]).items():
                records.append({"schema": 1, "model": options.model, "dtype": options.dtype, "seq_len": length, "method": method, **record,
                                "environment": of_all})
                file.write(json.dumps(records[-1]) + "\n")
                file.flush()
            (options.out / "compare.md").write_text(markdown(records), encoding="utf-8")
    print(markdown(records))


if __name__ == "__main__":
    main()
