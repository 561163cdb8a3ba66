"""Two steps of a trainer, with the gradients that it has before each optimizer step: its own, a patched one's, and sb.backward's."""

import contextlib
import tempfile
from unittest import mock

import streambp_bench as sb
import torch
import transformers
from goldens.passes import InFloat64
from streambp_bench._trainers import objective_of
from streambp_bench._verify import gradients_apart
from transformers.integrations import moe
from trl.kernels.chunked_logprob import ChunkedLogProbFunction

from live.recipes import make_trainer


class Steps(transformers.TrainerCallback):
    """What a trainer has done: gradients before clipping, and what backward has given for the same batches and weights.

    The trainer's compute_loss and training_step are wrapped: a step's micro-batches are kept as they come, its gradients after the last.
    """

    def __init__(self, trainer, with_backward=False):
        self.trainer, self.with_backward, self.batches, self.own, self.ours, self.refusal = trainer, with_backward, [], [], [], None
        self.latest = None
        compute_loss, training_step = trainer.compute_loss, trainer.training_step

        def computing(model, inputs, *args, **kwargs):
            if model.training:
                self.batches.append(({name: value.clone() if torch.is_tensor(value) else value for name, value in inputs.items()},
                                     kwargs.get("num_items_in_batch"), trainer.current_gradient_accumulation_steps))
            return compute_loss(model, inputs, *args, **kwargs)

        def stepping(*args, **kwargs):
            loss = training_step(*args, **kwargs)
            self.latest = gradients_of(trainer.model)
            return loss

        trainer.compute_loss, trainer.training_step = computing, stepping
        trainer.add_callback(self)

    def on_pre_optimizer_step(self, *_, **__):
        self.own.append(self.latest)
        if self.with_backward and self.refusal is None:
            self.ours.append(self.backward())
        self.batches.clear()

    def backward(self):
        """The gradients of sb.backward for the step's batches; those that the trainer has are put back."""
        model = self.trainer.model
        try:
            with gradients_apart(model.parameters()):
                for given in self.batches:
                    batch, options, divisor = objective_of(self.trainer, *given)
                    if divisor != 1:
                        raise NotImplementedError("a share of a micro-batch's gradients")
                    sb.backward(model, batch, chunk=8, **options)
                return gradients_of(model)
        except sb.InputError as error:
            self.refusal = str(error)
            return None


def gradients_of(model):
    return {name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
            for name, parameter in model.named_parameters() if parameter.requires_grad}


def lifted_backward(ctx, *gradients, own=ChunkedLogProbFunction.backward):
    """TRL's own backward of its head, in which torch has no mode of the forward pass on any more."""
    with InFloat64():
        return own(ctx, *gradients)


@contextlib.contextmanager
def computing_in(dtype):
    """Hugging Face's and TRL's code in `dtype`; in float64 their casts to float32 are lifted, and experts multiplied one by one:
    torch's grouped products are float32 at most."""
    if dtype != "float64":
        yield
        return
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with InFloat64(), mock.patch.object(moe, "_can_use_grouped_mm", lambda *_: False), \
                mock.patch.object(ChunkedLogProbFunction, "backward", staticmethod(lifted_backward)):
            yield
    finally:
        torch.set_default_dtype(default)


def train(recipe, model, adapter, door):
    """Steps of a trainer: of itself ("plain"), with backward next to it, or patched."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(recipe, model, adapter, folder)
        if door == "patch":
            sb.patch(trainer, chunk=8)
        steps = Steps(trainer, with_backward=door == "backward")
        torch.manual_seed(9)
        trainer.train()
        return steps


def worst(ours, theirs):
    """(error, parameter): the largest difference over all steps, relative to the largest entry of a parameter's gradient."""
    found = (0.0, "")
    for our_step, their_step in zip(ours, theirs, strict=True):
        if our_step.keys() != their_step.keys():
            return float("inf"), next(iter(our_step.keys() ^ their_step.keys()))
        for name, gradient in their_step.items():
            scale = gradient.abs().max().item()
            error = (our_step[name] - gradient).abs().max().item() / (scale or 1.0)
            if not error <= found[0]:
                found = (error, name)
    return found


def rows_of(recipe, model, adapter, dtype, limit):
    """A record for each door."""
    with computing_in(dtype):
        plain = train(recipe, model, adapter, "backward")
        for door in ("backward", "patch"):
            record = {"recipe": recipe, "model": model, "adapter": adapter, "dtype": dtype, "door": door, "limit": limit, "error": None,
                      "parameter": None, "refusal": plain.refusal if door == "backward" else None}
            ours = plain.ours
            if door == "patch":
                try:
                    ours = train(recipe, model, adapter, "patch").own
                except sb.InputError as error:
                    record["refusal"] = str(error)
            if record["refusal"] is None:
                record["error"], record["parameter"] = worst(ours, plain.own)
            record["verdict"] = "refused" if record["refusal"] else "exact" if record["error"] <= limit else "WRONG"
            yield record
