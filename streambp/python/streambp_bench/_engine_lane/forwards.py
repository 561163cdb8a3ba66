"""The forward functions that patch() puts onto a model: of the decoder, of its layers, of the final norm and head, and of the whole."""

import functools
import inspect
import sys
import warnings

import torch
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast, MoeCausalLMOutputWithPast, MoeModelOutputWithPast

from .._batch import mask_of_columns
from .._hooks import has_hooks
from .._library import InputError
from .._live_model.attention import ADDED, CACHES, check_blocks, check_keywords, is_added, mask_as_run, undivided
from .._live_model.decoder import FOR_TOWERS, check_text_tokens, final_rows, into_streams, last_norm, model_class, text_config
from .._live_model.families import SCALES_OWN_EMBEDDINGS
from .._live_model.state import strange_loss
from .stream import IGNORED, PACKED, Stream, labels_of, unpacked_router_logits
from .streamed_head import streamed_loss
from .streamed_layers import StreamedLayer

OF_PADDING = ("rows of padding are not computed: logits there are those of zeros, not the model's own; leave them out of what you make of logits, by attention_mask "
              "or labels, or patch with lane=\"module\"")
OF_PADDED_ROWS = ("rows of padding are not computed: last_hidden_state is 0 there, not the model's own, and the loss depends on it; leave them out by attention_mask, "
                  "or patch with lane=\"module\"")
NOT_KEPT = ("output_attentions", "output_hidden_states")


class Call:
    """What a streamed forward knows: state (Patched), the module, its own forward, and a layer's index."""

    def __init__(self, state, module, original, index=None):
        self.state, self.module, self.original, self.index = state, module, original, index

    def bound(self, args, kwargs):
        """The arguments by name, as the model's own forward takes them."""
        names = list(self.arguments())
        if len(args) > len(names):
            raise TypeError(f"forward() takes at most {len(names)} positional arguments, {len(args)} were given")
        return dict(zip(names, args, strict=False)) | kwargs

    def arguments(self):
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return [name for name, parameter in inspect.signature(self.original).parameters.items() if parameter.kind in kinds]


def or_by_its_own_code(function):
    """An entry of the model: what the engine refuses is left to lane="module", where there is one."""
    @functools.wraps(function)
    def entry(call, *args, **kwargs):
        if call.state.understudy is None or PACKED in kwargs:
            return function(call, *args, **kwargs)
        try:
            return function(call, *args, **kwargs)
        except InputError as error:
            reason = str(error)
        with call.state.aside(reason):
            return call.original(*args, **kwargs)

    return entry


@or_by_its_own_code
def backbone_forward(call, *args, **kwargs):
    """The decoder: streamed where gradients are wanted or no cache is, the model's own elsewhere."""
    packed = kwargs.pop(PACKED, None)
    given = call.bound(args, kwargs)
    if not _streams(call, given, packed):
        return call.original(*args, **kwargs)
    given = undivided(call.state, given)
    try:
        call.state.check()
        stream, hidden = _start(call.state, given)
        if packed is None:
            _check_pooled(call.state.base, given.get("input_ids"), stream, hidden)
    except InputError:
        if packed or torch.is_grad_enabled() or (call.state.understudy is not None and call.module.training):
            raise
        return call.original(*args, **kwargs)  # without gradients the model's own code is as good, but rounded as in training by the same lane
    if packed is not None:
        packed(stream)
    for layer in call.module.layers[: call.module.config.num_hidden_layers]:
        padded = has_hooks(layer)  # which expect [B, T, D]
        hidden = layer(stream.unpack(hidden) if padded else hidden, stream=stream, padded=padded)
        hidden = stream.pack(hidden) if padded else hidden
    if packed is not None:
        return hidden, stream
    if call.state.makes_logits and stream.has_padding():
        call.state.say_once(OF_PADDING)
    hidden = stream.unpack(final_rows(call.module, hidden))
    if packed is None and not call.state.makes_logits and hidden.requires_grad and stream.has_padding() and OF_PADDED_ROWS not in call.state.said:
        hidden.register_hook(lambda gradient: _look_at_padding(call.state, stream, gradient))
    of_routers = {"router_logits": unpacked_router_logits(stream)} if stream.router_logits else {}
    kind = MoeModelOutputWithPast if has_experts(call.module.config) else BaseModelOutputWithPast
    output = kind(last_hidden_state=hidden, **of_routers)
    return output if _returns_dict(call.module, given) else output.to_tuple()


def _look_at_padding(state, stream, gradient):
    """Says it where a loss is made of the decoder's rows of padding, which are 0 here."""
    rows = stream.unpack(gradient.new_ones(stream.pack(gradient).shape[0])) == 0
    if bool(gradient[rows].any()):
        state.say_once(OF_PADDED_ROWS)


def _check_pooled(model, input_ids, stream, hidden):
    """Refuses a classifier's batch whose score would be of padding: transformers takes the last column whose token is not pad_token_id, whatever the mask says."""
    if not type(model).__name__.endswith("ForSequenceClassification") or not stream.has_padding():
        return
    computed = stream.unpack(hidden.new_ones(hidden.shape[0]))
    pad, last = text_config(model).pad_token_id, torch.full((computed.shape[0],), computed.shape[1] - 1, device=computed.device)
    if pad is not None and input_ids is not None:
        columns = torch.arange(computed.shape[1], device=computed.device)
        last = (columns * (input_ids.to(computed.device) != pad)).argmax(1)
    of_padding = computed.gather(1, last[:, None])[:, 0] == 0
    if of_padding.any():
        row = int(of_padding.nonzero()[0])
        raise InputError(f"input_ids: row {row} is scored at column {int(last[row])}, which attention_mask has as padding (pad_token_id is {pad}): "
                         "set the config's pad_token_id to the token that pads, or patch with lane=\"module\"")


@or_by_its_own_code
def whole_forward(call, *args, **kwargs):
    """Decoder and towers: of text alone the decoder, streamed; without gradients the model's own, which may have images too."""
    if not torch.is_grad_enabled():
        return call.original(*args, **kwargs)
    given = {name: value for name, value in call.bound(args, kwargs).items() if value is not None and name not in FOR_TOWERS}
    check_keywords(given)  # here, since the decoder alone has no towers for what it would leave to its own code
    check_text_tokens(call.state.base, given.get("input_ids"))
    output = call.module.language_model(**given | {"return_dict": True})
    kind = model_class(call.module)
    # A class of its own, or, since transformers 5.24, one that several models share.
    names = (f"{kind.__name__}OutputWithPast", "MultimodalMoeBaseModelOutputWithPast", "MultimodalBaseModelOutputWithPast")
    module = sys.modules[kind.__module__]
    output = next((getattr(module, name) for name in names if hasattr(module, name)), type(output))(**output)
    return output if _returns_dict(call.module, given) else output.to_tuple()


def balance_of(call, stream, attention_mask):
    """The load-balancing loss of a mixture's routers by transformers' own function; None where it isn't asked for, or the model has none."""
    function = getattr(sys.modules[model_class(call.module).__module__], "load_balancing_loss_func", None)
    if not stream.routes or function is None:
        return None
    numbers = [_of_mixture(call.module, name) for name in ("num_experts", "num_experts_per_tok")]
    return function(unpacked_router_logits(stream), *numbers, attention_mask)


def has_experts(config):
    """Whether the class is a mixture, be it of no experts."""
    return hasattr(config, "num_experts") or hasattr(config, "num_local_experts")


def _of_mixture(module, name):
    """What a model's own forward reads: of itself, or where it has a tower of its text config."""
    return getattr(module, name) if hasattr(module, name) else getattr(text_config(module), name)


def _returns_dict(module, given):
    chosen = given.get("return_dict")
    return getattr(module.config, "return_dict", True) if chosen is None else chosen


def _streams(call, given, packed):
    """Whether this call is streamed. Raises InputError for what it asks for and a streamed pass with gradients can't give."""
    config = call.module.config
    caching = next((name for name in CACHES if given.get(name) is not None), None)
    wanted = given.get("use_cache")
    wanted = getattr(config, "use_cache", False) if wanted is None else wanted
    extras = [name for name in NOT_KEPT if _asked(config, given, name)]
    if not torch.is_grad_enabled() and not packed:
        routes = _asked(config, given, "output_router_logits")
        return not (caching or wanted or extras or routes or isinstance(given.get("attention_mask"), dict) or not _takes(given))
    check_keywords(given)
    if caching:
        raise InputError(f"{caching}: a cache can't be continued with gradients; call under torch.no_grad(), or leave it out")
    for name in extras:
        raise InputError(f"{name} is asked for: streamed layers keep none; leave it False")
    _check_cache(call, given)
    return True


def _check_cache(call, given):
    """A cache that is asked for with gradients: raises InputError where the layers' own code can fill it, else says that it is left out."""
    if given.get("use_cache") and call.state.understudy is not None:
        raise InputError("use_cache=True with gradients: streamed layers keep no cache; leave it out")
    if given.get("use_cache"):
        warnings.warn("use_cache=True with gradients: streamed layers keep no cache, it is left out", stacklevel=2)


def _takes(given):
    """Whether a streamed pass knows all arguments; without gradients the model's own code can have those that it doesn't."""
    try:
        check_keywords(given)
    except InputError:
        return False
    return True


def _asked(config, given, name):
    value = given.get(name)
    return bool(getattr(config, name, False) if value is None else value)


def _start(state, given):
    """(Stream, packed embeddings [N, D], once for each residual stream)."""
    input_ids, embeddings = given.get("input_ids"), given.get("inputs_embeds")
    if (input_ids is None) == (embeddings is None):
        raise ValueError("You must specify exactly one of input_ids or inputs_embeds")
    check_text_tokens(state.base, input_ids)
    if embeddings is None:
        embeddings = state.backbone.get_input_embeddings()(input_ids)
    else:
        input_ids = torch.zeros(embeddings.shape[:2], dtype=torch.int64, device=embeddings.device)
    scale = getattr(state.backbone, "embedding_multiplier", 1.0)
    if scale != 1.0 and (given.get("inputs_embeds") is None or text_config(state.base).model_type not in SCALES_OWN_EMBEDDINGS):
        embeddings = embeddings * scale
    state.check_call(embeddings)
    columns = input_ids.shape[1]
    positions = given.get("position_ids")
    if positions is None:
        positions = torch.arange(columns, device=input_ids.device).unsqueeze(0)
    mask = given.get("attention_mask")
    if isinstance(mask, dict):
        raise InputError("attention_mask: one for each kind of layer is given with gradients, expected [rows, columns]")
    if mask is not None and mask.dim() == 4:
        if is_added(state.base, mask):
            state.say_once(ADDED.format(": streamed layers hide what is False, as is meant"))
        mask = mask_of_columns(mask, positions)
    check_blocks(state.base, mask, embedded=given.get("input_ids") is None)
    mask = mask_as_run(state.base, mask, positions, input_ids.shape[0])
    routes = _asked(state.backbone.config, given, "output_router_logits")
    stream = Stream(state.configuration(), state.chunk, input_ids, mask, positions, routes)
    hidden = into_streams(state.backbone, stream.pack(embeddings))
    if torch.is_grad_enabled() and state.base.training:
        stream.keep = state.spend(hidden)
    return stream, hidden


def layer_forward(call, hidden, *args, stream=None, padded=False, **kwargs):
    """A decoder layer: one autograd node on the stream, the layer's own forward where there is none (generation)."""
    if stream is None:
        return call.original(hidden, *args, **kwargs)
    slots = stream.configuration.layers[call.index]
    output = StreamedLayer.apply(stream, call.index, slots, stream.pack(hidden) if padded else hidden, *slots.tensors())
    if stream.routes:
        output, logits = output
        stream.router_logits += [logits] if logits.numel() else []
    return stream.unpack(output) if padded else output


def inner_forward(call, hidden, *args, inside=None, **kwargs):
    """The final norm and the head: with `inside`, calls it with `hidden` while hooks of the module hold its parameters ready."""
    return call.original(hidden, *args, **kwargs) if inside is None else inside(hidden)


class HiddenAlone(BaseModelOutputWithPast):
    """A decoder's hidden states; whatever else its family puts next to them, for which the model's own forward may ask, is None."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)


@or_by_its_own_code
def causal_forward(call, *args, **kwargs):
    """<Family>ForCausalLM: with labels in training mode a streamed loss, and logits when they are looked at; else the model's own forward."""
    state = call.state
    given = call.bound(args, kwargs)
    if given.get("fused_lm_head") and state.fused is not None:
        return state.fused(*args, **kwargs)
    if not _loss_streams(call, given):
        with state.making_logits():
            return call.original(*args, **kwargs)
    _check_cache(call, given)
    given = undivided(state, given)
    loss_inputs = {name: given.pop(name, None) for name in ("labels", "shift_labels", "num_items_in_batch")}
    returns_dict, found, items = _returns_dict(call.module, given), [], loss_inputs["num_items_in_batch"]

    def look(stream):  # before anything is computed
        found.append(labels_of(state, stream, loss_inputs["labels"], loss_inputs["shift_labels"], counted=items is not None))

    hidden, stream = packed_hidden(call, given, look)
    loss = streamed_loss(state, stream, hidden, found[0], items)

    def outputs():
        if stream.has_padding():
            state.say_once(OF_PADDING)
        return HiddenAlone(last_hidden_state=stream.unpack(final_rows(state.backbone, hidden)))

    logits = state.head.lazy(outputs, stream.inputs[0], hidden, weights=last_norm(state.backbone).parameters())
    balance = balance_of(call, stream, given.get("attention_mask"))
    if balance is not None:
        of_routers = {"aux_loss": balance, "router_logits": unpacked_router_logits(stream), "logits": logits}
        output = MoeCausalLMOutputWithPast(loss=loss + _of_mixture(call.module, "router_aux_loss_coef") * balance, **of_routers)
    else:
        kind = MoeCausalLMOutputWithPast if has_experts(call.module.config) else CausalLMOutputWithPast
        output = kind(loss=loss, logits=logits)
    return output if returns_dict else output.to_tuple()


def packed_hidden(call, given, look):
    """(packed hidden states before the final norm [N, D], Stream) of a model's arguments; look(Stream) is called before anything is computed."""
    of_head = ("logits_to_keep", "fused_lm_head", "return_dict", "ignore_index")
    inputs = {name: value for name, value in given.items() if name not in of_head}
    inputs["use_cache"] = False
    return call.state.backbone(**{PACKED: look}, **inputs)


def _only_the_model_has(call, given):
    """Whether, without gradients, something is asked for that the model's own forward gives and a streamed one doesn't.

    In inference mode that is all: its tensors are not those of autograd's nodes.
    """
    if torch.is_inference_mode_enabled():
        return True
    return not torch.is_grad_enabled() and any(_asked(text_config(call.module), given, name) for name in (*NOT_KEPT, "output_router_logits"))


def _loss_streams(call, given):
    """Whether this call's loss is streamed: labels in training mode, with transformers' own loss of all logits."""
    module = call.module
    if given.get("labels") is None or not module.training or any(given.get(name) is not None for name in CACHES) or given.get("fused_lm_head"):
        return False
    if _only_the_model_has(call, given):
        return False
    keep = given.get("logits_to_keep", 0)
    if torch.is_tensor(keep) or keep != 0 or given.get("ignore_index", IGNORED) != IGNORED:
        return False
    return strange_loss(module) is None
