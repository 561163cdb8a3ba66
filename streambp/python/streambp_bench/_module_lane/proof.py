"""The proof that a layer's own code may be run in chunks: on random tokens, whole against chunked, outputs and all gradients.

One layer of each kind is proved (a class, with the settings and shapes of the modules in it), on the inputs that the model itself makes for random
tokens, without and with padding, in the model's own dtype. What counts as equal: the noise that the layer itself shows when its input moves by
one rounding, and the dtype's rounding.
"""

import collections
import contextlib
import copy
from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree

from .._hooks import leaves_of, silenced, watched
from .._library import first_line
from .._live_model.attention import CACHES
from . import node
from .attention import own_masks
from .held import as_it_was, in_training, versions, written
from .head import IGNORED, hidden_of, with_hidden
from .row_cache import PicksRows

CACHE_NAMES = (*CACHES, "past_key_value", "layer_past")
ENDS = (2, 15, 17, 33)  # of the proof's chunks
ROWS = ENDS[-1]
HEAD_CHUNK = 13
FACTORS = {torch.float64: 1e4, torch.float32: 1e3, torch.bfloat16: 4.0, torch.float16: 16.0}  # of the dtype's rounding
NOISE = 4  # times what one rounding of its input moves
TRIES = 8  # in which what is dropped now and then is seen
OF_OTHERS = ("transformers.utils.output_capturing", "streambp_bench.")  # functions that change nothing
OF_POSITION = ("layer_idx", "layer_id", "layer_number", "layer_index", "block_idx", "index", "training")


@dataclass(frozen=True)
class Proof:
    """Of one kind of layer. lane: "module" or "whole"; error, limit: of the worst tensor, relative to its norm, the error of a gradient that is nothing but
    rounding to that of the largest; reason: why it runs whole."""

    kind: str
    layers: tuple
    lane: str
    error: float
    limit: float
    worst: str
    reason: str

    def __str__(self):
        if self.lane == "module":
            return f"{len(self.layers)} {self.kind} by their own code, proved on {ROWS} rows: {self.error:.0e}"
        return f"{len(self.layers)} {self.kind} ({_ranges(self.layers)}) whole: {self.reason}"


class Table(tuple):
    """Proofs of all kinds of layers."""

    def whole_lines(self):
        return [str(proof) for proof in self if proof.lane == "whole"]

    def __str__(self):
        return "\n".join(map(str, self))


def _ranges(indices):
    return ", ".join(map(str, indices)) if len(indices) < 9 else f"{indices[0]} to {indices[-1]}"


def kind_of(layer):
    """What tells a layer's computation from another's: classes, settings, shapes, hooks and forward functions of the modules in it."""
    parts = []
    for name, module in layer.named_modules():
        settings = tuple(sorted((key, value) for key, value in vars(module).items()
                                if isinstance(value, (bool, int, float, str)) and key not in OF_POSITION and not key.startswith("_")))
        moved = "_hf_hook" in vars(module)  # by accelerate, which computes what the module does
        own = [id(each) for each in (*module._forward_hooks.values(), *module._forward_pre_hooks.values(), None if moved else vars(module).get("forward"))
               if each is not None and not str(getattr(each, "__module__", "")).startswith(OF_OTHERS)]
        parts.append((name, id(type(module)), str(settings), *own))
    parts += [(name, tuple(each.shape), str(each.dtype), each.requires_grad) for name, each in layer.named_parameters()]
    return tuple(parts)


def packs(module):
    """Whether it is bitsandbytes', whose modules pack weights in evaluation mode."""
    return type(module).__module__.startswith("bitsandbytes")


@contextlib.contextmanager
def not_packed(base):
    """Inside, modules of bitsandbytes are in training mode: in evaluation mode they pack their weights for inference on some processors, for good, and
    no gradient passes a packed one."""
    found = [module for module in base.modules() if packs(module) and not module.training]
    for module in found:
        module.training = True
    try:
        yield
    finally:
        for module in found:
            module.training = False


def prove_lane(state):
    """Proves each kind of a ModuleLane's layers, and sets the reason of those that fail."""
    with not_packed(state.base), as_it_was(state.base):
        return _proofs(state)


def _proofs(state):
    kinds, state.padding_counts = {}, False
    for index, call in enumerate(state.calls):
        kinds.setdefault(kind_of(call.layer), []).append((index, call))
    first = [calls[0][1] for calls in kinds.values()]
    devices = [torch.device("cuda", i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    proofs = []
    with torch.random.fork_rng(devices), torch.enable_grad():
        captured, problem = {}, ""
        for ours in (True, False):  # a model whose own code wants to see its masks gets them
            try:
                with state.attention.ours(ours):
                    captured, problem = _captured(state.base, [call.layer for call in first]), ""
                break
            except Exception as error:  # a model that wants more than tokens
                state.attention.fits = False
                problem = f"the model does not run on tokens alone: {type(error).__name__}: {first_line(error)}"
        for calls in kinds.values():
            call = calls[0][1]
            error, limit, worst, reason = 0.0, 0.0, "", problem
            for ours in (True, False) if not problem else ():  # what is not equal by the engine's attention may be by the model's
                call.ours, call.full = ours, False
                error, limit, worst, reason = _proof(call, captured.get(id(call.layer), []))
                if not reason or not state.attention.fits:
                    break
            reason = reason or call.hooked() or ""
            for _, each in calls:
                each.reason, each.proven, each.known, each.dims, each.axis, each.ours, each.full = reason or None, not reason, call.known, call.dims, call.axis, call.ours, call.full
                each.changing, each.writes, each.repeats = call.changing, call.writes, call.repeats
            proofs.append(Proof(type(call.layer).__name__, tuple(index for index, _ in calls), "whole" if reason else "module", error, limit,
                                worst, reason))
    state.padding_counts = any(call.padding_counts or call.reason for call in state.calls)  # of a layer that runs whole it is not known
    return Table(proofs)


def random_tokens(base):
    """[2, ROWS]"""
    weight = base.get_input_embeddings().weight
    words = min(weight.shape[0], 5000)
    device = torch.device("cpu") if weight.is_meta else weight.device  # accelerate's hooks move what they are given
    return torch.randint(min(3, words - 1), words, (2, ROWS), generator=torch.Generator().manual_seed(0)).to(device)


def _outside_wrapper(base):
    """For a call of the model from within one. accelerate's forward enters one torch.autocast object for all calls, which would take the inner call's state for
    the one to go back to, and leave autocast on; it turns autocast on by itself."""
    wrapped = (getattr(vars(base).get("forward"), "__module__", None) or "").startswith("accelerate.")
    return torch.autocast(next(base.parameters()).device.type, enabled=False) if wrapped else contextlib.nullcontext()


def _captured(base, layers):
    """{id(layer): [(args, kwargs, real rows [B, T])]} of calls of the model on random tokens, detached."""
    found, real = {}, []
    tokens = random_tokens(base)
    mask = torch.ones_like(tokens)
    mask[0, :5] = 0

    def hook(layer, args, kwargs):
        if id(layer) not in found or len(found[id(layer)]) < len(real):
            found.setdefault(id(layer), []).append((*pytree.tree_map(_detached, (args, kwargs)), real[-1]))

    handles = [layer.register_forward_pre_hook(hook, with_kwargs=True) for layer in layers]
    try:
        for given in (torch.ones_like(mask), mask):
            real.append(given.bool())
            more = {} if given.all() else {"attention_mask": given}
            with _outside_wrapper(base), silenced(base.modules()):
                base(input_ids=tokens, use_cache=False, **more)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _detached(leaf):
    if isinstance(leaf, collections.UserDict):
        return type(leaf)(pytree.tree_map(_detached, dict(leaf)))
    return leaf.detach().requires_grad_(leaf.requires_grad) if torch.is_tensor(leaf) else leaf


def _proof(call, captured):
    """(error, limit, worst, reason)."""
    if not captured:
        return 0.0, 0.0, "", "the model does not call it"
    call.proven, call.writes, call.repeats = True, set(), True  # for as long as it is tried
    sharded = hasattr(call.layer, "unshard")  # FSDP2 gathers where the layer is called; what is proved is its forward
    if sharded:
        call.layer.unshard()
    try:
        with in_training(call.layer), call.alone(), node.without_hooks(list(call.layer.parameters())), watched(call.layer) as hooks:
            results = [_compared(call, *each) for each in captured]
        call.changing = {id(each.hook) for each in hooks if each.changes}
    except PicksRows:
        call.full = True
        return _proof(call, captured)
    except node.Unfit as error:
        return 0.0, 0.0, "", str(error)
    except Exception as error:  # whatever its code says to a cache or a chunk that it doesn't expect
        return 0.0, 0.0, "", f"in chunks it raises {type(error).__name__}: {first_line(error)}"
    finally:
        if sharded:
            call.layer.reshard()
    error, limit, worst, said = max(results, key=lambda each: each[0] / each[1] if each[0] == each[0] else float("inf"))
    reason = "" if error <= limit else f"in chunks {worst} is off by {error:.1e} of its norm, limit {limit:.0e}"
    return error if reason else said, limit, worst, reason


def _compared(call, args, kwargs, real):
    """(error, limit, name, the error that is said) of the tensor that is furthest off its limit."""
    hidden, given = call.bound(args, kwargs, ROWS)
    given = {name: value for name, value in given.items() if name not in CACHE_NAMES}
    if not call.ours:
        given = own_masks(given)
    arguments = node.Arguments(given, ROWS)
    call.see_picks(arguments)
    call.known |= {(path, leaf.dim()): axes for path, leaf, axes in zip(arguments.paths, arguments.leaves, arguments.axes, strict=True)
                   if torch.is_tensor(leaf)}
    extras = [arguments.leaves[i] for i in arguments.extras]
    parameters = {name: each for name, each in call.layer.named_parameters() if each.requires_grad}
    wanted = [*extras, *parameters.values()]
    names = ["the gradient of its input", *(f"the gradient of {arguments.paths[i]}" for i in arguments.extras),
             *(f"the gradient of {name}" for name in parameters), "its output"]
    tokens = real.to(hidden.device)
    real = real.reshape(*[1] * (call.axis - 1), *real.shape, *[1] * (hidden.dim() - call.axis - 1)).to(hidden.device)
    seeds, positions = [torch.randn(hidden.shape, device=hidden.device, dtype=torch.float32).to(hidden.dtype) * real], []

    def gradients(function, hidden):
        rows = hidden.detach().requires_grad_()
        own = given | {name: copy.copy(given[name]) for name in arguments.stores}
        output, *others = pytree.tree_leaves(function(rows, own), is_leaf=lambda each: not isinstance(each, tuple))
        if function is ours_of:
            positions[:] = [i for i, each in enumerate(others) if torch.is_tensor(each)]
        more = [others[i] for i in positions]
        for name in arguments.stores:
            more += [each for key, pair in own[name].items() if pair is not given[name].get(key) for each in pair]
        for i, each in enumerate(more[len(seeds) - 1:]):
            seeds.append(torch.randn(each.shape, device=each.device).to(each.dtype))
            if i < len(positions):
                found = node.Side(each, *tokens.shape).by_rows(seeds[-1])
                found.mul_(tokens.view(*tokens.shape, *[1] * (found.dim() - 2)))
        pairs = [(root, seed.to(root.dtype)) for root, seed in zip((output, *more), seeds, strict=True) if root.requires_grad]
        found = torch.autograd.grad([root for root, _ in pairs], [rows, *wanted], [seed for _, seed in pairs], allow_unused=True)
        zeros = [torch.zeros_like(each) if part is None else part for part, each in zip(found, [rows, *wanted], strict=True)]
        return [each.double() for each in (*zeros, output.detach() * real)]

    def ours_of(rows, own):
        return call.stream(rows, own, ENDS)

    dtype = next((each.dtype for each in call.layer.parameters() if each.dtype in FACTORS), hidden.dtype)
    dtype = max((dtype, hidden.dtype), key=lambda each: torch.finfo(each).eps)
    dtype = torch.get_autocast_dtype(hidden.device.type) if torch.is_autocast_enabled(hidden.device.type) else dtype
    rounding = torch.finfo(dtype).eps
    _check_repeats(call, hidden, given, FACTORS[dtype] * rounding, real)
    moved = hidden * (1 + rounding * torch.randn(hidden.shape, device=hidden.device)).to(hidden.dtype)
    ours = gradients(ours_of, hidden)
    theirs, noisy = (gradients(lambda rows, own: _own(call, rows, own), each) for each in (hidden, moved))
    if not all(bool(each.isfinite().all()) for each in theirs):
        if bool(real.all()):
            raise node.Unfit("its own outputs or gradients are not finite")
        return 0.0, 1.0, "its output", 0.0  # with padding the model itself has none
    top = max(float(each.norm()) for each in theirs[:-1])
    floor = rounding * top
    worst = None
    for name, our, their, noise in zip(names, ours, theirs, noisy, strict=True):
        norm = max(float(their.norm()), floor)
        found = float((our - their).norm()) / norm if norm else float((our - their).norm())
        limit = FACTORS[dtype] * rounding + (NOISE * min(float((noise - their).norm()) / norm, 1.0) if norm else 0.0) + (floor / norm if norm else 0.0)
        if worst is None or not found / limit <= worst[0] / worst[1]:
            worst = found, limit, name, found * norm / top if 0.0 < norm <= 1e3 * floor else found
    _check_order(call, hidden, given, theirs[-1], FACTORS[dtype] * rounding, real)
    call.padding_counts |= not _changed(call, torch.where(real > 0, hidden, _others(hidden)), given, theirs[-1], real) <= FACTORS[dtype] * rounding
    return worst


def _first(output):
    return output[0] if isinstance(output, tuple) else output


def _others(rows):
    return rows.detach().roll(1, -1) * -2 + 1


def _changed(call, hidden, given, output, real):
    """How far the real rows of the layer's own output for `hidden` are off `output`, relative to its norm."""
    with torch.no_grad():
        found = _first(_own(call, hidden, given)).double() * real
    return float((found - output).norm() / max(float(output.norm()), 1e-300))


def _check_repeats(call, hidden, given, limit, real):
    """Raises Unfit for a layer that keeps samples next to torch's random states, others when it is run again, and for one whose draws are as many for fewer rows:
    ranks and modules that LoHa and LoKr drop. Any other that draws is in evaluation mode from here on: chunks draw in another order."""
    before, output = node.random_states(hidden.device), _first(_own(call, hidden, given))
    _check_leaves(call, hidden, given, output)
    after = node.random_states(hidden.device)
    node.set_random_states(hidden.device, before)
    is_same = lambda: not bool(real.all()) or _changed(call, hidden, given, output.detach().double(), real) <= limit
    call.repeats = is_same()
    if not call.repeats:
        raise node.Unfit("it gives something else each time that it runs, so that its own graph is kept")
    if not node.same(before, after):
        node.set_random_states(hidden.device, before)
        _own(call, hidden.narrow(call.axis, 0, ENDS[1]), node.Arguments(own_masks(given), ROWS).at(0, ENDS[1]))
        if node.same(after, node.random_states(hidden.device)) and not all(is_same() for _ in range(TRIES)):
            raise node.Unfit("what it draws is for all rows at once")
        for module in call.layer.modules():
            module.training = packs(module)


def _check_order(call, hidden, given, output, limit, real):
    """Raises Unfit where the last row changes an earlier one."""
    later, earlier = hidden.detach().clone(), real.expand(output.shape).clone()
    last = later.select(call.axis, -1)
    last.copy_(_others(last))
    earlier.select(call.axis, -1).zero_()
    if not (error := _changed(call, later, given, output * earlier, earlier)) <= limit:
        raise node.Unfit(f"its last row changes earlier ones, by {error:.1e} of their norm")


def _own(call, hidden, given):
    """The layer's own output, by the model's own attention; raises Unfit for what it leaves elsewhere, which a node would not see."""
    given = own_masks(given)
    held = {id(each): len(each) for name, each in given.items() if isinstance(each, (dict, list)) and not node.is_store(name, each)}
    before = versions(call.layer)
    with call.state.attention.ours(False):
        output = call.original(hidden, **given)
    call.writes |= written(call.layer, before)
    if call.writes:
        raise node.Unfit(f"it writes into {min(call.writes)}")
    if any(held[id(each)] != len(each) for each in given.values() if id(each) in held):
        raise node.Unfit("it writes into its arguments")
    for name, module in call.layer.named_modules():
        for key, value in vars(module).items():
            if torch.is_tensor(value) and value.grad_fn is not None:
                raise node.Unfit(f"it leaves {name}.{key} of its forward pass on itself")
    return output


def _check_leaves(call, hidden, given, output):
    """Raises Unfit where a layer's output is made of a leaf that a node would not see: neither an argument nor a parameter."""
    arguments = [each for value in given.values() for each in pytree.tree_leaves(dict(value) if isinstance(value, collections.UserDict) else value)]
    known = set(map(id, (hidden, *arguments, *call.layer.parameters())))
    if any(id(leaf) not in known for leaf in leaves_of(output)):
        raise node.Unfit("it reads a tensor with a gradient that is no parameter of it")


def prove_head(head):
    """Why a model's head can't be streamed, or None: its loss and all gradients on random tokens, some without a label, by chunks against whole."""
    devices = [torch.device("cuda", i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    chunk, head.chunk = head.chunk, HEAD_CHUNK
    try:
        with torch.random.fork_rng(devices), torch.enable_grad(), not_packed(head.base), as_it_was(head.base), silenced(head.base.modules()):
            return _head_proof(head)
    except Exception as error:  # a model that wants more than tokens
        return f"it does not run on tokens alone: {type(error).__name__}: {first_line(error)}"
    finally:
        head.chunk = chunk


def _head_proof(head):
    if reason := head.obstacle(type(head.base).forward):
        return reason
    tokens = random_tokens(head.base)
    labels, outputs = tokens.masked_fill(torch.arange(ROWS, device=tokens.device) % 5 == 1, IGNORED), []
    with torch.no_grad():
        head.run(lambda *args, **kwargs: outputs.append(head.base._modules[head.name](*args, **kwargs)) or outputs[0], None,
                 {"input_ids": tokens, "use_cache": False})
    hidden = hidden_of(outputs[0])
    given = {"input_ids": tokens, "labels": labels, "use_cache": False}

    def results(function):
        """[loss, gradients of the hidden states and of all that take part]"""
        rows = hidden.detach().clone().requires_grad_()
        output = function(with_hidden(outputs[0], rows))
        loss = output[0] if isinstance(output, tuple) else output.loss
        parameters = [each for each in leaves_of(loss) if each is not rows]
        return loss.detach(), dict(zip(map(id, [rows, *parameters]), torch.autograd.grad(loss, [rows, *parameters], allow_unused=True), strict=True)), id(rows)

    loss, theirs, own = results(lambda found: head.run(lambda *args, **kwargs: found, None, given))
    our_loss, ours, our_own = results(lambda found: head.forward(given, lambda *args, **kwargs: found))
    if head.reason:
        return head.reason
    ours[own] = ours.pop(our_own)
    pairs = [(our_loss, loss), *((ours.get(key), each) for key, each in theirs.items() if each is not None)]
    if any(our is None for our, _ in pairs):
        return "a parameter of it has no gradient in chunks"
    dtype = max((each.dtype for pair in pairs for each in pair if each.dtype in FACTORS), key=lambda each: torch.finfo(each).eps)
    dtype = torch.get_autocast_dtype(hidden.device.type) if torch.is_autocast_enabled(hidden.device.type) else dtype
    error = max((float((our.double() - their.double()).norm() / their.double().norm().clamp_min(1e-300)) for our, their in pairs),
                key=lambda each: each if each == each else float("inf"))
    limit = FACTORS[dtype] * torch.finfo(dtype).eps
    head.proof = error, limit
    return None if error <= limit else f"in chunks it is off by {error:.1e} of its norm, limit {limit:.0e}"
