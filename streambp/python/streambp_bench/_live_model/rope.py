"""The rotary embedding's frequencies as the live module has them: cast with the model, edited, or grown with an earlier batch."""

import copy
import weakref

import torch

from .._library import checked
from .decoder import decoder, fingerprint

# How far float32 and float64 may be apart where they compute the same frequencies.
ROUNDING = 1e-6
KINDS = {"": 0, "full_attention_": 0, "sliding_attention_": 1}  # of the module's buffers: the engine's rope, or its local one

_fresh = weakref.WeakKeyDictionary()  # live module -> (text of its config, a module made of it)


def greatest_position(batch):
    """1 + the greatest position of a batch's tensors, padding included; None where it has none, or what the engine will refuse."""
    positions, tokens = batch.get("position_ids"), batch.get("input_ids")
    if positions is not None:
        return int(positions.max()) + 1 if positions.numel() and not positions.is_floating_point() else None
    if "chosen_input_ids" in batch:
        return max(batch[name].shape[-1] for name in ("chosen_input_ids", "rejected_input_ids") if name in batch)
    return tokens.shape[-1] if tokens is not None and tokens.dim() else None


def hand_over_rope(engine, base, length):
    """Tells the engine the frequencies and the factor that the model's module uses for a batch whose greatest position is length - 1 (greatest_position),
    where they are not those of its config.

    Types that depend on the length are updated by the module's own forward, as in a pass of the model's own: dynamic scaling remembers the
    longest batch so far. length: None where it is not known.
    """
    rotary = getattr(decoder(base), "rotary_emb", None)
    if rotary is None:
        return
    live, expected = _ropes(rotary, length), _ropes(_made_of_config(rotary), length)
    given = [None, 0.0, None, 0.0]
    for kind, (frequencies, factor) in live.items():
        own, own_factor = expected.get(kind, (None, None))
        same = own is not None and own.shape == frequencies.shape and torch.allclose(frequencies, own, rtol=ROUNDING, atol=0.0)
        if not same or abs(factor - own_factor) > ROUNDING:
            given[2 * kind:2 * kind + 2] = [frequencies, factor]
    checked(engine.set_rope, *given)


def _made_of_config(rotary):
    """A module of the same class and config, as it is before any pass."""
    key = fingerprint(rotary.config)
    if rotary not in _fresh or _fresh[rotary][0] != key:
        kind = next(each for each in type(rotary).__mro__ if not each.__module__.startswith("torch.distributed."))
        _fresh[rotary] = key, kind(copy.deepcopy(rotary.config))
    fresh = _fresh[rotary][1]
    return copy.deepcopy(fresh) if any(map(_follows_length, _types_of(fresh).values())) else fresh


def _types_of(rotary):
    return rotary.rope_type if isinstance(rotary.rope_type, dict) else {"": rotary.rope_type}


def _follows_length(rope_type):
    return "dynamic" in rope_type or rope_type == "longrope"


def _ropes(rotary, length):
    """{0 or 1: (inverse frequencies [R / 2] float64 on the CPU, attention factor)} after the module's own update for this length."""
    found = {}
    for layer_type, rope_type in _types_of(rotary).items():
        prefix = f"{layer_type}_" if layer_type else ""
        if prefix not in KINDS or not hasattr(rotary, f"{prefix}inv_freq"):
            continue
        buffer = getattr(rotary, f"{prefix}inv_freq")
        if length is not None and _follows_length(rope_type):
            last = torch.tensor([[length - 1]], device=buffer.device)
            with torch.no_grad():
                rotary(torch.zeros(1, 1, 1, device=buffer.device), last, **({"layer_type": layer_type} if layer_type else {}))
            buffer = getattr(rotary, f"{prefix}inv_freq")
        factor = getattr(rotary, f"{prefix}attention_scaling", 1.0)
        found[KINDS[prefix]] = buffer.detach().to("cpu", torch.float64), float(1.0 if factor is None else factor)
    return found
