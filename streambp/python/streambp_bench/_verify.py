"""Gradients of any training loop against the float64 truth: `streambp-verify compare` in this process (verify/compare.md)."""

import contextlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ._backward import BASE, _in_one_window, check_reference_name, default_reference
from ._batch import batch_tensors
from ._keywords import sort_keywords
from ._library import InputError, checked, first_line, library, library_path
from ._live_model.decoder import text_modules
from ._live_model.model import Weights, engine_of
from ._live_model.refusals import check_dropout

JUDGE = "libstreambp_judge.so"
EMPTY = {}


@dataclass(frozen=True)
class Finding:
    """One parameter's gradient g against the truth t: error |g - t| / |t|; factor <g, t> / <t, t>; cosine; residual |g - c t| / |c t| with the
    factor c of all; noise: the error of correct arithmetic in that dtype, measured; limit: what is allowed; problem: "wrong shape", ...
    """

    name: str
    error: float
    factor: float
    cosine: float
    residual: float
    noise: float
    ratio: float
    limit: float
    problem: str


@dataclass(frozen=True)
class Diagnosis:
    """The mistake that gives these gradients. finding: "right", "explained", "located" (nothing fits, but it is known from which operation
    on they are wrong) or "unknown"; name, sentence: the mistake, with factor where all gradients are off by one; residual: what it leaves
    unexplained; limit: what would fit; equally_good: further mistakes that this batch can't tell from it; explanations: the best, as dicts of
    name, sentence, residual, factor; location: where they go wrong, as a dict of name, sentence, right, wrong, or None; notes: what could not
    be tried; passes: over the batch, that the search took.
    """

    finding: str
    name: str
    sentence: str
    residual: float
    factor: float
    limit: float
    equally_good: int
    explanations: list
    location: dict | None = None
    notes: tuple = ()
    passes: float = 0.0

    def __str__(self):
        if self.finding == "right":
            return "diagnosis: nothing is wrong, as far as the gradients' precision shows"
        if self.finding == "located":
            lines = [f"diagnosis: {self.sentence}"]
        elif self.finding == "unknown":
            near = f"; nearest: {self.sentence} (residual {self.residual:.2g})" if self.residual <= 0.1 else ""
            lines = [f"diagnosis: not named: nothing that was tried fits to {self.limit:.2g}{near}"]
        else:
            lines = [f"diagnosis: {self.sentence} (residual {self.residual:.2g})"]
            lines += [f"  this batch can't tell it from: {each['sentence']}" for each in self.explanations[1:1 + self.equally_good]]
        if self.location:
            lines += [f"  right: {self.location['right']}", f"  wrong: {self.location['wrong']}"]
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])


@dataclass(frozen=True)
class Report:
    """What verify() found.

    verdict: "exact"; "scaled", all gradients are the truth times factor; "undecided", the precision leaves it open; "wrong"; or "incomplete",
    names or shapes are not those of the model's trained parameters. factor, with factor_low and factor_high, and factor_differs: whether
    that is distinguishable from 1. error: of the worst parameter, worst_parameter. compute_dtype: that was judged by; tolerance: the limit of
    the worst; noise_runs: in which the dtype's noise was measured. loss: of the truth. parameters: the ten Findings that are furthest off;
    missing, surplus: names; notes: what was assumed; hints: what may be the matter; diagnosis: a Diagnosis, or None where none was asked for.
    """

    verdict: str
    factor: float
    factor_low: float
    factor_high: float
    factor_differs: bool
    error: float
    worst_parameter: str
    compute_dtype: str
    tolerance: float
    noise_runs: int
    loss: float
    parameters: list
    missing: list
    surplus: list
    notes: list
    hints: list
    diagnosis: Diagnosis | None = None

    @property
    def exact(self):
        return self.verdict == "exact"

    def __str__(self):
        lines = [f"{self.verdict}: worst gradient {self.worst_parameter}, error {self.error:.2g} ({self.compute_dtype})"]
        if self.factor_differs:
            lines.append(f"factor: {self.factor:.9g} ({self.factor_low:.9g} to {self.factor_high:.9g}), 1/{1 / self.factor:.9g}")
        lines += [f"missing: {name}" for name in self.missing[:5]] + [f"surplus: {name}" for name in self.surplus[:5]]
        lines += [f"note: {note}" for note in self.notes] + [f"hint: {hint}" for hint in self.hints]
        if self.verdict != "exact":
            lines += [f"  {each.name}: error {each.error:.2g}, factor {each.factor:.6g}, limit {each.limit:.2g} {each.problem}".rstrip()
                      for each in self.parameters]
        return "\n".join(lines + ([str(self.diagnosis)] if self.diagnosis else []))


def verify(model, batch, objective="sft", gradients=None, diagnose=False, *, diagnose_chunks=(), tolerance=None, compute_dtype=None,
           reference=None, teacher=None, first_labels="refuse", options=None, **more_options):
    """Judges gradients of `model` on `batch` against the truth: the same computed in float64 by streambp, on copies of the weights. A Report.

    model, batch, objective, reference, teacher, first_labels, options: as in backward(); the model may be trained as you like, with gradient
        checkpointing or patched.
    gradients: None: those of the model's own autograd, model(**batch, use_cache=False).loss.backward(), run here for "sft" with the model's .grad left as it
        is; "grad": what .grad holds now, of whatever has filled it, once, from None; or {name: tensor} of any framework, under
        Hugging Face's names, as wrappers (DDP, FSDP, PEFT, torch.compile) spell them too.
    diagnose: looks for the mistake, or two, that explain the gradients; for short batches (memory grows with the square of a row).
        diagnose_chunks: sizes of chunks in which it may lie, in addition to powers of two.
    tolerance: one limit for all errors, in place of the rule: 1e-10 in float64, below that 3 x the noise of the dtype, which is measured on
        this very batch. compute_dtype: in which they were computed, "bfloat16" for autocast; default: the narrowest of the gradients.

    Takes 24 bytes for each parameter (float64 weights, gradients, and copies of these) and time in proportion.
    Raises InputError for bad input.
    """
    asked = Asked(model, batch, objective, reference, teacher, first_labels, options, more_options)
    asked.request |= {"diagnose": bool(diagnose or diagnose_chunks), "diagnose_chunks": list(diagnose_chunks)}
    if tolerance is not None:
        if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)) or not 0 < tolerance < math.inf:
            raise InputError(f"tolerance: {tolerance!r}, expected a number above 0")
        asked.request["tolerance"] = float(tolerance)
    if compute_dtype is not None:
        asked.request["compute_dtype"] = str(compute_dtype).removeprefix("torch.")
    judged = _gradients(model, asked.weights, asked.batch, objective, gradients, asked.request["options"])
    comparison, diagnosis = checked(torch.ops.streambp_judge.judge, json.dumps(asked.request), asked.values, asked.batch, judged,
                                    asked.others["teacher"], asked.others["reference"])
    line = json.loads(comparison)
    line["notes"] = [*asked.weights.notes, *line["notes"]]
    if gradients is None:
        line["notes"].append("the gradients are those of model(**batch, use_cache=False).loss.backward(), which is how trainers run it; with "
                             "the default use_cache=True masks take no notice of packed position_ids")
    return _report(line, json.loads(diagnosis) if diagnosis else None)


class Asked:
    """What the judge is asked about: weights, batch and values as its ops take them. request: by name what else it is told.

    The arguments are those of verify(). Raises InputError as that does.
    """

    def __init__(self, model, batch, objective, reference, teacher, first_labels, options, more_options):
        self.weights = weights = Weights(model)
        self.batch = tensors = batch_tensors(batch, weights.base)
        _load_judge()
        options = _in_one_window(tensors, dict(options or {}), more_options, None) if objective == "grpo" else options
        objective_options, settings = sort_keywords(torch.ops.streambp, objective, options, more_options)
        if settings:
            raise InputError(f"'{next(iter(settings))}': a setting of a pass; it takes none but those it lists")
        parameters = weights.parameters()
        trained = [name for name, parameter in parameters.items() if parameter.requires_grad]
        if not trained:
            raise InputError("no parameter of the model has requires_grad: there is nothing to judge")
        self.request = {"objective": objective, "options": objective_options, "first_labels": first_labels,
                        "trained": [each for name in trained for each in weights.engine_names(name)]}
        self.request["model"], self.values = _model_of(weights)
        if reference is None and weights.adapter and checked(engine_of(weights).needs_reference, objective, objective_options, tensors, first_labels):
            reference = default_reference(weights, objective)
        check_reference_name(reference, weights)
        if isinstance(reference, str):
            reference = None if reference == BASE else Weights(model, adapters=reference)
        self.others = {"teacher": EMPTY, "reference": EMPTY}
        for role, other in (("teacher", teacher), ("reference", reference)):
            if other is not None:
                self.request[role], self.others[role] = _model_of(other if isinstance(other, Weights) else Weights(other))


def _load_judge():
    """Loads the judge's library, which lies next to the engine's."""
    library()
    path = library_path().with_name(JUDGE)
    if not path.is_file():
        raise InputError(f"{path}: no such file; it is built and installed together with the engine's library")
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise InputError(f"{path}: can't be loaded ({first_line(error)})") from None


def _model_of(weights):
    parameters = weights.parameters()
    for name, parameter in parameters.items():
        if parameter.is_meta or type(parameter.data).__name__ == "DTensor":
            raise InputError(f"{name} is {'on the meta device' if parameter.is_meta else 'sharded'}: the truth needs whole values")
    model = {"config": weights.config_json, "source": weights.source}
    if weights.adapter_json:
        model["adapter"] = weights.adapter_json
    return model, weights.views_of(parameters, parameters.values())


def _gradients(model, weights, batch, objective, gradients, options):
    """{name: gradient} under the engine's names where they are known, else under the given ones."""
    parameters = weights.parameters()
    if gradients is None:
        if objective != "sft" or options:
            raise InputError(f"gradients: a model's own loss is sft without options; for {objective}{' with options' if options else ''} pass "
                             "gradients=\"grad\" after your own backward pass, or a dict")
        return _own_gradients(model, weights, parameters, batch)
    if isinstance(gradients, str):
        if gradients != "grad":
            raise InputError(f"gradients: '{gradients}', expected None, \"grad\" or a dict of tensors by name")
        gradients = {name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None}
        if not gradients:
            raise InputError("gradients: .grad of every parameter is None; run the backward pass first")
    if not isinstance(gradients, Mapping):
        raise InputError(f"gradients: a {type(gradients).__name__}, expected None, \"grad\" or a dict of tensors by name")
    named = {}
    for name, gradient in gradients.items():
        if gradient is None:
            continue
        if not isinstance(gradient, torch.Tensor):
            raise InputError(f"gradients: {name} is a {type(gradient).__name__}, expected a tensor")
        gradient = gradient.detach().to_dense() if gradient.layout != torch.strided else gradient.detach()
        if name in parameters and gradient.shape == parameters[name].shape:
            named |= weights.views_of([name], [gradient])
        else:
            named[name] = gradient
    return {name: gradient.cpu() for name, gradient in named.items()}


@contextlib.contextmanager
def gradients_apart(parameters):
    """Inside, the .grad of these parameters starts from None; afterwards it is what it was."""
    kept = [(parameter, parameter.grad) for parameter in parameters]
    try:
        for parameter, _ in kept:
            parameter.grad = None
        yield
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient


def _own_gradients(model, weights, parameters, batch):
    """Those of model(**batch, use_cache=False).loss.backward(), from None; .grad is afterwards what it was."""
    check_dropout(weights.base, text_modules(weights.base))
    for name, parameter in parameters.items():
        if getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise InputError(f"{name} has a hook that runs when its gradient is there (an optimizer in the backward pass?), which would run here "
                             "too; pass gradients={name: tensor} instead")
    inputs = {name: tensor.to(weights.device) if tensor.dim() else tensor.item() for name, tensor in batch.items()}
    if "labels" not in inputs:
        inputs["labels"] = _default_labels(inputs)
        batch["labels"] = inputs["labels"]
    with gradients_apart(weights.base.parameters()), torch.enable_grad():
        loss = getattr(model(**inputs, use_cache=False), "loss", None)  # as trainers do: a cache changes the masks of packed rows
        if loss is None:
            raise InputError("the model gives no loss for this batch; pass gradients=\"grad\" after your own backward pass, or a dict")
        loss.backward()
        found = [(name, parameter.grad) for name, parameter in parameters.items() if parameter.grad is not None]
    return {name: gradient.cpu() for name, gradient in weights.views_of([name for name, _ in found], [gradient for _, gradient in found]).items()}


def _default_labels(batch):
    """Every real token but the first of a row or of a document, as the engine has it where there are no labels."""
    labels = batch["input_ids"].clone()
    first = torch.zeros_like(labels, dtype=torch.bool)
    mask = batch.get("attention_mask")
    if mask is not None:
        first = (mask != 0) & (mask.cumsum(1) == 1)
        labels[mask == 0] = -100
    else:
        first[:, 0] = True
        positions = batch.get("position_ids")
        if positions is not None:
            positions = positions.expand(labels.shape)
            first[:, 1:] |= positions[:, 1:] != positions[:, :-1] + 1
    labels[first] = -100
    return labels


def _number(value):
    return math.nan if value is None else value


def _report(line, diagnosis):
    findings = [Finding(**{key: _number(value) for key, value in each.items()}) for each in line["parameters"]]
    hints = [re.sub(r"--compute-dtype (\w+)", r'compute_dtype="\1"', hint) for hint in line["hints"]]
    return Report(verdict=line["verdict"], factor=_number(line["factor"]), factor_low=_number(line["factor_low"]),
                  factor_high=_number(line["factor_high"]), factor_differs=line["factor_differs"], error=_number(line["worst_error"]),
                  worst_parameter=line["worst_parameter"], compute_dtype=line["compute_dtype"], tolerance=_number(line["tolerance"]),
                  noise_runs=line["noise_runs"], loss=_number(line["loss"]), parameters=findings, missing=line["missing"],
                  surplus=line["surplus"], notes=line["notes"], hints=hints, diagnosis=_diagnosis(diagnosis))


def _diagnosis(line):
    if line is None:
        return None
    return Diagnosis(finding=line["finding"], name=line["name"], sentence=line["sentence"], residual=_number(line["residual"]),
                     factor=_number(line["factor"]), limit=_number(line["limit"]), equally_good=line["equally_good"],
                     explanations=line["explanations"], location=line.get("location"), notes=tuple(line["notes"]), passes=line["passes"])
