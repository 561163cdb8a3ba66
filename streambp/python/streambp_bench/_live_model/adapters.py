"""PEFT's LoRA adapters as the engine takes them: the text of adapter_config.json, and names of tensors in adapter_model.safetensors."""

import json
import math
import re

import torch

from .._library import InputError
from .decoder import is_whole, text_modules, text_name

PREFIX = "base_model.model."  # of every name in adapter_model.safetensors
# What PEFT adds to a module, followed by the adapter's name.
ADDED = ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B")
WRAPPERS = ("base_layer", "original_module")  # where it puts the base's own parameters


class Adapter:
    """One LoRA adapter of a model, by PEFT's wrapper (PeftModel) or transformers' own (model.add_adapter): the active one, or another.

    name: PEFT's name of it ("default"); config: the live LoraConfig; others: names of the adapters that the model has next to it.

    Raises InputError, naming the module where there is one, for other kinds of adapters and for what the engine's mathematics does not have:
    several active adapters, disabled or merged ones, DoRA and other variants, dropout in training mode, a scale that is not the
    configuration's, quantized layers.
    """

    def __init__(self, configs, active, base):
        active = [active] if isinstance(active, str) else list(active)
        if len(active) != 1:
            raise InputError(f"adapters: {len(active)} are active ({', '.join(active)}), expected one; choose it with set_adapter(name)")
        self.name = active[0]
        self.config = configs[self.name]
        self._base = base
        self.others = tuple(name for name in configs if name != self.name)
        kind = str(getattr(self.config.peft_type, "value", self.config.peft_type))
        if kind != "LORA":
            raise InputError(f"adapter '{self.name}': its type is {kind}, expected LORA; other adapters of PEFT are not supported")
        if self.config.use_dora:
            raise InputError(f"adapter '{self.name}': use_dora: DoRA divides by the norms of whole weights, which is not supported; "
                             "train with use_dora=False")
        if self.config.trainable_token_indices is not None:
            raise InputError(f"adapter '{self.name}': trainable_token_indices: its rows are no parameter of the engine's, which reads whole "
                             "tables; adapt embed_tokens as a target module, or train it whole with modules_to_save")
        for module_name, layer in lora_layers(base):
            self._check_layer(module_name, layer)

    def _check_layer(self, name, layer):
        if self.name not in layer.scaling:
            return  # this module belongs to another adapter, which is not active
        if layer.disable_adapters:
            raise InputError(f"{name}: its adapters are disabled; call enable_adapter_layers() or leave disable_adapter()")
        if layer.merged:
            raise InputError(f"{name}: adapter '{self.name}' is merged into its base weight; call unmerge_adapter() first")
        if getattr(layer, "lora_variant", {}).get(self.name) is not None:
            variant = type(layer.lora_variant[self.name]).__name__
            raise InputError(f"{name}: adapter '{self.name}' is a {variant}, expected plain LoRA")
        dropout = getattr(layer.lora_dropout[self.name], "p", 0.0) if self.name in layer.lora_dropout else 0.0
        if layer.training and dropout > 0:
            raise InputError(f"{name}: lora_dropout is {dropout} in training mode, expected 0: a chunk that runs again would draw another "
                             "mask; make the adapter with lora_dropout=0")
        expected = self.scale_of(name, layer)
        if not math.isclose(layer.scaling[self.name], expected, rel_tol=1e-12):
            raise InputError(f"{name}: adapter '{self.name}' is scaled by {layer.scaling[self.name]}, its configuration says {expected}; "
                             "undo scale_layer() or set_scale()")

    def scale_of(self, name, layer):
        """What the configuration says that the update of module `name` is multiplied by."""
        key = f"{_without_base_layers(name)}.{layer.parameter_name}" if hasattr(layer, "parameter_name") else name
        config = self.config
        rank = _of_pattern(config.rank_pattern, key, config.r)
        alpha = _of_pattern(config.alpha_pattern, key, config.lora_alpha)
        return alpha / (math.sqrt(rank) if config.use_rslora else rank)

    def json(self):
        """The text of adapter_config.json.

        How A and B were first drawn no longer matters to a live model, whatever it did to the base weights then; dropout has been checked.
        """
        settings = self.config.to_dict()
        settings.pop("runtime_config", None)
        settings |= {"init_lora_weights": True, "lora_dropout": 0.0}
        if is_whole(self._base):
            settings |= self._by_module()
        elif isinstance(settings["target_modules"], (list, set, tuple)):
            # A name that no module here has may be the engine's of an expert's map.
            names = ["." + name for name in self._adapted_modules()]
            settings["target_modules"] = [target for target in settings["target_modules"] if any(name.endswith("." + target) for name in names)] or None
        return json.dumps({key: _plain(value) for key, value in settings.items()})

    def _by_module(self):
        """What the configuration says of the decoder's modules, by their names there: its patterns are of the whole model's names."""
        layers = self._adapted_modules()
        return {"target_modules": sorted(layers) or None, "exclude_modules": None, "layers_to_transform": None, "layers_pattern": None,
                "rank_pattern": {name: layer.r[self.name] for name, layer in layers.items() if layer.r[self.name] != self.config.r},
                "alpha_pattern": {name: layer.lora_alpha[self.name] for name, layer in layers.items()
                                  if layer.lora_alpha[self.name] != self.config.lora_alpha}}

    def _adapted_modules(self):
        """{name: module} of those with the adapter, but for what holds an adapted parameter."""
        return {text_name(self._base, name): layer for name, layer in lora_layers(self._base)
                if self.name in layer.scaling and not hasattr(layer, "parameter_name")}

    def engine_name(self, name):
        """The engine's name of parameter `name` of the base with its adapters; None for another adapter's, which has no part in the step."""
        parts = name.split(".")
        for i, part in enumerate(parts):
            if part in ADDED:
                if parts[i + 1] != self.name:
                    return None
                return PREFIX + ".".join(parts[: i + 1] + parts[i + 2:])
            if part == "modules_to_save":
                return PREFIX + ".".join(parts[:i] + parts[i + 2:]) if parts[i + 1] == self.name else None
        trained_bias = parts[-1] == "bias" and (self.config.bias == "all" or self.config.bias == "lora_only" and "base_layer" in parts)
        if trained_bias:
            return PREFIX + name
        return base_name(name)


def base_name(name):
    """The name in the base's own file of a parameter that PEFT has wrapped."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def is_adapter_name(name):
    """Whether the parameter of this name is one that PEFT has added."""
    return any(part in ADDED or part == "modules_to_save" for part in name.split("."))


def lora_layers(base):
    """(name, module) of every module with a LoRA adapter, active or not. Raises InputError for one whose base is quantized."""
    from peft.tuners.lora import LoraLayer

    found = [(name, module) for name, module in text_modules(base) if isinstance(module, LoraLayer)]
    for name, module in found:
        if not type(module).__module__ == "peft.tuners.lora.layer":
            raise InputError(f"{name}: {type(module).__module__}.{type(module).__name__} adapts a quantized or foreign base, expected plain "
                             "floating-point linear maps; load the model without quantization")
    return found


def find_adapter(outer, base, name=None):
    """The active Adapter of a model, or the one of this name; None where the model has none. Raises InputError as Adapter does."""
    if outer is not base:  # PeftModel
        return Adapter(outer.peft_config, name or outer.active_adapters, base)
    if getattr(base, "_hf_peft_config_loaded", False):
        return Adapter(base.peft_config, name or base.active_adapters(), base)
    return None


def is_fresh(adapter, base):
    """Whether the adapter changes nothing yet: one factor of each update is 0, and what it trains whole is as in the base."""
    for _, layer in lora_layers(base):
        factors = [getattr(layer, kind, {}) for kind in ("lora_B", "lora_embedding_A", "lora_embedding_B")]
        held = [getattr(factor[adapter.name], "weight", factor[adapter.name]) for factor in factors if adapter.name in factor]
        if held and all(factor.any() for factor in held):
            return False
    for _, module in text_modules(base):
        copy = getattr(module, "modules_to_save", {})
        if isinstance(copy, torch.nn.ModuleDict) and adapter.name in copy:
            own = dict(module.original_module.named_parameters())
            if not all(torch.equal(parameter, own[name]) for name, parameter in copy[adapter.name].named_parameters()):
                return False
    return adapter.config.bias == "none"  # trained biases replace the base's, of which no copy is left


def _without_base_layers(name):
    return ".".join(part for part in name.split(".") if part != "base_layer")


def _of_pattern(pattern, name, default):
    """The value of the first key, a regular expression, that `name` ends in (peft.utils.other.get_pattern_key)."""
    return next((value for key, value in pattern.items() if re.match(rf"(.*\.)?({key})$", name)), default)


def _plain(value):
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return value.value if hasattr(value, "value") and not isinstance(value, (dict, list)) else value
