"""The lane of patch() for any decoder of transformers: layers are streamed by the model's own code, whatever modules they have inside.

Each decoder layer becomes a node (node.py) that runs the layer's own forward in chunks through a cache of ours (row_cache.py). That
this gives the layer's own gradients is proved when the model is patched (proof.py); a layer that fails runs whole, under checkpointing.
"""

import contextlib
import copy
import inspect
import operator

import torch
from torch.utils.checkpoint import checkpoint

from .._hooks import again, kept_inside, present
from .._library import InputError
from .._live_model.attention import ADDED, is_added, undivided
from .._log import say
from .._replaced import Lane
from . import node
from .attention import LaneAttention, own_masks
from .head import Head
from .held import as_held, held, strange_tensor, with_buffers
from .proof import CACHE_NAMES, ROWS, prove_head, prove_lane
from .row_cache import PicksRows
from .sharded import as_sharded

CHUNK = 1024
MOST_PROOFS = 8  # of layers whose modules are exchanged
KINDS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
IMPLEMENTATIONS = ("eager", "sdpa")
OF_ENCODERS = ("encoder_", "cross_", "image_")  # how arguments begin that bring another's rows, which all of a layer's own may see


def decoder_layers(base):
    """(name, ModuleList) of the decoder's layers. Raises InputError where there is none, or where tokens see later ones."""
    if not hasattr(getattr(base, "config", None), "get_text_config"):
        raise InputError(f"{type(base).__name__}: not a model of transformers, nor PEFT's wrapper of one")
    if getattr(base.config, "is_encoder_decoder", False):
        raise InputError(f"{type(base).__name__}: an encoder and a decoder; lane=\"module\" streams decoders")
    config = base.config.get_text_config(decoder=True)
    if getattr(config, "is_causal", True) is False:
        raise InputError("is_causal is False in the model's config: tokens then see later ones, which a chunk can't")
    count = getattr(config, "num_hidden_layers", None)
    found = [(name, module) for name, module in base.named_modules()
             if isinstance(module, torch.nn.ModuleList) and len(module) and any(True for _ in module.parameters())]
    of_text = [pair for pair in found if not any(word in pair[0] for word in ("vision", "visual", "audio", "image", "mtp"))] or found
    fitting = [pair for pair in of_text if len(pair[1]) == count] or of_text
    if not fitting:
        raise InputError(f"{type(base).__name__}: no ModuleList of decoder layers in it")
    return min(fitting, key=lambda pair: pair[0].count("."))


def unwrapped(layer):
    """A layer without the wrappers of torch.compile and of torch's checkpoint_wrapper."""
    for name in ("_checkpoint_wrapped_module", "_orig_mod"):
        layer = getattr(layer, name, layer)
    return layer


def _collector():
    """The context variable in which transformers collects what modules inside layers give, or None in versions without it."""
    try:
        from transformers.utils.output_capturing import _active_collector
    except ImportError:
        return None
    return _active_collector


@contextlib.contextmanager
def collecting(collector):
    """Inside, transformers collects into this dictionary, or nothing (None)."""
    variable = _collector()
    token = variable.set(collector) if variable is not None else None
    try:
        yield
    finally:
        if variable is not None:
            variable.reset(token)


class LayerCall:
    """What a streamed layer knows. layer: the module; original: its own forward; reason: why it runs whole, or None; proven: whether a proof
    has passed; known: which axes of its arguments count rows, as the proof has seen; ours: whether its attention is the engine's; full: whether a chunk
    is given later rows' keys too, which its mask hides, since it picks among them; rate: of how many rows it makes one compressed entry."""

    def __init__(self, state, layer, name, original):
        self.state, self.layer, self.name, self.original = state, layer, name, original
        self.reason, self.proven, self.known, self.warned, self.ours, self.full = None, False, {}, "", True, False
        self.changing = set()  # ids of forward hooks inside that change what rows give, as a proof has seen
        self.writes = set()  # names of buffers that it writes into, as a proof has seen
        self.repeats = True  # whether it gives the same when it is run again, as a proof has seen
        self.dims, self.axis = 3, 1  # of hidden states, [B, T, D] unless the proof has seen others
        self.padding_counts = False  # whether real rows see those of padding, as a proof has found
        self.rate = next((each.compress_rate for each in layer.modules() if isinstance(getattr(each, "compress_rate", None), int)), None)
        parameters = inspect.signature(original).parameters
        if not any(parameter.kind in KINDS for parameter in parameters.values()):  # of a function around it that hands on what it is given
            parameters = dict(list(inspect.signature(type(layer).forward).parameters.items())[1:])
        self.names = [each for each, parameter in parameters.items() if parameter.kind in KINDS]
        self.any_keyword = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
        inner = [inspect.signature(module.forward).parameters for module in layer.modules()] if self.any_keyword else []
        self.cache_name = next((each for each in CACHE_NAMES if each in self.names), None) or next(
            (each for each in CACHE_NAMES if any(each in names for names in inner)), None)

    def warn(self, reason):
        """Keeps why this layer runs whole; the first of its class to do so says it."""
        if not self.warned:
            self.warned = reason
            self.state.say_once(f"{type(self.layer).__name__} runs whole: {reason}")

    def bound(self, args, kwargs, rows=None):
        """(hidden, the other arguments by name). rows: how many there are, by which a proof learns where hidden states count them."""
        given = dict(zip(self.names, args, strict=False)) | kwargs
        hidden = given.pop(self.names[0], None)
        if rows is not None and torch.is_tensor(hidden) and list(hidden.shape).count(rows) == 1:
            self.dims, self.axis = hidden.dim(), list(hidden.shape).index(rows)
        if len(args) > len(self.names) or not torch.is_tensor(hidden) or hidden.dim() != self.dims or not self.axis:
            raise node.Unfit("its first argument is not [rows, tokens, size], or it takes more arguments than it names")
        return hidden, given

    def hooked(self):
        """Why a hook inside the layer asks for all rows, or None."""
        found = kept_inside(self.layer, self.changing)
        return found and f"{found[0]} has a {found[1]}, which is to see all rows at once"

    def see_picks(self, arguments):
        """Raises PicksRows where an argument says which of all rows to see, as an earlier layer's indexer has picked them."""
        if not self.full and any("indices" in path and axes for path, axes in zip(arguments.paths, arguments.axes, strict=True)):
            raise PicksRows("it is given the rows that an earlier layer's indexer has picked")

    @contextlib.contextmanager
    def alone(self, collector=None):
        """Inside, the layer is not checkpointed by the model, nothing is collected of the modules in it, and attention is what it is to be."""
        modules = [module for module in self.layer.modules() if getattr(module, "gradient_checkpointing", False)]
        for module in modules:
            module.gradient_checkpointing = False
        try:
            with collecting(collector), self.state.attention.ours(self.ours):
                yield
        finally:
            for module in modules:
                module.gradient_checkpointing = True

    def run(self, hidden, given, cache, begin, attends, asked=()):
        """(output for a chunk's rows [B, C, D], {position: tensor} of what else the layer gives, and of what is asked of the modules inside)."""
        if self.cache_name is not None:
            given[self.cache_name] = cache
        if "use_cache" in self.names:
            given["use_cache"] = True
        takes_mask = "attention_mask" in self.names or "attention_mask" in given
        count = hidden.shape[self.axis]
        if begin and attends and takes_mask and given.get("attention_mask") is None and self.state.attention.name() == "sdpa":
            rows = torch.arange(begin, begin + count, device=hidden.device)  # sdpa's is_causal counts from the top left
            given["attention_mask"] = (torch.arange(cache.width(count), device=hidden.device) <= rows[:, None])[None, None]
        collected = {key: [] for key in asked}
        with collecting(collected or None):
            output = self.original(hidden, **given)
        self.width = len(output) if isinstance(output, tuple) else None
        weights = (count, cache.width(count))  # attention's, which nobody asks for, may go
        sides = {}
        for i, each in enumerate(output if self.width else ()):
            if i and torch.is_tensor(each) and (each.dim() != 4 or each.shape[-2:] != weights):
                sides[None, i] = each
        sides |= {(key, i): each for key, found in collected.items() for i, each in enumerate(found)}
        return output if self.width is None else output[0], sides

    def stream(self, hidden, given, chunk, asked=()):
        """The layer's output, as a node; chunk: how many rows it has, or where chunks end. Raises Unfit where a chunk can't have what this call asks for."""
        if self.state.attention.name() not in IMPLEMENTATIONS:
            raise node.Unfit(f"attn_implementation is {self.state.attention.name()!r}, whose masks are not cut by rows; \"sdpa\" and \"eager\" are")
        if given.get("output_attentions") or self.state.wants_attentions() or any("attention" in key for key in asked):
            raise node.Unfit("attention weights are asked for")
        if node.is_divided(self.layer):
            raise node.Unfit("DeepSpeed's ZeRO-3 has divided its weights among ranks, and gathers them module by module")
        if self.hooked():
            raise node.Unfit(self.hooked())
        if strange := strange_tensor(self.layer):
            raise node.Unfit(f"{strange} has a gradient and is no parameter")
        given = {name: value for name, value in given.items() if name not in CACHE_NAMES}
        if other := next((name for name, value in given.items() if torch.is_tensor(value) and name.startswith(OF_ENCODERS) and (f"['{name}']", value.dim()) not in self.known), None):
            raise node.Unfit(f"it is given {other}, which no proof has seen")
        if not self.ours:
            given = own_masks(given)
        rows = hidden.shape[self.axis]
        arguments = node.Arguments(given, rows, self.known, whole=isinstance(chunk, int) and rows <= chunk, full=self.full, asked=asked)
        self.see_picks(arguments)
        blank = arguments.blank_rows() if self.state.padding_counts else None
        if blank is not None and bool((blank[:, :-1] & ~blank[:, 1:]).any()):  # those behind all others change nothing
            raise node.Unfit("rows of padding count, and its mask lets them see later ones")
        chunks = arguments.chunks(chunk)
        if isinstance(chunk, int) and rows > max(chunk, 2) + 1 and len(chunks) == 1:
            raise node.Unfit("its mask lets its first rows see its last")
        extras = arguments.take_extras()
        output, *others = node.LayerNode.apply(self, chunks, hidden, arguments, *extras, *self.layer.parameters())
        results, outputs, others = [output, *[None] * ((self.width or 1) - 1)], arguments.given, iter(others)
        for key, i in outputs.sides:
            if key is None:
                results[i] = next(others)
            else:
                _collector().get()[key].append(next(others))
        for (name, key), positions in outputs.shared.items():
            given[name][key] = tuple(next(others) for _ in positions)
        return results[0] if self.width is None else tuple(results)

    def whole(self, hidden, given):
        """The layer's own forward on all rows, run again in the backward pass."""
        variable = _collector()
        collectors = [variable.get() if variable is not None else None]
        stores = {name: copy.copy(value) for name, value in given.items() if node.is_store(name, value)}  # later layers may write there before it runs again

        def forward(hidden, **given):
            with self.alone(collectors.pop() if collectors else None), self.state.attention.ours(False):  # what is collected is collected once
                return self.original(hidden, **given)

        hooks, values = present(self.layer), held(self.layer)
        parameters = [] if node.is_divided(self.layer) else node.parameters_of(self.layer)  # DeepSpeed's come and go

        buffers = with_buffers(self.layer, self.writes)

        @contextlib.contextmanager
        def behind():
            with node.around(), node.with_parameters(self, parameters), as_held(values), buffers(), again(hooks):
                yield

        output = checkpoint(forward, hidden, use_reentrant=False, context_fn=lambda: (contextlib.nullcontext(), behind()), **own_masks(given) | stores)
        parameters[:] = [(path, each, version if each._version == version else None) for path, each, version in parameters]  # PEFT's parametrizations come and go
        for name, store in stores.items():
            given[name].update(store)
        return output

    def own(self, args, kwargs):
        """The model's own code for a call with a cache, or one that is not understood."""
        args, kwargs = own_masks((args, kwargs))
        with self.state.attention.ours(False):
            return self.original(*args, **kwargs)


def layer_forward(call, *args, **kwargs):
    """A decoder layer in training: streamed, or whole where it can't be; elsewhere the model's own.

    Without gradients it is streamed as with them: a policy and the reference that an adapter switched off makes of it are then rounded alike.
    """
    if not call.layer.training:
        return call.original(*args, **kwargs)
    warn = call.warn if torch.is_grad_enabled() else lambda reason: None
    try:
        hidden, given = call.bound(args, kwargs)
    except node.Unfit as error:
        warn(str(error))
        return call.own(args, kwargs)
    if any(given.get(name) is not None for name in CACHE_NAMES):
        warn("it is given a cache to fill (use_cache=False streams it)")
        return call.own(args, kwargs)
    variable = _collector()
    asked = [name for name in (variable.get() or {} if variable is not None else {}) if not name.startswith(("hidden_states", "_"))]
    while call.reason is None:
        try:
            return call.stream(hidden, given, call.state.chunk, asked)
        except node.Unfit as error:
            if not isinstance(error, PicksRows) or call.full:
                warn(str(error))
                break
            call.full = True  # as a proof would have found
    return call.whole(hidden, given) if torch.is_grad_enabled() and call.repeats else call.own(args, kwargs)


def model_forward(call, *args, **kwargs):
    """The model and its decoder: in training without a cache, unless one is asked for, and with a streamed head where labels are given."""
    if kwargs.get("fused_lm_head") and call.layer is call.state.base and call.state.fused is not None:
        return call.state.fused(*args, **kwargs)
    with_gradients = torch.is_grad_enabled()
    if not (call.layer.training and (with_gradients or kwargs.get("use_cache") is False)):
        return call.original(*args, **kwargs)
    call.state.turn_off_checkpointing(call.state.streamed_modules)
    if call.state.prepare():
        say(f"modules in layers were exchanged: {call.state.describe()}")
    if kwargs.get("use_cache") is None and len(args) < 2 and not any(kwargs.get(name) is not None for name in CACHE_NAMES):
        mask = undivided(call.state, kwargs if not args else {"input_ids": args[0], **kwargs}).get("attention_mask")
        kwargs |= {"use_cache": False} | ({} if mask is None else {"attention_mask": mask})
    head = call.state.head
    if is_added(call.state.base, kwargs.get("attention_mask")):
        raise InputError(ADDED.format(""))
    if call.layer is not call.state.base or not with_gradients or not head.is_asked(args, kwargs):
        with call.state.attention.ours(not kwargs.get("output_attentions") and not call.state.wants_attentions()):
            return call.original(*args, **kwargs)
    reason = head.obstacle(call.original)
    output = call.original(*args, **kwargs) if reason else head.forward(head.bound(args, kwargs))
    if (reason or head.reason) != head.said:
        head.said = reason or head.reason
        say(f"head as the model has it: {head.said}" if head.said else "head streamed")
    return output


class ModuleLane(Lane):
    """What patch() has set on a model for layers and head by their own code."""

    def __init__(self, model, chunk, head_chunk=0, prove=True):
        super().__init__(model, chunk or CHUNK, head_chunk)
        name, self.layers = decoder_layers(self.base)
        self.name, self.table, self._proves, self._proved, self._proofs = name, None, prove, [], 0
        self.padding_counts = False  # whether real rows see those of padding in some layer
        of_base = self.base.base_model_prefix if self.base.base_model_prefix in self.base._modules else name.partition(".")[0]
        self.head = Head(self.base, of_base, head_chunk)
        self.calls = {}
        for index, layer in enumerate(unwrapped(each) for each in self.layers):
            self.calls.setdefault(id(layer), LayerCall(self, layer, f"{name}.{index}", layer.forward))
        self.calls = list(self.calls.values())
        self.owner = self.base.get_submodule(name.rpartition(".")[0])
        self.attention = LaneAttention(self.owner, self.layers)
        packed = [name for name, module in self.base.named_modules()
                  if getattr(getattr(module._parameters.get("weight"), "quant_state", None), "packing_format_for_cpu", False)]
        if packed:
            self.say_once(f"bitsandbytes has packed {len(packed)} matrices ({packed[0]}, ...) for inference, as it does where a model computes in evaluation mode "
                          "on this processor: no gradient passes them, patched or not; load the model again before training it")

    def prepare(self):
        """Proves layers and head, unless that was not wanted: once, and again where modules were exchanged since. Whether it was again."""
        if not self._proves:
            return False
        structure, first = self._structure(), self.table is None
        if not first and len(structure) == len(self._proved) and all(map(operator.is_, structure, self._proved)):
            return False
        self._proved, self._proofs = structure, self._proofs + 1
        if self._proofs > MOST_PROOFS:
            for call in self.calls:
                call.reason = "modules in it are exchanged from call to call"
                call.warn(call.reason)
            return False
        self._check_values()
        with self.paused(), as_sharded(self.base):
            self.table = prove_lane(self)
            self.head.reason = self.head.reason or prove_head(self.head)
        return not first

    def _structure(self):
        """Which modules are in the layers, and what was put in place of their forward functions: what a proof is of."""
        layers = {id(call.layer) for call in self.calls}
        return [each for module in self.layers.modules() for each in (module, None if id(module) in layers else vars(module).get("forward"))]

    def _check_values(self):
        """Raises InputError for weights without values: a proof of them fails, and layers would run whole for good. accelerate's hooks fetch some when they are needed."""
        name = next((name for name, parameter in self.base.named_parameters() if parameter.is_meta), None)
        if name is not None and not any(hasattr(module, "_hf_hook") for module in self.base.modules()):
            raise InputError(f"{name} is on the meta device and has no values: call streambp_bench.patch() when the model is loaded")

    def remove(self):
        super().remove()
        self.calls = []  # which know this lane: a model that is let go is freed at once

    def describe(self):
        """What was taken, in one line."""
        self.head.said = self.head.obstacle(self.base.forward)
        head = f"head as the model has it ({self.head.said})" if self.head.said else "head streamed"
        layers = [str(proof) for proof in self.table] if self.table is not None else [f"{len(self.layers)} layers by their own code, not proved"]
        return "; ".join([*layers, head])

    def rows(self, when):
        """What was taken, as summary() prints it; when: said of each lane."""
        proofs = self.table if self.table is not None else ()
        rows = [(proof.kind, len(proof.layers), f"{when}{'own code' if proof.lane == 'module' else 'own code, whole'}",
                 f"proved on {ROWS} rows: {proof.error:.0e}" if proof.lane == "module" else proof.reason) for proof in proofs]
        rows = rows or [(type(self.layers[0]).__name__, len(self.layers), f"{when}own code", "not proved")]
        reason = self.head.obstacle(self.base.forward)
        proof = "" if self.head.proof is None else f"proved on {ROWS} rows: {self.head.proof[0]:.0e}"
        return [*rows, ("head", 1, f"{when}{'own code, whole' if reason else 'own code'}", reason or proof)]

    def chunk_in_words(self):
        return self.chunk

    def wants_attentions(self):
        return bool(getattr(self.base.config.get_text_config(decoder=True), "output_attentions", False))

    def has_changed(self):
        return False  # the model's own modules run, whatever has become of them

    def install(self):
        super().install()
        for call in self.calls:
            call.original = call.layer.forward
            self.put(call, layer_forward, call.layer)
        self.streamed_modules = [self.owner, *self.layers.modules()]
        if self.owner is not self.base and "use_cache" in inspect.signature(self.owner.forward).parameters:
            self.put(ModelCall(self, self.owner), model_forward, self.owner)
        if "use_cache" in inspect.signature(self.base.forward).parameters:
            self.put(ModelCall(self, self.base), model_forward, self.base)


class ModelCall:
    """What the patched forward of the model and of its decoder knows."""

    def __init__(self, state, module):
        self.state, self.layer, self.original = state, module, module.forward
