"""What a call asks for next to tokens: attention functions, caches, arguments, masks of flash attention."""

import unittest

import torch
from patching import load, patched, step
from python_case import Case, autograd, in_float64, inputs_of, model_in_float64, packed_inputs, take_gradients
from transformers import AttentionInterface, DynamicCache
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import streambp_bench as sb


def doubled(module, query, key, value, attention_mask, **kwargs):
    output, weights = ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, attention_mask, **kwargs)
    return 2 * output, weights


class Attention(Case):
    def both_refuse(self, model, *words):
        batch = inputs_of(model)
        self.assert_refused(lambda: sb.backward(model, batch), *words)
        self.assert_refused(lambda: sb.patch(model, lane="engine"), *words)

    def test_registered_function(self):
        AttentionInterface.register("doubled", doubled)
        AttentionMaskInterface.register("doubled", sdpa_mask)
        model = load("qwen3")
        with patched(model):
            model.set_attn_implementation("doubled")
            self.assert_refused(lambda: step(model, inputs_of(model)), "'doubled'", "set_attn_implementation")
        self.both_refuse(model, "'doubled'", "doubled, which would not run")
        model.set_attn_implementation("sdpa")
        step(model, inputs_of(model))

    def test_function_instead_of_sdpa(self):
        model = load("qwen3")
        model.set_attn_implementation("sdpa")
        before = ALL_ATTENTION_FUNCTIONS["sdpa"]
        try:
            ALL_ATTENTION_FUNCTIONS["sdpa"] = doubled
            self.both_refuse(model, "'sdpa'", "doubled")
        finally:
            ALL_ATTENTION_FUNCTIONS["sdpa"] = before
        sb.backward(model, inputs_of(model))

    def test_not_causal(self):
        model = load("qwen3")
        model.config.is_causal = False
        self.both_refuse(model, "is_causal", "later")

    def test_transformers_own_are_the_same(self):
        model = model_in_float64("qwen3")
        loss, truth = autograd(model, inputs_of(model))
        for name in ("sdpa", "eager", "flex_attention"):
            model.set_attn_implementation(name)
            self.assert_loss(sb.backward(model, inputs_of(model)), loss, name)
            self.assert_gradients(take_gradients(model), truth, name)


class FlashAttention(Case):
    """Its masks, as transformers prepares them; nothing of it runs on a CPU."""

    def batch(self, model, rows=1):
        packed = packed_inputs(model, (5, 9, 3))
        return {name: tensor.expand(rows, -1).contiguous() for name, tensor in packed.items()}

    def ours(self, model, batch):
        sb.backward(model, batch)
        return take_gradients(model)

    def both_levels(self, model, batch, truth, what):
        self.assert_gradients(self.ours(model, batch), truth, what)
        with patched(model.train()), in_float64():
            model(**batch, use_cache=False).loss.backward()
            self.assert_gradients(take_gradients(model), truth, f"{what}, patched")
        model.eval()

    def test_mask_of_ones(self):
        model = model_in_float64("qwen3")
        packed = self.batch(model)
        documents = autograd(model, packed)[1]
        masked = {**packed, "attention_mask": torch.ones_like(packed["input_ids"])}
        one_sequence = autograd(model, masked)[1]  # of eager attention: positions restart, and tokens see all before them
        self.both_levels(model, masked, one_sequence, "a mask of ones, eager")
        model.config._attn_implementation_internal = "flash_attention_2"
        self.both_levels(model, masked, documents, "a mask of ones, flash attention")
        self.both_levels(model, packed, documents, "no mask, flash attention")

    def test_documents_of_several_rows(self):
        model = model_in_float64("qwen3")
        packed = self.batch(model, rows=2)
        documents = autograd(model, packed)[1]
        rows = autograd(model, {**packed, "attention_mask": torch.ones_like(packed["input_ids"])})[1]
        self.both_levels(model, packed, documents, "two rows, eager")
        model.config._attn_implementation_internal = "flash_attention_2"
        self.both_levels(model, packed, rows, "two rows, flash attention, which takes documents from a single one")


class Arguments(Case):
    def test_a_prefix_is_used_or_refused(self):
        """transformers 5.24 calls the cache `cache`."""
        model = load("qwen3", training=False)
        ids = inputs_of(model)["input_ids"][:1]
        with in_float64():
            whole = model(input_ids=ids).logits
        with patched(model), torch.no_grad(), in_float64():
            cache = model(input_ids=ids[:, :-5], use_cache=True)
            cache = getattr(cache, "cache", None) or cache.past_key_values
            rest = model(input_ids=ids[:, -5:], past_key_values=cache, use_cache=True).logits
            self.assertTrue((rest - whole[:, -5:]).abs().max() <= 1e-9)
            with torch.enable_grad():
                for name in ("past_key_values", "cache"):
                    self.assert_refused(lambda name=name: model(input_ids=ids, **{name: DynamicCache()}), "cache")

    def test_unknown_arguments_are_named(self):
        model = load("qwen3")
        batch = inputs_of(model)
        with patched(model):
            self.assert_refused(lambda: step(model, batch, is_causal=False), "is_causal=False")
            self.assert_refused(lambda: step(model, batch, scores_to_add=torch.zeros(3)), "scores_to_add", "would drop")
            with torch.no_grad():  # the model's own code is as good, and has it
                model(**batch, scores_to_add=None)
            model(**batch, is_causal=True).loss.backward()
        self.assert_refused(lambda: sb.backward(model, {**batch, "is_causal": False}), "is_causal")
        sb.backward(model, {**batch, "is_causal": True})

    def test_documents_by_cu_seq_lens(self):
        model = load("qwen3")
        packed = packed_inputs(model, (5, 9, 3))
        bounds = torch.tensor([0, 5, 14, 17], dtype=torch.int32)
        more = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": 9, "max_length_k": 9}
        truth = autograd(model, packed)[1]
        sb.backward(model, {**packed, **more})
        self.assert_gradients(take_gradients(model), truth, "cu_seq_lens")
        without = {name: tensor for name, tensor in packed.items() if name != "position_ids"}
        wrong = {**more, "cu_seq_lens_q": bounds + 1, "cu_seq_lens_k": bounds + 1}
        with patched(model):
            step(model, {**packed, **more})
            for batch in ({**without, **more}, {**packed, **wrong}):
                self.assert_refused(lambda batch=batch: step(model, batch), "cu_seq_lens_q", "position_ids")
                self.assert_refused(lambda batch=batch: sb.backward(model, batch), "cu_seq_lens_q", "position_ids")

    def test_dropped_labels_that_are_counted(self):
        model = load("qwen3")
        batch = inputs_of(model)
        batch["labels"] = batch["input_ids"].clone()
        batch["labels"][batch["attention_mask"] == 0] = -100
        counted = {**batch, "num_items_in_batch": torch.tensor(20)}
        sb.backward(model, batch, first_labels="ignore")
        self.assert_refused(lambda: sb.backward(model, counted, first_labels="ignore"), "num_items_in_batch", "-100")
        with patched(model, first_labels="ignore"):
            step(model, batch)
            self.assert_refused(lambda: step(model, counted), "num_items_in_batch", "-100")


class Verify(Case):
    def test_packed_rows_are_run_as_trainers_run_them(self):
        model = model_in_float64("qwen3")
        model.config.use_cache = True
        with in_float64():
            report = sb.verify(model, packed_inputs(model, (5, 9, 3)))
        self.assertTrue(report.exact, str(report))
        self.assertTrue(any("use_cache=False" in note for note in report.notes), report.notes)


if __name__ == "__main__":
    unittest.main()
