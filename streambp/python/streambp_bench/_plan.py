"""What a step would take, without running it: the engine itself on tensors that have shapes and no storage (streambp/plan)."""

import json
import os
import re
from dataclasses import dataclass, fields

import torch

from ._batch import batch_tensors
from ._keywords import sort_keywords
from ._library import InputError, library
from ._live_model.model import BUFFERS, Weights
from ._log import say
from ._measure import format_bytes
from ._planner import ask
from ._replaced import patched_state

UNITS = {"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@dataclass(frozen=True)
class Prediction:
    """The memory and the work of a step, in bytes and floating-point operations.

    model: its name; configuration: method and settings, in words; seq_len: tokens of a sequence; tokens: of the whole batch; chunk,
    head_chunk: as run (0: none); peak_bytes: the most that is alive at once; resident_bytes: alive before the step (weights, gradients,
    optimizer states); breakdown: {scope: bytes} of the peak; host_peak_bytes: in host memory, of what is offloaded; model_flops: that the
    step asks for; hardware_flops: that it executes, recomputation included.
    """

    model: str
    configuration: str
    seq_len: int
    tokens: int
    chunk: int
    head_chunk: int
    peak_bytes: int
    resident_bytes: int
    breakdown: dict
    host_peak_bytes: int
    model_flops: float
    hardware_flops: float

    @property
    def beyond_resident(self):
        """The peak beyond weights, gradients and optimizer states."""
        return self.peak_bytes - self.resident_bytes

    def __str__(self):
        parts = sorted(self.breakdown.items(), key=lambda part: -part[1])
        text = f"{self.model}, {self.tokens} tokens, {self.configuration}: {format_bytes(self.peak_bytes)} ("
        text += ", ".join(f"{scope} {format_bytes(size)}" for scope, size in parts) + ")"
        return text + (f" and {format_bytes(self.host_peak_bytes)} in host memory" if self.host_peak_bytes else "")


@dataclass(frozen=True)
class Longest:
    """The longest sequence that fits a budget.

    seq_len: its tokens, 0 where none fits; resolution: a sequence longer by this does not fit (0: the search's end, 2**24 tokens, fits);
    at_longest: its Prediction or None; at_shortest: that of 16 tokens; evaluations: dry runs; configuration: method and settings, in words.
    Of suggest() also: cost, time relative to standard back-propagation (an estimate); best; settings: keyword arguments for backward().
    """

    seq_len: int
    resolution: int
    at_longest: Prediction | None
    at_shortest: Prediction
    evaluations: int
    configuration: str
    cost: float | None = None
    best: bool = True
    settings: dict | None = None

    @property
    def fits(self):
        return self.at_longest is not None

    def __str__(self):
        if self.fits:
            return f"{self.seq_len:,} tokens: {self.at_longest}"
        return f"no length fits: {self.at_shortest}"


@dataclass(frozen=True)
class Choice:
    """The settings of a step that fit a budget in the least time.

    settings: keyword arguments for backward(); prediction: what the step takes with them; cost: time relative to standard back-propagation
    (an estimate); all None where nothing fits. considered: configurations; description: the choice and its reason, or what the leanest needs.
    """

    settings: dict | None
    prediction: Prediction | None
    cost: float | None
    considered: int
    description: str

    @property
    def fits(self):
        return self.settings is not None

    def __str__(self):
        return self.description


def predict(model, batch=None, *, tokens=None, sequences=1, objective="sft", optimizer=None, **settings):
    """The Prediction of one step of back-propagation by the engine, as backward() runs it; nothing is run, and no device is needed.

    model: a transformers model, on the meta device too, or PEFT's wrapper of one; a transformers config; a folder with config.json and
        safetensors; or a preset of `streambp-bench` ("qwen3-8b", "qwen3-cpu", ...).
    batch: what backward() would be given; or
    tokens, sequences: of a made-up batch, `sequences` samples of `tokens` tokens (a pair of completions is one sample); prompt=N: tokens
        before a completion (a quarter).
    optimizer: "adamw" or "sgd": its states are counted; optimizer_bits=32 | 16 | 8 of a number in them; master_weights=True: a float32 copy
        of the trained weights.
    dtype: default the model's own; head_dtype="float32": of lm_head alone, default "same" or the model's own; device: "cpu" or "cuda",
        default that of a model's parameters, and "cuda" for the others.
    lora: a peft.LoraConfig, or a dict of its fields, for what is no model; freeze: parts of names of parameters without a gradient (of a
        model its requires_grad counts).
    reference, teacher: models, configs, folders or presets that are in memory too; release_reference=True: its weights are freed before.
    settings: those of backward() (chunk, keep, every, offload, method, micro_batches, ...), options=, and options of the objective.

    Asks a program that lies next to the engine's library, so that this process stays as it is. Raises InputError for what backward() would
    refuse.
    """
    library()
    state = patched_state(model) if isinstance(model, torch.nn.Module) else None
    if state is not None and not hasattr(state, "configuration"):
        say("predict() is of backward(), by the engine; this model is patched to run by its own code: measure a step of it with summary(model, batch)")
    request = request_of(model, objective, optimizer, settings) | _of_batch("predict", batch, tokens, sequences)
    return _prediction(ask("predict", request))


def choose(model, batch=None, budget="80GB", *, host_budget=None, tokens=None, sequences=1, objective="sft", optimizer=None, **settings):
    """The Choice of settings with which a step fits `budget` in the least time, as `streambp-bench sweep --method auto` chooses them:

        choice = streambp_bench.choose(model, longest_batch, "20GB")
        loss = streambp_bench.backward(model, batch, **choice.settings)

    host_budget: bytes of host memory; offloading is tried where it is given. settings: not searched. The rest as in predict(); raises
    InputError as it does, but not where nothing fits.
    """
    library()
    request = request_of(model, objective, optimizer, settings) | _of_batch("choose", batch, tokens, sequences)
    found = ask("choose", request | _budgets(budget, host_budget, margin=0))
    prediction = _prediction(found["prediction"]) if "prediction" in found else None
    return Choice(_as_predicted(found.get("settings")), prediction, found.get("cost"), found["considered"], found["description"])


def longest(model, budget="80GB", *, margin=None, host_budget=None, sequences=1, objective="sft", optimizer=None, resolution=1000, **settings):
    """The Longest sequence for which a step fits `budget` ("80GB", "64GiB" or bytes), to one token or the `resolution`th part.

    margin: what of it tensors can't have (driver, libraries, fragmentation), in the same words; default on a GPU 1 GB and 2 %, on a CPU 0.
    host_budget: of host memory, for offload; default no limit. The rest as in predict(). Raises InputError as predict() does.
    """
    library()
    request = request_of(model, objective, optimizer, settings)
    request |= _budgets(budget, host_budget, margin) | {"sequences": _whole("sequences", sequences),
                                                        "resolution": _whole("resolution", resolution)}
    return _longest(ask("longest", request))


def suggest(model, budget="80GB", *, tokens=None, margin=None, host_budget=None, sequences=1, objective="sft", optimizer=None, **settings):
    """Configurations of a step that reach furthest within `budget` at the least cost, as a list of Longest by rising cost.

    tokens: how far they are to reach: the list then ends with the first, which is the best, and None: as far as they can. host_budget:
    bytes of host memory; offloading is tried where it is given. settings: not searched. The rest as in longest().
    """
    library()
    request = request_of(model, objective, optimizer, settings)
    request |= _budgets(budget, host_budget, margin) | {"sequences": _whole("sequences", sequences),
                                                        "wanted": 0 if tokens is None else _whole("tokens", tokens)}
    return [_longest(found) for found in ask("suggest", request)]


def _of_batch(question, batch, tokens, sequences):
    """The members of a request that say which batch."""
    if batch is not None:
        return {"batch": {name: _plain(tensor) for name, tensor in batch_tensors(batch).items()}}
    if tokens is None:
        raise InputError(f"{question}: how long are the sequences? Pass tokens=N, or a batch")
    return {"seq_len": _whole("tokens", tokens), "sequences": _whole("sequences", sequences)}


def _plain(tensor):
    return {"shape": list(tensor.shape), "values": (tensor.long() if tensor.dtype == torch.bool else tensor).flatten().tolist()}


# What is no setting of a pass and no option of an objective, with its default.
_OF_THE_REQUEST = {"dtype": None, "head_dtype": "same", "device": None, "gradient_dtype": "same", "optimizer_bits": 32,
                   "master_weights": False, "prompt": 0, "value_head": False, "freeze": (), "lora": None, "reference": None, "teacher": None,
                   "release_reference": False, "options": None}


def request_of(model, objective, optimizer, keywords):
    """{...} as streambp/python/planning.h takes it."""
    keywords = {name: value for name, value in keywords.items() if value is not None}
    given = {name: keywords.pop(name, default) for name, default in _OF_THE_REQUEST.items()}
    described = _describe(model, given)
    options, settings = sort_keywords(torch.ops.streambp, objective, given["options"], keywords)
    request = {"model": described["model"], "dtype": described["dtype"], "head_dtype": described["head_dtype"], "device": described["device"],
               "gradient_dtype": given["gradient_dtype"], "objective": objective, "options": options, "settings": settings,
               "optimizer": _optimizer(optimizer), "optimizer_bits": _choice("optimizer_bits", given["optimizer_bits"], (32, 16, 8)),
               "master_weights": bool(given["master_weights"]), "prompt": _whole("prompt", given["prompt"], 0),
               "value_head": bool(given["value_head"]), "freeze": described["freeze"],
               "release_reference": bool(given["release_reference"])}
    for role in ("reference", "teacher"):
        if given[role] is not None and not (role == "reference" and given[role] == "base"):
            request[role] = _describe(given[role], {}, role)["model"]
    return request


def _describe(model, given, role="model"):
    """{model: {source, config, adapter}, dtype, device, freeze} of whatever stands for a model."""
    dtype = given.get("dtype")
    described = {"dtype": "model" if dtype is None else str(dtype).removeprefix("torch."),
                 "head_dtype": str(given.get("head_dtype", "same")).removeprefix("torch."),
                 "device": _device(given.get("device") or "cuda"), "freeze": list(_words("freeze", given.get("freeze", ())))}
    if isinstance(model, (str, os.PathLike)):
        described["model"] = {"source": os.fspath(model)}
    elif isinstance(model, torch.nn.Module):
        return _describe_module(model, given, described)
    elif hasattr(model, "to_json_string") and hasattr(model, "model_type"):
        described["model"] = {"source": type(model).__name__, "config": model.to_json_string(use_diff=False)}
    else:
        raise InputError(f"{role}: a {type(model).__name__}, expected a transformers model or config, a folder or a preset's name")
    if given.get("lora") is not None:
        described["model"]["adapter"] = _lora(given["lora"])
    return described


def _describe_module(model, given, described):
    weights = Weights(model)
    if given.get("lora") is not None:
        raise InputError("lora: the model's own adapters count; expected none here, or a config in place of the model")
    described["model"] = {"source": type(weights.base).__name__, "config": weights.config_json}
    if described["dtype"] == "model":
        described["dtype"] = weights.dtype
        if weights.head_dtype != weights.dtype:
            described["head_dtype"] = weights.head_dtype
    if not given.get("device") and weights.device.type != "meta":
        described["device"] = weights.device.type
    frozen = [name for name, parameter in weights.parameters().items() if not parameter.requires_grad and not name.endswith(BUFFERS)]
    if weights.adapter is None:
        described["freeze"] += [engine_name for name in frozen for engine_name in weights.engine_names(name)]
    else:
        described["model"]["adapter"] = weights.adapter_json
        trained = [name for name in frozen if any(one.startswith("base_model.") for one in weights.engine_names(name))]
        if trained:
            raise InputError(f"{trained[0]}: a frozen part of the adapter can't be predicted; expected requires_grad of all of it")
    return described


def _lora(config):
    fields_of = config if isinstance(config, dict) else config.to_dict()
    fields_of = {"peft_type": "LORA", "lora_alpha": fields_of.get("r", 8), **fields_of}
    fields_of.pop("runtime_config", None)
    fields_of |= {"init_lora_weights": True, "lora_dropout": 0.0}
    return json.dumps(fields_of, default=lambda value: sorted(value) if isinstance(value, (set, frozenset)) else value.value)


def _optimizer(optimizer):
    if isinstance(optimizer, torch.optim.Optimizer):
        raise InputError("optimizer: expected its name, \"adamw\" or \"sgd\", and optimizer_bits for its states' numbers")
    return "none" if optimizer is None else _choice("optimizer", str(optimizer).lower(), ("none", "sgd", "adamw"))


def _device(device):
    if not re.fullmatch(r"(cpu|cuda)(:\d+)?", str(device)):
        raise InputError(f"device: '{device}', expected cpu or cuda")
    return str(device)


def _words(name, words):
    words = [words] if isinstance(words, str) else list(words)
    if not all(isinstance(word, str) and word for word in words):
        raise InputError(f"{name}: expected parts of parameters' names")
    return words


def _choice(name, value, choices):
    if value not in choices:
        raise InputError(f"{name}: {value!r}, expected one of {', '.join(map(str, choices))}")
    return value


def _whole(name, value, least=1):
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name}: {value!r}, expected a whole number from {least} on")
    return value


def _budgets(budget, host_budget, margin):
    sizes = {"budget_bytes": parse_bytes("budget", budget), "host_budget_bytes": parse_bytes("host_budget", host_budget) if host_budget else 0}
    return sizes if margin is None else sizes | {"margin_bytes": margin and parse_bytes("margin", margin)}


def parse_bytes(name, size):
    """Bytes of 80_000_000_000, "80GB" or "64GiB". Raises InputError for anything else."""
    if isinstance(size, int) and not isinstance(size, bool) and 0 < size < 2**62:
        return size
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", size) if isinstance(size, str) else None
    if match is None or match[2] not in UNITS or not 1 <= float(match[1]) * UNITS[match[2]] < 2**62:
        raise InputError(f"{name}: {size!r}, expected bytes, or a size such as \"80GB\" or \"512MiB\" ({', '.join(list(UNITS)[2:])})")
    return round(float(match[1]) * UNITS[match[2]])


def _as_predicted(settings):
    """Settings with which backward() spends no idle memory in addition."""
    return {"keep": "none", **settings} if settings is not None and settings["method"] == "streambp" else settings


def _prediction(found, **more):
    found = found | more
    return Prediction(**{field.name: found[field.name] for field in fields(Prediction)})


def _longest(found):
    names = {"model": found["model"], "configuration": found["configuration"]}
    at = {key: _prediction(found[key], **names) if found[key] is not None else None for key in ("at_longest", "at_shortest")}
    more = {key: found[key] for key in ("cost", "best", "settings") if key in found}
    if "settings" in more:
        more["settings"] = _as_predicted(more["settings"])
    return Longest(seq_len=found["seq_len"], resolution=found["resolution"], evaluations=found["evaluations"],
                   configuration=found["configuration"], **at, **more)
