"""Mistakes of public reports (GitHub issues and pull requests of trainers and kernels, most of 2026), each made anew and with the words that name it
before the judge was asked about any of them. They were taken as a search for such reports gave them.

What it said then, in float64: 7 of 15 named, three of these by their place alone; 3 by a place too wide, 3 vaguely (weights of rows or tokens), 1 in a
factor that is none, 1 unknown."""

import torch
import torch.nn.functional as F
from transformers import AutoModelForSequenceClassification

from planted.losses import GRPO, Completions
from planted.model import added, changed, code_of, gradients_with_experts
from planted.passes import mistake, replaced


@mistake("qwen3-moe-sft-b3_left", "router")
def slots_of_other_ranks(run):
    """transformers#48687: expert-parallel slots of another rank have weight 0, and their weights a gradient: that of the rank's last expert"""

    def give(experts, expert, x, weights):
        def output(of):
            gate, up = F.linear(x, experts.gate_up_proj[of]).chunk(2, -1)
            return F.linear(experts.act_fn(gate) * up, experts.down_proj[of])

        half = experts.num_experts // 2
        other = half - 1 if expert >= half else experts.num_experts - 1  # what the rank that lacks the expert computes
        return output(expert) * weights + output(other).detach() * (weights - weights.detach())

    return gradients_with_experts(run, give)


@mistake("llama-small-grpo-bias_correction", "bias_correction")
def divergence_not_corrected(run):
    """trl#6807: use_bias_correction_kl is silently ignored: the KL term is not multiplied by the ratio"""
    own = Completions(run)
    counts = own.mask.sum(1, keepdim=True).clamp_min(1)
    ratios = (((own.policy - own.old) * own.mask).sum(1, keepdim=True) / counts).exp()
    return run.gradients(own.of_rows(own.clipped(ratios=ratios) + own.divergence()))


@mistake("llama-small-grpo-is_token", "importance_sampling_ratio", "importance sampling")
def rollouts_not_corrected(run):
    """Liger-Kernel#1082: the ratios of the sampler's log-probabilities (importance_sampling_ratio) are not applied"""
    own = Completions(run)
    each = (own.clipped() + own.divergence()) * own.mask
    return run.gradients(each.sum() / run.settings["num_items_in_batch"])


@mistake("qwen3-grpo-dapo", "masked", "padding", "completion_mask")
def masked_tokens_in_the_sum(run):
    """ROLL#444: the sum over tokens has those that are masked too, and is divided by the number of those that are not"""
    own = Completions(run)
    own.old = torch.where(own.mask > 0, own.old, own.policy.detach())  # what a rollout would have where the batch has none
    return run.gradients(own.clipped().sum() / run.settings["num_items_in_batch"])


@mistake("llama-yarn-sft-b3_left", "yarn", "rope_scaling", "rope_parameters", "rope_type", "scaling of positions")
def scaling_of_positions_dropped(run):
    """unsloth#6907: inv_freq is made anew after loading without the scaling of rope_parameters (yarn's)"""
    table = run.model.model.rotary_emb
    width = 2 * len(table.inv_freq)
    table.inv_freq = run.model.config.rope_parameters["rope_theta"] ** -(torch.arange(0, width, 2).to(table.inv_freq.dtype) / width)
    return run.gradients()


@mistake("qwen3-pairs-orpo-orpo", "cross-entropy", "NLL", "nll")
def odds_alone(run):
    """mlx-lm-lora#65: ORPO's loss is that of the odds alone, without the chosen completions' cross-entropy"""
    mask = run.inputs["completion_mask"][:, 1:].to(run.dtype)
    chosen, rejected = ((run.log_probabilities() * mask).sum(1) / mask.sum(1)).chunk(2)
    odds = (chosen - rejected) - (torch.log1p(-chosen.exp()) - torch.log1p(-rejected.exp()))
    return run.gradients(-run.settings["beta"] * F.logsigmoid(odds).mean())


@mistake("seed-oss-sft-b3_left", "residual")
def residual_through_the_norm(run):
    """quack#53: the backward pass of a fused sum and norm sends the residual's gradient through the norm as well, before it adds it"""

    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx, hidden, weight, eps):
            ctx.save_for_backward(hidden, weight)
            ctx.eps = eps
            return hidden.clone(), weight * hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + eps)

        @staticmethod
        def backward(ctx, of_residual, of_norm):
            hidden, weight = ctx.saved_tensors
            scale = torch.rsqrt(hidden.square().mean(-1, keepdim=True) + ctx.eps)
            given = weight * (of_residual + of_norm)
            back = scale * (given - hidden * scale.square() * (given * hidden).mean(-1, keepdim=True))
            return back, (of_norm * hidden * scale).flatten(0, 1).sum(0), None

    for layer in run.model.model.layers:

        def forward(hidden, layer=layer, **named):
            hidden = hidden + layer.self_attn(hidden_states=layer.input_layernorm(hidden), **named)[0]
            norm = layer.post_attention_layernorm
            residual, normed = Fused.apply(hidden, norm.weight, norm.variance_epsilon)
            return residual + layer.mlp(normed)

        layer.forward = forward
    return run.gradients()


def with_attention(run, attention):
    with replaced(code_of(run.model), "eager_attention_forward", attention):
        return run.gradients()


@mistake("mistral-sft-b3_left", "window")
def window_forward_alone(run):
    """MSLK#263: the backward pass of attention with a window is computed as if there were none"""
    own = code_of(run.model).eager_attention_forward
    columns = run.ids.shape[1]
    seen = torch.tril(torch.ones(columns, columns, dtype=torch.bool)) & run.mask[:, None].bool()
    whole = torch.where(seen, 0.0, -1e30).to(run.dtype)[:, None]

    def attention(module, queries, keys, values, mask, scaling, **named):
        right, weights = own(module, queries, keys, values, mask, scaling)
        wide, _ = own(module, queries, keys, values, whole, scaling)
        return wide + (right - wide).detach(), weights

    return with_attention(run, attention)


@mistake("mistral-sft-b3_right", "keys and values")
def heads_of_the_backward_pass(run):
    """native-sparse-attention-triton#27: the backward pass of keys and values takes queries' heads in turn for a key's, where the forward pass has groups"""
    own = code_of(run.model).eager_attention_forward

    def attention(module, queries, keys, values, mask, scaling, **named):
        result, weights = own(module, queries, keys.detach(), values.detach(), mask, scaling)
        group, count = module.num_key_value_groups, keys.shape[1]
        repeated = [x.detach().repeat_interleave(group, 1).requires_grad_() for x in (keys, values)]

        class Sent(torch.autograd.Function):
            @staticmethod
            def forward(ctx, result, keys, values):
                return result.clone()

            @staticmethod
            def backward(ctx, given):
                with torch.enable_grad():
                    scores = torch.softmax(queries.detach() @ repeated[0].transpose(2, 3) * scaling + mask, -1)
                    found = torch.autograd.grad((scores @ repeated[1]).transpose(1, 2), repeated, given)
                return given, *(x.reshape(len(x), group, count, *x.shape[2:]).sum(1) for x in found)

        return Sent.apply(result, keys, values), weights

    return with_attention(run, attention)


@mistake("qwen3-moe-sft-b3_left", "experts' own gradients are right")
def experts_input_of_one_shard(run):
    """torchtitan#1805: experts are split over two tensor-parallel ranks, whose gradients of what experts read are not summed: a rank's own go on"""

    def give(experts, expert, x, weights):
        gate, up = F.linear(x, experts.gate_up_proj[expert]).chunk(2, -1)
        kept, lost = (F.linear(y, experts.gate_up_proj[expert]).chunk(2, -1) for y in (x, x.detach()))
        half = gate.shape[-1] // 2
        gate, up = (torch.cat([one[..., :half], other[..., half:]], -1) for one, other in zip(kept, lost, strict=True))
        return F.linear(experts.act_fn(gate) * up, experts.down_proj[expert]) * weights

    return gradients_with_experts(run, give)


@mistake("llama-linear-sft-b3_left", "accumulat", "micro-batch")
def accumulated_and_divided_each_time(run):
    """torchtitan#1732: after each micro-batch, a row, all that was accumulated is divided by their number once more (scale_grads)"""
    total, count = None, len(run.ids)
    each, scored = run.losses()
    for row in range(count):
        one = changed(run.gradients(run.losses()[0][row].sum() / scored.sum() * count), lambda _, gradient: gradient / count)
        total = one if total is None else added(changed(total, lambda _, gradient: gradient / count), one)
    return total


@mistake("gpt-oss-sft-b3_left", "sink")
def sinks_scale_is_constant(run):
    """torchtitan#4796: attention's output is multiplied by sigmoid(lse - sink), and no gradient flows through the log-sum-exp to queries and keys"""
    code = code_of(run.model)

    def attention(module, queries, keys, values, mask, scaling, **named):
        keys, values = (code.repeat_kv(x, module.num_key_value_groups) for x in (keys, values))
        scores = queries @ keys.transpose(2, 3) * scaling + mask
        share = torch.sigmoid(scores.detach().logsumexp(-1, keepdim=True) - module.sinks.reshape(1, -1, 1, 1))
        weights = torch.softmax(scores, -1)
        return (weights @ values * share).transpose(1, 2).contiguous(), weights

    return with_attention(run, attention)


@mistake("qwen3-5-sft-packed_long", "state")
def states_of_packed_rows_go_on(run):
    """slime#1686: of recurrent layers the convolution is told where documents begin, the delta rule is not"""
    run.model.model._forward_pre_hooks.clear()
    code = code_of(run.model)
    own = code.causal_conv1d_fn
    rows = run.inputs["position_ids"].tolist()
    bounds = [[column for column, position in enumerate(row) if position == 0] + [len(row)] for row in rows]

    def convolve(x, *words, **named):
        spans = [list(zip(row, row[1:], strict=False)) for row in bounds]
        return torch.cat([torch.cat([own(one[None, :, first:last], *words, **named) for first, last in of_row], -1) for one, of_row in zip(x, spans, strict=True)])

    with replaced(code, "causal_conv1d_fn", convolve):
        return run.gradients()


@mistake("qwen3-score-reward-margin", "margin")
def margins_broadcast(run):
    """ms-swift#9927: rewards [pairs, 1] less margins [pairs] are all pairs of both: each difference meets each margin"""
    with run.precision():
        run.model = AutoModelForSequenceClassification.from_pretrained(run.folder, dtype=run.dtype, attn_implementation="eager").eval()
        chosen, rejected = run.model(input_ids=run.ids, attention_mask=run.mask, use_cache=False).logits.chunk(2)
    return run.gradients(-F.logsigmoid(chosen - rejected - run.inputs["margin"]).mean())


@mistake(GRPO, "KL")
def divergence_maximised(run):
    """verl, commit a65c9157: the KL term is subtracted from the loss, and so grows"""
    own = Completions(run)
    return run.gradients(own.of_rows(own.clipped() - own.divergence()))
