"""The head of TRL's trainers, streamed: model(..., labels=..., fused_lm_head=True) of trl.trainer.utils.add_fused_lm_head.

All trainers of TRL 1.16 ask for log-probabilities, and some statistics of the logits that no gradient flows through, by this call.
TRL's own head works on tiles of 4,096 tokens x 32,768 words; this one works on chunks and starts before the final norm.
"""

import inspect

import torch
from torch.autograd.function import once_differentiable

from . import _forwards
from ._decoder import runs_as_configured, text_config
from ._library import InputError
from ._refusals import raise_together
from ._streamed_head import head_slots, log_probability_gradients, wide
from ._streamed_layers import check_dtypes

OPTIONS = ("temperature", "cast_lm_head_to_fp32", "outputs", "final_logit_softcapping", "logit_scale", "original_forward")
STATISTICS = ("entropy", "log_sum_sq_probs", "mean_logits", "is_top1")
CHUNK_ELEMENTS = 1 << 22  # logits of a chunk of the forward pass: 16 MiB in float32
LEAST_CHUNK = 32  # tokens


def patch_trainer(trainer, **settings):
    """patch() for a trainer of TRL: its model, its reference model where there is one, and their heads. Returns the trainer.

    The head is left to TRL where a gradient of the entropy is wanted (GRPO's entropy bonus), where a float64 one is cast to float32, where
    PEFT has wrapped it, and where TRL reads something of the config that the model's own forward leaves out.
    Raises InputError as patch() does, and for checkpointing or another dtype than the model's in the trainer's arguments.
    """
    from ._patch import patch, patched_state, unpatch

    raise_together(lambda: _check_checkpointing(trainer), lambda: _check_cast(trainer))
    for model in (trainer.model, getattr(trainer, "ref_model", None)):
        if not isinstance(model, torch.nn.Module):
            continue
        model = getattr(trainer, "accelerator").unwrap_model(model)
        if patched_state(model) is not None:
            unpatch(model)  # the trainer has put its own forward around ours, ours goes around that
        patch(model, **settings)
        state = patched_state(model)
        options = fused_options(state.base) if isinstance(getattr(state.base, "lm_head", None), torch.nn.Linear) else None
        is_ours = options and not (options["cast_lm_head_to_fp32"] and state.configuration().weights.head_dtype != "float32")
        if is_ours and runs_as_configured(state.base) and not getattr(trainer, "_entropy_bonus_enabled", False):
            state.fused_head = options
    return trainer


def _check_checkpointing(trainer):
    arguments = vars(trainer.args)  # transformers 5.23 renames it, and warns of each look at the older name
    if arguments.get("activation_checkpointing") or arguments.get("gradient_checkpointing"):
        raise InputError("gradient_checkpointing is on in the trainer's arguments (TRL's default): layers would be computed twice over; "
                         "make the trainer with gradient_checkpointing=False")


def _check_cast(trainer):
    cast = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(trainer.accelerator.mixed_precision)
    if cast not in (None, trainer.model.dtype):
        raise InputError(f"the trainer casts to {str(cast).removeprefix('torch.')} (TRL's default is bf16=True) and the model is "
                         f"{str(trainer.model.dtype).removeprefix('torch.')}: make the trainer with bf16=False")


def fused_options(base):
    """The arguments of add_fused_lm_head for a patched model, read from the function that it made; None where there is none."""
    found = base.__dict__["_streambp_forward"].call.original
    function = getattr(found, "__func__", found)
    while function is not None:
        if inspect.isfunction(function) and set(OPTIONS) <= set(function.__code__.co_freevars):
            return inspect.getclosurevars(function).nonlocals
        wrapped = getattr(function, "__wrapped__", None)
        function = getattr(wrapped, "__func__", wrapped)
    return None


def fused_forward(call, given):
    """What TRL's function returns, FusedCausalLMOutput, with the fields that the trainer has asked for."""
    from trl.trainer.utils import FusedCausalLMOutput

    state, options = call.state, call.state.fused_head
    labels, shift_labels = given.pop("labels", None), given.pop("shift_labels", None)
    items = given.pop("num_items_in_batch", None)
    hidden, stream = _forwards.packed_hidden(call, given)
    targets = _forwards.labels_of(state, stream, labels, shift_labels).to(hidden.device)
    slots = head_slots(state, stream)
    log_probs, *statistics = _forwards.inside_head(state, hidden, lambda inner: StreamedStatistics.apply(
        stream, slots, targets, options, (state.backbone.norm, state.head_chunk), inner, *slots.tensors()))
    mask = targets[:, 1:] != _forwards.IGNORED
    if shift_labels is not None:  # then TRL counts the last column, which predicts nothing here
        log_probs, *statistics = [None if rows is None else torch.nn.functional.pad(rows, (0, 1)) for rows in (log_probs, *statistics)]
        mask = torch.nn.functional.pad(mask, (0, 1))
    fields = dict(zip(STATISTICS, statistics, strict=True))
    loss = -log_probs.sum() / (mask.sum().clamp(min=1) if items is None else items)
    balance = _forwards.balance_of(call, stream, given.get("attention_mask"))
    if balance is not None:
        loss = loss + getattr(text_config(state.base), "router_aux_loss_coef", 0.0) * balance
    return FusedCausalLMOutput(loss=loss, log_probs=log_probs, label_mask=mask, aux_loss=balance, **fields)


class StreamedStatistics(torch.autograd.Function):
    """hidden [N, D] -> log-probabilities [B, T - 1] and what of STATISTICS was asked for (else None), 0 where nothing is scored.

    Only the log-probabilities have a gradient, which is computed by the engine. That of the entropy is refused when it is asked for.
    """

    @staticmethod
    def forward(ctx, stream, slots, targets, options, module_and_chunk, hidden, *parameters):
        ctx.set_materialize_grads(False)
        hidden = hidden.contiguous()
        check_dtypes(slots, hidden, parameters)
        norm, head_chunk = module_and_chunk
        ctx.stream, ctx.slots, ctx.targets = stream, slots, targets
        ctx.temperature, ctx.head_chunk = float(options["temperature"]), head_chunk
        ctx.save_for_backward(hidden, *parameters)
        weight = parameters[-1]  # of the head: the final norm's come first
        packed = scored_tokens(stream, hidden, targets)
        columns = statistics_of(hidden, packed, weight, options, norm, head_chunk)
        shape = targets[:, 1:].shape
        results = [None if column is None else scattered(column, packed, targets).view(targets.shape)[:, :-1].reshape(shape)
                   for column in columns]
        ctx.mark_non_differentiable(*(result for result in results[2:] if result is not None))  # as TRL's
        return tuple(results)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient, of_entropy, *others):
        if of_entropy is not None:
            raise InputError("the loss depends on the entropy, whose gradient is not streamed: use streambp.patch(trainer.model), which "
                             "leaves the head to TRL")
        if gradient is None:
            return (None,) * len(ctx.needs_input_grad)
        hidden, *parameters = ctx.saved_tensors
        whole = torch.nn.functional.pad(gradient, (0, 1))
        of_hidden, gradients = log_probability_gradients(ctx, hidden, parameters, whole, ctx.needs_input_grad[6:])
        return None, None, None, None, None, of_hidden if ctx.needs_input_grad[5] else None, *gradients


def scored_tokens(stream, hidden, targets):
    """(rows of the stream that are scored, their indices in the padded input, their targets), each [M]."""
    _, packed = stream.on(hidden)
    indices = packed.indices().to(hidden.device)
    following = torch.nn.functional.pad(targets[:, 1:], (0, 1), value=_forwards.IGNORED).flatten()[indices]
    rows = (following != _forwards.IGNORED).nonzero().squeeze(1)
    return rows, indices[rows], following[rows]


def scattered(column, packed, targets):
    """`column` [M] at its tokens' indices in the padded input [B * T], 0 elsewhere."""
    return column.new_zeros(targets.numel()).index_copy(0, packed[1], column)


def statistics_of(hidden, packed, weight, options, norm, head_chunk):
    """[log-probabilities, *STATISTICS], each [M] or None, of the scored tokens, by chunks of logits."""
    rows, _, following = packed
    dtype = wide(hidden.dtype)
    outputs = [torch.empty(rows.numel(), dtype=dtype, device=hidden.device)]
    outputs += [torch.empty(rows.numel(), dtype=torch.bool if name == "is_top1" else dtype, device=hidden.device)
                if name in options["outputs"] else None for name in STATISTICS]
    chunk = head_chunk or max(LEAST_CHUNK, CHUNK_ELEMENTS // weight.shape[0])
    for start in range(0, rows.numel(), chunk):
        part = slice(start, start + chunk)
        normed = type(norm).forward(norm, hidden[rows[part]])
        logits = torch.nn.functional.linear(normed.to(weight.dtype), weight).to(dtype)
        for output, values in zip(outputs, chunk_statistics(logits, following[part], options, outputs), strict=True):
            if output is not None:
                output[part] = values
    return outputs


def chunk_statistics(logits, targets, options, wanted):
    """The same of logits [m, V], which are consumed."""
    softcap = options["final_logit_softcapping"]
    logits.mul_(options["logit_scale"])
    if softcap is not None:
        logits.div_(softcap).tanh_().mul_(softcap)
    logits.div_(options["temperature"])
    of_target = logits.gather(1, targets.unsqueeze(1)).squeeze(1)
    greatest = logits.amax(1)
    entropy = sum_of_squares = mean = is_top1 = None
    if wanted[3] is not None:
        mean = logits.mean(1)
    if wanted[4] is not None:
        is_top1 = logits.argmax(1) == targets
    logits.sub_(greatest.unsqueeze(1))
    shifted = logits
    if wanted[1] is not None:
        exponentials = shifted.exp()
        total = exponentials.sum(1)
        # The entropy is log z - sum(p x), of shifted logits x.
        entropy = total.log() - torch.einsum("mv,mv->m", exponentials, shifted) / total
    else:
        exponentials = shifted.exp_()
        total = exponentials.sum(1)
    if wanted[2] is not None:
        sum_of_squares = exponentials.square_().sum(1).log() - 2 * total.log()
    return of_target - greatest - total.log(), entropy, sum_of_squares, mean, is_top1
