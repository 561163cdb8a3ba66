"""chain(): exact gradients through many applications of one step, in the memory of one, as layers are streamed: a step here is what a layer is there."""

import contextlib
import functools

import torch
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from ._library import InputError


def chain(step, state, n, *, every=1, offload=False):
    """The state after `n` steps: step(step(... step(state, 0) ..., n - 2), n - 1), differentiable, with only states kept between them.

    step: a function (state, index) -> state; whatever it reads (a module with its parameters, LoRA, a schedule by index) gets its gradients.
    state: a tensor, or a tuple, list or dict of tensors, as it comes out of the step. n: how many steps.
    every: which states are kept: each, or each every-th; those between are computed again, once more than every=1 does, and held while their part
    of the chain goes back. offload: states are kept in host memory.

    In addition to the states that are kept the peak is one step's, whatever `n` is (and 5 KB a step of torch's random state, on a CPU). Random numbers (dropout, noise) are drawn as in the forward pass.
    Gradients equal those of a plain loop, to rounding in the order of sums: AlignProp (arXiv 2310.03739) and time steps of diffusion (arXiv 2412.02852)
    are such chains, unrolled recurrent networks too. Raises InputError for numbers that are none, and where a step changes the structure of the state.
    """
    for name, value in (("n", n), ("every", every)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name} is {value!r}, expected a whole number from 1")
    leaves, structure = pytree.tree_flatten(state)
    if not leaves or not all(torch.is_tensor(leaf) for leaf in leaves):
        raise InputError(f"state is a {type(state).__name__}, expected tensors: one, or a tuple, list or dict of them")
    one = functools.partial(_one, step, structure)
    for begin in range(0, n, every):
        end = min(begin + every, n)
        part = functools.partial(_part, one, begin, end)
        with torch.autograd.graph.save_on_cpu() if offload else contextlib.nullcontext():
            leaves = _kept(one, begin, leaves) if end == begin + 1 else _kept(part, None, leaves)
    return pytree.tree_unflatten(leaves, structure)


def _kept(function, index, leaves):
    """function's leaves, with its input kept alone."""
    return checkpoint(function, index, *leaves, use_reentrant=False)


def _one(step, structure, index, *leaves):
    found, its_structure = pytree.tree_flatten(step(pytree.tree_unflatten(leaves, structure), index))
    if its_structure != structure:
        its_structure, structure = (" ".join(str(each).split()) for each in (its_structure, structure))
        raise InputError(f"step {index} gives {its_structure}, and takes {structure}")
    return tuple(found)


def _part(one, begin, end, _, *leaves):
    for index in range(begin, end):
        leaves = _kept(one, index, leaves)
    return tuple(leaves)
