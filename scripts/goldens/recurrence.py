"""Gated delta rules as goldens need them: documents of a packed row apart, and the recurrence token by token.

Without flash-linear-attention and causal-conv1d, transformers 5.23 refuses `seq_idx` and `cu_seq_lens_q`, and of position_ids
its recurrent layers know nothing: the state of a row's document would go on into the next.
"""

import sys
from contextlib import contextmanager

import torch


def has_recurrence(model):
    """Whether some layers are gated delta rules."""
    return "linear_attention" in (getattr(model.config, "layer_types", None) or ())


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
        for row, spans in enumerate(spans_of_rows):
            outputs = [forward(hidden_states=hidden_states[row : row + 1, begin:end], **settings) for begin, end in spans]
            rows.append(torch.cat(outputs, dim=1))
        return torch.cat(rows)

    return of_documents


def keep_documents_apart(backbone):
    """Lets the recurrent layers of `backbone`, a transformers model without its head, see one document at a time."""

    def before(module, args, kwargs):
        for layer in module.layers:
            if hasattr(layer, "linear_attn"):
                layer.linear_attn.__dict__.pop("forward", None)
                if is_packed(kwargs):
                    layer.linear_attn.forward = _of_each_document(layer.linear_attn.forward, document_spans(kwargs))

    backbone.register_forward_pre_hook(before, with_kwargs=True)


@contextmanager
def token_by_token(model):
    """transformers' loop over tokens in place of its blocks of 64. Yields the lists of all `decay` and `beta` that it sees."""
    layer = next(layer.linear_attn for layer in model.model.layers if hasattr(layer, "linear_attn"))
    module = sys.modules[type(layer).__module__]
    in_blocks, loop = module.torch_chunk_gated_delta_rule, module.torch_recurrent_gated_delta_rule
    gates = {"decay": [], "beta": []}

    def recorded(*args, g, beta, **settings):
        gates["decay"].append(g.detach().exp().flatten())
        gates["beta"].append(beta.detach().flatten())
        return loop(*args, g=g, beta=beta, **settings)

    module.torch_chunk_gated_delta_rule = recorded
    try:
        yield gates
    finally:
        module.torch_chunk_gated_delta_rule = in_blocks
