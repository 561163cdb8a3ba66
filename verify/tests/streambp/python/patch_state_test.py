#!/usr/bin/env python3
"""streambp.patch() and what hangs around a model: hooks, caches, adapters, compilers, optimizers; and what is refused, by name."""

import inspect
import tempfile
import unittest

import peft
import streambp
import torch
from patching import LIMIT, batch_of, difference, gradients, in_float64, load, packed_batch, patched, reference_step, relative, step, tiny
from streambp._patch import patched_state
from streambp._trl import fused_options
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
            self.assertIsNone(self.model(**self.batch).logits)
            with torch.no_grad():
                self.assertTrue(relative(self.model(**self.batch).loss.item(), expected.loss.item()) <= 1e-6)

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
                theirs.log_probs.square().sum().backward()
            expected = gradients(model)
            model.zero_grad()
            with patched(model, chunk=5, head_chunk=7):
                state = patched_state(model)
                state.fused_head = fused_options(state.base)
                ours = model(**self.batch, fused_lm_head=True)
                self.assertEqual(set(ours), set(theirs))
                ours.log_probs.square().sum().backward()
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
                               ("saved head", {"modules_to_save": ["lm_head"]}), ("every map", {"use_rslora": True, "target_modules": "all-linear"})):
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
            with self.assertRaisesRegex(streambp.InputError, "merged"):
                model(**batch)
            model.unmerge_adapter()

    def test_other_adapters_are_refused(self):
        with self.assertRaisesRegex(streambp.InputError, "DoRA"):
            streambp.patch(adapted(use_dora=True))
        with self.assertRaisesRegex(streambp.InputError, "lora_dropout"):
            streambp.patch(adapted(lora_dropout=0.1))


class Refused(unittest.TestCase):
    def setUp(self):
        self.model, self.batch = tiny(), batch_of(61, (19, 12))

    def assert_refused(self, *words, model=None, **more):
        """InputError of one line with every word, from patching or from the call."""
        with self.assertRaises(streambp.InputError) as caught, patched(model or self.model, chunk=5) as patched_model:
            patched_model(**{**self.batch, **more})
        message = str(caught.exception)
        self.assertNotIn("\n", message)
        for word in words:
            self.assertIn(word, message)

    def tearDown(self):
        for name, module in self.model.named_modules():
            self.assertNotIn("forward", module.__dict__, name)

    def test_checkpointing(self):
        self.model.gradient_checkpointing_enable()
        self.assert_refused("gradient_checkpointing", "False")

    def test_dropout(self):
        self.assert_refused("attention_dropout", model=tiny(attention_dropout=0.1))

    def test_outputs_that_are_not_kept(self):
        for name in ("output_attentions", "output_hidden_states"):
            self.assert_refused(name, **{name: True})

    def test_router_logits(self):
        model = load("qwen3-moe")
        model.config.output_router_logits = True
        self.assert_refused("output_router_logits", "streambp.backward", model=model)

    def test_caches(self):
        with torch.no_grad():
            cache = self.model(self.batch["input_ids"], use_cache=True).past_key_values
        self.assert_refused("past_key_values", "no_grad", past_key_values=cache)

    def test_hooks_on_inner_modules(self):
        for module in (self.model.model.layers[1].mlp.down_proj, self.model.lm_head):
            handle = module.register_forward_hook(lambda module, args, output: None)
            self.assert_refused("forward hook", "remove")
            handle.remove()

    def test_hooks_that_come_later(self):
        with patched(self.model, chunk=5):
            handle = self.model.model.layers[0].self_attn.register_forward_pre_hook(lambda module, args: None)
            with self.assertRaisesRegex(streambp.InputError, "layers.0.self_attn.*forward pre hook"):
                self.model(**self.batch)
            handle.remove()

    def test_masks(self):
        holes = self.batch["attention_mask"].clone()
        holes[0, 7] = 0
        labels = self.batch["labels"].masked_fill(torch.nn.functional.pad(holes[:, :-1], (1, 0), value=0) == 0, -100)
        self.assert_refused("attention_mask", "hole", attention_mask=holes, labels=labels)
        self.assert_refused("attention_mask", attention_mask=torch.ones(2, 1, 19, 19, dtype=torch.bool))

    def test_labels_that_padding_predicts(self):
        batch = batch_of(61, (12, 19), "left")
        batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        self.assert_refused("labels", "row 0 column 7", "first_labels", **batch)
        expected = batch["labels"].clone()
        expected[0, 7] = -100
        with patched(self.model, chunk=5):
            kept = step(self.model, {**batch, "labels": expected})
        with patched(self.model, chunk=5, first_labels="ignore"):
            self.assertEqual(step(self.model, batch)[0], kept[0])

    def test_shifted_labels_of_the_last_column(self):
        shifted = torch.full((2, 19), 5)
        self.assert_refused("shift_labels", "last column", shift_labels=shifted)

    def test_autocast(self):
        with torch.autocast("cpu", torch.bfloat16):
            self.assert_refused("autocast", "bfloat16")

    def test_tokens_of_the_vocabulary(self):
        labels = self.batch["labels"].clone()
        labels[0, 3] = 61
        self.assert_refused("label", "61", labels=labels)

    def test_settings(self):
        for settings, word in (({"chunk": 0}, "chunk"), ({"chunk": "big"}, "chunk"), ({"head_chunk": True}, "head_chunk"),
                               ({"first_labels": "drop"}, "first_labels")):
            with self.assertRaisesRegex(streambp.InputError, word):
                streambp.patch(self.model, **settings)

    def test_models_that_are_not_known(self):
        with self.assertRaisesRegex(streambp.InputError, "Linear"):
            streambp.patch(torch.nn.Linear(2, 2))

    def test_mixed_dtypes(self):
        self.model.lm_head.double()
        self.assert_refused("lm_head", "dtype")

    def test_log_probabilities_of_others(self):
        with self.assertRaisesRegex(streambp.InputError, "not patched"):
            streambp.log_probabilities(self.model, self.batch["input_ids"])


if __name__ == "__main__":
    unittest.main()
