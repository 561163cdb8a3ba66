"""Forward and backward passes of transformers' models, in float64 throughout.

transformers computes norms, rotary tables, softmax and router probabilities in float32 whatever the model's dtype is.
Here its code runs unchanged, but every request for float32 is answered with float64.
"""

import math
import re

import torch
import transformers
from safetensors import safe_open
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import masking_utils

from goldens.blocks import has_blocks, keep_blocks_apart
from goldens.recurrence import has_recurrence, keep_documents_apart

IGNORED = -100  # the label of a token that is not scored
MIXTURES = (
    *("deepseek_v3", "deepseek_v32", "glm_moe_dsa", "ernie4_5_moe", "gemma4_text", "glm4_moe", "gpt_oss", "granitemoe", "granitemoehybrid", "granitemoeshared", "lfm2_moe"),
    *("deepseek_v4", "glm5_next_text", "hy_v4", "kimi_linear", "minimax_m2", "minimax_m3_vl_text", "mistral_large4_text", "mixtral", "nemotron_h", "qwen2_moe", "qwen3_5_moe_text", "qwen3_moe", "qwen3_next"),
    *("qwen4_exp_text", "muse_spark_text", "glm4_moe_lite", "mistral4"),
)


class InFloat64(TorchFunctionMode):
    """Answers each request for float32 with float64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        # A pass makes a million calls, of which few have a dtype.
        for value in args:
            if value is torch.float32:
                args = [torch.float64 if value is torch.float32 else value for value in args]
                break
        if not kwargs:
            return func(*args)
        return func(*args, **{key: torch.float64 if value is torch.float32 else value for key, value in kwargs.items()})


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
    if config.model_type in MIXTURES and experts_per_token(config):
        options["experts_implementation"] = "eager"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, config=config, **options)
    if has_recurrence(model):
        keep_documents_apart(model.model)
    if has_blocks(model):
        keep_blocks_apart(model.model)
    if config.model_type == "deepseek_v4":
        model.config.num_experts = model.config.n_routed_experts  # TRL 1.16.0 asks for it by this name
    if config.model_type in ("gpt_oss", "granitemoehybrid"):
        model.model.register_forward_pre_hook(with_documents, with_kwargs=True)
    return model.eval()


def with_documents(model, args, kwargs):
    """GPT-OSS's and Granite 4's masks with the documents of packed rows kept apart, as in other models.

    Those that they make don't know position_ids (transformers 5.23, models/gpt_oss/modeling_gpt_oss.py), so without
    flash attention their documents see each other.
    """
    if kwargs.get("position_ids") is None or kwargs.get("attention_mask") is not None:
        return args, kwargs
    given = {
        "config": model.config,
        "inputs_embeds": model.embed_tokens(kwargs["input_ids"]),
        "attention_mask": None,
        "past_key_values": None,
        "position_ids": kwargs["position_ids"],
    }
    masks = {
        "full_attention": masking_utils.create_causal_mask(**given),
    }
    if has_recurrence(model):
        masks["linear_attention"] = None
    else:
        masks["sliding_attention"] = masking_utils.create_sliding_window_causal_mask(**given)
    return args, {**kwargs, "attention_mask": masks}


# Of a mixture's tensors.
GRANITE_NAMES = {
    "block_sparse_moe.experts.gate_up_proj": "block_sparse_moe.input_linear.weight",
    "block_sparse_moe.experts.down_proj": "block_sparse_moe.output_linear.weight",
    "block_sparse_moe.router.weight": "block_sparse_moe.router.layer.weight",
}


# Of Hunyuan 4's modules: transformers writes an MLP's gate as it does attention's.
HUNYUAN_NAMES = {
    ".attn_hc.": ".hc_pre.hc_attn_layer.hc_",
    ".ffn_hc.": ".hc_pre.hc_mlp_layer.hc_",
    ".hc_head.hc_": ".hc_pre.hc_head.hc_head_",
    ".sinks": ".learnable_sink_param",
    ".gate_proj.": ".linear_gate.",
}


# Of GLM-5.3's modules.
GLM5_NEXT_NAMES = {".forget_gate.": ".", ".attn_hc.": ".hc_attn_", ".ffn_hc.": ".hc_ffn_"}


# Of DeepSeek V4's modules, in this order.
DEEPSEEK_V4_NAMES = {
    ".self_attn.compressor.indexer.scorer.weights_proj.": ".attn.indexer.weights_proj.",
    ".self_attn.compressor.indexer.q_b_proj.": ".attn.indexer.wq_b.",
    ".self_attn.compressor.indexer.": ".attn.indexer.compressor.",
    ".self_attn.": ".attn.",
    ".mlp.shared_experts.gate_proj.": ".ffn.shared_experts.w1.",
    ".mlp.shared_experts.up_proj.": ".ffn.shared_experts.w3.",
    ".mlp.shared_experts.down_proj.": ".ffn.shared_experts.w2.",
    ".mlp.": ".ffn.",
    ".input_layernorm.": ".attn_norm.",
    ".post_attention_layernorm.": ".ffn_norm.",
    ".attn_hc.": ".hc_attn_",
    ".ffn_hc.": ".hc_ffn_",
    ".sinks": ".attn_sink",
    ".position_bias": ".ape",
    ".q_a_proj.": ".wq_a.",
    ".q_b_proj.": ".wq_b.",
    ".kv_proj.": ".wkv.",
    ".gate_proj.": ".wgate.",
    ".o_a_proj.": ".wo_a.",
    ".o_b_proj.": ".wo_b.",
    ".q_a_norm.": ".q_norm.",
    ".kv_norm.": ".norm.",
    ".gate.e_score_correction_bias": ".gate.bias",
}


# Of Mistral Large 4's modules, in this order: an MLP's first, and what is outside of layers last.
MISTRAL_LARGE4_NAMES = {
    ".mlp.gate_proj.": ".mlp.w1.",
    ".mlp.up_proj.": ".mlp.w3.",
    ".mlp.down_proj.": ".mlp.w2.",
    ".feed_forward.gate_proj.": ".mlp.w1.",
    ".feed_forward.up_proj.": ".mlp.w3.",
    ".feed_forward.down_proj.": ".mlp.w2.",
    ".shared_experts.gate_proj.": ".shared_experts.w1.",
    ".shared_experts.up_proj.": ".shared_experts.w3.",
    ".shared_experts.down_proj.": ".shared_experts.w2.",
    ".mlp.shared_experts.": ".shared_experts.",
    ".mlp.experts.": ".experts.",
    ".mlp.gate.": ".gate.",
    ".mlp.": ".feed_forward.",
    ".self_attn.": ".attention.",
    ".q_proj.": ".wq.",
    ".kv_a_proj_with_mqa.": ".wkv_a_with_mqa.",
    ".kv_b_proj.": ".wkv_b.",
    ".o_proj.": ".wo.",
    ".input_layernorm.": ".attention_norm.",
    ".post_attention_layernorm.": ".ffn_norm.",
    ".kv_a_layernorm.": ".kv_a_norm.",
    ".softmax_scaling.scale": ".ssmax_scaling.s",
    ".softmax_scaling.bias": ".ssmax_scaling.b",
    "model.rotary_emb.alpha": "lerope.alpha",
    "model.embed_tokens.": "tok_embeddings.",
    "model.layers.": "layers.",
    "model.norm.": "norm.",
    "lm_head.": "output.",
}


def mistral_large4_name(name):
    """What files call a tensor of Mistral Large 4: transformers writes a text model alone under some of these names."""
    for in_transformers, in_file in MISTRAL_LARGE4_NAMES.items():
        name = name.replace(in_transformers, in_file)
    return name


def deepseek_v4_name(name):
    """What files call a tensor of DeepSeek V4."""
    if name.startswith("lm_head."):
        return name.removeprefix("lm_")
    if name.startswith("model.layers."):
        for in_transformers, in_file in DEEPSEEK_V4_NAMES.items():
            name = name.replace(in_transformers, in_file)
    return name


def as_in_file(tensors, model_type=None):
    """Views of `tensors` under the names of the weight file of a model of `model_type`.

    transformers 5 holds all experts of a layer in two tensors; files hold three matrices for each expert, under names of
    its own in Mixtral's, MiniMax M2's, Kimi Linear's and LFM2's. Kimi Linear's and GLM-5.3's files also hold the three parts of a convolution, and
    what transformers has in a module of the forget gate. GPT-OSS's, Granite's, Gemma 4's and Hunyuan 4's files hold what transformers does, as do those that it writes of MiniMax M3's text model.
    Nemotron-H's call the decoder backbone. A tensor of None is left out.
    """
    as_mixtral = model_type in ("deepseek_v4", "kimi_linear", "minimax_m2", "mistral_large4_text", "mixtral")
    gate_name, up_name, down_name = ("w1", "w3", "w2") if as_mixtral or model_type == "lfm2_moe" else ("gate_proj", "up_proj", "down_proj")
    result = {}
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if model_type == "ernie4_5_moe":
            name = name.replace(".gate.moe_statics.", ".moe_statics.")
        if (model_type or "").startswith("granitemoe"):
            for in_transformers, in_file in GRANITE_NAMES.items():
                name = name.replace(in_transformers, in_file)
        if model_type == "hy_v4":
            for in_transformers, in_file in HUNYUAN_NAMES.items():
                name = name.replace(in_transformers, in_file)
        if model_type == "lfm3":
            name = name.replace(".self_attn.g_proj.", ".self_attn.gate_proj.")
        if model_type == "glm5_next_text":
            for in_transformers, in_file in GLM5_NEXT_NAMES.items():
                name = name.replace(in_transformers, in_file)
        if model_type == "deepseek_v4":
            name = deepseek_v4_name(name)
        if model_type == "mistral_large4_text":
            name = mistral_large4_name(name)
        stem, _, last = name.rpartition(".")
        if as_mixtral and model_type not in ("deepseek_v4", "mistral_large4_text"):
            name, stem = (text.replace(".mlp.", ".block_sparse_moe.") for text in (name, stem))
        if model_type in ("glm5_next_text", "kimi_linear"):
            name = name.replace(".forget_gate.", ".")
            if name.endswith(".conv1d.weight"):
                result |= {name.replace("conv1d", f"{part}_conv1d"): rows for part, rows in zip("qkv", tensor.chunk(3), strict=True)}
                continue
        if model_type == "nemotron_h":
            name, stem = (re.sub("^model", "backbone", text) for text in (name, stem))
        if not stem.endswith(".experts") or model_type in ("gpt_oss", "gemma4_text", "hy_v4", "minimax_m3_vl_text", "muse_spark_text", "mistral4"):
            result[name] = tensor
            continue
        for expert, weights in enumerate(tensor):
            if last == "gate_up_proj":
                gate, up = weights.chunk(2)
                result[f"{stem}.{expert}.{gate_name}.weight"] = gate
                result[f"{stem}.{expert}.{up_name}.weight"] = up
            else:
                result[f"{stem}.{expert}.{down_name if last == 'down_proj' else last}.weight"] = weights
    return result


def experts_per_token(config):
    """How many experts a token has, None without experts."""
    if getattr(config, "num_local_experts", None) == 0:
        return None
    return getattr(config, "num_experts_per_tok", None) or getattr(config, "top_k_experts", None)


def parameters_of(model):
    """The model's own parameters under the names of the weight file; what is written there is written in the model."""
    trained = {name: parameter.data for name, parameter in model.named_parameters() if not is_untrained(name)}
    return as_in_file(trained, model.config.model_type)


def is_correction(name):
    """Whether a tensor is what a router adds to scores for the choice alone: a buffer, or ERNIE's parameter that is not trained."""
    return name.endswith(("e_score_correction_bias", "expert_bias"))


def is_untrained(name):
    """Whether a tensor has no gradient in transformers: a correction, or a parameter of an indexer, which runs under no_grad."""
    return is_correction(name) or ".indexer." in name


def fixed_tensors(model):
    """What the weight file holds besides trained parameters: biases by which routers choose, indexers, and what Gemma 4 multiplies layers by."""
    in_file = model.state_dict().keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in in_file}
    untrained = {name: parameter.data for name, parameter in model.named_parameters() if is_untrained(name)}
    return as_in_file(buffers | untrained, model.config.model_type)


def read_tensors(path):
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def with_whole_tables(tensors):
    """`tensors` of a weight file with Qwen4-Exp's tables of n-grams, which it holds in parts, whole as gradients have them."""
    result, parts = {}, {}
    for name, tensor in tensors.items():
        stem, is_part, rest = name.partition(".shard_")
        if is_part:
            parts.setdefault(f"{stem}.weight", {})[int(rest.removesuffix(".weight"))] = tensor
        else:
            result[name] = tensor
    return result | {name: torch.cat([rows for _, rows in sorted(of_table.items())]) for name, of_table in parts.items()}


def forward(model, inputs, **options):
    """All of `inputs` goes to the model, as trainers call it: without a cache, which packed rows would not survive."""
    return model(**inputs, use_cache=False, **options)


def last_norm(model):
    names = ("norm", "norm_f", "embedding_norm", "final_layernorm", "hyper_connection_mixer")
    return next(getattr(model.model, name) for name in names if hasattr(model.model, name))


def evaluate(model, inputs):
    """One forward and backward pass: transformers' outputs and everything a case holds, under the case's names."""
    captured = {}
    hook = last_norm(model).register_forward_hook(lambda module, args, result: captured.update(hidden=result))
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
        gradients = as_in_file({name: parameter.grad for name, parameter in model.named_parameters()}, model.config.model_type)
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
