"""Replayed routing: cases whose experts are given, as an inference engine reports them, in place of those that routers choose.

transformers' routers run as they are, but that their topk over the experts gives the indices of the case, with the router's own values there: what
router replay is (Ma et al. 2025, arXiv 2510.11370). Rows of nothing but -1 keep the router's own choice; experts of padding are never read.
"""

import json

import torch
from torch.overrides import TorchFunctionMode

from goldens.checks import CheckError, check_finite_differences, check_results, check_weights
from goldens.models import MODELS
from goldens.passes import ResultCheck, evaluate, experts_per_token, gradients_of, load_model, read_tensors, relative_difference, worst
from goldens.sft_case import describe, expected_numbers
from goldens.specs import BATCHES
from goldens.writing import make_inputs, save_case, write_model

# Of a model: the batch, whether all layers are listed or those with experts alone, and whether some rows are left to the router.
CASES = {
    "qwen3-moe-aux": ("b3_left", True, False),  # with the routers' loss, which is of the most probable experts all the same
    "deepseek-v3": ("b3_left", False, True),
    "gpt-oss": ("b3_right", True, True),
    "gemma4-moe": ("b1", True, False),
    "ernie4-5-moe": ("b3_right", False, False),
    "granite-moe": ("b3_left", True, True),
    "step3p7": ("b3_left", True, True),
    "glm4-moe-lite": ("b3_left", False, True),
    "mistral4": ("b3_right", True, True),
    "muse-spark": ("b3_left", True, True),
    "minimax-m3-aux": ("b3_right", True, True),
    "qwen4-exp-recurrent": ("b3_left", True, True),
}
ROUTERS = ("TopKRouter", "TopkRouter", "Router", "Gating", "GraniteMoeTopKGating")


class Replay(TorchFunctionMode):
    """While it is on, the routers of `model` take their experts from `indices` [B T, layers with experts, k]."""

    def __init__(self, model, indices):
        super().__init__()
        self.indices, self.layer, self.choosers, self.hooks, self.moved = indices, None, [], [], 0
        self.experts = next(getattr(model.config, name) for name in ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts") if getattr(model.config, name, None))
        for layer in model.model.layers:
            router = next((module for name, module in layer.named_modules() if name.rpartition(".")[2] in ("gate", "router") and has_experts(module)), None)
            if router is None:
                continue
            # DeepSeek V3's mixture chooses, its router gives logits alone.
            self.choosers.append(layer.mlp if hasattr(getattr(layer, "mlp", None), "route_tokens_to_experts") else router)
        if len(self.choosers) != indices.shape[1]:
            raise CheckError(f"{len(self.choosers)} routers, expected {indices.shape[1]}")

    def __enter__(self):
        for index, module in enumerate(self.choosers):
            self.hooks.append(module.register_forward_pre_hook(lambda *_, index=index: setattr(self, "layer", index)))
            self.hooks.append(module.register_forward_hook(lambda *_: setattr(self, "layer", None)))
        return super().__enter__()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if self.layer is None or func not in (torch.topk, torch.Tensor.topk) or args[0].shape[-1] != self.experts:
            return result
        given = self.indices[:, self.layer]
        if result[1].shape[-1] != given.shape[-1]:
            return result
        with torch._C.DisableTorchFunctionSubclass():
            indices = torch.where(given < 0, result[1].view(given.shape), given).view(result[1].shape)
            self.moved += int((indices.sort(-1).values != result[1].sort(-1).values).any(-1).sum())
            return type(result)((args[0].gather(-1, indices), indices))

    def __exit__(self, *given):
        for hook in self.hooks:
            hook.remove()
        return super().__exit__(*given)


def has_experts(module):
    """Whether a module called gate or router is of a mixture, and no gate of an MLP."""
    return type(module).__name__.endswith(ROUTERS)


def is_sparse(model):
    return [any(name.rpartition(".")[2] in ("gate", "router") and has_experts(module) for name, module in layer.named_modules()) for layer in model.model.layers]


def make_case(root, model_name, seed):
    batch_name, of_all, leaves_some = CASES[model_name]
    spec = MODELS[model_name]
    folder = root / "models" / model_name
    if not folder.exists():
        write_model(folder, spec)
    name = f"{model_name}-sft-replayed"
    generator = torch.Generator().manual_seed(seed)
    inputs = make_inputs(BATCHES[batch_name], json.loads((folder / "config.json").read_text())["vocab_size"], generator)
    model = load_model(folder)
    sparse = is_sparse(model)
    mode_experts = Replay(model, torch.zeros(1, sum(sparse), 1, dtype=torch.int64)).experts
    chosen, (rows, columns) = experts_per_token(model.config), inputs["input_ids"].shape
    scores = torch.rand(rows * columns, sum(sparse), mode_experts, generator=generator)
    indices = scores.topk(chosen).indices
    if leaves_some:  # the last token of a row has been sampled and never run
        last = inputs["attention_mask"].cumsum(-1).argmax(-1)
        indices.view(rows, columns, *indices.shape[1:])[torch.arange(rows), last] = -1
    with ResultCheck() as results, Replay(model, indices) as replay:
        outputs, tensors = evaluate(model, inputs)
        moved = replay.moved
    own = evaluate(model, inputs)[1]
    case = describe(name, model_name, spec.model_type, "replayed", padding=BATCHES[batch_name].padding, position_ids="arange")
    case["source"]["router_indices"] = "topk of transformers' routers gives the case's indices"
    with Replay(model, indices):
        case["expected"] = expected_numbers(model, inputs, outputs, tensors)
        differences = check_finite_differences(model, inputs, gradients_of(tensors), generator)
    changed = worst([relative_difference(gradient, gradients_of(own)[key]) for key, gradient in gradients_of(tensors).items()])
    if not (moved > rows * columns and changed > 1e-2):
        raise CheckError(f"{name}: {moved} choices are others than the routers' own, gradients change by {changed}")
    case["checks"] = {
        **check_results(results),
        **check_weights(model, tensors, read_tensors(folder / "model.safetensors")),
        "finite_difference": differences,
        "replay": {"choices_of_others_than_the_router": moved, "largest_change_of_a_gradient": changed},
    }
    # In the file: of every layer, or of those with experts; of padding what no token can have.
    written = torch.full((rows, columns, len(sparse) if of_all else sum(sparse), chosen), -7)
    written[:, :, torch.tensor(sparse) if of_all else slice(None)] = indices.view(rows, columns, sum(sparse), chosen)
    written[inputs["attention_mask"] == 0] = 99
    save_case(root, case, {**tensors, "in.router_indices": written})


def make(root, names):
    """DIR/cases/<model>-sft-replayed for CASES, or those of the models `names`."""
    for i, model_name in enumerate(CASES):
        if not names or model_name in names:
            make_case(root, model_name, 130_000 + i)
