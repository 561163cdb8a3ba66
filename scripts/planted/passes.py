"""Passes of transformers' models in which something is done otherwise, and the table of what is."""

import contextlib
import json
from collections import namedtuple
from pathlib import Path

import torch
import torch.nn.functional as F
from goldens.passes import InFloat64, load_model
from peft import PeftModel
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file

GOLDENS = Path(__file__).resolve().parents[2] / "verify/goldens"

#: A mistake: what it does, the golden case that shows it, words of which one has to be said, its function of a Pass.
Mistake = namedtuple("Mistake", "name what case words gradients")
MISTAKES = []


def mistake(case, *words):
    """Adds a function of a Pass, which returns gradients by name, under its own name; its docstring says what it does."""

    def add(function):
        MISTAKES.append(Mistake(function.__name__, function.__doc__, case, words, function))
        return function

    return add


class Pass:
    """The model, batch and hyperparameters of a golden case, in `dtype`: float64 throughout, or as transformers computes in another."""

    def __init__(self, case, dtype):
        about = json.loads((GOLDENS / "cases" / case / "case.json").read_text())
        self.folder, self.settings, self.objective = GOLDENS / about["model"], about["hyperparameters"], about["objective"]
        self.dtype = dtype
        self.adapter = GOLDENS / "cases" / case / about["adapter"] if "adapter" in about else None
        with self.precision():
            self.model = load_model(self.folder).to(dtype)
            if self.adapter:
                self.model = PeftModel.from_pretrained(self.model, self.adapter, is_trainable=True, autocast_adapter_dtype=False).to(dtype).eval()
        tensors = load_file(GOLDENS / "cases" / case / "tensors.safetensors")
        self.inputs = {name.removeprefix("in."): tensor.to(dtype) if tensor.is_floating_point() else tensor
                       for name, tensor in tensors.items() if name.startswith("in.")}
        self.ids, self.mask, self.labels = (self.inputs.get(name) for name in ("input_ids", "attention_mask", "labels"))

    def precision(self):
        return InFloat64() if self.dtype is torch.float64 else contextlib.nullcontext()

    def logits(self, ids=None, mask=None, positions=None):
        """Rows without a mask are packed, and their documents told apart by their positions."""
        if positions is None and self.mask is None:
            positions = self.inputs["position_ids"]
        with self.precision():
            return self.model(input_ids=self.ids if ids is None else ids, attention_mask=self.mask if mask is None else mask,
                              position_ids=positions, use_cache=False).logits

    def losses(self, logits=None, labels=None):
        """Cross entropies [B, T - 1] of the next tokens, 0 where there is no label, and where there is one."""
        logits = self.logits() if logits is None else logits
        labels = (self.labels if labels is None else labels)[:, 1:]
        each = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="none")
        return each.view(labels.shape), labels != -100

    def loss(self, logits=None, labels=None):
        each, scored = self.losses(logits, labels)
        return each.sum() / scored.sum()

    def log_probabilities(self, temperature=1.0):
        """Of the tokens of each row but the first, [B, T - 1]."""
        return torch.log_softmax(self.logits()[:, :-1] / temperature, -1).gather(-1, self.ids[:, 1:, None]).squeeze(-1)

    def gradients(self, loss=None):
        """By name; zeros where nothing reaches a parameter."""
        loss = self.loss() if loss is None else loss
        self.model.zero_grad()
        with self.precision():
            loss.backward()
        found = {name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach().clone()
                 for name, parameter in self.model.named_parameters() if parameter.requires_grad}
        return get_peft_model_state_dict(self.model, state_dict=found, save_embedding_layers=False) if self.adapter else found

    def modules(self, ending):
        """The modules whose class's name ends so."""
        return [module for module in self.model.modules() if type(module).__name__.endswith(ending)]


def added(one, other):
    return {name: gradient + other[name] for name, gradient in one.items()}


def rounded(x):
    """x in bfloat16, with the gradient of x."""
    return x + (x.to(torch.bfloat16).to(x.dtype) - x).detach()


@contextlib.contextmanager
def replaced(holder, name, value):
    """holder.name is `value` within."""
    own = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield own
    finally:
        setattr(holder, name, own)
