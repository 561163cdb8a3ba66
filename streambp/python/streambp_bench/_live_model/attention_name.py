"""The name of a config's attention, which is ours while a patched model runs. A config is one for all threads, and for models that share it: what its
attention is meant to be is kept here, thread by thread, so that none takes another's."""

import contextlib
import contextvars
import threading

NAME = "streambp"
_lock = threading.Lock()
_switched = {}  # id(config) -> [config, its own attention's name, how many threads have ours]
_switched_here = contextvars.ContextVar("ids of the configs whose attention is ours in this thread", default=frozenset())
_own = contextvars.ContextVar("the model's own attention, inside attention_of()", default=None)
_is_ours = contextvars.ContextVar("whether this thread is to have our attention, inside attention_of()", default=None)


def own_name(config):
    """The name of a config's own attention, in whatever thread ours is in its place; None where it has none."""
    with _lock:
        entry = _switched.get(id(config))
        name = entry[1] if entry is not None else getattr(config, "_attn_implementation_internal", None)
    return (_own.get() or "sdpa") if name == NAME else name  # a config that was copied while it was switched


def name_here(config):
    """own_name(), of the model that runs in this thread where there is one."""
    return _own.get() or ("sdpa" if config is None else str(own_name(config) or "eager"))


def is_ours_here(config):
    """Whether our attention is to run in this thread where it is called; else another thread has it, and this one the model's own."""
    ours = _is_ours.get()
    return id(config) not in _switched if ours is None else ours


@contextlib.contextmanager
def attention_of(configs, name, ours):
    """Inside, in this thread, those of `configs` whose own attention is `name` have ours, or with ours=False their own again."""
    found = [each for each in configs if own_name(each) == name]
    ids, before = frozenset(map(id, found)), _switched_here.get()
    after = before | ids if ours else before - ids
    tokens = [(variable, variable.set(value)) for variable, value in ((_own, name), (_is_ours, ours), (_switched_here, after))]
    _count(found, before, after)
    try:
        yield
    finally:
        _count(found, after, before)
        for variable, token in tokens:
            variable.reset(token)


def _count(configs, before, after):
    """Switches configs as this thread goes from having `before` to `after`; one stays ours as long as any thread has it."""
    with _lock:
        for config in configs:
            step = (id(config) in after) - (id(config) in before)
            if not step:
                continue
            entry = _switched.setdefault(id(config), [config, config._attn_implementation_internal, 0])
            entry[2] += step
            config._attn_implementation_internal = NAME if entry[2] else entry[1]
            if not entry[2]:
                del _switched[id(config)]
