"""Backward passes that have first derivatives alone."""

import functools

import torch

from ._library import InputError


def once_differentiable(backward):
    """Of torch.autograd.Function.backward, which runs without gradients. With create_graph=True what it gives leads to a refusal by name where it is
    differentiated: torch's own decorator lets such gradients pass for constants where the incoming one is a number."""
    @functools.wraps(backward)
    def once(ctx, *gradients):
        with torch.no_grad():
            found = backward(ctx, *gradients)
        if not torch.is_grad_enabled():
            return found
        anchor = torch.zeros((), requires_grad=True)
        return tuple(FirstAlone.apply(each, anchor) if torch.is_tensor(each) else each for each in found)

    return once


class FirstAlone(torch.autograd.Function):
    """A gradient that has no derivative."""

    @staticmethod
    def forward(ctx, gradient, anchor):
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx, gradient):
        raise InputError("a gradient of a streamed layer or head is differentiated (create_graph=True): streamed passes have first derivatives alone; "
                         "unpatch(model) for steps that need second ones")
