"""A decoder layer as one node of torch's autograd that runs the layer's own forward, chunk by chunk, through a RowCache.

The node keeps the layer's input. Its backward pass runs the layer once more for the keys, values and states of all rows, then chunk by chunk from
last to first with gradients; those of parameters are summed over chunks and returned by the node, once a layer.
"""

import contextlib

import torch
from torch.autograd.function import once_differentiable
from torch.utils import _pytree as pytree

from ._library import InputError
from ._module_attention import Visible
from ._row_cache import RowCache, Rows, Stop, wide

around = contextlib.nullcontext  # a context in which layers run again in the backward pass; tests put float64 there


class Unfit(Exception):
    """Why this call of a layer can't be streamed; it runs whole."""


def axes_of(path, tensor, rows, known=None):
    """The axes of an argument that count rows: (), (axis,), or (rows, columns) of a mask. `known`: as a proof has found them, by (path, dim)."""
    hits = [axis for axis, size in enumerate(tensor.shape) if size == rows]
    if not hits:
        return ()
    if "mask" in path:
        return tuple(axis for axis in hits if axis >= max(1, tensor.dim() - 2))
    if "position_ids" in path:
        return (tensor.dim() - 1,) if hits[-1] == tensor.dim() - 1 else ()
    expected = (known or {}).get((path, tensor.dim()))
    if expected is not None and set(expected) <= set(hits):
        return expected
    if len(hits) > 1:
        raise Unfit(f"{path} is {list(tensor.shape)}: it is not clear which of its axes counts the {rows} rows")
    return tuple(hits)


class Arguments:
    """A layer's keyword arguments: every tensor with a row for each token is cut to a chunk. extras: where those lie that have a gradient.

    whole: nothing is ever cut, of one row or another.
    """

    def __init__(self, kwargs, rows, known=None, whole=False):
        found, self.spec = pytree.tree_flatten_with_path(kwargs)
        self.paths = [pytree.keystr(path) for path, _ in found]
        self.leaves = [leaf for _, leaf in found]
        self.axes = [axes_of(path, leaf, rows, known) if torch.is_tensor(leaf) and not whole else () for path, leaf in zip(self.paths, self.leaves, strict=True)]
        self.extras = [i for i, leaf in enumerate(self.leaves) if torch.is_tensor(leaf) and leaf.requires_grad]

    def take_extras(self):
        taken = [self.leaves[i] for i in self.extras]
        self.give_extras([None] * len(taken))
        return taken

    def give_extras(self, tensors):
        for i, tensor in zip(self.extras, tensors, strict=True):
            self.leaves[i] = tensor

    def at(self, begin, end):
        cut = [self._cut(*each, begin, end) for each in zip(self.paths, self.leaves, self.axes, strict=True)]
        return pytree.tree_unflatten(cut, self.spec)

    @staticmethod
    def _cut(path, leaf, axes, begin, end):
        if not axes:
            return leaf
        if len(axes) == 2:
            return leaf.narrow(axes[0], begin, end - begin).narrow(axes[1], 0, end)
        columns = leaf.dim() > 2 and axes[0] == leaf.dim() - 1 and ("mask" in path or "alibi" in path)
        return leaf.narrow(axes[0], 0, end) if columns else leaf.narrow(axes[0], begin, end - begin)

    def blank_rows(self):
        """Rows [B, T] that an additive mask hides everything from: their softmax is over all columns, later ones too. None: no such mask."""
        for path, leaf, axes in zip(self.paths, self.leaves, self.axes, strict=True):
            if isinstance(leaf, Visible) and leaf.blank is not None:
                return leaf.blank
            if "mask" in path and len(axes) == 2 and leaf.dim() == 4 and leaf.is_floating_point():
                return (leaf.amax(-1) <= torch.finfo(leaf.dtype).min / 2).all(1)
        return None


def random_states(device):
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def set_random_states(device, states):
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)


def same(states, others):
    return all(torch.equal(*pair) for pair in zip(states, others, strict=True))


@contextlib.contextmanager
def without_hooks(parameters):
    """Hooks on parameters' gradients are called with the node's sum, not with a chunk's part."""
    found = [(hooks, dict(hooks)) for hooks in (parameter._backward_hooks for parameter in parameters) if hooks]
    for hooks, _ in found:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, kept in found:
            hooks.update(kept)


class LayerNode(torch.autograd.Function):
    """hidden [B, T, D] -> [B, T, D]; call: the LayerCall; tensors: the arguments' extras, then the layer's parameters."""

    @staticmethod
    def forward(ctx, call, chunk, hidden, arguments, *tensors):
        extras = tensors[: len(arguments.extras)]
        kind = hidden.device.type
        ctx.call, ctx.arguments = call, arguments
        ctx.autocast = {"dtype": torch.get_autocast_dtype(kind), "enabled": torch.is_autocast_enabled(kind), "cache_enabled": False}
        ctx.save_for_backward(hidden, *extras)
        rows = hidden.shape[1]
        ctx.chunks = [(begin, min(rows, begin + chunk)) for begin in range(0, rows, chunk)]
        arguments.give_extras([extra.detach() for extra in extras])
        parts, kept, states, ctx.random = [], Rows(rows), {}, []
        with torch.no_grad(), torch.autocast(kind, **ctx.autocast), call.alone():
            for begin, end in ctx.chunks:
                ctx.random.append(random_states(hidden.device))
                cache = RowCache(kept, begin, states)
                parts.append(call.run(hidden[:, begin:end], arguments.at(begin, end), cache, begin, bool(kept.pairs)))
                states = {name: state.clone() for name, state in cache.after.items()}
        if not kept.pairs and not states and not call.proven and len(ctx.chunks) > 1:
            raise Unfit("it leaves nothing in a cache, and no proof says that its rows don't meet")
        if same(ctx.random[0], random_states(hidden.device)):
            ctx.random = None  # nothing was drawn
        ctx.updates, ctx.has_states = len(kept.pairs), bool(states)
        arguments.take_extras()
        return torch.cat(parts, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        hidden, *extras = ctx.saved_tensors
        before = random_states(hidden.device) if ctx.random else None
        call, arguments = ctx.call, ctx.arguments
        blank = arguments.blank_rows()
        if blank is not None and bool(gradient[blank.expand(gradient.shape[:2])].any()):
            raise InputError("the loss depends on rows of padding, which the model's mask lets see later rows: set their labels, and the label "
                             "that padding on the left would predict, to -100, or use attn_implementation=\"sdpa\"")
        extras = [extra.detach().requires_grad_() for extra in extras]
        parameters = list(call.layer.parameters())
        wanted = [tensor for tensor in (*extras, *parameters) if tensor.requires_grad]
        arguments.give_extras(extras)
        try:
            with torch.autocast(hidden.device.type, **ctx.autocast), call.alone(), without_hooks(parameters), around():
                of_hidden, sums = _backward(ctx, call, arguments, hidden, gradient, wanted)
        finally:
            arguments.take_extras()
            if before:
                set_random_states(hidden.device, before)
        found = {id(tensor): each for tensor, each in zip(wanted, sums, strict=True)}
        results = [found.get(id(tensor)) for tensor in (*extras, *parameters)]
        return None, None, of_hidden if ctx.needs_input_grad[2] else None, None, *results


def _earlier_rows(ctx, call, arguments, hidden):
    """(Rows, states at the start of each chunk) of a run without gradients, which ends where keys and values are there."""
    kept, starts = Rows(hidden.shape[1]), [{}]
    with torch.no_grad():
        for i, (begin, end) in enumerate(ctx.chunks[:-1]):
            if ctx.random:
                set_random_states(hidden.device, ctx.random[i])
            cache = RowCache(kept, begin, starts[-1], updates=None if ctx.has_states else ctx.updates or None)
            if ctx.has_states or ctx.updates:
                with contextlib.suppress(Stop):
                    call.run(hidden[:, begin:end], arguments.at(begin, end), cache, begin, bool(ctx.updates))
            starts.append({name: state.clone() for name, state in cache.after.items()})
    return kept, starts


def _backward(ctx, call, arguments, hidden, gradient, wanted):
    """(gradient of hidden, those of `wanted`), chunk by chunk from last to first."""
    kept, starts = _earlier_rows(ctx, call, arguments, hidden)
    rooms, of_hidden = kept.zeros(), torch.empty_like(hidden, memory_format=torch.contiguous_format)
    sums, of_states = [None] * len(wanted), {}
    for i, (begin, end) in reversed(list(enumerate(ctx.chunks))):
        if ctx.random:
            set_random_states(hidden.device, ctx.random[i])
        rows = hidden[:, begin:end].detach().requires_grad_()
        states = {name: state.detach().requires_grad_() for name, state in starts[i].items()}
        cache = RowCache(kept, begin, states, rooms=rooms)
        with torch.enable_grad():
            output = call.run(rows, arguments.at(begin, end), cache, begin, bool(ctx.updates))
        roots = [(output, gradient[:, begin:end])]
        if end < hidden.shape[1]:
            for own, room in zip(cache.own, rooms.pairs, strict=True):
                roots += [(x, r.narrow(-2, begin, end - begin)) for x, r in zip(own, room, strict=True)]
            roots += [(state, of_states[name]) for name, state in cache.after.items() if of_states.get(name) is not None]
        roots = [(root, seed.to(root.dtype)) for root, seed in roots if root.requires_grad]
        found = torch.autograd.grad([root for root, _ in roots], [rows, *states.values(), *wanted], [seed for _, seed in roots], allow_unused=True)
        of_hidden[:, begin:end] = 0 if found[0] is None else found[0]
        of_states = dict(zip(states, found[1:], strict=False))
        for j, part in enumerate(found[1 + len(states):]):
            if part is not None:
                sums[j] = part.to(wide(part.dtype), copy=True) if sums[j] is None else sums[j].add_(part)
    return of_hidden, [each if each is None else each.to(tensor.dtype) for each, tensor in zip(sums, wanted, strict=True)]
