"""What the modules of a live model hold, against its config and its classes' own code: the modules are what runs.

transformers' modules copy numbers out of the config when they are made (padding_idx, eps, scaling, top_k, ...) and read the copies. What is
changed afterwards, in the config (trainers set pad_token_id) or in a module, makes the two differ. Some of it the engine can be given, in
the words of a config.json (module_settings); any other difference, and any function that was put instead of transformers' own, is
refused by name: the engine would compute something else.
"""

import copy
import functools
import inspect
import re
import sys
import types
import weakref

import torch
from transformers import initialization
from transformers.loss import loss_utils

from .._library import InputError
from .decoder import fingerprint, model_class, text_config, text_modules

# Numbers, words and switches: what a forward may read of a module next to its parameters.
PLAIN = (bool, int, float, str, type(None), torch.dtype)
# What says how a module is run or how large it is, and what other checks look at (dropout, rope).
NOT_COMPUTED = {"training", "padding_idx", "attention_dropout", "gradient_checkpointing", "layer_idx", "name_or_path", "warnings_issued", "max_seq_len_cached", "attention_scaling",
                "in_features", "out_features", "num_embeddings", "embedding_dim", "vocab_size", "p", "is_loaded_in_4bit", "is_loaded_in_8bit",
                "is_parallelizable", "model_parallel", "use_kernels"}
# Attributes that a config.json has a key for which all modules share: the key, by the attribute.
SETTINGS = {"router_aux_loss_coef": "router_aux_loss_coef", "top_k": "num_experts_per_tok",
            "num_experts_per_tok": "num_experts_per_tok", "variance_epsilon": "rms_norm_eps", "eps": "rms_norm_eps"}
IN_WRAPPERS = re.compile(r"\.(base_layer|original_module|modules_to_save\.[^.]+)(?=\.|$)")  # of PEFT: where the class's own module is, or a copy of it
# Modules of code whose functions compute what transformers' do.
KNOWN = ("transformers.", "peft.", "streambp_bench.", "liger_kernel.")
OF_TORCH = ("linear", "silu", "gelu", "relu", "sigmoid", "softplus", "softmax", "embedding", "scaled_dot_product_attention", "rms_norm", "layer_norm", "conv1d")


def module_settings(base, modules):
    """{key of config.json: value} where modules of a transformers model agree on another value than its config has.

    Also tie_word_embeddings: whether the head's weight is the embedding's now.
    """
    values, config = {}, text_config(base)
    for _, module in modules:
        if not type(module).__module__.startswith("transformers.models."):
            continue
        for attribute, key in SETTINGS.items():
            if attribute in module.__dict__ and hasattr(config, key):
                values.setdefault(key, set()).add(module.__dict__[attribute])
    found = {key: next(iter(of_key)) for key, of_key in values.items() if len(of_key) == 1}
    head, embedding = _own(getattr(base, "lm_head", None)), _own(base.get_input_embeddings())
    weights = [getattr(module, "_parameters", {}).get("weight") for module in (head, embedding)]  # a parametrization computes what is asked of the module
    if hasattr(embedding, "padding_idx"):
        found["pad_token_id"] = embedding.padding_idx
        given = getattr(config, "pad_token_id", None)
        if given is not None and given < 0 and embedding.padding_idx == given + embedding.num_embeddings:
            found["pad_token_id"] = given
    if weights[0] is not None:
        found["tie_word_embeddings"] = weights[0] is weights[1]
    return {key: value for key, value in found.items() if getattr(config, key, None) != value}


def _own(module):
    """The base's own module in PEFT's wrappers."""
    while hasattr(module, "original_module") or hasattr(module, "base_layer"):
        module = module.original_module if hasattr(module, "original_module") else module.base_layer
    return module


def notes_on(base, settings):
    """A line for each of module_settings()."""
    return [f"{key} is {value} in the model's modules, {getattr(text_config(base), key, None)} in its config: the modules are what runs"
            for key, value in settings.items() if key != "tie_word_embeddings"]


def plain_attributes(module):
    """{name: value} of what a forward may read of a module next to parameters, buffers and modules; functions by their names."""
    found = {}
    for name, value in vars(module).items():
        if name in NOT_COMPUTED or name.startswith("_"):
            continue
        if isinstance(value, PLAIN):
            found[name] = value
        elif isinstance(value, (types.FunctionType, types.BuiltinFunctionType)) and name != "forward":
            found[name] = f"{value.__module__}.{value.__qualname__}"
        elif isinstance(value, (list, tuple)) and all(isinstance(entry, PLAIN) for entry in value):
            found[name] = tuple(value)
    return found


def state_of(modules):
    """[(module's name, the name that it has without PEFT's modules around it, class, plain attributes)]; without PEFT's modules, which adapters.py checks."""
    return [(name, IN_WRAPPERS.sub("", name), f"{type(module).__module__}.{type(module).__qualname__}", plain_attributes(module))
            for name, module in modules if type(module).__module__.startswith(("transformers.", "torch.nn.modules."))]


_expected = weakref.WeakKeyDictionary()  # base model -> (text of its config and settings, state of a model made of them)


def check_attributes(base, modules, settings):
    """Raises InputError for a module whose attributes are not those of a model that is made of this config with `settings`."""
    key = fingerprint(base.config) + repr(sorted(settings.items(), key=str))
    if base not in _expected or _expected[base][0] != key:
        config = copy.deepcopy(base.config)
        config._attn_implementation = "eager"  # of which nothing is asked here: another may not be installed
        for name, value in settings.items():
            setattr(config.get_text_config(), name, value)
        with torch.device("meta"), initialization.no_init_weights():
            _expected[base] = key, {name: (kind, attributes) for name, _, kind, attributes in state_of(text_modules(model_class(base)(config)))}
    expected = _expected[base][1]
    for name, module in modules:
        for attribute in vars(module):
            if f"{name}.{attribute}" in expected:  # a function, say, where an activation was
                raise InputError(f"{name}.{attribute}: is {vars(module)[attribute]!r}, its config makes it a {expected[f'{name}.{attribute}'][0]}; make the model anew")
    for name, inner, kind, attributes in state_of(modules):
        if inner not in expected:
            continue  # of an adapter, or a module that a refusal of its own names
        expected_kind, others = expected[inner]
        if kind.rpartition(".")[2].removeprefix("FSDP") != expected_kind.rpartition(".")[2]:
            raise InputError(f"{name}: is a {kind}, its config makes it a {expected_kind}; make the model anew")
        for attribute, want in others.items():
            have = attributes.get(attribute)
            if have != want:
                raise InputError(f"{name or 'model'}.{attribute} is {have!r}, its config says {want!r}: this value runs, and streambp can't be given it; "
                                 "set it back, or change the config before the model is made")


def check_functions(modules):
    """Raises InputError for a forward, of a class of modules or next to it in the same file, that is not transformers' or torch's own."""
    classes = {kind for kind in (type(module) for _, module in modules) if kind.__module__.startswith(("transformers.", "torch.nn."))}
    for kind in sorted(classes, key=lambda each: each.__qualname__):
        owner = next(each for each in kind.__mro__ if "forward" in each.__dict__)
        forward = owner.__dict__["forward"]
        source = getattr(forward, "__module__", None) or ""
        if source != owner.__module__ and not source.startswith(KNOWN):
            raise InputError(f"{owner.__qualname__}.forward: replaced by {source}.{getattr(forward, '__qualname__', forward)}, which would not "
                             "run; undo that before the model is trained with streambp")
    for file in sorted({kind.__module__ for kind in classes if kind.__module__.startswith("transformers.models.")}):
        for name in _functions_of(file):
            function = getattr(sys.modules[file], name, None)
            source = getattr(function, "__module__", None) or ""
            if source != file and not source.startswith(KNOWN):
                raise InputError(f"{file}.{name}: replaced by {source}.{getattr(function, '__qualname__', function)}, which would not run; undo "
                                 "that before the model is trained with streambp")
    if found := _exchanged(torch.nn.functional, OF_TORCH):
        raise InputError(f"{found}, which would not run; undo that before the model is trained with streambp")


def _exchanged(owner, names):
    """Where a function of a module of code was replaced by somebody's of whom it is not known that it computes the same, or None."""
    for name in names:
        function = getattr(owner, name)
        source = getattr(function, "__module__", None) or ""
        if not isinstance(function, types.BuiltinFunctionType) and not source.startswith(("torch.", "deepspeed.", "accelerate.", *KNOWN)):
            return f"{owner.__name__}.{name}: replaced by {source}.{getattr(function, '__qualname__', function)}"
    return None


def strange_loss(base):
    """Why a causal model's loss is not transformers' own cross-entropy, or None."""
    loss = base.loss_function
    if loss is not loss_utils.ForCausalLMLoss:
        return f"model.loss_function is {getattr(loss, '__module__', None)}.{getattr(loss, '__qualname__', loss)}"
    return _exchanged(loss_utils, ("fixed_cross_entropy",)) or _exchanged(torch.nn.functional, ("cross_entropy",))


@functools.cache
def _functions_of(file):
    """Names of the functions that a file of transformers defines."""
    return tuple(re.findall(r"^def (\w+)\(", inspect.getsource(sys.modules[file]), re.MULTILINE))


def check_own_forward(base):
    """Raises InputError for a forward that was put onto the model itself, by accelerate's mixed precision or somebody else."""
    forward = base.__dict__.get("forward")
    source = getattr(forward, "__module__", None) or ""
    if forward is None or source.startswith((*KNOWN, "trl.")):
        return
    if source.startswith("accelerate."):
        raise InputError("model.forward is wrapped by accelerate's mixed precision, which would not run: prepare the model with "
                         "mixed_precision=\"no\" for training in its own dtype, or patch it first and let autocast of that dtype be on")
    raise InputError(f"model.forward is {source}.{getattr(forward, '__qualname__', forward)}, which would not run; remove it (del "
                     "model.forward)")
