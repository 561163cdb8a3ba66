"""Mistakes of loaders and of parallel runs that had no name: weights exchanged, parts of attention or of the vocabulary merged wrongly, shared experts counted otherwise."""

import torch

from planted.losses import Completions
from planted.model import changed, code_of
from planted.passes import mistake, replaced


def with_values_exchanged(run, one, other):
    """Gradients where two parameters of each layer hold each other's values, under the names that they are held by."""
    for layer in run.model.model.layers:
        first, second = layer.get_parameter(one), layer.get_parameter(other)
        with torch.no_grad():
            kept = first.clone()
            first.copy_(second)
            second.copy_(kept)
    return run.gradients()


def renamed(gradients, one, other):
    """The same, each under the other's name."""
    return {name.replace(one, "\0").replace(other, one).replace("\0", other): gradient for name, gradient in gradients.items()}


def exchanged(run, one, other):
    """Gradients where two parameters of each layer hold each other's values, under the names that they were loaded by."""
    return renamed(with_values_exchanged(run, one, other), one, other)


@mistake("qwen3-sft-b3_left", "k_proj and v_proj are exchanged")
def keys_for_values(run):
    """k_proj and v_proj are exchanged, as where a fused matrix is split in another order"""
    return exchanged(run, "self_attn.k_proj.weight", "self_attn.v_proj.weight")


@mistake("qwen3-sft-b3_right", "k_proj and v_proj are exchanged, in their values alone")
def keys_loaded_as_values(run):
    """k_proj and v_proj hold each other's values, and gradients are under the names that they are held by"""
    return with_values_exchanged(run, "self_attn.k_proj.weight", "self_attn.v_proj.weight")


@mistake("qwen3-sft-b3_left", "k_norm and self_attn.q_norm are exchanged")
def norm_of_queries_for_keys(run):
    """q_norm and k_norm are exchanged"""
    return exchanged(run, "self_attn.q_norm.weight", "self_attn.k_norm.weight")


@mistake("mistral-sft-b3_left", "gate and up projection are exchanged, in their values alone", "gate_proj and up_proj are exchanged")
def gate_loaded_as_up(run):
    """gate_proj and up_proj hold each other's values, and gradients are under the names that they are held by"""
    return with_values_exchanged(run, "mlp.gate_proj.weight", "mlp.up_proj.weight")


@mistake("llama-sft-b3_right", "input_layernorm and post_attention_layernorm are exchanged")
def norms_of_a_layer_exchanged(run):
    """input_layernorm and post_attention_layernorm are exchanged"""
    return exchanged(run, "input_layernorm.weight", "post_attention_layernorm.weight")


def with_attention(run, merge, chunks):
    """Gradients where attention is what `merge` makes of each block of keys' own attention [blocks, B, H, T, E] and log-sum-exp [blocks, B, H, T, 1]."""
    code = code_of(run.model)

    def attention(module, queries, keys, values, mask, scaling, dropout=0.0, **named):
        keys, values = code.repeat_kv(keys, module.num_key_value_groups), code.repeat_kv(values, module.num_key_value_groups)
        scores = queries @ keys.transpose(2, 3) * scaling + mask[..., :keys.shape[2]]
        outputs, sums = [], []
        size = -(-keys.shape[2] // chunks)
        for begin in range(0, keys.shape[2], size):
            part = scores[..., begin:begin + size]
            outputs.append(part.softmax(-1) @ values[:, :, begin:begin + size])
            sums.append(part.logsumexp(-1, keepdim=True))
        return merge(torch.stack(outputs), torch.stack(sums)).transpose(1, 2).contiguous(), None

    with replaced(code, "eager_attention_forward", attention):
        return run.gradients()


def means_of_seen(outputs, sums):
    """The mean of the blocks that see anything."""
    seen = (sums > -1e9).to(outputs.dtype)
    return (outputs * seen).sum(0) / seen.sum(0).clamp_min(1)


@mistake("llama-sft-b3_right", "without their log-sum-exp")
def ring_blocks_averaged(run):
    """what a ring's two blocks of keys give is averaged where both see something, without their log-sum-exp"""
    return with_attention(run, means_of_seen, 2)


@mistake("qwen3-sft-b3_right", "without their log-sum-exp")
def ring_blocks_added(run):
    """what a ring's two blocks of keys give is added up, without their log-sum-exp"""
    return with_attention(run, lambda outputs, sums: (outputs * (sums > -1e9)).sum(0), 2)


@mistake("llama-sft-b3_right", "heads in another order")
def ulysses_heads_permuted(run):
    """what attention's heads give comes back from an all-to-all in the order of ranks within heads, 2 ranks"""
    for layer in run.model.model.layers:
        heads = run.model.config.num_attention_heads

        def permute(_, words, heads=heads):
            shape = words[0].shape
            return (words[0].view(*shape[:-1], 2, heads // 2, -1).transpose(-3, -2).reshape(shape),)

        layer.self_attn.o_proj.register_forward_pre_hook(permute)
    return run.gradients()


@mistake("mistral-sft-b3_left", "the last 6 entries of the vocabulary")
def vocabulary_truncated(run):
    """the softmax is without the vocabulary's last 6 entries, which no label is, as where it is cut to the tokenizer's"""
    logits = run.logits()
    return run.gradients(run.loss(torch.cat([logits[..., :-6], torch.full_like(logits[..., -6:], -1e9)], -1)))


@mistake("gemma3-sft-b1", "entries of the vocabulary")
def logits_of_special_tokens_masked(run):
    """the logits of tokens 0 and 1 are masked, as where special tokens are not to be generated"""
    logits = run.logits()
    assert int(run.labels[run.labels >= 0].min()) > 1
    return run.gradients(run.loss(torch.cat([torch.full_like(logits[..., :2], -1e9), logits[..., 2:]], -1)))


@mistake("llama-small-grpo-entropy", "entropy")
def entropy_bonus_of_the_wrong_sign(run):
    """the entropy is added to the loss, not taken off it"""
    own = Completions(run)
    logits = run.logits()[:, :-1] / run.settings["temperature"]
    logits = logits[:, -own.mask.shape[1]:]
    entropies = -(logits.log_softmax(-1).exp() * logits.log_softmax(-1)).sum(-1)
    return run.gradients(own.of_rows(own.clipped()) + run.settings["entropy_coef"] * own.of_tokens(entropies))


def shared_experts_times(run, factor):
    """Gradients where what shared experts give is multiplied by `factor`."""
    found = [module for name, module in run.model.named_modules() if name.endswith((".shared_expert", ".shared_experts", ".shared_mlp"))]
    for module in found:
        module.register_forward_hook(lambda module, words, given: given * factor)
    return run.gradients()


@mistake("qwen2-moe-sft-b3_left", "shared expert")
def shared_expert_twice(run):
    """what the shared expert gives is added twice, as where each of two ranks adds it before an all-reduce"""
    return shared_experts_times(run, 2)


@mistake("qwen2-moe-sft-b3_left", "shared expert")
def shared_expert_left_out(run):
    """what the shared expert gives is left out"""
    return shared_experts_times(run, 0)


@mistake("deepseek-v3-sft-b3_left", "shared expert")
def shared_experts_twice(run):
    """what the shared experts give is added twice"""
    return shared_experts_times(run, 2)


@mistake("glm4-moe-sft-b3_left", "shared expert")
def shared_experts_left_out(run):
    """what the shared experts give is left out"""
    return shared_experts_times(run, 0)


def router_z_loss(run, dtype=None):
    """Gradients with 0.1 times the mean square of the routers' log-sum-exp, over layers and tokens, added."""
    found = []
    for router in run.modules("TopKRouter"):
        router.register_forward_hook(lambda module, words, given: found.append(torch.nn.functional.linear(words[0].reshape(-1, words[0].shape[-1]), module.weight)))
    logits = run.logits()
    seen = run.mask.flatten().bool()
    z = torch.stack([each[seen].logsumexp(-1).square().mean() for each in found]).mean()
    return run.gradients(run.loss(logits) + 0.1 * z)


@mistake("qwen3-moe-sft-b3_left", "router z-loss", "routers' log-sum-exp")
def router_z_loss_added(run):
    """0.1 times the mean square of the routers' log-sum-exp is added (a router z-loss)"""
    return router_z_loss(run)


@mistake("mixtral-sft-b3_left", "router z-loss", "routers' log-sum-exp")
def router_z_loss_of_mixtral(run):
    """the same of another mixture"""
    return router_z_loss(run)


def with_heads(run, attend):
    """Gradients where attend(own, module, queries, keys, values, mask, scaling) stands for transformers' attention."""
    code = code_of(run.model)
    own = code.eager_attention_forward

    def attention(module, queries, keys, values, mask, scaling, **named):
        return attend(own, module, queries, keys, values, mask, scaling)

    with replaced(code, "eager_attention_forward", attention):
        return run.gradients()


@mistake("gemma3-sft-b1", "without the transpose before it")
def heads_read_as_tokens(run):
    """what heads give is reshaped without a transpose before it"""

    def attend(own, *words):
        given, weights = own(*words)
        return given.transpose(1, 2).reshape(given.shape), weights

    return with_heads(run, attend)


@mistake("qwen3-sft-b3_right", "but not themselves")
def strict_causal_mask(run):
    """queries do not see themselves, but for the first"""

    def attend(own, module, queries, keys, values, mask, scaling):
        at = torch.arange(1, queries.shape[2])
        strict = mask.expand(len(queries), 1, *mask.shape[2:]).clone()
        strict[:, :, at, at] = -1e30
        return own(module, queries, keys, values, strict, scaling)

    return with_heads(run, attend)


@mistake("qwen3-sft-b3_right", "have a window of 16")
def window_that_is_switched_off(run):
    """a sliding window of 16 is used though use_sliding_window is not set"""

    def attend(own, module, queries, keys, values, mask, scaling):
        at = torch.arange(queries.shape[2])
        return own(module, queries, keys, values, mask.masked_fill(at[:, None] - at >= 16, -1e30), scaling)

    return with_heads(run, attend)


@mistake("llama-sft-b3_right", "keys are not rotated")
def keys_not_rotated(run):
    """queries are rotated and keys are not"""
    code = code_of(run.model)
    own = code.apply_rotary_pos_emb
    with replaced(code, "apply_rotary_pos_emb", lambda queries, keys, *words, **named: (own(queries, keys, *words, **named)[0], keys)):
        return run.gradients()


@mistake("qwen3-sft-b3_left", "the sign of the sine")
def rotated_the_other_way(run):
    """the sine has the other sign"""
    table = run.model.model.rotary_emb
    own = table.forward

    def forward(*words, **named):
        cosines, sines = own(*words, **named)
        return cosines, -sines

    table.forward = forward
    return run.gradients()


@mistake("qwen2-small-sft-b3_left", "layer 1 is left out")
def last_layer_left_out(run):
    """the last layer is not run"""
    run.model.model.layers[-1].forward = lambda x, *words, **named: x
    return run.gradients()


@mistake("qwen2-small-sft-b3_left", "layer 0 runs twice")
def first_layer_twice(run):
    """the first layer is run twice"""
    layer = run.model.model.layers[0]
    own = layer.forward
    layer.forward = lambda x, *words, **named: own(own(x, *words, **named), *words, **named)
    return run.gradients()


@mistake("qwen3-sft-b3_right", "what the MLP gives is multiplied by a number that is 0.9")
def mlps_scaled(run):
    """what MLPs give is multiplied by 0.9"""
    for layer in run.model.model.layers:
        layer.mlp.register_forward_hook(lambda module, words, given: given * 0.9)
    return run.gradients()


@mistake("mixtral-sft-b3_left", "another expert answers")
def experts_of_the_next_rank(run):
    """experts are numbered from 1 on: the one after the chosen one answers"""
    for experts in run.modules("Experts"):
        own = experts.forward
        experts.forward = lambda x, chosen, weights, own=own, count=experts.num_experts: own(x, (chosen + 1) % count, weights)
    return run.gradients()


@mistake("qwen3-sft-b3_left", "is self_attn.v_proj.weight's")
def gradients_of_keys_and_values_exchanged(run):
    """the gradients of k_proj and v_proj are saved under each other's names"""
    return renamed(run.gradients(), "k_proj", "v_proj")


@mistake("qwen3-sft-b3_left", "sign alone")
def signs_of_gradients(run):
    """of each entry the sign alone is sent, as signSGD does"""
    return changed(run.gradients(), lambda _, gradient: gradient.sign())
