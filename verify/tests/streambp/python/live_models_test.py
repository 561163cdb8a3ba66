#!/usr/bin/env python3
"""Some recipes of scripts/live_models.py: trainers of TRL in float64, and what backward() asks to be given of them."""

import unittest

import datasets
import streambp
import torch
from adapters_test import adapted, read_case
from live.drive import rows_of
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

    def test_the_divisor_is_one_optimizer_steps(self):
        self.check("GRPO, steps_per_generation 4", "qwen3", "none")

    def test_sft_trainer_adds_the_routers_loss(self):
        for model in ("qwen3-moe", "gpt-oss"):
            self.check("SFT", model, "none")
        self.check("Trainer, accumulation 2", "mixtral", "none")

    def test_a_whole_model_on_text(self):
        for recipe in ("SFT", "Trainer"):
            self.check(recipe, "gemma3-whole", "fresh")

    def test_the_routers_loss_alone_is_refused(self):
        model = make_model("qwen3-moe")
        batch = {"input_ids": torch.arange(3, 13)[None], "labels": torch.full((1, 10), -100)}
        self.assert_refused(lambda: streambp.backward(model, batch, router_aux_loss_coef=0.01), "nothing in it is scored", "router_aux_loss_coef=0")
        self.assertEqual(float(streambp.backward(model, batch)), 0.0)  # the config has the routers' loss off
        self.check("GRPO, truncated left out", "qwen3-moe", "none", backward="nothing in it is scored")

    def test_the_reference_of_a_trained_adapter_has_to_be_said(self):
        model = adapted("llama", target_modules="all-linear")
        _, inputs, _ = read_case("llama-dpo-sigmoid")
        given = {key: tensor for key, tensor in inputs.items() if not key.startswith("ref_")}
        self.assert_refused(lambda: streambp.backward(model, given, "dpo"), "'default' changes the model", 'reference="base"', "frozen copy")
        self.assert_refused(lambda: streambp.backward(model, given, "dpo", reference="other"), "'other'", '"base"')
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.zero_()
        streambp.backward(model, given, "dpo")  # fresh: it is the base

    def test_a_count_of_other_tokens_is_asked_about(self):
        model = tiny(dtype=torch.float64)
        batch = {"input_ids": torch.arange(3, 23).view(2, 10), "attention_mask": torch.ones(2, 10, dtype=torch.long),
                 "advantages": torch.tensor([1.0, -0.5]), "completion_mask": (torch.arange(10) > 4).long().repeat(2, 1), "num_items_in_batch": torch.tensor(40)}
        words = {"gradient_accumulation_steps": 1, "steps_per_generation": 4}
        for loss_type in ("dapo", "cispo", "vespo"):
            self.assert_refused(lambda kind=loss_type: streambp.backward(model, batch, "grpo", loss_type=kind), "is 40", "10 completion tokens",
                                "steps_per_generation")
            given = streambp.backward(model, batch, "grpo", loss_type=loss_type, **words)
            own = streambp.backward(model, batch | {"num_items_in_batch": torch.tensor(10)}, "grpo", loss_type=loss_type)
            self.assert_loss(given, own, loss_type)
        self.assert_refused(lambda: streambp.backward(model, batch, "grpo", **words), "steps_per_generation", "leave them out")


if __name__ == "__main__":
    unittest.main()
