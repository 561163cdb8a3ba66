"""A batch as transformers' and TRL's collators make it, as the engine takes it: tensors by name, padding known by a mask [B, T]."""

from collections.abc import Mapping

import torch

from ._library import InputError
from ._live_model.attention import DOCUMENTS, check_blocks, check_documents, mask_as_run
from ._live_model.decoder import OF_TOWERS, check_text_tokens

TEXTS = ("prompt", "chosen", "rejected")  # of a row of pairs
NOT_STREAMED = {
    "past_key_values": "a cache of earlier tokens has no gradients; pass the whole sequence",
    "cache": "a cache of earlier tokens has no gradients; pass the whole sequence",
    "cache_position": "a cache of earlier tokens has no gradients; pass the whole sequence",
    "inputs_embeds": "the embedding's gradients need token ids; pass input_ids",
    **dict.fromkeys(OF_TOWERS, "only text is streamed; leave such batches to model(**batch).loss.backward()"),
    "use_cache": "a step keeps no cache; leave it out",
    "output_attentions": "attention weights are never there as a whole; leave it out",
    "output_hidden_states": "hidden states are not kept; leave it out",
    "is_causal": "models are causal; leave it out",
    "head_mask": "not supported; leave it out",
}


def batch_tensors(batch, base=None):
    """{name: tensor} of a dict, BatchEncoding or BatchFeature; numbers become tensors, entries that are None are left out.

    base: the transformers model whose attention says what mask and positions mean (mask_as_run).

    A mask [B, 1, T, T] that is causal becomes one [B, T]; one that keeps documents apart is left out where position_ids [B, T] says the
    same. Raises InputError for anything else.
    """
    if not isinstance(batch, Mapping):
        raise InputError(f"batch: expected a dict of tensors, got {type(batch).__name__}")
    tensors = {}
    for name, value in batch.items():
        if value is None:
            continue
        if name in NOT_STREAMED and value is (name == "is_causal"):
            continue
        if name in DOCUMENTS or name == "seq_idx":
            continue
        if name in NOT_STREAMED:
            raise InputError(f"batch: {name}: {NOT_STREAMED[name]}")
        if name in TEXTS and "chosen_input_ids" in batch and not isinstance(value, torch.Tensor):
            continue  # CPO's and ORPO's collator hands them on, next to their tokens
        if isinstance(value, (bool, str)) or not isinstance(value, (int, float, torch.Tensor)):
            raise InputError(f"batch: {name} is a {type(value).__name__}, expected a tensor")
        if name in ("token_type_ids", "mm_token_type_ids") and not torch.as_tensor(value).any():
            continue  # tokenizers write them; 0 is text
        tensors[name] = value.detach() if isinstance(value, torch.Tensor) else torch.tensor(value)
        if tensors[name].is_meta or tensors[name].is_complex() or tensors[name].layout != torch.strided:
            kind = "on the meta device" if tensors[name].is_meta else f"{tensors[name].dtype}, {tensors[name].layout}"
            raise InputError(f"batch: {name} is {kind}, expected a dense tensor of real numbers")
    if not any(name in tensors for name in ("input_ids", "prompt_ids", "chosen_input_ids")):
        raise InputError(f"batch: no input_ids in it, only {', '.join(map(str, tensors)) or 'nothing'}")
    mask = tensors.get("attention_mask")
    if mask is not None and mask.dim() == 4:
        flat = mask_of_columns(mask, tensors.get("position_ids"))
        if flat is None:
            del tensors["attention_mask"]
        else:
            tensors["attention_mask"] = flat
    check_documents(batch)
    for name in tensors if base is not None else ():
        if name.endswith(("attention_mask", "prompt_mask")):
            check_blocks(base, tensors[name])
    if base is not None and "input_ids" in tensors:
        ids = tensors["input_ids"]
        check_text_tokens(base, ids)
        mask = mask_as_run(base, tensors.get("attention_mask"), tensors.get("position_ids"), ids.shape[0] if ids.dim() > 1 else 1)
        tensors.pop("attention_mask", None)
        if mask is not None:
            tensors["attention_mask"] = mask
    return tensors


def mask_of_columns(mask, position_ids=None):
    """The mask [B, T] of int64, 1 real and 0 padding, that a causal mask [B, 1, T, T] stands for; None where it keeps documents of a row
    apart as position_ids [B, T] does.

    mask: bool, True where a query (the third dimension) sees a key; or floats to add to the scores, 0 where it does. What padding's own
    queries see does not matter. Raises InputError for masks of any other form.
    """
    if mask.shape[1] != 1 or mask.shape[2] != mask.shape[3]:
        raise InputError(f"attention_mask: shape {list(mask.shape)}, expected [B, T], or [B, 1, T, T] that is causal or keeps documents apart")
    sees = (mask if mask.dtype == torch.bool else mask == 0)[:, 0]
    real = sees.diagonal(dim1=1, dim2=2)
    columns = torch.arange(sees.shape[1], device=sees.device)
    causal = columns[None, :, None] >= columns[None, None, :]
    if not (sees ^ (causal & real[:, None, :]))[real].any():
        return real.long()
    first = sees.int().argmax(-1)  # the first key that each query sees: its document's first token
    starts = torch.equal(first.gather(1, first), first)  # else a window, which moves with the query
    if real.all() and starts and torch.equal(sees, causal & (columns[None, None, :] >= first[:, :, None])):
        if position_ids is not None and torch.equal(position_ids.expand(first.shape), columns - first):
            return None
        raise InputError("attention_mask: keeps documents of a row apart; expected position_ids that start at 0 with each of them")
    raise InputError("attention_mask: 4-D, and neither causal nor one that keeps documents of a row apart: only these are streamed")
