#!/usr/bin/env python3
"""The load-balancing loss of a mixture's routers under sb.patch(): gradients in float64 are Hugging Face's own, whoever adds the loss."""

import unittest

import torch
from patching import batch_of, difference, in_float64, load, packed_batch, patched, reference_step, step
from peft import LoraConfig, get_peft_model
from python_case import LIMIT, Case

MIXTURES = ("qwen3-moe", "qwen3-moe-step", "qwen2-moe", "mixtral", "gpt-oss")
ASKED = {"output_router_logits": True}


def balanced(name, coefficient=0.7):
    """A golden mixture whose routers' loss weighs as much as the other one."""
    model = load(name)
    model.router_aux_loss_coef = model.config.router_aux_loss_coef = coefficient
    return model


class RouterLoss(Case):
    def check(self, model, batch, what, chunks=(5, "auto")):
        """Loss and gradients with labels; the routers' loss has a share in them."""
        without = reference_step(model, batch)[1]
        loss, expected = reference_step(model, batch, **ASKED)
        self.assertTrue(difference(without, expected) > 1e-3, what)
        for chunk in chunks:
            with patched(model, chunk=chunk, head_chunk=7), in_float64():
                ours, found = step(model, batch, **ASKED)
                plain = step(model, batch)[1]
            self.assert_loss(ours, loss, what)
            self.assert_gradients(found, expected, what)
            self.assert_gradients(plain, without, f"{what}, not asked for")

    def test_families(self):
        for name in MIXTURES:
            model = balanced(name)
            for padding, lengths in (("right", (29, 11, 18)), ("left", (17, 29, 10))):
                with self.subTest(model=name, padding=padding):
                    self.check(model, batch_of(min(61, model.config.vocab_size), lengths, padding), f"{name}, {padding}")
        self.check(balanced("qwen3-moe"), packed_batch(61, (9, 14, 6)), "packed")

    def test_asked_for_by_the_config(self):
        model, batch = balanced("qwen3-moe"), batch_of(61, (19, 12))
        model.config.output_router_logits = True
        loss, expected = reference_step(model, batch)
        with patched(model, chunk=5), in_float64():
            ours, found = step(model, batch)
        self.assert_loss(ours, loss, "config")
        self.assert_gradients(found, expected, "config")

    def test_adapters(self):
        for parameters in ([], ["gate.weight"]):
            with in_float64():
                model = get_peft_model(balanced("qwen3-moe"), LoraConfig(r=3, target_modules=["q_proj", "v_proj"], target_parameters=parameters))
            generator = torch.Generator().manual_seed(7)
            with torch.no_grad():
                for name, parameter in sorted(model.named_parameters()):
                    if "lora_" in name:
                        parameter.normal_(0.0, 0.3, generator=generator)
            model.base_model.model.train()
            self.check(model, batch_of(61, (19, 12)), f"adapters, {parameters}")

    def test_a_loss_of_router_logits_alone(self):
        for name in ("qwen3-moe-step", "gpt-oss"):
            model = balanced(name)
            batch = batch_of(min(61, model.config.vocab_size), (19, 12), "left")
            inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
            real = batch["attention_mask"].flatten().bool()

            def run():
                model.zero_grad(set_to_none=True)
                with in_float64():
                    logits = model.model(**inputs, **ASKED, use_cache=False).router_logits
                    sum(each[real].square().sum() * (1 + i) for i, each in enumerate(logits)).backward()
                found = {key: parameter.grad for key, parameter in model.named_parameters() if parameter.grad is not None and parameter.grad.any()}
                return found, [each.detach()[real] for each in logits]

            expected, theirs = run()
            with patched(model, chunk=5):
                found, ours = run()
            self.assertEqual(len(ours), len(theirs))
            self.assertTrue(all((own - other).abs().max() <= LIMIT for own, other in zip(ours, theirs, strict=True)))
            self.assert_gradients(found, expected, name)

    def test_logits_without_labels(self):
        model = balanced("mixtral")
        batch = batch_of(min(61, model.config.vocab_size), (19, 12), "left")
        inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}

        def run():
            model.zero_grad(set_to_none=True)
            with in_float64():
                output = model(**inputs, **ASKED, use_cache=False, logits_to_keep=2)
                (output.aux_loss + output.logits.square().mean()).backward()
            return {key: parameter.grad for key, parameter in model.named_parameters() if parameter.grad is not None}

        expected = run()
        with patched(model, chunk=5):
            found = run()
        self.assert_gradients(found, expected, "logits")

    def test_logits_next_to_a_loss(self):
        for name in ("qwen3-moe", "gpt-oss", "ernie4-5-moe", "granite-moe", "llama"):  # which has no routers, and takes no notice of what is asked of them
            model = load(name)
            batch = batch_of(min(41, model.config.vocab_size), (19, 19))

            def run(more, model=model, batch=batch):
                model.zero_grad(set_to_none=True)
                with in_float64():
                    output = model(**batch, **more, use_cache=False)
                    logits = output.logits.real() if hasattr(output.logits, "make") else output.logits
                    loss = output.loss + logits.square().mean()
                    loss.backward()
                return loss.item(), {key: parameter.grad for key, parameter in model.named_parameters() if parameter.grad is not None}

            for more in ({}, ASKED):
                loss, expected = run(more)
                with patched(model, chunk=5):
                    ours, found = run(more)
                self.assert_loss(ours, loss, name)
                self.assert_gradients(found, expected, name)

    def test_nothing_is_scored(self):
        model, batch = balanced("qwen3-moe"), batch_of(61, (19, 12))
        batch["labels"] = torch.full_like(batch["labels"], -100)
        _, expected = reference_step(model, batch, num_items_in_batch=5, **ASKED)
        with patched(model, chunk=5), in_float64():
            _, found = step(model, batch, num_items_in_batch=5, **ASKED)
        self.assertTrue(any(gradient.any() for gradient in expected.values()))
        self.assert_gradients(found, expected, "nothing scored")

    def test_without_gradients(self):
        model, batch = balanced("qwen3-moe"), batch_of(61, (19, 12))
        with torch.no_grad(), in_float64():
            theirs = model(**batch, **ASKED)
            with patched(model, chunk=5):
                ours = model(**batch, **ASKED)
        self.assertTrue(torch.equal(ours.aux_loss, theirs.aux_loss))

    def test_routers_without_a_balance(self):
        model = load("deepseek-v3")
        with patched(model):
            self.assert_refused(lambda: model.model(input_ids=torch.arange(3, 9)[None], **ASKED), "router logits")


if __name__ == "__main__":
    unittest.main()
