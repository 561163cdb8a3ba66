#!/usr/bin/env python3
"""What `scripts/gpu.sh visit` measures by Python: a record a line in DIR/results.jsonl, as they come.

    gpu_visit.py versions --out DIR     machine, driver, libraries
    gpu_visit.py profile --out DIR      kernels of one step of backward(), by time: qwen3-8b at 8,192 and 32,768 tokens, and with attention's part kept
    gpu_visit.py gemm --out DIR         rate of products of qwen3-8b's shapes while they go on, with clock and power
    gpu_visit.py lengths --out DIR      ten lengths around 8,192 in one process, twice each: what a new length costs

--tiny: the same with a tiny model, on the CPU where there is no GPU: a rehearsal, which measures nothing.
"""

import argparse
import gc
import json
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import compare_gpu
import torch
from machine import environment

LENGTHS = (8192, 8064, 7936, 8320, 8448, 7777, 8001, 8500, 7680, 8576)
# Rows, inner width, columns of products: queries, gate, down, the gradient of gate's weight, logits of a head's chunk, attention's output.
SHAPES = ((8192, 4096, 4096), (8192, 4096, 12288), (8192, 12288, 4096), (12288, 8192, 4096), (1024, 4096, 151936), (8192, 4096, 1024))
QUERY = ("nvidia-smi", "--query-gpu=clocks.sm,power.draw,temperature.gpu", "--format=csv,noheader,nounits")


class Place:
    """Where it is computed, and how large."""

    def __init__(self, tiny):
        self.tiny, self.device = tiny, "cuda" if torch.cuda.is_available() else "cpu"
        if self.device == "cpu" and not tiny:
            raise SystemExit("gpu_visit.py: no CUDA device; --tiny rehearses on the CPU")

    def gpu(self):
        return torch.cuda.get_device_name() if self.device == "cuda" else None

    def wait(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def model(self):
        return compare_gpu.make_model("qwen3-tiny" if self.tiny else "qwen3-8b", torch.float32 if self.tiny else torch.bfloat16, self.device)

    def length(self, tokens):
        return max(8, tokens // 256) if self.tiny else tokens


def batch_of(model, length):
    ids = torch.randint(0, model.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(length)).to(model.device)
    return {"input_ids": ids, "labels": ids}


def versions(place):
    driver = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total,memory.free,power.limit,clocks.max.sm", "--format=csv,noheader"],
                            capture_output=True, text=True, check=False).stdout.strip() if place.device == "cuda" else ""
    yield {"driver": driver, "cudnn": torch.backends.cudnn.version() if place.device == "cuda" else None, "cuda": torch.version.cuda, "torch": torch.__version__}


def profile(place):
    import streambp_bench as sb

    model = place.model()
    activity = torch.profiler.ProfilerActivity.CUDA if place.device == "cuda" else torch.profiler.ProfilerActivity.CPU
    for tokens, settings in ((8192, {}), (32768, {}), (32768, {"keep": "attention,queries,keys-values,attention-half"})):
        length = place.length(tokens)
        batch = batch_of(model, length)
        sb.backward(model, batch, idle_memory=False, **settings)
        place.wait()
        start = time.perf_counter()
        with torch.profiler.profile(activities=[activity]) as profiler:
            sb.backward(model, batch, idle_memory=False, **settings)
            place.wait()
        seconds = time.perf_counter() - start
        name = "self_device_time_total" if place.device == "cuda" else "self_cpu_time_total"
        kernels = sorted(profiler.key_averages(), key=lambda event: -getattr(event, name))
        total = sum(getattr(event, name) for event in kernels)
        yield {"seq_len": length, "settings": settings, "seconds": seconds, "kernel_seconds": total / 1e6, "different_kernels": len(kernels),
               "kernels": [{"name": event.key[:160], "calls": event.count, "seconds": getattr(event, name) / 1e6} for event in kernels[:60]]}
        del profiler, kernels
        gc.collect()


class Sampler:
    """Clock, power and temperature while something runs, each 0.2 s."""

    def __init__(self, place):
        self.on, self.samples, self.done = place.device == "cuda", [], threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while self.on and not self.done.wait(0.2):
            line = subprocess.run(QUERY, capture_output=True, text=True, check=False).stdout.splitlines()
            self.samples += [[float(word) for word in line[0].split(",")]] if line else []

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()


def gemm(place):
    dtype = torch.float32 if place.tiny else torch.bfloat16
    for wanted in (1.0, 4.0):  # a burst, and as long as power and heat count
        for shape in SHAPES:
            rows, inner, columns = (max(8, size // 256) for size in shape) if place.tiny else shape
            a, b = torch.randn(rows, inner, device=place.device, dtype=dtype), torch.randn(inner, columns, device=place.device, dtype=dtype)
            out = a @ b
            place.wait()
            rates, flops, wanted_here = [], 2.0 * rows * inner * columns, 0.01 if place.tiny else wanted
            with Sampler(place) as sampler:
                start = time.perf_counter()
                while time.perf_counter() - start < wanted_here:
                    begin = time.perf_counter()
                    for _ in range(20):
                        torch.mm(a, b, out=out)
                    place.wait()
                    rates.append(20 * flops / (time.perf_counter() - begin))
            half = len(rates) // 2
            yield {"shape": [rows, inner, columns], "wanted_seconds": wanted, "flops_per_second": statistics.median(rates), "first": rates[0],
                   "last_half": statistics.median(rates[half:]), "clock_power_temperature": sampler.samples}
            if wanted > 1.0:
                break  # one shape that long is enough


def lengths(place):
    import streambp_bench as sb

    model = place.model()
    for tokens in LENGTHS:
        batch, seconds = batch_of(model, place.length(tokens)), []
        for _ in range(2):
            place.wait()
            start = time.perf_counter()
            sb.backward(model, batch, idle_memory=False)
            place.wait()
            seconds.append(time.perf_counter() - start)
        yield {"seq_len": place.length(tokens), "seconds": seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("versions", "profile", "gemm", "lengths"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    place = Place(options.tiny)
    options.out.mkdir(parents=True, exist_ok=True)
    made = environment("torch", gpu=place.gpu())
    with open(options.out / "results.jsonl", "w", encoding="utf-8") as file:
        for record in globals()[options.what](place):
            file.write(json.dumps({"schema": 1, "kind": "rehearsed" if options.tiny else "measured", "what": options.what, **record, "environment": made}) + "\n")
            file.flush()
            print(json.dumps({name: value for name, value in record.items() if name not in ("kernels", "clock_power_temperature")}), flush=True)


if __name__ == "__main__":
    main()
