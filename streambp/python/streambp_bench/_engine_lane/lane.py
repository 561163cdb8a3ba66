"""The engine's lane of patch(): layers and head are computed by the engine.

Each decoder layer becomes one autograd node that keeps its input alone (_streamed_layers.py); final norm, LM head and loss become another
(_streamed_head.py). Gradients go through torch's own AccumulateGrad once a layer, so that whatever hangs there keeps working.
"""

import contextlib
import copy
import operator
import warnings

import torch

from .._hooks import FORWARD, has_hooks, has_hooks_of_all
from .._idle import Kept, fitting, rounded_up, shape_of, take
from .._library import InputError, checked, library
from .._live_model.adapters import find_adapter, is_adapter_name, lora_layers
from .._live_model.attention import check_attention
from .._live_model.decoder import decoder, fingerprint, is_whole, last_norm, text_config, text_modules
from .._live_model.model import DTYPES, Weights, engine_of, without_gradient
from .._live_model.refusals import check_autocast, check_class, check_config, check_dropout, check_layers, check_modules, check_parameters, raise_together
from .._live_model.state import check_attributes, check_functions, check_own_forward, module_settings, notes_on
from .._log import say
from .._module_lane.head import Head
from .._replaced import Lane
from . import forwards


MOST_REASONS = 8  # that are said


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
        tensors = (getattr(module, last) for module, last in self._owners)
        return [without_gradient(name, tensor) for name, tensor in zip(self.names, tensors, strict=True)]

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

    def views_of(self, tensors):
        """The engine's views of `tensors`, by its names; None: left out."""
        return self.weights.views_of(self.names, tensors)


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


class Patched(Lane):
    """What patch() has set on a model for the engine. backbone: the model's decoder; first_labels: "refuse" or "ignore"; understudy: the ModuleLane
    that has what the engine refuses, or None; idle_memory: bytes that layers may keep activations in, None: a share of what is idle; kept: what they
    kept last."""

    def __init__(self, model, chunk, head_chunk, first_labels, idle_memory=None):
        super().__init__(model, chunk, head_chunk)
        self.idle_memory, self.kept = idle_memory, Kept()
        self.makes_logits = False  # whether the model's own head is about to make logits of what the decoder gives
        check_class(self.base)
        check_layers(self.base)
        self.first_labels, self.understudy, self._reasons = first_labels, None, set()
        self.backbone = decoder(self.base)
        self.head = Head(self.base, self.base.base_model_prefix, head_chunk)
        self._names, self._owners = self._parameter_names(), self._owners_of_parameters()
        loaded = self.outer is not self.base or getattr(self.base, "_hf_peft_config_loaded", False)
        if not loaded and any(map(is_adapter_name, self._names)):
            raise InputError("the model has adapters in it that its own class does not know: give PEFT's wrapper of it, the PeftModel")
        self._settings, self._config = {}, fingerprint(text_config(self.base))  # of modules, where their config says something else; what that says
        self._configurations = {}
        self._adapted = loaded

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

    def _owners_of_parameters(self):
        return [module for module in self.base.modules() if module._parameters]

    def has_changed(self):
        """Whether the model has other parameters than when it was patched, or other modules in place of those that have them or are patched."""
        owners, present = self._owners_of_parameters(), {id(module) for module in self.outer.modules()}
        same = len(owners) == len(self._owners) and all(map(operator.is_, owners, self._owners))
        return not same or self._parameter_names() != self._names or any(id(module) not in present for module, *_ in self._found)

    def check(self):
        """Raises InputError for what is set on the model that would make its gradients inexact."""
        modules = text_modules(self.base)
        self.turn_off_checkpointing(module for _, module in modules)
        if self.has_changed():
            raise InputError(f"{type(self.base).__name__} has other parameters or modules than when it was patched (adapters added or merged?): call "
                             "streambp_bench.patch() again, on the model as it is now")
        base, settings = self.base, module_settings(self.base, modules)
        checks = [lambda: check_config(base), lambda: check_dropout(base, modules), lambda: check_modules(base, modules), lambda: check_functions(modules), lambda: check_attention(base),
                  lambda: check_parameters(base, patched=True), self._check_hooks, lambda: check_attributes(base, modules, settings)]
        if not self.active:
            checks.append(lambda: check_own_forward(base))
        raise_together(*checks)
        if (config := fingerprint(text_config(base))) != self._config or settings != self._settings:
            for note in notes_on(base, {key: value for key, value in settings.items() if self._settings.get(key) != value}):
                warnings.warn(note, stacklevel=2)
            self._settings, self._config = settings, config
            self._configurations.clear()

    def _check_hooks(self):
        for index, layer in enumerate(self.backbone.layers):
            for name, module in layer.named_modules():
                if module is not layer:
                    check_hooks_of(f"model.layers.{index}.{name}", module)
        if has_hooks_of_all():
            raise InputError("a hook of all modules is there (torch.nn.modules.module.register_module_...), which would not be called inside layers: remove it "
                             "(handle.remove()), or use lane=\"module\"")
        if has_hooks(self.backbone, (FORWARD[1], "_backward_pre_hooks", "_backward_hooks")):
            raise InputError("the decoder has a forward or backward hook of its own: what the engine's decoder hands to the head is not what such a hook is given; put it "
                             "on a decoder layer or on the model, or remove it (handle.remove())")
        for name in ("hc_head", "norm", "lm_head"):
            module = getattr(self.base if name == "lm_head" else self.backbone, name, None)
            if module is not None:
                check_hooks_of(name, module)

    def check_call(self, hidden):
        """Raises InputError where hidden states are not of the model's dtype, or autocast would change it."""
        check_autocast(DTYPES.get(hidden.dtype, str(hidden.dtype)), hidden.device)

    def spend(self, hidden):
        """What layers keep of this call's tokens, hidden [N, D], as the setting `keep` says it.

        Next to what is predicted of backward() a patched model holds hidden states on both sides of the head, and gradients of the head and of a
        layer that wait to be added. Every rank chooses by itself: what is kept changes no bit, and a model's forward is no place to wait for others.
        """
        weights = self.configuration().weights
        if self.idle_memory == 0 or (self._adapted and weights.adapter is None):
            return "none"
        settings = {"chunk": str(self.chunk_in_words()), "head_chunk": str(self.head_chunk or "auto"), "dtype": DTYPES[hidden.dtype]}
        shape = shape_of(self.outer, weights, "sft", (1, rounded_up(hidden.shape[0])), settings)
        widest = max(sum(tensor.numel() for tensor in weights.parameters(names).values()) for names in (self.configuration().layers[0].names, self.configuration().head.names))
        more = hidden.element_size() * (6 * hidden.numel() + 3 * widest)
        self.kept = take(shape, weights, fitting(shape, weights, self.idle_memory, more))
        return self.kept.keep

    def describe(self):
        """What was taken, in one line."""
        return f"{len(self.backbone.layers)} layers by the engine{'; head streamed' if self.has_head() else ''}"

    def has_head(self):
        return isinstance(getattr(self.base, "lm_head", None), torch.nn.Module)

    def chunk_in_words(self):
        return self.chunk or "auto"

    @contextlib.contextmanager
    def aside(self, reason):
        """Inside, the understudy's lane runs instead, in this thread: another may be in the engine's."""
        with self.standing(False):
            self.understudy.prepare()
            if reason not in self._reasons and len(self._reasons) < MOST_REASONS:
                self._reasons.add(reason)
                say(f"the engine leaves this to the layers' own code ({self.understudy.describe()}): {reason}")
            with self.understudy.standing(True):
                yield

    @contextlib.contextmanager
    def making_logits(self):
        before, self.makes_logits = self.makes_logits, True
        try:
            yield
        finally:
            self.makes_logits = before

    def install(self):
        """Puts the streamed forward functions onto the modules."""
        self.configuration()
        if self.understudy is not None:
            self.understudy.install()
            self.understudy.active = False
        super().install()
        self.replace(forwards.backbone_forward, self.backbone)
        if is_whole(self.base):
            self.replace(forwards.whole_forward, self.base.model)
        for index, layer in enumerate(self.backbone.layers):
            self.replace(forwards.layer_forward, layer, index=index)
        self.replace(forwards.inner_forward, last_norm(self.backbone))
        if self.has_head():
            self.replace(forwards.inner_forward, self.base.lm_head)
            self.replace(forwards.causal_forward, self.base)

    def replace(self, function, module, **more):
        self.put(forwards.Call(self, module, module.forward, **more), function, module)

    def remove(self):
        super().remove()
        if self.understudy is not None:
            self.understudy.remove()


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
