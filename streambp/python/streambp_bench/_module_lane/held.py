"""What modules hold next to their parameters: switches, numbers and buffers. A layer's backward pass runs it as its forward pass has found it, whatever has been
switched since: adapters and their scale, training mode, a flag of a user's own."""

import contextlib

import torch

PLAIN = (bool, int, float, str, type(None))
OF_TORCH = frozenset(vars(torch.nn.Module())) - {"training"}  # hooks, parameters, modules


def held(layer):
    """[(a module's own dict, {name: value})] of numbers, words and switches of the modules in a layer, and of lists and dictionaries of them."""
    found = []
    for module in layer.modules():
        values = {}
        for name, value in vars(module).items():
            if name in OF_TORCH:
                continue
            if isinstance(value, PLAIN):
                values[name] = value
            elif type(value) in (list, dict) and all(isinstance(each, PLAIN) for each in (value.values() if type(value) is dict else value)):
                values[name] = value.copy()
        found.append((vars(module), values))
    return found


@contextlib.contextmanager
def as_held(found):
    """Inside, modules hold what held() has found."""
    since = [(own, {name: own[name] for name, value in values.items() if name in own and own[name] != value}, values) for own, values in found]
    since = [each for each in since if each[1]]
    for own, changed, values in since:
        own.update({name: values[name] for name in changed})
    try:
        yield
    finally:
        for own, changed, _ in since:
            own.update(changed)


@contextlib.contextmanager
def in_training(layer):
    """Inside, a layer is in training mode, as it streams. Modules are told by their own train() and eval(), in which some convert their weights (GPTQ), and their flags
    are put back, whatever has become of them: some may be in evaluation mode for good."""
    before = [(module, module.training) for module in layer.modules()]
    if not layer.training:
        layer.train()
    inside = [(module, module.training) for module, _ in before]
    try:
        yield
    finally:
        _put_back(inside)
        if not before[0][1]:
            layer.eval()
        _put_back(before)


def _put_back(modes):
    for module, training in modes:
        module.training = training


def strange_tensor(layer):
    """The name of a tensor on a module that has a gradient and is no parameter, or None: what is made of it outside does not go through a node."""
    return next((f"{path}.{name}" for path, module in layer.named_modules() for name, value in vars(module).items()
                 if torch.is_tensor(value) and value.requires_grad), None)


@contextlib.contextmanager
def as_it_was(base):
    """What calls of `base` write in its modules, apart from gradients, is undone at the end: buffers and plain attributes. A rotary embedding of
    dynamic frequencies remembers the longest row that it has seen and turns shorter ones by it."""
    plain = (bool, int, float, str, torch.Tensor)
    saved = [(module, {name: (buffer, None if buffer is None else buffer.detach().clone()) for name, buffer in module._buffers.items()},
              {name: value for name, value in vars(module).items() if isinstance(value, plain)}) for module in base.modules()]
    try:
        yield
    finally:
        for module, buffers, attributes in saved:
            vars(module).update(attributes)
            for name, (buffer, copy) in buffers.items():
                module._buffers[name] = buffer
                if buffer is not None and not buffer.is_meta and not torch.equal(buffer, copy):
                    with torch.no_grad():
                        buffer.copy_(copy)


def versions(layer):
    """{name: a buffer's version} of those that can be asked for it."""
    return {name: each._version for name, each in layer.named_buffers() if not each.is_inference()}


def written(layer, before):
    """Names of the buffers of modules that have written into one since versions() were `before`; some kernels of torch count no version."""
    changed = {name.rpartition(".")[0] for name, version in versions(layer).items() if before.get(name, version) != version}
    return {name for name, _ in layer.named_buffers() if name.rpartition(".")[0] in changed}


def with_buffers(layer, names):
    """A function that makes a context in which these buffers of a layer are what they are now, before it writes into them."""
    copies = [(layer.get_submodule(name.rpartition(".")[0])._buffers, name.rpartition(".")[2]) for name in names]
    copies = [(buffers, name, buffers[name].detach().clone()) for buffers, name in copies]

    @contextlib.contextmanager
    def then():
        own = [(buffers, name, buffers[name]) for buffers, name, _ in copies]
        for buffers, name, copy in copies:
            buffers[name] = copy.clone()
        try:
            yield
        finally:
            for buffers, name, buffer in own:
                buffers[name] = buffer

    return then
