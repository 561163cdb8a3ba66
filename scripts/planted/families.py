"""Mistakes of one family's own parts, as they are reported of ports, kernels and parallel runs: Gemma's, GPT-OSS's, latent attention, mixtures, recurrences."""

import torch
import torch.nn.functional as F

from planted.model import changed, code_of
from planted.passes import mistake, replaced, rounded


@mistake("gemma3-sft-b3_left", "multiplied by is 4.90625")
def embedding_scale_in_bfloat16(run):
    """what Gemma multiplies embeddings by is rounded to bfloat16"""
    embedding = run.model.model.embed_tokens
    embedding.embed_scale = rounded(embedding.embed_scale)
    return run.gradients()


@mistake("gemma2-sft-b3_right", "norm")
def norms_without_one(run):
    """norms multiply by their weight, not by 1 more"""
    for norm in run.modules("RMSNorm"):
        norm.forward = lambda x, norm=norm: norm._norm(x) * norm.weight
    return run.gradients()


@mistake("gemma-sft-b3_left", "gelu", "GELU")
def exact_gelu(run):
    """the activation is the exact gelu, not the tanh's"""
    for layer in run.model.model.layers:
        layer.mlp.act_fn = torch.nn.GELU()
    return run.gradients()


@mistake("llama-tied-sft-b3_left", "head's gradient", "embedding's gradient", "lm_head", "tied")
def half_of_a_tied_matrix(run):
    """the tied matrix has the embedding's gradient alone, as where the last stage of a pipeline does not send its own"""
    run.model.lm_head.forward = lambda x, head=run.model.lm_head: F.linear(x, head.weight.detach())
    return run.gradients()


@mistake("qwen2-window-sft-b3_left", "windows are one token too wide")
def window_off_by_one(run):
    """a token sees as many earlier ones as the window has, and itself"""
    run.model.config.sliding_window += 1
    for layer in run.model.model.layers:
        if getattr(layer.self_attn, "sliding_window", None):
            layer.self_attn.sliding_window += 1
    return run.gradients()


@mistake("gemma3-sft-b3_right", "rope_theta", "rotary")
def one_base_for_all_layers(run):
    """layers with a window have the rotary table of those without"""
    table = run.model.model.rotary_emb
    own = table.forward
    table.forward = lambda x, position_ids, layer_type: own(x, position_ids, "full_attention")
    return run.gradients()


@mistake("cohere-sft-b3_left", "interleave", "halves", "neighbours", "pairs")
def halves_for_neighbours(run):
    """rotary pairs are a head's halves, not its neighbours"""
    code = code_of(run.model)

    def rotate(queries, keys, cos, sin, unsqueeze_dim=1):
        cos, sin = (torch.cat([x[..., ::2], x[..., ::2]], -1).unsqueeze(unsqueeze_dim) for x in (cos, sin))

        def turned(x):
            first, second = x.chunk(2, -1)
            return torch.cat([-second, first], -1)

        return queries * cos + turned(queries) * sin, keys * cos + turned(keys) * sin

    with replaced(code, "apply_rotary_pos_emb", rotate):
        return run.gradients()


@mistake("llama-yarn-mscale-sft-b3_left", "mscale", "attention_factor", "attention factor")
def yarn_without_its_factor(run):
    """yarn's cosines and sines are not multiplied by its attention factor"""
    run.model.model.rotary_emb.attention_scaling = 1.0
    return run.gradients()


@mistake("llama-sft-b3_right", "position")
def positions_of_ranks(run):
    """two ranks of a balanced ring have chunks 0 and 3, 1 and 2, and count positions on from one of their own to the next"""
    columns = run.ids.shape[1]
    bounds = [columns * part // 4 for part in range(5)]
    order = [column for part in (0, 3, 1, 2) for column in range(bounds[part], bounds[part + 1])]
    positions = torch.empty(columns, dtype=torch.long)
    positions[order] = torch.arange(columns)
    return run.gradients(run.loss(run.logits(positions=positions.expand(len(run.ids), -1))))


@mistake("deepseek-v3-sft-b3_left", "mscale")
def scores_without_mscale(run):
    """attention's scores are not multiplied by the square of yarn's mscale"""
    for layer in run.model.model.layers:
        layer.self_attn.scaling = layer.self_attn.qk_head_dim**-0.5
    return run.gradients()


@mistake("deepseek-v3-sft-b3_right_promptmask", "routed_scaling_factor")
def routed_experts_not_scaled(run):
    """routed_scaling_factor is not applied"""
    for router in run.modules("TopkRouter"):
        router.routed_scaling_factor = 1.0
    return run.gradients()


@mistake("glm4-moe-sft-b3_left", "correction")
def corrections_in_weights(run):
    """what a router adds to scores for the choice stays in the experts' weights"""
    own = torch.Tensor.gather
    corrected = {}

    def gather(x, dim, index):
        router = corrected.pop("now", None)  # once: in float64 the call below comes here again
        bias = None if router is None else router.e_score_correction_bias
        return own(x + bias if bias is not None and x.shape[-1] == len(bias) else x, dim, index)

    routers = run.modules("TopkRouter")
    for router in routers:
        router.register_forward_pre_hook(lambda module, _: corrected.update(now=module))
        router.register_forward_hook(lambda module, *_: corrected.clear())
    with replaced(torch.Tensor, "gather", gather):
        return run.gradients()


@mistake("qwen3-5-sft-packed_long", "document")
def states_go_on(run):
    """recurrent layers do not start anew at a document's start"""
    run.model.model._forward_pre_hooks.clear()
    return run.gradients()


@mistake("qwen3-next-sft-b2_left_long", "conv")
def convolutions_of_ranks(run):
    """the convolution of the second half of the columns has zeros where the first half's last tokens should be"""
    code = code_of(run.model)
    own = code.causal_conv1d_fn

    def convolve(x, *words, **named):
        half = (x.shape[-1] + 1) // 2
        return torch.cat([own(x[..., :half], *words, **named), own(x[..., half:], *words, **named)], -1)

    with replaced(code, "causal_conv1d_fn", convolve):
        return run.gradients()


@mistake("qwen3-next-sft-b1", "state")
def states_detached(run):
    """no gradient flows through the state that the first half of the columns hands to the second"""
    code = code_of(run.model)
    own = code.torch_chunk_gated_delta_rule

    def rule(query, key, value, g, beta, initial_state=None, output_final_state=False, **named):
        half = query.shape[1] // 2
        first, state = own(*(x[:, :half] for x in (query, key, value)), g=g[:, :half], beta=beta[:, :half], output_final_state=True, **named)
        second, _ = own(*(x[:, half:] for x in (query, key, value)), g=g[:, half:], beta=beta[:, half:], initial_state=state.detach(), **named)
        return torch.cat([first, second], 1), None

    with replaced(code, "torch_chunk_gated_delta_rule", rule):
        return run.gradients()


@mistake("qwen3-5-sft-b3_left", "padding")
def padding_in_states(run):
    """recurrent layers are not told what is padding"""
    with replaced(code_of(run.model), "apply_mask_to_padding_states", lambda x, mask: x):
        return run.gradients()


@mistake("bamba-sft-b3_left", "A_log", "decay")
def decays_in_bfloat16(run):
    """A_log is rounded to bfloat16"""
    for layer in run.modules("Mixer"):
        layer.A_log.data = layer.A_log.data.to(torch.bfloat16).to(run.dtype)
    return run.gradients()


@mistake("gpt-oss-sft-b3_left", "sinks")
def sinks_missing(run):
    """attention has no sinks, as kernels without them compute it"""
    code = code_of(run.model)

    def attention(module, queries, keys, values, mask, scaling, **named):
        keys, values = (code.repeat_kv(x, module.num_key_value_groups) for x in (keys, values))
        weights = torch.softmax(queries @ keys.transpose(2, 3) * scaling + mask, -1)
        return (weights @ values).transpose(1, 2).contiguous(), weights

    with replaced(code, "eager_attention_forward", attention):
        return run.gradients()


@mistake("gpt-oss-sft-b3_right_promptmask", "swiglu_limit")
def gates_not_clamped(run):
    """the experts' gate and up projection are not clamped"""
    for experts in run.modules("Experts"):
        experts.limit = 1e9
    return run.gradients()


@mistake("qwen3-moe-sft-b3_right", "capacity", "dropped")
def experts_drop_tokens(run):
    """an expert takes as many tokens as its even share, and drops those that come after"""
    for router in run.modules("TopKRouter"):
        own = router.forward

        def forward(hidden, own=own, router=router):
            logits, weights, chosen = own(hidden)
            taken = F.one_hot(chosen, logits.shape[-1]).sum(1)
            place = taken.cumsum(0).gather(1, chosen)
            share = -(-chosen.numel() // logits.shape[-1])
            return logits, weights * (place <= share), chosen

        router.forward = forward
    return run.gradients()


@mistake("mixtral-aux-sft-b3_left", "router_aux_loss_coef", "balances the experts")
def balance_missing(run):
    """the loss that balances the experts is left out"""
    return run.gradients()


@mistake("granite-sft-b3_left", "residual_multiplier")
def residuals_not_scaled(run):
    """residual_multiplier is 1"""
    for layer in run.model.model.layers:
        layer.residual_multiplier = 1.0
    return run.gradients()


@mistake("qwen2-small-sft-b3_left", "gradients are rounded to bfloat16", "gradients were rounded")
def gradients_in_bfloat16(run):
    """gradients are reduced in bfloat16"""
    return changed(run.gradients(), lambda _, gradient: gradient.to(torch.bfloat16).to(gradient.dtype))
