"""A decoder layer as one node of torch's autograd: what it keeps is its input, the parameters, which live anyway, and what idle memory allows."""

import torch

from .._library import InputError, checked
from .._once import once_differentiable
from .._live_model.model import MAY_BE_WIDE, WIDE


def outside_autocast(tensor):
    """A context in which the engine's products run in the dtype of their operands."""
    return torch.autocast(tensor.device.type, enabled=False)


def zeros_where(needed, tensors):
    """A zero tensor like each that a gradient is wanted of, None elsewhere."""
    return [torch.zeros_like(tensor, memory_format=torch.contiguous_format) if need else None
            for need, tensor in zip(needed, tensors, strict=True)]


class StreamedLayer(torch.autograd.Function):
    """hidden [N, D] -> [N, D], of layer `index` of a Stream; `parameters` are those of `slots`, in its order.

    Where the stream asks for them, with the layer's router logits [N, X], which have a gradient like the hidden states; [0] without a router.
    """

    @staticmethod
    def forward(ctx, stream, index, slots, hidden, *parameters):
        ctx.set_materialize_grads(False)
        hidden = hidden.contiguous()
        check_dtypes(slots, hidden, parameters)
        ctx.stream, ctx.index, ctx.slots = stream, index, slots
        engine, packed = stream.on(hidden)
        keep = stream.keep if any(ctx.needs_input_grad) else "none"
        with outside_autocast(hidden):
            output, logits, kept = checked(engine.layer_forward, packed, index, hidden.detach(), slots.views_of(parameters), stream.chunk,
                                           stream.routes, keep)
        ctx.parameters = len(parameters)
        ctx.save_for_backward(hidden, *parameters, *kept)
        return (output, logits) if stream.routes else output

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient, of_logits=None):
        hidden, *saved = ctx.saved_tensors
        parameters, kept = saved[: ctx.parameters], saved[ctx.parameters:]
        if gradient is None:  # the loss depends on the router alone
            gradient = torch.zeros_like(hidden)
        if of_logits is not None:
            of_logits = of_logits.contiguous() if of_logits.numel() else None
        gradients = zeros_where(ctx.needs_input_grad[4:], parameters)
        engine, packed = ctx.stream.on(hidden)
        slots = ctx.slots
        with outside_autocast(hidden):
            of_hidden = checked(engine.layer_backward, packed, ctx.index, hidden.detach(), gradient.contiguous(), slots.views_of(parameters),
                                slots.views_of(gradients), ctx.stream.chunk, of_logits, kept)
        return None, None, None, of_hidden if ctx.needs_input_grad[3] else None, *gradients


def check_dtypes(slots, hidden, parameters):
    """Raises InputError unless the hidden states and all parameters, but for lm_head's and those that are wide or integers anyway, are of one dtype and on one device."""
    for name, tensor in zip(slots.names, parameters, strict=True):
        may_be = tensor.dtype == torch.float32 and name.endswith(MAY_BE_WIDE)
        is_other = tensor.dtype != slots.weights.dtype_of(name, hidden.dtype) and not may_be and not name.endswith(WIDE)
        if is_other or tensor.device != hidden.device:
            raise InputError(f"{name} is {tensor.dtype} on {tensor.device}, hidden states are {hidden.dtype} on {hidden.device}: expected "
                             "one dtype and device; convert the model with model.to(...)")
