"""A referee for trainers: at chosen steps the gradients of each micro-batch are judged, on that very batch, before the optimizer has them."""

import dataclasses
import json
import sys
from pathlib import Path

import torch
import transformers

from ._library import InputError
from ._live_model.decoder import text_modules
from ._live_model.model import unwrap
from ._live_model.refusals import check_dropout
from ._log import say
from ._trainers import objective_of
from ._verify import gradients_apart, verify


class WrongGradients(RuntimeError):
    """A trainer's gradients are not its objective's. report: the Report of verify()."""

    def __init__(self, where, report):
        super().__init__(f"{where}: {report}")
        self.report = report


class Referee(transformers.TrainerCallback):
    """Trainer(..., callbacks=[Referee()]): verify() inside a Trainer or a trainer of TRL, on its own batches, with its own gradients, under its own objective.

    trainer: for Referee(trainer), of one that is made already. One of transformers or TRL, or of a class derived from one, which is judged by what its
    parent class computes; on one process.
    every: at which optimizer steps: 0, at the first; n, at each n-th. A step whose gradients should all be zero, and are, says nothing, and the next is judged.
    diagnose: looks for the mistake where gradients are wrong (memory grows with the square of a row). stop: raises WrongGradients then; else the
    line is printed and training goes on. out: a file that gets a line of JSON for each micro-batch that is judged. tolerance: as verify() has it.

    reports: what was found, as (step, micro-batch, Report). Training itself stays what it is, bit for bit: a micro-batch's gradients are made apart, judged,
    and added. Raises InputError for trainers and models that verify() can't judge, for dropout, and where several processes train.
    """

    def __init__(self, trainer=None, every=0, *, diagnose=True, stop=True, out=None, tolerance=None):
        if isinstance(every, bool) or not isinstance(every, int) or every < 0:
            raise InputError(f"every is {every!r}, expected a number of steps, or 0 for the first alone")
        self.trainer, self.every, self.diagnose, self.stop, self.tolerance = None, every, diagnose, stop, tolerance
        self.out = None if out is None else Path(out)
        self.reports, self._batch, self._micro_batch, self._step, self._waits = [], None, 0, None, False
        if trainer is not None:
            self._join(trainer)

    def on_train_begin(self, args, state, control, **kwargs):
        """Nothing here names the trainer: it is the one that makes this call."""
        if self.trainer is None:
            frame = sys._getframe()
            while not isinstance(frame.f_locals.get("self"), transformers.Trainer):
                frame = frame.f_back
            self._join(frame.f_locals["self"])

    def _join(self, trainer):
        if trainer.args.world_size > 1:
            raise InputError(f"{trainer.args.world_size} processes train: a referee judges the gradients of one; run one step without the others")
        self.trainer = trainer
        self._compute_loss, self._training_step = trainer.compute_loss, trainer.training_step
        trainer.compute_loss, trainer.training_step = self._computing, self._stepping

    def _is_due(self):
        step = self.trainer.state.global_step
        if step != self._step:
            self._step, self._micro_batch = step, 0
        return self._waits or (step == 0 if self.every == 0 else step % self.every == 0)

    def _computing(self, model, inputs, *args, **kwargs):
        if model.training:
            self._batch = ({name: value.clone() if torch.is_tensor(value) else value for name, value in inputs.items()}, kwargs.get("num_items_in_batch"))
        return self._compute_loss(model, inputs, *args, **kwargs)

    def _stepping(self, *args, **kwargs):
        if not self._is_due():
            return self._training_step(*args, **kwargs)
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        check_dropout(unwrap(model)[1], text_modules(unwrap(model)[1]))
        parameters = dict(model.named_parameters())
        with gradients_apart(parameters.values()):
            loss = self._training_step(*args, **kwargs)
            own = {name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None}
            self._judge(model, own)
        for name, gradient in own.items():
            parameters[name].grad = gradient if parameters[name].grad is None else parameters[name].grad.add_(gradient)
        self._micro_batch += 1
        return loss

    def _judge(self, model, gradients):
        trainer = self.trainer
        where = f"step {self._step}, micro-batch {self._micro_batch}"
        scaler = trainer.accelerator.scaler
        batch, options, divisor = objective_of(trainer, *self._batch, trainer.current_gradient_accumulation_steps)
        factor = divisor / (scaler.get_scale() if scaler is not None and scaler.is_enabled() else 1.0)  # of float16's losses
        if factor != 1:
            gradients = {name: gradient * factor for name, gradient in gradients.items()}
        cast = {"bf16": "bfloat16", "fp16": "float16"}.get(trainer.accelerator.mixed_precision)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            report = verify(model, batch, gradients=gradients, tolerance=self.tolerance, compute_dtype=cast, **options)
            self._waits = report.verdict == "undecided" and not any(bool(gradient.any()) for gradient in gradients.values())
            if self._waits:
                say(f"{where}: all gradients are zero, as they should be, which says nothing; the next step is judged")
                return
            if self.diagnose and not report.exact:
                report = verify(model, batch, gradients=gradients, tolerance=self.tolerance, compute_dtype=cast, diagnose=True, **options)
        self.reports.append((self._step, self._micro_batch, report))
        if self.out is not None:
            line = {"step": self._step, "micro_batch": self._micro_batch, "trainer": type(trainer).__name__, **dataclasses.asdict(report)}
            with self.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        if self.stop and report.verdict not in ("exact", "undecided"):
            raise WrongGradients(where, report)
        say(f"{where}: {report if not report.exact else str(report).splitlines()[0]}")

    def leave(self):
        """Gives the trainer its own functions back."""
        self.trainer.compute_loss, self.trainer.training_step = self._compute_loss, self._training_step
        self.trainer = None
