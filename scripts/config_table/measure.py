"""What transformers' classes make of a config.json, taken from the model and from what it computes."""

import json
import sys
from unittest import mock

import torch
import transformers
from transformers.core_model_loading import revert_weight_conversion

from config_table.ropes import TWO_ROPES

MIXTURES = ("gpt_oss", "mixtral", "qwen2_moe", "qwen3_5_moe_text", "qwen3_moe", "qwen3_next")

TOKENS = 30
# Of which frequencies are read: within and beyond every original length drawn here.
LENGTHS = (12, 48)
# Of which the scale of queries is read.
POSITIONS = (3, 17, 29)


class OtherRotationError(Exception):
    """Keys are rotated in a way that is none of those known here."""


class Recorder:
    """What the attention of each layer is given and makes, while `recording`."""

    def __init__(self, model):
        self.module = sys.modules[type(model).__module__]
        self.rotary, self.attention = self.module.apply_rotary_pos_emb, self.module.eager_attention_forward
        self.layers = {}
        self.rotation = None

    def recording(self):
        return mock.patch.multiple(self.module, apply_rotary_pos_emb=self.rotate, eager_attention_forward=self.attend)

    def rotate(self, query, key, *arguments, **options):
        rotated = self.rotary(query, key, *arguments, **options)
        self.rotation = {"key": key[0], "rotated_key": rotated[1][0], "rotated_query": rotated[0][0]}
        return rotated

    def attend(self, layer, query, *arguments, **options):
        output, weights = self.attention(layer, query, *arguments, **options)
        self.layers[layer.layer_idx] = {"rotation": self.rotation, "query": query[0], "weights": weights[0].mean(0), "module": layer}
        self.rotation = None
        return output, weights


def shapes_of(model):
    """Names and shapes as in a weight file: experts apart, layers alike once."""
    layers, others = {}, {}
    stored = revert_weight_conversion(model, dict(model.named_parameters()))
    for name in sorted(stored):
        shape = list(stored[name].shape)
        if not name.startswith("model.layers."):
            others[name] = shape
            continue
        index, _, rest = name[len("model.layers.") :].partition(".")
        before, experts, after = rest.partition(".experts.")
        if experts and after.partition(".")[0].isdigit():
            rest = f"{before}.experts.*.{after.partition('.')[2]}"
        layers.setdefault(int(index), {})[rest] = shape
    kinds = []
    for shapes in layers.values():
        if shapes not in kinds:
            kinds.append(shapes)
    return {"others": others, "layer_kinds": kinds, "layers": [kinds.index(layers[i]) for i in range(len(layers))]}


def window_of(recorded):
    """How many keys the last query sees; 0: all, or a recurrent layer. Of a window longer than the sequence its layer's own word."""
    if recorded is None:
        return 0
    seen = int((recorded["weights"][-1] != 0).sum())
    if seen < TOKENS:
        return seen
    stated = getattr(recorded["module"], "sliding_window", None) or 0
    return stated if stated > TOKENS else 0


def kinds_of_rope(model):
    """Names in the table and in transformers of each kind that a layer has."""
    if model.config.model_type not in TWO_ROPES:
        return {"rope": None}
    kinds = {"rope": "full_attention", "local_rope": "sliding_attention"}
    return {name: kind for name, kind in kinds.items() if kind in model.config.layer_types}


def rotate_by(key, angles, scaling, pairs):
    """`key` [heads, tokens, head_dim] with its first entries rotated by `angles` [tokens, half of them]."""
    half = angles.shape[-1]
    first = torch.arange(half) * (2 if pairs else 1)
    second = first + (1 if pairs else half)
    a, b = key[..., first], key[..., second]
    rotated = key.clone()
    rotated[..., first] = (a * angles.cos() - b * angles.sin()) * scaling
    rotated[..., second] = (b * angles.cos() + a * angles.sin()) * scaling
    return rotated


def rotations(model, recorder):
    """Of each layer which kinds of rope its keys were rotated by (none: they weren't), and whether the entries rotated
    together are neighbours (None: a single pair, where it is all one), after a forward pass of TOKENS."""
    rotary = model.model.rotary_emb
    kinds, layouts = [], {False, True}
    for layer in range(model.config.num_hidden_layers):
        recorded = recorder.layers.get(layer, {"rotation": None})["rotation"]
        kinds.append([])
        if recorded is None:
            continue
        found = set()
        for name, kind in kinds_of_rope(model).items():
            prefix = "" if kind is None else f"{kind}_"
            angles = torch.arange(TOKENS)[:, None] * getattr(rotary, f"{prefix}inv_freq")
            scaling = getattr(rotary, f"{prefix}attention_scaling")
            fits = {
                pairs
                for pairs in (False, True)
                if (rotate_by(recorded["key"], angles, scaling, pairs) - recorded["rotated_key"]).abs().max() < 1e-10
            }
            if fits:
                kinds[-1].append(name)
            found |= fits
        if not found:
            raise OtherRotationError(f"layer {layer} of {model.config}")
        layouts &= found
    return {"ropes": kinds, "rope_interleaved": layouts.pop() if len(layouts) == 1 else None}


def query_scale(recorder):
    """The factor of rotated queries at POSITIONS, beyond the scale of all scores."""
    for recorded in recorder.layers.values():
        if recorded["rotation"] is None:
            continue
        before, after = recorded["rotation"]["rotated_query"][0], recorded["query"][0]
        entries = before.abs().argmax(-1)
        return [(after[at, entries[at]] / before[at, entries[at]]).item() for at in POSITIONS]
    return [1.0] * len(POSITIONS)


def frequencies(model):
    """Inverse frequencies and attention scaling of each kind of layer, for sequences of LENGTHS."""
    rotary = model.model.rotary_emb
    result = {}
    for name, kind in kinds_of_rope(model).items():
        arguments = {} if kind is None else {"layer_type": kind}
        prefix = "" if kind is None else f"{kind}_"
        of_length = {}
        for length in LENGTHS:
            rotary(torch.zeros(1, 1, 1), torch.arange(length).unsqueeze(0), **arguments)
            of_length[str(length)] = getattr(rotary, f"{prefix}inv_freq").tolist()
        if of_length[str(LENGTHS[0])] == of_length[str(LENGTHS[1])]:
            del of_length[str(LENGTHS[1])]
        result[name] = {"inv_freq": of_length, "attention_scaling": float(getattr(rotary, f"{prefix}attention_scaling"))}
    return result


def forward(model, recorder):
    """A forward pass of TOKENS: the factors of the embedding's rows and 1 / that of the logits."""
    entering = []
    ids = torch.arange(TOKENS).remainder(model.config.vocab_size).unsqueeze(0)
    hook = model.model.layers[0].register_forward_pre_hook(lambda _, given, named: entering.append([*given, *named.values()][0]), with_kwargs=True)
    with recorder.recording():
        last = model.model(input_ids=ids, position_ids=torch.arange(TOKENS).unsqueeze(0), use_cache=False).last_hidden_state
    hook.remove()
    row = model.model.embed_tokens.weight[ids[0, 1]]
    entry = row.abs().argmax()
    scales = {"embed_scale": (entering[0][0, 1, entry] / row[entry]).item(), "logits_scaling": 1.0}
    if getattr(model.config, "final_logit_softcapping", None) is None:
        no_router_loss = {"output_router_logits": False} if model.config.model_type in MIXTURES else {}
        logits = model(input_ids=ids, use_cache=False, **no_router_loss).logits[0, 1]
        plain = model.lm_head(last)[0, 1]
        entry = plain.abs().argmax()
        scales["logits_scaling"] = (plain[entry] / logits[entry]).item()
    return scales


def mixture(model):
    """Which layers have experts, and their rules."""
    routers = [getattr(layer.mlp, "gate", getattr(layer.mlp, "router", None)) for layer in model.model.layers]
    derived = {"sparse": [router is not None for router in routers]}
    router = next((router for router in routers if router is not None), None)
    if router is None:
        return derived
    scores = router(torch.randn(7, model.config.hidden_size))[1]
    sums_to_one = bool((scores.sum(-1) - 1.0).abs().max() < 1e-12)
    return derived | {
        "num_experts": router.num_experts,
        "top_k": router.top_k,
        # All experts' weights sum to 1 in any case.
        "norm_topk_prob": bool(getattr(router, "norm_topk_prob", True)) if router.top_k == router.num_experts else sums_to_one,
        "router_loss": model.router_aux_loss_coef if model.config.output_router_logits else 0.0,
    }


def norm_and_activation(model):
    """Of the last norm and of the MLPs."""
    norm = model.model.norm
    norm.weight.zero_()
    modules = [mlp for layer in model.model.layers for mlp in (layer.mlp, getattr(layer.mlp, "experts", None))]
    act = next((getattr(mlp, name) for mlp in modules for name in ("act_fn", "activation_fn") if hasattr(mlp, name)), None)
    if act is None:  # GPT-OSS's
        experts = model.model.layers[0].mlp.experts
        activation = {"swiglu_alpha": float(experts.alpha), "swiglu_limit": float(experts.limit)}
    else:
        activation = {"activation_at_0.7": act(torch.tensor(0.7)).item()}
    return {
        "rms_norm_eps": float(getattr(norm, "variance_epsilon", None) or norm.eps),
        "norm_adds_one": bool(norm(torch.ones(1, model.config.hidden_size)).abs().sum() > 0),
        **activation,
    }


def recurrent_layers(model):
    """Which layers have the delta rule, and its sizes; nothing for a model without."""
    rules = [getattr(layer, "linear_attn", None) for layer in model.model.layers]
    rule = next((rule for rule in rules if rule is not None), None)
    if rule is None:
        return {}
    sizes = [rule.num_k_heads, rule.num_v_heads, rule.head_k_dim, rule.head_v_dim, rule.conv_kernel_size]
    return {"linear_attention": [rule is not None for rule in rules], "delta_rule": sizes}


@torch.no_grad()
def derive(settings):
    """What transformers makes of a file."""
    config = transformers.AutoConfig.for_model(**json.loads(json.dumps(settings)))
    dtype = config.dtype
    options = {"dtype": torch.float64, "attn_implementation": "eager"}
    if config.model_type in MIXTURES:
        options["experts_implementation"] = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, **options).eval()
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.normal_(0.0, 0.1)
    recorder = Recorder(model)
    scales = forward(model, recorder)
    attention = next(layer.self_attn for layer in model.model.layers if hasattr(layer, "self_attn"))
    derived = {
        "head_dim": attention.head_dim,
        "scaling": attention.scaling,
        "windows": [window_of(recorder.layers.get(layer)) for layer in range(config.num_hidden_layers)],
        **scales,
        "residual_multiplier": float(getattr(model.model.layers[0], "residual_multiplier", 1.0)),
        "padding_idx": model.model.embed_tokens.padding_idx,
        "tied": model.lm_head.weight is model.model.embed_tokens.weight,
        "attn_logit_softcapping": getattr(attention, "attn_logit_softcapping", None),
        "final_logit_softcapping": getattr(config, "final_logit_softcapping", None),
        "dropout": config.attention_dropout,
        "dtype": None if dtype is None else str(dtype).removeprefix("torch."),
        **rotations(model, recorder),
        "query_scale": query_scale(recorder),
        **frequencies(model),
        **recurrent_layers(model),
        **mixture(model),
        **norm_and_activation(model),
        **shapes_of(model),
    }
    return derived
