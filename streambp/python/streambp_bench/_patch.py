"""patch(): a Hugging Face model whose own training loop is kept, and whose layers and head are streamed.

    model = streambp_bench.patch(model)           # or streambp_bench.patch(trainer)
    ...                                     # Trainer, a loop with loss.backward(), DDP, FSDP2
    streambp_bench.unpatch(model)

Two lanes compute them: the engine (_engine_lane/), for the families and states that it knows, and the model's own code (_module_lane/).
"""

import torch

from ._engine_lane.lane import Patched
from ._idle import check_idle_memory
from ._library import InputError
from ._log import say
from ._module_lane.lane import ModuleLane
from ._module_lane.proof import ROWS, prove_lane
from ._module_lane.sharded import as_sharded
from ._replaced import patched_state

FIRST_LABELS = ("refuse", "ignore")
LANES = ("auto", "engine", "module")


def patch(model, chunk="auto", head_chunk="auto", first_labels="refuse", *, lane="auto", prove=True, idle_memory=True):
    """Makes `model` compute its layers, and its loss where labels are given in training mode, in chunks; returns it.

    model: a causal decoder of transformers, PEFT's wrapper of one, or a trainer with one, whose reference model is then patched as well.
    chunk, head_chunk: tokens of a layer's and of the head's chunk, or "auto"; they change memory and time, and gradients by rounding alone.
    first_labels: what becomes of a label that padding on its left would predict, in the engine's lane: "refuse" it (lane="auto" leaves such a batch
    to the model's own code), or "ignore" it, as if it were -100.
    lane: "engine", whose families and states are known and others refused; "module", any decoder's layers and head by the model's own code; "auto",
    the engine where it is exact for this model and this call, the model's own code elsewhere. One line says what was taken.
    prove: whether layers and head by the model's own code are proved on random tokens first, so that a layer whose rows meet outside its cache runs
    whole.
    idle_memory: whether the engine's lane keeps activations that the backward pass would compute again otherwise, as many as what is idle allows: on
    a GPU what is free, on a CPU a quarter of it; or as fit into "2GB" beyond weights and gradients. It changes no bit of the gradients. False: layers keep their inputs alone.

    In training mode with labels the output's logits are computed when they are looked at. Without labels, in evaluation mode, and with a cache the
    model answers as it always does. Patching again changes the settings. Raises InputError for models without decoder layers, and with
    lane="engine" for models and states that can't be exact there (README.md lists them).
    """
    if lane not in LANES:
        raise InputError(f"lane is {lane!r}, expected one of {', '.join(LANES)}")
    if first_labels not in FIRST_LABELS:
        raise InputError(f"first_labels is {first_labels!r}, expected one of {', '.join(FIRST_LABELS)}")
    if lane == "module" and first_labels != "refuse":
        raise InputError("first_labels belongs to the engine's lane: with lane=\"module\" labels mean what they do to the model")
    settings = {"chunk": chunk, "head_chunk": head_chunk, "first_labels": first_labels, "lane": lane, "prove": prove, "idle_memory": idle_memory}
    if is_trainer(model):
        return patch_trainer(model, settings)
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"model is {model!r}, a {type(model).__name__}: expected a model in memory, as AutoModelForCausalLM.from_pretrained(...) gives it, "
                         "or a trainer")
    chunk, head_chunk = tokens_of("chunk", chunk), tokens_of("head_chunk", head_chunk)
    budget = check_idle_memory(idle_memory)
    if patched_state(model) is not None:
        patched_state(model).remove()
    state = _lane_of(model, lane, (chunk, head_chunk, first_labels, budget), prove)
    state.install()
    say(state.describe())
    return model


def _lane_of(model, lane, settings, prove):
    """The lane that is taken, ready to be installed."""
    chunk, head_chunk, *_ = settings
    refused = False
    if lane != "module":
        try:
            state = Patched(model, *settings)
            state.check()
            state.configuration()
        except InputError:
            if lane == "engine":
                raise
            refused = True
    if lane == "engine":
        return state
    try:
        own = ModuleLane(model, chunk, head_chunk, prove)
    except InputError:
        if lane == "module" or refused:
            raise
        return state
    if lane == "auto" and not refused:
        state.understudy = own
        return state
    own.prepare()
    return own


def is_trainer(model):
    return hasattr(model, "train") and hasattr(model, "accelerator") and not isinstance(model, torch.nn.Module)


def patch_trainer(trainer, settings):
    """patch() for a trainer: its model, and its reference model where there is one. Returns the trainer."""
    if getattr(getattr(trainer, "args", None), "n_gpu", 1) > 1 and getattr(trainer.model, "hf_device_map", None) is None and not getattr(trainer, "is_model_parallel", False):
        raise InputError(f"the trainer would copy the model to {trainer.args.n_gpu} GPUs at each step (torch's DataParallel), and copies run no forward of ours: start it "
                         "with torchrun or accelerate launch, a process for each GPU, or let it see one alone (CUDA_VISIBLE_DEVICES=0)")
    if settings["lane"] == "engine":
        _check_cast(trainer)
    for model in (trainer.model, getattr(trainer, "ref_model", None)):
        if isinstance(model, torch.nn.Module):
            patch(trainer.accelerator.unwrap_model(model), **settings)
    return trainer


def _check_cast(trainer):
    cast = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(trainer.accelerator.mixed_precision)
    if cast not in (None, trainer.model.dtype):
        raise InputError(f"the trainer casts to {str(cast).removeprefix('torch.')} (TRL's default is bf16=True) and the model is "
                         f"{str(trainer.model.dtype).removeprefix('torch.')}: make the trainer with bf16=False, or use lane=\"auto\"")


def unpatch(model):
    """Takes patch() back: the model's own forward functions run again, bit for bit. Returns `model`, or the trainer.

    A function that was put around the patched forward since (by a trainer) stays where it is, and calls the model's own.
    Raises InputError for a model that isn't patched.
    """
    if is_trainer(model):
        found = [each for each in (model.model, getattr(model, "ref_model", None)) if isinstance(each, torch.nn.Module) and patched_state(each) is not None]
        if not found:
            raise InputError(f"{type(model).__name__}: its model is not patched")
        for each in found:
            unpatch(each)
        return model
    state = patched_state(model) if isinstance(model, torch.nn.Module) else None
    if state is None:
        raise InputError(f"{type(model).__name__}: not patched")
    state.remove()
    return model


def prove(model):
    """Whether each kind of decoder layer of `model` gives its own gradients when it is run in chunks, on random tokens: a Table of Proofs.

    What patch(model, lane="module") does; the model stays as it is. Raises InputError for models without decoder layers.
    """
    state = patched_state(model)
    if state is None:
        state = ModuleLane(model, ROWS)
    with state.paused(), as_sharded(state.base):
        return prove_lane(state if isinstance(state, ModuleLane) else ModuleLane(model, ROWS))


def tokens_of(name, value):
    """A number of tokens; 0: auto."""
    if value == "auto":
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} is {value!r}, expected a number of tokens from 1, or \"auto\"")
    return value
