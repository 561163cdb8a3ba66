#!/usr/bin/env python3
"""sb.patch(model, lane="module"): what layers give besides their hidden states reaches the loss once, in token order, with its gradient, while they are streamed:
router logits, keys and values that later layers read; hidden states of another shape than [B, T, D]. All gradients are the model's own, in float64."""

import unittest
import warnings

import torch
from module_lane_test import CLASSES, LIMIT, difference, everything_in_float64, model_of, streamed
from patching import batch_of, relative, step
from python_case import Case
from streambp_bench._replaced import patched_state

ROUTERS = ("mixtral", "qwen3_moe", "qwen2_moe", "gpt_oss")
SHARED = {"gemma3n_text": {"num_kv_shared_layers": 2}, "gemma4_text": {"num_kv_shared_layers": 2}}
CLASSES |= {"gemma3n_text": "Gemma3nForCausalLM", "gemma4_text": "Gemma4ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM", "qwen2_moe": "Qwen2MoeForCausalLM",
            "recurrent_gemma": "RecurrentGemmaForCausalLM"}
warnings.simplefilter("ignore")


class Sides(Case):
    def compare(self, model, batch, what, chunks=(1, 6, 40), lane="module", **more):
        with everything_in_float64():
            loss, theirs = step(model, batch, use_cache=False, **more)
            for chunk in chunks:
                with streamed(model, chunk, prove=lane != "module" or chunk == chunks[0] or what.startswith("gemma")):  # whose layers need one
                    table = patched_state(model).table or ()
                    self.assertTrue({proof.lane for proof in table} <= {lane}, f"{what}\n{table}")
                    ours_loss, ours = step(model, batch, **more)
                    self.assertEqual({call.warned for call in patched_state(model).calls}, {""}, what)
                error = max(relative(ours_loss, loss), difference(ours, theirs))
                self.assertTrue(error <= LIMIT, f"{what}, chunk {chunk}: {error:.1e}")
                type(self).reached = max(self.reached, error)
        return theirs

    def test_routers_losses(self):
        for family in ROUTERS:
            model = model_of(family, router_aux_loss_coef=0.5)
            without = self.compare(model, batch_of(61, (23, 15)), family, chunks=(6,))
            model.config.output_router_logits = True
            self.assertGreater(difference(self.compare(model, batch_of(61, (23, 15)), f"{family}, routers' losses", chunks=self.turns((1, 6, 40), 2)), without), 1e-3)

    def test_routers_logits_are_in_token_order(self):
        model, batch = model_of("mixtral"), batch_of(61, (23, 15))
        with everything_in_float64():
            theirs = model(**batch, use_cache=False, output_router_logits=True).router_logits
            with streamed(model, 6):
                ours = model(**batch, output_router_logits=True).router_logits
        self.assertEqual(len(ours), len(theirs))
        real = batch["attention_mask"].bool().flatten()  # what padding sees is the attention's own
        self.assertTrue(all(torch.allclose(one[real], other[real], atol=1e-12) for one, other in zip(ours, theirs, strict=True)))

    def test_a_loss_of_the_routers_alone(self):
        model, batch = model_of("mixtral"), batch_of(61, (23, 23))

        def gradients():
            model.zero_grad(set_to_none=True)
            sum((logits ** 2).sum() for logits in model(**batch, use_cache=False, output_router_logits=True).router_logits[:2]).backward()
            return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}

        with everything_in_float64():
            theirs = gradients()
            with streamed(model, 6):
                ours = {name: each for name, each in gradients().items() if name in theirs or bool(each.any())}
        self.assertTrue(difference(ours, theirs) <= LIMIT)

    def test_a_routers_loss_that_counts_padding_is_refused(self):
        model, batch = model_of("mixtral"), batch_of(61, (23, 15), "left")
        with everything_in_float64(), streamed(model, 6):
            routers = model(**batch, output_router_logits=True).router_logits
            self.assert_refused(lambda: sum((logits ** 2).sum() for logits in routers).backward(), "padding")

    def test_keys_and_values_that_layers_share(self):
        for family, settings in SHARED.items():
            model = model_of(family, **settings)
            self.assertTrue(any(layer.self_attn.is_kv_shared_layer for layer in model.model.layers))
            for padding in ("left", "right"):
                self.compare(model, batch_of(61, (23, 15), padding), f"{family}, {padding}", chunks=self.turns((1, 6, 40), 1))

    def test_keys_and_values_of_a_streamed_layer_in_a_whole_one_and_the_reverse(self):
        for whole in (1, 3):
            model = model_of("gemma4_text", **SHARED["gemma4_text"])
            batch = batch_of(61, (23, 15))
            with everything_in_float64():
                loss, theirs = step(model, batch, use_cache=False)
                with streamed(model, 6):
                    patched_state(model).calls[whole].reason = "the test says so"
                    ours_loss, ours = step(model, batch)
            self.assertTrue(max(relative(ours_loss, loss), difference(ours, theirs)) <= LIMIT, whole)

    def test_layers_whose_padding_reaches_real_rows(self):
        model, batch = model_of("recurrent_gemma"), batch_of(61, (23, 15), "left")
        with everything_in_float64():
            loss, theirs = step(model, batch, use_cache=False)
            with streamed(model, 6):
                ours_loss, ours = step(model, batch)
        self.assertTrue(max(relative(ours_loss, loss), difference(ours, theirs)) <= LIMIT)


if __name__ == "__main__":
    unittest.main()
