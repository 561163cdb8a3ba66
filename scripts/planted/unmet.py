"""Mistakes of ports, kernels and trainers that were written, with the words that name them, before the judge was asked about any of them."""

import torch
import torch.nn.functional as F
from goldens.passes import load_model

from planted.losses import Completions
from planted.model import code_of, gradients_with_experts
from planted.passes import GOLDENS, mistake, replaced


@mistake("glm4-sft-b3_left", "other half", "last half", "wrong half", "end of a head", "last entries")
def rotation_of_the_last_half(run):
    """of a head's entries the last half is rotated, not the first (partial_rotary_factor)"""
    code = code_of(run.model)
    own = code.apply_rotary_pos_emb

    def rotate(queries, keys, cos, sin, **named):
        width = cos.shape[-1]
        turned = own(queries[..., -width:], keys[..., -width:], cos, sin, **named)
        return tuple(torch.cat([x[..., :-width], y], -1) for x, y in zip((queries, keys), turned, strict=True))

    with replaced(code, "apply_rotary_pos_emb", rotate):
        return run.gradients()


@mistake("qwen2-moe-sft-b3_left", "shared_expert_gate", "shared expert's gate")
def shared_expert_without_gate(run):
    """the shared expert's gate is left out: what it gives is added whole"""
    for block in run.modules("SparseMoeBlock"):
        block.shared_expert_gate.forward = lambda x: torch.full_like(x[..., :1], 1e4)
    return run.gradients()


@mistake("deepseek-v3-sft-b3_left", "n_group", "topk_group", "groups of experts", "experts' groups")
def experts_of_all_groups(run):
    """experts are chosen among all, not among those of topk_group groups"""
    for router in run.modules("TopkRouter"):
        router.topk_group = router.num_group
    return run.gradients()


@mistake("deepseek-v3-sft-b3_right_promptmask", "kv_a_layernorm")
def latents_not_normed(run):
    """the latents of keys and values are not normed (kv_a_layernorm)"""
    for layer in run.model.model.layers:
        layer.self_attn.kv_a_layernorm.forward = lambda x: x
    return run.gradients()


@mistake("smollm3-sft-b3_left", "no_rope", "without rotation", "not be rotated", "layers that have none")
def rotation_everywhere(run):
    """layers without rotation (no_rope_layers) are rotated as well"""
    for layer in run.model.model.layers:
        layer.self_attn.use_rope = 1
    return run.gradients()


@mistake("cohere-sft-b3_right_promptmask", "RMS", "mean is not", "without their mean", "do not subtract the mean")
def norms_keep_the_mean(run):
    """layer norms are RMS norms: the mean is not subtracted"""
    for norm in run.modules("LayerNorm"):
        norm.forward = lambda x, norm=norm: norm.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.variance_epsilon)
    return run.gradients()


@mistake("minimax-m2-sft-b3_left", "head by itself", "of each head", "per head")
def heads_normed_one_by_one(run):
    """queries and keys are normed head by head, not over all heads together"""
    for layer in run.model.model.layers:
        for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):

            def forward(x, norm=norm, width=layer.self_attn.head_dim):
                heads = x.view(*x.shape[:-1], -1, width)
                return norm.weight * (heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + norm.variance_epsilon)).view(x.shape)

            norm.forward = forward
    return run.gradients()


@mistake("qwen3-5-sft-b3_right_promptmask", "gate of attention", "attention's gate", "attention's output gate", "output gate")
def attention_without_gate(run):
    """what attention gives is not gated (the second half of q_proj)"""
    for layer in run.model.model.layers:
        if hasattr(layer, "self_attn"):
            layer.self_attn.o_proj.register_forward_pre_hook(lambda module, words, layer=layer: (words[0] / layer.self_attn.gate_now,))

            def projected(module, words, result, layer=layer):
                heads = result.view(*result.shape[:-1], -1, 2 * layer.self_attn.head_dim)
                layer.self_attn.gate_now = torch.sigmoid(heads.chunk(2, -1)[1].flatten(-2))

            layer.self_attn.q_proj.register_forward_hook(projected)
    return run.gradients()


@mistake("granite-hybrid-sft-b3_left", "norm before", "before the gate", "after the norm", "gated norm", "gate and norm", "norm_before_gate")
def gate_after_the_norm(run):
    """the recurrent layers' norm comes before the gate, not after (norm_before_gate)"""
    for norm in run.modules("RMSNormGated"):

        def forward(x, gate=None, own=norm.forward):
            return own(x) * F.silu(gate)

        norm.forward = forward
    return run.gradients()


@mistake("lfm2-sft-b3_left", "reverse", "other direction", "flipped")
def convolution_flipped(run):
    """the convolution's taps are in the reverse order"""
    code = code_of(run.model)
    own = code.causal_conv1d_fn
    with replaced(code, "causal_conv1d_fn", lambda x, weight, *words, **named: own(x, weight.flip(-1), *words, **named)):
        return run.gradients()


@mistake("llama-sft-b3_right", "rotation", "rotary")
def rotation_has_no_backward(run):
    """the backward pass takes the rotation of queries and keys for the identity"""
    code = code_of(run.model)
    own = code.apply_rotary_pos_emb

    def rotate(*heads_and_tables, **named):
        return tuple(x + (y - x).detach() for x, y in zip(heads_and_tables[:2], own(*heads_and_tables, **named), strict=True))

    with replaced(code, "apply_rotary_pos_emb", rotate):
        return run.gradients()


@mistake("qwen3-moe-sft-b3_left", "experts' own gradients are right")
def experts_inputs_miss_up(run):
    """the gradient of the experts' input has the gate's part alone, as where one accumulator loses the up projection's"""

    def give(experts, expert, x, weights):
        gate_weight, up_weight = experts.gate_up_proj[expert].chunk(2)
        gate, up = F.linear(x, gate_weight), F.linear(x.detach(), up_weight)
        return F.linear(experts.act_fn(gate) * up, experts.down_proj[expert]) * weights

    return gradients_with_experts(run, give)


@mistake("qwen3-sft-b3_left", "queries and keys", "softmax", "scores")
def softmax_without_its_sum(run):
    """the backward pass of attention's softmax leaves out the sum over the keys (FlashAttention's delta)"""
    own = F.softmax

    class WithoutSum(torch.autograd.Function):
        @staticmethod
        def forward(context, scores):
            weights = own(scores, -1)
            context.save_for_backward(weights)
            return weights

        @staticmethod
        def backward(context, gradient):
            return context.saved_tensors[0] * gradient

    with replaced(F, "softmax", lambda x, *words, **named: WithoutSum.apply(x) if x.dim() == 4 else own(x, *words, **named)):
        return run.gradients()


@mistake("qwen3-lora-sft-b3_right_promptmask", "lora_A")
def adapters_of_a_rank(run):
    """lora_A has the gradient of the first half of its layer's outputs, as where tensor-parallel ranks are not summed"""
    for module in run.model.modules():
        if hasattr(module, "lora_A") and "default" in module.lora_A:
            first, second, scale = module.lora_A["default"].weight, module.lora_B["default"].weight, module.scaling["default"]

            def forward(x, *words, module=module, first=first, second=second, scale=scale, **named):
                half = second.shape[0] // 2
                outputs = F.linear(F.linear(x, first), second[:half]), F.linear(F.linear(x, first.detach()), second[half:])
                return module.base_layer(x) + scale * torch.cat(outputs, -1)

            module.forward = forward
    return run.gradients()


@mistake("llama-linear-sft-b3_left", "stale", "step before", "step later", "other weights", "weights are not")
def weights_of_the_step_before(run):
    """gradients are those of weights that are one step of SGD (lr 0.05) behind"""
    own = run.gradients()
    for name, weight in run.model.named_parameters():
        weight.data += 0.05 * own[name]
    return run.gradients()


@mistake("qwen3-pairs-simpo-simpo", "simpo_gamma is", "gamma")
def margin_not_divided_by_beta(run):
    """simpo's margin is beta times gamma: gamma is not divided by beta"""
    mask = run.inputs["completion_mask"][:, 1:].to(run.dtype)
    chosen, rejected = ((run.log_probabilities() * mask).sum(1) / mask.sum(1)).chunk(2)
    beta, gamma = run.settings["beta"], run.settings["simpo_gamma"]
    return run.gradients(-F.logsigmoid(beta * (chosen - rejected - gamma)).mean())


@mistake("qwen3-grpo-grpo_kl", "negative", "at least 0", "clamped at 0", "rows whose advantage")
def negative_advantages_dropped(run):
    """negative advantages are clamped at 0, as in rejection sampling"""
    own = Completions(run)
    return run.gradients(own.of_rows(own.clipped(own.advantages.clamp_min(0)) + own.divergence()))


@mistake("qwen3-sft-b3_right", "square root", "sqrt")
def rows_by_root_of_length(run):
    """each row's sum is divided by the root of its length, and the whole by the sum of these roots"""
    each, scored = run.losses()
    lengths = scored.sum(1).to(run.dtype)
    return run.gradients((each.sum(1) / lengths.sqrt()).sum() / lengths.sqrt().sum())


@mistake("qwen3-sft-b3_right_promptmask", "first token", "first scored", "starts one token")
def first_tokens_not_scored(run):
    """the first token of each completion is not scored, as where prompts are one token longer with their generation prompt"""
    labels = run.labels.clone()
    for row in labels:
        row[int((row != -100).nonzero()[0])] = -100
    return run.gradients(run.loss(labels=labels))


@mistake("gemma2-distill-jsd_0.1", "beta is 0.9", "student and teacher are exchanged", "teacher and student are exchanged")
def mixture_of_the_other_side(run):
    """the mixture of a Jensen-Shannon divergence has beta on the other side: 0.9 for 0.1"""
    with torch.no_grad(), run.precision():
        of_teacher = load_model(GOLDENS / run.settings["teacher"]).to(run.dtype)(input_ids=run.ids, attention_mask=run.mask, use_cache=False).logits
    student, temperature, beta = run.logits(), run.settings["temperature"], 0.9
    width = min(student.shape[-1], of_teacher.shape[-1])
    ours, theirs = (torch.log_softmax(x[:, :-1, :width] / temperature, -1) for x in (student, of_teacher))
    mixed = (beta * theirs.exp() + (1 - beta) * ours.exp()).log()
    each = beta * (theirs.exp() * (theirs - mixed)).sum(-1) + (1 - beta) * (ours.exp() * (ours - mixed)).sum(-1)
    scored = run.labels[:, 1:] != -100
    return run.gradients((each * scored).sum() / scored.sum())


@mistake("minimax-m2-sft-b3_right_promptmask", "columns", "k_proj")
def keys_of_half_a_sequence(run):
    """k_proj's gradient is that of the first half of the columns, as where a sequence's ranks are summed too early"""
    for layer in run.model.model.layers:
        linear = layer.self_attn.k_proj

        def forward(x, linear=linear):
            half = x.shape[1] // 2
            return torch.cat([F.linear(x[:, :half], linear.weight, linear.bias), F.linear(x[:, half:], linear.weight.detach(), linear.bias)], 1)

        linear.forward = forward
    return run.gradients()


@mistake("gpt-oss-sft-b3_left", "biases of experts", "bias", "router.bias")
def router_without_bias(run):
    """the routers' bias is left out"""
    for router in run.modules("TopKRouter"):
        router.bias.data *= 0
    return run.gradients()


@mistake("gemma4-per-layer-sft-b3_left", "per layer", "per-layer", "per_layer")
def no_embeddings_of_layers(run):
    """the embeddings that Gemma adds in each layer are left out"""
    for name, module in run.model.named_modules():
        if name.endswith("per_layer_projection"):
            module.forward = lambda x, weight=module.weight: F.linear(x, weight) * 0
    return run.gradients()
