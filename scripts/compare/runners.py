"""Both sides of a comparison behind one call: run a method once on a tokens file, and write its gradients where asked."""

import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path

from machine import command_line, environment
from compare.authors_environment import ensure_authors_venv
from python_environment import ROOT, InputError, venv_python

BENCH = ROOT / "build/release/bin/streambp-bench"
VERIFY = ROOT / "build/release/bin/streambp-verify"
METER = ROOT / "build/release/lib/libstreambp_meter_c.so"
ENGINE = ROOT / "build/release/lib/libstreambp_torch.so"
HF_METHODS = ("hf-standard", "hf-checkpoint")
# On Hugging Face's model: sb.backward(), sb.patch(), and patch(lane="module"); with +idle they spend idle memory, as they do by themselves.
# sb.backward() with `small` takes short chunks, and either may take that many bytes a token in all or every second layer's input alone.
SMALL, SMALLEST = {"chunk": 256, "head_chunk": 128}, {"chunk": 128, "head_chunk": 64}
BACKWARD = {"python": {"idle_memory": False}, "python+idle": {"idle_memory": True}, "python+small+idle": {**SMALL, "idle_memory": 35000},
            "python+small+every=2": {**SMALLEST, "every": 2}}
PYTHON_METHODS = (*BACKWARD, "python-patch", "python-patch+idle", "python-module")
FIGURES = ("status", "error", "loss", "resident_bytes", "peak_bytes", "peak_beyond_resident_bytes", "model_flops", "hardware_flops",
           "gemm_flops_per_second", "percent_of_gemm", "chunk", "environment")


# Of torch's operators: products, and attention on either device.
KEPT_BY_SELECTIVE = ("mm", "addmm", "_scaled_dot_product_flash_attention", "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_efficient_attention",
                     "_scaled_dot_product_flash_attention_for_cpu")


def kept_by_selective():
    """Contexts of torch.utils.checkpoint that keep what products and attention give."""
    import torch
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    return create_selective_checkpoint_contexts([getattr(torch.ops.aten, name).default for name in KEPT_BY_SELECTIVE])


def command_of(method):
    """Flags of streambp-bench sweep for "streambp+keep=attention/gate-up+chunk=512": a list's commas are slashes here."""
    name, *settings = method.split("+")
    flags = ["--method", name]
    for setting in settings:
        key, equals, value = setting.partition("=")
        flags += [f"--{key}", value.replace("/", ",")] if equals else [f"--{key}"]
    return flags


class HuggingFace:
    """The worker process. It is stopped but while it runs a step, so that nothing of it can disturb the other side.

    `engine`: one with our engine for Python and its allocator, for PYTHON_METHODS. `authors`: the folder of the paper's code, which runs in an
    environment of its own."""

    def __init__(self, model, options, engine=False, authors=None):
        variables = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1"}
        if authors:
            python, meter = ensure_authors_venv(authors)
            program = [python, "-m", "compare.authors_worker", "--authors", authors, "--meter", meter]
        else:
            program = [venv_python(), "-m", "compare.hf_worker", *(["--engine", ENGINE] if engine else ["--meter", METER])]
        command = [*program, "--model", model, "--dtype", options.dtype, "--threads", str(options.threads), "--gradients", options.hf_gradients]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables,
                                        cwd=ROOT / "scripts")
        self.made = environment() | self.read()  # versions, threads and attention are the worker's
        self.process.send_signal(signal.SIGSTOP)

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise InputError(f"the Hugging Face worker ended with status {self.process.wait()}; its message is above")
        return json.loads(line)

    def ask(self, **request):
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.read()
        self.process.send_signal(signal.SIGSTOP)
        return answer

    def run(self, method, tokens, warmup, gradients=None):
        result = self.ask(do="step", method=method, tokens=str(tokens), warmup=warmup)
        if gradients and result["status"] == "ok":
            self.ask(do="gradients", file=str(gradients))
        return {**result, "environment": self.made}

    def close(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.close()
        self.process.wait()


class Ours:
    """A process of streambp-bench for each measurement: there is none while the other side runs."""

    def __init__(self, model, options):
        self.model, self.options = model, options
        self.environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}

    def run(self, method, tokens, warmup, gradients=None):
        with tempfile.TemporaryDirectory() as folder:
            command = [BENCH, "sweep", "--model", self.model, "--tokens", tokens, *command_of(method), "--dtype", self.options.dtype,
                       "--threads", str(self.options.threads), "--repeats", "1", "--warmup", str(warmup), "--json", "--quiet",
                       "--out", folder]
            if gradients:
                command += ["--dump-gradients", gradients]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=self.environment)
        if done.returncode == 2 or not done.stdout.strip():
            raise InputError(f"{method}: {done.stderr.strip() or f'streambp-bench ended with {done.returncode}'}")
        record = json.loads(done.stdout.splitlines()[-1])
        result = {name: record[name] for name in FIGURES if record.get(name) is not None}
        result["environment"] |= {"argv": command_line()}  # the program's name temporary folders
        if record["status"] == "ok":
            result |= {"seconds": record["seconds"][0], "cpu_seconds": record["cpu_seconds"][0]}
        return result


def gradient_error(model, tokens, gradients, threads):
    """The worst parameter of a file of gradients against the float64 truth, and its relative error."""
    command = [VERIFY, "compare", "--model", model, "--tokens", tokens, "--gradients", gradients, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": str(threads)})
    if not done.stdout.strip():
        raise InputError(f"{Path(gradients).name}: {done.stderr.strip()}")
    line = json.loads(done.stdout)
    if line["missing"] or line["surplus"]:
        raise InputError(f"{Path(gradients).name}: gradients missing {line['missing']}, surplus {line['surplus']}")
    return {"worst_parameter": line["worst_parameter"], "gradient_error": line["worst_error"], "verdict": line["verdict"], "factor": line["factor"]}
