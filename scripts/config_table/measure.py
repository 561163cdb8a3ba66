"""What transformers' classes make of a config.json, taken from the model and from what it computes."""

import json

import torch
import transformers
from goldens.passes import MIXTURES
from transformers.core_model_loading import revert_weight_conversion

from config_table.recorder import Recorder
from config_table.ropes import TWO_ROPES
from config_table.routers import experts_of

TOKENS = 30
# Of which frequencies are read: within and beyond every original length drawn here.
LENGTHS = (12, 48)
# Of which the scale of queries is read.
POSITIONS = (3, 17, 29)


class OtherRotationError(Exception):
    """Keys are rotated in a way that is none of those known here."""


def shapes_of(model):
    """Names and shapes as in a weight file: experts apart, layers alike once."""
    layers, others = {}, {}
    in_file = model.state_dict()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in in_file}
    converted = revert_weight_conversion(model, dict(model.named_parameters()) | buffers)
    stored = {name.replace("model.language_model.", "model."): tensor for name, tensor in converted.items()}
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
    is_local = getattr(recorded["module"], "is_sliding", True)  # EXAONE 4's other layers have the number too
    stated = (getattr(recorded["module"], "sliding_window", None) or 0) if is_local else 0
    return stated if stated > TOKENS else 0


def decoder_of(model):
    """The decoder without its head, also of a multimodal model."""
    return getattr(model.model, "language_model", model.model)


def text_config(model):
    return model.config.get_text_config()


def kinds_of_rope(model):
    """Names in the table and in transformers of each kind that a layer has."""
    if text_config(model).model_type not in TWO_ROPES:
        return {"rope": None}
    kinds = {"rope": "full_attention", "local_rope": "sliding_attention"}
    return {name: kind for name, kind in kinds.items() if kind in text_config(model).layer_types}


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


def is_rotated_by(angles, scaling, pairs, before, after):
    if 2 * angles.shape[-1] > before.shape[-1]:
        return False  # of longer heads
    return bool((rotate_by(before, angles, scaling, pairs) - after).abs().max() < 1e-10)


def rotations(model, recorder):
    """Of each layer which kinds of rope its keys were rotated by (none: they weren't), and whether the entries rotated
    together are neighbours (None: a single pair, where it is all one), after a forward pass of TOKENS."""
    rotary = decoder_of(model).rotary_emb
    kinds, layouts = [], {False, True}
    for layer in range(text_config(model).num_hidden_layers):
        recorded = recorder.layers.get(layer, {"rotated": None})["rotated"]
        kinds.append([])
        if recorded is None:
            continue
        found = set()
        for name, kind in kinds_of_rope(model).items():
            prefix = "" if kind is None else f"{kind}_"
            angles = torch.arange(TOKENS)[:, None] * getattr(rotary, f"{prefix}inv_freq")
            scaling = getattr(rotary, f"{prefix}attention_scaling")
            fits = {pairs for pairs in (False, True) if is_rotated_by(angles, scaling, pairs, *recorded)}
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
        if recorded["rotated_query"] is None:
            continue
        before = recorded["rotated_query"][0]
        if hasattr(recorded["module"], "query_layernorm"):  # Hunyuan's, after the rotation
            before = recorded["module"].query_layernorm(before)
        after = recorded["query"][0][:, -before.shape[-1] :]
        entries = before.abs().argmax(-1)
        return [(after[at, entries[at]] / before[at, entries[at]]).item() for at in POSITIONS]
    return [1.0] * len(POSITIONS)


def keys_and_values(recorder, config):
    """Of Gemma 4: which layer's keys each layer reads, and the number and size of its heads."""
    if config.model_type != "gemma4_text":
        return {}
    keys = [recorder.layers[layer]["key"] for layer in range(config.num_hidden_layers)]
    return {
        "producers": [next(i for i, other in enumerate(keys) if other is key) for key in keys],
        "head_dims": [key.shape[-1] for key in keys],
        "key_value_heads": [key.shape[1] for key in keys],
    }


def frequencies(model):
    """Inverse frequencies and attention scaling of each kind of layer, for sequences of LENGTHS."""
    rotary = decoder_of(model).rotary_emb
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
    config, decoder = text_config(model), decoder_of(model)
    entering = []
    ids = torch.arange(TOKENS).remainder(config.vocab_size).unsqueeze(0)
    hook = decoder.layers[0].register_forward_pre_hook(lambda _, given, named: entering.append([*given, *named.values()][0]), with_kwargs=True)
    # Without it, layers of Gemma 4 with others' keys and values fail where there are no per-layer inputs.
    of_family = {"output_hidden_states": True} if config.model_type == "gemma4_text" else {}
    with recorder.recording():
        last = decoder(input_ids=ids, position_ids=torch.arange(TOKENS).unsqueeze(0), use_cache=False, **of_family).last_hidden_state
    hook.remove()
    row = decoder.embed_tokens.weight[ids[0, 1]]
    entry = row.abs().argmax()
    scales = {"embed_scale": (entering[0][0, 1, entry] / row[entry]).item(), "logits_scaling": 1.0}
    if getattr(config, "final_logit_softcapping", None) is None:
        no_router_loss = {"output_router_logits": False} if config.model_type in MIXTURES else {}
        logits = model(input_ids=ids, use_cache=False, **no_router_loss, **of_family).logits[0, 1]
        plain = model.lm_head(last)[0, 1]
        entry = plain.abs().argmax()
        scales["logits_scaling"] = (plain[entry] / logits[entry]).item()
    return scales


def norm_and_activation(model):
    """Of the last norm and of the MLPs."""
    decoder = decoder_of(model)
    norm = decoder.norm
    norm.weight.zero_()
    modules = [mlp for layer in decoder.layers for mlp in (layer.mlp, getattr(layer.mlp, "experts", None))]
    act = next((getattr(mlp, name) for mlp in modules for name in ("act_fn", "activation_fn") if hasattr(mlp, name)), None)
    if act is None:  # GPT-OSS's
        experts = decoder.layers[0].mlp.experts
        activation = {"swiglu_alpha": float(experts.alpha), "swiglu_limit": float(experts.limit)}
    else:
        activation = {"activation_at_0.7": act(torch.tensor(0.7)).item()}
    return {
        "rms_norm_eps": float(getattr(norm, "variance_epsilon", None) or norm.eps),
        "norm_adds_one": bool(norm(torch.ones(1, norm.weight.numel())).abs().sum() > 0),
        **activation,
    }


def recurrent_layers(model):
    """Which layers have the delta rule, and its sizes; nothing for a model without."""
    rules = [getattr(layer, "linear_attn", None) for layer in decoder_of(model).layers]
    rule = next((rule for rule in rules if rule is not None), None)
    if rule is None:
        return {}
    sizes = [rule.num_k_heads, rule.num_v_heads, rule.head_k_dim, rule.head_v_dim, rule.conv_kernel_size]
    return {"linear_attention": [rule is not None for rule in rules], "delta_rule": sizes}


def make_model(settings):
    """The model of a file in float64, of a multimodal file with its text part alone, with random parameters."""
    config = transformers.AutoConfig.for_model(**json.loads(json.dumps(settings)))
    options = {"dtype": torch.float64, "attn_implementation": "eager"}
    if config.get_text_config().model_type in MIXTURES:
        options["experts_implementation"] = "eager"
    dtype = config.dtype or config.get_text_config().dtype
    model = transformers.AutoModelForCausalLM.from_config(config, **options).eval()
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.normal_(0.0, 0.1)
    return model, dtype


@torch.no_grad()
def derive(settings):
    """What transformers makes of a file."""
    model, dtype = make_model(settings)
    config, decoder = text_config(model), decoder_of(model)
    recorder = Recorder(model)
    scales = forward(model, recorder)
    attention = next(layer.self_attn for layer in decoder.layers if hasattr(layer, "self_attn"))
    derived = {
        "head_dim": attention.qk_head_dim if hasattr(attention, "qk_head_dim") else attention.head_dim,
        "scaling": attention.scaling,
        "windows": [window_of(recorder.layers.get(layer)) for layer in range(config.num_hidden_layers)],
        **scales,
        "residual_multiplier": float(getattr(decoder.layers[0], "residual_multiplier", 1.0)),
        "padding_idx": decoder.embed_tokens.padding_idx,
        "tied": model.lm_head.weight is decoder.embed_tokens.weight,
        "attn_logit_softcapping": getattr(attention, "attn_logit_softcapping", None),
        "final_logit_softcapping": getattr(config, "final_logit_softcapping", None),
        "dropout": getattr(config, "attention_dropout", 0.0),
        "dtype": None if dtype is None else str(dtype).removeprefix("torch."),
        **rotations(model, recorder),
        "query_scale": query_scale(recorder),
        **frequencies(model),
        **keys_and_values(recorder, config),
        **recurrent_layers(model),
        **experts_of(model, decoder.layers, config),
        **norm_and_activation(model),
        **shapes_of(model),
    }
    return derived
