"""What a case must pass before it is written."""

import math

import torch

from goldens.passes import (
    evaluate,
    forward,
    gradients_of,
    load_model,
    parameters_of,
    relative_difference,
    worst,
)

STEPS = (2e-3, 5e-4, 1e-4)
FD_LIMIT = 1e-7
COORDINATES = 12
# Experts are chosen by comparison. A gap this wide can't be reversed by another order of summation.
ROUTING_GAP = 1e-6
OTHER_TOKEN = 4  # to put under the padding in place of 0


class CheckError(Exception):
    """A case that must not be written: the message says why."""


def check_results(results):
    """No ATen operation gave less than float64."""
    if results.below > 0:
        raise CheckError(f"{results.below} results of {results.all} are below float64")
    return {"aten_results_checked": results.all, "aten_results_below_float64": results.below}


def check_weights(model, tensors, weights):
    """The model has the file's weights, and gradients under the file's names, none of them empty of information.

    Only an expert that no token chose may have nothing but zeros.
    """
    loaded = parameters_of(model)
    gradients = gradients_of(tensors)
    if not loaded.keys() == gradients.keys() == weights.keys():
        raise CheckError("weights, gradients and weight file differ in names")
    for name, gradient in gradients.items():
        if not torch.equal(loaded[name], weights[name]):
            raise CheckError(f"{name} in memory is not that of the file")
        if gradient.shape != weights[name].shape or not gradient.isfinite().all():
            raise CheckError(f"the gradient of {name} has another shape or is not finite")
        if not gradient.any() and ".experts." not in name:
            raise CheckError(f"the gradient of {name} is zero")
    return {"weights_equal_file": True}


def transformers_loss(model, inputs):
    return forward(model, inputs).loss


def central_difference(model, inputs, move, loss_of=transformers_loss):
    """Derivatives of the loss at 0 along move(step), of fourth order, one for each of STEPS."""

    def loss(step):
        move(step)
        with torch.no_grad():
            return loss_of(model, inputs).item()

    derivatives = []
    for step in STEPS:
        near = loss(step) - loss(-step)
        far = loss(2 * step) - loss(-2 * step)
        derivatives.append((8 * near - far) / (12 * step))
    move(0.0)
    return derivatives


def closest(derivatives, gradient):
    return min(abs(derivative - gradient) / abs(gradient) for derivative in derivatives)


def check_finite_differences(model, inputs, gradients, generator, parameters=None, loss_of=transformers_loss):
    """COORDINATES entries of as many parameters, and one random direction, against finite differences.

    `parameters` are the model's own, by the names of `gradients`; by default all of them.
    """
    parameters = parameters or parameters_of(model)
    names = sorted(parameters)
    coordinates = []
    for i in range(COORDINATES):
        # One in each stretch of the names, so that every layer and kind of parameter has its turn in some case.
        start = i * len(names) // COORDINATES
        stop = max((i + 1) * len(names) // COORDINATES, start + 1)
        name = names[start + int(torch.randint(stop - start, (), generator=generator))]
        flat = gradients[name].flatten()
        candidates = torch.randint(flat.numel(), (8,), generator=generator)
        index = candidates[flat[candidates].abs().argmax()].item()
        entry = parameters[name].view(-1)[index]
        value, gradient = entry.item(), flat[index].item()
        if gradient == 0.0:
            continue  # the embedding of a token that isn't in the batch, or an expert that no token chose
        derivatives = central_difference(model, inputs, lambda step: entry.fill_(value + step), loss_of)
        coordinates.append(
            {
                "parameter": name,
                "index": index,
                "gradient": gradient,
                "relative_error": closest(derivatives, gradient),
            }
        )

    values = {name: parameter.clone() for name, parameter in parameters.items()}
    direction = {
        name: torch.randn(parameter.shape, generator=generator) * 0.01 for name, parameter in values.items()
    }

    def move(step):
        for name, parameter in parameters.items():
            parameter.copy_(values[name] + step * direction[name])

    derivative = sum((gradients[name] * direction[name]).sum().item() for name in names)
    direction_error = closest(central_difference(model, inputs, move, loss_of), derivative)
    error = worst(coordinate["relative_error"] for coordinate in coordinates)
    if not (error <= FD_LIMIT and direction_error <= FD_LIMIT and 2 * len(coordinates) > COORDINATES):
        raise CheckError(
            f"finite differences of {len(coordinates)} entries are off by {error:.2e},"
            f" along a direction {direction_error:.2e}"
        )
    return {
        "scheme": "4th-order central differences, steps 2e-3, 5e-4 and 1e-4, the best one",
        "coordinates": coordinates,
        "max_relative_error": error,
        "direction_relative_error": direction_error,
        "directional_derivative": derivative,
    }


def check_padding(model, inputs, tensors):
    """What stands under the padding must not matter: neither to the loss nor to any gradient."""
    other = dict(inputs)
    other["input_ids"] = torch.where(inputs["attention_mask"] == 1, inputs["input_ids"], OTHER_TOKEN)
    changed = evaluate(model, other)[1]
    loss_difference = (changed["out.loss"] - tensors["out.loss"]).abs().item()
    ours, theirs = gradients_of(changed), gradients_of(tensors)
    gradient_difference = worst(relative_difference(ours[name], theirs[name]) for name in theirs)
    if not (loss_difference <= 1e-14 and gradient_difference <= 1e-13):
        raise CheckError(f"padding changes the loss by {loss_difference}, gradients by {gradient_difference}")
    return {"loss_difference": loss_difference, "max_relative_gradient_difference": gradient_difference}


def check_legacy_config(folder, inputs, tensors):
    """config.legacy.json is the same model, to the last bit of the loss."""
    loss = forward(load_model(folder, "config.legacy.json"), inputs).loss.item()
    difference = abs(loss - tensors["out.loss"].item())
    if difference != 0:
        raise CheckError(f"config.legacy.json changes the loss by {difference}")
    return {"loss_difference": difference}


def check_routing(model, inputs, tensors):
    """How far each real token is from another choice of experts, in router logits, and which experts none chose."""
    real = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).flatten() == 1
    chosen = model.config.num_experts_per_tok
    gap = math.inf
    for logits in forward(model, inputs, output_router_logits=True).router_logits:
        ordered = logits[real].sort(descending=True).values
        gap = min(gap, (ordered[:, chosen - 1] - ordered[:, chosen]).min().item())
    if not gap >= ROUTING_GAP:
        raise CheckError(f"the last expert chosen and the first one left out are only {gap} apart")
    end = ".down_proj.weight"
    unused = [name for name, gradient in gradients_of(tensors).items() if name.endswith(end) and not gradient.any()]
    experts = [name.removesuffix(end) for name in unused]
    return {"smallest_gap": gap, "unused_experts": sorted(experts)}
