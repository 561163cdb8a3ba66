"""Mistakes made in transformers' own code (scripts/planted) are named by the diagnosis: some of each kind; all of them by
scripts/pages/planted_mistakes.py."""

import sys
import tempfile
import unittest
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[5]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts/pages")]

import planted_mistakes
from planted import losses, model
from planted.passes import MISTAKES
from safetensors.torch import save_file

SOME = (losses.reference_exchanged, losses.ends_not_scored, losses.z_loss_added, model.a_layer_of_one_rank, model.a_head_without_gradient,
        model.frequencies_in_bfloat16)


class PlantedMistakes(unittest.TestCase):
    def judged(self, mistake, case, dtype):
        one, gradients = planted_mistakes.gradients_of(mistake, case, dtype)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "gradients.safetensors"
            save_file({name: gradient.contiguous() for name, gradient in gradients.items()}, file)
            return planted_mistakes.judged(one, case, file)

    def test_mistakes_are_named(self):
        of = {mistake.gradients: mistake for mistake in MISTAKES}
        for number, function in enumerate(SOME):
            mistake = of[function]
            with self.subTest(mistake.name):
                found = self.judged(mistake, mistake.case, (torch.float64, torch.float32)[number % 2])
                self.assertTrue(any(words in sentence for words in mistake.words for sentence in found["sentences"]), found["sentences"])
                self.assertNotEqual(found["verdict"], "exact")

    def test_nothing_is_said_of_what_is_right(self):
        for case in planted_mistakes.RIGHT:
            with self.subTest(case):
                found = self.judged(None, case, torch.float32)
                self.assertEqual((found["finding"], found["verdict"]), ("right", "exact"))


if __name__ == "__main__":
    unittest.main()
