"""backward(): one call instead of a forward and a backward pass. It fills .grad of an unmodified model, and autograd sees nothing of it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ._batch import batch_tensors
from ._idle import SAID_BY_THE_CALLER, check_idle_memory, fitting, shape_of, size_of_step, sizes_of, take, take_together
from ._keywords import sort_keywords
from ._library import InputError, checked
from ._live_model.adapters import is_fresh
from ._live_model.attention import ADDED, is_added
from ._live_model.model import Weights, engine_of, gradients_lock
from ._live_model.refusals import check_autocast, check_loss, check_state
from ._live_model.rope import greatest_position, hand_over_rope
from ._ranks import group_name, refused_together

WINDOW = ("gradient_accumulation_steps", "steps_per_generation")  # of a trainer's arguments
BASE, REFERENCE_ADAPTER = "base", "ref"  # names of references; TRL's trainers call a frozen copy of the adapter "ref"


@dataclass(frozen=True)
class StepInfo:
    """What a step gives in addition to its loss.

    log_probabilities: [B, T] float64 on the CPU, of the target at the column whose logits predict it, 0 elsewhere; None where the objective
    has none, or the batch was cut into micro-batches; values: the same of a score; chunk, head_chunk: tokens of a chunk as run (0: none);
    tokens: without padding; method; notes: what the batch's author should know of how it was read, a line each; kept: activations that were
    kept, as the setting `keep` says them; predicted_bytes: the peak beyond weights and gradients that was predicted when idle memory was
    spent on them, None where none was.
    """

    log_probabilities: torch.Tensor | None
    values: torch.Tensor | None
    chunk: int
    head_chunk: int
    tokens: int
    method: str
    notes: tuple = ()
    kept: str = "none"
    predicted_bytes: int | None = None


@torch.compiler.disable
def backward(model, batch, objective="sft", *, chunk="auto", options=None, reference=None, teacher=None, return_info=False,
             first_labels="refuse", process_group=None, idle_memory=True, router_indices=None, indexer_indices=None, **settings):
    """The loss of `objective` on `batch`, with its gradients added to .grad of the model's trainable parameters.

    As `loss = model(**batch).loss; loss.backward()`, exactly and in little memory: no logits, no activations of the whole sequence. The
    model is read where it is, not copied or changed; parameters with requires_grad=False cost nothing and get nothing. Where .grad is None it is made,
    zeros for a parameter that the loss does not depend on; else it is added to in place. Hooks of modules and parameters do not run: a model in
    DistributedDataParallel, FSDP or DeepSpeed needs streambp_bench.patch(). torch.compile leaves it to Python.

    model: a transformers model of a known family (README.md): <Family>ForCausalLM, <Family>ForSequenceClassification with one label for
        objectives that score texts, or, for batches of text, <Family>ForConditionalGeneration of Gemma 3, Gemma 4, Mistral 3, Qwen3.5;
        or PEFT's wrapper of one with one LoRA adapter.
    batch: dict, BatchEncoding or BatchFeature of tensors [B, T] under the names that transformers and TRL give them, on any device:
        input_ids, attention_mask, position_ids, labels (sft, distill; without them every token is scored but a row's first),
        completion_mask (dpo, ...; or chosen_input_ids and so on, as of CPO's and ORPO's trainers), advantages (grpo, ...); None is left out.
        Several documents of a row are told apart by position_ids without attention_mask. num_items_in_batch, a number, is the loss's divisor
        where the objective has one.
    objective: "sft", "dpo", "cpo", "simpo", "orpo", "kto", "grpo", "rloo", "ppo", "distill", "reward" or "infonce".
    chunk: tokens of a chunk, or "auto".
    options: of the objective, by name, as numbers, words or lists of these ({"beta": 0.1}); any of them may also be a keyword argument:
        backward(model, batch, "dpo", beta=0.1). "grpo" takes a trainer's gradient_accumulation_steps and steps_per_generation too (_in_one_window).
    reference: for objectives that compare with a reference model, where the batch does not hold its log-probabilities: a model; "base", the
        model with its adapters off; or the name of one of its adapters. The default is TRL's for a model with adapters: the adapter "ref", which
        its trainers add to one that is trained already; else the base, while the adapter changes nothing yet. Later the choice has to be said.
    teacher: the model that "distill" learns from.
    return_info: (loss, StepInfo) instead of the loss.
    first_labels: "ignore" drops the label of a row's first token where padding stands before it; "ignore-all" those of padding, too; "refuse" raises.
    process_group: torch.distributed's, whose ranks all call this with a batch of their own, the same model and the same arguments. Loss and
        gradients are then those of all ranks' batches as one, the same on every rank: normalisers are counted over all, nothing is
        divided by the number of ranks, and a layer's gradients are summed over ranks once, after its last chunk. It needs a backend for
        the CPU (Gloo). Every rank raises the InputError of one, and for a num_items_in_batch that is not the
        same on all. Where .grad is there already, the pass's gradients are a second set.
        micro_batches=N cuts each rank's batch into N, which takes a row (or pair) for each; gradients are summed over ranks in the last.
    idle_memory: whether activations are kept that would be computed again otherwise, as many as what is idle allows (README.md), or as fit
        into "2GB" beyond weights and gradients: no bit of the gradients changes. False, or keep, every, offload, order or another method: what the settings say alone.
    router_indices, indexer_indices: [B, T, L, k], or tensors of the batch of that name: each token's experts and what its attention sees, as given (README.md).
    settings: method ("streambp" by default; "standard", "checkpoint", "logits-only", "tiled", "chunk-major"), keep, every, offload, order,
        head, head_chunk and micro_batches: as the flags of streambp-bench, and with their values.

    Returns a detached tensor [] on the model's device, float64 for a float64 model and else float32.

    Raises InputError (a ValueError), in one line that says what to do, for whatever can't be computed exactly; .grad is then as it was.
    Where memory runs out torch's OutOfMemoryError or RuntimeError passes through, and .grad that was there before may be incomplete.
    """
    group = group_name(process_group)
    with refused_together(group, lambda: take_together(process_group, None, None, [])):
        weights = Weights(model)
        check_state(weights.base)
        check_loss(weights.base, objective)
        check_autocast(weights.dtype, weights.device)
        engine = engine_of(weights)
        tensors = batch_tensors(_with_given(batch, router_indices=router_indices, indexer_indices=indexer_indices), weights.base)
        options = _in_one_window(tensors, dict(options or {}), settings, group) if objective == "grpo" else options
        given, settings = sort_keywords(engine, objective, options, {"chunk": chunk, **settings})
        settings["first_labels"] = first_labels
        hand_over_rope(engine, weights.base, greatest_position(tensors))
        parameters = weights.parameters()
        values = weights.views_of(parameters, parameters.values())
        of_reference = _reference(engine, values, weights, tensors, objective, given, reference, first_labels)
        of_teacher = _engine_and_views(teacher, "teacher") if teacher is not None else (None, {})
        kept = _spend(idle_memory, weights, engine, tensors, objective, given, settings, of_reference, teacher, process_group)
    with gradients_lock(weights):
        made = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad and parameter.grad is None}
        try:
            with refused_together(group):
                sums = _gradients(parameters)
            # What is there already has been summed over ranks before.
            own = {name: torch.zeros_like(gradient) if group and name not in made else gradient for name, gradient in sums.items()}
            loss, of_tokens, line = checked(engine.backward, values, weights.views_of(own, own.values()), tensors, objective, given, settings,
                                            of_reference, *of_teacher, group)
        except BaseException:
            for parameter in made.values():
                parameter.grad = None
            raise
        for name, gradient in own.items():
            if gradient is not sums[name]:
                sums[name].add_(gradient)
    loss = torch.tensor(loss, dtype=torch.float64 if weights.dtype == "float64" else torch.float32, device=weights.device)
    return (loss, _info(json.loads(line), of_tokens, weights, settings, kept, batch)) if return_info else loss


def _with_given(batch, **indices):
    """The batch with those of the arguments `indices` that are given among its tensors."""
    given = {name: tensor for name, tensor in indices.items() if tensor is not None}
    if not given or not isinstance(batch, Mapping):
        return batch
    for name in given:
        if batch.get(name) is not None:
            raise InputError(f"{name}: given as an argument and in the batch, expected one or the other")
    return {**batch, **given}


def _info(run, of_tokens, weights, settings, kept, batch):
    of_mask = [ADDED.format(": streambp_bench.backward hides what is False, as is meant")] if is_added(weights.base, batch.get("attention_mask")) else []
    all_attention = settings.get("keep_attention") == "true"
    return StepInfo(of_tokens.get("log_probabilities"), of_tokens.get("values"), run["chunk"], run["head_chunk"], run["tokens"], run["method"],
                    (*weights.notes, *of_mask, *run["notes"]), settings.get("keep", "attention" if all_attention else "none"), kept.bytes)


def _spend(idle_memory, weights, engine, tensors, objective, given, settings, of_reference, teacher, process_group):
    """What is kept of the layers, Kept, put into `settings` where these leave it open; with a process_group the same on every rank, all of which come here."""
    budget, shape, rows = check_idle_memory(idle_memory), None, []
    if budget != 0 and settings.get("method", "streambp") == "streambp" and not any(name in settings for name in SAID_BY_THE_CALLER):
        others = {"reference": weights.outer} if of_reference is not None and weights.adapter is None else {}
        others |= {"teacher": teacher} if teacher is not None else {}
        size = size_of_step(objective, sizes_of(engine, tensors, objective, settings["first_labels"]), int(settings.get("micro_batches", 1)))
        shape = shape_of(weights.outer, weights, objective, size, {"options": {name: given[name] for name in given if name != "num_items_in_batch"}, **settings, **others})
        # Beside a .grad that is there, ranks sum a second set.
        own = sum(p.nbytes for p in weights.parameters().values() if p.requires_grad and p.grad is not None) if process_group is not None else 0
        rows = fitting(shape, weights, budget, own)
    kept = take(shape, weights, rows) if process_group is None else take_together(process_group, shape, weights, rows)
    if kept.keep != "none":
        settings["keep"] = kept.keep
    return kept


def _in_one_window(tensors, options, keywords, group):
    """`options` of GRPO with the divisor that TRL's GRPOTrainer has for dapo, cispo and vespo; takes WINDOW out of them and of `keywords`.

    num_items_in_batch in a trainer's batch counts a generated batch, steps_per_generation micro-batches of all processes; the loss is divided by
    its share of one optimizer step: num_items_in_batch x gradient_accumulation_steps / steps_per_generation. Raises InputError where
    it counts other tokens than this batch's, and the two are not said.
    """
    words = [keywords.pop(name, options.pop(name, None)) for name in WINDOW]
    given = {**keywords, **options}
    is_said = any(word is not None for word in words)
    divided = given.get("loss_type") in ("dapo", "cispo", "vespo")
    if is_said and not (divided and "num_items_in_batch" in tensors and None not in words):
        raise InputError(f"{' and '.join(WINDOW)}: both are given, with a batch that has num_items_in_batch, for loss_type dapo, cispo and vespo, "
                         "whose divisor they change; leave them out")
    if not divided or "num_items_in_batch" not in tensors or given.get("num_items_in_batch") is not None:
        return options
    items = float(tensors["num_items_in_batch"])
    if is_said:
        if not all(isinstance(word, int) and word > 0 for word in words):
            raise InputError(f"{' and '.join(WINDOW)}: {words[0]!r} and {words[1]!r}, expected whole numbers from 1")
        del tensors["num_items_in_batch"]
        return {**options, "num_items_in_batch": max(items, 1.0) * words[0] / words[1]}
    mask = tensors.get("completion_mask")
    if mask is None or group:
        return options
    own = int((mask * tensors["tool_mask"] if "tool_mask" in tensors else mask).sum())
    if items != own:
        raise InputError(f"batch: num_items_in_batch is {items:g}, and the batch has {own} completion tokens: TRL's counts a generated batch and "
                         "is scaled to one optimizer step; say gradient_accumulation_steps=... and steps_per_generation=... of the trainer's "
                         "arguments, or give the divisor itself as the option num_items_in_batch=...")
    return options


def _gradients(parameters):
    """{name: .grad} of the trained ones, made where it is None. Raises InputError where there are none, and for one that can't be added to."""
    gradients = {}
    for name, parameter in parameters.items():
        if not parameter.requires_grad:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter.data)
        gradient = gradients[name] = parameter.grad
        if gradient.dtype != parameter.dtype or gradient.device != parameter.device or gradient.layout != torch.strided:
            raise InputError(f"{name}: its .grad is {gradient.dtype} on {gradient.device} ({gradient.layout}), expected {parameter.dtype} on "
                             f"{parameter.device}; set it to None")
    if not gradients:
        raise InputError("no parameter of the model has requires_grad: there is nothing to train")
    return gradients


def _engine_and_views(model, role, adapter=True):
    """(engine, {name: tensor}) of another model, or another `adapter`, that takes part. Raises InputError that names its role."""
    try:
        weights = Weights(model, adapters=adapter)
        check_state(weights.base)
        parameters = weights.parameters()
        engine = engine_of(weights)
        hand_over_rope(engine, weights.base, None)
        return engine, weights.views_of(parameters, parameters.values())
    except InputError as error:
        raise InputError(f"{role}: {error}") from None


def _reference(engine, values, weights, batch, objective, options, reference, first_labels):
    """What the reference says of the batch's tokens, [N] float64, or None where the objective asks for nothing of it."""
    if not checked(engine.needs_reference, objective, options, batch, first_labels):
        if reference is not None:
            raise InputError(f"reference: {objective} asks for none with these options and this batch; leave it out")
        return None
    if reference is None and weights.adapter is None:
        raise InputError(f"{objective} compares with a reference model: pass reference=MODEL, or its log-probabilities in the batch")
    if reference is None:
        reference = default_reference(weights, objective)
    if isinstance(reference, str):
        check_reference_name(reference, weights)
        if reference == "base":
            return checked(engine.evaluate, values, batch, objective, options, first_labels, False)
    other, its_values = _engine_and_views(weights.outer, "reference", reference) if isinstance(reference, str) else _engine_and_views(reference, "reference")
    return checked(other.evaluate, its_values, batch, objective, options, first_labels, True)


def default_reference(weights, objective):
    """The reference that TRL's trainers take for a model with an adapter. Raises InputError where that depends on how training began."""
    if REFERENCE_ADAPTER in weights.adapter.others:
        return REFERENCE_ADAPTER
    if is_fresh(weights.adapter, weights.base):
        return BASE
    others = "".join(f", reference=\"{name}\" (another adapter)" for name in weights.adapter.others)
    raise InputError(f"{objective}: adapter '{weights.adapter.name}' changes the model already, and there is no adapter '{REFERENCE_ADAPTER}': "
                     "say what it is compared with: reference=\"base\" (the model without it: an adapter that began fresh), reference=MODEL "
                     f"(an adapter that was trained before: TRL compares with a frozen copy of it){others}")


def check_reference_name(reference, weights):
    """Raises InputError for a reference given by a name that is neither "base" nor an adapter's, or that the model has no base for."""
    if not isinstance(reference, str):
        return
    known = () if weights.adapter is None else (BASE, *weights.adapter.others)
    if reference == BASE and weights.adapter is None:
        raise InputError('reference: "base" is a model with its adapters off, and this one has none; pass a model')
    if reference not in known:
        raise InputError(f"reference: '{reference}', expected a model" + "".join(f' or "{name}"' for name in known or (BASE,)))
