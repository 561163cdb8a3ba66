"""Level 2: a Hugging Face model whose own training loop is kept, and whose layers and head are the engine's.

    model = streambp.patch(model)           # or streambp.patch(trainer), for trainers of TRL
    ...                                     # Trainer, a loop with loss.backward(), DDP, FSDP2
    streambp.unpatch(model)

Each decoder layer becomes one autograd node that keeps its input alone (_streamed_layers.py); final norm, LM head and loss become another
(_streamed_head.py). Gradients go through torch's own AccumulateGrad once a layer, so that whatever hangs there keeps working.
"""

import copy
import functools
import types
import warnings

import torch

from . import _forwards
from ._adapters import find_adapter, lora_layers
from ._attention import check_attention
from ._decoder import decoder, is_whole
from ._library import InputError, checked, library
from ._model import DTYPES, Weights, engine_of, unwrap
from ._module_state import check_attributes, check_functions, check_own_forward, module_settings, notes_on
from ._refusals import (check_autocast, check_checkpointing, check_class, check_config, check_dropout, check_layers, check_modules, check_parameters,
                        raise_together)

ATTRIBUTE = "_streambp"
FIRST_LABELS = ("refuse", "ignore")
LANES = ("engine", "module")


def patch(model, chunk="auto", head_chunk="auto", first_labels="refuse", *, lane="engine", prove=True):
    """Makes `model` compute its layers, and its loss where labels are given in training mode, in chunks; returns it.

    model: a transformers model of a known family, PEFT's wrapper of one, or one of TRL's trainers, whose model (and reference model) is
    then patched together with the head that the trainer asks for log-probabilities.
    chunk, head_chunk: tokens of a layer's and of the head's chunk, or "auto"; they change memory and time, and gradients by rounding alone.
    first_labels: what becomes of a label that padding on its left would predict: "refuse" it, or "ignore" it, as if it were -100.
    lane: "engine", whose families are known, or "module": any decoder's layers by the model's own code (_module_lane.py), and the model's own
    head; prove: whether that is proved on random tokens first, so that a layer whose rows meet outside its cache runs whole.

    In training mode with labels the output has a loss and no logits. Without labels, in evaluation mode, and with a cache the model
    answers as it always does. Patching again changes the settings. Raises InputError for models and states that can't be exact
    (README.md lists them).
    """
    if lane not in LANES:
        raise InputError(f"lane is {lane!r}, expected one of {', '.join(LANES)}")
    is_trainer = hasattr(model, "train") and hasattr(model, "accelerator") and not isinstance(model, torch.nn.Module)
    if lane == "module":
        if (head_chunk, first_labels) != ("auto", "refuse"):
            raise InputError("head_chunk and first_labels belong to lane=\"engine\": in lane=\"module\" the head is the model's own")
        from ._module_lane import patch_module

        patch_module(model.model if is_trainer else model, chunk if chunk == "auto" else _tokens("chunk", chunk), prove)
        return model
    if is_trainer:
        from ._trl import patch_trainer

        return patch_trainer(model, chunk=chunk, head_chunk=head_chunk, first_labels=first_labels)
    outer, base = unwrap(model)
    state = getattr(base, ATTRIBUTE, None)
    if state is not None and (not isinstance(state, Patched) or state.outer is not outer or state.has_changed()):
        state.remove()  # adapters have come or gone
        state = None
    if state is None:
        _check_known(base)
        state = Patched(model)
    state.chunk, state.head_chunk = _tokens("chunk", chunk), _tokens("head_chunk", head_chunk)
    if first_labels not in FIRST_LABELS:
        raise InputError(f"first_labels is {first_labels!r}, expected one of {', '.join(FIRST_LABELS)}")
    state.first_labels = first_labels
    state.fused_head = None  # patch_trainer() knows whether it streams
    state.check()
    state.install()
    return model


def _check_known(base):
    try:
        check_class(base)
        check_layers(base)
    except InputError as error:
        raise InputError(f"{error}; lane=\"module\" streams it by its own code") from None


def unpatch(model):
    """Takes patch() back: the model's own forward functions run again, bit for bit. Returns `model`, or the trainer.

    A function that was put around the patched forward since (by a trainer) stays where it is, and calls the model's own.
    Raises InputError for a model that isn't patched.
    """
    if not isinstance(model, torch.nn.Module) and hasattr(model, "model"):
        found = [each for each in (model.model, getattr(model, "ref_model", None))
                 if isinstance(each, torch.nn.Module) and patched_state(each) is not None]
        if not found:
            raise InputError(f"{type(model).__name__}: its model is not patched")
        for each in found:
            unpatch(each)
        return model
    state = patched_state(model)
    if state is None:
        raise InputError(f"{type(model).__name__}: not patched")
    state.remove()
    return model


def patched_state(model):
    """The Patched of a model, or None."""
    return unwrap(model)[1].__dict__.get(ATTRIBUTE)


def _tokens(name, value):
    if value == "auto":
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} is {value!r}, expected a number of tokens from 1, or \"auto\"")
    return value


class Slots:
    """The model's parameters under `names`, wherever they are at the moment: FSDP2 exchanges them during a call."""

    def __init__(self, weights, names):
        self.weights, self.names = weights, names
        self._owners = []
        for name in names:
            path, _, last = name.rpartition(".")
            self._owners.append((weights.base.get_submodule(path), last))
        self._shapes = [tuple(tensor.shape) for tensor in self._read()]

    def _read(self):
        return [getattr(module, last) for module, last in self._owners]

    def tensors(self):
        """The parameters in the order of the names. Raises InputError where one is sharded or not gathered at the moment."""
        tensors = self._read()
        for name, tensor, shape in zip(self.names, tensors, self._shapes, strict=True):
            if type(tensor.data).__name__ == "DTensor":
                raise InputError(f"{name} is sharded while it is needed (DTensor): shard whole decoder layers with fully_shard(layer) and "
                                 "then the model, nothing inside a layer")
            if tuple(tensor.shape) != shape:
                raise InputError(f"{name} is {list(tensor.shape)} while it is needed, expected {list(shape)}: with DeepSpeed's ZeRO-3 call "
                                 "set_z3_leaf_modules(model, [type of the decoder layer])")
        return tensors

    def lend(self, tensors):
        """The engine's views of `tensors`, by its names; None: left out."""
        return self.weights.lend(self.names, tensors)


class Configuration:
    """The model with one adapter, or with none: its names, and engines by dtype and device."""

    def __init__(self, model, adapters):
        self.weights = Weights(model, adapters=adapters)
        engine_of(self.weights)  # every name and shape is compared once
        self.layers = [Slots(self.weights, self.weights.names_of(layer)) for layer in self.weights.layers()]
        self.head = Slots(self.weights, self.weights.head_names())
        self._engines = {}

    def engine(self, hidden):
        """The engine for hidden states of this dtype and on this device."""
        weights = self.weights
        key = DTYPES.get(hidden.dtype), DTYPES.get(weights.dtype_of("lm_head.weight", hidden.dtype)), str(hidden.device)
        if key not in self._engines:
            self._engines[key] = checked(library().Engine, weights.config_json, weights.source, weights.adapter_json, *key)
        return self._engines[key]

    def __deepcopy__(self, memo):
        """Engines hold shapes alone and are shared."""
        result = object.__new__(Configuration)
        memo[id(self)] = result
        result.__dict__ = {key: value if key == "_engines" else copy.deepcopy(value, memo) for key, value in self.__dict__.items()}
        return result


class Patched:
    """What patch() has set on a model, and what it has found there.

    base: the transformers model; backbone: its decoder; chunk, head_chunk: tokens, 0: auto.
    """

    def __init__(self, model):
        self.outer, self.base = unwrap(model)
        self.backbone = decoder(self.base)
        self._names = self._parameter_names()
        self.active = False
        self.fused_head = None  # TRL's options of the head, where it streams (_trl.py)
        self._settings = {}  # of modules, where their config says something else
        self._configurations = {}
        self._found = []  # (module, its own forward attribute or None, ours)
        self._adapted = self.outer is not self.base or getattr(self.base, "_hf_peft_config_loaded", False)

    def configuration(self):
        """The Configuration of the adapter that is active now. Raises InputError for adapters in a state that is not supported."""
        key = None
        if self._adapted:
            layers = [layer for _, layer in lora_layers(self.base)]
            if not all(layer.disable_adapters for layer in layers):
                key = find_adapter(self.outer, self.base).name
            elif any(layer.merged for layer in layers):
                raise InputError("adapters are merged into the base weights; call unmerge_adapter() first")
        if key not in self._configurations:
            self._configurations[key] = Configuration(self.outer, adapters=key is not None)
        return self._configurations[key]

    def _parameter_names(self):
        return [name for name, _ in self.base.named_parameters(remove_duplicate=False)]

    def has_changed(self):
        """Whether the model has other parameters than when it was patched, or other modules in place of patched ones."""
        present = {id(module) for module in self.outer.modules()}
        return self._parameter_names() != self._names or any(id(module) not in present for module, *_ in self._found)

    def check(self):
        """Raises InputError for what is set on the model that would make its gradients inexact."""
        if self.has_changed():
            raise InputError(f"{type(self.base).__name__} has other parameters or modules than when it was patched (adapters added or merged?): call "
                             "streambp.patch() again, on the model as it is now")
        base, settings = self.base, module_settings(self.base)
        checks = [lambda: check_config(base), lambda: check_dropout(base), lambda: check_modules(base), lambda: check_functions(base), lambda: check_attention(base),
                  lambda: check_parameters(base, patched=True), self._check_hooks, lambda: check_attributes(base, settings)]
        if base.training and torch.is_grad_enabled():
            checks.insert(0, lambda: check_checkpointing(base))
        if not self.active:
            checks.append(lambda: check_own_forward(base))
        raise_together(*checks)
        if settings != self._settings:
            for note in notes_on(base, {key: value for key, value in settings.items() if self._settings.get(key) != value}):
                warnings.warn(note, stacklevel=2)
            self._settings = settings
            self._configurations.clear()

    def _check_hooks(self):
        for index, layer in enumerate(self.backbone.layers):
            for name, module in layer.named_modules():
                if module is not layer:
                    check_hooks_of(f"model.layers.{index}.{name}", module)
        for name in ("norm", "lm_head"):
            module = getattr(self.backbone if name == "norm" else self.base, name, None)
            if module is not None:
                check_hooks_of(name, module)

    def check_call(self, hidden):
        """Raises InputError where hidden states are not of the model's dtype, or autocast would change it."""
        check_autocast(DTYPES.get(hidden.dtype, str(hidden.dtype)), hidden.device)

    def install(self):
        """Puts the streamed forward functions onto the modules."""
        if self.active:
            return
        self.configuration()
        self.active = True
        setattr(self.base, ATTRIBUTE, self)
        self.replace(self.backbone, _forwards.backbone_forward)
        if is_whole(self.base):
            self.replace(self.base.model, _forwards.whole_forward)
        for index, layer in enumerate(self.backbone.layers):
            self.replace(layer, _forwards.layer_forward, index=index)
        self.replace(self.backbone.norm, _forwards.inner_forward)
        if isinstance(getattr(self.base, "lm_head", None), torch.nn.Module):
            self.replace(self.base.lm_head, _forwards.inner_forward)
            self.replace(self.base, _forwards.causal_forward)

    def replace(self, module, function, **more):
        """Gives `module` a forward that calls `function(call, ...)`, with the signature of its present one."""
        found = module.__dict__.get("forward")
        call = _forwards.Call(self, module, module.forward, **more)
        forward = streamed_method(call, function, module)
        module.forward = forward
        self._found.append((module, found, forward))

    def remove(self):
        """Restores what install() has found."""
        self.active = False
        restore(self._found)
        self.fused_head = None
        del self.base.__dict__[ATTRIBUTE]


def restore(replaced):
    """Puts back what was found: of (module, its own forward attribute or None, ours)."""
    for module, found, forward in reversed(replaced):
        module.__dict__.pop("_streambp_forward", None)
        if module.__dict__.get("forward") is not forward:
            continue  # something was put around it since, and goes through it
        if found is None:
            del module.forward
        else:
            module.forward = found
    replaced.clear()


class StreamedForward:
    """Stands for a module's forward: `function` with what it needs to know. Copied with the model, as a closure would not be."""

    def __init__(self, call, function):
        self.call, self.function = call, function

    def run(self, *args, **kwargs):
        if not self.call.state.active:
            return self.call.original(*args, **kwargs)
        return self.function(self.call, *args, **kwargs)


def streamed_method(call, function, module):
    """A bound method of `module` with its forward's signature, which torch.compile leaves alone."""
    streamed = StreamedForward(call, function)
    original = getattr(module.forward, "__func__", module.forward)

    @torch.compiler.disable
    def forward(self, *args, **kwargs):
        return streamed_of(self, streamed).run(*args, **kwargs)

    functools.update_wrapper(forward, original)
    forward.__module__ = __name__
    module.__dict__["_streambp_forward"] = streamed
    return types.MethodType(forward, module)


def streamed_of(module, default):
    """The StreamedForward that belongs to `module`: of a copied model, the copy's own."""
    return module.__dict__.get("_streambp_forward", default)


def check_hooks_of(name, module):
    """Raises InputError for a hook on a module that streamed layers compute without calling it; torch's sharding and idle ones pass."""
    for kind in ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"):
        for hook in getattr(module, kind, {}).values():
            source = getattr(hook, "__module__", None) or type(hook).__module__
            if source.startswith(("torch.distributed.", "transformers.utils.output_capturing", "deepspeed.")):
                continue
            word = kind.strip("_").removesuffix("s").replace("_", " ")
            raise InputError(f"{name}: has a {word} ({getattr(hook, '__qualname__', type(hook).__qualname__)}), which would not be called: "
                             "streamed layers call no inner module; put it on the decoder layer, or remove it (handle.remove())")
