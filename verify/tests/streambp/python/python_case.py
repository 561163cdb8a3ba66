"""What the tests of the Python package share: tiny models, Hugging Face's own gradients in float64, comparisons."""

import contextlib
import os
import unittest
from pathlib import Path

import torch
import transformers
from goldens.models import BATCHES
from goldens.passes import InFloat64, as_in_file, load_model, read_tensors, relative_difference
from goldens.writing import make_inputs
from streambp_bench import InputError

ROOT = Path(__file__).resolve().parents[4]
GOLDENS = ROOT / "verify/goldens"
LIMIT = 1e-10  # of a gradient's largest entry
transformers.logging.disable_progress_bar()


@contextlib.contextmanager
def in_float64():
    """Hugging Face's code in float64 throughout, as make_goldens.py runs it."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with InFloat64():
            yield
    finally:
        torch.set_default_dtype(default)


def model_in_float64(name):
    """A model of verify/goldens/models, tables of its rotary embedding included."""
    with in_float64():
        if not name.endswith("-score"):
            model = load_model(GOLDENS / "models" / name)
            model.model._forward_pre_hooks.clear()  # by which goldens keep apart what GPT-OSS's own masks do not
            return model
        options = {"dtype": torch.float64, "attn_implementation": "eager"}
        return transformers.AutoModelForSequenceClassification.from_pretrained(GOLDENS / "models" / name, **options).eval()


def of_transformers(model):
    """Whether the class is one of transformers' own: Step 3.7's text model alone is put together by the goldens, and whole_models_test has the whole."""
    return type(model).__module__.startswith("transformers.")


def inputs_of(model, batch="b3_left", seed=1):
    """A batch of goldens/models.py: uneven rows, padded on one side, with positions that count columns."""
    return make_inputs(BATCHES[batch], model.config.vocab_size, torch.Generator().manual_seed(seed))


def packed_inputs(model, lengths, seed=1):
    """One row of several documents, which only position_ids tell apart."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, model.config.vocab_size, (1, sum(lengths)), generator=generator)
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    return {"input_ids": tokens, "position_ids": positions, "labels": torch.where(positions == 0, -100, tokens)}


def take_gradients(model):
    """{name: .grad, zeros where there is none} of the trainable parameters; leaves them at None."""
    gradients = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            gradients[name] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parameter.grad = None
    return gradients


def autograd(model, inputs, wide=True):
    """(loss, gradients) of Hugging Face's own forward and backward pass, in float64 throughout or in the model's dtype."""
    model.zero_grad(set_to_none=True)
    with in_float64() if wide else contextlib.nullcontext():
        loss = model(**inputs, use_cache=False).loss
        loss.backward()
    return loss.item(), take_gradients(model)


class Case(unittest.TestCase):
    """Comparisons that print what they reach."""

    reached = 0.0
    taken = 0

    def turns(self, items, count):
        """`count` of `items`, at the next call the next ones, so that a long list of subjects meets all of them; each of them in a nightly run."""
        if os.environ.get("STREAMBP_THOROUGH"):
            return tuple(items)
        first, type(self).taken = self.taken, self.taken + count
        return tuple(items[(first + i) % len(items)] for i in range(count))

    def assert_gradients(self, ours, theirs, what, limit=LIMIT):
        """Each within `limit` of the largest entry of its counterpart; the worst is printed at the end."""
        self.assertEqual(sorted(ours), sorted(theirs), what)
        self.assertTrue(theirs)
        for name in theirs:
            error = relative_difference(ours[name], theirs[name])
            self.assertTrue(error <= limit, f"{what}: {name} is off by {error:.2e} of its largest entry, limit {limit:.0e}")
            type(self).reached = max(self.reached, error)

    def assert_loss(self, ours, theirs, what, limit=LIMIT):
        error = abs(float(ours) - float(theirs)) / max(abs(float(theirs)), 1e-30)
        self.assertTrue(error <= limit, f"{what}: loss {float(ours)!r}, expected {float(theirs)!r}")

    def assert_refused(self, call, *words):
        """InputError of one line that has each of `words`."""
        with self.assertRaises(InputError) as caught:
            call()
        message = str(caught.exception)
        self.assertNotIn("\n", message)
        self.assertLessEqual(len(message), 600, message)
        for word in words:
            self.assertIn(word, message)
        return message

    @classmethod
    def tearDownClass(cls):
        if cls.reached:
            print(f"{cls.__name__}: worst error {cls.reached:.1e}")


__all__ = ["Case", "GOLDENS", "LIMIT", "ROOT", "as_in_file", "autograd", "in_float64", "inputs_of", "model_in_float64", "of_transformers", "packed_inputs",
           "read_tensors", "relative_difference", "take_gradients"]
