"""Memory that lies idle, spent on activations that a step would compute again.

How much each value of `keep` takes is asked once for a shape (streambp_plan); which of them is taken, the least time that fits what is idle, is
decided with the shape's first step and stays as long as it fits. What is kept changes no bit of the gradients.
"""

import weakref
from dataclasses import dataclass

import torch

from ._library import InputError, checked, library
from ._log import say
from ._measure import format_bytes
from ._plan import parse_bytes, request_of
from ._planner import ask

# Of what is idle: a GPU's allocator loses some between its blocks, and a CPU's memory is everybody's.
SHARE = {"cuda": 0.95, "cpu": 0.25}
# The same for a choice that stays: what the last step has freed may still be with the CPU's allocator.
SHARE_TO_STAY = {"cuda": 0.95, "cpu": 0.5}
OF_TOKENS = 64  # bytes a token: of the batch's indices, and of what is returned of its tokens, which a made-up batch has less of
LEAST_WORK = 1e9  # parameters x tokens: a smaller step takes less time than the question
SAID_BY_THE_CALLER = ("keep", "keep_attention", "every", "offload", "order")


@dataclass(frozen=True)
class Kept:
    """What is kept of the layers, as the setting `keep` says it; bytes: predicted peak beyond weights and gradients, None: nobody asked."""

    keep: str = "none"
    bytes: int | None = None
    cost: float = 0.0


class Shape:
    """What each value of `keep` takes for one shape, by rising cost, and which was taken last."""

    def __init__(self, rows):
        self.rows, self.taken, self.budget = rows, None, None

    def fitting(self, device, idle, missing, more, budget):
        """Those that fit: `missing` bytes of gradients will be made, and `more` are needed next to what was predicted. A budget, of which all may be
        taken, is for what comes beyond gradients."""
        if budget != self.budget:
            self.budget, self.taken = budget, None

        def holds(row):
            share = 1.0 if budget is not None else (SHARE_TO_STAY if row == self.taken else SHARE)[device]
            return row.bytes + more + missing <= share * idle and (budget is None or row.bytes + more <= budget)

        return [row for row in self.rows if holds(row)]


_shapes = weakref.WeakKeyDictionary()  # base model -> {key: Shape or None}
_told = weakref.WeakKeyDictionary()  # base model -> what it keeps, as was said last


def check_idle_memory(value):
    """Bytes of a size, None for True, 0 for False. Raises InputError for anything else."""
    return (None if value else 0) if isinstance(value, bool) else parse_bytes("idle_memory", value)


def idle_bytes(device):
    """Bytes that this process can still take on `device`: free, or held by its allocator for later, and within its limits."""
    if device.type == "cpu":
        library()
        return torch.ops.streambp.available_memory()
    free, total = torch.cuda.mem_get_info(device)
    allocated = torch.cuda.memory_allocated(device)
    limit = torch.cuda.get_per_process_memory_fraction(device) * total
    return int(min(free + torch.cuda.memory_reserved(device), limit) - allocated)


def size_of_step(objective, sizes, micro_batches=1):
    """(sequences, tokens of a sequence) of a made-up batch that takes no less than one of `sizes`, as Engine.sizes gives them; None where there is none."""
    rows, longest, tokens, rows_of_sample = sizes
    if rows_of_sample == 0 or tokens == 0:
        return None
    if objective == "sft" and micro_batches == 1:
        return 1, rounded_up(tokens)
    return rows // rows_of_sample, rows_of_sample * rounded_up(longest)


def rounded_up(tokens):
    """By an eighth at most: lengths that differ by little share a choice."""
    step = max(1, 2 ** (tokens.bit_length() - 4))
    return -(-tokens // step) * step


def shape_of(model, weights, objective, size, keywords):
    """The Shape of a step, asked once; None where it is too small to ask, or can't be predicted."""
    parameters = weights.parameters()
    trained = tuple(parameter.requires_grad for parameter in parameters.values())
    if size is None or sum(parameter.numel() for parameter in parameters.values()) * size[0] * size[1] < LEAST_WORK:
        return None
    own = _shapes.setdefault(weights.base, {})
    key = weights.key, trained, objective, size, tuple(sorted((name, type(value).__name__ if isinstance(value, torch.nn.Module) else str(value)) for name, value in keywords.items()))
    if key not in own:
        try:
            answer = ask("keep", request_of(model, objective, None, {"prompt": 1, **keywords}) | {"sequences": size[0], "seq_len": size[1]})
            own[key] = Shape([Kept(row["keep"], row["beyond_resident_bytes"] + OF_TOKENS * size[0] * size[1], row["cost"]) for row in answer])
        except (InputError, RuntimeError) as error:
            say(f"idle memory is not spent: {error}")
            own[key] = None
    return own[key]


def fitting(shape, weights, budget, more=0):
    """The rows of `shape` that fit now, by rising cost; budget: bytes, or None for a share of what is idle."""
    if shape is None or budget == 0:
        return []
    # Of the DTensors of sharded parameters, this rank's part.
    missing = sum(getattr(parameter, "_local_tensor", parameter).nbytes for parameter in weights.parameters().values() if parameter.requires_grad and parameter.grad is None)
    rows = shape.fitting(weights.device.type, idle_bytes(weights.device), missing, more, budget)
    if budget is not None and not rows:
        warn_of_excess(shape, weights, budget, more)
    return rows


def warn_of_excess(shape, weights, budget, more):
    """Said once for a budget: a step that keeps nothing takes more than it, and is run nevertheless."""
    least = min(row.bytes for row in shape.rows) + more
    if least <= budget or _told.get(weights.base) == budget:
        return
    _told[weights.base] = budget
    say(f"idle memory: a step that keeps nothing is predicted to take {format_bytes(least)} beyond weights and gradients, more than idle_memory's {format_bytes(budget)}; "
        "a smaller chunk or head_chunk takes less, every=2 the least")


def take(shape, weights, rows):
    """The first of `rows`, or the one that was taken last where it is among them; said where it changes."""
    if not rows:
        return Kept()
    taken = shape.taken if shape.taken in rows else rows[0]
    shape.taken = taken
    if _told.get(weights.base) != taken.keep:
        _told[weights.base] = taken.keep
        say(f"idle memory: keeps {taken.keep.replace(',', ', ')} of the layers, {format_bytes(taken.bytes)} predicted beyond weights and gradients, of "
            f"{format_bytes(idle_bytes(weights.device))} idle; idle_memory=False keeps nothing")
    return taken


def take_together(process_group, shape, weights, rows):
    """The one of least cost that fits on every rank, costs taken where they are highest. Every rank of the group calls this."""
    given = [None] * torch.distributed.get_world_size(process_group)
    torch.distributed.all_gather_object(given, {row.keep: row.cost for row in rows}, group=process_group)
    common = set(given[0]).intersection(*given)
    if not common:
        return Kept()
    keep = min(common, key=lambda name: (max(costs[name] for costs in given), name))
    return take(shape, weights, [row for row in rows if row.keep == keep])


def sizes_of(engine, tensors, objective, first_labels):
    return checked(engine.sizes, tensors, objective, first_labels)
