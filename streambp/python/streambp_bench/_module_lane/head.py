"""A model's head and loss by its own code, in chunks of rows, so that the logits of all tokens never exist at once.

What a causal model's forward does after its decoder (head, scale, softcap, adapters) is run as it stands, on a twin of the model: the same modules, but
for a decoder that answers with the rows that it is given, and for the loss, which is a node of torch's autograd (LossNode). Whatever the forward adds
to its loss, or puts next to it, is then its own too. That this gives the model's own loss and gradients is proved on random rows (proof.py).
"""

import functools
import inspect

import torch
from torch.overrides import TorchFunctionMode
from transformers.loss.loss_utils import ForCausalLMLoss

from .._hooks import leaves_of
from .._library import first_line, once
from .._once import once_differentiable
from .._live_model.refusals import is_harmless
from .._live_model.state import strange_loss
from .._replaced import functions_under
from .._trl import is_trl_head
from .lazy_logits import LazyLogits
from .node import Unfit, is_divided, without_hooks
from .row_cache import wide

IGNORED = -100
CHUNK_ELEMENTS = {"cpu": 6 << 20, "cuda": 1 << 26}  # logits of a chunk
LEAST_CHUNK = 32  # rows
BLOCK = 4096  # rows of a weight whose gradient is made at once, where it is not added in place
TAKEN = {"logits", "labels", "vocab_size", "num_items_in_batch", "ignore_index", "shift_labels", "kwargs"}  # by ForCausalLMLoss


class Decoder:
    """Stands for the decoder in a twin of the model: answers with `call`."""

    def __init__(self, real, call):
        self._real, self._call = real, call

    def __call__(self, *args, **kwargs):
        return self._call(*args, **kwargs)

    def __getattr__(self, name):
        return getattr(self._real, name)


def hidden_of(outputs):
    """The decoder's hidden states [B, T, D]."""
    return outputs[0] if isinstance(outputs, tuple) else outputs.last_hidden_state


def logits_of(output):
    """A causal model's logits."""
    return output[0] if isinstance(output, tuple) else output.logits


def with_hidden(outputs, hidden):
    """The decoder's outputs with other hidden states."""
    return (hidden, *outputs[1:]) if isinstance(outputs, tuple) else type(outputs)(**{**outputs, "last_hidden_state": hidden})


def hidden_alone(outputs, hidden):
    return (hidden, *[None] * (len(outputs) - 1)) if isinstance(outputs, tuple) else type(outputs)(last_hidden_state=hidden)


def autocast_now(tensor):
    """A function that makes a context of the autocast that is on now, without its cache."""
    kind = tensor.device.type
    return functools.partial(torch.autocast, kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind), False)


class Head:
    """What a model's own forward does after its decoder. base: the model; name: of the decoder in it; chunk: rows, 0: auto; reason: why the head
    runs as the model has it, or None; proof: (error, limit, name of the tensor) once proved."""

    def __init__(self, base, name, chunk):
        self.base, self.name, self.chunk, self.proof, self.said = base, name, chunk, None, None
        self.names = [each for each in inspect.signature(type(base).forward).parameters if each != "self"]
        self.reason = self._obstacle_of_class()

    def _obstacle_of_class(self):
        if self.name not in self.base._modules or not isinstance(self.base._modules[self.name], torch.nn.Module):
            return "the model has no decoder of its own to run it without"
        if "labels" not in self.names:
            return "its forward takes no labels"
        if not set(inspect.signature(ForCausalLMLoss).parameters) <= TAKEN:
            return "this version of transformers has a loss with other arguments"
        return None

    def obstacle(self, original):
        """Why the head runs as the model has it, or None; original: the forward that runs."""
        if self.reason:
            return self.reason
        for function in functions_under(original):
            if function is type(self.base).forward:
                break
            if not (function.__module__ or "").startswith("streambp_bench.") and not is_trl_head(function):
                return f"model.forward is {function.__module__}.{function.__qualname__}, put around the model's own"
        if is_divided(self.base):
            return "DeepSpeed's ZeRO-3 has divided its weights among ranks"
        if found := strange_loss(self.base):
            return found
        for name, child in self.base._modules.items():
            for inner, module in child.named_modules() if child is not None and name != self.name else ():
                if hasattr(module, "_get_fsdp_state"):
                    return f"{name} is sharded by itself (fully_shard), and would be gathered for each chunk"
                hooks = [hook for kind in ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
                         for hook in getattr(module, kind, {}).values()]
                if any(not is_harmless(hook) for hook in hooks):
                    return f"{'.'.join(filter(None, (name, inner)))} has a hook, which would be called for each chunk"
        return None

    def bound(self, args, kwargs):
        """The arguments by name."""
        return dict(zip(self.names, args, strict=False)) | kwargs

    def is_asked(self, args, kwargs):
        """Whether a call wants a loss of all logits."""
        given = self.bound(args, kwargs)
        keep = given.get("logits_to_keep", 0)
        return given.get("labels") is not None and not torch.is_tensor(keep) and not keep and not given.get("fused_lm_head")

    def run(self, decoder, loss_function, given):
        """The model's own output, of a twin with this decoder and, unless None, this loss_function."""
        twin = object.__new__(type(self.base))
        twin.__dict__.update(self.base.__dict__)
        twin.__dict__["_modules"] = {**self.base._modules, self.name: Decoder(self.base._modules[self.name], decoder)}
        if loss_function is not None:
            twin.__dict__["_loss_function"] = loss_function
        return type(self.base).forward(twin, **given)

    def logits(self, rows, outputs):
        """The model's own logits [B, C, V] of hidden states [B, C, D]; outputs: what its decoder has given in this call."""
        tokens = torch.zeros(rows.shape[:2], dtype=torch.int64, device=rows.device)
        return logits_of(self.run(lambda *args, **kwargs: hidden_alone(outputs, rows), None, {"input_ids": tokens, "use_cache": False}))

    def rows_of_chunk(self, words, device):
        return self.chunk or max(LEAST_CHUNK, CHUNK_ELEMENTS.get(device.type, CHUNK_ELEMENTS["cuda"]) // words)

    def forward(self, given, decoder=None):
        """The model's own output for these arguments, with a streamed loss and lazy logits; where that can't be, as the model has it.

        decoder: called instead of the model's.
        """
        found, losses, seen = [], [], []

        def run_decoder(*args, **kwargs):
            found.append((decoder or self.base._modules[self.name])(*args, **kwargs))
            torch.set_autocast_cache_enabled(False)  # or a copy of the head's weight is kept
            return with_hidden(found[0], hidden_of(found[0])[:, :0].detach())

        def loss(logits, labels, vocab_size, num_items_in_batch=None, ignore_index=IGNORED, shift_labels=None, **_):
            seen.append(logits)
            losses.append(self.loss(logits, found[0], (labels, shift_labels, ignore_index), vocab_size, num_items_in_batch))
            return losses[0]

        caches = torch.is_autocast_cache_enabled()
        try:
            output = self.run(run_decoder, loss, given)
            if len(losses) != 1:
                raise Unfit("its loss is not made by its loss_function")
        except Exception as error:  # whatever its code says to no rows at all, or the loss to its labels
            if not found or type(error).__module__ == "torch.utils.checkpoint":  # which ends a run again where it has what it wants
                raise
            reason = str(error) if isinstance(error, Unfit) else f"in chunks it raises {type(error).__name__}: {first_line(error)}"
        else:
            lazy = self.lazy(lambda: found[0], hidden_of(found[0])[..., 0], hidden_of(found[0]), seen[0])
            if isinstance(output, tuple):
                return (output[0], lazy, *output[2:])
            output["logits"] = lazy
            return output
        finally:
            torch.set_autocast_cache_enabled(caches)
        output = self.run(lambda *args, **kwargs: found[0], None, given)  # raises what is wrong with the labels
        self.reason = self.reason or reason
        return output

    def lazy(self, outputs, tokens, hidden, logits=None, weights=()):
        """The logits of `tokens` [B, T], computed when they are looked at. outputs: () -> the decoder's outputs; hidden: what they are made of;
        logits: of no tokens, or None; weights: what outputs() reads."""
        autocast, head = autocast_now(hidden), self.base.get_output_embeddings()
        words, like = (head.weight.shape[0], head.weight) if logits is None else (logits.shape[-1], logits)
        weights = [*weights, *(head.parameters() if isinstance(head, torch.nn.Module) else ())]

        def make():
            with autocast():
                found = outputs()
                return self.logits(hidden_of(found), found)

        return LazyLogits(make, (*tokens.shape, words), like.dtype, like.device, weights)

    def loss(self, logits, outputs, labels, words, items):
        """The loss of the decoder's hidden states; logits: of none of them, whose graph says which parameters take part."""
        hidden = hidden_of(outputs)
        labels, shift_labels, ignored = labels
        if shift_labels is None:
            shift_labels = torch.nn.functional.pad(labels, (0, 1), value=ignored)[..., 1:]
        targets = shift_labels.reshape(-1)
        if logits.shape[-1] != words or targets.numel() != hidden.shape[0] * hidden.shape[1]:
            raise Unfit(f"labels are {list(labels.shape)} and logits of {logits.shape[-1]} words, hidden states {list(hidden.shape)} and words {words}")
        return LossNode.apply(self, outputs, targets.to(hidden.device), ignored, items, words, hidden, *leaves_of(logits))


class Linear(torch.autograd.Function):
    """F.linear whose weight's gradient is added into `total`, unless that is None. weight: as it is multiplied; bias: tensor or None."""

    @staticmethod
    def forward(ctx, rows, weight, bias, total):
        ctx.save_for_backward(rows, weight)
        ctx.total, ctx.dtype = total, rows.dtype
        with torch.autocast(rows.device.type, enabled=False):
            return torch.nn.functional.linear(rows.to(weight.dtype), weight, None if bias is None else bias.to(weight.dtype))

    @staticmethod
    def backward(ctx, gradient):
        rows, weight = ctx.saved_tensors
        with torch.autocast(rows.device.type, enabled=False):
            of_rows = (gradient @ weight).to(ctx.dtype)
            flat, rows = gradient.flatten(0, -2), rows.to(weight.dtype).flatten(0, -2)
            if ctx.total is not None and ctx.total.dtype == flat.dtype:
                ctx.total.addmm_(flat.t(), rows)
            elif ctx.total is not None:
                for begin in range(0, weight.shape[0], BLOCK):
                    part = slice(begin, begin + BLOCK)
                    ctx.total[part] += flat[:, part].t() @ rows
        return of_rows, None, flat.sum(0) if ctx.needs_input_grad[2] else None, None


class Sums(TorchFunctionMode):
    """Sums over chunks of the gradients of `parameters`. Inside, products with a weight add its gradient into its sum, without one of a chunk."""

    def __init__(self, parameters, needed):
        super().__init__()
        self.parameters = parameters
        self.wanted = [each for each, need in zip(parameters, needed, strict=True) if need]
        self.of = {id(each): torch.zeros_like(each, dtype=wide(each.dtype)) for each in self.wanted}
        self.casts = {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.nn.functional.linear:
            rows, weight, *bias = args
            bias = bias[0] if bias else (kwargs or {}).get("bias")
            casts = torch.is_autocast_enabled(rows.device.type)
            if type(weight) in (torch.Tensor, torch.nn.Parameter) and (id(weight) in self.of or casts and weight.is_leaf):
                if casts and weight.dtype != torch.float64:
                    weight = self.casts.setdefault(id(weight), weight.detach().to(torch.get_autocast_dtype(rows.device.type)))
                return Linear.apply(rows, weight.detach(), bias, self.of.get(id(args[1])))
        return func(*args, **(kwargs or {}))

    def add(self, root, seed, rows):
        """Adds the gradients for `seed`, and returns that of `rows`."""
        with without_hooks(self.wanted):
            of_rows, *found = torch.autograd.grad(root, [rows, *self.wanted], seed, allow_unused=True)
        for each, part in zip(self.wanted, found, strict=True):
            if part is not None:
                self.of[id(each)].add_(part)
        return of_rows

    def gradients(self, factor=None):
        """The sums, times `factor`, in the parameters' dtypes; None where none is wanted."""
        return [scaled(self.of[id(each)], factor, each.dtype) if id(each) in self.of else None for each in self.parameters]


def scaled(tensor, factor, dtype):
    """tensor * factor, rounded once."""
    return tensor.to(dtype) if factor is None else (tensor.to(wide(tensor.dtype)) * factor.to(tensor.device)).to(dtype)


def _as_it_is(tensor):
    return tensor


class LossNode(torch.autograd.Function):
    """hidden [B, T, D] -> loss: the cross-entropy of `targets` [B T] that are not `ignored`, their mean, or their sum over `items`.

    Gradients are made with the logits at hand; of float16 without the division, by which they would be lost in rounding.
    """

    @staticmethod
    def forward(ctx, head, outputs, targets, ignored, items, words, hidden, *parameters):
        rows = hidden.reshape(-1, hidden.shape[-1])
        index = (targets != ignored).nonzero().squeeze(1)
        targets = targets[index]
        ctx.sums = Sums(parameters, ctx.needs_input_grad[7:])
        ctx.of_hidden = torch.zeros_like(rows) if ctx.needs_input_grad[6] else None
        ctx.shape, ctx.none, ctx.items, total = hidden.shape, not index.numel(), None, 0.0
        items = index.numel() if items is None else torch.as_tensor(items, device=hidden.device)
        autocast, size = autocast_now(hidden), head.rows_of_chunk(words, hidden.device)
        for begin in range(0, index.numel(), size):
            part = index[begin:begin + size]
            own = rows[part][None].requires_grad_()
            with torch.enable_grad(), autocast(), ctx.sums, torch.autograd.graph.saved_tensors_hooks(_as_it_is, _as_it_is):  # a chunk's graph is no part of the caller's
                logits = head.logits(own.view_as(own), outputs)
            if not begin and not {id(each) for each in leaves_of(logits)} <= {id(own), *map(id, parameters)}:
                raise Unfit("its head reads more than hidden states")
            losses, seed = cross_entropy(logits[0].detach(), targets[begin:begin + size].to(logits.device))
            total = total + losses.sum().to(hidden.device)
            if logits.dtype == torch.float16:
                ctx.items = torch.as_tensor(items, dtype=torch.float32)
            else:
                seed /= torch.as_tensor(items, device=seed.device)
            of_rows = ctx.sums.add(logits, seed.to(logits.dtype)[None], own)
            if ctx.of_hidden is not None and of_rows is not None:
                ctx.of_hidden[part] = of_rows[0]
            del logits, seed  # or they are there while the next ones are made
        ctx.sums.casts.clear()
        return torch.as_tensor(total, dtype=wide(hidden.dtype), device=hidden.device) / items

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        sums, of_hidden, ctx.sums, ctx.of_hidden = once(ctx.sums), ctx.of_hidden, None, None
        factor = gradient if ctx.items is None else gradient / ctx.items
        if ctx.none or (gradient.device.type == "cpu" and float(factor) == 1.0):  # asking a GPU would wait for it
            factor = None
        if of_hidden is not None:
            of_hidden = scaled(of_hidden, factor, of_hidden.dtype).view(ctx.shape)
        return (None,) * 6 + (of_hidden, *sums.gradients(factor))


def cross_entropy(logits, targets):
    """(losses [m], their gradients [m, V]) in float32 and wider, of logits [m, V].

    The target's own, its probability less 1, is made of the others' sum: the difference loses its digits as the target leads.
    """
    work = logits.to(wide(logits.dtype), copy=True)
    work.sub_(work.amax(1, keepdim=True))
    of_target = work.gather(1, targets[:, None])
    others = work.exp_().scatter_(1, targets[:, None], 0).sum(1, keepdim=True)
    total = others + of_target.exp()
    losses = torch.where(of_target == 0, others.log1p(), total.log() - of_target)
    work.div_(total).scatter_(1, targets[:, None], -others / total)
    return losses.squeeze(1), work
