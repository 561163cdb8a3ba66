"""Layers of DeepSeek V4, MiniMax M3 and GLM-5.3 that see blocks, or groups, of tokens, as goldens need them: documents of a packed row, and tokens behind padding, apart.

transformers 5.24 counts blocks from a row's first column, be there padding or several documents in it: padding on the left would have its part in a block,
and so would the document before; GLM-5.3's groups count from a row's first real token. Here attention is run on each document by itself, from position 0 on, as it is of a row of that document alone.
"""

import torch

from goldens.recurrence import document_spans, is_packed


def has_blocks(model):
    return model.config.model_type in ("deepseek_v4", "glm5_next_text", "minimax_m3_vl_text")


def blocks_that_are_picked(config):
    """How many blocks, groups or tokens an indexer picks for a token."""
    if config.model_type == "minimax_m3_vl_text":
        return config.index_topk_blocks
    if config.model_type == "qwen4_exp_text":
        return config.indexer_budget // config.indexer_compress_ratio
    return config.index_topk // getattr(config, "index_kpool", 1)


def _turns(rotary, config, rows, positions):
    if config.model_type == "deepseek_v4":
        return {kind: rotary(rows, position_ids=positions, layer_type=kind) for kind in ("main", "compress")}
    return rotary(rows, position_ids=positions)


def _of_each_document(forward, rotary, config, spans_of_rows):
    """`forward` of an attention module on each document by itself; what it gives padding is 0."""

    window = getattr(config, "sliding_window", None)

    def of_documents(hidden_states, position_embeddings, position_ids, attention_mask, **settings):
        result = torch.zeros_like(hidden_states)
        for row, spans in enumerate(spans_of_rows):
            for begin, end in spans:
                rows = hidden_states[row : row + 1, begin:end]
                positions = torch.arange(end - begin).unsqueeze(0)
                distance = positions.unsqueeze(-1) - positions.unsqueeze(-2)
                hidden = (distance < 0) if window is None else (distance < 0) | (distance >= window)
                mask = torch.zeros(1, 1, end - begin, end - begin, dtype=rows.dtype).masked_fill(hidden.unsqueeze(1), -torch.inf)
                turns = _turns(rotary, config, rows, positions)
                output, _ = forward(rows, position_embeddings=turns, position_ids=positions, attention_mask=mask, **settings)
                result[row, begin:end] = output[0]
        return result, None

    return of_documents


def _groups_of_each_document(forward, spans_of_rows):
    """The same of GLM-5.3's attention, which is handed, and hands on, what indexers have picked: here of each document."""

    def of_documents(hidden_states, attention_mask, prev_topk_indices=None, **settings):
        result, picked = torch.zeros_like(hidden_states), {}
        for row, spans in enumerate(spans_of_rows):
            for begin, end in spans:
                rows = hidden_states[row : row + 1, begin:end]
                of_document = None if prev_topk_indices is None else prev_topk_indices[row, begin]
                output, _, picked[row, begin] = forward(rows, attention_mask=attention_mask[row : row + 1, begin:end], prev_topk_indices=of_document, **settings)
                result[row, begin:end] = output[0]
        return result, None, picked

    return of_documents


def keep_groups_apart(backbone):
    """Lets the attention of `backbone`, a GLM-5.3 of transformers without its head, see one document of a packed row at a time."""

    def before(module, args, kwargs):
        for layer in module.layers:
            if layer.block_type == "linear_attention":
                continue  # keep_documents_apart
            layer.self_attn.__dict__.pop("forward", None)
            if is_packed(kwargs):
                layer.self_attn.forward = _groups_of_each_document(layer.self_attn.forward, document_spans(kwargs))

    backbone.register_forward_pre_hook(before, with_kwargs=True)


def keep_blocks_apart(backbone):
    """Lets the attention of `backbone`, a decoder of transformers without its head, see one document at a time."""
    if backbone.config.model_type == "glm5_next_text":
        keep_groups_apart(backbone)
        return

    def before(module, args, kwargs):
        for layer in module.layers:
            attention = layer.self_attn
            attention.__dict__.pop("forward", None)
            if kwargs.get("position_ids") is None and kwargs.get("attention_mask") is None:
                continue
            spans = document_spans({"attention_mask": kwargs.get("attention_mask"), "position_ids": kwargs.get("position_ids")})
            attention.forward = _of_each_document(attention.forward, module.rotary_emb, module.config, spans)

    backbone.register_forward_pre_hook(before, with_kwargs=True)
