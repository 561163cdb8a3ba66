"""The logits of a model that has streamed its loss: computed when somebody looks at them, and not before."""

import torch
from torch.utils import _pytree as pytree

from .._library import InputError

KNOWN = ("shape", "dtype", "device", "ndim", "layout", "requires_grad", "grad_fn", "is_leaf")  # of it without its numbers
GETTERS = {getattr(torch.Tensor, name).__get__ for name in KNOWN} | {torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel,
                                                                    torch.Tensor.is_floating_point, torch.Tensor.__len__}
CASTS = (torch.Tensor.float, torch.Tensor.to, torch.Tensor.detach, torch.Tensor.clone)  # what accelerate and DDP do to every output


class LazyLogits(torch.Tensor):
    """[B, T, V]. make: () -> the logits, with their gradient where that is on; called at the first operation with them. weights: what it reads, which
    has to be what it is now."""

    @staticmethod
    def __new__(cls, make, shape, dtype, device, weights=()):
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)

    def __init__(self, make, shape, dtype, device, weights=()):
        self.make, self.made, self.with_gradient = make, None, False
        self.weights = [(each, each._version) for each in weights if not each.is_inference()]

    def real(self):
        """The logits, with a gradient if they are asked for where gradients are on."""
        if self.made is None or (torch.is_grad_enabled() and not self.with_gradient):
            if any(each._version != version for each, version in self.weights):
                raise InputError("output.logits are computed when they are looked at, and the head's weights were changed since the forward pass: look at them "
                                 "before the optimizer's step")
            self.made, self.with_gradient = self.make(), torch.is_grad_enabled()
        return self.made

    def __repr__(self):
        return f"LazyLogits({list(self.shape)}, {self.dtype}, {'not computed yet' if self.made is None else 'computed'})"

    def _cast(self, func, args, kwargs):
        """The same, later."""
        dtype = torch.float32 if func is torch.Tensor.float else self.dtype
        dtype = next((each for each in (*args, *kwargs.values()) if isinstance(each, torch.dtype)), dtype)
        return LazyLogits(lambda: func(self.real(), *args, **kwargs), self.shape, dtype, self.device)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in GETTERS:
            return super().__torch_function__(func, types, args, kwargs)
        simple = not any(isinstance(each, (torch.Tensor, torch.device, str)) for each in (*args[1:], *kwargs.values()))
        if func in CASTS and isinstance(args[0], cls) and simple:
            return args[0]._cast(func, args[1:], kwargs)
        args, kwargs = pytree.tree_map(lambda leaf: leaf.real() if isinstance(leaf, cls) else leaf, (args, kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = pytree.tree_map(lambda leaf: leaf.real().detach() if isinstance(leaf, cls) else leaf, (args, kwargs or {}))
        return func(*args, **kwargs)
