"""What an inference engine's log-probabilities do to a policy's gradient: `streambp-verify rollout` in this process (verify/compare.md)."""

import json
import math
from dataclasses import dataclass

import torch

from ._library import InputError, checked
from ._verify import Asked


@dataclass(frozen=True)
class Rollout:
    """What rollout() found; str() is the report.

    gradients: {name: dict} of "unbiased", "uncorrected", TRL's four modes, "as in the batch" where it has ratios, and "sampling as old"; each with
    of_unbiased and of_uncorrected, {"length": ratio, "degrees": angle}, bounded, the tokens whose ratio was cut or set to 0, and rows, of each row's
    uncorrected gradient. rows: dicts of tokens, difference (the mean of log p - log p_sampling), most, ratio (of the whole row) and share of the
    gradient's length. effective_rows: (sum of ratios)^2 / sum of their squares. sampling_error, trainer_error: how far the engine's and the
    trainer's log-probabilities are from the float64 truth (root of the mean square); None without old_per_token_logps. unknown: tokens without one.
    """

    gradients: dict
    rows: list
    tokens: int
    unknown: int
    effective_rows: float
    sampling_error: float
    trainer_error: float | None
    text: str

    def __str__(self):
        return self.text


def rollout(model, batch, sampling_per_token_logps=None, *, clip_max=3.0, clip_min=None, reference=None, options=None, **more_options):
    """How far the gradient of GRPO on `batch` is from the unbiased one, as completions were sampled by an engine with log-probabilities of its own.

    model: as in verify(); its weights, in float64, are the trainer. batch: what TRL's GRPOTrainer gives its loss, on a vLLM rollout: prompt_ids,
    completion_ids, advantages, ..., and old_per_token_logps, without which the trainer's log-probabilities are the float64 truth's.
    sampling_per_token_logps: [B, C], where the batch has none; NaN: not known. clip_max, clip_min: TRL's vllm_importance_sampling_clip_max
    and _min, None: no bound. reference, options: as in backward(), for "grpo".

    Returns a Rollout. Raises InputError for bad input, and where all gradients are zero.
    """
    if sampling_per_token_logps is not None:
        batch = {**batch, "sampling_per_token_logps": sampling_per_token_logps}
    asked = Asked(model, batch, "grpo", reference, None, "refuse", options, more_options)
    for name, bound in (("clip_max", clip_max), ("clip_min", clip_min)):
        if bound is not None and (isinstance(bound, bool) or not isinstance(bound, (int, float)) or not 0 <= bound < math.inf):
            raise InputError(f"{name}: {bound!r}, expected a number of at least 0, or None")
    asked.request["clip_min"] = float(clip_min or 0)
    if clip_max is not None:
        asked.request["clip_max"] = float(clip_max)
    text, line = checked(torch.ops.streambp_judge.rollout, json.dumps(asked.request), asked.values, asked.batch, asked.others["reference"])
    found = json.loads(line)
    gradients = {each.pop("name"): each for each in found["gradients"]}
    return Rollout(gradients, found["rows"], found["tokens"], found["unknown"], found["effective_rows"], found["sampling_error"], found["trainer_error"], text.rstrip())
