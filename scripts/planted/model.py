"""Mistakes in a model's forward or backward pass, and in what becomes of its gradients, made in transformers' own modules."""

import sys

import torch
import torch.nn.functional as F

from planted.passes import added, mistake, replaced, rounded


def code_of(model):
    """The module that has the model's code."""
    return sys.modules[type(model).__module__]


@mistake("gemma2-sft-b3_left", "cap of attention's scores for the identity", "backward pass of the scores")
def attention_softcap_straight(run):
    """the backward pass takes the softcap of attention's scores for the identity"""
    return with_straight(run, 4)


@mistake("gemma2-sft-b3_left", "cap of the logits for the identity")
def final_softcap_straight(run):
    """the backward pass takes the softcap of the logits for the identity"""
    return with_straight(run, 3)


def with_straight(run, dimensions):
    own = torch.tanh

    def tanh(x):
        return x + (own(x) - x).detach() if x.dim() == dimensions else own(x)

    with replaced(torch, "tanh", tanh):
        return run.gradients()


@mistake("llama-linear-sft-b3_left", "frequencies of rotary tables are kept in bfloat16")
def frequencies_in_bfloat16(run):
    """inv_freq is cast to bfloat16 with the model"""
    table = run.model.model.rotary_emb
    table.inv_freq = table.inv_freq.bfloat16().to(table.inv_freq.dtype)
    return run.gradients()


@mistake("qwen3-sft-b3_left", "cosines and sines of rotary tables are rounded")
def rotary_tables_in_bfloat16(run):
    """cosines and sines are rounded to bfloat16"""
    table = run.model.model.rotary_emb
    own = table.forward
    table.forward = lambda *words, **named: tuple(rounded(x) for x in own(*words, **named))
    return run.gradients()


@mistake("qwen3-sft-b3_left", "normed on the wrong side of their rotation")
def heads_normed_after_rotation(run):
    """queries and keys are normed after their rotation, not before"""
    code, at = code_of(run.model), {}
    own_norms = {}
    for layer in run.model.model.layers:
        attention = layer.self_attn
        own_norms[attention] = attention.q_norm.forward, attention.k_norm.forward
        attention.q_norm.forward = attention.k_norm.forward = lambda x: x
        attention.register_forward_pre_hook(lambda module, *_: at.update(now=module), with_kwargs=True)

    def rotate(queries, keys, *words, **named):
        queries, keys = own_rotation(queries, keys, *words, **named)
        of_queries, of_keys = own_norms[at["now"]]
        return of_queries(queries), of_keys(keys)

    own_rotation = code.apply_rotary_pos_emb
    with replaced(code, "apply_rotary_pos_emb", rotate):
        return run.gradients()


def without(run, modules):
    for module in modules:
        module.forward = lambda x: x
    return run.gradients()


@mistake("qwen3-sft-b3_left", "norm of queries and keys (q_norm, k_norm) is missing")
def head_norms_missing(run):
    """queries and keys are not normed"""
    return without(run, [norm for layer in run.model.model.layers for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm)])


@mistake("olmo2-sft-b3_left", "norm of what the MLP gives is missing")
def norm_after_mlp_missing(run):
    """what the MLP gives is not normed"""
    return without(run, [layer.post_feedforward_layernorm for layer in run.model.model.layers])


@mistake("llama-linear-sft-b3_left", "last norm is missing")
def final_norm_missing(run):
    """the last norm is missing"""
    return without(run, [run.model.model.norm])


@mistake("llama-sft-b3_right", "the last norm's", "backward pass of norms takes the mean square for a constant")
def norms_take_variance_for_constant(run):
    """the backward pass of norms takes the mean square for a constant"""
    for norm in run.modules("RMSNorm"):
        norm.forward = lambda x, norm=norm: norm.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.variance_epsilon).detach()
    return run.gradients()


@mistake("qwen3-sft-b3_right", "only self_attn.q_norm.weight of all layers", "self_attn.q_norm.weight of all layers have the gradient of the first half of the columns")
def norm_weight_of_half_the_tokens(run):
    """q_norm's gradient is summed over the first half of the tokens alone, as one rank's of a sequence"""
    for layer in run.model.model.layers:
        norm = layer.self_attn.q_norm

        def forward(x, norm=norm):
            y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.variance_epsilon)
            half = x.shape[1] // 2
            return torch.cat([norm.weight * y[:, :half], norm.weight.detach() * y[:, half:]], 1)

        norm.forward = forward
    return run.gradients()


@mistake("qwen2-small-sft-b3_left", "gate and up projection are exchanged")
def gate_and_up_exchanged(run):
    """the activation is the up projection's"""
    for layer in run.model.model.layers:
        layer.mlp.forward = lambda x, mlp=layer.mlp: mlp.down_proj(mlp.act_fn(mlp.up_proj(x)) * mlp.gate_proj(x))
    return run.gradients()


@mistake("llama-sft-b3_right", "attention's probabilities are rounded to bfloat16")
def attention_in_bfloat16(run):
    """attention's probabilities are rounded to bfloat16"""
    own = F.softmax
    with replaced(F, "softmax", lambda x, *words, **named: rounded(own(x, *words, **named)) if x.dim() == 4 else own(x, *words, **named)):
        return run.gradients()


@mistake("qwen3-sft-b3_right_promptmask", "tokens of a prompt see all of it")
def prompts_see_themselves(run):
    """tokens of a prompt see all of it, as under a prefix LM's mask"""
    rows, columns = run.ids.shape
    seen = torch.tril(torch.ones(columns, columns, dtype=torch.bool)).repeat(rows, 1, 1)
    for row in range(rows):
        prompt = int((run.labels[row] != -100).nonzero()[0])
        seen[row, :prompt, :prompt] = True
    seen &= run.mask[:, None].bool()
    mask = torch.where(seen, 0.0, -1e30).to(run.dtype)[:, None]
    return run.gradients(run.loss(run.logits(mask=mask)))


@mistake("qwen3-sft-b3_left", "gradient of the values is wrong")
def values_of_another_rank(run):
    """no gradient flows from the second half of the queries to the first half's values, as where a ring sends none back"""
    code = code_of(run.model)
    own = code.eager_attention_forward

    def attention(module, queries, keys, values, mask, scaling, dropout=0.0, **named):
        half = queries.shape[2] // 2
        early, _ = own(module, queries[:, :, :half], keys, values, mask[:, :, :half], scaling)
        sent = torch.cat([values[:, :, :half].detach(), values[:, :, half:]], 2)
        late, weights = own(module, queries[:, :, half:], keys, sent, mask[:, :, half:], scaling)
        return torch.cat([early, late], 1), weights

    with replaced(code, "eager_attention_forward", attention):
        return run.gradients()


@mistake("llama-linear-sft-b3_left", "gradients of keys and values are wrong")
def keys_and_values_averaged(run):
    """gradients of keys and values are the mean over the heads of a group, not their sum"""
    config = run.model.config
    group = config.num_attention_heads // config.num_key_value_heads
    for layer in run.model.model.layers:
        for linear in (layer.self_attn.k_proj, layer.self_attn.v_proj):
            linear.register_full_backward_pre_hook(lambda module, gradients: (gradients[0] / group,))
    return run.gradients()


@mistake("qwen3-moe-sft-b3_left", "experts' own gradients are right", "the gradient that leaves the head is wrong")
def routers_denominator_is_constant(run):
    """the weights of a token's experts are made to sum to 1 by a constant"""
    return with_routers(run, lambda logits: logits, lambda total: total.detach())


@mistake("qwen3-moe-sft-b3_left", "routers' logits are rounded to bfloat16")
def routers_in_bfloat16(run):
    """the routers' logits are rounded to bfloat16"""
    return with_routers(run, rounded, lambda total: total)


def with_routers(run, logits_of, total_of):
    for router in run.modules("TopKRouter"):

        def forward(hidden, router=router):
            logits = logits_of(F.linear(hidden.reshape(-1, hidden.shape[-1]), router.weight))
            weights, chosen = torch.topk(F.softmax(logits, -1), router.top_k, -1)
            return logits, weights / total_of(weights.sum(-1, keepdim=True)) if router.norm_topk_prob else weights, chosen

        router.forward = forward
    return run.gradients()


def gradients_with_balance(run, mask, factor):
    """Gradients where the loss that balances the experts is told `mask` and is added `factor` times."""
    config = run.model.config
    with run.precision():
        output = run.model(input_ids=run.ids, attention_mask=run.mask, output_router_logits=True, use_cache=False)
        experts = config.num_local_experts if hasattr(config, "num_local_experts") else config.num_experts
        balance = code_of(run.model).load_balancing_loss_func(output.router_logits, experts, config.num_experts_per_tok, mask)
    return run.gradients(run.loss(output.logits) + factor * config.router_aux_loss_coef * balance)


@mistake("qwen3-moe-aux-sft-b3_right", "balances the experts counts padding")
def router_loss_counts_padding(run):
    """the loss that balances the experts is not told what is padding"""
    return gradients_with_balance(run, None, 1)


def gradients_with_experts(run, give):
    """Gradients where each expert's output is give(experts, expert, what it reads [n, D], weights [n, 1]), its weights included."""
    for experts in run.modules("Experts"):

        def forward(hidden, chosen, weights, experts=experts):
            result = torch.zeros_like(hidden)
            for expert in range(experts.num_experts):
                token, place = torch.where(chosen == expert)
                result = result.index_add(0, token, give(experts, expert, hidden[token], weights[token, place, None]))
            return result

        experts.forward = forward
    return run.gradients()


def changed(gradients, change):
    return {name: change(name, gradient) for name, gradient in gradients.items()}


@mistake("qwen3-moe-sft-b3_left", "are 0.5 times what they should be")
def experts_of_a_rank_halved(run):
    """the gradients of the second half of the experts are averaged over two ranks once more"""

    def change(_, gradient):
        if gradient.dim() == 3:
            gradient[gradient.shape[0] // 2:] *= 0.5
        return gradient

    return changed(run.gradients(), change)


@mistake("llama-linear-sft-b3_left", "which have no gradient")
def a_head_without_gradient(run):
    """one head's rows of k_proj have no gradient"""
    config = run.model.config
    rows = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads

    def change(name, gradient):
        if "k_proj" in name:
            gradient[:rows] = 0
        return gradient

    return changed(run.gradients(), change)


@mistake("gpt-oss-sft-b3_left", "self_attn.sinks of all layers are -1 times")
def sinks_of_the_other_sign(run):
    """the sinks' gradients have the other sign"""
    return changed(run.gradients(), lambda name, gradient: -gradient if "sinks" in name else gradient)


@mistake("qwen3-5-sft-b3_left", "no gradient reaches linear_attn.A_log of all layers")
def decays_detached(run):
    """the delta rule's decays are taken for constants"""
    return changed(run.gradients(), lambda name, gradient: gradient * 0 if "A_log" in name or "dt_bias" in name else gradient)


@mistake("gemma3-sft-b3_left", "all of layer 3 are 2 times")
def last_layer_twice(run):
    """the last layer's gradients are added twice"""
    last = f"layers.{run.model.config.num_hidden_layers - 1}."
    return changed(run.gradients(), lambda name, gradient: gradient * 2 if last in name else gradient)


@mistake("llama-linear-sft-b3_left", "only model.embed_tokens.weight is wrong")
def embedding_by_frequency(run):
    """the embedding's rows are divided by how often their token is there (scale_grad_by_freq)"""
    run.model.model.embed_tokens.scale_grad_by_freq = True
    return run.gradients()


@mistake("qwen3-sft-b3_left", "clipped parameter by parameter")
def clipped_one_by_one(run):
    """each parameter's gradient is clipped by itself"""
    return changed(run.gradients(), lambda _, gradient: gradient * min(1.0, 0.2 / float(gradient.norm())))


@mistake("llama-linear-sft-b3_left", "weight decay")
def weight_decay_in_gradients(run):
    """weight decay is in the gradients"""
    values = dict(run.model.named_parameters())
    return changed(run.gradients(), lambda name, gradient: gradient + 0.01 * values[name].detach())


@mistake("qwen3-sft-b3_left", "row 2 is missing")
def a_layer_of_one_rank(run):
    """layer 0's gradients are those of the first two rows, as where they are not averaged over the ranks"""
    all_rows = run.gradients()
    each, scored = run.losses()
    of_rank = run.gradients(each[:2].sum() / scored.sum())
    return changed(all_rows, lambda name, gradient: of_rank[name] if ".layers.0." in name else gradient)


@mistake("gemma3-sft-b3_left", "another batch")
def gradients_of_the_step_before(run):
    """the gradients of another batch are still there"""
    own = run.gradients()
    ids = run.ids.flip(0).roll(1, 1)
    return added(own, run.gradients(run.loss(run.logits(ids, torch.ones_like(ids)), ids)))
