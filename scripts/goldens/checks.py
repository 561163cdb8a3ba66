"""What a case must pass before it is written."""

import math
import re

import torch
from torch.overrides import TorchFunctionMode

from goldens.passes import (
    IGNORED,
    as_in_file,
    evaluate,
    experts_per_token,
    fixed_tensors,
    forward,
    gradients_of,
    is_correction,
    load_model,
    parameters_of,
    relative_difference,
    with_whole_tables,
    worst,
)
from goldens.blocks import blocks_that_are_picked, has_blocks
from goldens.recurrence import document_spans, has_recurrence, recurrences, token_by_token

STEPS = (2e-3, 5e-4, 1e-4)
# A step that is to stay on one side of the kinks of GPT-OSS's and Step 3.7's clamped activations and of an indexer's choices, and within the curves of norms of what may
# be small: a gated delta rule's outputs, Gemma 4's per-layer inputs.
SHORT_STEP = 1e-5
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
    fixed = fixed_tensors(model)
    weights = with_whole_tables(weights)
    if weights.keys() != loaded.keys() | fixed.keys():  # Step 3.7's text model alone is saved as transformers holds it
        weights = as_in_file(weights, model.config.model_type)
    if not (loaded.keys() == gradients.keys() and loaded.keys() | fixed.keys() == weights.keys()):
        raise CheckError("weights, gradients and weight file differ in names")
    for name, buffer in fixed.items():
        if not torch.equal(buffer, weights[name]):
            raise CheckError(f"{name} in memory is not that of the file")
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


def steps_of(model):
    needs_short = model.config.model_type in ("gpt_oss", "gemma4_text", "minimax_m3_vl_text", "muse_spark_text", "step3p5") or has_recurrence(model) or hasattr(model.config, "index_topk")
    return (*STEPS, SHORT_STEP) if needs_short else STEPS


def central_difference(model, inputs, move, loss_of=transformers_loss):
    """Derivatives of the loss at 0 along move(step), of fourth order, one for each of steps_of(model)."""

    def loss(step):
        move(step)
        with torch.no_grad():
            return loss_of(model, inputs).item()

    derivatives = []
    for step in steps_of(model):
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
    steps = "2e-3, 5e-4 and 1e-4" if steps_of(model) == STEPS else "2e-3, 5e-4, 1e-4 and 1e-5"
    return {
        "scheme": f"4th-order central differences, steps {steps}, the best one",
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


def check_documents(model, inputs, tensors):
    """Each document of a packed row alone, and each padded row without its padding, gives the log-probabilities it has there."""
    difference = 0.0
    for row, spans in enumerate(document_spans(inputs)):
        for begin, end in spans:
            # A row alone whose blocks count from the first column has no position_ids.
            names = ("input_ids",) if has_blocks(model) else ("input_ids", "position_ids")
            given = {name: inputs[name][row : row + 1, begin:end] for name in names}
            with torch.no_grad():
                alone = model(**given, use_cache=False).logits.log_softmax(-1)
            targets = inputs["labels"][row, begin + 1 : end + 1]
            for column, target in enumerate(targets.tolist()):
                if target != IGNORED:
                    there = tensors["out.per_token_logps"][row, begin + column]
                    difference = max(difference, (alone[0, column, target] - there).abs().item())
    if not difference <= 1e-13:
        raise CheckError(f"documents on their own differ by {difference}")
    return difference


def check_recurrence(model, inputs, tensors):
    """A loop over tokens gives what transformers' blocks do, and gates forget and write neither all nor nothing."""
    with token_by_token(model) as gates:
        others = evaluate(model, inputs)[1]
    ours, theirs = gradients_of(others), gradients_of(tensors)
    error = worst(relative_difference(ours[name], theirs[name]) for name in theirs)
    loss_error = (others["out.loss"] - tensors["out.loss"]).abs().item()
    if not (error <= 1e-12 and loss_error <= 1e-14 * max(1.0, tensors["out.loss"].item())):
        raise CheckError(f"token by token the loss is {loss_error} off, a gradient {error}")
    quantiles = {name: torch.cat(values).quantile(torch.tensor([0.05, 0.5, 0.95])).tolist() for name, values in gates.items()}
    steps = math.inf if hasattr(recurrences(model.model)[0], "D") else 0.99  # of a state space, which may be long
    if not (quantiles["decay"][2] > 0.9 and quantiles["decay"][0] < 0.9 and 0.01 < quantiles["beta"][0] < quantiles["beta"][2] < steps):
        raise CheckError(f"gates are at their ends: {quantiles}")
    return {"loss_difference": loss_error, "max_relative_gradient_difference": error, "quantiles_5_50_95": quantiles}


def check_legacy_config(folder, inputs, tensors):
    """config.legacy.json is the same model, to the last bit of the loss."""
    loss = forward(load_model(folder, "config.legacy.json"), inputs).loss.item()
    difference = abs(loss - tensors["out.loss"].item())
    if difference != 0:
        raise CheckError(f"config.legacy.json changes the loss by {difference}")
    return {"loss_difference": difference}


def _gap(scores, count):
    """How far, in each row of `scores`, the last one of the first `count` is from the next; infinite if there is none."""
    ordered = scores.sort(descending=True).values
    return (ordered[..., count - 1] - ordered[..., count]).min().item() if count < ordered.shape[-1] else math.inf


def _of_groups(config, scores):
    """`scores` with -inf outside the groups chosen by their two best scores, and how far the choice of groups is from another."""
    groups, topk_groups = getattr(config, "n_group", 1), getattr(config, "topk_group", 1)
    scores = scores.unflatten(-1, (groups, -1))
    of_groups = scores.topk(2).values.sum(-1)
    kept = of_groups >= of_groups.topk(topk_groups).values[..., -1:]
    return scores.masked_fill(~kept.unsqueeze(-1), -math.inf).flatten(-2), _gap(of_groups, topk_groups)


def _gap_of_softmax(config, logits):
    """How far choices of groups, where there are, and experts are from others."""
    count = experts_per_token(config)
    if getattr(config, "n_group", 1) == 1:
        return _gap(logits, count)
    scores, gap = _of_groups(config, logits.softmax(-1))
    return min(gap, _gap(scores, count))


def _corrections(model):
    """What each layer's router adds to scores for the choice, in the order of layers."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [tensor.flatten() for name, tensor in tensors if is_correction(name)]


def _grouped_choices(config, correction, logits):
    """How far choices of groups and experts are from others, and how many tokens' differ without biases, or without groups."""
    if config.model_type == "deepseek_v4":
        own = torch.nn.functional.softplus(logits).sqrt()
    else:
        own = logits.softmax(-1) if config.model_type == "ernie4_5_moe" else logits.sigmoid()
    scores, gap = _of_groups(config, own + correction)

    def differing(others):
        chosen, other = (each.topk(config.num_experts_per_tok).indices.sort().values for each in (scores, others))
        return int((chosen != other).any(-1).sum())

    without_groups = differing(own + correction)
    return min(gap, _gap(scores, config.num_experts_per_tok)), differing(_of_groups(config, own)[0]), without_groups


class Picking(TorchFunctionMode):
    """Collects the scores [rows, queries, keys] of which indexers take the highest: all calls of topk within them."""

    def __init__(self, model):
        super().__init__()
        self.scores, self.inside = [], False
        self.hooks = []
        for name, module in model.named_modules():
            if name.endswith(".indexer"):
                self.hooks.append(module.register_forward_pre_hook(lambda *_: setattr(self, "inside", True)))
                self.hooks.append(module.register_forward_hook(lambda *_: setattr(self, "inside", False)))

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if self.inside and func is torch.Tensor.topk:
            self.scores.append(args[0])
        return func(*args, **(kwargs or {}))

    def __exit__(self, *given):
        for hook in self.hooks:
            hook.remove()
        return super().__exit__(*given)


def picks(config):
    """Whether some layer has an indexer: of DeepSeek V4 and MiniMax M3 those of one kind."""
    if config.model_type == "minimax_m3_vl_text":
        return "minimax_m3_sparse" in config.layer_types
    if config.model_type == "qwen4_exp_text":
        return "indexed_attention" in config.layer_types
    return hasattr(config, "index_topk") and (config.model_type != "deepseek_v4" or "compressed_sparse_attention" in config.layer_types)


def check_picks(model, inputs):
    """How far each real token is from another choice of tokens that it sees, and how many tokens see fewer than all up to themselves."""
    mask = inputs.get("attention_mask")
    real = (torch.ones_like(inputs["input_ids"]) if mask is None else mask) == 1
    with torch.no_grad(), Picking(model) as picking:
        if has_blocks(model):  # scores of one document after another
            for row, spans in enumerate(document_spans(inputs)):
                for begin, end in spans:
                    model(input_ids=inputs["input_ids"][row : row + 1, begin:end], use_cache=False)
        else:
            forward(model, inputs)
    gap, picked, topk = math.inf, 0, blocks_that_are_picked(model.config)
    for scores in picking.scores:
        one_by_one = scores.dim() == 1 or has_blocks(model)
        ordered = (scores.reshape(-1, scores.shape[-1]) if one_by_one else scores[real]).sort(descending=True).values
        if topk >= ordered.shape[-1]:
            continue
        chooses = ordered[:, topk] > torch.finfo(ordered.dtype).min / 2  # others see no more than they may
        picked += int(chooses.sum())
        if chooses.any():
            gap = min(gap, (ordered[chooses, topk - 1] - ordered[chooses, topk]).min().item())
    if not (picked > 0 and gap >= ROUTING_GAP):
        raise CheckError(f"{picked} choices of tokens, the nearest of them {gap} from another")
    return {"indexers": len(picking.scores), "choices": picked, "smallest_gap": gap}


def check_routing(model, inputs, tensors):
    """How far each real token is from another choice of experts, in what they are chosen by, and which experts none chose."""
    mask = inputs.get("attention_mask")
    real = (torch.ones_like(inputs["input_ids"]) if mask is None else mask).flatten() == 1
    routers = _corrections(model)
    logits = [logits[real] for logits in forward(model, inputs, output_router_logits=True).router_logits]
    settled_by = {}
    if routers:
        choices = [_grouped_choices(model.config, *pair) for pair in zip(routers, logits, strict=True)]
        gap = min(choice[0] for choice in choices)
        settled_by = {"by_biases": sum(choice[1] for choice in choices), "by_groups": sum(choice[2] for choice in choices)}
        if not (settled_by["by_biases"] > 0 and (settled_by["by_groups"] > 0 or getattr(model.config, "n_group", 1) == 1)):
            raise CheckError(f"choices of experts that would be others without biases or groups: {settled_by}")
    else:
        gap = min(_gap_of_softmax(model.config, each) for each in logits)
    if not gap >= ROUTING_GAP:
        raise CheckError(f"the last expert chosen and the first one left out are only {gap} apart")
    expert = re.compile(r"(.*\.experts\.\d+)\.(down_proj|w2)\.weight")
    unused = [match[1] for name, gradient in gradients_of(tensors).items() if not gradient.any() and (match := expert.fullmatch(name))]
    return {"smallest_gap": gap, **settled_by, "unused_experts": sorted(unused)}
