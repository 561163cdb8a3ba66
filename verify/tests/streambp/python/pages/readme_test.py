"""The Python blocks of the pages do what they say, as they stand, on a tiny model."""

import re
import unittest

import torch
from python_case import ROOT, model_in_float64


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


class Pages(unittest.TestCase):
    def run_page(self, page):
        found = blocks(page)
        self.assertTrue(found, f"{page}: no Python block")
        for block in found:
            model = model_in_float64("qwen3")
            ids = torch.randint(0, model.config.vocab_size, (2, 9))
            names = {"model": model, "batch": {"input_ids": ids, "labels": ids}}
            exec(compile(block, page, "exec"), names)  # noqa: S102
            self.assertTrue(torch.isfinite(names["loss"]), f"{page}: the loss is {names['loss']}")
            missing = [name for name, parameter in model.named_parameters() if parameter.grad is None]
            self.assertEqual(missing, [], f"{page}: parameters without a gradient")
            self.assertTrue(names["model"] is model)

    def test_readme(self):
        self.run_page("README.md")

    def test_page_of_the_package(self):
        self.run_page("streambp/python/README.md")


if __name__ == "__main__":
    unittest.main()
