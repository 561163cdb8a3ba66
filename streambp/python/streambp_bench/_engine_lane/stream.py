"""One forward pass's tokens as the engine has them: packed, without padding, with the labels that are scored."""

import torch

from .._library import InputError, checked
from .._live_model.rope import hand_over_rope

IGNORED = -100
PACKED = "streambp_packed"  # asks the decoder for packed hidden states before the final norm; a function that looks at the stream first


class Stream:
    """One forward pass's tokens: padded inputs as they came, and the engine's stream of them by engine.

    A forward pass may meet several engines: FSDP2 gathers parameters in a dtype of its own.
    keep: activations that layers keep for their backward pass, as the setting `keep` says them; routes: whether layers give their routers' logits; router_logits: those of the layers that have one, packed [N, X].
    """

    def __init__(self, configuration, chunk, input_ids, attention_mask, position_ids, routes=False, keep="none"):
        self.configuration, self.chunk, self.routes, self.keep = configuration, chunk, routes, keep
        self.inputs = input_ids, attention_mask, position_ids
        self.router_logits = []
        self._streams = {}

    def on(self, hidden):
        """(engine, its stream) for hidden states of this dtype and on this device. Raises InputError for inputs that pack() refuses."""
        engine = self.configuration.engine(hidden)
        key = hidden.dtype, hidden.device
        if key not in self._streams:
            hand_over_rope(engine, self.configuration.weights.base, int(self.inputs[2].max()) + 1)
            self._streams[key] = checked(engine.stream, *self.inputs)
        return engine, self._streams[key]

    def has_padding(self):
        return next(iter(self._streams.values())).size() < self.inputs[0].numel()

    def pack(self, padded):
        """[N, D] of padded [B, T, D]."""
        _, stream = self.on(padded)
        rows = padded.flatten(0, 1)
        return rows if stream.size() == rows.shape[0] else rows.index_select(0, stream.indices().to(rows.device))

    def unpack(self, packed):
        """[B, T, ...] of packed [N, ...], 0 where there is padding."""
        batch, columns = self.inputs[0].shape
        shape = (batch, columns, *packed.shape[1:])
        if packed.shape[0] == batch * columns:
            return packed.reshape(shape)
        indices = next(iter(self._streams.values())).indices().to(packed.device)
        return packed.new_zeros(batch * columns, *packed.shape[1:]).index_copy(0, indices, packed).reshape(shape)


def unpacked_router_logits(stream):
    """What transformers calls router_logits, [B T, X] of each layer that has a router; 0 in padding."""
    return tuple(stream.unpack(logits).flatten(0, 1) for logits in stream.router_logits)


def labels_of(state, stream, labels, shift_labels=None, counted=False):
    """labels [B, T] where column t + 1 holds the target of column t, and none that padding would predict.

    Raises InputError for the latter unless state.first_labels is "ignore" (and then where they are `counted`, as Trainer's
    num_items_in_batch counts them), and for shift_labels with a target of the last column, which no
    column follows.
    """
    shape = stream.inputs[0].shape
    if shift_labels is not None:
        shift_labels = shift_labels.reshape(shape)
        if (shift_labels[:, -1] != IGNORED).any():
            raise InputError("shift_labels: the last column has a target; sequence parallelism is not supported, give labels, or -100 "
                             "there")
        labels = torch.nn.functional.pad(shift_labels[:, :-1], (1, 0), value=IGNORED)
    if labels.shape != shape:
        raise InputError(f"labels: shape {list(labels.shape)}, expected that of input_ids, {list(shape)}")
    mask = stream.inputs[1]
    if mask is None:
        return labels
    from_padding = torch.zeros(shape, dtype=torch.bool, device=labels.device)
    from_padding[:, 1:] = (mask[:, :-1] == 0).to(labels.device)
    from_padding &= labels != IGNORED
    if not from_padding.any():
        return labels
    if state.first_labels != "ignore":
        row, column = from_padding.nonzero()[0].tolist()
        raise InputError(f"labels: row {row} column {column}: padding would predict it; set it to -100, or patch(..., "
                         "first_labels=\"ignore\")")
    if counted:
        row, column = from_padding.nonzero()[0].tolist()
        raise InputError(f"labels: row {row} column {column}: padding would predict it, and num_items_in_batch counts it although "
                         "first_labels=\"ignore\" drops it: the loss would be too small; set it to -100 in the collator")
    return labels.masked_fill(from_padding, IGNORED)
