"""Forward and backward passes of transformers' models, in float64 throughout.

transformers computes norms, rotary tables, softmax and router probabilities in float32 whatever the model's dtype is.
Here its code runs unchanged, but every request for float32 is answered with float64.
"""

import math

import torch
import transformers
from safetensors import safe_open
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

IGNORED = -100  # the label of a token that is not scored


class InFloat64(TorchFunctionMode):
    """Answers each request for float32 with float64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        args = [torch.float64 if value is torch.float32 else value for value in args]
        kwargs = {
            key: torch.float64 if value is torch.float32 else value for key, value in (kwargs or {}).items()
        }
        return func(*args, **kwargs)


class ResultCheck(TorchDispatchMode):
    """Counts the floating results of ATen operations, and those that are not float64."""

    def __init__(self):
        super().__init__()
        self.all = 0
        self.below = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                self.all += 1
                self.below += value.dtype != torch.float64
        return result


def load_model(folder, config_name="config.json"):
    """The model in `folder`, in float64, with plain attention and a plain loop over experts."""
    config = transformers.AutoConfig.from_pretrained(folder / config_name)
    options = {"dtype": torch.float64, "attn_implementation": "eager"}
    if config.model_type == "qwen3_moe":
        options["experts_implementation"] = "eager"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, config=config, **options)
    return model.eval()


def as_in_file(tensors):
    """Views of `tensors` under the names of the weight file.

    transformers 5 holds all experts of a layer in two tensors; files hold three matrices for each expert.
    """
    result = {}
    for name, tensor in tensors.items():
        stem, _, last = name.rpartition(".")
        if not stem.endswith("mlp.experts"):
            result[name] = tensor
            continue
        for expert, weights in enumerate(tensor):
            if last == "gate_up_proj":
                gate, up = weights.chunk(2)
                result[f"{stem}.{expert}.gate_proj.weight"] = gate
                result[f"{stem}.{expert}.up_proj.weight"] = up
            else:
                result[f"{stem}.{expert}.{last}.weight"] = weights
    return result


def parameters_of(model):
    """The model's own parameters under the names of the weight file; what is written there is written in the model."""
    return as_in_file({name: parameter.data for name, parameter in model.named_parameters()})


def read_tensors(path):
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def forward(model, inputs, **options):
    """All of `inputs` goes to the model, as trainers call it: without a cache, which packed rows would not survive."""
    return model(**inputs, use_cache=False, **options)


def evaluate(model, inputs):
    """One forward and backward pass: transformers' outputs and everything a case holds, under the case's names."""
    captured = {}
    hook = model.model.norm.register_forward_hook(lambda module, args, result: captured.update(hidden=result))
    model.zero_grad(set_to_none=True)
    outputs = forward(model, inputs)
    hook.remove()
    outputs.loss.backward()
    with torch.no_grad():
        targets = inputs["labels"][:, 1:]
        log_probabilities = outputs.logits[:, :-1].log_softmax(-1)
        log_probabilities = log_probabilities.gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        tensors = {f"in.{name}": tensor for name, tensor in inputs.items()}
        tensors["out.loss"] = outputs.loss.reshape(1)
        real = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
        tensors["out.hidden_states"] = captured["hidden"] * real.unsqueeze(-1)
        tensors["out.per_token_logps"] = torch.where(targets != IGNORED, log_probabilities, 0.0)
        gradients = as_in_file({name: parameter.grad for name, parameter in model.named_parameters()})
        tensors |= {f"grad.{name}": gradient for name, gradient in gradients.items()}
    return outputs, {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}


def gradients_of(tensors):
    return {name[len("grad.") :]: tensor for name, tensor in tensors.items() if name.startswith("grad.")}


def relative_difference(ours, theirs):
    """The largest difference over the largest entry; NaN stays NaN."""
    scale = theirs.abs().max().item()
    difference = (ours - theirs).abs().max().item()
    return difference / scale if scale > 0 else difference


def worst(errors):
    """The largest, or NaN if there is one."""
    return max(errors, key=lambda error: math.inf if math.isnan(error) else error)
