"""summary(model): what patch() has taken for a model, in a table."""

import time
from dataclasses import dataclass, field

import torch

from ._engine_lane.lane import Patched
from ._library import InputError
from ._measure import format_bytes, measure
from ._replaced import patched_state


@dataclass
class Summary:
    """rows: (what, how many, how, remark) of layers and head; kept: activations that the engine's layers kept of the last step; chunk, head_chunk: tokens or "auto"; attention: its name; of a step that was measured
    peak_bytes beyond its start and seconds, else None."""

    rows: list = field(default_factory=list)
    kept: str = "none"
    chunk: object = "auto"
    head_chunk: object = "auto"
    attention: str = ""
    peak_bytes: int | None = None
    seconds: float | None = None

    def __str__(self):
        table = [("what", "how many", "how", "remark"), *((what, str(count), how, remark) for what, count, how, remark in self.rows)]
        widths = [max(len(row[i]) for row in table) for i in range(3)]
        lines = ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip() for row in table]
        if self.kept != "none":
            lines.append(f"kept of the last step: {self.kept.replace(',', ', ')}")
        lines.append(f"chunk {self.chunk}, head_chunk {self.head_chunk}, attention {self.attention}")
        if self.peak_bytes is not None:
            lines.append(f"a step: {format_bytes(self.peak_bytes)} beyond its start, {self.seconds:.3g} s")
        return "\n".join(lines)


def summary(model, batch=None):
    """A Summary of a patched model, to be printed: layers by lane and kind, with what was proved of them, head, chunks and attention.

    batch: what model(**batch) takes, with labels: one forward and backward pass is then run and measured on the batch's device; gradients are added to
    .grad. Raises InputError for a model that isn't patched, and for a batch without labels.
    """
    state = patched_state(model) if isinstance(model, torch.nn.Module) else None
    if state is None:
        raise InputError(f"{type(model).__name__}: not patched; call streambp_bench.patch(model) first")
    own = state.understudy if isinstance(state, Patched) else state
    found = Summary(chunk=state.chunk_in_words(), head_chunk=state.head_chunk or "auto",
                    attention=str(getattr(state.base.config.get_text_config(), "_attn_implementation", None) or "eager"))
    if isinstance(state, Patched):
        kinds = [type(layer).__name__ for layer in state.backbone.layers]
        found.rows += [(kind, kinds.count(kind), "engine", "") for kind in dict.fromkeys(kinds)]
        if state.has_head():
            found.rows.append(("head", 1, "engine", ""))
    if own is not None and (own is state or own.table is not None):
        when = "" if own is state else "where the engine refuses: "
        found.rows += own.rows(when)
    if batch is not None:
        found.peak_bytes, found.seconds = _step(model, batch)
    if isinstance(state, Patched):
        found.kept = state.kept.keep
    return found


def _step(model, batch):
    """(bytes beyond the start, seconds) of a forward and a backward pass."""
    if batch.get("labels") is None:
        raise InputError(f"batch: no labels in it, only {', '.join(map(str, batch))}: a step needs a loss")
    device = next(each.device for each in batch.values() if torch.is_tensor(each))
    start = time.perf_counter()
    with measure(device) as memory:
        model(**batch).loss.backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return memory.beyond_start, time.perf_counter() - start
