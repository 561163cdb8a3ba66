#!/usr/bin/env python3
"""sb.patch(model, lane="module") on everything that people put around and into layers: several adapters, modules_to_save, trainable tokens, dropout,
float16 with a scaled loss, torch.compile; gradients are the model's own, in float64 where its dtype is free."""

import contextlib
import copy
import tempfile
import unittest
import warnings

import streambp_bench as sb
import torch
from module_lane_test import LIMIT, difference, everything_in_float64, lanes, model_of, streamed
from patching import batch_of, relative, step, tiny
from peft import IA3Config, LoHaConfig, LoKrConfig, LoraConfig, PeftModel, PolyConfig, VeraConfig, get_peft_model
from peft.tuners.lora.config import MontecloraConfig
from python_case import Case, in_float64

TARGETS = ["q_proj", "v_proj", "down_proj"]
warnings.simplefilter("ignore")


def adapted(config=None, family="qwen3", **lora):
    with in_float64():
        return get_peft_model(model_of(family), config or LoraConfig(**{"r": 3, "target_modules": TARGETS, "init_lora_weights": False, **lora})).double().train()


class Adapters(Case):
    def compare(self, model, what, chunks=(1, 7, 40), batch=None, lane="module"):
        batch = batch or batch_of(61, (23, 15))
        with everything_in_float64():
            loss, theirs = step(model, batch, use_cache=False)
            self.assertTrue(theirs)
            self.assertEqual(lanes(model), {lane}, f"{what}\n{sb.prove(model)}")
            for chunk in chunks:
                with streamed(model, chunk, prove=lane != "module"):  # as lanes() has
                    ours_loss, ours = step(model, batch)
                error = max(relative(ours_loss, loss), difference(ours, theirs))
                self.assertTrue(error <= LIMIT, f"{what}, chunk {chunk}: {error:.1e}")
                type(self).reached = max(self.reached, error)
        return theirs

    def test_several_adapters(self):
        model = adapted()
        model.add_adapter("second", LoraConfig(r=2, target_modules=["k_proj", "up_proj"], init_lora_weights=False))
        model.double()
        first = self.compare(model, "the first of two")
        with everything_in_float64(), streamed(model):
            model.set_adapter("second")  # while it is patched
            _, ours = step(model, batch_of(61, (23, 15)))
        self.assertFalse(first.keys() & ours.keys())
        self.assertTrue(difference(ours, self.compare(model, "the second of two")) <= LIMIT)
        model.base_model.set_adapter(["default", "second"])
        self.assertEqual(self.compare(model, "both").keys(), first.keys() | ours.keys())

    def test_kinds_of_adapters(self):
        for config in (IA3Config(target_modules=[*TARGETS], feedforward_modules=["down_proj"], init_ia3_weights=False), VeraConfig(r=4, target_modules=TARGETS),
                       LoHaConfig(r=2, target_modules=TARGETS), LoraConfig(r=3, target_modules=TARGETS, use_rslora=True, init_lora_weights=False)):
            self.compare(adapted(config), type(config).__name__, chunks=(7,))

    def test_what_is_switched_before_the_backward_pass(self):
        def scale(model):
            for module in model.modules():
                if isinstance(getattr(module, "scaling", None), dict):
                    module.set_scale("default", 0.3)

        batches = batch_of(61, (9, 8)), batch_of(61, (5, 7), seed=4)
        for switch in (scale, lambda model: model.base_model.set_adapter("second")):
            results = []
            for chunk in (None, 7):
                torch.manual_seed(0)
                model = get_peft_model(tiny(dtype=torch.float64), LoraConfig(r=3, target_modules=TARGETS, init_lora_weights=False)).train()
                model.add_adapter("second", LoraConfig(r=2, target_modules=["k_proj", "up_proj"], init_lora_weights=False))
                model.double()
                with everything_in_float64(), contextlib.nullcontext() if chunk is None else streamed(model, chunk, prove=False):
                    losses = [model(**batches[0], use_cache=False).loss]
                    switch(model)
                    losses.append(model(**batches[1], use_cache=False).loss)
                    for name, parameter in model.named_parameters():
                        parameter.requires_grad_("lora_" in name)  # which switches change, too
                    sum(losses).backward()
                results.append(({name: each.grad for name, each in model.named_parameters() if each.grad is not None}, sum(losses).item()))
            self.assertTrue(max(difference(results[1][0], results[0][0]), relative(results[1][1], results[0][1])) <= LIMIT)

    def test_modules_to_save_and_trainable_tokens(self):
        self.compare(adapted(modules_to_save=["lm_head", "input_layernorm"]), "modules_to_save")
        self.compare(adapted(trainable_token_indices=[3, 5, 8]), "trainable tokens", chunks=(7,))

    def test_tasks_that_hooks_of_one_forward_pass_choose(self):
        model, losses, found = adapted(PolyConfig(task_type="CAUSAL_LM", r=2, target_modules=TARGETS, n_tasks=2, n_skills=2, init_weights=False)), [], []
        batch = batch_of(61, (23, 15))
        for chunk in (None, 7):
            with everything_in_float64(), contextlib.nullcontext() if chunk is None else streamed(model, chunk):
                model.zero_grad()
                torch.manual_seed(7)  # of which skills a task takes is drawn
                both = [model(**batch, use_cache=False, task_ids=torch.tensor(tasks)).loss for tasks in ([0, 1], [1, 1])]
                sum(both).backward()
            losses.append(sum(both).item())
            found.append({name: each.grad for name, each in model.named_parameters() if each.grad is not None})
        self.assertTrue(max(relative(losses[1], losses[0]), difference(found[1], found[0])) <= LIMIT)

    def test_what_is_dropped_for_all_rows(self):
        for config in (LoHaConfig(r=4, target_modules=TARGETS, rank_dropout=0.5, init_weights=False), LoKrConfig(r=2, target_modules=TARGETS, module_dropout=0.5, init_weights=False)):
            model, results = adapted(config), []
            for chunk in (None, 7):
                with everything_in_float64(), contextlib.nullcontext() if chunk is None else streamed(model, chunk):
                    torch.manual_seed(7)
                    results.append(step(model, batch_of(61, (23, 15)), use_cache=False))
            (loss, theirs), (ours_loss, ours) = results
            self.assertTrue(max(relative(ours_loss, loss), difference(ours, theirs)) <= LIMIT, type(config).__name__)

    def test_samples_that_an_adapter_keeps(self):
        model, results = adapted(monteclora_config=MontecloraConfig()), []
        for prepared in (lambda: None, lambda: sb.patch(model.eval(), chunk=7)):
            with everything_in_float64():
                prepared()
                for module in model.train().modules():
                    if hasattr(module, "sampler"):
                        module.sampler.index = 0  # of the samples drawn when the model was made
                results.append(step(model, batch_of(61, (23, 15)), use_cache=False))
        self.assertIn("something else each time", str(sb.summary(model)))
        sb.unpatch(model)
        (loss, theirs), (ours_loss, ours) = results
        self.assertTrue(max(relative(ours_loss, loss), difference(ours, theirs)) <= LIMIT)

    def test_dropout_of_adapters(self):
        model, batch = adapted(lora_dropout=0.25), batch_of(61, (23, 15))
        with everything_in_float64():
            torch.manual_seed(7)
            loss, theirs = step(model, batch, use_cache=False)
            with streamed(model, 40):
                torch.manual_seed(7)
                ours_loss, ours = step(model, batch)
            self.assertTrue(max(relative(ours_loss, loss), difference(ours, theirs)) <= LIMIT, "the same draws in one chunk")
            with streamed(model, 7):
                torch.manual_seed(7)
                loss, ours = step(model, batch)
                moves = {name: torch.randn(each.shape) for name, each in model.named_parameters() if each.requires_grad}
                losses = []
                for sign in (1e-5, -2e-5):
                    with torch.no_grad():
                        for name, each in model.named_parameters():
                            if name in moves:
                                each.add_(sign * moves[name])
                    torch.manual_seed(7)
                    losses.append(model(**batch).loss.item())
        slope, measured = sum(float((ours[name] * moves[name]).sum()) for name in moves), (losses[0] - losses[1]) / 2e-5
        self.assertTrue(abs(measured - slope) <= 1e-6 * abs(slope), (measured, slope))

    def test_float16_with_a_scaled_loss(self):
        model = tiny().half()
        wide = copy.deepcopy(model).float()
        batch, scale = batch_of(61, (23, 15)), 1024.0

        def scaled(model, **more):
            model.zero_grad(set_to_none=True)
            (model(**batch, **more).loss * scale).backward()
            return {name: each.grad.float() / scale for name, each in model.named_parameters()}

        truth, theirs = scaled(wide, use_cache=False), scaled(model, use_cache=False)
        self.assertEqual(lanes(model), {"module"})
        with streamed(model, 7):
            ours = scaled(model)

        def distance(found):
            return max(float((found[name] - truth[name]).norm() / truth[name].norm()) for name in truth)

        self.assertTrue(distance(ours) <= 1.5 * distance(theirs), (distance(ours), distance(theirs)))

    def test_merging_and_saving(self):
        model, batch = adapted(), batch_of(61, (23, 15), "left")
        given = {name: batch[name] for name in ("input_ids", "attention_mask")}
        with everything_in_float64():
            with torch.no_grad():
                logits = copy.deepcopy(model).eval()(**given).logits
            loss, theirs = step(model, batch, use_cache=False)
            sb.patch(model, lane="module", chunk=7)
            with tempfile.TemporaryDirectory() as folder:
                model.save_pretrained(folder)
                again = PeftModel.from_pretrained(model_of("qwen3"), folder).double().eval()
            self.assertTrue(torch.allclose(again(**given).logits, logits, atol=1e-12))
            model.merge_adapter()
            self.assertTrue(torch.allclose(model.eval()(**given).logits, logits, atol=1e-10))
            model.unmerge_adapter()
            ours_loss, ours = step(model.train(), batch)
            self.assertTrue(max(relative(ours_loss, loss), difference(ours, theirs)) <= LIMIT)
            merged = model.merge_and_unload()
            self.assertTrue(torch.allclose(merged.eval()(**given).logits, logits, atol=1e-10))
            sb.unpatch(merged)
            self.assertNotIn("forward", vars(merged.model.layers[0]))

    def test_compiled_layers(self):
        for compiled in (lambda layers: [layer.compile(backend="eager") for layer in layers],
                         lambda layers: [layers.__setitem__(i, torch.compile(layer, backend="eager")) for i, layer in enumerate(layers)]):
            model = model_of("qwen3", made_with={"num_hidden_layers": 2, "layer_types": None})  # each is compiled for every number of earlier rows
            compiled(model.model.layers)
            self.compare(model, "compiled", chunks=(7,))


if __name__ == "__main__":
    unittest.main()
