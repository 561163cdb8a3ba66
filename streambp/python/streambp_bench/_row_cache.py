"""The cache that a chunk of rows is given: what it sees of earlier rows, and what it leaves for later ones, with gradients.

Rows of a decoder layer meet earlier rows only through what the layer puts into its cache: keys and values, ends of convolutions, recurrent
states. RowCache speaks transformers' Cache interface to one layer for one chunk.
"""

import torch
from torch.nn.functional import pad


class Unfit(Exception):
    """Why this call of a layer can't be streamed; it runs whole."""


class Stop(Exception):
    """Keys and values are all that is wanted, and they are there."""


class Joined(torch.autograd.Function):
    """All rows' keys or values so far, [..., rows, size], of which the last are `own`; the earlier rows' gradient is added to `room`."""

    @staticmethod
    def forward(ctx, own, rows, room):
        ctx.room = room
        return rows.detach()

    @staticmethod
    def backward(ctx, gradient):
        earlier = ctx.room.shape[-2]
        ctx.room.add_(gradient.narrow(-2, 0, earlier))
        return gradient.narrow(-2, earlier, gradient.shape[-2] - earlier), None, None


class Rows:
    """Keys and values of all rows, [..., rows, size], one pair for each time that the layer updates its cache."""

    def __init__(self, rows):
        self.rows, self.pairs = rows, []

    def put(self, index, begin, pair):
        if index == len(self.pairs):
            self.pairs.append(tuple(_rows_like(x, self.rows) for x in pair))
        for all_rows, own in zip(self.pairs[index], pair, strict=True):
            all_rows.narrow(-2, begin, own.shape[-2]).copy_(own.detach())

    def until(self, index, end):
        return tuple(x.narrow(-2, 0, end) for x in self.pairs[index])

    def zeros(self):
        """Rooms for their gradients, where sums over chunks are as exact as in one product: in float32 and wider."""
        rooms = Rows(self.rows)
        rooms.pairs = [tuple(torch.zeros_like(x, dtype=wide(x.dtype)) for x in pair) for pair in self.pairs]
        return rooms


def in_autocast(*tensors):
    """Operands of attention, which autocast makes narrow."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return tensors
    return tuple(x.to(torch.get_autocast_dtype(kind)) if x.dtype == torch.float32 else x for x in tensors)


def _rows_like(x, rows):
    """Room for so many rows; of [B, heads, rows, size] a row's heads are next to each other, as the engine's attention has them."""
    if x.dim() < 4:
        return x.new_empty(*x.shape[:-2], rows, x.shape[-1])
    return x.new_empty(*x.shape[:-3], rows, x.shape[-3], x.shape[-1]).transpose(-3, -2)


def wide(dtype):
    """The dtype in which sums over chunks and losses are kept: float32, as transformers computes a loss, and what is wider."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


class _Itself:
    """What `cache.layers[index]` is: the one layer that asks."""

    def __init__(self, cache):
        self.cache = cache

    def __getitem__(self, index):
        return self.cache


class RowCache:
    """The cache of one layer for the chunk that starts at row `begin`.

    rows: Rows of the earlier chunks, which gets the own ones unless `rooms` is given; rooms: Rows that receive the gradients of earlier rows;
    before: states that the chunk starts from; updates: after so many it throws Stop. own: the chunk's own pairs; returned: what the layer
    was given for them, by position in Rows.pairs; after: states at its end.
    """

    is_compileable = False
    record_past = True  # is_recording_past() of transformers 5.20, whose layers also read states by themselves: layers[index].conv_states[0]

    def __init__(self, rows, begin, before=None, rooms=None, updates=None):
        self.rows, self.begin, self.before, self.rooms, self.updates = rows, begin, before or {}, rooms, updates
        self.own, self.after, self.returned = [], {}, {}

    @property
    def layers(self):
        return _Itself(self)  # not kept: a cycle would keep keys and values alive until Python's next collection

    def update(self, key_states, value_states, layer_idx=None, *args, **kwargs):
        index, pair = len(self.own), in_autocast(key_states, value_states)
        self.own.append(pair)
        joined = self._joined(index, pair)
        self.returned |= {(index, j): each for j, each in enumerate(joined)}
        return joined

    def _joined(self, index, pair):
        if self.rooms is not None and not self.begin:
            return pair
        self.rows.put(index, self.begin, pair)
        if len(self.own) == self.updates:
            raise Stop
        joined = self.rows.until(index, self.begin + pair[0].shape[-2])
        if self.rooms is None:
            return joined
        rooms = self.rooms.until(index, self.begin)
        joined = tuple(Joined.apply(*each) for each in zip(pair, joined, rooms, strict=True))
        for each in joined:
            each._streambp_rows = pair, rooms  # so that our attention (_module_attention.py) gives each its own part of the gradient
        return joined

    def own_by_position(self):
        return [((i, j), each) for i, pair in enumerate(self.own) for j, each in enumerate(pair)]

    def _state(self, name):
        state = self.before.get(name)
        return None if state is None else state.clone()  # some code writes into what it gets

    def get_conv_state(self, layer_idx=None, state_idx=0):
        return self._state(("convolution", state_idx))

    def update_conv_state(self, conv_states, layer_idx=None, state_idx=0, conv_kernel_size=None, **kwargs):
        size = conv_states.shape[-1] if conv_kernel_size is None else conv_kernel_size
        earlier = self.get_conv_state(layer_idx, state_idx)
        joined = conv_states if earlier is None else torch.cat([earlier, conv_states], -1)
        if earlier is None and joined.shape[-1] < size:
            joined = pad(joined, (size - joined.shape[-1], 0))
        self.after["convolution", state_idx] = joined[..., -size:]
        return joined

    def get_recurrent_state(self, layer_idx=None, state_idx=0):
        return self._state(("recurrence", state_idx))

    def update_recurrent_state(self, recurrent_states, layer_idx=None, state_idx=0, **kwargs):
        self.after["recurrence", state_idx] = recurrent_states
        return recurrent_states

    @property
    def conv_states(self):
        return self._states("convolution")

    @property
    def recurrent_states(self):
        return self._states("recurrence")

    def _states(self, wanted):
        return {name[1]: self._state(name) for name in self.before if name[0] == wanted}

    def is_recording_past(self, *args):
        return True  # or a chunk of one row would change states in place

    def has_previous_state(self, *args, **kwargs):
        return bool(self.before)

    def update_indexer(self, *args, **kwargs):
        raise Unfit("its indexer picks rows, and among equal scores others where it is given fewer")

    def get_linear_cache(self, layer_idx):
        return self._state("linear")

    def set_linear_cache(self, layer_idx, linear_cache):
        self.after["linear"] = linear_cache

    def get_seq_length(self, *args):
        return self.begin

    def get_query_offset(self, *args):
        return self.begin

    def get_mask_sizes(self, query_length, *args):
        return self.begin + query_length, 0
