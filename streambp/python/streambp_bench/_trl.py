"""The head of TRL's trainers in tiles that fit where the layers do: model(..., labels=..., fused_lm_head=True) of trl.trainer.utils.add_fused_lm_head.

All trainers of TRL 1.16 ask for log-probabilities, and statistics of the logits, by this call. What runs is TRL's own code, in the model's state at
that moment, with its tiles of 4,096 tokens x 32,768 words made smaller, and with tokens that have no label left out on every device.
"""

import types

TOKENS = {"cpu": 256, "cuda": 4096}  # of a tile
WORDS = {"cpu": 4096, "cuda": 16384}
KERNEL, NARROW = "_ChunkedLogProbFunction", "_CHUNKED_LOGPROB_CHUNK_SIZE"  # what TRL's function calls them


def is_trl_head(function):
    """Whether this is the forward that add_fused_lm_head has made, in a version of TRL whose tiles are known."""
    return {KERNEL, NARROW} <= set(getattr(getattr(function, "__code__", None), "co_names", ()))


def in_small_tiles(function, model, tokens):
    """The forward of `model` that add_fused_lm_head has made, bound to it, with other tiles; tokens: of a tile, 0: auto."""
    device = "cpu" if next(model.parameters()).device.type == "cpu" else "cuda"
    kernel = function.__globals__[KERNEL]
    names = {"forward": staticmethod(_with(kernel.forward, TOKEN_CHUNK_SIZE=tokens or TOKENS[device])),
             "backward": staticmethod(_with(kernel.backward, TOKEN_CHUNK_SIZE=tokens or TOKENS[device]))}
    smaller = type(kernel)(kernel.__name__, (kernel,), names)
    return types.MethodType(_with(function, **{KERNEL: smaller, NARROW: WORDS[device], "_use_triton": lambda device: True}), model)


def _with(function, **names):
    """The function with other globals of these names."""
    result = types.FunctionType(function.__code__, {**function.__globals__, **names}, function.__name__, function.__defaults__, function.__closure__)
    result.__kwdefaults__ = function.__kwdefaults__
    return result
