"""Golden cases of PEFT adapters: ranks and scales by pattern, saved modules, trained rows, heads and embeddings as
targets, fused maps and mixtures.

The adapter's folder is what PeftModel.save_pretrained writes, and what PeftModel.from_pretrained reads back is what
computes the case. Gradients have the names that PEFT gives the parameters in that folder.
"""

import json
import math
import re

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils import get_peft_model_state_dict

from goldens.adapter_cases import ADAPTERS
from goldens.adapter_objectives import OBJECTIVES
from goldens.checks import CheckError, check_finite_differences, check_results
from goldens.passes import ResultCheck, gradients_of, last_norm, load_model, read_tensors
from goldens.trainers import wide_backward
from goldens.versions import installed, unexpected
from goldens.writing import describe_case, save_case

VERSIONS = installed("torch", "transformers", "trl", "peft")


def with_tokens(settings, inputs):
    """`settings` with "some" replaced: tokens of the batch, and one that it does not hold."""
    tokens = inputs["input_ids"][inputs["attention_mask"] == 1]
    some = [tokens[3].item(), tokens[0].item(), tokens[-1].item()]
    some = list(dict.fromkeys(some)) + [next(token for token in range(3, 80) if token not in tokens)]
    indices = settings.get("trainable_token_indices")
    if indices == "some":
        return {**settings, "trainable_token_indices": some}
    if indices is None:
        return settings
    indices = {name: some if value == "some" else value for name, value in indices.items()}
    return {**settings, "trainable_token_indices": indices}


def named(model, tensors):
    """`tensors` by the names of the model's parameters, under those of the adapter's folder."""
    return get_peft_model_state_dict(model, state_dict=tensors, save_embedding_layers=False)


def trainable(model):
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def write_adapter(model_folder, folder, settings, generator, model_name):
    """PEFT's own folder, of trained values."""
    base = load_model(model_folder)
    config = LoraConfig(**{"r": 2, "task_type": "CAUSAL_LM", **settings})
    model = get_peft_model(base, config)
    with torch.no_grad():
        for name, parameter in sorted(trainable(model).items()):
            noise = torch.randn(parameter.shape, generator=generator)
            if "lora_" in name:
                parameter.copy_(0.3 * noise)
            else:
                parameter.add_(0.1 * noise)
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    path = folder / "adapter_config.json"
    written = json.loads(path.read_text())
    written["base_model_name_or_path"] = f"models/{model_name}"
    for key in ("target_modules", "exclude_modules", "target_parameters"):
        if isinstance(written[key], list):
            written[key] = sorted(written[key])  # sets, whose order changes from run to run
    path.write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")


def load_adapted(model_folder, folder, objective):
    base = load_model(model_folder)
    objective.prepare(base)
    model = PeftModel.from_pretrained(base, folder, is_trainable=True)
    return model.eval()


def evaluate(model, objective, inputs):
    """Everything a case holds, under the case's names."""
    captured = []
    norm = last_norm(model.get_base_model())
    hook = norm.register_forward_hook(lambda module, args, result: captured.append(result))
    model.zero_grad(set_to_none=True)
    loss = objective.loss(model, inputs)
    hook.remove()
    with wide_backward():
        loss.backward()
    tensors = {f"in.{name}": tensor for name, tensor in inputs.items()}
    tensors |= objective.outputs(model, inputs)
    tensors["out.loss"] = loss.detach().reshape(1)
    tensors["out.hidden_states"] = captured[0].detach() * inputs["attention_mask"].unsqueeze(-1)
    gradients = named(model, {name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for name, parameter in reached(model).items()})
    tensors |= {f"grad.{name}": gradient for name, gradient in gradients.items()}
    return {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}


def reached(model):
    """Those of trainable() that are not of an indexer, which runs under no_grad."""
    return {name: parameter for name, parameter in trainable(model).items() if ".indexer." not in name}


def is_of_another_layer(model, name):
    """Whether an adapter is of one that Zamba 2's block has for another layer than this one, whose module is there and never runs."""
    place = re.search(r"layers\.(\d+)\.shared_transformer\..*_adapter_list\.(\d+)\.", name)
    return place is not None and model.config.hybrid_layer_ids.index(int(place[1])) != int(place[2])


def check_file(model, tensors, folder):
    """The loaded parameters are those of the folder, and each has a gradient, but for those that no pass reaches."""
    saved = read_tensors(folder / "adapter_model.safetensors")
    saved = {name: tensor for name, tensor in saved.items() if ".base_layer.weight" not in name}
    loaded = named(model, {name: parameter.data for name, parameter in trainable(model).items()})
    gradients = gradients_of(tensors)
    if not (saved.keys() == loaded.keys() and gradients.keys() == {name for name in saved if ".indexer." not in name}):
        raise CheckError(f"the adapter's file, the model and the gradients differ: {saved.keys() ^ gradients.keys()}")
    for name, gradient in gradients.items():
        if not torch.equal(saved[name], loaded[name]):
            raise CheckError(f"{name} in memory is not that of the file")
        if gradient.shape != saved[name].shape or not gradient.isfinite().all() or bool(gradient.any()) == is_of_another_layer(model, name):
            raise CheckError(f"the gradient of {name} has another shape, is not finite, or is zero")
    return {"adapter_equals_file": True}


def make_case(root, name, adapter):
    objective = OBJECTIVES[adapter.objective]
    model_folder, target = root / "models" / adapter.model, root / "cases" / name
    folder = target / "adapter"
    generator = torch.Generator().manual_seed(adapter.seed)
    config = json.loads((model_folder / "config.json").read_text())
    inputs = objective.inputs(adapter, config["vocab_size"], generator)
    settings = with_tokens(adapter.settings, inputs)
    write_adapter(model_folder, folder, settings, generator, adapter.model)
    with ResultCheck() as results:
        model = load_adapted(model_folder, folder, objective)
        tensors = evaluate(model, objective, inputs)
    gradients = gradients_of(tensors)
    source = {
        "peer": objective.peer,
        "adapter": "PEFT get_peft_model(LoraConfig), saved by save_pretrained, loaded by PeftModel.from_pretrained",
    }
    case = {
        **describe_case(
            name,
            adapter.model,
            config["model_type"],
            objective.name,
            objective.variant,
            objective.hyperparameters(adapter),
            source,
            VERSIONS,
            finetuning="lora",
        ),
        "expected": {
            **objective.expected(inputs, tensors["out.loss"].item()),
            "grad_norm": math.sqrt(sum((gradient**2).sum().item() for gradient in gradients.values())),
        },
        "checks": {
            **check_results(results),
            **check_file(model, tensors, folder),
            "finite_difference": check_finite_differences(
                model,
                inputs,
                gradients,
                generator,
                parameters=named(model, {key: parameter.data for key, parameter in reached(model).items()}),
                loss_of=objective.loss,
            ),
        },
        "adapter": "adapter",
    }
    if objective.name == "sft" and config.get("output_router_logits"):
        labels = case["expected"]["num_valid_labels"]
        case["expected"]["cross_entropy"] = -tensors["out.per_token_logps"].sum().item() / labels
    save_case(root, case, tensors)
    print(f"  {len(gradients)} gradients")


def make(root, names):
    """DIR/cases/<model>-lora-<what>, on models that are in DIR; of the models `names`, or all."""
    if unexpected(*VERSIONS):
        raise CheckError(unexpected(*VERSIONS))
    for name, adapter in ADAPTERS.items():
        if not names or adapter.model in names:
            make_case(root, name, adapter)
