"""log_probabilities(): of the next tokens, streamed and differentiable, by the lane that computes the model."""

import torch

from ._engine_lane.stream import IGNORED, PACKED
from ._engine_lane.streamed_head import streamed_log_probabilities
from ._library import InputError
from ._once import once_differentiable
from ._module_lane.head import Sums, autocast_now, cross_entropy, hidden_of, leaves_of, logits_of, with_hidden
from ._module_lane.node import Unfit
from ._module_lane.row_cache import wide
from ._replaced import patched_state


def log_probabilities(model, input_ids, attention_mask=None, position_ids=None, targets=None, temperature=1.0):
    """Log-probabilities of the next tokens, streamed and differentiable: [B, T - 1], at column t that of targets[:, t + 1].

    model: a patched model with an LM head. input_ids [B, T]; attention_mask, position_ids as the model takes them; targets [B, T]
    (default: input_ids where attention_mask is 1; -100: not scored, and 0 in the result); temperature: what logits are divided by.
    float32, or float64 for models of float64. Raises InputError for models that aren't patched or have no LM head, and with lane="engine" for inputs
    that the engine refuses.
    """
    state = patched_state(model)
    if state is None:
        raise InputError(f"{type(model).__name__}: not patched; call streambp_bench.patch(model) first")
    if state.base.get_output_embeddings() is None:
        raise InputError(f"{type(state.base).__name__} has no LM head")
    if not temperature > 0:
        raise InputError(f"temperature is {temperature}, expected a number above 0")
    if targets is None:
        targets = input_ids.clone() if attention_mask is None else input_ids.masked_fill(attention_mask == 0, IGNORED)
        if attention_mask is not None:  # nothing predicts a row's first token, be there padding before it
            targets[:, 1:][attention_mask[:, :-1] == 0] = IGNORED
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
    if not hasattr(state, "configuration"):
        return _by_own_code(state, inputs, targets, float(temperature))
    try:
        return _by_engine(state, inputs, targets, float(temperature))
    except InputError as error:
        if state.understudy is None:
            raise
        reason = str(error)
    with state.aside(reason):
        return _by_own_code(state.understudy, inputs, targets, float(temperature))


def _by_engine(state, inputs, targets, temperature):
    hidden, stream = state.backbone(**inputs, use_cache=False, **{PACKED: lambda stream: None})
    return streamed_log_probabilities(state, stream, hidden, targets, temperature)[:, :-1]


def _by_own_code(lane, inputs, targets, temperature):
    """The head in chunks of rows, as the lane's loss has it; where it can't be, all logits at once."""
    head, targets = lane.head, targets[:, 1:]
    inputs = {name: value for name, value in inputs.items() if value is not None} | {"use_cache": False}
    if head.obstacle(lane.base.forward):
        return _of_logits(lane.base(**inputs).logits[:, :-1], targets, temperature)
    outputs = lane.base._modules[head.name](**inputs)
    hidden = hidden_of(outputs)
    try:
        logits = logits_of(head.run(lambda *args, **kwargs: with_hidden(outputs, hidden[:, :0].detach()), None, inputs))
        parameters = leaves_of(logits)
        if any(type(each.data).__name__ == "DTensor" for each in parameters):
            raise Unfit("parameters of the head are sharded")
    except Exception:  # whatever its code says to no rows at all
        return _of_logits(logits_of(head.run(lambda *args, **kwargs: outputs, None, inputs))[:, :-1], targets, temperature)
    return LogProbabilitiesNode.apply(head, outputs, targets.to(hidden.device), temperature, logits.shape[-1], hidden[:, :-1], *parameters)


def _of_logits(logits, targets, temperature):
    rows = (logits.to(wide(logits.dtype)) / temperature).log_softmax(-1)
    found = rows.gather(-1, targets.clamp(min=0).to(rows.device)[..., None]).squeeze(-1)
    return found.masked_fill(targets.to(found.device) == IGNORED, 0)


class LogProbabilitiesNode(torch.autograd.Function):
    """hidden [B, T, D] -> log-probabilities [B, T] of targets [B, T], 0 where these are -100. The logits are made again in the backward pass."""

    @staticmethod
    def forward(ctx, head, outputs, targets, temperature, words, hidden, *parameters):
        ctx.size = head.rows_of_chunk(words, hidden.device)
        ctx.head, ctx.outputs, ctx.targets, ctx.temperature, ctx.autocast = head, outputs, targets, temperature, autocast_now(hidden)
        ctx.save_for_backward(hidden, *parameters)
        result = torch.zeros(targets.shape, dtype=wide(hidden.dtype), device=hidden.device)
        for part, rows in _chunks(ctx, hidden):
            with ctx.autocast():
                logits = head.logits(rows, outputs)[0]
            losses, _ = cross_entropy(logits.to(wide(logits.dtype)) / temperature, targets[part].to(logits.device))
            result[part] = -losses.to(result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        hidden, *parameters = ctx.saved_tensors
        sums = Sums(parameters, ctx.needs_input_grad[6:])
        of_hidden = torch.zeros_like(hidden)
        for part, rows in _chunks(ctx, hidden):
            own = rows.detach().requires_grad_()
            with torch.enable_grad(), ctx.autocast(), sums:
                logits = ctx.head.logits(own, ctx.outputs)
            _, seed = cross_entropy(logits[0].detach().to(wide(logits.dtype)) / ctx.temperature, ctx.targets[part].to(logits.device))
            seed *= -gradient[part].to(seed)[:, None] / ctx.temperature
            of_rows = sums.add(logits, seed.to(logits.dtype)[None], own)
            if of_rows is not None:
                of_hidden[part] = of_rows[0]
            del logits, seed  # or they are there while the next ones are made
        return None, None, None, None, None, of_hidden if ctx.needs_input_grad[5] else None, *sums.gradients()


def _chunks(ctx, hidden):
    """(indices into [B, T], rows [1, C, D]) of the scored rows."""
    indices = (ctx.targets != IGNORED).nonzero(as_tuple=True)
    for part in zip(*(each.split(ctx.size) for each in indices), strict=True):
        if part[0].numel():
            yield part, hidden[part][None]
