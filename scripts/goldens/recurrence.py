"""Recurrent layers as goldens need them: documents of a packed row apart, and the recurrence token by token.

Without flash-linear-attention and causal-conv1d, transformers 5.23 and 5.24 refuse `seq_idx` and `cu_seq_lens_q` of a gated delta rule
and do not read them in a Mamba-2 or Kimi Linear layer, and of position_ids its recurrent layers know nothing: the state of a row's document
would go on into the next.
"""

import sys
from contextlib import contextmanager

import torch


def has_recurrence(model):
    """Whether some layers are gated delta rules, Mamba-2's state spaces, be it next to attention, or convolutions."""
    return not {"linear_attention", "conv", "hybrid"}.isdisjoint(getattr(model.config, "layer_types", None) or ())


def has_gates(model):
    """Whether those have a state, which gates forget and write."""
    return has_recurrence(model) and model.config.model_type not in ("lfm2", "lfm2_moe", "lfm3")


def recurrences(backbone):
    """The modules of the layers that are recurrent."""
    names = ("linear_attn", "mamba", "mixer", "conv", "self_attn")
    layers = [getattr(layer, "mamba_decoder", layer) for layer in backbone.layers]  # Zamba 2's around what they share
    of_layers = [getattr(layer, name, None) for layer in layers for name in names]
    return [module for module in of_layers if any(hasattr(module, part) for part in ("A_log", "conv", "forget_gate"))]


def is_packed(inputs):
    """Whether rows hold documents, by their position_ids."""
    return inputs.get("attention_mask") is None and inputs.get("position_ids") is not None


def document_spans(inputs):
    """For each row, the spans [begin, end) of its documents: of all its real tokens, if it is padded."""
    if not is_packed(inputs):
        real = [row.nonzero().flatten().tolist() for row in inputs["attention_mask"]]
        return [[(columns[0], columns[-1] + 1)] for columns in real]
    spans = []
    for positions in inputs["position_ids"]:
        bounds = [0, *((positions.diff() != 1).nonzero().flatten() + 1).tolist(), len(positions)]
        spans.append(list(zip(bounds, bounds[1:], strict=False)))
    return spans


def _of_each_document(forward, spans_of_rows):
    """`forward` of a recurrent layer, run on each document by itself."""

    def of_documents(hidden_states, **settings):
        rows = []
        mask = settings.get("attention_mask")  # GLM-5.3's is there where nothing is padding
        for row, spans in enumerate(spans_of_rows):
            outputs = []
            for begin, end in spans:
                given = settings if mask is None else {**settings, "attention_mask": mask[row : row + 1, begin:end]}
                outputs.append(forward(hidden_states=hidden_states[row : row + 1, begin:end], **given))
            rows.append(torch.cat(outputs, dim=1))
        return torch.cat(rows)

    return of_documents


def _ngrams_of_each_document(forward, spans_of_rows):
    """The same of what Qwen4-Exp's layers add of n-grams, which end at a document's beginning, and so does their convolution."""

    def of_documents(hidden_states, input_ids, cache, conv_mask=None):
        rows = []
        for row, spans in enumerate(spans_of_rows):
            parts = [(slice(row, row + 1), slice(begin, end)) for begin, end in spans]
            rows.append(torch.cat([forward(hidden_states[part], input_ids[part], cache) for part in parts], dim=1))
        return torch.cat(rows)

    return of_documents


def keep_documents_apart(backbone):
    """Lets the recurrent layers of `backbone`, a transformers model without its head, see one document at a time."""

    def before(module, args, kwargs):
        of_ngrams = [layer.ple for layer in module.layers if getattr(layer, "ple", None) is not None]
        for layers, of_each in ((recurrences(module), _of_each_document), (of_ngrams, _ngrams_of_each_document)):
            for layer in layers:
                layer.__dict__.pop("forward", None)
                if is_packed(kwargs):
                    layer.forward = of_each(layer.forward, document_spans(kwargs))

    backbone.register_forward_pre_hook(before, with_kwargs=True)


@contextmanager
def token_by_token(model):
    """A loop over tokens in place of blocks, of a gated delta rule transformers' own. Yields the lists of all `decay` and `beta`
    (of a state space its steps of time) that it sees."""
    module = sys.modules[type(recurrences(model.model)[0]).__module__]
    gates = {"decay": [], "beta": []}

    def record(decay, beta):
        gates["decay"].append(decay.detach().flatten())
        gates["beta"].append(beta.detach().flatten())

    def of_delta_rule(*args, g, beta, **settings):
        record(g.exp(), beta)
        return getattr(module, loops[name])(*args, g=g, beta=beta, **settings)

    def of_state_space(x, dt, a, b, c, *, D, dt_bias, dt_limit, **settings):
        step = torch.nn.functional.softplus(dt + dt_bias).clamp(*dt_limit)
        record((step * a).exp(), step)
        b, c = (of_groups.repeat_interleave(x.shape[2] // of_groups.shape[2], dim=2) for of_groups in (b, c))
        state, outputs = x.new_zeros(x.shape[0], *x.shape[2:], b.shape[3]), []
        for t in range(x.shape[1]):
            written = (step[:, t, :, None] * x[:, t])[..., None] * b[:, t, :, None]
            state = state * (step[:, t] * a).exp()[..., None, None] + written
            outputs.append((state * c[:, t, :, None]).sum(-1) + D[:, None] * x[:, t])
        return torch.stack(outputs, dim=1)

    loops = {
        "torch_chunk_gated_delta_rule": "torch_recurrent_gated_delta_rule",
        "chunk_kimi_delta_attention": "recurrent_kimi_delta_attention",
    }
    is_state_space = hasattr(module, "mamba2_chunk_scan")
    name = "mamba2_chunk_scan" if is_state_space else next(name for name in loops if hasattr(module, name))
    in_blocks = getattr(module, name)
    setattr(module, name, of_state_space if is_state_space else of_delta_rule)
    try:
        yield gates
    finally:
        setattr(module, name, in_blocks)
