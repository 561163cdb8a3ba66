"""StreamBP's engine inside Hugging Face training: exact gradients of long sequences in little memory.

    import streambp_bench as sb

    loss = sb.backward(model, batch)      # instead of loss = model(**batch).loss; loss.backward()
    model = sb.patch(model)               # or: a Trainer trains this model as it is
"""

import importlib

__version__ = "0.1.0"

# What stands where: modules, and the engine's library, are loaded when something of them is asked for.
_NAMES = {
    "backward": "_backward",
    "StepInfo": "_backward",
    "InputError": "_library",
    "patch": "_patch",
    "unpatch": "_patch",
    "prove": "_patch",
    "Callback": "_callback",
    "summary": "_summary",
    "log_probabilities": "_log_probabilities",
    "predict": "_plan",
    "longest": "_plan",
    "suggest": "_plan",
    "choose": "_plan",
    "verify": "_verify",
    "rollout": "_rollout",
    "Rollout": "_rollout",
    "Referee": "_referee",
    "WrongGradients": "_referee",
    "chain": "_chain",
    "measure": "_measure",
    "scope": "_measure",
    "load": "_measure",
}

__all__ = [*_NAMES, "__version__"]


def __getattr__(name):
    if name not in _NAMES:
        raise AttributeError(f"module 'streambp_bench' has no attribute '{name}'")
    value = getattr(importlib.import_module(f".{_NAMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted([*globals(), *_NAMES])
