#!/usr/bin/env python3
"""A head in float32 on a bfloat16 model, as TRL's cast_lm_head_to_fp32 makes it: loss and gradients to float32's precision.

The layers add nothing, so that what enters the head is the same for all, and nothing but the head's own precision is left.
"""

import unittest
from unittest import mock

import streambp_bench as sb
import torch
from patching import batch_of, gradients, tiny
from python_case import relative_difference
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

LIMIT = 2e-6
BFLOAT16 = 2.0 ** -6


def cast_head(model):
    """What the constructor of TRL's GRPOTrainer does to a model with cast_lm_head_to_fp32=True: its function has no name of its own."""
    inner = next(code for code in GRPOTrainer.__init__.__code__.co_consts if getattr(code, "co_name", "") == "_cast_lm_head_to_fp32")
    scope = GRPOTrainer.__init__.__globals__
    type(cast_head)(inner, scope)(model)


def model_of(tied):
    model = tiny(seed=4, dtype=torch.bfloat16, tie_word_embeddings=tied)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()
    cast_head(model)
    return model


class HeadDtype(unittest.TestCase):
    def losses(self, model, batch):
        """(what, loss, gradients) of Hugging Face, then of backward, patch and log_probabilities."""
        loss = model(**batch).loss
        loss.backward()
        yield "autograd", loss, gradients(model)
        model.zero_grad(set_to_none=True)
        yield "backward", sb.backward(model, batch, chunk=5, head_chunk=3), gradients(model)
        model.zero_grad(set_to_none=True)
        sb.patch(model, chunk=5, head_chunk=3, lane="engine")
        loss = model(**batch).loss
        loss.backward()
        yield "patch", loss, gradients(model)
        model.zero_grad(set_to_none=True)
        log_probabilities = sb.log_probabilities(model, batch["input_ids"], batch["attention_mask"], targets=batch["labels"])
        loss = -log_probabilities.sum() / (batch["labels"][:, 1:] != -100).sum()
        loss.backward()
        yield "log_probabilities", loss, gradients(model)
        sb.unpatch(model)

    def test_a_loss_of_small_range_is_differentiated_as_it_is_scaled(self):
        """float16's path, in float64: nothing is made of an unscaled loss, whose gradients float16 would round to 0."""
        from streambp_bench._engine_lane import streamed_head

        batch, scale = batch_of(62, (14, 9)), 2.0 ** 16
        for items in (None, 17):
            model = tiny(seed=5, dtype=torch.float64)
            given = batch if items is None else batch | {"num_items_in_batch": torch.tensor(items)}
            expected_loss = model(**given).loss
            (expected_loss * scale).backward()
            expected = gradients(model)
            model.zero_grad(set_to_none=True)
            sb.patch(model, chunk=5, head_chunk=3, lane="engine")
            unscaled = mock.patch.object(streamed_head.StreamedLoss, "apply", side_effect=AssertionError("gradients of an unscaled loss"))
            with mock.patch.object(streamed_head, "SCALED", {torch.float64}), unscaled:
                loss = model(**given).loss
                (loss * scale).backward()
            self.assertLess(abs(loss.item() / expected_loss.item() - 1.0), 1e-6)  # of transformers' float32 logits
            for name, gradient in gradients(model).items():
                error = relative_difference(gradient, expected[name])
                self.assertTrue(error <= LIMIT, f"{name}: {error:.2g}, limit {LIMIT}")

    def test_loss_and_gradients(self):
        batch = batch_of(61, (14, 9))
        for tied in (False, True):
            (_, loss, expected), *ours = self.losses(model_of(tied), batch)
            for what, own, found in ours:
                self.assertEqual(found.keys(), expected.keys())
                error = relative_difference(own.detach(), loss.detach())
                self.assertTrue(error <= LIMIT, f"tied {tied}, {what}: loss off by {error:.1e}")
                for name, gradient in expected.items():
                    self.assertEqual(found[name].dtype, gradient.dtype, name)
                # A tied one has the look-up's part as well, which comes through bfloat16.
                name, limit = ("model.embed_tokens.weight", BFLOAT16) if tied else ("lm_head.weight", LIMIT)
                self.assertEqual(expected[name].dtype, torch.float32)
                error = relative_difference(found[name], expected[name])
                print(f"tied {tied}, {what}: {name} {error:.1e}", flush=True)
                self.assertTrue(error <= limit, f"tied {tied}, {what}: {name} off by {error:.1e}")

    def test_statistics_of_trl(self):
        """add_fused_lm_head's results, of ours as of TRL's own."""
        batch = batch_of(61, (14, 9))
        for tied in (False, True):
            results = []
            for patched in (False, True):
                model = model_of(tied)
                add_fused_lm_head(model, temperature=0.9, cast_lm_head_to_fp32=True, outputs=("log_probs", "entropy"))
                if patched:
                    sb.patch(model, chunk=5, head_chunk=3, lane="engine")
                results.append(model(**batch, fused_lm_head=True))
            for name in ("loss", "log_probs", "entropy"):
                theirs, own = getattr(results[0], name), getattr(results[1], name)
                self.assertEqual(own.dtype, torch.float32)
                error = relative_difference(own.detach(), theirs.detach())
                self.assertTrue(error <= LIMIT, f"tied {tied}: {name} off by {error:.1e}")

    def test_other_mixtures_are_refused(self):
        model = tiny(dtype=torch.bfloat16)
        model.lm_head.double()
        with self.assertRaisesRegex(sb.InputError, "lm_head.weight is float64.*bfloat16"):
            sb.patch(model, lane="engine")
        model = tiny(dtype=torch.bfloat16)
        model.model.embed_tokens.float()
        with self.assertRaisesRegex(sb.InputError, "is bfloat16, model.embed_tokens.weight float32"):
            sb.patch(model, lane="engine")


if __name__ == "__main__":
    unittest.main()
