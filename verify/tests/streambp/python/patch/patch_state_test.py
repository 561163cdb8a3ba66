#!/usr/bin/env python3
"""sb.patch() and what hangs around a model: hooks, caches, adapters, compilers, optimizers, the allocator."""

import gc
import inspect
import json
import math
import tempfile
import unittest
import weakref

import peft
import streambp_bench as sb
import torch
from patching import LIMIT, batch_of, difference, gradients, in_float64, load, packed_batch, patched, reference_step, relative, step, tiny
from streambp_bench._library import library
from streambp_bench._module_lane.lazy_logits import LazyLogits
from torch.utils.flop_counter import FlopCounterMode
from trl.trainer.utils import add_fused_lm_head


def inputs_of(batch):
    return {key: batch[key] for key in ("input_ids", "attention_mask")}


class Around(unittest.TestCase):
    def setUp(self):
        self.model, self.batch = tiny(dtype=torch.float64), batch_of(61, (19, 12))

    def expected(self):
        return reference_step(self.model, self.batch)

    def assert_exact(self, ours, theirs, what=""):
        error = max(relative(ours[0], theirs[0]), difference(ours[1], theirs[1]))
        self.assertTrue(error <= LIMIT, f"{what}: {error:.1e}")

    def test_saved_tensors_are_layer_inputs(self):
        kept = []

        def pack(tensor):
            kept.append(tensor)
            return tensor

        own = {parameter.data_ptr() for parameter in self.model.parameters()}
        expected = self.expected()
        tokens = int(self.batch["attention_mask"].sum())
        with patched(self.model, chunk=5):
            self.model.zero_grad()
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                loss = self.model(**self.batch).loss
                passes = len(kept)
                loss.backward()
        floating = [tensor for tensor in kept if tensor.is_floating_point() and tensor.data_ptr() not in own]
        self.assertEqual([list(tensor.shape) for tensor in floating], [[tokens, 16]] * self.model.config.num_hidden_layers)
        self.assertEqual(len(kept), passes, "the backward pass saved tensors through the caller's hooks")
        self.assert_exact((loss.item(), gradients(self.model)), expected)

    def test_no_label_is_a_mean_of_nothing(self):
        """The loss is NaN, as the model's own, which is how a trainer sees that all labels are masked; nothing is added to gradients."""
        batch = self.batch | {"labels": torch.full_like(self.batch["labels"], -100)}
        self.assertTrue(math.isnan(step(self.model, batch)[0]))
        for lane in ("engine", "module"):
            with patched(self.model, lane=lane, prove=False):
                loss, found = step(self.model, batch)
                self.assertTrue(math.isnan(loss))
                self.assertFalse(any(bool(each.any()) for each in found.values()))
                self.assertEqual(step(self.model, batch, num_items_in_batch=7)[0], 0.0)

    def test_a_counter_of_operations(self):
        """torch's counter follows gradients of what modules are given, which it can't where that is a leaf."""
        model, losses = tiny(), []
        for lane in ("engine", "module"):
            with patched(model, lane=lane, prove=False, chunk=5), FlopCounterMode(display=False) as counter:
                losses.append(step(model, self.batch)[0])
            self.assertGreater(counter.get_total_flops(), 0)
        self.assertTrue(relative(*losses) <= 1e-5)

    def test_a_model_that_is_let_go_is_freed(self):
        gc.disable()
        try:
            for lane in ("engine", "module", "auto"):
                model = sb.patch(tiny(), lane=lane, prove=False)
                step(model, self.batch)
                weight = weakref.ref(model.model.layers[0].mlp.up_proj.weight)
                sb.unpatch(model)
                del model
                self.assertIsNone(weight(), lane)
        finally:
            gc.enable()

    def test_hooks_of_layers_and_embeddings_run(self):
        seen = []
        layer = self.model.model.layers[1]
        handles = [layer.register_forward_pre_hook(lambda module, args: seen.append("before")),
                   layer.register_forward_hook(lambda module, args, output: seen.append("after")),
                   layer.register_full_backward_hook(lambda module, inputs, outputs: seen.append("back")),
                   self.model.model.embed_tokens.register_forward_hook(lambda module, args, output: output * 2)]
        expected = self.expected()
        self.assertEqual(seen, ["before", "after", "back"])
        with patched(self.model, chunk=5):
            ours = step(self.model, self.batch)
        self.assertEqual(seen, ["before", "after", "back"] * 2)
        self.assert_exact(ours, expected)
        for handle in handles:
            handle.remove()

    def test_optimizer_in_backward(self):
        _, expected = self.expected()
        before = {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}

        def descend(parameter):
            with torch.no_grad():
                parameter.sub_(parameter.grad, alpha=0.1)
            parameter.grad = None

        handles = [parameter.register_post_accumulate_grad_hook(descend) for parameter in self.model.parameters()]
        with patched(self.model, chunk=5):
            self.model.zero_grad()
            self.model(**self.batch).loss.backward()
        after = {name: parameter.detach() for name, parameter in self.model.named_parameters()}
        self.assertTrue(difference(after, {name: before[name] - 0.1 * expected[name] for name in before}) <= LIMIT)
        for handle in handles:
            handle.remove()

    def test_scaler_and_clipping(self):
        _, expected = self.expected()
        norm = torch.nn.utils.get_total_norm(expected.values())
        with patched(self.model, chunk=5):
            self.model.zero_grad()
            scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
            optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            scaler.scale(self.model(**self.batch).loss).backward()
            scaler.unscale_(optimizer)
            clipped = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            self.assertTrue(relative(clipped.item(), norm.item()) <= LIMIT)
            scaler.step(optimizer)
            scaler.update()
        self.assertTrue(difference(gradients(self.model), {name: g * 0.5 / (norm + 1e-6) for name, g in expected.items()}) <= LIMIT)

    def test_gradients_add_up(self):
        _, expected = self.expected()
        with patched(self.model, chunk=5):
            self.model.zero_grad()
            for _ in range(3):
                self.model(**self.batch).loss.backward()
        self.assertTrue(difference(gradients(self.model), {name: 3 * g for name, g in expected.items()}) <= LIMIT)

    def test_frozen_parameters_cost_nothing(self):
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_("layers.1.mlp" in name)
        expected = self.expected()
        with patched(self.model, chunk=5):
            ours = step(self.model, self.batch)
        self.assertEqual(len(ours[1]), 3)
        self.assert_exact(ours, expected)

    def test_generation_and_evaluation_are_the_model_s_own(self):
        prompt = self.batch["input_ids"][:, :6]
        options = {"max_new_tokens": 8, "do_sample": False, "use_cache": True}
        self.model.config.use_cache = True
        theirs = self.model.generate(prompt, **options)
        with torch.no_grad():
            expected = self.model.eval()(**self.batch)
        self.model.train()
        with patched(self.model, chunk=5):
            self.assertTrue(torch.equal(self.model.generate(prompt, **options), theirs))
            self.model.eval()
            with torch.no_grad():
                found = self.model(**self.batch)
            self.assertTrue(torch.equal(found.logits, expected.logits))
            self.assertEqual(found.loss, expected.loss)
            self.model.train()
            self.assertIsInstance(self.model(**self.batch).logits, LazyLogits)
            with torch.no_grad():
                self.assertTrue(relative(self.model(**self.batch).loss.item(), expected.loss.item()) <= 1e-6)

    def test_what_only_the_model_has_without_gradients(self):
        model = load("qwen3-moe")
        model.config.output_router_logits = True
        with torch.no_grad():
            theirs = model(**self.batch, output_hidden_states=True)
            with patched(model, chunk=5):
                ours = model(**self.batch, output_hidden_states=True)
        self.assertEqual(ours.loss, theirs.loss)
        self.assertEqual(ours.aux_loss, theirs.aux_loss)
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(ours.hidden_states, theirs.hidden_states, strict=True)))

    def test_inference_mode_is_the_model_s_own(self):
        with torch.inference_mode():
            theirs = self.model(**self.batch)
            with patched(self.model, chunk=5):
                ours = self.model(**self.batch)
                with self.assertRaisesRegex(sb.InputError, "inference_mode"):
                    sb.log_probabilities(self.model, self.batch["input_ids"])
        self.assertEqual(ours.loss, theirs.loss)
        self.assertTrue(torch.equal(ours.logits, theirs.logits))

    def test_torch_compile(self):
        expected = self.expected()
        with patched(self.model, chunk=5):
            compiled = torch.compile(self.model, backend="eager")
            self.model.zero_grad()
            loss = compiled(**self.batch).loss
            loss.backward()
            self.assert_exact((loss.item(), gradients(self.model)), expected, "compiled")

    def test_masks_of_four_dimensions(self):
        expected = self.expected()
        real = self.batch["attention_mask"].bool()
        causal = torch.ones(19, 19, dtype=torch.bool).tril() & real[:, None, None, :]
        additive = torch.zeros(causal.shape, dtype=torch.float64).masked_fill(~causal, torch.finfo(torch.float64).min)
        with patched(self.model, chunk=5):
            for mask in (causal, additive):
                self.assert_exact(step(self.model, {**self.batch, "attention_mask": mask}), expected)

    def test_documents_of_four_dimensions(self):
        batch = packed_batch(61, (9, 14, 6))
        expected = reference_step(self.model, batch)
        document = (batch["position_ids"][0] == 0).cumsum(0)
        mask = torch.ones(29, 29, dtype=torch.bool).tril() & (document[:, None] == document[None, :])
        with patched(self.model, chunk=5):
            self.assert_exact(step(self.model, {**batch, "attention_mask": mask[None, None]}), expected)

    def test_another_dtype_after_patching(self):
        model = tiny()
        with patched(model, chunk=5):
            loss = model(**self.batch).loss.item()
            model.to(torch.bfloat16)
            self.assertTrue(relative(step(model, self.batch)[0], loss) <= 0.01)

    def test_signatures_and_files_are_the_model_s(self):
        signatures = [inspect.signature(module.forward) for module in (self.model, self.model.model)]
        with patched(self.model, chunk=5), tempfile.TemporaryDirectory() as folder:
            self.assertEqual([inspect.signature(module.forward) for module in (self.model, self.model.model)], signatures)
            self.model.save_pretrained(folder)
            again = type(self.model).from_pretrained(folder, dtype=torch.float64)
        own = self.model.state_dict()
        self.assertTrue(all(torch.equal(tensor, own[name]) for name, tensor in again.state_dict().items()))

    def test_nothing_to_score(self):
        nothing = {**self.batch, "labels": torch.full_like(self.batch["labels"], -100)}
        with patched(self.model, chunk=5):
            loss, found = step(self.model, nothing, num_items_in_batch=7)
        self.assertEqual(loss, 0.0)
        self.assertTrue(all(gradient.abs().max() == 0 for gradient in found.values()))

    def test_statistics_of_trl_s_head(self):
        for name in ("qwen3", "gemma2"):
            model = load(name)
            add_fused_lm_head(model, temperature=0.8, outputs=("log_probs", "entropy", "log_sum_sq_probs", "mean_logits", "is_top1"))
            with in_float64():
                theirs = model(**self.batch, fused_lm_head=True)
                (theirs.log_probs.square().sum() + theirs.entropy.square().sum()).backward()
            expected = gradients(model)
            model.zero_grad()
            with patched(model, chunk=5, head_chunk=7):
                ours = model(**self.batch, fused_lm_head=True)
                self.assertEqual(set(ours), set(theirs))
                (ours.log_probs.square().sum() + ours.entropy.square().sum()).backward()
            for key in theirs:  # TRL's are float32
                error = (ours[key].double() - theirs[key].double()).abs().max().item()
                self.assertTrue(error <= 1e-5, f"{name}: {key}: {error:.1e}")
            error = difference(gradients(model), expected)
            self.assertTrue(error <= 1e-5, f"{name}: gradients: {error:.1e}")

    def test_embeddings_as_input(self):
        embeddings = self.model.model.embed_tokens(self.batch["input_ids"]).detach()
        given = {"inputs_embeds": embeddings, "attention_mask": self.batch["attention_mask"], "labels": self.batch["labels"]}
        expected = reference_step(self.model, given)
        with patched(self.model, chunk=5):
            self.assert_exact(step(self.model, given), expected)
        for name in ("falcon-h1", "granite"):  # of which one multiplies those that are given
            model = load(name)
            given = {"inputs_embeds": torch.randn(2, 9, model.config.hidden_size, dtype=torch.float64), "labels": torch.randint(3, 30, (2, 9))}
            expected = reference_step(model, given)
            with patched(model, chunk=5):
                self.assert_exact(step(model, given), expected)

    def test_rows_of_padding_in_a_loss_are_said(self):
        given = {name: self.batch[name] for name in ("input_ids", "attention_mask")}
        with patched(self.model, chunk=5):
            for weights, said in ((given["attention_mask"], self.assertNoLogs), (1, self.assertLogs)):
                with said("streambp_bench"):
                    (self.model.model(**given).last_hidden_state.sum(-1) * weights).sum().backward()


class Memory(unittest.TestCase):
    """Peaks beyond what was there before, as the library's allocator counts them, of models that have their gradients already."""

    TOKENS = 1024

    def peak(self, run):
        run()  # what a first pass leaves
        before = json.loads(torch.ops.streambp.meter_read("cpu"))["live_bytes"]
        torch.ops.streambp.meter_reset("cpu")
        run()
        return (json.loads(torch.ops.streambp.meter_read("cpu"))["peak_bytes"] - before) / 1e6

    def setUp(self):
        library()
        self.model = tiny(vocab_size=2048, hidden_size=64, intermediate_size=192, num_hidden_layers=6, max_position_embeddings=2048)
        self.batch = batch_of(2048, (self.TOKENS,))

    def test_a_step_takes_less_than_checkpointing(self):
        self.model.gradient_checkpointing_enable()
        theirs = self.peak(lambda: self.model(**self.batch).loss.backward())
        self.model.gradient_checkpointing_disable()
        with patched(self.model):
            ours = self.peak(lambda: self.model(**self.batch).loss.backward())
        inputs = 7 * self.TOKENS * 64 * 4 / 1e6
        print(f"a step of {self.TOKENS} tokens: {ours:.1f} MB, checkpointing {theirs:.1f} MB, layer inputs {inputs:.1f} MB")
        self.assertTrue(ours <= theirs / 3, f"{ours:.1f} MB, checkpointing {theirs:.1f} MB")

    def test_trl_s_head_takes_less(self):
        add_fused_lm_head(self.model, outputs=("log_probs", "entropy", "is_top1"))

        def run():
            self.model(**self.batch, fused_lm_head=True).log_probs.sum().backward()

        theirs = self.peak(run)
        with patched(self.model):
            ours = self.peak(run)
        print(f"TRL's head, {self.TOKENS} tokens: {ours:.1f} MB, without streambp {theirs:.1f} MB")
        self.assertTrue(ours <= theirs / 4, f"{ours:.1f} MB, without {theirs:.1f} MB")


def adapted(model=None, **settings):
    torch.manual_seed(5)
    config = peft.LoraConfig(**{"r": 3, "lora_alpha": 5, "lora_dropout": 0.0, "task_type": "CAUSAL_LM",
                                "target_modules": ["q_proj", "v_proj", "down_proj"], **settings})
    model = peft.get_peft_model(model or tiny(dtype=torch.float64), config, autocast_adapter_dtype=False)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, dtype=parameter.dtype) * 0.2)
    return model.train()


class Adapters(unittest.TestCase):
    def test_gradients(self):
        batch = batch_of(61, (19, 12), "left")
        for what, settings in (("projections", {}), ("head", {"target_modules": ["k_proj", "lm_head"]}),
                               ("embeddings", {"target_modules": ["gate_proj", "embed_tokens"]}),
                               ("saved head", {"modules_to_save": ["lm_head"]}),
                               ("every map", {"use_rslora": True, "target_modules": "all-linear"})):
            model = adapted(**settings)
            expected = reference_step(model, batch)
            with patched(model, chunk=5):
                ours = step(model, batch)
                self.assertTrue(all("lora_" in name or "modules_to_save" in name for name in ours[1]))
            error = max(relative(ours[0], expected[0]), difference(ours[1], expected[1]))
            print(f"adapters, {what}: {error:.1e}")
            self.assertTrue(error <= LIMIT, f"{what}: {error:.1e}")

    def test_disabled_adapters_are_the_base(self):
        model, batch = adapted(), batch_of(61, (19, 12), "left")
        with torch.no_grad(), in_float64(), model.disable_adapter():
            base = model(**batch).loss.item()
        with patched(model, chunk=5), torch.no_grad():
            with model.disable_adapter():
                self.assertTrue(relative(model(**batch).loss.item(), base) <= LIMIT)
            self.assertFalse(relative(model(**batch).loss.item(), base) <= 1e-3)

    def test_merged_adapters_are_refused(self):
        model, batch = adapted(), batch_of(61, (19, 12))
        with patched(model, chunk=5):
            model.merge_adapter()
            with self.assertRaisesRegex(sb.InputError, "merged"):
                model(**batch)
            model.unmerge_adapter()

    def test_adapters_that_come_later(self):
        model, batch = sb.patch(tiny(dtype=torch.float64), chunk=5, lane="engine"), batch_of(61, (19, 12))
        later = adapted(model)
        with self.assertRaisesRegex(sb.InputError, "other parameters.*again"):
            later(**batch)
        ours = step(sb.patch(later, chunk=5, lane="engine"), batch)
        sb.unpatch(later)
        expected = reference_step(later, batch)
        self.assertTrue(max(relative(ours[0], expected[0]), difference(ours[1], expected[1])) <= LIMIT)
        for name, module in later.named_modules():
            self.assertNotIn("forward", module.__dict__, name)

    def test_other_adapters_are_refused(self):
        with self.assertRaisesRegex(sb.InputError, "DoRA"):
            sb.patch(adapted(use_dora=True), lane="engine")
        with self.assertRaisesRegex(sb.InputError, "lora_dropout"):
            sb.patch(adapted(lora_dropout=0.1), lane="engine")


if __name__ == "__main__":
    unittest.main()
