"""Hooks that somebody has put on modules: which are a user's own, and what they are given."""

import contextlib

import torch
from torch.utils import _pytree as pytree

KINDS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
FORWARD = KINDS[:2]
# Whose hooks belong to the computation or to what shards and moves it, and collect nothing of it for a loss.
LIBRARIES = ("torch.", "transformers.", "peft.", "accelerate.", "deepspeed.", "trl.", "streambp_bench.")
LASTING = tuple(name for name in LIBRARIES if name != "peft.")  # theirs stay from one pass to the next


def hooks_of(module, kinds=KINDS, libraries=LIBRARIES):
    """(where they are kept, key, hook) of a module's own hooks that are none of these libraries', but a user's."""
    for kind in kinds:
        kept = getattr(module, kind, None) or {}
        for key, hook in list(kept.items()):
            if not _of_library(hook, libraries):
                yield kept, key, hook


def has_hooks(module, kinds=KINDS):
    return any(True for _ in hooks_of(module, kinds))


def has_hooks_of_all():
    """Whether a user's hook is called by all modules there are."""
    return any(not _of_library(hook) for kind in KINDS for hook in getattr(torch.nn.modules.module, f"_global{kind}").values())


@contextlib.contextmanager
def silenced(modules):
    """Inside, the hooks of users are not called: what runs is no step of theirs."""
    found = {id(kept): (kept, dict(kept)) for module in modules for kept, _, _ in hooks_of(module)}
    for kept, _ in found.values():
        for key in [key for key, hook in kept.items() if not _of_library(hook)]:
            del kept[key]
    try:
        yield
    finally:
        for kept, before in found.values():
            kept.clear()
            kept.update(before)


def _of_library(hook, libraries=LIBRARIES):
    return (getattr(hook, "__module__", None) or type(hook).__module__).startswith(libraries)


class Watched:
    """Stands for a forward hook: calls it, and remembers whether it has given anything of its own, made of what it was given and of parameters inside."""

    def __init__(self, hook, inside):
        self.hook, self.inside, self.changes, self.reads_more = hook, inside, False, False

    def __call__(self, module, args, *rest):
        result, given = self.hook(module, args, *rest), (args, *rest)
        if result is not None:
            self.reads_more |= not _leaves(result) <= _leaves(given) | self.inside
            self.changes = not self.reads_more and not any(result is each for each in given)
        return result


def _leaves(tree):
    """The ids of the leaf tensors with gradients that the tensors of `tree` are made of."""
    tensors = [each for each in pytree.tree_leaves(tree) if torch.is_tensor(each)]
    return {id(leaf) for each in tensors for leaf in ([each] if each.is_leaf and each.requires_grad else leaves_of(each))}


def leaves_of(tensor):
    """The leaf tensors that a tensor's graph ends in."""
    found, seen, left = {}, set(), [tensor.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found[id(node.variable)] = node.variable
        left += [following for following, _ in node.next_functions]
    return list(found.values())


@contextlib.contextmanager
def watched(layer):
    """Inside, forward hooks of users in a layer are Watched; yields those."""
    inside = set(map(id, layer.parameters()))
    found = [(kept, key, hook, Watched(hook, inside)) for module in layer.modules() for kept, key, hook in hooks_of(module, FORWARD)]
    for kept, key, _, ours in found:
        kept[key] = ours
    try:
        yield [ours for *_, ours in found]
    finally:
        for kept, key, hook, _ in found:
            kept[key] = hook


def present(module):
    """The forward hooks of users and of PEFT in a module, as again() takes them."""
    return [(each, kind, key, hook, key in getattr(each, f"{kind}_with_kwargs", {})) for each in module.modules() for kind in FORWARD
            for _, key, hook in hooks_of(each, (kind,), LASTING)]


@contextlib.contextmanager
def again(found):
    """Inside, hooks that were present() are there again, where they have been removed since: PEFT's that choose adapters or tasks are for one forward pass."""
    missing = [each for each in found if each[2] not in getattr(each[0], each[1])]
    for module, kind, key, hook, takes_keywords in missing:
        getattr(module, kind)[key] = hook
        if takes_keywords:
            getattr(module, f"{kind}_with_kwargs")[key] = True
    try:
        yield
    finally:
        for module, kind, key, _, takes_keywords in missing:
            del getattr(module, kind)[key]
            if takes_keywords:
                del getattr(module, f"{kind}_with_kwargs")[key]


def kept_inside(layer, changing):
    """(name of the module, kind) of a hook inside a layer that may keep what it sees: any but a forward hook that is known to change its output
    (`changing`: their ids), and then of rows alone. None: there is none."""
    for name, module in layer.named_modules():
        if module is layer:
            continue
        for kind in KINDS:
            if any(kind not in FORWARD or id(hook) not in changing for _, _, hook in hooks_of(module, (kind,))):
                return name, kind.strip("_").removesuffix("s").replace("_", " ")
    return None
