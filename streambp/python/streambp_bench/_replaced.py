"""Forward functions put onto a model's modules, and taken off again."""

import contextlib
import contextvars
import copy
import functools
import types

import torch

from ._library import InputError
from ._live_model.model import unwrap
from ._log import say
from ._trl import in_small_tiles, is_trl_head

ATTRIBUTE = "_streambp"  # of a patched model: what patch() has set on it
FUSED = "streambp_fused_lm_head"  # asks a forward of ours for TRL's head
_standing = contextvars.ContextVar("whether lanes run in this thread, by id, where it is not as in others", default={})
FORWARDS = "_streambp_forwards"  # of a module: what its forward functions of ours call, innermost first


def patched_state(model):
    """What patch() has set on a model (Patched or ModuleLane), or None."""
    return unwrap(model)[1].__dict__.get(ATTRIBUTE)


def unpatched():
    """What a pickled model has in place of what patch() has set on it: it is the model's own when it is loaded."""


def copied(thing, memo):
    """A deep copy, for what is pickled otherwise."""
    result = memo[id(thing)] = object.__new__(type(thing))
    result.__dict__.update(copy.deepcopy(thing.__dict__, memo))
    return result


class StreamedForward:
    """Stands for a module's forward: `function` with what it needs to know. Copied with the model, as a closure would not be."""

    def __init__(self, call, function):
        self.call, self.function = call, function

    def __reduce__(self):
        return unpatched, ()

    def __deepcopy__(self, memo):
        return copied(self, memo)

    def run(self, *args, **kwargs):
        if kwargs.pop(FUSED, False):
            return self.call.state.fused(*args, fused_lm_head=True, **kwargs)
        if not self.call.state.active:
            return self.call.original(*args, **kwargs)
        if torch._C._are_functorch_transforms_active():
            self.call.state.say_once("torch.func differentiates the model: its own code runs as it is, since streamed passes are autograd's")
            return self.call.original(*args, **kwargs)
        return self.function(self.call, *args, **kwargs)


def replace(found, call, function, module):
    """Gives `module` a forward that calls `function(call, ...)`, with the signature of its present one; `found` remembers that."""
    before, ours = module.__dict__.get("forward"), module.__dict__.setdefault(FORWARDS, [])
    ours.append(StreamedForward(call, function))
    module.forward = _method(module, len(ours) - 1)
    found.append((module, before, module.forward, len(ours) - 1))


def _forward_of(kind):
    """A class's forward function, without those that transformers puts around it anew for each subclass, FSDP2's included."""
    function = kind.forward
    while getattr(getattr(function, "__code__", None), "co_name", "") == "forward_with_checkpointing":
        function = function.__wrapped__
    return function


def _method(module, index):
    """A bound method of `module`, which torch.compile leaves alone; it runs what stands at `index`: in a copied model what the copy has there."""
    original, of_class = getattr(module.forward, "__func__", module.forward), _forward_of(type(module))

    @torch.compiler.disable
    def forward(self, *args, **kwargs):
        if _forward_of(type(self)) is not of_class:
            raise InputError(f"{type(self).__qualname__}.forward has been replaced since streambp_bench.patch(), which would go on with the one before: patch() again, "
                             "or unpatch() before it is replaced")
        return self.__dict__[FORWARDS][index].run(*args, **kwargs)

    functools.update_wrapper(forward, original)
    forward.__module__ = __name__
    return types.MethodType(forward, module)


def restore(found):
    """Puts back what replace() has remembered. What something was put around since stays, and calls what was there before it."""
    for module, before, forward, index in reversed(found):
        if module.__dict__.get("forward") is not forward:
            continue
        if before is None:
            del module.forward
        else:
            module.forward = before
        ours = module.__dict__[FORWARDS]
        ours[index] = None
        if not any(ours):
            del module.__dict__[FORWARDS]
    found.clear()


def functions_under(function):
    """The functions that a forward runs through, outermost first, as far as each says what it was put around (__wrapped__)."""
    while function is not None:
        function = getattr(function, "__func__", function)
        yield function
        function = getattr(function, "__wrapped__", None)


class Lane:
    """What patch() has set on a model, and what it has found there. outer: PEFT's wrapper or base; base: the transformers model; chunk, head_chunk: tokens,
    0: auto; active: whether it runs; fused: TRL's forward in small tiles, where TRL has put one onto the model."""

    def __init__(self, model, chunk, head_chunk):
        self.outer, self.base = unwrap(model)
        self.chunk, self.head_chunk = chunk, head_chunk
        self.active, self.fused, self.said = False, None, set()
        self._found, self._turned_off = [], []

    def say_once(self, line):
        if line not in self.said:
            self.said.add(line)
            say(line)

    def __reduce__(self):
        say("a pickled model is as it was before patch(): patch it again where it is loaded")
        return unpatched, ()

    def __deepcopy__(self, memo):
        return copied(self, memo)

    def install(self):
        """Puts the streamed forward functions onto the modules."""
        self.active = True
        setattr(self.base, ATTRIBUTE, self)
        self.base.__dict__["train"] = types.MethodType(train, self.base)
        self._take_fused()

    def _take_fused(self):
        found = next(filter(is_trl_head, functions_under(self.base.forward)), None)
        self.fused = found and in_small_tiles(found, self.base, self.head_chunk)

    def follow(self):
        """Goes around a head that a trainer of TRL has put around the model since, so that this streams too, inside of what else is around it."""
        above = []
        for function in functions_under(self.base.forward):
            if is_trl_head(function):
                break
            above.append(function.__module__)
        else:
            return
        if self.active and __name__ not in above:
            self._take_fused()
            self.put(types.SimpleNamespace(state=self, original=self.base.forward), _ushered, self.base)

    def put(self, call, function, module):
        replace(self._found, call, function, module)

    @property
    def active(self):
        return _standing.get().get(id(self), self._active)

    @active.setter
    def active(self, value):
        self._active = value

    @contextlib.contextmanager
    def standing(self, active):
        """Inside, in this thread alone, this lane runs, or another in its place: its forward functions call what was there before them."""
        token = _standing.set({**_standing.get(), id(self): active})
        try:
            yield
        finally:
            _standing.reset(token)

    @contextlib.contextmanager
    def paused(self):
        """Inside, the model's own code runs, in threads of the backward pass too."""
        active, self.active = self._active, False
        try:
            with self.standing(False):
                yield
        finally:
            self.active = active

    def turn_off_checkpointing(self, modules):
        """In training: layers would run three times. remove() turns it on again."""
        found = [module for module in modules if getattr(module, "gradient_checkpointing", False)]
        if not (found and self.base.training and torch.is_grad_enabled()):
            return
        for module in found:
            module.gradient_checkpointing = False
        if not self._turned_off:
            say("gradient_checkpointing is turned off: the layers keep their inputs alone as they are; unpatch() turns it on again")
        self._turned_off += found

    def remove(self):
        """Restores what install() has found."""
        self.active, self.fused = False, None
        restore(self._found)
        for module in self._turned_off:
            module.gradient_checkpointing = True
        self._turned_off.clear()
        for name in (ATTRIBUTE, "train"):
            self.base.__dict__.pop(name, None)


def _ushered(call, *args, **kwargs):
    """Asks for TRL's head below TRL's function, which hands on what it does not know, and below accelerate's autocast where that is between them."""
    if kwargs.get("fused_lm_head"):
        kwargs[FUSED] = kwargs.pop("fused_lm_head")
    return call.original(*args, **kwargs)


def train(base, mode=True):
    """A model's train(), which all trainers call before a step: a trainer may have put something onto the model."""
    if ATTRIBUTE in base.__dict__:
        base.__dict__[ATTRIBUTE].follow()
    return type(base).train(base, mode)
