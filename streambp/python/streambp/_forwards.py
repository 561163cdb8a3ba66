"""The forward functions that patch() puts onto a model: of the decoder, of its layers, of the final norm and head, and of the whole."""

import inspect
import sys
import warnings

import torch
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast, MoeCausalLMOutputWithPast, MoeModelOutputWithPast

from ._attention import CACHES, check_keywords, mask_as_run
from ._batch import mask_of_columns
from ._decoder import FOR_TOWERS, check_text_tokens, model_class, text_config
from ._library import InputError, checked
from ._rope import hand_over_rope
from ._streamed_head import streamed_loss
from ._streamed_layers import StreamedLayer

IGNORED = -100
PACKED = "streambp_packed"  # asks the decoder for packed hidden states before the final norm
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


class Stream:
    """One forward pass's tokens: padded inputs as they came, and the engine's stream of them by engine.

    A forward pass may meet several engines: FSDP2 gathers parameters in a dtype of its own.
    routes: whether layers give their routers' logits; router_logits: those of the layers that have one, packed [N, X].
    """

    def __init__(self, configuration, chunk, input_ids, attention_mask, position_ids, routes=False):
        self.configuration, self.chunk, self.routes = configuration, chunk, routes
        self.inputs = input_ids, attention_mask, position_ids
        self.router_logits = []
        self._streams = {}

    def on(self, hidden):
        """(engine, its stream) for hidden states of this dtype and on this device. Raises InputError for inputs that pack() refuses."""
        engine = self.configuration.engine(hidden)
        key = hidden.dtype, hidden.device
        if key not in self._streams:
            hand_over_rope(engine, self.configuration.weights.base, int(self.inputs[2].max()) + 1)
            self._streams[key] = checked(engine.stream, *self.inputs)
        return engine, self._streams[key]

    def pack(self, padded):
        """[N, D] of padded [B, T, D]."""
        _, stream = self.on(padded)
        rows = padded.flatten(0, 1)
        return rows if stream.size() == rows.shape[0] else rows.index_select(0, stream.indices().to(rows.device))

    def unpack(self, packed):
        """[B, T, ...] of packed [N, ...], 0 where there is padding."""
        batch, columns = self.inputs[0].shape
        shape = (batch, columns, *packed.shape[1:])
        if packed.shape[0] == batch * columns:
            return packed.reshape(shape)
        indices = next(iter(self._streams.values())).indices().to(packed.device)
        return packed.new_zeros(batch * columns, *packed.shape[1:]).index_copy(0, indices, packed).reshape(shape)


def backbone_forward(call, *args, **kwargs):
    """The decoder: streamed where gradients are wanted or no cache is, the model's own elsewhere."""
    packed = kwargs.pop(PACKED, False)
    given = call.bound(args, kwargs)
    if not _streams(call, given, packed):
        return call.original(*args, **kwargs)
    try:
        call.state.check()
        stream, hidden = _start(call.state, given)
    except InputError:
        if packed or torch.is_grad_enabled():
            raise
        return call.original(*args, **kwargs)  # without gradients the model's own code is as good
    for layer in call.module.layers[: call.module.config.num_hidden_layers]:
        hidden = layer(hidden, stream=stream)
        if stream.routes:
            hidden, logits = hidden
            stream.router_logits += [logits] if logits.numel() else []
    if packed:
        return hidden, stream
    hidden = stream.unpack(call.module.norm(hidden))
    of_routers = {"router_logits": unpacked_router_logits(stream)} if stream.router_logits else {}
    kind = MoeModelOutputWithPast if hasattr(call.module.config, "num_experts") else BaseModelOutputWithPast
    output = kind(last_hidden_state=hidden, **of_routers)
    return output if _returns_dict(call.module, given) else output.to_tuple()


def whole_forward(call, *args, **kwargs):
    """Decoder and towers: of text alone the decoder, streamed; without gradients the model's own, which may have images too."""
    if not torch.is_grad_enabled():
        return call.original(*args, **kwargs)
    given = {name: value for name, value in call.bound(args, kwargs).items() if value is not None and name not in FOR_TOWERS}
    output = call.module.language_model(**given | {"return_dict": True})
    kind = model_class(call.module)
    # A class of its own, or, since transformers 5.24, one that several models share.
    names = (f"{kind.__name__}OutputWithPast", "MultimodalMoeBaseModelOutputWithPast", "MultimodalBaseModelOutputWithPast")
    module = sys.modules[kind.__module__]
    output = next((getattr(module, name) for name in names if hasattr(module, name)), type(output))(**output)
    return output if _returns_dict(call.module, given) else output.to_tuple()


def unpacked_router_logits(stream):
    """What transformers calls router_logits, [B T, X] of each layer that has a router; 0 in padding."""
    return tuple(stream.unpack(logits).flatten(0, 1) for logits in stream.router_logits)


def balance_of(call, stream, attention_mask):
    """The load-balancing loss of a mixture's routers by transformers' own function; None where it isn't asked for."""
    if not stream.routes:
        return None
    function = sys.modules[model_class(call.module).__module__].load_balancing_loss_func
    numbers = [_of_mixture(call.module, name) for name in ("num_experts", "num_experts_per_tok")]
    return function(unpacked_router_logits(stream), *numbers, attention_mask)


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
    if given.get("use_cache"):
        warnings.warn("use_cache=True with gradients: streamed layers keep no cache, it is left out", stacklevel=2)
    return True


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
    """(Stream, packed embeddings [N, D])."""
    input_ids, embeddings = given.get("input_ids"), given.get("inputs_embeds")
    if (input_ids is None) == (embeddings is None):
        raise ValueError("You must specify exactly one of input_ids or inputs_embeds")
    check_text_tokens(state.base, input_ids)
    if embeddings is None:
        embeddings = state.backbone.embed_tokens(input_ids)
    else:
        input_ids = torch.zeros(embeddings.shape[:2], dtype=torch.int64, device=embeddings.device)
    scale = getattr(state.backbone, "embedding_multiplier", 1.0)  # Granite's, of embeddings that are given as well
    if scale != 1.0:
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
        mask = mask_of_columns(mask, positions)
    mask = mask_as_run(state.base, mask, positions, input_ids.shape[0])
    routes = _asked(state.backbone.config, given, "output_router_logits")
    stream = Stream(state.configuration(), state.chunk, input_ids, mask, positions, routes)
    return stream, stream.pack(embeddings)


def layer_forward(call, hidden, *args, stream=None, **kwargs):
    """A decoder layer: one autograd node on the stream, the layer's own forward where there is none (generation)."""
    if stream is None:
        return call.original(hidden, *args, **kwargs)
    slots = stream.configuration.layers[call.index]
    return StreamedLayer.apply(stream, call.index, slots, hidden, *slots.tensors())


def inner_forward(call, hidden, *args, inside=None, **kwargs):
    """The final norm and the head: with `inside`, calls it with `hidden` while hooks of the module hold its parameters ready."""
    return call.original(hidden, *args, **kwargs) if inside is None else inside(hidden)


def inside_head(state, hidden, function):
    """function(hidden), called inside the calls of the final norm and of the head, whose parameters FSDP2 gathers for these."""
    return state.backbone.norm(hidden, inside=lambda normed: state.base.lm_head(normed, inside=function))


def causal_forward(call, *args, **kwargs):
    """<Family>ForCausalLM: with labels in training mode a streamed loss, without logits; else the model's own forward."""
    state = call.state
    given = call.bound(args, kwargs)
    if given.get("fused_lm_head") and state.fused_head is not None and not _only_the_model_has(call, given):
        from ._trl import fused_forward

        return fused_forward(call, given)
    if not _loss_streams(call, given):
        return call.original(*args, **kwargs)
    loss_inputs = {name: given.pop(name, None) for name in ("labels", "shift_labels", "num_items_in_batch")}
    returns_dict = _returns_dict(call.module, given)
    hidden, stream = packed_hidden(call, given)
    labels = labels_of(state, stream, loss_inputs["labels"], loss_inputs["shift_labels"], counted=loss_inputs["num_items_in_batch"] is not None)
    loss = streamed_loss(state, stream, hidden, labels, loss_inputs["num_items_in_batch"])
    balance = balance_of(call, stream, given.get("attention_mask"))
    if balance is not None:
        of_routers = {"aux_loss": balance, "router_logits": unpacked_router_logits(stream)}
        output = MoeCausalLMOutputWithPast(loss=loss + _of_mixture(call.module, "router_aux_loss_coef") * balance, **of_routers)
    else:
        kind = MoeCausalLMOutputWithPast if hasattr(call.module.config, "num_experts") else CausalLMOutputWithPast
        output = kind(loss=loss)
    return output if returns_dict else output.to_tuple()


def packed_hidden(call, given):
    """(packed hidden states before the final norm [N, D], Stream) of a model's arguments."""
    of_head = ("logits_to_keep", "fused_lm_head", "return_dict", "ignore_index")
    inputs = {name: value for name, value in given.items() if name not in of_head}
    inputs["use_cache"] = False
    return call.state.backbone(**{PACKED: True}, **inputs)


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
    return module.loss_function is ForCausalLMLoss


def labels_of(state, stream, labels, shift_labels=None, counted=False):
    """labels [B, T] where column t + 1 holds the target of column t, and none that padding would predict.

    Raises InputError for the latter unless state.first_labels is "ignore" (and then where they are `counted`, as Trainer's
    num_items_in_batch counts them), and for shift_labels with a target of the last column, which no
    column follows.
    """
    shape = stream.inputs[0].shape
    if shift_labels is not None:
        shift_labels = shift_labels.reshape(shape)
        if (shift_labels[:, -1] != IGNORED).any():
            raise InputError("shift_labels: the last column has a target; sequence parallelism is not supported, give labels, or -100 "
                             "there")
        labels = torch.nn.functional.pad(shift_labels[:, :-1], (1, 0), value=IGNORED)
    if labels.shape != shape:
        raise InputError(f"labels: shape {list(labels.shape)}, expected that of input_ids, {list(shape)}")
    mask = stream.inputs[1]
    if mask is None:
        return labels
    from_padding = torch.zeros(shape, dtype=torch.bool, device=labels.device)
    from_padding[:, 1:] = (mask[:, :-1] == 0).to(labels.device)
    from_padding &= labels != IGNORED
    if not from_padding.any():
        return labels
    if state.first_labels != "ignore":
        row, column = from_padding.nonzero()[0].tolist()
        raise InputError(f"labels: row {row} column {column}: padding would predict it; set it to -100, or patch(..., "
                         "first_labels=\"ignore\")")
    if counted:
        row, column = from_padding.nonzero()[0].tolist()
        raise InputError(f"labels: row {row} column {column}: padding would predict it, and num_items_in_batch counts it although "
                         "first_labels=\"ignore\" drops it: the loss would be too small; set it to -100 in the collator")
    return labels.masked_fill(from_padding, IGNORED)
