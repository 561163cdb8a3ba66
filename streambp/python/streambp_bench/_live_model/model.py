"""A Hugging Face model as the engine sees it: the text of config.json, and its own tensors under the names of weight files.

Weights maps between the two. Hugging Face's parameters are named relative to the model inside PEFT's and torch.compile's
wrappers ("model.layers.0.self_attn.q_proj.base_layer.weight"), the engine's as the Hub's files and PEFT's adapter files name them
("model.layers.0.self_attn.q_proj.weight"). A parameter is one tensor of the engine's, except that transformers 5 holds all experts of a
layer in two parameters of which the engine sees two or one views for each expert. The tensors that the engine is given need not be the parameters
themselves: gradients, and the whole tensors that FSDP2 gathers for a layer, have the same shapes and the same views.
"""

import json
import os
import threading
import weakref

import torch

from .._library import InputError, checked, library
from .adapters import base_name, find_adapter, is_adapter_name
from .decoder import decoder, fingerprint, is_whole, last_norm, model_class, text_class_name, text_config, text_modules, text_name
from .families import ENGINE_NAMES, ENGINE_PARTS, NOT_RUN, WHOLE_EXPERTS
from .refusals import check_class
from .state import module_settings, notes_on

DTYPES = {torch.float64: "float64", torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
CORRECTIONS = (".e_score_correction_bias", ".expert_bias")  # a router's buffer, or ERNIE's parameter
# Parameters that transformers keeps in float32 whatever the model's dtype: an indexer's weights of its heads, those of hyper-connections.
HYPER = tuple(f".{module}.{name}" for module in ("attn_hc", "ffn_hc") for name in ("fn", "base", "scale")) + (
    ".hc_head.hc_fn", ".hc_head.hc_base", ".hc_head.hc_scale")  # trained, unlike the others
TABLES = (".gate.tid2eid",)  # the experts of each token (DeepSeek V4)
FREQUENCIES = (".rotary_emb.alpha",)  # logarithms of their factors (Mistral Large 4), trained too
GATES = ("_residual_gate.gate",)  # of residual streams (Muse Spark), trained too
WIDE = (*CORRECTIONS, *TABLES, *HYPER, *GATES, *FREQUENCIES, *(f".indexer.{name}{base}.weight" for name in ("weights_proj", "scorer.weights_proj") for base in ("", ".base_layer")))
# Routers, biases of decays and sinks, which transformers loads in float32 in many classes; the engine takes an indexer's norm, which is never trained, as the others are.
MAY_BE_WIDE = (".gate.weight", ".dt_bias", ".sinks", *(NORMS_OF_INDEXERS := (".indexer.k_norm.weight", ".indexer.k_norm.bias")))
BUFFERS = (*CORRECTIONS, *TABLES, ".layer_scalar")  # that are parameters to the engine, and never trained
DROPOUTS = ("attention_dropout", "residual_dropout", "resid_pdrop", "embd_pdrop")


def unwrap(model):
    """(outer, base): the model without torch.compile's wrapper, and the transformers model in it, inside PEFT's where it has one."""
    outer = getattr(model, "_orig_mod", model)
    base = outer
    if hasattr(outer, "peft_config") and hasattr(outer, "get_base_model"):
        base = outer.get_base_model()
    return outer, getattr(base, "_orig_mod", base)


class Weights:
    """What the engine is to know of `model`, and the map between its parameters' names and the engine's.

    model: a transformers model of a known family (<Family>ForCausalLM or <Family>ForSequenceClassification with one label), or PEFT's
    wrapper of one with a LoRA adapter; adapters=False: its base alone, as if the adapter were disabled; a name: that adapter, active or not.

    outer: PEFT's wrapper or base; base: the transformers model; adapter: an Adapter or None; config_json, adapter_json ("" without an adapter):
    text for the engine;
    dtype: "float64", "float32", "bfloat16" or "float16"; head_dtype: the same, or "float32" where lm_head is float32 in a half-precision
    model (with the embedding, where the two are tied: TRL's cast_lm_head_to_fp32); device: torch.device; names: Hugging Face's names of all
    parameters that take part, relative to base, in its order.

    Holds no tensors. Raises InputError for a class that is not known, adapters that are not supported (Adapter), parameters of different
    dtypes or devices.
    """

    def __init__(self, model, adapters=True):
        outer, self.base = unwrap(model)
        self.outer = outer
        check_class(self.base)
        self.class_name = model_class(self.base).__name__
        self.source = f"{self.class_name}.config"
        self.adapter = find_adapter(outer, self.base, adapters if isinstance(adapters, str) else None) if adapters else None
        self.adapter_json = self.adapter.json() if self.adapter else ""
        modules = text_modules(self.base)
        settings = module_settings(self.base, modules)
        self.notes = notes_on(self.base, settings)
        self.config_json = config_json(self.base, settings)
        self._tied = settings.get("tie_word_embeddings", text_config(self.base).tie_word_embeddings)
        whole_experts = text_config(self.base).model_type in WHOLE_EXPERTS
        self._engine_names = {}
        self._owners = _owners_of(modules)
        for name, parameter in self._tensors():
            engine_name = self._engine_name(name)
            if engine_name is not None:
                self._engine_names[name] = tuple(_views(engine_name, parameter.shape, whole_experts))
        self.names = list(self._engine_names)
        self._of_head = ("lm_head.", f"{'model.language_model' if is_whole(self.base) else 'model'}.embed_tokens.") if self._tied else ("lm_head.",)
        self.dtype, self.head_dtype, self.device = self._dtypes_and_device()
        # transformers keeps these in float32 where a model is loaded, and model.to(dtype) does not.
        self._engine_names |= {name: ((self._engine_name(name), self._wide),) for name in self.names if name.endswith(WIDE)}
        self._engine_names |= {name: ((self._engine_name(name), lambda tensor: tensor.to(getattr(torch, self.dtype))),) for name in self.names
                               if name.endswith(NORMS_OF_INDEXERS)}

    def _tensors(self):
        """(name, tensor) of the base's parameters, then of the buffers that are parameters to the engine, which never have a gradient."""
        return ((name, held[key]) for name, (held, key) in self._owners.items())

    def _wide(self, tensor):
        return tensor.to(torch.float64 if self.dtype == "float64" else torch.float32)

    def _engine_name(self, name):
        name = text_name(self.base, name)
        if name is None:
            return None
        for theirs, ours in ENGINE_NAMES.items():
            name = ours + name.removeprefix(theirs) if name.startswith(theirs) else name
        if self.adapter:
            name = self.adapter.engine_name(name)
        else:
            name = None if is_adapter_name(name) else base_name(name)
        for theirs, ours in ENGINE_PARTS.items() if name else ():
            name = name.replace(theirs, ours)
        return name

    def dtype_of(self, name, dtype):
        """The torch.dtype of parameter `name` where hidden states are `dtype`: under FSDP2 that may be another than the model's."""
        return torch.float32 if self.head_dtype != self.dtype and name.startswith(self._of_head) else dtype

    def _dtypes_and_device(self):
        taking_part = [(name, parameter) for name, parameter in self._tensors() if name in self._engine_names]
        head = [(name, parameter) for name, parameter in taking_part if name.startswith(self._of_head)]
        first_name, first = next(pair for pair in taking_part if not pair[0].startswith(self._of_head))
        half = first.dtype in (torch.bfloat16, torch.float16)
        kept = [(name, parameter) for name, parameter in taking_part if name.endswith((*HYPER, *GATES, *FREQUENCIES))]
        others = [(name, parameter) for name, parameter in taking_part if half and kept and parameter.dtype == torch.float32
                  and not name.startswith(self._of_head) and not name.endswith((*WIDE, *MAY_BE_WIDE))]
        narrow = next((name for name, parameter in kept if half and parameter.dtype != torch.float32), None) or next((name for name, _ in others), None)
        if narrow is not None:
            raise InputError(f"{self.class_name} in {_short(first.dtype)}: {narrow} is {_short(dict(taking_part)[narrow].dtype)}; of what transformers keeps in float32 the engine "
                             "takes routers, gates, frequencies and hyper-connections so, and no others; "
                             "patch(model, lane=\"module\") streams it by its own code, or convert the model with model.float()")
        head_dtype = torch.float32 if half and head and all(parameter.dtype == torch.float32 for _, parameter in head) else first.dtype
        for name, parameter in taking_part:
            expected = head_dtype if name.startswith(self._of_head) else first.dtype
            may_be = half and parameter.dtype == torch.float32 and name.endswith(MAY_BE_WIDE)
            if parameter.dtype != expected and not may_be and not name.endswith(WIDE):
                cure = ("load the adapter with autocast_adapter_dtype=False" if is_adapter_name(name) and self.adapter
                        else "convert the model with model.to(dtype)")
                raise InputError(f"{name} is {_short(parameter.dtype)}, {first_name} {_short(first.dtype)}: expected one dtype; {cure}")
            if parameter.device != first.device:
                raise InputError(f"{name} is on {parameter.device}, {first_name} on {first.device}: expected one device; load the model "
                                 "without device_map")
        if first.dtype not in DTYPES:
            raise InputError(f"{first_name} is {_short(first.dtype)}, expected float64, float32, bfloat16 or float16; quantized models are "
                             "not supported")
        return DTYPES[first.dtype], DTYPES[head_dtype], first.device

    @property
    def key(self):
        """What an engine is made from: two equal keys can share one."""
        return self.config_json, self.adapter_json, self.dtype, self.head_dtype, str(self.device)

    def layers(self):
        """The decoder's layers, a ModuleList."""
        return decoder(self.base).layers

    def names_of(self, module):
        """Names of the parameters, relative to base, that `module` (of base, or base itself) holds, in its order: of a layer, of the norm.

        Raises InputError for a module that base does not have.
        """
        for prefix, candidate in self.base.named_modules():
            if candidate is module:
                start = prefix + "." if prefix else ""
                return [name for name in self.names if name.startswith(start)]
        raise InputError(f"{type(module).__name__}: no module of {self.class_name}")

    def head_names(self):
        """Names of the final norm's and the head's parameters; a tied head's is the embedding's."""
        of_streams = [decoder(self.base).hc_head] if hasattr(decoder(self.base), "hc_head") else []
        modules = [*of_streams, last_norm(decoder(self.base))] + [module for module in (getattr(self.base, "lm_head", None), getattr(self.base, "score", None))
                                            if module is not None]
        own = [name for module in modules for name in self.names_of(module)]
        tied = isinstance(getattr(self.base, "lm_head", None), torch.nn.Module) and self._tied
        return own + [name for name in self.names_of(decoder(self.base).get_input_embeddings()) if tied and name not in own]

    def parameters(self, names=None):
        """The model's tensors as they are now, by name; under FSDP2 these change between calls."""
        owners = [(name, *self._owners[name]) for name in (self.names if names is None else names)]
        return {name: without_gradient(name, held[key]) for name, held, key in owners}

    def views_of(self, names, tensors):
        """The engine's {name: view} of `tensors`, which stand for the parameters `names` in the same order; None: left out.

        A tensor has its parameter's shape; views share its storage, so that what the engine writes into them is written into it.
        """
        views = {}
        for name, tensor in zip(names, tensors, strict=True):
            if tensor is None:
                continue
            tensor = tensor.detach()
            for engine_name, view in self._engine_names[name]:
                views[engine_name] = tensor if view is None else view(tensor)
        return views

    def engine_names(self, name):
        """The engine's names of the views of parameter `name`."""
        return [engine_name for engine_name, _ in self._engine_names[name]]

    def check_names(self, engine):
        """Raises InputError, naming one parameter, where the model's and the engine's differ in names or shapes."""
        expected = checked(engine.parameters)
        # Of shapes alone: slices of sharded parameters would be gathered.
        shapes = [torch.empty(parameter.shape, device="meta") for parameter in self.parameters().values()]
        views = self.views_of(self.names, shapes)
        for name, tensor in views.items():
            if name not in expected:
                raise InputError(f"{self.class_name} has a parameter {name}, which its config says nothing of")
            if list(tensor.shape) != list(expected[name]):
                raise InputError(f"{name} is {list(tensor.shape)}, its config says {list(expected[name])}")
        missing = [name for name in expected if name not in views]
        if missing:
            raise InputError(f"{self.class_name} has no parameter {missing[0]}, which its config asks for "
                             f"({len(missing)} missing); sb.patch(model) trains it by its own code")


_engines = weakref.WeakKeyDictionary()  # base model -> {adapter's name or None: (key, engine)}
_texts = weakref.WeakKeyDictionary()  # base model -> (fingerprint of its config and what its modules say, config.json)
_locks = weakref.WeakKeyDictionary()  # base model -> lock of its .grad
os.register_at_fork(after_in_child=_locks.clear)  # a lock that another thread held would stay locked there


def gradients_lock(weights):
    """The lock under which a model's .grad is made and added to: one thread's pass after another's."""
    return _locks.setdefault(weights.base, threading.Lock())


def engine_of(weights):
    """The engine of a model: kept as long as the model lives, made again when its config, adapters, dtype or device change.

    Raises InputError for a config that the engine does not honour, by its key, and for parameters that are not those of the config.
    """
    kept = _engines.setdefault(weights.base, {})
    which = weights.adapter and weights.adapter.name
    if which not in kept or kept[which][0] != (weights.key, weights.names):
        engine = checked(library().Engine, weights.config_json, weights.source, weights.adapter_json, weights.dtype, weights.head_dtype,
                         str(weights.device))
        weights.check_names(engine)
        kept[which] = ((weights.key, weights.names), engine)
    return kept[which][1]


def config_json(base, of_modules):
    """The model's config as the text of a config.json: all keys, with the class as its architecture.

    of_modules: what module_settings() has found, which counts. Dropout is 0: check_dropout() looks at the modules.
    """
    name = model_class(base).__name__
    key = fingerprint(text_config(base)), repr(of_modules)
    if base in _texts and _texts[base][0] == key:
        return _texts[base][1]
    settings = json.loads(text_config(base).to_json_string(use_diff=False)) | of_modules | NOT_RUN.get(name, {})
    settings["architectures"] = [text_class_name(base)]
    settings.pop("dtype", None)  # the parameters' own counts
    settings.pop("torch_dtype", None)
    settings |= {name: 0.0 for name in DROPOUTS if name in settings}
    _texts[base] = key, json.dumps(settings)
    return _texts[base][1]


def without_gradient(name, tensor):
    """`tensor`, or what shares its storage where it is for a choice alone, which has no gradient: it corrects one of experts (ERNIE's is a
    parameter, which transformers may load as a trained one), or belongs to an indexer, an adapter's included."""
    return tensor.detach() if name.endswith(CORRECTIONS) or ".indexer." in name else tensor


def _views(name, shape, whole_experts):
    """(engine's name, function of the parameter's tensor or None for the whole) of each tensor that the engine sees of a parameter."""
    stem, _, last = name.rpartition(".")
    if stem.endswith(".self_attn.conv1d"):  # Kimi Linear's, of queries, keys and values one under another
        rows = shape[0] // 3
        return [(f"{stem.removesuffix('conv1d')}{part}_conv1d.{last}", lambda t, first=i * rows, rows=rows: t[first:first + rows]) for i, part in enumerate("qkv")]
    if len(shape) != 3 or not stem.endswith(("mlp.experts", "mixer.experts", "feed_forward.experts")) or whole_experts:
        return [(name, None)]
    gate, up, down = ("w1", "w3", "w2") if stem.endswith("feed_forward.experts") else ("gate_proj", "up_proj", "down_proj")
    experts, rows = shape[0], shape[1]
    if last == "gate_up_proj":
        half = rows // 2
        return [(f"{stem}.{e}.{part}.weight", lambda t, e=e, first=first, half=half: t[e, first:first + half])
                for e in range(experts) for part, first in ((gate, 0), (up, half))]
    last = down if last == "down_proj" else last
    return [(f"{stem}.{e}.{last}.weight", lambda t, e=e: t[e]) for e in range(experts)]


def _owners_of(modules):
    """{name: (a module's own dict, key)} of parameters, then of BUFFERS, each tensor once: walks of a whole model's take milliseconds."""
    seen, owners = set(), {}
    for kind in ("_parameters", "_buffers"):
        for prefix, module in modules:
            held = getattr(module, kind)
            for key, tensor in held.items():
                name = f"{prefix}.{key}" if prefix else key
                if tensor is not None and id(tensor) not in seen and (kind == "_parameters" or name.endswith(BUFFERS)):
                    seen.add(id(tensor))
                    owners[name] = held, key
    return owners


def _short(dtype):
    return str(dtype).removeprefix("torch.")
