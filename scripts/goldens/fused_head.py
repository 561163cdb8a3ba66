"""TRL's fused LM head in float64."""

from contextlib import contextmanager

from trl.kernels.chunked_logprob import ChunkedLogProbFunction

from goldens.passes import InFloat64


@contextmanager
def wide_backward():
    """Its backward pass in float64: autograd calls it where modes are not active by themselves."""
    narrow = ChunkedLogProbFunction.backward

    def backward(*arguments):
        with InFloat64():
            return narrow(*arguments)

    ChunkedLogProbFunction.backward = staticmethod(backward)
    try:
        yield
    finally:
        ChunkedLogProbFunction.backward = staticmethod(narrow)
