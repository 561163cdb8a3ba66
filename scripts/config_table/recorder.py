"""What the attention of a model of transformers is given and makes."""

import sys
from unittest import mock

import torch


class Recorder:
    """Of each layer, while `recording`: keys before and after their rotation (of a layer that has none of its own:
    queries), rotated queries, and what attention reads and weighs."""

    def __init__(self, model):
        self.module = sys.modules[type(model).__module__]
        names = ("apply_rotary_pos_emb", "apply_rotary_pos_emb_interleave", "eager_attention_forward")
        self.functions = {name: getattr(self.module, name) for name in names if hasattr(self.module, name)}
        self.layers = {}
        self.rotations = []  # [before, after] of queries and keys, [heads, tokens, entries], of the layer at hand

    def recording(self):
        own = {"apply_rotary_pos_emb": self.rotate, "eager_attention_forward": self.attend}
        own["apply_rotary_pos_emb_interleave"] = self.rotate_neighbours
        return mock.patch.multiple(self.module, **{name: own[name] for name in self.functions})

    def rotate(self, *arguments, **options):
        rotated = self.functions["apply_rotary_pos_emb"](*arguments, **options)
        if isinstance(rotated, tuple):
            self.rotations = [[given[0], result[0]] for given, result in zip(arguments, rotated, strict=False)]
        else:  # Gemma 4's: one of both at a time, tokens before heads
            self.rotations.append([arguments[0][0].transpose(0, 1), rotated[0].transpose(0, 1)])
        return rotated

    def rotate_neighbours(self, query, key, *arguments, **options):
        """DeepSeek V3's: of neighbours rotated together the first ones come out before all second ones."""
        rotated = self.functions["apply_rotary_pos_emb_interleave"](query, key, *arguments, **options)
        in_pairs = torch.stack(rotated[1][0].chunk(2, -1), -1).flatten(-2)
        self.rotations = [[query[0], rotated[0][0]], [key[0], in_pairs]]
        return rotated

    def attend(self, layer, query, key, value, *arguments, **options):
        output, weights = self.functions["eager_attention_forward"](layer, query, key, value, *arguments, **options)
        self.layers[layer.layer_idx] = {
            "rotated": self.rotations[-1] if self.rotations else None,
            "rotated_query": self.rotations[0][1] if self.rotations else None,
            "query": query[0],
            "key": key,
            "weights": weights[0].mean(0),
            "module": layer,
        }
        self.rotations = []
        return output, weights
