"""One process that holds a Hugging Face model and runs steps of it on demand: a JSON object a line on stdin, its answer on stdout.

    {"do": "step", "method": "hf-standard", "hf-checkpoint" or one of PYTHON_METHODS, "tokens": FILE, "warmup": 1}
        hf-checkpoint+every=2 checkpoints every second layer, hf-checkpoint+torch-head has its head and loss in torch's chunks
        (linear_cross_entropy, torch 2.15), hf-checkpoint+fused-head has those of TRL's trainers, hf-checkpoint+selective keeps what products
        and attention give (torch's selective checkpointing)
    {"do": "gradients", "file": FILE}          writes those of the last step under the names of the weight file

Memory is counted by the project's own meter, put in place before the model is loaded: libstreambp_meter_c, which leaves tensors to come
and go as ever, or for the methods of streambp's package that of its engine.
"""

import argparse
import ctypes
import gc
import json
import os
import sys
import time
import warnings

import torch
import transformers
from compare.runners import BACKWARD, PYTHON_METHODS, kept_by_selective
from python_environment import ROOT
from safetensors.torch import load_file, save_file

USABLE_MEMORY = 0.95  # of what is free at the start, as in streambp-bench sweep


class Meter:
    def __init__(self, library):
        self.library = ctypes.CDLL(library)
        for name in ("live_bytes", "peak_bytes", "available_bytes"):
            getattr(self.library, f"streambp_meter_{name}").restype = ctypes.c_int64
        self.library.streambp_meter_set_limit.argtypes = [ctypes.c_int64]
        self.library.streambp_meter_install()
        self.library.streambp_meter_set_limit(int(USABLE_MEMORY * self.library.streambp_meter_available_bytes()))

    def reset_peak(self):
        self.library.streambp_meter_reset_peak()

    def live_bytes(self):
        return self.library.streambp_meter_live_bytes()

    def peak_bytes(self):
        return self.library.streambp_meter_peak_bytes()


class EngineMeter:
    def __init__(self, library):
        os.environ["STREAMBP_TORCH_LIBRARY"] = library
        sys.path.insert(0, str(ROOT / "streambp/python"))
        from streambp_bench._library import library as load

        load()

    def reset_peak(self):
        torch.ops.streambp.meter_reset("cpu")

    def live_bytes(self):
        return json.loads(torch.ops.streambp.meter_read("cpu"))["live_bytes"]

    def peak_bytes(self):
        return json.loads(torch.ops.streambp.meter_read("cpu"))["peak_bytes"]


class Worker:
    def __init__(self, options):
        torch.set_num_threads(options.threads)
        self.keep_zeros = options.gradients == "zeros"
        self.meter = EngineMeter(options.engine) if options.engine else Meter(options.meter)
        self.method, self.fused_head, self.torch_head = None, False, False
        try:
            self.model, report = self.load(options, "sdpa")
        except ValueError:  # a family that has no such attention (Gemma 2)
            self.model, report = self.load(options, "eager")
        wrong = {kind: sorted(report[kind]) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") if report[kind]}
        if wrong:
            raise SystemExit(f"{options.model}: {wrong}")
        self.model.train()
        for parameter in self.model.parameters():
            # A loaded weight may lie in the file's map, which no allocator has seen.
            parameter.data = parameter.data.clone()

    @staticmethod
    def load(options, attention):
        dtype = getattr(torch, options.dtype)
        return transformers.AutoModelForCausalLM.from_pretrained(
            options.model, dtype=dtype, attn_implementation=attention, output_loading_info=True
        )

    def set_method(self, method):
        name, *settings = method.split("+")
        self.fused_head, self.torch_head = ("fused-head" in settings), ("torch-head" in settings)
        if self.fused_head and not hasattr(self, "_has_fused_head"):
            from trl.trainer.utils import add_fused_lm_head

            add_fused_lm_head(self.model)
            self._has_fused_head = True
        if method in PYTHON_METHODS:
            import streambp_bench as sb

            if (self.method or "").startswith("python-"):
                sb.unpatch(self.model)
            if name != "python":
                sb.patch(self.model, lane="module" if name == "python-module" else "engine", idle_memory="idle" in settings)
        elif name == "hf-checkpoint":
            every = next((int(setting.removeprefix("every=")) for setting in settings if setting.startswith("every=")), 1)
            self.model.gradient_checkpointing_disable()
            more = {"context_fn": kept_by_selective} if "selective" in settings else {}
            self.model.activation_checkpointing_enable({"use_reentrant": False, **more}, every_n_layers=every)
        else:
            self.model.gradient_checkpointing_disable()
        self.method = method

    def zero_gradients(self):
        """Returns the bytes of gradients that a step will add."""
        missing = 0
        for parameter in self.model.parameters():
            if not self.keep_zeros:
                parameter.grad = None
                missing += parameter.numel() * parameter.element_size()
            elif parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad.zero_()
        return missing

    def loss(self, tokens):
        """As the trainer's compute_loss: the outputs, logits among them, are gone when the backward pass begins."""
        if self.torch_head:
            hidden, labels = self.model.base_model(input_ids=tokens["input_ids"], use_cache=False).last_hidden_state, tokens["labels"]
            return torch.nn.functional.linear_cross_entropy(hidden[:, :-1].flatten(0, 1), self.model.lm_head.weight, labels[:, 1:].flatten(), ignore_index=-100,
                                                            options=torch.nn.LinearCrossEntropyOptions())
        more = {"fused_lm_head": True} if self.fused_head else {}
        return self.model(input_ids=tokens["input_ids"], labels=tokens["labels"], use_cache=False, **more).loss

    def backward(self, tokens):
        """The loss; gradients are added."""
        if self.method in BACKWARD:
            import streambp_bench as sb

            settings = dict(BACKWARD[self.method])
            if type(settings.get("idle_memory")) is int:  # of each token
                settings["idle_memory"] *= tokens["input_ids"].numel()
            return sb.backward(self.model, tokens, **settings).item()
        loss = self.loss(tokens)
        loss.backward()
        return loss.item()

    def one_step(self, tokens):
        missing = self.zero_gradients()
        gc.collect()
        self.meter.reset_peak()
        resident = self.meter.live_bytes() + missing
        cpu_start, start = time.process_time(), time.perf_counter()
        value = self.backward(tokens)
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
        peak = self.meter.peak_bytes()
        return {
            "status": "ok",
            "loss": value,
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            "resident_bytes": resident,
            "peak_bytes": peak,
            "peak_beyond_resident_bytes": peak - resident,
        }

    def step(self, request):
        self.set_method(request["method"])
        tokens = load_file(request["tokens"])
        try:
            for _ in range(request["warmup"]):
                self.one_step(tokens)
            return self.one_step(tokens)
        except (RuntimeError, MemoryError) as error:
            text = str(error).partition("\n")[0]
            is_memory = isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text
            return {"status": "oom" if is_memory else "error", "error": text}

    def gradients(self, request):
        gradients = self.named({name: p.grad for name, p in self.model.named_parameters() if p.grad is not None})
        save_file({name: gradient.contiguous() for name, gradient in gradients.items()}, request["file"])
        return {"status": "ok"}

    def named(self, gradients):
        """Under the names of the weight file."""
        from goldens.passes import as_in_file

        return as_in_file(gradients, self.model.config.model_type)


def main(kind=Worker):
    parser = argparse.ArgumentParser()
    for name in ("model", "dtype", "gradients"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("meter", "engine", "authors"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    # Whatever a library prints goes to stderr: stdout is for answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.filterwarnings("ignore", category=FutureWarning)  # names that transformers 6 will have
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    worker = kind(options)

    def answer(message):
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    answer({"torch": torch.__version__, "transformers": transformers.__version__, "threads": torch.get_num_threads(),
            "attention": worker.model.config._attn_implementation})
    for line in sys.stdin:
        request = json.loads(line)
        answer(worker.step(request) if request["do"] == "step" else worker.gradients(request))


if __name__ == "__main__":
    main()
