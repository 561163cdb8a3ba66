"""Golden cases of policy objectives and DFT: losses of TRL's GRPOTrainer and SFTTrainer, and of verl's PPO.

TRL's losses are the trainers' own methods, called on trainers that have nothing but what the methods read; verl's are
its functions (goldens/verl_losses.py). Prompts are padded on the left and completions on the right, as TRL does.
"""

import math

import torch
from torch.overrides import TorchFunctionMode

from goldens.checks import check_finite_differences, check_results, check_routing, check_weights
from goldens.models import MODELS
from goldens.passes import ResultCheck, as_in_file, experts_per_token, gradients_of, load_model, read_tensors
from goldens.policy_cases import CASES, SMALL, SMALL_MODEL
from goldens.policy_objectives import OBJECTIVES
from goldens.trainers import wide_backward
from goldens.versions import KNOWN, installed
from goldens.writing import describe_case, save_case, write_model

VERSIONS = installed("torch", "transformers", "trl")
OF_PPO = {**VERSIONS, "verl": KNOWN["verl"][0]}


class HeldDetach(TorchFunctionMode):
    """Answers every `detach` with what it gave in the first pass: differences have to hold constant what it cuts off."""

    def __init__(self):
        super().__init__()
        self.first = []
        self.position = None  # in a later pass

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is not torch.Tensor.detach:
            return result
        if self.position is None:
            self.first.append(result.clone())
            return result
        self.position += 1
        return self.first[self.position - 1]


def describe(case, objective, spec, inputs):
    source = {
        "peer": objective.peer,
        "gradient": "torch.autograd through transformers' modules",
        "per_token_logps": "torch log_softmax of transformers' logits",
    }
    return describe_case(
        f"{case.model}-{case.objective}-{case.variant}",
        case.model,
        spec.model_type,
        case.objective,
        case.variant,
        objective.described(inputs),
        source,
        OF_PPO if case.objective == "ppo" else VERSIONS,
    )


def make_case(root, case, spec, seed):
    folder = root / "models" / case.model
    generator = torch.Generator().manual_seed(seed)
    objective = OBJECTIVES[case.objective](case)
    inputs = objective.batch(load_model(folder), spec.settings["vocab_size"], generator)
    held = HeldDetach()
    with ResultCheck() as results, wide_backward():
        model = load_model(folder)
        loss = objective.loss(model, inputs)
        with held:
            total = loss()
        total.backward()

    def again(model, inputs):
        held.position = 0
        with held:
            return loss()

    gradients = as_in_file({name: parameter.grad for name, parameter in model.named_parameters()}, model.config.model_type)
    tensors = {f"in.{name}": tensor for name, tensor in inputs.items()}
    tensors["out.loss"] = total.reshape(1)
    tensors |= {f"grad.{name}": gradient for name, gradient in gradients.items()}
    weights = read_tensors(folder / "model.safetensors")
    if "value_head.weight" in inputs:
        weights["value_head.weight"] = inputs["value_head.weight"]
    described = describe(case, objective, spec, inputs)
    with torch.no_grad():
        expected = objective.outputs(model, inputs, tensors)
    squares = sum((gradient**2).sum().item() for gradient in gradients.values())
    described["expected"] = {"loss": total.item(), "grad_norm": math.sqrt(squares), **expected}
    described["checks"] = {
        **check_results(results),
        **check_weights(model, tensors, weights),
        "finite_difference": check_finite_differences(model, inputs, gradients_of(tensors), generator, loss_of=again),
    }
    if experts_per_token(model.config):
        described["checks"]["routing"] = check_routing(load_model(folder), {"labels": None, **inputs}, tensors)
    save_case(root, described, {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()})


def make(root, names):
    """DIR/cases/<model>-<objective>-<variant> for all of CASES, or the models `names`, and the models that they need."""
    specs = {**MODELS, SMALL: SMALL_MODEL}
    for i, case in enumerate(CASES):
        if names and case.model not in names:
            continue
        if not (root / "models" / case.model).exists():
            write_model(root / "models" / case.model, specs[case.model])
        make_case(root, case, specs[case.model], 300000 + 100 * i + case.seed)
