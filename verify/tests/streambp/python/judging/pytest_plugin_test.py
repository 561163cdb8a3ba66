#!/usr/bin/env python3
"""The pytest plugin: right gradients pass, wrong ones fail with the mistake's name, and the file has a line for each."""

import contextlib
import json
import tempfile
import unittest
from pathlib import Path

import pytest
from imports import run_forked
from python_case import Case

TESTS = '''
import pytest, torch
from patching import batch_of, tiny

@pytest.fixture(scope="module")
def model():
    return tiny()

@pytest.fixture
def batch():
    return batch_of(61, (19, 12))

def own(model, batch):
    return model(**batch, use_cache=False).loss

def mean_of_rows(model, batch):
    rows = [{name: each[i:i + 1] for name, each in batch.items()} for i in range(2)]
    return sum(model(**row, use_cache=False).loss for row in rows) / 2

def test_own(assert_exact_gradients, model, batch):
    model.lm_head.weight.grad = kept = torch.ones_like(model.lm_head.weight)
    assert assert_exact_gradients(model, batch, loss=own).exact
    assert model.lm_head.weight.grad is kept and bool((kept == 1).all())
    model.lm_head.weight.grad = None

def test_given(assert_exact_gradients, model, batch):
    own(model, batch).backward()
    assert_exact_gradients(model, batch, "sft", gradients="grad")

def test_mean_of_rows(assert_exact_gradients, model, batch):
    assert_exact_gradients(model, batch, loss=mean_of_rows)

def test_nothing(assert_exact_gradients, model, batch):
    assert_exact_gradients(model, batch, loss=lambda model, batch: 0 * own(model, batch))
'''


class Plugin(Case):
    def test_all(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "test_gradients.py").write_text(TESTS)
            with contextlib.chdir(folder):
                code, output, errors = run_forked(Path(pytest.__file__).with_name("__main__.py"), "-q", "-p", "streambp_bench.pytest_plugin", "-p", "no:cacheprovider",
                                                  "--streambp-report", "report.jsonl", "test_gradients.py")
            self.assertEqual(code, 1, output + errors)
            lines = [json.loads(line) for line in (Path(folder) / "report.jsonl").read_text().splitlines()]
        self.assertIn("2 failed, 2 passed", output)
        self.assertEqual([line["verdict"] for line in lines], ["exact", "exact", "wrong"], output)
        self.assertIn("diagnosis: ", output)
        self.assertIn("which shows nothing", output)
        self.assertEqual(lines[2]["diagnosis"]["finding"], "explained", lines[2]["diagnosis"])


if __name__ == "__main__":
    unittest.main()
