#!/usr/bin/env python3
"""sb.Referee: a trainer's gradients are judged under its own objective, mistakes in it are named, and training stays what it is."""

import json
import os
import tempfile
import unittest
from pathlib import Path

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import streambp_bench as sb
import torch
import trl
from live import recipes
from live.recipes import make_trainer
from python_case import Case

# (recipe, adapter): every objective, accumulation by items and by shares.
RECIPES = [("SFT", "none"), ("SFT, accumulation 2", "none"), ("SFT, packed", "fresh"), ("DPO", "none"), ("DPO", "trained"), ("KTO", "fresh"),
           ("GRPO", "none"), ("GRPO, accumulation 2 of 4", "none"), ("RLOO", "none"), ("reward", "none"), ("ORPO", "none"), ("CPO", "none"), ("Trainer", "none")]


class WithSettings(Case):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def trainer(self, recipe, adapter="none", model="qwen3", derived=None, **settings):
        kinds, rows, own, adapters = recipes.RECIPES[recipe]
        if derived is not None:
            kinds = (derived, kinds[1])
        recipes.RECIPES["of this test"] = (kinds, rows, {**own, **settings}, adapters)
        return make_trainer("of this test", model, adapter, self.folder.name)


class Right(WithSettings):
    def test_every_objective(self):
        for recipe, adapter in self.turns(RECIPES, 7):
            with self.subTest(recipe=recipe, adapter=adapter):
                trainer = self.trainer(recipe, adapter)
                referee = sb.Referee(trainer, every=1, diagnose=False)
                trainer.train()
                steps = trainer.args.gradient_accumulation_steps
                self.assertEqual([each[:2] for each in referee.reports], [(step, i) for step in range(2) for i in range(steps)])
                for _, _, report in referee.reports:
                    self.assertIn(report.verdict, ("exact", "undecided"), str(report))

    def test_shares_of_micro_batches(self):
        for recipe, settings in (("DPO", {}), ("GRPO", {"loss_type": "grpo", "steps_per_generation": 2, "beta": 0.1})):
            trainer = self.trainer(recipe, gradient_accumulation_steps=2, max_steps=1, **settings)
            referee = sb.Referee(trainer, diagnose=False)
            trainer.train()
            self.assertEqual([each[1] for each in referee.reports], [0, 1])

    def test_training_stays_what_it_is(self):
        found = []
        for judged in (False, True):
            trainer = self.trainer("SFT, accumulation 2")
            if judged:
                sb.Referee(trainer, every=1, diagnose=False)
            trainer.train()
            found.append({name: each.detach().clone() for name, each in trainer.model.named_parameters()})
        self.assertTrue(all(torch.equal(found[0][name], found[1][name]) for name in found[0]))

    def test_as_a_callback(self):
        referee = sb.Referee(every=1, diagnose=False)
        trainer = self.trainer("SFT")
        trainer.add_callback(referee)
        trainer.train()
        self.assertEqual([(step, report.verdict) for step, _, report in referee.reports], [(0, "exact"), (1, "exact")])

    def test_steps_and_the_file(self):
        trainer, out = self.trainer("Trainer", max_steps=3), Path(self.folder.name) / "referee.jsonl"
        referee = sb.Referee(trainer, every=2, out=out)
        trainer.train()
        self.assertEqual([each[0] for each in referee.reports], [0, 2])
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        self.assertEqual([(line["step"], line["trainer"], line["verdict"]) for line in lines], [(0, "Trainer", "exact"), (2, "Trainer", "exact")])


class MeansOfMeans(trl.SFTTrainer):
    """Each micro-batch's mean, whatever the others count."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        own = (inputs["labels"][:, 1:] != -100).sum()
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch=own * self.current_gradient_accumulation_steps)


class Halved(trl.DPOTrainer):
    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs) / 2


class Zero(trl.SFTTrainer):
    """No gradient at the first step."""

    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs) * float(self.state.global_step > 0)


class Wrong(WithSettings):
    def test_means_of_means(self):
        trainer = self.trainer("SFT, accumulation 2", derived=MeansOfMeans)
        sb.Referee(trainer)
        with self.assertRaises(sb.WrongGradients) as caught:
            trainer.train()
        self.assertEqual(caught.exception.report.verdict, "scaled")
        self.assertIn("step 0, micro-batch 0", str(caught.exception))

    def test_a_factor(self):
        trainer = self.trainer("DPO", derived=Halved)
        referee = sb.Referee(trainer, stop=False, diagnose=False)
        trainer.train()
        self.assertEqual(trainer.state.global_step, 2)
        (_, _, report), = referee.reports
        self.assertEqual(report.verdict, "scaled")
        self.assertTrue(abs(report.factor - 0.5) < 1e-4, report.factor)

    def test_nothing_is_no_evidence(self):
        trainer = self.trainer("GRPO")
        generate = trainer._generate_and_score_completions

        def equal_at_first(inputs):
            outputs = generate(inputs)
            return {**outputs, "advantages": outputs["advantages"] * float(trainer.state.global_step > 0)}

        trainer._generate_and_score_completions = equal_at_first
        referee = sb.Referee(trainer)
        trainer.train()
        self.assertEqual([(step, report.verdict) for step, _, report in referee.reports], [(1, "exact")])

    def test_nothing_where_there_should_be_something(self):
        trainer = self.trainer("SFT", derived=Zero)
        sb.Referee(trainer, diagnose=False)
        with self.assertRaises(sb.WrongGradients) as caught:
            trainer.train()
        self.assertEqual(caught.exception.report.verdict, "wrong")

    def test_refusals(self):
        trainer = self.trainer("SFT")
        self.assert_refused(lambda: sb.Referee(trainer, every=-1), "every")
        trainer = self.trainer("Trainer", label_smoothing_factor=0.1)
        sb.Referee(trainer)
        self.assert_refused(trainer.train, "label_smoothing_factor")
        trainer = self.trainer("SFT")
        trainer.model.config.attention_dropout = 0.1
        for layer in trainer.model.model.layers:
            layer.self_attn.attention_dropout = 0.1
        sb.Referee(trainer)
        self.assert_refused(trainer.train, "dropout")

    def test_leave(self):
        trainer = self.trainer("SFT")
        referee = sb.Referee(trainer)
        referee.leave()
        trainer.train()
        self.assertEqual(referee.reports, [])


if __name__ == "__main__":
    unittest.main()
