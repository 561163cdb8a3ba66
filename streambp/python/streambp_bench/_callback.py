"""A callback of transformers' Trainer that patches its model for as long as it trains."""

import transformers

from ._patch import patch, unpatch
from ._replaced import patched_state


class Callback(transformers.TrainerCallback):
    """Trainer(..., callbacks=[streambp_bench.Callback()]): patch(model, **settings) when training begins, unpatch(model) when it ends.

    settings: patch()'s arguments. A model that is patched already is left as it is. A trainer's reference model is not known to its callbacks:
    streambp_bench.patch(trainer) patches both. Raises InputError as patch() does.
    """

    def __init__(self, **settings):
        self.settings, self._model = settings, None

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        while hasattr(model, "module") and not hasattr(model, "config"):
            model = model.module  # DistributedDataParallel
        if patched_state(model) is None:
            self._model = patch(model, **self.settings)

    def on_train_end(self, args, state, control, **kwargs):
        if self._model is not None and patched_state(self._model) is not None:
            unpatch(self._model)
        self._model = None
