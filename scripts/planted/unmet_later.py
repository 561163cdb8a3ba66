"""A second round of mistakes that were written, with the words that name them, after the judge was mended for the first and before it was asked."""

import torch
import torch.nn.functional as F

from planted.losses import Completions
from planted.model import changed, code_of, gradients_with_balance, gradients_with_experts
from planted.passes import mistake, replaced


@mistake("qwen3-sft-b3_right", "gradient of the keys", "gradients of keys", "keys")
def keys_of_one_head_a_group(run):
    """keys have the gradient of the first query head of their group alone, as where a group is summed after k_norm's backward pass"""
    code = code_of(run.model)

    def repeat(x, times):
        heads = x[:, :, None].expand(-1, -1, times, -1, -1)
        if repeat.calls % 2 == 0:  # the keys are repeated first
            heads = torch.cat([heads[:, :, :1], heads[:, :, 1:].detach()], 2)
        repeat.calls += 1
        return heads.reshape(x.shape[0], -1, *x.shape[2:])

    repeat.calls = 0
    with replaced(code, "repeat_kv", repeat):
        return run.gradients()


@mistake("llama-sft-b3_right", "float8", "fp8", "FP8", "rounded")
def activations_in_float8(run):
    """what down_proj reads is rounded to float8 (e4m3)"""

    def narrow(_, words):
        return (words[0] + (words[0].to(torch.float8_e4m3fn).to(words[0].dtype) - words[0]).detach(),)

    for layer in run.model.model.layers:
        layer.mlp.down_proj.register_forward_pre_hook(narrow)
    return run.gradients()


@mistake("seed-oss-sft-b3_left", "no gradient reaches", "have no gradient", "which have no gradient")
def lower_layers_cut_off(run):
    """no gradient goes below layer 1, as where a checkpointed segment's input is detached"""
    run.model.model.layers[1].register_forward_pre_hook(lambda module, words: (words[0].detach(), *words[1:]))
    return run.gradients()


@mistake("mixtral-aux-sft-b3_left", "balances the experts")
def balance_times_layers(run):
    """the loss that balances the experts is added once for each layer"""
    return gradients_with_balance(run, run.mask, run.model.config.num_hidden_layers)


@mistake("qwen3-grpo-grpo_kl", "loss_type is dr_grpo", "dr_grpo")
def divided_by_longest(run):
    """the loss is divided by rows and the longest completion's room, as Dr. GRPO's, where it should be grpo's"""
    own = Completions(run)
    each = (own.clipped() + own.divergence()) * own.mask
    return run.gradients(each.sum() / (len(each) * run.settings["max_completion_length"]))


@mistake("llama-lora-sft-b3_right", "lora_B")
def scale_twice_in_b(run):
    """lora_B's gradients are multiplied by the adapter's scale twice"""
    scale = next(module.scaling["default"] for module in run.model.modules() if isinstance(getattr(module, "scaling", None), dict))
    return changed(run.gradients(), lambda name, gradient: gradient * scale if "lora_B" in name else gradient)


@mistake("qwen3-next-sft-b3_left", "l2", "queries and keys are not normed", "norm of queries and keys")
def recurrent_heads_not_normed(run):
    """queries and keys of the delta rule are not normed (use_qk_l2norm_in_kernel)"""
    code = code_of(run.model)
    own = code.torch_chunk_gated_delta_rule
    with replaced(code, "torch_chunk_gated_delta_rule", lambda *words, **named: own(*words, **{**named, "use_qk_l2norm_in_kernel": False})):
        return run.gradients()


@mistake("bamba-sft-b3_right_promptmask", "activation", "SiLU", "silu")
def convolution_without_activation(run):
    """there is no activation behind the recurrent layers' convolution"""
    code = code_of(run.model)
    own = code.causal_conv1d_fn
    with replaced(code, "causal_conv1d_fn", lambda *words, **named: own(*words, **{**named, "activation": None})):
        return run.gradients()


@mistake("falcon-h1-sft-b3_left", "key_multiplier")
def keys_not_multiplied(run):
    """key_multiplier is 1"""
    for layer in run.model.model.layers:
        layer.self_attn.key_multiplier = 1.0
    return run.gradients()


@mistake("gemma3-sft-packed", "document")
def documents_begin_late(run):
    """the second document begins one token late: its first token belongs to the first"""
    positions = run.inputs["position_ids"].clone()
    start = int((positions[0] == 0).nonzero()[1])
    positions[0, start] = start
    positions[0, start + 1:] -= 1
    return run.gradients(run.loss(run.logits(positions=positions)))


@mistake("mixtral-sft-b3_left", "input")
def weights_on_inputs(run):
    """experts' weights multiply what experts read, not what they give (apply_router_weight_on_input)"""

    def give(experts, expert, x, weights):
        gate, up = F.linear(x * weights, experts.gate_up_proj[expert]).chunk(2, -1)
        return F.linear(experts.act_fn(gate) * up, experts.down_proj[expert])

    return gradients_with_experts(run, give)
