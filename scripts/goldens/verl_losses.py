"""PPO's loss from verl's functions, read out of the installed package: importing verl would start Ray.

Needs verl 0.9.1, which `pip install --no-deps verl==0.9.1` adds to the other packages.
"""

import ast
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Optional

import torch

DEFAULTS = {
    "temperature": 1.0,
    "cliprange": 0.2,
    "cliprange_value": 0.2,
    "vf_coef": 0.1,
    "entropy_coef": 0.0,
    "kl_coef": 0.0,
    "kl_estimator": "k3",
    "clip_ratio_c": None,
}
NO_DUAL_CLIP = 1e30  # verl's functions always have one


def functions(path, names, **given):
    """The functions `names` of a module of verl, without their decorators, among the names `given`."""
    root = Path(importlib.util.find_spec("verl").submodule_search_locations[0])
    tree = ast.parse((root / path).read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    for node in tree.body:
        node.decorator_list = []
    namespace = {"torch": torch, "Optional": Optional, **given}
    exec(compile(tree, path, "exec"), namespace)
    return SimpleNamespace(**{name: namespace[name] for name in names})


def ppo(settings, inputs, logits, values):
    """verl's actor loss and vf_coef times its critic loss, of logits [B,R,V] of the responses and values [B,R]."""
    ops = functions(
        "utils/torch_functional.py", ("masked_sum", "masked_mean", "clip_by_value", "entropy_from_logits")
    )
    algorithms = functions(
        "trainer/ppo/core_algos.py",
        ("agg_loss", "compute_policy_loss", "compute_value_loss", "kl_penalty", "kl_penalty_forward"),
        verl_F=ops,
    )
    mask = inputs["response_mask"]
    log_p = logits.log_softmax(-1).gather(-1, inputs["responses"].unsqueeze(-1)).squeeze(-1)
    loss = algorithms.compute_policy_loss(
        old_log_prob=inputs["old_logprobs"],
        log_prob=log_p,
        advantages=inputs["advantages"],
        response_mask=mask,
        cliprange=settings["cliprange"],
        clip_ratio_c=settings["clip_ratio_c"] or NO_DUAL_CLIP,
    )[0]
    if settings["entropy_coef"] != 0.0:
        entropy = algorithms.agg_loss(ops.entropy_from_logits(logits), mask, "token-mean")
        loss = loss - settings["entropy_coef"] * entropy
    if settings["kl_coef"] > 0.0:
        kl = algorithms.kl_penalty(log_p, inputs["ref_logprobs"], settings["kl_estimator"])
        loss = loss + settings["kl_coef"] * algorithms.agg_loss(kl, mask, "token-mean")
    value_loss = algorithms.compute_value_loss(
        vpreds=values,
        returns=inputs["returns"],
        values=inputs["old_values"],
        response_mask=inputs["value_mask"],
        cliprange_value=settings["cliprange_value"],
    )[0]
    return loss + settings["vf_coef"] * value_loss
