"""A fourth round, written with its words after the judge was mended for the third and before it was asked.

What it said then, in float64: 3 of 10 named, 2 vaguely, 1 wrongly (a constant gate: its words stood in the list of parameters alone), 4 unknown.
"expert 4" was added to the words of the lost expert then: it is the last of five."""

import torch
import torch.nn.functional as F

from planted.losses import Completions
from planted.model import changed, code_of, gradients_with_experts
from planted.passes import added, mistake, replaced


@mistake("llama-sft-b3_right", "temperature", "logits are", "logits_scaling")
def logits_divided(run):
    """logits are divided by 1.3, a temperature of sampling that is left on"""
    return run.gradients(run.loss(run.logits() / 1.3))


@mistake("qwen3-sft-b3_left", "focal", "power of", "(1 - p)")
def focal_loss(run):
    """each token's loss is multiplied by 1 - p, as a focal loss is"""
    each, scored = run.losses()
    return run.gradients(((1 - (-each).exp()) * each * scored).sum() / scored.sum())


@mistake("mistral-sft-b3_left", "no gradient flows", "gradient of the MLP", "up_proj", "gate")
def gate_is_constant(run):
    """the backward pass of the MLP takes its activated gate for a constant"""
    for layer in run.model.model.layers:
        layer.mlp.forward = lambda x, mlp=layer.mlp: mlp.down_proj(mlp.act_fn(mlp.gate_proj(x)).detach() * mlp.up_proj(x))
    return run.gradients()


@mistake("qwen3-next-sft-b3_left", "decay", "A_log", "dt_bias")
def decays_left_out(run):
    """the delta rule has no decay"""
    code = code_of(run.model)
    own = code.torch_chunk_gated_delta_rule
    with replaced(code, "torch_chunk_gated_delta_rule", lambda *words, **named: own(*words, **{**named, "g": 0 * named["g"]})):
        return run.gradients()


@mistake("mixtral-sft-b3_left", "last expert", "expert 7", "expert 3", "experts.7", "experts.3", "expert of", "expert 4")
def expert_of_a_dead_rank(run):
    """what the last expert gives is lost"""

    def give(experts, expert, x, weights):
        gate, up = F.linear(x, experts.gate_up_proj[expert]).chunk(2, -1)
        return F.linear(experts.act_fn(gate) * up, experts.down_proj[expert]) * weights * (expert + 1 < experts.num_experts)

    return gradients_with_experts(run, give)


@mistake("qwen3-grpo-grpo_kl", "row 2", "masked", "truncated")
def truncated_row_counts(run):
    """the third completion is masked as truncated, and still counts as a row"""
    own = Completions(run)
    mask = own.mask.clone()
    mask[2] = 0
    return run.gradients(own.of_rows(own.clipped() + own.divergence(), mask))


@mistake("llama-linear-sft-b3_left", "last row", "row 2")
def last_row_repeated(run):
    """a sampler fills a batch up by its last row, which is there twice"""
    each, scored = run.losses()
    return run.gradients((each.sum() + each[-1].sum()) / (scored.sum() + scored[-1].sum()))


@mistake("qwen3-lora-sft-b3_right_promptmask", "merged", "rounded", "bfloat16")
def adapters_rounded(run):
    """adapters are in bfloat16"""
    for name, weight in run.model.named_parameters():
        if "lora_" in name:
            weight.data = weight.data.to(torch.bfloat16).to(weight.dtype)
    return run.gradients()


@mistake("seed-oss-sft-b3_left", "accumulated", "row 0", "times", "micro-batch")
def first_row_not_scaled(run):
    """gradients of the first micro-batch, a row, are not divided by the number of these; those of the others are"""
    total = None
    for row in range(len(run.ids)):
        labels = torch.full_like(run.labels, -100)
        labels[row] = run.labels[row]
        own = changed(run.gradients(run.loss(labels=labels)), lambda name, gradient, row=row: gradient / (len(run.ids) if row else 1))
        total = own if total is None else added(total, own)
    return total


@mistake("gemma2-sft-b3_left", "scale", "query_pre_attn_scalar", "head_dim")
def scores_by_head_dim(run):
    """attention's scores are divided by the root of head_dim, not of query_pre_attn_scalar"""
    for layer in run.model.model.layers:
        layer.self_attn.scaling = layer.self_attn.head_dim**-0.5
    return run.gradients()
