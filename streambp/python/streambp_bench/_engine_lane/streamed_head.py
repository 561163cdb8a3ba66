"""Final norm, LM head and what is asked of their logits as nodes of torch's autograd: a loss, or log-probabilities.

The loss's node computes its gradients in the forward pass, with the logits at hand, and scales them in the backward pass: nothing is
computed twice. Log-probabilities are computed again in the backward pass, when the gradient of each is known; so is a loss in float16.
"""

import math

import torch

from .._library import InputError, checked, once
from .._once import once_differentiable
from .._live_model.decoder import last_norm
from .._module_lane.row_cache import wide
from .stream import IGNORED
from .streamed_layers import check_dtypes, outside_autocast, zeros_where

# Dtypes of so small a range that a loss is scaled for gradients to be in it. They are made in the backward pass, of the scaled loss.
SCALED = {torch.float16}

NO_BALANCE = {"router_aux_loss_coef": "0"}  # of a mixture's routers: transformers' own function adds it to what layers give


def head_slots(state, stream):
    """The Slots of the final norm and the head. Raises InputError for a model without an LM head."""
    if not isinstance(getattr(state.base, "lm_head", None), torch.nn.Module):
        raise InputError(f"{type(state.base).__name__} has no LM head")
    return stream.configuration.head


def inside_head(state, hidden, function):
    """function(hidden), called inside the calls of the final norm and of the head, whose parameters FSDP2 gathers for these."""
    return last_norm(state.backbone)(hidden, inside=lambda normed: state.base.lm_head(normed, inside=function))


def streamed_loss(state, stream, hidden, labels, num_items_in_batch):
    """The mean cross-entropy of `labels` [B, T] (-100: not scored; column t is scored on t + 1), or its sum / num_items_in_batch.

    hidden: packed [N, D], before the final norm. Returns a scalar of dtype wide(). Raises InputError for labels that pack() refuses.
    """
    if hidden.dtype in SCALED:
        rows = streamed_log_probabilities(state, stream, hidden, labels, 1.0)
        items = (labels[:, 1:] != IGNORED).sum() if num_items_in_batch is None else torch.as_tensor(num_items_in_batch, device=rows.device)
        return -rows.sum() / items
    slots = head_slots(state, stream)
    batch = {name: tensor for name, tensor in zip(("input_ids", "attention_mask", "position_ids"), stream.inputs) if tensor is not None}
    batch["labels"] = labels
    if num_items_in_batch is not None:
        items = torch.as_tensor(num_items_in_batch).detach()
        batch["num_items_in_batch"] = items.to("cpu", torch.float64).reshape(1)
    wants = torch.is_grad_enabled()
    return inside_head(state, hidden, lambda inner: StreamedLoss.apply(stream, slots, batch, state.head_chunk, wants, inner,
                                                                               *slots.tensors()))


class StreamedLoss(torch.autograd.Function):
    """hidden [N, D] -> loss; `parameters` are those of `slots`, in its order."""

    @staticmethod
    def forward(ctx, stream, slots, batch, head_chunk, wants_gradients, hidden, *parameters):
        check_dtypes(slots, hidden, parameters)
        first = 6  # of the parameters, among the arguments
        needed = [wants_gradients and need for need in ctx.needs_input_grad[first:]]
        gradients = zeros_where(needed, parameters)
        goes_back = wants_gradients and any(ctx.needs_input_grad)
        engine, packed = stream.on(hidden)
        with outside_autocast(hidden):
            loss, of_hidden = checked(engine.head_loss, packed, hidden.contiguous(), batch, "sft", NO_BALANCE, slots.views_of(parameters),
                                      slots.views_of(gradients), head_chunk, goes_back)
        if loss == 0 and "num_items_in_batch" not in batch and not bool((batch["labels"][:, 1:] != IGNORED).any()):
            loss = math.nan  # the mean of no token, as torch has it; its gradients are zero
        ctx.gradients = [of_hidden, *gradients]
        return torch.tensor(loss, dtype=wide(hidden.dtype), device=hidden.device)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        gradients, ctx.gradients = once(ctx.gradients), None
        # Asking a GPU for the number would wait for it; there the product is cheap.
        is_one = gradient.device.type == "cpu" and gradient.item() == 1.0
        for tensor in gradients:
            if tensor is not None and not is_one:
                tensor.mul_(gradient.to(tensor.dtype))
        if not ctx.needs_input_grad[5]:
            gradients[0] = None
        return None, None, None, None, None, *gradients


def streamed_log_probabilities(state, stream, hidden, targets, temperature):
    """Log-probabilities [B, T] of targets [B, T], as StreamedLogProbabilities has them, of hidden: packed [N, D], before the final norm."""
    slots = head_slots(state, stream)
    return inside_head(state, hidden, lambda inner: StreamedLogProbabilities.apply(
        stream, slots, targets, temperature, state.head_chunk, inner, *slots.tensors()))


class StreamedLogProbabilities(torch.autograd.Function):
    """hidden [N, D] -> log-probabilities [B, T] of targets [B, T]: at column t that of targets[t + 1], 0 where that is -100."""

    @staticmethod
    def forward(ctx, stream, slots, targets, temperature, head_chunk, hidden, *parameters):
        hidden = hidden.contiguous()
        check_dtypes(slots, hidden, parameters)
        ctx.stream, ctx.slots, ctx.targets, ctx.temperature, ctx.head_chunk = stream, slots, targets, temperature, head_chunk
        ctx.save_for_backward(hidden, *parameters)
        engine, packed = stream.on(hidden)
        with outside_autocast(hidden):
            result = checked(engine.head_log_probabilities, packed, hidden.detach(), targets, temperature, slots.views_of(parameters),
                             head_chunk)
        return result.to(hidden.device, wide(hidden.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        hidden, *parameters = ctx.saved_tensors
        of_hidden, gradients = log_probability_gradients(ctx, hidden, parameters, gradient, ctx.needs_input_grad[6:])
        return None, None, None, None, None, of_hidden if ctx.needs_input_grad[5] else None, *gradients


def log_probability_gradients(ctx, hidden, parameters, gradient, needed):
    """(gradient of hidden [N, D], those of the parameters that need one) for the gradient [B, T] of log-probabilities."""
    gradients = zeros_where(needed, parameters)
    slots = ctx.slots
    engine, packed = ctx.stream.on(hidden)
    with outside_autocast(hidden):
        of_hidden = checked(engine.head_log_probabilities_backward, packed, hidden.detach(), ctx.targets, ctx.temperature,
                            gradient.contiguous(), slots.views_of(parameters), slots.views_of(gradients), ctx.head_chunk)
    return of_hidden, gradients
