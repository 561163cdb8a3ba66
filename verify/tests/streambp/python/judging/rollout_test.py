#!/usr/bin/env python3
"""sb.rollout() against TRL's own corrections: gradients of GRPOTrainer's loss on a rollout whose log-probabilities are not the trainer's."""

import math
import os
import tempfile
import unittest

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import streambp_bench as sb
import torch
from live import recipes
from live.recipes import make_trainer
from python_case import Case, in_float64, take_gradients

MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


def on_a_rollout(trainer, mode, drift, clip_max):
    """(inputs, gradients) of TRL's code from generation to loss, where an engine reports log-probabilities that are off by `drift` or so; mode None: no correction."""
    model, generate = trainer.model, type(trainer)._generate.__get__(trainer)
    trainer.vllm_importance_sampling_correction, trainer.current_gradient_accumulation_steps = mode is not None, 1
    trainer.vllm_importance_sampling_mode, trainer.vllm_importance_sampling_clip_max = mode, clip_max

    def sampled(prompts):
        trainer.use_vllm = False
        prompt_ids, completion_ids, tools, completions, _, *rest = generate(prompts)
        trainer.use_vllm = True
        generator, reported = torch.Generator().manual_seed(7), []
        for prompt, completion in zip(prompt_ids, completion_ids, strict=True):
            with torch.no_grad():
                logits = model(torch.tensor([prompt + completion]), use_cache=False).logits[0, len(prompt) - 1:-1]
            own = (logits / trainer.temperature).log_softmax(-1).gather(-1, torch.tensor(completion)[:, None])[:, 0]
            reported.append((own + drift * torch.randn(len(completion), generator=generator)).tolist())
        reported[0][0] = None  # vLLM's for NaN
        return (prompt_ids, completion_ids, tools, completions, reported, *rest)

    trainer._generate = sampled
    torch.manual_seed(3)
    inputs = trainer._generate_and_score_completions([trainer.train_dataset[i // 4] for i in range(8)])
    model.train()
    trainer._compute_loss(model, inputs).backward()
    return inputs, take_gradients(model)


def turn(own, other):
    """(length, degrees) of one dict of gradients against another."""
    flat = [torch.cat([each[name].flatten() for name in own]) for each in (own, other)]
    ratio = flat[0].norm() / flat[1].norm()
    cosine = torch.dot(*flat) / (flat[0].norm() * flat[1].norm())
    return float(ratio), math.degrees(math.acos(min(1.0, float(cosine))))


class Corrections(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def trainer(self, **settings):
        kinds, rows, own, adapters = recipes.RECIPES["GRPO"]
        recipes.RECIPES["of this test"] = (kinds, rows, {**own, "per_device_train_batch_size": 8, **settings}, adapters)
        return make_trainer("of this test", "qwen3", "none", self.folder)

    def test_every_mode(self):
        for loss_type, temperature in (("dapo", 1.0), ("grpo", 0.7)):
            with in_float64():
                trainer = self.trainer(loss_type=loss_type, temperature=temperature)
                _, plain = on_a_rollout(trainer, None, 0.5, 1.5)
                for mode in MODES:
                    inputs, corrected = on_a_rollout(trainer, mode, 0.5, 1.5)
                    settings = {"gradient_accumulation_steps": 1, "steps_per_generation": 1} if loss_type == "dapo" else {}
                    found = sb.rollout(trainer.model, inputs, loss_type=loss_type, temperature=temperature, clip_max=1.5, **settings)
                    length, degrees = turn(corrected, plain)
                    self.assertTrue(degrees > 3, f"{mode} turns the gradient by {degrees} degrees: nothing is tested")
                    for name in (mode, "as in the batch"):
                        own = found.gradients[name]["of_uncorrected"]
                        self.assertTrue(abs(own["length"] - length) <= 1e-6, (mode, name, own, length))  # TRL's head is in float32
                        self.assertTrue(abs(own["degrees"] - degrees) <= 1e-4, (mode, name, own, degrees))
                    self.assertEqual(found.unknown, 1)
                    self.assertTrue(found.trainer_error <= 1e-12, found.trainer_error)

    def test_equal_log_probabilities_and_float32(self):
        trainer = self.trainer()
        inputs, _ = on_a_rollout(trainer, "sequence_mask", 0.0, 3.0)
        found = sb.rollout(trainer.model, inputs, gradient_accumulation_steps=1, steps_per_generation=1, loss_type="dapo")
        for name, gradient in found.gradients.items():
            self.assertTrue(abs(gradient["of_unbiased"]["length"] - 1) <= 1e-4, (name, gradient))
            self.assertTrue(gradient["of_unbiased"]["degrees"] <= 1e-2, (name, gradient))
        self.assertIn("Without a correction the gradient is 1 x as long as the unbiased one", str(found))
        self.assert_refused(lambda: sb.rollout(trainer.model, {**inputs, "advantages": torch.zeros(8)}, loss_type="grpo"), "all gradients are zero")
        self.assert_refused(lambda: sb.rollout(trainer.model, inputs, loss_type="grpo", clip_max=-1), "clip_max")
        del inputs["sampling_per_token_logps"]
        self.assert_refused(lambda: sb.rollout(trainer.model, inputs, loss_type="grpo"), "sampling_per_token_logps")


if __name__ == "__main__":
    unittest.main()
