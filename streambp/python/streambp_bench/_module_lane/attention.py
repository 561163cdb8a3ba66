"""The engine's exact attention in layers that run by their own code, through transformers' AttentionInterface: no mask of chunk x length is made.

While a patched model runs, its config's attention is called "streambp". Where its mask is made of parts that are known (causal, windows, chunks,
documents, padding), a Visible stands for the mask; any other mask, and whatever the engine's attention doesn't compute (dropout, a bias of
positions), goes to the attention that the model has.
"""

import functools
import inspect
import re
import sys

import torch
from torch.autograd.function import once_differentiable
from torch.utils import _pytree as pytree

from .._library import library
from .._live_model.attention_name import NAME, attention_of, is_ours_here, name_here, own_name
from .row_cache import in_autocast, wide

OWN = ("eager", "sdpa")
COMPUTED = {"module", "query", "key", "value", "attention_mask", "dropout", "scaling", "softcap", "s_aux", "sliding_window", "is_causal", "kwargs"}
BY_NAME = re.compile(r"_attn_implementation\s*(==|!=|in\b|not in\b)")  # code that asks which attention it has


class Visible:
    """Which keys the rows of a batch see. spans: int64 [S, 5] and window as torch.ops.streambp.attention takes them; blank: rows [B, T] that see
    nothing, where the model's own attention gives them a mean of all values, else None; own(): the model's own mask, made when first asked for."""

    def __init__(self, spans, window, blank, own):
        self.spans, self.window, self.blank, self.own = spans, window, blank, functools.cache(own)

    def mask(self, begin, end):
        """The model's own mask for rows [begin, end)."""
        mask = self.own()
        if mask is not None:
            return mask[..., begin:end, :end]
        rows = torch.arange(begin, end)[:, None]
        return (torch.arange(end) <= rows)[None, None] if begin else None


def own_masks(tree):
    """`tree` with the model's own masks in it; what holds none stays the object that it is."""
    if isinstance(tree, Visible):
        return tree.own()
    if not any(isinstance(leaf, Visible) for leaf in pytree.tree_leaves(tree)):
        return tree
    return {name: own_masks(each) for name, each in tree.items()} if isinstance(tree, dict) else type(tree)(map(own_masks, tree))


@functools.cache
def _parts():
    """The code of transformers' mask functions whose rows see an interval of keys that ends with themselves, and what it is."""
    from transformers import masking_utils as masks

    parts = {masks.causal_mask_function.__code__: "causal", masks.sliding_window_overlay(1).__code__: "window",
             masks.chunked_overlay(1, None).__code__: "blocks", masks.packed_sequence_mask_function(None).__code__: "blocks", masks.and_masks().__code__: "all"}
    remap = getattr(masks, "remap_positions_for_packed_sequence", None)  # transformers 5.20 has none: a packed row's positions are the row's
    return parts if remap is None else parts | {remap(None, None).__code__: "inner"}


def parts_of(function):
    """[(kind, the variables that it holds)] of a mask function that is made of known parts alone; None for another."""
    kind = _parts().get(getattr(function, "__code__", None))
    if kind is None:
        return None
    held = {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)}
    if kind not in ("inner", "all"):
        return [(kind, held)]
    inner = [parts_of(each) for each in (held["mask_functions"] if kind == "all" else (held["mask_function"],))]
    return None if None in inner else sum(inner, [])


def visible_or_mask(batch_size, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=None, attention_mask=None, **kwargs):
    """What stands for a mask, by transformers' mask interface: a Visible, or the model's own mask where it is not known."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, causal_mask_function

    function, config = mask_function or causal_mask_function, kwargs.get("config")
    name = name_here(config)

    def own():
        return ALL_MASK_ATTENTION_FUNCTIONS[name](batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
                                                  mask_function=function, attention_mask=attention_mask, **kwargs)

    parts = parts_of(function) if is_ours_here(config) else None
    is_square = q_length == kv_length and not torch.is_tensor(q_offset) and not q_offset and not kv_offset
    if parts is None or "causal" not in dict(parts) or not is_square:
        return own()
    windows = [held["sliding_window"] for kind, held in parts if kind == "window"]
    spans, blank = _spans(batch_size, q_length, function, attention_mask, kwargs.get("device", "cpu"))
    return own() if spans is None else Visible(spans, min(windows, default=0), blank if name == "eager" else None, own)


def _spans(batch, tokens, function, padding, device):
    """(spans, blank rows or None), or (None, None) for padding between tokens."""
    row, query = torch.arange(batch, device=device)[:, None], torch.arange(1, tokens, device=device)[None]
    joined = function(row, 0, query, query - 1).expand(batch, tokens - 1)  # where a row doesn't see the one before it, a document or a block begins
    starts = [[0] for _ in range(batch)]
    for each, column in (~joined).nonzero().tolist():
        starts[each].append(column + 1)
    real, blank = [(0, tokens)] * batch, None
    if padding is not None and not bool(padding.all()):
        if padding.shape != (batch, tokens):
            return None, None
        columns = torch.arange(tokens, device=padding.device)
        first, last = torch.where(padding, columns, tokens).amin(1), torch.where(padding, columns, -1).amax(1)
        if bool((padding.sum(1) != (last - first + 1).clamp_min(0)).any()):
            return None, None
        real = list(zip(first.tolist(), (last + 1).tolist(), strict=True))
        blank = columns < first[:, None]
    spans = []
    for each, (first, last) in enumerate(real):
        for begin, end in zip(starts[each], [*starts[each][1:], tokens], strict=True):
            inside, outside = max(begin, first), min(end, last)
            if inside < outside:
                spans.append((each, inside, outside, inside, outside))
                if outside < end:
                    spans.append((each, outside, end, inside, outside))
    return torch.tensor(spans, dtype=torch.int64).reshape(-1, 5), blank


class Attention(torch.autograd.Function):
    """Queries [B, H, C, E] to keys and values [B, K, N, E], whose last C rows are `own_keys` and `own_values`, by the engine: [B, C, H, E].

    rooms: where the gradients of the earlier keys and values are added, [B, K, N - C, E] each; None: own_keys and own_values are all rows.
    """

    @staticmethod
    def forward(ctx, query, own_keys, own_values, sinks, keys, values, rooms, settings):
        output, *rest = torch.ops.streambp.attention(query, keys, values, *settings, sinks)
        ctx.save_for_backward(query, keys, values, sinks, output, *rest)
        ctx.rooms, ctx.settings = rooms, settings
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        query, keys, values, sinks, *saved = ctx.saved_tensors
        earlier = keys.shape[2] - query.shape[2]
        rooms = ctx.rooms
        if rooms is None:
            rooms = [keys.new_zeros(keys.shape[0], earlier, *keys.shape[1::2], dtype=wide(keys.dtype)).transpose(1, 2) for _ in range(2)]
        dq, *own = torch.ops.streambp.attention_backward(gradient.contiguous(), saved, query, keys, values, *ctx.settings, sinks, *rooms)
        pair = own[:2] if ctx.rooms is not None or not earlier else [torch.cat([room.to(part.dtype), part], 2) for room, part in zip(rooms, own, strict=False)]
        return dq, *pair, own[2] if len(own) > 2 else None, None, None, None, None


def attend(module, query, key, value, attention_mask, dropout=0.0, scaling=None, softcap=None, s_aux=None, **kwargs):
    """Attention by transformers' interface: the engine's where a Visible stands for the mask, else the model's own."""
    visible, config = attention_mask, getattr(module, "config", None)
    name = name_here(config)
    own = _own_attention(module, name)
    if isinstance(visible, Visible):
        query, key, value = in_autocast(query, key, value)
        if is_ours_here(config) and _is_computed(module, name, own, query, key, value, dropout, softcap, s_aux, kwargs):
            settings = (visible.spans, visible.window, query.shape[-1] ** -0.5 if scaling is None else scaling, softcap or 0.0)
            rows = getattr(key, "_streambp_rows", None)
            if rows is None or rows is not getattr(value, "_streambp_rows", None):
                rows = (key, value), None
            pair, rooms = rows
            return Attention.apply(query, *pair, s_aux, key.detach(), value.detach(), rooms, settings), None
        attention_mask = visible.mask(key.shape[2] - query.shape[2], key.shape[2])
    more = {name: each for name, each in (("softcap", softcap), ("s_aux", s_aux)) if each is not None}
    return own(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **more, **kwargs)


def _own_attention(module, name):
    """The function that the model's own attention of this name is, for this module."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    spaces = (vars(sys.modules[kind.__module__]) for kind in type(module).__mro__ if kind.__module__ in sys.modules)
    space = next((each for each in spaces if "ALL_ATTENTION_FUNCTIONS" in each), {})  # where its class is, which may have functions of its own
    return space.get("ALL_ATTENTION_FUNCTIONS", ALL_ATTENTION_FUNCTIONS).get_interface(name, space.get("eager_attention_forward"))


def _is_computed(module, name, own, query, key, value, dropout, softcap, sinks, kwargs):
    """Whether the engine computes what the model's own attention would."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if dropout or kwargs.get("is_causal") is False or name == "sdpa" and (softcap is not None or sinks is not None or own is not sdpa_attention_forward):
        return False
    if getattr(module, "sinks", None) is not None and module.sinks is not sinks:
        return False
    names = inspect.signature(own).parameters.keys() - COMPUTED
    if any(kwargs.get(name) is not None for name in (*names, "position_bias")):
        return False
    return query.shape[-1] == value.shape[-1] == key.shape[-1] and query.dtype == key.dtype == value.dtype and query.shape[0] == key.shape[0]


@functools.cache
def _asks_its_attention(kind):
    """Whether the code of a class asks which attention it has. A file is read once: a class's own part of it takes a parse of the whole."""
    return _file_asks(kind.__module__) and bool(BY_NAME.search(inspect.getsource(kind)))


@functools.cache
def _file_asks(module):
    return bool(BY_NAME.search(inspect.getsource(sys.modules[module])))


class LaneAttention:
    """The attention of a decoder's modules: the model's own, or inside ours() the engine's."""

    def __init__(self, decoder, layers):
        configs = (getattr(module, "config", None) for module in (decoder, *decoder.modules()))
        self.configs = list({id(each): each for each in configs if hasattr(each, "_attn_implementation_internal")}.values())
        kinds = {type(module) for layer in (decoder, *layers) for module in ((layer,) if layer is decoder else layer.modules())
                 if type(module).__module__.startswith("transformers.")}
        self.fits = bool(getattr(decoder, "_supports_attention_backend", False)) and not any(map(_asks_its_attention, kinds))

    def name(self):
        """The name of the model's own attention."""
        return str(next(map(own_name, self.configs), None) or "eager")

    def is_known(self):
        """Whether the model's own attention is one of transformers' that the engine knows."""
        from transformers import masking_utils as masks
        from transformers.integrations.sdpa_attention import sdpa_attention_forward
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        found = masks.ALL_MASK_ATTENTION_FUNCTIONS
        return (self.name() in OWN and ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward and "eager" not in ALL_ATTENTION_FUNCTIONS
                and found["sdpa"] is masks.sdpa_mask and found["eager"] is masks.eager_mask)

    def ours(self, wanted=True):
        """A context in which attention and masks of this thread are ours, or with wanted=False the model's own again."""
        chosen = wanted and self.fits and self.is_known()
        if chosen:
            _register()
        return attention_of(self.configs, self.name(), chosen)


@functools.cache
def _register():
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    library()
    ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, visible_or_mask)
