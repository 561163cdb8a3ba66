#!/usr/bin/env python3
"""What sb.patch(lane="engine") refuses: in one line that names the thing and says what to do, and with the model as it was."""

import copy
import unittest

import streambp_bench as sb
import torch
import transformers
from module_lane_test import everything_in_float64
from patching import batch_of, difference, in_float64, load, patched, relative, step, tiny, tiny_config


class Refused(unittest.TestCase):
    def setUp(self):
        self.model, self.batch = tiny(), batch_of(61, (19, 12))

    def assert_refused(self, *words, model=None, **more):
        """InputError of one line with every word, from patching or from the call."""
        with self.assertRaises(sb.InputError) as caught, patched(model or self.model, chunk=5) as patched_model:
            patched_model(**{**self.batch, **more})
        message = str(caught.exception)
        self.assertNotIn("\n", message)
        for word in words:
            self.assertIn(word, message)

    def tearDown(self):
        for name, module in self.model.named_modules():
            self.assertNotIn("forward", module.__dict__, name)

    def test_dropout(self):
        self.assert_refused("attention_dropout", model=tiny(attention_dropout=0.1))
        model = load("seed-oss")
        for layer in model.model.layers:
            layer.mlp.residual_dropout = 0.1
        self.assert_refused("mlp.residual_dropout is 0.1", model=model)

    def test_a_gate_that_is_not_the_config_s(self):
        for own, key in (("alpha", "swiglu_alpha"), ("limit", "swiglu_limit")):
            model = load("gpt-oss")
            setattr(model.model.layers[1].mlp.experts, own, 3.0)
            self.assert_refused(f"layers.1.mlp.experts.{own} is 3.0", key, model=model)

    def test_a_norm_that_is_not_in_the_config_s_groups(self):
        for name in ("granite-hybrid-groups", "bamba"):
            model = load(name)
            norm = next(module for module in model.modules() if type(module).__name__.endswith("RMSNormGated"))
            norm.group_size = norm.weight.numel()
            self.assert_refused("mamba.norm", "as one", "groups of", model=model)

    def test_outputs_that_are_not_kept(self):
        for name in ("output_attentions", "output_hidden_states"):
            self.assert_refused(name, **{name: True})

    def test_caches(self):
        with torch.no_grad():
            cache = self.model(self.batch["input_ids"], use_cache=True).past_key_values
        self.assert_refused("cache", "no_grad", past_key_values=cache)

    def test_caches_are_filled_by_the_layers_own_code(self):
        ids = self.batch["input_ids"]
        with patched(tiny(), lane="auto", chunk=5) as model:
            for more in ({}, {"labels": ids}):
                self.assertEqual(model(ids, use_cache=True, **more).past_key_values.get_seq_length(), ids.shape[1])

    def test_hooks_on_inner_modules(self):
        for module in (self.model.model.layers[1].mlp.down_proj, self.model.lm_head):
            handle = module.register_forward_hook(lambda module, args, output: None)
            self.assert_refused("forward hook", "remove")
            handle.remove()

    def test_modules_that_are_exchanged_later(self):
        def head(model):
            model.lm_head = copy.deepcopy(model.lm_head)

        def layer(model):
            model.model.layers[1] = copy.deepcopy(model.model.layers[1])

        def part(model):
            model.model.layers[1].mlp.gate_proj = copy.deepcopy(model.model.layers[1].mlp.gate_proj)

        def shared(model):
            model.model.layers[1].mlp = model.model.layers[0].mlp

        for exchange in (head, layer, part, lambda model: model.resize_token_embeddings(model.config.vocab_size + 9), shared):
            model = tiny()
            sb.patch(model, chunk=5, lane="engine")
            exchange(model)
            with self.assertRaisesRegex(sb.InputError, r"other parameters or modules than when it was patched.*streambp_bench\.patch\(\) again"):
                model(**self.batch)
            if exchange is not shared:
                sb.patch(model, chunk=5, lane="engine")
                model(**self.batch).loss.backward()

    def test_a_forward_that_is_exchanged_later(self):
        for lane in ("auto", "module"):
            model = sb.patch(tiny(), lane=lane)
            layer = model.model.layers[1]
            layer.__class__ = type("Other", (type(layer),), {"forward": lambda self, *args, **kwargs: super(type(self), self).forward(*args, **kwargs) * 2})
            with self.assertRaisesRegex(sb.InputError, r"Other\.forward has been replaced since.*patch\(\) again"):
                model(**self.batch)

    def test_logits_after_a_step(self):
        for lane in ("engine", "module"):
            with patched(self.model, lane=lane):
                output = self.model(**self.batch)
                with torch.no_grad():
                    self.model.lm_head.weight.mul_(1.1)
                with self.assertRaisesRegex(sb.InputError, "before the optimizer's step"):
                    output.logits.sum()

    def test_hooks_of_all_modules(self):
        with patched(self.model):
            handle = torch.nn.modules.module.register_module_forward_hook(lambda module, args, output: None)
            try:
                for call in (lambda: self.model(**self.batch), lambda: sb.backward(tiny(), self.batch)):
                    with self.assertRaisesRegex(sb.InputError, "hook of all modules.*remove"):
                        call()
            finally:
                handle.remove()

    def test_hooks_that_come_later(self):
        with patched(self.model, chunk=5):
            handle = self.model.model.layers[0].self_attn.register_forward_pre_hook(lambda module, args: None)
            with self.assertRaisesRegex(sb.InputError, "layers.0.self_attn.*forward pre hook"):
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

    def test_a_score_of_padding(self):
        """transformers scores the last token that is not pad_token_id, whatever the mask says; the engine computes no rows of padding, and lane="auto" leaves it to the model's."""
        with in_float64():
            model = transformers.Qwen3ForSequenceClassification(tiny_config(num_labels=1, pad_token_id=0)).double().train()
        batch = {name: self.batch[name] for name in ("input_ids", "attention_mask")} | {"labels": torch.tensor([0.5, -1.0], dtype=torch.float64)}
        batch["input_ids"] = batch["input_ids"].clamp(min=1)
        self.assert_refused("row 1 is scored at column 18", "pad_token_id is 0", model=model, **batch)
        padded = batch | {"input_ids": batch["input_ids"] * batch["attention_mask"]}
        with everything_in_float64():
            for lane, given in (("engine", padded), ("auto", batch)):
                loss, theirs = step(model, given)
                with patched(model, chunk=5, lane=lane):
                    ours_loss, ours = step(model, given)
                error = max(relative(ours_loss, loss), difference(ours, theirs))
                self.assertTrue(error <= 1e-10, f"{lane}: {error:.1e}")

    def test_shifted_labels_of_the_last_column(self):
        shifted = torch.full((2, 19), 5)
        self.assert_refused("shift_labels", "last column", shift_labels=shifted)

    def test_autocast(self):
        with torch.autocast("cpu", torch.bfloat16):
            self.assert_refused("autocast", "bfloat16")

    def test_masks_that_eager_attention_adds(self):
        """True is added to a score as 1: nothing is hidden. Other attention reads it as it is meant, and so does the engine, which says it."""
        mask = torch.ones(19, 19, dtype=torch.bool).tril()[None, None].expand(2, 1, 19, 19)
        for implementation in ("eager", "sdpa"):
            model = tiny()
            model.config._attn_implementation = implementation
            given = self.batch | {"attention_mask": mask}
            expected = step(model, self.batch | {"attention_mask": None})[0]
            for lane in ("engine", "module", "auto"):
                with patched(model, lane=lane, prove=False, chunk=5):
                    if (lane, implementation) == ("module", "eager"):
                        with self.assertRaisesRegex(sb.InputError, "adds it to scores.*sdpa"):
                            model(**given)
                        continue
                    with self.assertLogs("streambp_bench") if implementation == "eager" else self.assertNoLogs("streambp_bench"):
                        loss = step(model, given)[0]
                    self.assertTrue(relative(loss, expected) <= 1e-5, lane)

    def test_weights_without_values(self):
        with torch.device("meta"):
            model = transformers.Qwen3ForCausalLM(tiny_config())
        for lane in ("engine", "module", "auto"):
            with self.assertRaisesRegex(sb.InputError, "meta device.*load"):
                sb.patch(model, lane=lane)

    def test_tokens_of_the_vocabulary(self):
        labels = self.batch["labels"].clone()
        labels[0, 3] = 61
        self.assert_refused("label", "61", labels=labels)

    def test_settings(self):
        for settings, word in (({"chunk": 0}, "chunk"), ({"chunk": "big"}, "chunk"), ({"head_chunk": True}, "head_chunk"),
                               ({"first_labels": "drop"}, "first_labels")):
            with self.assertRaisesRegex(sb.InputError, word):
                sb.patch(self.model, **settings)

    def test_models_that_are_not_known(self):
        with self.assertRaisesRegex(sb.InputError, "Linear"):
            sb.patch(torch.nn.Linear(2, 2))

    def test_weights_that_compute_something_else(self):
        class Halved(torch.Tensor):
            @classmethod
            def __torch_function__(cls, function, types, args=(), kwargs=None):
                result = super().__torch_function__(function, types, args, kwargs)
                return result.as_subclass(torch.Tensor) * 0.5 if function is torch.nn.functional.linear else result

        model = tiny()
        projection = model.model.layers[1].mlp.up_proj
        projection.weight = torch.nn.Parameter(projection.weight.detach().as_subclass(Halved))
        for call in (lambda: sb.patch(model, lane="engine"), lambda: sb.backward(model, self.batch)):
            with self.assertRaisesRegex(sb.InputError, "up_proj.weight is a .*Halved, expected a plain tensor"):
                call()

    def test_mixed_dtypes(self):
        self.model.lm_head.double()
        self.assert_refused("lm_head", "dtype")

    def test_log_probabilities_of_others(self):
        with self.assertRaisesRegex(sb.InputError, "not patched"):
            sb.log_probabilities(self.model, self.batch["input_ids"])


if __name__ == "__main__":
    unittest.main()
