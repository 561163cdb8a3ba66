#!/usr/bin/env python3
"""A patched model in DeepSpeed's engine, ZeRO-2 and 3, on two Gloo ranks with rows of their own: losses of four steps of Adam are those of the model as it
is. Under ZeRO-3 the module lane runs layers whole, and says so. Skipped where DeepSpeed is not installed: it has no wheel, `pip install deepspeed` builds it."""

import importlib.util
import json
import os
import subprocess
import sys
import unittest

import streambp_bench as sb
import torch
import transformers
from on_ranks import free_port
from patching import batch_of
from python_case import Case

LIMIT = 1e-4  # float32, after three steps of Adam, which divides by small second moments
SIZES = {"vocab_size": 61, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}


def losses(stage, lane):
    """Of four steps on this rank."""
    import deepspeed

    torch.manual_seed(0)
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES)).train()
    if lane:
        sb.patch(model, lane=lane, chunk=7)
    settings = {"train_batch_size": 4, "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}, "zero_allow_untrusted_optimizer": True,
                "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}}}
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    batch = {name: tensor.roll(int(os.environ["RANK"]), -1) for name, tensor in batch_of(61, (40, 40)).items()}
    found = []
    for _ in range(4):
        loss = engine(**batch, use_cache=False).loss
        engine.backward(loss)
        engine.step()
        found.append(loss.item())
    return found


def rank():
    import deepspeed

    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    print("losses", json.dumps({f"{stage} {lane}": losses(stage, lane) for stage in (2, 3) for lane in (None, "module", "auto", "engine")}), flush=True)


class DeepSpeed(Case):
    def test_two_ranks(self):
        variables = {"DS_ACCELERATOR": "cpu", "WORLD_SIZE": "2", "LOCAL_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        ranks = [subprocess.Popen([sys.executable, __file__, "rank"], env={**os.environ, **variables, "RANK": f"{i}", "LOCAL_RANK": f"{i}"},
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for i in range(2)]
        for process in ranks:
            printed, errors = process.communicate()
            self.assertEqual(process.returncode, 0, errors[-2000:])
            found = json.loads(next(line for line in printed.splitlines() if line.startswith("losses ")).removeprefix("losses "))
            self.assertIn("ZeRO-3 has divided its weights", errors)
            for key, ours in found.items():
                theirs = found[f"{key[0]} None"]
                error = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
                self.assertTrue(error <= LIMIT, f"ZeRO-{key}: {error:.1e}")
                type(self).reached = max(self.reached, error)


if __name__ == "__main__":
    if importlib.util.find_spec("deepspeed") is None:
        print("DeepSpeed is not installed")
        sys.exit(77)
    rank() if sys.argv[1:] == ["rank"] else unittest.main()
