#!/usr/bin/env python3
"""sb.backward() and sb.patch() on a GPU, in float64: losses and gradients of every family equal Hugging Face's on the CPU."""

import sys
import unittest

import torch
from patching import FAMILIES, LIMIT, batch_of, difference, in_float64, load, packed_batch, patched, reference_step, relative, step
from python_case import take_gradients

import streambp_bench as sb

PADDED = (("right", (29, 11, 18)), ("left", (17, 29, 10)))


def on_cuda(batch):
    return {name: tensor.cuda() for name, tensor in batch.items()}


def on_cpu(gradients):
    return {name: gradient.cpu() for name, gradient in gradients.items()}


class OnCuda(unittest.TestCase):
    def check(self, name, batch, what):
        """The largest error of both levels on one batch."""
        model = load(name)
        loss, expected = reference_step(model, batch)
        with in_float64():  # tables of rotary embeddings that are made anew stay in float64
            model.cuda()
            own = on_cuda(batch)
            model.zero_grad(set_to_none=True)
            level_1 = sb.backward(model, own, chunk=5).item(), on_cpu(take_gradients(model))
            with patched(model, chunk=5, head_chunk=7):
                level_2 = step(model, own)
        worst = 0.0
        for level, (ours, found) in (("backward", level_1), ("patch", (level_2[0], on_cpu(level_2[1])))):
            error = max(relative(ours, loss), difference(found, expected))
            self.assertTrue(error <= LIMIT, f"{name}, {what}, {level}: {error:.1e}")
            worst = max(worst, error)
        return worst

    def test_families(self):
        for name in FAMILIES:
            with self.subTest(model=name):
                if name == "gpt-oss" and load(name).model.layers[0].mlp.experts.limit != load(name).config.swiglu_limit:
                    self.skipTest("this transformers does not read the gate's constants from the config")
                vocab = min(61, load(name).config.vocab_size)
                worst = max(self.check(name, batch_of(vocab, lengths, padding), padding) for padding, lengths in PADDED)
                print(f"{name}: {worst:.1e}", flush=True)

    def test_packed(self):
        for name in ("qwen3", "mistral", "gemma3"):
            with self.subTest(model=name):
                print(f"{name}, packed: {self.check(name, packed_batch(61, (9, 14, 6)), 'packed'):.1e}", flush=True)


if __name__ == "__main__":
    if not torch.cuda.is_available():
        print("cuda_test.py: skipped: needs a CUDA device")
        sys.exit(77)
    unittest.main()
