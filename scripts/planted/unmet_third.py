"""A third round of mistakes that were written, with the words that name them, before the judge was asked about any of them or its search was read.

What it said then, in float64: 3 of 14 named, 3 vaguely (rows' or tokens' weights, without what gives them), 2 wrongly, 6 unknown."""

import torch
import torch.nn.functional as F

from planted.losses import Completions
from planted.model import changed, code_of
from planted.passes import added, mistake, replaced


@mistake("llama-sft-b3_right", "group", "key/value head", "key and value head")
def heads_of_keys_in_turn(run):
    """keys and values are repeated in turn (0 1 0 1) where each should be repeated for its group (0 0 1 1), as after an all-to-all over heads"""
    with replaced(code_of(run.model), "repeat_kv", lambda x, times: x.repeat(1, times, 1, 1)):
        return run.gradients()


@mistake("qwen2-small-sft-b3_left", "padded", "more entries", "whose logit is 0")
def vocabulary_padded(run):
    """the vocabulary is padded by 27 rows of zeros, whose logits are in the softmax's sum"""
    logits = run.logits()
    return run.gradients(run.loss(torch.cat([logits, torch.zeros_like(logits[..., :27])], -1)))


@mistake("llama-pad-sft-packed", "last document", "last two documents", "document 2")
def last_boundary_lost(run):
    """the last document goes on from the one before: the last entry of cu_seqlens is lost"""
    positions = run.inputs["position_ids"].clone()
    for row in positions:
        start = int((row == 0).nonzero()[-1])
        row[start:] += row[start - 1] + 1
    return run.gradients(run.loss(run.logits(positions=positions)))


@mistake("qwen3-lora-sft-b3_right_promptmask", "through the adapters", "adapters' input", "input of the adapters", "what adapters read", "through adapters")
def no_gradient_through_adapters(run):
    """a fused kernel leaves the adapters out of what it sends back to a layer's input: weights alone send it"""
    for module in run.model.modules():
        if hasattr(module, "lora_A") and "default" in module.lora_A:
            first, second, scale = module.lora_A["default"], module.lora_B["default"], module.scaling["default"]

            def forward(x, *words, module=module, first=first, second=second, scale=scale, **named):
                return module.base_layer(x) + scale * second(first(x.detach()))

            module.forward = forward
    return run.gradients()


@mistake("mistral-sft-b3_left", "int8", "8 bits", "quanti")
def weights_in_int8(run):
    """the layers' matrices are rounded to int8, with a scale for each of their rows"""
    for name, weight in run.model.named_parameters():
        if weight.dim() == 2 and ".layers." in name:
            scale = weight.data.abs().amax(1, keepdim=True) / 127
            weight.data = (weight.data / scale).round() * scale
    return run.gradients()


@mistake("qwen3-moe-sft-b3_right", "weights of a token's experts are exchanged", "other's weight", "each other's weight", "in the reverse order", "weight of another")
def weights_of_the_other_expert(run):
    """a token's experts have each other's weights, as where choices are sorted by expert and weights are not"""
    for router in run.modules("TopKRouter"):
        own = router.forward

        def forward(hidden, own=own):
            logits, weights, chosen = own(hidden)
            return logits, weights.flip(-1), chosen

        router.forward = forward
    return run.gradients()


@mistake("qwen3-grpo-grpo_kl", "one token", "shifted", "1 token")
def old_policy_shifted(run):
    """each token's ratio has the old log-probability of the token before it"""
    own = Completions(run)
    return run.gradients(own.of_rows(own.clipped(old=F.pad(own.old[:, :-1], (1, 0))) + own.divergence()))


@mistake("qwen3-grpo-grpo_kl", "entropy", "entropies", "top_entropy_quantile")
def forking_tokens_alone(run):
    """only the fifth of the tokens whose entropy is highest is in the policy's term (top_entropy_quantile 0.2)"""
    own = Completions(run)
    with torch.no_grad():
        logs = torch.log_softmax(run.logits()[:, :-1] / run.settings["temperature"], -1)[:, -own.mask.shape[1]:]
    entropies = -(logs.exp() * logs).sum(-1)
    high = entropies >= torch.quantile(entropies[own.mask > 0].double(), 0.8)
    return run.gradients(own.of_rows(own.clipped() * high + own.divergence()))


@mistake("qwen3-next-sft-b3_left", "beta", "eigenvalue")
def beta_up_to_two(run):
    """the delta rule's beta is twice its sigmoid (allow_neg_eigval)"""
    code = code_of(run.model)
    own = code.torch_chunk_gated_delta_rule
    with replaced(code, "torch_chunk_gated_delta_rule", lambda *words, **named: own(*words, **{**named, "beta": 2 * named["beta"]})):
        return run.gradients()


@mistake("llama-tied-sft-b3_left", "2 times")
def tied_matrix_twice(run):
    """the tied matrix has its gradient twice, as where both ends of a pipeline have summed it before they sum again"""
    return changed(run.gradients(), lambda name, gradient: gradient * 2 if "embed_tokens" in name else gradient)


@mistake("smollm3-sft-b3_left", "clip", "same norm", "norm of 1")
def clipped_by_micro_batch(run):
    """gradients of each row, a micro-batch, are clipped to a norm of 1 before they are added"""
    total = None
    for row in range(len(run.ids)):
        labels = torch.full_like(run.labels, -100)
        labels[row] = run.labels[row]
        own = run.gradients(run.loss(labels=labels))
        norm = torch.stack([gradient.norm() for gradient in own.values()]).norm()
        own = changed(own, lambda name, gradient: gradient / norm.clamp_min(1) / len(run.ids))  # noqa: B023: it is used at once
        total = own if total is None else added(total, own)
    return total


@mistake("qwen3-sft-b3_right", "last token of each chunk", "first token of each chunk", "column 17", "column 18", "chunks")
def labels_shifted_in_chunks(run):
    """each of two ranks shifts the labels of its own columns, so that the last token of the first is asked for nothing"""
    labels = run.labels.clone()
    labels[:, labels.shape[1] // 2] = -100
    return run.gradients(run.loss(labels=labels))


@mistake("seed-oss-sft-b3_left", "residual")
def residual_without_gradient(run):
    """the fused sum and norm before each MLP sends back the norm's gradient alone, not the residual's"""
    for layer in run.model.model.layers:

        def forward(hidden, layer=layer, **named):
            hidden = hidden + layer.self_attn(hidden_states=layer.input_layernorm(hidden), **named)[0]
            return hidden.detach() + layer.mlp(layer.post_attention_layernorm(hidden))

        layer.forward = forward
    return run.gradients()


@mistake("llama-linear-sft-b3_left", "noise", "NEFTune", "neftune")
def noise_left_on(run):
    """embeddings have NEFTune's noise, of alpha 5, while gradients are compared"""
    torch.manual_seed(11)

    def noisy(_, words, embedded):
        reach = 5 / (embedded.shape[1] * embedded.shape[2]) ** 0.5
        return embedded + torch.empty_like(embedded).uniform_(-reach, reach)

    run.model.model.embed_tokens.register_forward_hook(noisy)
    return run.gradients()
