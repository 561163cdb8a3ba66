"""A decoder layer as one node of torch's autograd that runs the layer's own forward, chunk by chunk, through a RowCache.

The node keeps the layer's input. Its backward pass runs the layer once more for the keys, values and states of all rows, then chunk by chunk from
last to first with gradients; those of parameters are summed over chunks and returned by the node, once a layer.
"""

import bisect
import collections
import contextlib

import torch
from torch.utils import _pytree as pytree
from torch.utils import weak

from .._hooks import again, present
from .._library import InputError
from .._once import once_differentiable
from .attention import Visible
from .held import as_held, held, strange_tensor
from .row_cache import RowCache, Rows, Stop, Unfit, wide

around = contextlib.nullcontext  # a context in which layers run again in the backward pass; tests put float64 there


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
    if known is None and hits[-2:] == [tensor.dim() - 2, tensor.dim() - 1]:  # a guess, which the proof tries
        return (hits[-2],) if "indices" in path else tuple(hits[-2:])
    if len(hits) > 1:
        raise Unfit(f"{path} is {list(tensor.shape)}: it is not clear which of its axes counts the {rows} rows")
    return tuple(hits)


def is_store(name, value):
    """Whether layers leave keys and values for later layers in this argument."""
    return isinstance(value, collections.UserDict) or (isinstance(value, dict) and "shared" in name)


_seen = weak.WeakIdKeyDictionary()  # mask -> (its version, last_seen())


def is_hiding(mask):
    """Whether a mask is True where rows do not see columns: above the diagonal, at least."""
    if mask.dtype != torch.bool or mask.shape[-1] != mask.shape[-2]:
        return False
    below = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).tril()
    return bool((mask | below).all()) and not bool(mask.all())


def visible(mask):
    """Where a mask lets rows see columns, bool."""
    if mask.is_floating_point():
        return mask > torch.finfo(mask.dtype).min / 2
    return ~mask if is_hiding(mask) else mask != 0


def last_seen(mask):
    """The last column [T] that each row of a mask sees, in any sequence and head; rows that see nothing see themselves."""
    if mask not in _seen or _seen[mask][0] != mask._version:
        columns = torch.arange(mask.shape[-1], device=mask.device)
        last = torch.where(visible(mask), columns, -1).amax(-1)
        _seen[mask] = mask._version, last.flatten(0, -2).amax(0).cpu()
    return _seen[mask][1]


class Arguments:
    """A layer's keyword arguments: every tensor with a row for each token is cut to a chunk. extras: where those lie that have a gradient.

    whole: nothing is ever cut, of one row or another. full: masks and stores keep their columns of later rows. stores: names of the arguments through which layers share keys and values; asked: what
    transformers collects of the modules inside.
    """

    def __init__(self, kwargs, rows, known=None, whole=False, full=False, asked=()):
        self.stores = [name for name, value in kwargs.items() if is_store(name, value)]
        self.asked, self.rows, self.full, self.given = asked, rows, full, None
        found, self.spec = pytree.tree_flatten_with_path(kwargs | {name: dict(kwargs[name]) for name in self.stores})
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

    def _cut(self, path, leaf, axes, begin, end):
        if not axes:
            return leaf
        width = self.rows if self.full else end
        if len(axes) == 2:
            return leaf.narrow(axes[0], begin, end - begin).narrow(axes[1], 0, width)
        columns = leaf.dim() > 2 and axes[0] == leaf.dim() - 1 and ("mask" in path or "alibi" in path)
        columns = columns or any(path.startswith(f"['{name}']") for name in self.stores)
        return leaf.narrow(axes[0], 0, width) if columns else leaf.narrow(axes[0], begin, end - begin)

    def chunks(self, size):
        """[(begin, end)] of `size` rows and a few less, so that no mask lets a chunk's rows see later ones; more where there is no such edge.

        None has a single row, which models take for a step of generation. A tuple says where the chunks end.
        """
        if isinstance(size, tuple):
            return list(zip((0, *size), size, strict=False))
        masks = [last_seen(leaf) for path, leaf, axes in zip(self.paths, self.leaves, self.axes, strict=True) if "mask" in path and len(axes) == 2]
        seen = torch.stack([torch.arange(self.rows), *masks]).amax(0).cummax(0).values.tolist()
        edges, begin = [end for end in range(1, self.rows + 1) if seen[end - 1] < end] if masks else range(1, self.rows + 1), 0
        chunks = []
        while begin < self.rows:
            least = min(begin + 2, self.rows)
            fitting = bisect.bisect_right(edges, max(begin + size, least)) - 1
            end = edges[fitting] if fitting >= 0 and edges[fitting] >= least else edges[fitting + 1]
            end = self.rows if end == self.rows - 1 else end
            chunks.append((begin, end))
            begin = end
        return chunks

    def blank_rows(self):
        """Rows [B, T] that a mask which is added or filled in hides everything from: their softmax is over all columns, later ones too. None: no such mask."""
        for path, leaf, axes in zip(self.paths, self.leaves, self.axes, strict=True):
            if isinstance(leaf, Visible) and leaf.blank is not None:
                return leaf.blank
            if "mask" in path and len(axes) == 2 and leaf.dim() == 4 and (leaf.is_floating_point() or is_hiding(leaf)):
                return ~visible(leaf).any(-1).any(1)
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


def parameters_of(layer):
    """A layer's parameters now, as with_parameters() takes them."""
    return [(path, each, each._version) for path, each in layer.named_parameters(remove_duplicate=False) if not (each.is_meta or each.is_inference())]


@contextlib.contextmanager
def with_parameters(call, parameters):
    """Inside, the layer has the parameters that its forward pass had: torch.func.functional_call lends some for one call. parameters: (path, tensor, its
    version then, or None for any). Raises RuntimeError, as torch's own nodes do, where one was changed in place since."""
    lent = []
    for path, tensor, version in parameters:
        if version not in (None, tensor._version):
            raise RuntimeError(f"{call.name}.{path}, which a streamed layer's backward pass needs, has been modified by an inplace operation since its forward "
                               "pass: change weights after the backward pass")
        owner, _, name = path.rpartition(".")
        registered = call.layer.get_submodule(owner)._parameters
        if registered.get(name) is not tensor and name in registered and not registered[name].is_meta:
            lent.append((registered, name, registered[name]))
            registered[name] = tensor
    try:
        yield
    finally:
        for registered, name, own in reversed(lent):
            registered[name] = own


def is_divided(module):
    """Whether DeepSpeed's ZeRO-3 has divided parameters of it among ranks: they are empty but while a module computes."""
    return any(hasattr(parameter, "ds_id") for parameter in module.parameters())


class Side:
    """How a tensor that a layer gives besides its hidden states counts rows: [B, T, ...], or [B * T, ...] with those of a sequence together."""

    def __init__(self, tensor, batch, rows):
        if tensor.dim() and tensor.shape[:2] == (batch, rows):
            self.flat = False
        elif tensor.dim() > 1 and tensor.shape[0] == batch * rows:
            self.flat = True
        else:
            raise Unfit(f"it gives {list(tensor.shape)} besides its hidden states, which has no row for each token")
        self.batch = batch

    def by_rows(self, tensor):
        return tensor.unflatten(0, (self.batch, -1)) if self.flat else tensor

    def joined(self, parts):
        return self._as_given(torch.cat([self.by_rows(part) for part in parts], 1))

    def cut(self, tensor, begin, end):
        return self._as_given(self.by_rows(tensor)[:, begin:end])

    def _as_given(self, tensor):
        return tensor.flatten(0, 1) if self.flat else tensor


class Outputs:
    """What a layer has given for its chunks. hidden: its states; sides: {position: parts}; shared: {(argument, key): where in Rows.pairs}."""

    def __init__(self, batch):
        self.batch, self.hidden, self.parts, self.sides, self.shared = batch, [], {}, {}, {}

    def add(self, hidden, parts, shared, rows):
        if not self.hidden:
            self.parts = {position: [] for position in parts}
            self.sides = {position: Side(part, self.batch, rows) for position, part in parts.items()}
            self.shared = shared
        if parts.keys() != self.parts.keys() or shared != self.shared:
            raise Unfit("what it gives besides its hidden states changes from chunk to chunk")
        self.hidden.append(hidden)
        for position, part in parts.items():
            self.parts[position].append(part)

    def positions(self):
        return [where for of_key in self.shared.values() for where in of_key]

    def take_joined(self, axis, pairs):
        """All tensors that the node gives; nothing is kept."""
        hidden, parts, self.hidden, self.parts = self.hidden, self.parts, [], {}
        return (torch.cat(hidden, axis), *(self.sides[position].joined(each) for position, each in parts.items()), *(pairs[i][j] for i, j in self.positions()))


def shared_in(arguments, before, after, cache):
    """{(argument, key): where in Rows.pairs} of the keys and values that the layer has left in its arguments for later layers."""
    found = {}
    for name in arguments.stores:
        for key, value in after[name].items():
            if value is before[name].get(key):
                continue
            where = [next((position for position, each in cache.returned.items() if each is tensor), None) for tensor in value]
            if None in where:
                raise Unfit(f"it leaves in {name} what is not in its cache")
            found[name, key] = where
    return found


class LayerNode(torch.autograd.Function):
    """hidden [B, T, D] -> [B, T, D], what else the layer gives, and the keys and values that later layers share.

    call: the LayerCall; chunks: [(begin, end)]; tensors: the arguments' extras, then the layer's parameters.
    """

    @staticmethod
    def forward(ctx, call, chunks, hidden, arguments, *tensors):
        ctx.set_materialize_grads(False)
        extras = tensors[: len(arguments.extras)]
        kind = hidden.device.type
        ctx.call, ctx.arguments, ctx.hooks, ctx.held = call, arguments, present(call.layer), held(call.layer)
        ctx.parameters = parameters_of(call.layer)
        ctx.autocast = {"dtype": torch.get_autocast_dtype(kind), "enabled": torch.is_autocast_enabled(kind), "cache_enabled": False}
        ctx.save_for_backward(hidden, *extras)
        rows = hidden.shape[call.axis]
        ctx.chunks = chunks
        arguments.give_extras([extra.detach() for extra in extras])
        outputs, kept, states, ctx.random = Outputs(hidden.shape[call.axis - 1]), Rows(rows, call.full, call.rate), {}, []
        with torch.no_grad(), torch.autocast(kind, **ctx.autocast), call.alone():
            for begin, end in ctx.chunks:
                ctx.random.append(random_states(hidden.device))
                cache, given = RowCache(kept, begin, states), arguments.at(begin, end)
                before = {name: dict(given[name]) for name in arguments.stores}
                output, sides = call.run(hidden.narrow(call.axis, begin, end - begin).contiguous(), given, cache, begin, bool(kept.pairs or arguments.stores), arguments.asked)
                outputs.add(output, sides, shared_in(arguments, before, given, cache), end - begin)
                states = {name: state.clone() for name, state in cache.after.items()}
        if not kept.pairs and not states and not call.proven and len(ctx.chunks) > 1:
            raise Unfit("it leaves nothing in a cache, and no proof says that its rows don't meet")
        if same(ctx.random[0], random_states(hidden.device)):
            ctx.random = None  # nothing was drawn
        ctx.updates, ctx.has_states = len(kept.pairs), bool(states)
        ctx.sides, ctx.positions = outputs.sides, outputs.positions()
        arguments.given = outputs
        arguments.take_extras()
        return outputs.take_joined(call.axis, kept.pairs)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient, *others):
        with with_parameters(ctx.call, ctx.parameters), as_held(ctx.held), again(ctx.hooks):
            return LayerNode._backward(ctx, gradient, others)

    @staticmethod
    def _backward(ctx, gradient, others):
        hidden, *extras = ctx.saved_tensors
        before = random_states(hidden.device) if ctx.random else None
        call, arguments = ctx.call, ctx.arguments
        gradient = torch.zeros_like(hidden) if gradient is None else gradient
        blank = arguments.blank_rows()
        seeds = [gradient.movedim((call.axis - 1, call.axis), (0, 1))]
        seeds += [side.by_rows(seed) for side, seed in zip(ctx.sides.values(), others, strict=False) if seed is not None]
        if blank is not None and any(bool(seed[blank.expand(seed.shape[:2])].any()) for seed in seeds):
            raise InputError("the loss depends on rows of padding, which the model's mask lets see later rows: set their labels, and the label "
                             "that padding on the left would predict, to -100, or use attn_implementation=\"sdpa\"")
        extras = [extra.detach().requires_grad_() for extra in extras]
        parameters = list(call.layer.parameters())
        wanted = [tensor for tensor in (*extras, *parameters) if tensor.requires_grad]
        arguments.give_extras(extras)
        try:
            with torch.autocast(hidden.device.type, **ctx.autocast), call.alone(), without_hooks(parameters), around():
                of_hidden, sums = _backward(ctx, call, arguments, hidden, gradient, others, wanted)
        finally:
            arguments.take_extras()
            if before:
                set_random_states(hidden.device, before)
        found = {id(tensor): each for tensor, each in zip(wanted, sums, strict=True)}
        results = [found.get(id(tensor)) for tensor in (*extras, *parameters)]
        return None, None, of_hidden if ctx.needs_input_grad[2] else None, None, *results


def _earlier_rows(ctx, call, arguments, hidden):
    """(Rows, states at the start of each chunk) of a run without gradients, which ends where keys and values are there."""
    kept, starts = Rows(hidden.shape[call.axis], call.full, call.rate), [{}]
    with torch.no_grad():
        for i, (begin, end) in enumerate(ctx.chunks[:-1]):
            if ctx.random:
                set_random_states(hidden.device, ctx.random[i])
            cache = RowCache(kept, begin, starts[-1], updates=None if ctx.has_states else ctx.updates or None)
            if ctx.has_states or ctx.updates:
                with contextlib.suppress(Stop):
                    call.run(hidden.narrow(call.axis, begin, end - begin).contiguous(), arguments.at(begin, end), cache, begin, bool(ctx.updates))
            starts.append({name: state.clone() for name, state in cache.after.items()})
    return kept, starts


def _backward(ctx, call, arguments, hidden, gradient, others, wanted):
    """(gradient of hidden, those of `wanted`), chunk by chunk from last to first; others: gradients of the sides, and of what is shared."""
    kept, starts = _earlier_rows(ctx, call, arguments, hidden)
    rooms, of_hidden = kept.zeros(), torch.empty_like(hidden, memory_format=torch.contiguous_format)
    sums, of_states = [None] * len(wanted), {}
    of_sides = dict(zip(ctx.sides, others, strict=False))
    of_shared = dict(zip(ctx.positions, others[len(ctx.sides):], strict=True))
    for i, (begin, end) in reversed(list(enumerate(ctx.chunks))):
        if ctx.random:
            set_random_states(hidden.device, ctx.random[i])
        rows = hidden.narrow(call.axis, begin, end - begin).contiguous().detach().requires_grad_()
        states = {name: state.detach().requires_grad_() for name, state in starts[i].items()}
        cache = RowCache(kept, begin, states, rooms=rooms)
        with torch.enable_grad():
            output, sides = call.run(rows.view_as(rows), arguments.at(begin, end), cache, begin, bool(ctx.updates or arguments.stores), arguments.asked)
        roots = [(output, gradient.narrow(call.axis, begin, end - begin))]
        roots += [(sides[position], side.cut(of_sides[position], begin, end)) for position, side in ctx.sides.items() if of_sides[position] is not None]
        for position, own, first in cache.own_by_position():
            seeds = [of_shared[position]] if of_shared.get(position) is not None else []
            seeds += [rooms.pairs[position[0]][position[1]]] if end < ctx.chunks[-1][1] else []
            roots += [(own, seed.narrow(-2, first, own.shape[-2])) for seed in seeds]
        if end < ctx.chunks[-1][1]:
            roots += [(state, of_states[name]) for name, state in cache.after.items() if of_states.get(name) is not None]
        roots = [(root, seed.to(root.dtype)) for root, seed in roots if root.requires_grad]
        found = torch.autograd.grad([root for root, _ in roots], [rows, *states.values(), *wanted], [seed for _, seed in roots], allow_unused=True)
        of_hidden.narrow(call.axis, begin, end - begin).copy_(torch.zeros_like(rows) if found[0] is None else found[0])
        of_states = dict(zip(states, found[1:], strict=False))
        for j, part in enumerate(found[1 + len(states):]):
            if part is not None:
                sums[j] = part.to(wide(part.dtype), copy=True) if sums[j] is None else sums[j].add_(part)
    return of_hidden, [each if each is None else each.to(tensor.dtype) for each, tensor in zip(sums, wanted, strict=True)]
