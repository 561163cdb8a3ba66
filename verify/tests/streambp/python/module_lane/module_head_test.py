#!/usr/bin/env python3
"""The head of lane="module": loss and gradients by chunks of the model's own head and loss are the model's own, in float64; what can't be streamed
runs as the model has it, and a line says why."""

import copy
import unittest
import warnings

import streambp_bench as sb
import torch
import transformers
from module_lane_test import everything_in_float64, model_of, streamed
from patching import batch_of, packed_batch, relative, step, tiny
from patching import difference as difference_by_entry
from python_case import Case, in_float64
from streambp_bench._module_lane.head import cross_entropy
from streambp_bench._module_lane.lazy_logits import LazyLogits
from streambp_bench._replaced import patched_state
from torch.utils._python_dispatch import TorchDispatchMode

FAMILIES = ("llama", "qwen3", "gemma2", "granite", "cohere", "phi", "gpt2", "gpt_neox", "olmo", "starcoder2", "mixtral", "qwen3_5_text")
HEAD_CHUNKS = (1, 5, 40, "auto")
WORDS = 61
warnings.simplefilter("ignore")


def head_of(model):
    return patched_state(model).head


class Largest(TorchDispatchMode):
    """The largest tensor that is made inside with a row of WORDS."""

    rows = 0

    def __init__(self, parameters):
        super().__init__()
        self.known = {each.untyped_storage().data_ptr() for each in parameters}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if torch.is_tensor(result) and result.dim() > 1 and result.shape[-1] == WORDS and result.untyped_storage().data_ptr() not in self.known:
            self.rows = max(self.rows, result.numel() // WORDS)
        return result


class AddsTokens(transformers.LlamaForCausalLM):
    """Its head reads the tokens that it predicts from."""

    def forward(self, input_ids=None, labels=None, **more):
        output = super().forward(input_ids=input_ids, **more)
        output.logits = output.logits + torch.nn.functional.one_hot(input_ids, WORDS)
        if labels is not None:
            output.loss = self.loss_function(logits=output.logits, labels=labels, vocab_size=WORDS)
        return output


class OwnLoss(transformers.LlamaForCausalLM):
    """It makes its loss itself."""

    def forward(self, input_ids=None, labels=None, **more):
        output = super().forward(input_ids=input_ids, **more)
        if labels is not None:
            output.loss = output.logits.square().mean()
        return output


class ModuleHead(Case):
    def compare(self, model, batch, what, chunks=HEAD_CHUNKS, is_streamed=True, **more):
        """Loss and gradients against the model's own."""
        with everything_in_float64():
            loss, theirs = step(model, batch, use_cache=False, **more)
            for chunk in chunks:
                with streamed(model, head_chunk=chunk, prove=chunk == chunks[0]):
                    ours_loss, ours = step(model, batch, **more)
                    self.assertEqual(head_of(model).said is None, is_streamed, f"{what}: {head_of(model).said}")
                error = max(relative(ours_loss, loss), difference_by_entry(ours, theirs))
                self.assertTrue(error <= 1e-10, f"{what}, head's chunk {chunk}: {error:.1e}")
                type(self).reached = max(self.reached, error)

    def test_families_padded_and_packed(self):
        for family in FAMILIES:
            model = model_of(family)
            self.compare(model, batch_of(WORDS, (23, 15), "left"), f"{family}, left", chunks=self.turns(HEAD_CHUNKS, 1))
            self.compare(model, packed_batch(WORDS, (9, 10, 4)), f"{family}, packed", chunks=(5,), num_items_in_batch=17)

    def test_what_the_loss_takes(self):
        model, batch = model_of("gemma2"), batch_of(WORDS, (23, 15), "right")
        shifted = torch.nn.functional.pad(batch["labels"], (0, 1), value=-100)[:, 1:]
        for more in ({"num_items_in_batch": torch.tensor(29)}, {"shift_labels": shifted.contiguous()}, {"ignore_index": 7}):
            labels = batch["labels"].masked_fill(batch["labels"] == -100, 7) if "ignore_index" in more else batch["labels"]
            self.compare(model, {**batch, "labels": labels}, str(list(more)), chunks=(5,), **more)

    def test_tied_biased_frozen_and_adapted_heads(self):
        from peft import LoraConfig, get_peft_model

        tied = model_of("llama", tie_word_embeddings=True)
        self.assertIs(tied.lm_head.weight, tied.model.embed_tokens.weight)
        frozen = model_of("llama")
        frozen.lm_head.requires_grad_(False)
        alone = model_of("llama").requires_grad_(False)
        alone.lm_head.requires_grad_(True)
        self.assertIsNotNone(model_of("phi").lm_head.bias)
        with in_float64():
            adapted = get_peft_model(model_of("llama"), LoraConfig(r=3, target_modules=["lm_head", "q_proj"], init_lora_weights=False)).double()
            saved = get_peft_model(model_of("llama"), LoraConfig(r=3, target_modules=["q_proj"], modules_to_save=["lm_head"])).double()
        for what, model in (("tied", tied), ("frozen", frozen), ("alone", alone), ("adapted", adapted), ("saved", saved), ("biased", model_of("phi"))):
            self.compare(model, batch_of(WORDS, (23, 15)), what, chunks=(5,))

    def test_routers_losses_are_added_by_the_model(self):
        model, batch = model_of("mixtral", output_router_logits=True, router_aux_loss_coef=0.5), batch_of(WORDS, (23, 15))
        self.compare(model, batch, "router losses", chunks=(5,), num_items_in_batch=13)
        with everything_in_float64():
            theirs = model(**batch)
            with streamed(model, head_chunk=5):
                ours = model(**batch)
            self.assertTrue(relative(ours.aux_loss.item(), theirs.aux_loss.item()) <= 1e-12)
            self.assertEqual(len(ours.router_logits), len(theirs.router_logits))

    def log_probabilities(self, model, batch, targets, temperature, ours):
        """Log-probabilities, and the gradients of their weighted sum."""
        model.zero_grad(set_to_none=True)
        inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
        if ours:
            rows = sb.log_probabilities(model, **inputs, targets=targets, temperature=temperature)
        else:
            rows = (model(**inputs, use_cache=False).logits[:, :-1] / temperature).log_softmax(-1)
            rows = rows.gather(-1, targets[:, 1:].clamp(min=0)[..., None]).squeeze(-1) * (targets[:, 1:] != -100)
        (rows * torch.linspace(-1, 2, rows.numel()).view_as(rows)).sum().backward()
        return {"rows": rows.detach(), **{name: each.grad for name, each in model.named_parameters() if each.grad is not None}}

    def test_log_probabilities(self):
        batch = batch_of(WORDS, (23, 15), "left")
        none = torch.full_like(batch["labels"], -100)
        models = [(model_of(family), 1.0, batch["labels"]) for family in ("llama", "cohere", "gpt2", "phi")]
        models += [(model_of("gemma2"), 0.7, batch["labels"]), (model_of("mixtral"), 1.0, none), (AddsTokens(model_of("llama").config).double().train(), 1.0, batch["labels"])]
        for model, temperature, targets in models:
            with everything_in_float64():
                theirs = self.log_probabilities(model, batch, targets, temperature, ours=False)
                with streamed(model, head_chunk=5, prove=False):
                    ours = self.log_probabilities(model, batch, targets, temperature, ours=True)
            error = difference_by_entry(ours, theirs)
            self.assertTrue(error <= 1e-10, f"{type(model).__name__}: {error:.1e}")

    def test_log_probabilities_where_the_engine_stands_back(self):
        model, batch = tiny(dtype=torch.float64), batch_of(WORDS, (23, 15))
        model.model.layers[0].mlp.act_fn = torch.nn.GELU()  # which no config names
        with everything_in_float64():
            theirs = self.log_probabilities(model, batch, batch["labels"], 0.7, ours=False)
            sb.patch(model, chunk=7, head_chunk=5)
            ours = self.log_probabilities(model, batch, batch["labels"], 0.7, ours=True)
        error = difference_by_entry(ours, theirs)
        self.assertTrue(error <= 1e-10, f"{error:.1e}")

    def test_no_more_logits_than_a_chunk(self):
        model, batch = model_of("llama"), batch_of(WORDS, (23, 15))
        for parameter in model.lm_head.parameters():
            parameter.requires_grad_(False)  # whose own rows are as long
        model.model.embed_tokens.requires_grad_(False)
        with everything_in_float64(), streamed(model, head_chunk=5), Largest(model.parameters()) as largest:
            step(model, batch)
            self.assertEqual(largest.rows, 5)
            sb.log_probabilities(model, batch["input_ids"]).sum().backward()
        self.assertEqual(largest.rows, 5)

    def test_heads_that_are_left_to_the_model(self):
        hooked = model_of("llama")
        hooked.lm_head.register_forward_hook(lambda module, args, output: output * 2)
        scaled = model_of("llama")
        scaled.loss_function = lambda logits, labels, vocab_size, **more: torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()) * 3
        wrapped, own = model_of("llama"), transformers.LlamaForCausalLM.forward
        wrapped.forward = lambda **more: own(wrapped, **more)
        reads, itself = model_of("llama"), model_of("llama")
        reads.__class__, itself.__class__ = AddsTokens, OwnLoss
        for model, words in ((hooked, "lm_head has a hook"), (scaled, "loss_function"), (wrapped, "put around"), (reads, "in chunks it"),
                             (itself, "not made by its loss_function")):
            with self.assertLogs("streambp_bench") as caught:
                self.compare(model, batch_of(WORDS, (23, 15)), words, chunks=(5,), is_streamed=False)
            self.assertIn(words, caught.output[0])
            self.assertIn("head as the model has it", caught.output[0])

    def test_a_hook_that_comes_later(self):
        model, batch = model_of("llama"), batch_of(WORDS, (23, 15))
        with everything_in_float64(), streamed(model, head_chunk=5):
            step(model, batch)
            handle = model.lm_head.register_forward_hook(lambda module, args, output: output * 2)
            with self.assertLogs("streambp_bench") as caught:
                ours = step(model, batch)
                step(model, batch)
            self.assertEqual(len(caught.output), 1, caught.output)
            sb.unpatch(model)
            theirs = step(model, batch)
            handle.remove()
            sb.patch(model, lane="module")
        self.assertTrue(max(relative(ours[0], theirs[0]), difference_by_entry(ours[1], theirs[1])) <= 1e-10)

    def test_labels_that_are_no_words(self):
        model, batch = model_of("llama"), batch_of(WORDS, (23, 15))
        batch["labels"][0, 4] = WORDS
        for head in (True, False):
            with self.assertRaisesRegex(IndexError, "Target 61 is out of bounds"), everything_in_float64():
                if head:
                    with streamed(model):
                        step(model, batch)
                else:
                    step(model, batch)

    def test_logits_when_they_are_looked_at(self):
        model, batch = model_of("gemma2"), batch_of(WORDS, (23, 15))
        with everything_in_float64():
            theirs = model(**batch)
            real = batch["attention_mask"].bool()
            (theirs.loss + theirs.logits[real].square().mean()).backward()
            expected = {name: each.grad for name, each in model.named_parameters()}
            model.zero_grad(set_to_none=True)
            with streamed(model, head_chunk=5):
                ours = model(**batch)
                self.assertIsInstance(ours.logits, LazyLogits)
                self.assertEqual((ours.logits.shape, ours.logits.dtype, ours.logits.dim()), (theirs.logits.shape, torch.float64, 3))
                self.assertIsNone(ours.logits.made)
                self.assertIn("not computed", repr(ours.logits))
                with torch.no_grad():
                    self.assertTrue(torch.equal(ours.logits.argmax(-1)[real], theirs.logits.argmax(-1)[real]))
                    self.assertTrue(torch.allclose(ours.to_tuple()[1][0, 3], theirs.logits[0, 3], atol=1e-12))
                (ours.loss + ours.logits[real].square().mean()).backward()
        self.assertTrue(difference_by_entry({name: each.grad for name, each in model.named_parameters()}, expected) <= 1e-10)

    def test_scaled_losses_in_float16(self):
        """Gradients of the scaled loss, as exact as the model's own."""
        torch.manual_seed(0)
        model = tiny(vocab_size=2048, num_hidden_layers=1).half()
        truth, batch = copy.deepcopy(model).double(), batch_of(2048, (120, 100))
        _, expected = step(truth, batch)

        def found(scale):
            model.zero_grad(set_to_none=True)
            (model(**batch, use_cache=False).loss * scale).backward()
            return {name: each.grad.double() / scale for name, each in model.named_parameters()}

        def distance(ours):
            return max(float((ours[name] - each).norm() / each.norm()) for name, each in expected.items())

        theirs = distance(found(4096.0))
        with streamed(model, chunk=16, head_chunk=16):
            self.assertIsNone(head_of(model).said)
            ours = distance(found(4096.0))
        print(f"float16, scaled: {ours:.1e}, the model's own {theirs:.1e}")
        self.assertTrue(ours <= 1.2 * theirs, (ours, theirs))

    def test_bfloat16_does_not_grow_with_chunks(self):
        model = tiny(vocab_size=500, num_hidden_layers=1).to(torch.bfloat16)
        truth, batch = copy.deepcopy(model).double(), batch_of(500, (120, 100))
        _, expected = step(truth, batch)
        errors = {}
        for chunk in (None, 500, 2):
            if chunk:
                sb.patch(model, lane="module", head_chunk=chunk)
            _, found = step(model, batch)
            errors[chunk] = float((found["lm_head.weight"].double() - expected["lm_head.weight"]).norm() / expected["lm_head.weight"].norm())
        sb.unpatch(model)
        print("bfloat16, the head's gradient by chunk:", {chunk: f"{error:.1e}" for chunk, error in errors.items()})
        self.assertTrue(max(errors[500], errors[2]) <= 1.1 * errors[None], errors)

    def test_autocast(self):
        model, batch = tiny(vocab_size=200), batch_of(200, (23, 15))
        _, expected = step(model, batch)

        def distance(found):
            return max(float((found[name] - each).norm() / each.norm().clamp_min(1e-6)) for name, each in expected.items())

        with torch.autocast("cpu", torch.bfloat16):
            loss, theirs = step(model, batch)
            with streamed(model, head_chunk=5):
                ours_loss, ours = step(model, batch)
                self.assertIsNone(head_of(model).said)
                output = model(**batch)
        later = output.logits.detach().float()  # outside of autocast, as accelerate does to every output
        self.assertEqual((later.made, output.logits.made, later.dtype), (None, None, torch.float32))
        self.assertEqual(later.sum().dtype, torch.float32)
        self.assertTrue(relative(ours_loss, loss) <= 5e-3)
        self.assertTrue(distance(ours) <= 1.5 * distance(theirs), (distance(ours), distance(theirs)))

    def test_tokens_that_the_model_is_sure_of(self):
        """In float32 gradients and losses keep their digits, however far the target leads."""
        drawn, targets = torch.randn(5, WORDS, generator=torch.Generator().manual_seed(1)), torch.arange(5)
        for lead in (8, 16, 24, 40):
            logits = drawn.clone()
            logits[range(5), targets] = drawn.amax(1) + lead
            limit = 2**-23 * (lead + 10)  # a difference of logits is rounded before its exponential
            losses, gradients = cross_entropy(logits, targets)
            wide = logits.double().softmax(1)
            wide[range(5), targets] = 0
            wide[range(5), targets] = -wide.sum(1)
            for found, truth in ((gradients[range(5), targets], wide[range(5), targets]), (gradients, wide), (losses, -torch.log1p(wide[range(5), targets]))):
                error = float(((found - truth) / truth).abs().max())
                self.assertTrue(error <= limit, f"{lead} nats: {error:.1e}, limit {limit:.1e}")

    def test_nothing_to_score(self):
        model, batch = model_of("llama"), batch_of(WORDS, (23, 15))
        batch["labels"].fill_(-100)
        with everything_in_float64(), streamed(model):
            loss, gradients = step(model, batch, num_items_in_batch=5)
            self.assertTrue(torch.isnan(model(**batch).loss))
        self.assertEqual(loss, 0.0)
        self.assertTrue(all(not each.any() for each in gradients.values()))

    def test_a_second_backward_pass_is_refused(self):
        model = model_of("llama")
        with everything_in_float64(), streamed(model):
            loss = model(**batch_of(WORDS, (23, 15))).loss
            loss.backward(retain_graph=True)
            with self.assertRaisesRegex(RuntimeError, "second time"):
                loss.backward()

    def test_hooks_on_the_head_s_gradient_see_the_sum(self):
        model, seen = model_of("llama"), []
        model.lm_head.weight.register_hook(lambda gradient: seen.append(1) or gradient * 2)
        self.compare(model, batch_of(WORDS, (23, 15)), "a hook on the gradient", chunks=(5,))
        self.assertEqual(len(seen), 2 + 1 + 1)  # the model's own step, the proof's whole one twice, ours


if __name__ == "__main__":
    unittest.main()
