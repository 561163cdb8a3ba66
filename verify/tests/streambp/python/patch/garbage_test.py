#!/usr/bin/env python3
"""A streamed step leaves no tensor to Python's cyclic collector, in either lane: memory does not depend on when that runs."""

import gc
import unittest
import warnings

import streambp_bench as sb
import torch
from module_lane_test import CLASSES, model_of
from patching import batch_of
from python_case import Case

CLASSES |= {"gemma3n_text": "Gemma3nForCausalLM"}
MODULE_LANE = {"llama": {}, "gpt_oss": {}, "qwen3_next": {}, "mixtral": {"output_router_logits": True}, "gemma3n_text": {"num_kv_shared_layers": 2}}
warnings.simplefilter("ignore")


def live_bytes_after_steps(model, steps=3, **more):
    """Bytes of tensors that are alive after each of `steps` steps, while Python's collector sleeps."""
    batch, found = batch_of(61, (23, 15)), []

    def step():
        model(**batch, **more).loss.backward()
        with sb.measure() as measured:
            pass
        return measured.start_bytes

    step()
    gc.collect()
    gc.disable()
    try:
        found = [step() for _ in range(steps)]
    finally:
        gc.enable()
    return found


class Garbage(Case):
    def test_layers_by_their_own_code(self):
        for family, settings in MODULE_LANE.items():
            with self.subTest(family):
                model = model_of(family, **settings).float()
                sb.patch(model, lane="module", chunk=7)
                live = live_bytes_after_steps(model)
                self.assertEqual(len(set(live)), 1, f"{family}: {live}")
                sb.unpatch(model)

    def test_layers_that_run_whole(self):
        model = model_of("llama", "sdpa").float()
        sb.patch(model, lane="module", chunk=7)
        live = live_bytes_after_steps(model, output_attentions=True)
        self.assertEqual(len(set(live)), 1, live)

    def test_layers_by_the_engine(self):
        model = model_of("qwen3", "sdpa").float()
        sb.patch(model, lane="engine", chunk=7)
        live = live_bytes_after_steps(model)
        self.assertEqual(len(set(live)), 1, live)


if __name__ == "__main__":
    sb.load()
    torch.manual_seed(0)
    unittest.main()
