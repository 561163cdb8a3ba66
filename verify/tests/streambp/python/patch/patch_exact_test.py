#!/usr/bin/env python3
"""sb.patch() in float64: losses and gradients of every family equal Hugging Face's, padded on both sides and packed, at several
chunks; what has no labels gives the model's own logits; unpatch() restores it bit for bit."""

import copy
import unittest

import streambp_bench as sb
import torch
from patching import FAMILIES, LIMIT, batch_of, difference, in_float64, load, packed_batch, patched, reference_step, relative, step
from python_case import Case

CHUNKS = (5, 64, "auto")


class PatchExact(Case):
    def check(self, name, batch, what, chunks=CHUNKS):
        model = load(name)
        loss, expected = reference_step(model, batch)
        worst = 0.0
        for chunk in chunks:
            with patched(model, chunk=chunk, head_chunk=7 if chunk == 5 else "auto"):
                ours, found = step(model, batch)
            error = max(relative(ours, loss), difference(found, expected))
            self.assertTrue(error <= LIMIT, f"{name}, {what}, chunk {chunk}: {error:.1e}")
            worst = max(worst, error)
        return worst

    def test_families(self):
        worst = 0.0
        for name in FAMILIES:
            model = load(name)
            norms = [module for module in model.modules() if type(module).__name__.endswith("RMSNormGated")]
            if getattr(model.config, "mamba_n_groups", 1) > 1 and not all(hasattr(norm, "group_size") or hasattr(norm, "n_groups") for norm in norms):  # transformers 5.20's
                self.assertRaises(sb.InputError, sb.patch, model, lane="engine")
                continue
            vocab = min(61, model.config.vocab_size)
            of_family = 0.0
            for padding, lengths in (("right", (29, 11, 18)), ("left", (17, 29, 10))):
                # Of the first draw GLM-5's indexer has equal scores, zeros, of which torch.topk need not take the earlier.
                seed = 4 if (name, padding) == ("glm-moe-dsa", "left") else 1
                of_family = max(of_family, self.check(name, batch_of(vocab, lengths, padding, seed), padding, self.turns(CHUNKS, 2)))
            print(f"{name}: {of_family:.1e}", flush=True)
            worst = max(worst, of_family)
        print(f"families: {worst:.1e}, limit {LIMIT:.0e}")

    def test_packed(self):
        for name in ("qwen3", "mistral", "gemma3", "llama-dynamic", "deepseek-v32", "glm-moe-dsa", *(("hy-v4",) if "hy-v4" in FAMILIES else ())):
            vocab = min(61, load(name).config.vocab_size)
            error = self.check(name, packed_batch(vocab, (9, 14, 6)), "packed", (5, "auto"))
            print(f"{name}, packed: {error:.1e}")

    def test_one_row_without_a_mask(self):
        batch = batch_of(61, (23,))
        del batch["attention_mask"]
        print(f"one row: {self.check('qwen3', batch, 'one row'):.1e}")

    def test_num_items_in_batch(self):
        model, batch = load("qwen2"), batch_of(61, (19, 12))
        for items in (77, torch.tensor(77)):
            loss, expected = reference_step(model, batch, num_items_in_batch=items)
            with patched(model, chunk=5):
                ours, found = step(model, batch, num_items_in_batch=items)
            self.assertTrue(max(relative(ours, loss), difference(found, expected)) <= LIMIT)

    def test_shift_labels(self):
        model, batch = load("qwen3"), batch_of(61, (19, 12))
        shifted = torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=-100)
        loss, expected = reference_step(model, batch)
        with patched(model, chunk=5):
            ours, found = step(model, batch, shift_labels=shifted)
        self.assertTrue(max(relative(ours, loss), difference(found, expected)) <= LIMIT)

    def test_a_loss_times_a_number(self):
        model, batch = load("llama-tied"), batch_of(61, (19, 12))
        with in_float64():
            (model(**batch).loss * -2.5).backward()
        expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
        model.zero_grad()
        with patched(model, chunk=5):
            loss = model(**batch).loss
            (loss * -2.5).backward()
            with self.assertRaisesRegex(RuntimeError, "second time"):
                loss.backward()
        found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
        self.assertTrue(difference(found, expected) <= LIMIT)

    def test_logits_without_labels(self):
        for name in ("qwen3", "gemma2"):
            model, batch = load(name), batch_of(61, (19, 12), "left")
            inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
            weights = torch.rand(2, 4, model.config.vocab_size, dtype=torch.float64)
            with in_float64():
                theirs = model(**inputs, logits_to_keep=4).logits
                (theirs * weights).sum().backward()
            expected = {key: p.grad.clone() for key, p in model.named_parameters()}
            model.zero_grad()
            with patched(model, chunk=5), in_float64():
                ours = model(**inputs, logits_to_keep=4).logits
                (ours * weights).sum().backward()
            error = difference({"logits": ours, **{key: p.grad for key, p in model.named_parameters()}}, {"logits": theirs, **expected})
            self.assertTrue(error <= LIMIT, f"{name}: {error:.1e}")

    def test_the_decoder_alone(self):
        model, batch = load("qwen3"), batch_of(61, (19, 12), "left")
        inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
        real = batch["attention_mask"].unsqueeze(-1).double()
        weights = torch.rand(2, 19, model.config.hidden_size, dtype=torch.float64) * real
        with in_float64():
            theirs = model.model(**inputs).last_hidden_state
            (theirs * weights).sum().backward()
        expected = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        with patched(model, chunk=5), in_float64():
            ours = model.model(**inputs).last_hidden_state
            (ours * weights).sum().backward()
        found = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
        self.assertTrue(difference({"hidden": ours, **found}, {"hidden": theirs * real, **expected}) <= LIMIT)
        self.assertEqual((ours * (1 - real)).abs().max().item(), 0.0)

    def test_log_probabilities(self):
        for name, temperature in (("qwen3", 1.0), ("gemma2", 0.7)):
            model, batch = load(name), batch_of(61, (19, 12), "left")
            inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
            weights = torch.rand(2, 18, dtype=torch.float64)
            with in_float64():
                logits = model(**inputs).logits[:, :-1] / temperature
                targets = batch["labels"][:, 1:]
                theirs = logits.log_softmax(-1).gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1) * (targets != -100)
                (theirs * weights).sum().backward()
            expected = {key: p.grad.clone() for key, p in model.named_parameters()}
            model.zero_grad()
            with patched(model, chunk=5, head_chunk=4):
                ours = sb.log_probabilities(model, **inputs, temperature=temperature)
                (ours * weights).sum().backward()
            found = {key: p.grad for key, p in model.named_parameters()}
            error = difference({"rows": ours.detach(), **found}, {"rows": theirs.detach(), **expected})
            self.assertTrue(error <= LIMIT, f"{name}: {error:.1e}")

    def test_reward_model(self):
        model = load("qwen3-score")
        batch = batch_of(61, (19, 12), "right")
        inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
        with in_float64():
            theirs = model(**inputs, use_cache=False).logits
            theirs.square().sum().backward()
        expected = {key: p.grad.clone() for key, p in model.named_parameters()}
        model.zero_grad()
        with patched(model, chunk=5), in_float64():
            ours = model(**inputs, use_cache=False).logits
            ours.square().sum().backward()
        found = {key: p.grad for key, p in model.named_parameters()}
        self.assertTrue(difference({"scores": ours, **found}, {"scores": theirs, **expected}) <= LIMIT)

    def test_unpatch_restores(self):
        model, batch = load("qwen3"), batch_of(61, (19, 12))
        before = {name: dict(module.__dict__) for name, module in model.named_modules()}
        loss, expected = step(model, batch)
        sb.unpatch(sb.patch(model, chunk=5))
        after = {name: dict(module.__dict__) for name, module in model.named_modules()}
        for name in before:
            self.assertEqual(before[name].keys(), after[name].keys(), name)
        again, found = step(model, batch)
        self.assertEqual(loss, again)
        self.assertTrue(all(torch.equal(found[key], expected[key]) for key in expected))
        with self.assertRaisesRegex(sb.InputError, "not patched"):
            sb.unpatch(model)

    def test_patching_again_changes_the_settings(self):
        model, batch = load("qwen3"), batch_of(61, (19, 12))
        sb.patch(model, chunk=5)
        first = step(model, batch)
        sb.patch(model, chunk="auto")
        second = step(model, batch)
        self.assertTrue(max(relative(first[0], second[0]), difference(first[1], second[1])) <= LIMIT)
        sb.unpatch(model)

    def test_a_copy_has_its_own_weights(self):
        model, batch = load("qwen3"), batch_of(61, (19, 12))
        sb.patch(model, chunk=5)
        twin = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.mul_(1.5)
        ours = step(twin, batch)
        self.assertTrue(all(p.grad is None for p in model.parameters()))
        sb.unpatch(twin)
        theirs = reference_step(twin, batch)
        self.assertTrue(max(relative(ours[0], theirs[0]), difference(ours[1], theirs[1])) <= LIMIT)
        sb.unpatch(model)


if __name__ == "__main__":
    unittest.main()
