"""The cache that a chunk of rows is given: what it sees of earlier rows, and what it leaves for later ones, with gradients.

Rows of a decoder layer meet earlier rows only through what the layer puts into its cache: keys and values, ends of convolutions, recurrent
states. RowCache speaks transformers' Cache interface to one layer for one chunk.
"""

import torch
from torch.nn.functional import pad


class Unfit(Exception):
    """Why this call of a layer can't be streamed; it runs whole."""


class PicksRows(Unfit):
    """The layer's indexer picks rows, and among equal scores others where it is given fewer: it is to be given all."""


class Stop(Exception):
    """Keys and values are all that is wanted, and they are there."""


class Joined(torch.autograd.Function):
    """Keys or values, [..., rows, size]: as many as `room` has of earlier rows, then `own`, then any of later rows, which a mask hides. The earlier rows'
    gradient is added to `room`."""

    @staticmethod
    def forward(ctx, own, rows, room):
        ctx.room, ctx.count = room, own.shape[-2]
        return rows.detach()

    @staticmethod
    def backward(ctx, gradient):
        earlier = ctx.room.shape[-2]
        ctx.room.add_(gradient.narrow(-2, 0, earlier))
        return gradient.narrow(-2, earlier, ctx.count), None, None


class Rows:
    """Keys and values of all rows, [..., rows, size], one pair for each time that the layer updates its cache. full: a chunk is given those of later rows
    too, zeros until they are there, which its mask hides. rate: of how many rows the layer makes one compressed entry, if it does."""

    def __init__(self, rows, full=False, rate=None):
        self.rows, self.full, self.rate, self.pairs = rows, full, rate, []

    def put(self, index, begin, pair, rows=None):
        """rows: how many there are in all, where later ones are read before they are there."""
        if index == len(self.pairs):
            self.pairs.append(tuple(_rows_like(x, self.rows) if rows is None else _rows_like(x, rows).zero_() for x in pair))
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
    before: states that the chunk starts from; updates: after so many it throws Stop. own: the chunk's own pairs, and from which row on they are; returned:
    what the layer was given for them, by position in Rows.pairs; after: states at its end.
    """

    is_compileable = False
    record_past = True  # is_recording_past() of transformers 5.20, whose layers also read states by themselves: layers[index].conv_states[0]

    def __init__(self, rows, begin, before=None, rooms=None, updates=None):
        self.rows, self.begin, self.before, self.rooms, self.updates = rows, begin, before or {}, rooms, updates
        self.own, self.after, self.returned, self.no_entries = [], {}, {}, {}

    @property
    def layers(self):
        return _Itself(self)  # not kept: a cycle would keep keys and values alive until Python's next collection

    def update(self, key_states, value_states, layer_idx=None, *args, **kwargs):
        return self._update(in_autocast(key_states, value_states))

    def update_indexer(self, key_states, layer_idx=None, *args, **kwargs):
        if not self.rows.full:
            raise PicksRows("its indexer picks rows, and among equal scores others where it is given fewer")
        return self._update((key_states,))[0]

    def update_index(self, idx_k):
        """Of MiniMax M3, whose indexer picks blocks of keys, and hides those of later rows itself."""
        return self._update((idx_k,))[0]

    def _update(self, pair, begin=None, rows=None):
        """begin: of the pair's rows, by default the chunk's; rows: how many there are in all, where later ones are given too."""
        index, begin = len(self.own), self.begin if begin is None else begin
        self.own.append((pair, begin))
        joined = self._joined(index, pair, begin, self.rows.rows if rows is None and self.rows.full else rows)
        self.returned |= {(index, j): each for j, each in enumerate(joined)}
        return joined

    def _joined(self, index, pair, begin, rows):
        count = pair[0].shape[-2]
        if self.rooms is not None and not begin and rows in (None, count):
            return pair
        self.rows.put(index, begin, pair, rows)
        if len(self.own) == self.updates:
            raise Stop
        joined = self.rows.until(index, begin + count if rows is None else rows)
        if self.rooms is None:
            return joined
        rooms = self.rooms.until(index, begin)
        joined = tuple(Joined.apply(*each) for each in zip(pair, joined, rooms, strict=True))
        for each in joined:
            each._streambp_rows = pair, rooms  # so that our attention (attention.py) gives each its own part of the gradient
        return joined

    def width(self, count):
        """How many rows' keys a chunk of `count` rows is given."""
        return self.rows.rows if self.rows.full else self.begin + count

    def own_by_position(self):
        """[(position, tensor, its first row)]"""
        return [((i, j), each, begin) for i, (pair, begin) in enumerate(self.own) for j, each in enumerate(pair)]

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

    def store_compression_weights(self, name, kv, gate):
        """Of DeepSeek V4: the rows of whole windows, from the chunk's and those left over before it, and where they begin."""
        for each in ("overlap", "overlap of gates"):  # stays, where no window ends in the chunk
            if (each, name) in self.before:
                self.after[each, name] = self.before[each, name]
        usable = (self.begin % self.rows.rate + kv.shape[1]) // self.rows.rate * self.rows.rate
        joined = []
        for key, each in (("left over", kv), ("gates left over", gate)):
            earlier = self._state((key, name))
            joined.append(each if earlier is None else torch.cat([earlier, each], 1))
            self.after[key, name] = joined[-1][:, usable:]
        self.no_entries[name] = kv[:, :0]
        return *(each[:, :usable] for each in joined), self.begin // self.rows.rate * self.rows.rate

    def update_overlap_state(self, name, chunk_kv, chunk_gate, head_dim):
        earlier = tuple(self._state((key, name)) for key in ("overlap", "overlap of gates"))
        self.after["overlap", name], self.after["overlap of gates", name] = chunk_kv[:, -1, :, :head_dim], chunk_gate[:, -1, :, :head_dim]
        return earlier

    def update_compressor_states(self, name, compressed):
        """All entries, the later ones zeros, which the layer hides from earlier rows itself: its indexer picks among as many as in one pass."""
        if not compressed.shape[1]:
            compressed = self.no_entries[name][..., : compressed.shape[-1]].to(compressed.dtype)  # through which the gradient of earlier entries passes
        return self._update((compressed,), self.begin // self.rows.rate, self.rows.rows // self.rows.rate)[0]

    def get_linear_cache(self, layer_idx):
        return self._state("linear")

    def set_linear_cache(self, layer_idx, linear_cache):
        self.after["linear"] = linear_cache

    def get_seq_length(self, *args):
        return self.begin

    def get_query_offset(self, *args):
        return self.begin

    def get_mask_sizes(self, query_length, *args):
        return self.width(query_length), 0
