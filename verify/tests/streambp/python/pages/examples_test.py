#!/usr/bin/env python3
"""Every script of streambp/python/examples runs on a CPU, explains itself, and its loss falls."""

import re
import unittest

from imports import ROOT, run_forked

EXAMPLES = ROOT / "streambp/python/examples"
LIBRARIES = ("tiny_model.py", "ranks.py")


def run(name, *arguments):
    """What the example has printed. Raises AssertionError with it where it fails."""
    code, output, errors = run_forked(EXAMPLES / name, *arguments)
    assert code == 0, f"{name}: exit {code}\n{output}\n{errors[-3000:]}"
    return output


def losses(text):
    return [float(number) for number in re.findall(r"loss'?:? '?(-?[0-9.]+(?:e-?[0-9]+)?)", text)]


class Examples(unittest.TestCase):
    def check_falls(self, name, steps, *arguments):
        found = losses(run(name, "--steps", str(steps), *arguments))
        self.assertGreaterEqual(len(found), steps)
        self.assertLess(found[-1], found[0], name)
        print(f"{name}: {found[0]:.3f} to {found[-1]:.3f}", flush=True)

    def test_every_script_has_a_test(self):
        names = {path.name for path in EXAMPLES.glob("*.py")} - set(LIBRARIES)
        self.assertEqual(names, {"sft_text_file.py", "sft_trl.py", "dpo_lora.py", "images.py", "qlora_sft.py", "grpo_trl.py", "ddp.py", "fsdp2.py", "diffusion_reward.py"})

    def test_text_file(self):
        self.check_falls("sft_text_file.py", 6, "--tokens", "300")

    def test_sft(self):
        self.check_falls("sft_trl.py", 5)

    def test_dpo_with_an_adapter(self):
        self.check_falls("dpo_lora.py", 5)

    def test_qlora(self):
        try:
            import bitsandbytes  # noqa: F401
        except ImportError:
            self.skipTest("no bitsandbytes")
        self.check_falls("qlora_sft.py", 8)

    def test_images(self):
        self.check_falls("images.py", 4, "--tokens", "90")

    def test_grpo(self):
        text = run("grpo_trl.py", "--steps", "2")
        self.assertEqual(len(re.findall(r"'reward'", text)), 2, text)

    def test_ranks(self):
        for name in ("ddp.py", "fsdp2.py"):
            self.check_falls(name, 4)

    def test_diffusion(self):
        self.check_falls("diffusion_reward.py", 4, "--denoising", "6")

    def test_help(self):
        self.assertIn("--steps", run("sft_text_file.py", "--help"))


if __name__ == "__main__":
    unittest.main()
