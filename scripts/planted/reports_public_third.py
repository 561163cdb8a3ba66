"""A third dozen of mistakes of public reports, each made anew and with the words that name it after the judge was mended for the second list and before it
was asked about any of these. They were taken as a search for such reports gave them.

What it said then, in float64: 9 of 12 named, four of these by their place alone; 2 vaguely (weights of tokens), 1 unknown."""

import torch
import torch.nn.functional as F

from planted.losses import GRPO, Completions
from planted.model import changed
from planted.passes import mistake


@mistake("qwen3-sft-b3_right", "sum of the means", "mean of the means")
def sums_of_chunks_means(run):
    """NeMo Automodel#3803: a cross-entropy in chunks of 32 tokens, row after row, adds up the chunks' means"""
    each, scored = run.losses()
    each, scored = (F.pad(x, (0, 1)).flatten() for x in (each, scored))  # a row's last token has no label
    return run.gradients(sum(one.sum() / many.sum() for one, many in zip(each.split(32), scored.split(32), strict=True) if many.any()))


@mistake("llama-linear-sft-b3_left", "softmax", "denominator", "log-sum-exp")
def gathered_logits_as_shards(run):
    """Megatron-LM#7452 (2): logits that are gathered already are taken for two ranks' shards, so that the softmax's denominator is twice what it should be"""
    logits = run.logits()
    scored = F.pad(run.labels[:, 1:], (0, 1), value=-100) != -100
    targets = F.one_hot(F.pad(run.labels[:, 1:], (0, 1)).clamp_min(0), logits.shape[-1]).to(run.dtype)
    slope = (logits.softmax(-1) / 2 - targets) * scored[..., None] / scored.sum()
    return run.gradients((logits * slope.detach()).sum())


@mistake("qwen3-next-sft-b3_left", "linear_attn.norm")
def recurrent_norm_of_one_rank(run):
    """Megatron-LM#7452 (11): the norm of what the delta rule gives has the gradient of one tensor-parallel rank's heads alone"""
    for layer in run.model.model.layers:
        if hasattr(layer, "linear_attn"):
            norm = layer.linear_attn.norm

            def forward(x, gate=None, norm=norm, heads=layer.linear_attn.num_v_heads):
                own = type(norm).forward(norm, x, gate)
                weight, norm.weight = norm.weight, torch.nn.Parameter(norm.weight.detach(), requires_grad=False)
                other = type(norm).forward(norm, x, gate)
                norm.weight = weight
                first = torch.arange(len(x)) % heads < heads // 2
                return torch.where(first[:, None], own, other)

            norm.forward = forward
    return run.gradients()


@mistake("smollm3-sft-b3_left", "model.norm.weight")
def last_norm_of_one_rank(run):
    """Megatron-LM#1446: under sequence parallelism the last norm's gradient is one rank's, of the first half of the columns"""
    norm = run.model.model.norm
    norm.forward = lambda x: torch.cat([type(norm).forward(norm, x)[:, : x.shape[1] // 2], detached(norm, x)[:, x.shape[1] // 2:]], 1)
    return run.gradients()


def detached(norm, x):
    return norm.weight.detach() * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.variance_epsilon)


@mistake("qwen3-sft-b3_right", "q_norm")
def head_norms_of_one_rank(run):
    """NeMo RL#3716: gradients of q_norm and k_norm are those of one tensor-parallel rank's heads, the first half"""
    for layer in run.model.model.layers:
        for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):

            def forward(x, norm=norm):
                half = x.shape[2] // 2
                return torch.cat([type(norm).forward(norm, x)[:, :, :half], detached(norm, x)[:, :, half:]], 2)

            norm.forward = forward
    return run.gradients()


@mistake("qwen3-sft-b3_left", "keys", "k_norm")
def keys_normed_before_they_are_collected(run):
    """VeOmni#419: the backward pass of k_norm is run on what one rank has of the keys' gradient, the first half of the columns, and the rest is added later"""
    for layer in run.model.model.layers:
        norm = layer.self_attn.k_norm

        def forward(x, norm=norm):
            half = x.shape[1] // 2
            y = type(norm).forward(norm, x)
            late = x + (y - x).detach()  # without the norm's backward pass
            return torch.cat([y[:, :half], late[:, half:]], 1)

        norm.forward = forward
    return run.gradients()


@mistake(GRPO, "KL", "k2")
def divergence_by_squares(run):
    """grail#42: the KL term is the square of the difference of log-probabilities"""
    own = Completions(run)
    return run.gradients(own.of_rows(own.clipped() + own.beta * (own.policy - own.reference).square()))


@mistake(GRPO, "clip")
def clipped_on_the_other_side(run):
    """trl#6078: the clipped ratio is taken where it should be the other one: the larger of both losses' gains, not the smaller"""
    own = Completions(run)
    ratios = (own.policy - own.old).exp()
    gains = torch.max(ratios * own.advantages, ratios.clamp(1 - own.low, 1 + own.high) * own.advantages)
    return run.gradients(own.of_rows(-gains + own.divergence()))


@mistake("qwen3-sft-b3_right_promptmask", "divided by")
def ignored_tokens_counted(run):
    """ROCm TransformerEngine#336: the mean is over all tokens, those that are ignored too"""
    each, _ = run.losses()
    return run.gradients(each.sum() / run.labels.numel())


@mistake("qwen2-small-sft-b3_left", "not scaled")
def scores_not_scaled(run):
    """tiny-transformers#71: attention's scores are not divided by the root of the heads' width"""
    for layer in run.model.model.layers:
        layer.self_attn.scaling = 1.0
    return run.gradients()


@mistake("qwen3-grpo-dapo", "accumul", "4 times", "by 4")
def steps_not_divided(run):
    """trl#4935: the loss of four micro-batches is not divided by their number in one of its types"""
    own = Completions(run)
    return run.gradients(4 * (own.clipped() * own.mask).sum() / run.settings["num_items_in_batch"])


@mistake("llama-linear-sft-b3_left", "0.5 times")
def norms_averaged(run):
    """gpt-neox#1259: gradients of norms are averaged over two sequence-parallel ranks, where they should be added up"""
    return changed(run.gradients(), lambda name, gradient: gradient * 0.5 if "norm" in name else gradient)
