"""What a step can't be exact under, refused by name with the reason and the cure, before anything is computed.

backward() and the engine's lane of patch() use these: check_class and check_state for the model, check_autocast for the call.
"""

import difflib
import sys

import torch

from .._hooks import has_hooks_of_all
from .._library import InputError
from .attention import check_attention
from .decoder import model_class, text_class_name, text_config, text_modules
from .families import CLASSES, FAMILIES, WHOLE
from .state import check_attributes, check_functions, check_own_forward, module_settings, strange_loss

MODULES = ("transformers.", "torch.nn.", "peft.", "streambp_bench.")  # whose modules' forward is known
FORWARDS = ("transformers.", "peft.", "streambp_bench.", "liger_kernel.")
# TRL's GRPOTrainer puts these on lm_head and the embedding for cast_lm_head_to_fp32: what the engine does where it finds their weight float32.
CASTS = ("cast_forward_to_fp32", "cast_outputs_to_original_dtype")
PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
GPT_OSS_GATE = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}  # where its config says nothing
WRAPPERS = {
    "DistributedDataParallel": "its hooks would not see gradients that are not autograd's",
    "FullyShardedDataParallel": "its parameters are sharded",
    "DeepSpeedEngine": "it reduces gradients in its own backward",
    "DataParallel": "it runs copies of the model",
}


def check_class(base):
    """Raises InputError unless `base` is an object of one of transformers' own classes that are known."""
    kind = type(base) if type(base).__name__ in WRAPPERS else model_class(base)
    name = f"{kind.__module__}.{kind.__name__}"
    if kind.__name__ in WRAPPERS:
        raise InputError(f"{kind.__name__}: {WRAPPERS[kind.__name__]}; wrap streambp_bench.patch(model) in it and call loss.backward(), or pass "
                         "the model inside it")
    if not kind.__module__.startswith("transformers.models.") or kind.__name__ not in (*CLASSES, *WHOLE):
        near = difflib.get_close_matches(kind.__name__, (*CLASSES, *WHOLE), n=3)
        raise InputError(f"{name}: not one of the classes that are known to the engine, which are transformers' of {len(FAMILIES)} families (_live_model/families.py of "
                         f"the package){'; nearest: ' + ', '.join(near) if near else ''}; patch(model, lane=\"module\") streams a causal language model by its own code")
    text_class_name(base)


def check_layers(base):
    """Raises InputError for a model whose layers read more than the layer below gives: they are no nodes of their own."""
    if text_config(base).model_type == "zamba2":
        raise InputError("Zamba 2: its layers take the embedding and a block that several of them share, which streambp_bench.patch() does not hand them; "
                         "streambp_bench.backward(model, ...) has the same gradients")
    if text_config(base).model_type == "mistral_large4_text":
        raise InputError("Mistral Large 4: its layers rotate by trained frequencies that they have in common, which streambp_bench.patch() does not hand them; "
                         "streambp_bench.backward(model, ...) has the same gradients")
    if text_config(base).model_type == "gemma4_text":
        raise InputError("Gemma 4: its layers take keys, values and embeddings from elsewhere, which streambp_bench.patch() does not hand them; "
                         "streambp_bench.backward(model, ...) has the same gradients")


def check_state(base, patched=False):
    """Raises InputError for what is set on a transformers model that the engine would pass over: see the functions below, one each.

    patched: for patch(), whose gradients flow through torch's autograd: sharded parameters and hooks on parameters are then welcome.
    """
    modules = text_modules(base)
    raise_together(lambda: check_checkpointing(modules), lambda: check_config(base), lambda: check_dropout(base, modules), lambda: check_modules(base, modules),
                   lambda: check_own_forward(base), lambda: check_functions(modules), lambda: check_attention(base), lambda: check_hooks(modules),
                   lambda: check_parameters(base, patched), lambda: check_ngrams(base, modules),
                   lambda: check_attributes(base, modules, module_settings(base, modules)))


def check_loss(base, objective):
    """Raises InputError where `objective` stands for the loss of the model's forward, "sft", and that is one of the model's own."""
    found = strange_loss(base) if objective == "sft" and hasattr(base, "lm_head") else None
    if found:
        raise InputError(f"{found}, which would not be called; set it to transformers' own, ForCausalLMLoss, or patch the model, whose own code calls it")


def raise_together(*checks):
    """Calls all `checks`, and raises one InputError for those of them that do."""
    problems = []
    for check in checks:
        try:
            check()
        except InputError as error:
            problems.append(str(error))
    if len(problems) == 1:
        raise InputError(problems[0])
    if problems:
        raise InputError(f"{len(problems)} obstacles: " + "; ".join(f"({i}) {problem}" for i, problem in enumerate(problems, 1)))


def check_ngrams(base, modules):
    """Raises InputError where Qwen4-Exp's n-grams are hashed otherwise than its config says: the engine computes what these buffers hold."""
    config = text_config(base)
    for name, module in modules:
        if not hasattr(module, "layer_multipliers"):
            continue
        made = sys.modules[type(module).__module__]._build_layer_multipliers(config.vocab_size, config.ngram_size, module.ple_layer_index, config.seed)
        for buffer, expected in (("layer_multipliers", made.tolist()), ("ngram_heads_vocab_sizes", module.head_vocab_sizes), ("ngram_heads_offsets", module.head_offsets)):
            if getattr(module, buffer).tolist() != list(expected):
                raise InputError(f"{name}.{buffer} is not what the config says of n-grams, which counts here; load the model anew")


def check_checkpointing(modules):
    if any(getattr(module, "gradient_checkpointing", False) for _, module in modules):
        raise InputError("gradient_checkpointing is on: layers would be computed twice over; call model.gradient_checkpointing_disable(), or "
                         "set gradient_checkpointing=False in the trainer's arguments")


def check_config(base):
    for key in ("output_attentions", "output_hidden_states"):
        if getattr(base.config, key, False) or getattr(text_config(base), key, False):
            raise InputError(f"{key} is set in the model's config: streamed layers keep neither; set model.config.{key} = False")
    if getattr(base, "is_quantized", False) or getattr(base.config, "quantization_config", None) is not None:
        raise InputError("the model is quantized: the engine can't read its weights as they are; load it in float32 or bfloat16 (MXFP4 and FP8 with "
                         "quantization_config=Mxfp4Config(dequantize=True) or FineGrainedFP8Config(dequantize=True))")


def check_dropout(base, modules):
    if not base.training:
        return
    for name, module in modules:
        for key in ("attention_dropout", "residual_dropout"):
            if (getattr(module, key, 0.0) or 0.0) > 0:
                raise InputError(f"{name}.{key} is {getattr(module, key)} in training mode, expected 0: a chunk that runs again "
                                 "would draw another mask; set it to 0 in the config before the model is made, or call model.eval()")
        # LoRA's own have a message of theirs.
        if isinstance(module, torch.nn.Dropout) and module.p > 0 and module.training and "lora_dropout" not in name:
            raise InputError(f"{name}: dropout {module.p} in training mode, expected 0: a chunk that runs again would draw another mask; "
                             "set its p to 0, or call model.eval()")


def check_gate(name, experts, config):
    """Early versions of transformers 5 have constants of their own in GPT-OSS's gate, whatever the config says."""
    for key, own in (("swiglu_alpha", "alpha"), ("swiglu_limit", "limit")):
        expected = getattr(config, key, GPT_OSS_GATE[key])
        if getattr(experts, own) != expected:
            raise InputError(f"{name}.{own} is {getattr(experts, own)}, expected {expected}, the config's {key}: this transformers may have it "
                             "as a constant; a newer one reads the config")


def check_norm_groups(name, norm, config):
    """Mamba-2's gated norm is one of each group of channels; those of transformers 5.20's Granite and Bamba are one of all, whatever the config says."""
    groups = next((getattr(config, key) for key in ("mamba_n_groups", "mamba_ngroups", "n_groups") if hasattr(config, key)), 1)
    channels = norm.weight.numel()
    if getattr(norm, "group_size", channels // getattr(norm, "n_groups", 1)) != channels // groups:
        raise InputError(f"{name}: {type(norm).__name__} takes {channels} channels as one, expected groups of {channels // groups}, the config's {groups}: "
                         "this transformers has it so; a newer one reads the config")


def check_modules(base, modules):
    """Whatever computes something else than its class says: offloaded by accelerate, replaced, or with a forward of its own."""
    for name, module in modules:
        if hasattr(module, "_hf_hook"):
            raise InputError(f"{name or 'model'}: accelerate moves its weights (device_map or cpu_offload), which the engine can't follow; load the "
                             "model on one device")
        kind = model_class(module)
        if not kind.__module__.startswith(MODULES):
            raise InputError(f"{name}: {kind.__module__}.{kind.__name__} is none of transformers' or PEFT's modules; its mathematics is not "
                             "known to streambp")
        if kind.__name__ == "GptOssExperts":
            check_gate(name, module, text_config(base))
        if kind.__name__.endswith("RMSNormGated"):
            check_norm_groups(name, module, text_config(base))
        forward = module.__dict__.get("forward")
        source = getattr(forward, "__module__", None) or ""
        if forward is not None and module is not base and not source.startswith(FORWARDS) and not is_cast(forward):
            raise InputError(f"{name}: has a forward of its own ({source}.{getattr(forward, '__qualname__', forward)}), which would not run; "
                             "remove it")


def check_hooks(modules):
    """Hooks of the model and of the modules in it, and of all modules there are: backward() calls none of them."""
    if has_hooks_of_all():
        raise InputError("a hook of all modules is there (torch.nn.modules.module.register_module_...), which would not be called; remove it (handle.remove())")
    for name, module in modules:
        for kind in ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"):
            for hook in getattr(module, kind, {}).values():
                if not is_harmless(hook):
                    word = kind.strip("_").removesuffix("s").replace("_", " ")
                    raise InputError(f"{name or 'model'}: has a {word} ({getattr(hook, '__qualname__', type(hook).__qualname__)}), which would not be "
                                     "called; remove it (handle.remove())")


def is_harmless(hook):
    """Hooks that a step may pass over: those that ask for gradients of inputs (for checkpointing), those by which transformers collects
    outputs of layers, those of torch's sharding, and TRL's cast."""
    if getattr(hook, "__name__", "") == "make_inputs_require_grads" or is_cast(hook):
        return True
    module = getattr(hook, "__module__", None) or type(hook).__module__
    return module.startswith(("transformers.utils.output_capturing", "torch.distributed."))


def is_cast(function):
    """Whether it is one of TRL's CASTS."""
    return getattr(function, "__name__", "") in CASTS and (getattr(function, "__module__", None) or "").startswith("trl.")


def check_parameters(base, patched):
    for name, parameter in base.named_parameters():
        if parameter.is_meta:
            raise InputError(f"{name} is on the meta device and has no values; load the model, or ask streambp_bench.predict() what it would take")
        kind = type(parameter.data)
        if kind not in PLAIN_TENSORS and kind.__name__ != "DTensor":
            raise InputError(f"{name} is a {kind.__module__}.{kind.__name__}, expected a plain tensor: what it computes is not known to streambp; "
                             "patch(model, lane=\"module\") streams the layers' own code")
        if patched:
            continue
        if type(parameter.data).__name__ == "DTensor" or hasattr(parameter, "ds_id"):
            kind = "DTensor" if not hasattr(parameter, "ds_id") else "DeepSpeed ZeRO-3"
            raise InputError(f"{name} is sharded ({kind}): streambp_bench.backward() needs whole tensors; use streambp_bench.patch(model) before "
                             "fully_shard and loss.backward()")
        if getattr(parameter, "_backward_hooks", None) or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise InputError(f"{name} has a hook on its gradient, which streambp_bench.backward() would not call; remove it, or use "
                             "streambp_bench.patch(model) and loss.backward()")


def check_autocast(dtype, device):
    """Raises InputError where autocast is on with another dtype than the model's ("float32", ...), and under inference_mode."""
    if torch.is_inference_mode_enabled():
        raise InputError("inference_mode is on: gradients made in it could not be used; leave it")
    if not torch.is_autocast_enabled(device.type):
        return
    cast = str(torch.get_autocast_dtype(device.type)).removeprefix("torch.")
    if cast != dtype:
        raise InputError(f"autocast to {cast} is on and the model is {dtype}: products would run in another dtype than they say; leave autocast "
                         "(bf16=False, fp16=False in a trainer's arguments) to train in the weights' own dtype")
