"""Random choices for a config.json."""

import random

ABSENT = object()


class Draw:
    """Random settings; `put` with ABSENT leaves a key out, so that the class's default holds."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.settings = {}

    def one(self, *choices):
        return self.random.choice(choices)

    def chance(self, probability):
        return self.random.random() < probability

    def put(self, key, *choices):
        value = self.one(*choices)
        if value is not ABSENT:
            self.settings[key] = value
        return value
