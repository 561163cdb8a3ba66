#!/usr/bin/env python3
"""Some recipes of scripts/pages/live_models.py: trainers of TRL in float64, and what backward() asks to be given of them."""

import unittest

import datasets
import streambp_bench as sb
import torch
import transformers
from adapters_test import adapted, read_case
from live.drive import computing_in, rows_of
from live.recipes import make_model
from patching import tiny
from python_case import LIMIT, Case

datasets.disable_progress_bars()


class LiveModels(Case):
    def check(self, recipe, model, adapter, **refused):
        """Gradients of both doors are the trainer's own; refused: {door: words}."""
        for row in rows_of(recipe, model, adapter, "float64", LIMIT):
            what = f"{recipe}, {model}, adapter {adapter}, {row['door']}"
            if row["door"] in refused:
                self.assertIn(refused[row["door"]], row["refusal"] or "", what)
                continue
            self.assertIsNone(row["refusal"], what)
            print(f"{what}: {row['error']:.1e} ({row['parameter']})", flush=True)
            self.assertTrue(row["error"] <= LIMIT, f"{what}: {row['error']:.1e}")

    def test_a_trained_adapter_is_compared_with_its_frozen_copy(self):
        self.check("DPO", "qwen3", "trained")

    def test_means_over_completions_that_begin_a_row(self):
        for loss_type in ("IPO", "sigmoid_norm"):
            self.check(f"DPO, {loss_type}, end kept", "qwen3", "none")

    def test_pairs_as_their_collators_write_them(self):
        for trainer in ("CPO", "ORPO"):
            self.check(trainer, "qwen3", "none")

    def test_labels_of_padding_on_the_right(self):
        model = tiny(dtype=torch.float64)
        ids, mask = torch.tensor([[3, 4, 5, 0, 0], [6, 7, 8, 9, 3]]), torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
        batch = {"input_ids": ids, "attention_mask": mask, "labels": ids}
        self.assert_refused(lambda: sb.backward(model, batch), "labels[0, 4]", "ignore-all", "transformers trains on")
        loss, info = sb.backward(model, batch, first_labels="ignore-all", return_info=True)
        self.assertIn("labels ignored because padding would predict them: 1", info.notes[-1])
        labels = ids.clone()
        labels[0, 4] = -100
        self.assert_loss(loss, sb.backward(model, batch | {"labels": labels}), "labels of padding")
        theirs = float(model(**{**batch, "labels": labels}).loss.detach())  # whose logits are float32
        self.assertLess(abs(float(loss) - theirs), 1e-6)
        self.assert_refused(lambda: sb.backward(model, batch | {"num_items_in_batch": 8}, first_labels="ignore-all"), "too small")

    def test_an_estimate_s_rows_on_another_side_of_a_long_rope(self):
        rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
        config = transformers.Phi3Config(vocab_size=61, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
                                         pad_token_id=0, max_position_embeddings=64, original_max_position_embeddings=8,
                                         tie_word_embeddings=False, rope_parameters=rope)
        model = transformers.Phi3ForCausalLM(config).double()
        for columns, estimate in ((6, 8), (10, 12), (6, 12), (12, 6)):
            batch = {"label": torch.tensor([True, False]), "ref_logps": torch.tensor([-9.0, -8.0]), "ref_KL_logps": torch.tensor([-7.0, -9.0])}
            for prefix, width in (("", columns), ("KL_", estimate)):
                ids = torch.arange(3, 3 + 2 * width).view(2, width)
                batch |= {f"{prefix}input_ids": ids, f"{prefix}attention_mask": torch.ones_like(ids),
                          f"{prefix}completion_mask": (torch.arange(width) > 3).long().repeat(2, 1)}
            if (columns > 8) == (estimate > 8):
                sb.backward(model, batch, "kto")
            else:
                self.assert_refused(lambda given=batch: sb.backward(model, given, "kto"), "passes of their own", "apo_zero_unpaired")

    def test_the_divisor_is_one_optimizer_steps(self):
        self.check("GRPO, steps_per_generation 4", "qwen3", "none")

    def test_sft_trainer_adds_the_routers_loss(self):
        for model in ("qwen3-moe", "gpt-oss"):
            self.check("SFT", model, "none")
        self.check("Trainer, accumulation 2", "mixtral", "none")

    def test_a_whole_model_on_text(self):
        for recipe in ("SFT", "Trainer"):
            self.check(recipe, "gemma3-whole", "fresh")

    def test_where_nothing_is_scored_the_routers_loss_stays(self):
        with computing_in("float64"):
            model = make_model("qwen3-moe")
            batch = {"input_ids": torch.arange(3, 13)[None], "labels": torch.full((1, 10), -100)}
            self.assertEqual(float(sb.backward(model, batch)), 0.0)  # the config has the routers' loss off
            model.config.output_router_logits = True
            # Hugging Face's sum over no token, divided by 1, and the routers' loss. The mean over no token would be NaN.
            expected = model(**batch, num_items_in_batch=1, use_cache=False).loss
            expected.backward()
            truth = {name: torch.zeros_like(one) if one.grad is None else one.grad for name, one in model.named_parameters()}
        for settings in ({}, {"chunk": 3}, {"method": "checkpoint"}, {"method": "tiled"}, {"method": "chunk-major", "chunk": 4}):
            model.zero_grad()
            loss = sb.backward(model, batch, **settings)
            self.assertTrue(abs(float(loss) - float(expected.detach())) <= LIMIT, settings)
            for name, parameter in model.named_parameters():
                scale = max(float(truth[name].norm()), 1e-12)
                error = float((parameter.grad - truth[name]).norm()) / scale
                self.assertTrue(error <= LIMIT, f"{settings} {name}: {error:.1e}")
        self.check("GRPO, truncated left out", "qwen3-moe", "none")

    def test_the_reference_of_a_trained_adapter_has_to_be_said(self):
        model = adapted("llama", target_modules="all-linear")
        _, inputs, _ = read_case("llama-dpo-sigmoid")
        given = {key: tensor for key, tensor in inputs.items() if not key.startswith("ref_")}
        self.assert_refused(lambda: sb.backward(model, given, "dpo"), "'default' changes the model", 'reference="base"', "frozen copy")
        self.assert_refused(lambda: sb.backward(model, given, "dpo", reference="other"), "'other'", '"base"')
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.zero_()
        sb.backward(model, given, "dpo")  # fresh: it is the base

    def test_a_count_of_other_tokens_is_asked_about(self):
        model = tiny(dtype=torch.float64)
        batch = {"input_ids": torch.arange(3, 23).view(2, 10), "attention_mask": torch.ones(2, 10, dtype=torch.long),
                 "advantages": torch.tensor([1.0, -0.5]), "completion_mask": (torch.arange(10) > 4).long().repeat(2, 1), "num_items_in_batch": torch.tensor(40)}
        words = {"gradient_accumulation_steps": 1, "steps_per_generation": 4}
        for loss_type in ("dapo", "cispo", "vespo"):
            self.assert_refused(lambda kind=loss_type: sb.backward(model, batch, "grpo", loss_type=kind), "is 40", "10 completion tokens",
                                "steps_per_generation")
            given = sb.backward(model, batch, "grpo", loss_type=loss_type, **words)
            own = sb.backward(model, batch | {"num_items_in_batch": torch.tensor(10)}, "grpo", loss_type=loss_type)
            self.assert_loss(given, own, loss_type)
        self.assert_refused(lambda: sb.backward(model, batch, "grpo", **words), "steps_per_generation", "leave them out")


if __name__ == "__main__":
    unittest.main()
