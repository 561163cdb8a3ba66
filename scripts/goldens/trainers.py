"""TRL's trainers as goldens call them: with what a loss reads and nothing else, and their fused LM head in float64."""

from collections import defaultdict
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import torch
from trl.kernels.chunked_logprob import ChunkedLogProbFunction

from goldens.passes import InFloat64


def light_trainer(cls, model, **attributes):
    """A trainer of one process, where what is gathered is what there is, that has nothing but what its loss reads."""
    trainer = object.__new__(cls)
    accelerator = SimpleNamespace(
        device=torch.device("cpu"),
        num_processes=1,
        is_main_process=True,
        sync_gradients=True,
        parallelism_config=None,
        autocast=nullcontext,
        gather=lambda x: x,
        gather_for_metrics=lambda x: x,
        pad_across_processes=lambda x, **_: x,
        reduce=lambda x, **_: x,
        unwrap_model=lambda x: x,
    )
    metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
    trainer.__dict__ |= {"model": model, "accelerator": accelerator, "_metrics": metrics, **attributes}
    return trainer


@contextmanager
def wide_backward():
    """The fused head's backward pass in float64: autograd calls it where modes are not active by themselves."""
    narrow = ChunkedLogProbFunction.backward

    def backward(*arguments):
        with InFloat64():
            return narrow(*arguments)

    ChunkedLogProbFunction.backward = staticmethod(backward)
    try:
        yield
    finally:
        ChunkedLogProbFunction.backward = staticmethod(narrow)
