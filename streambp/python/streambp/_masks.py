"""Attention masks of four dimensions as what the engine takes: padding, and positions that tell documents apart."""

import torch

from ._library import InputError


def plain_mask(mask, positions, shape):
    """(attention_mask [B, T] or None, position_ids) of whatever was given as attention_mask.

    mask: None, [B, T], or [B or 1, heads or 1, T, T] (bool: True sees; floating: 0 sees) that says no more than causal attention over real
    tokens, or over the documents of packed rows that `positions` [B or 1, T] tell apart. shape: (B, T).
    Raises InputError for any other mask.
    """
    if mask is None or (torch.is_tensor(mask) and mask.dim() == 2):
        return mask, positions
    if not torch.is_tensor(mask) or mask.dim() != 4:
        what = f"{mask.dim()} dimensions" if torch.is_tensor(mask) else type(mask).__name__
        raise InputError(f"attention_mask: {what}, expected [rows, columns], or [rows, 1, columns, columns]")
    batch, columns = shape
    if mask.shape[0] not in (1, batch) or tuple(mask.shape[2:]) != (columns, columns):
        raise InputError(f"attention_mask: shape {list(mask.shape)}, expected [{batch}, 1, {columns}, {columns}]")
    sees = mask if mask.dtype == torch.bool else mask == 0
    if not (sees == sees[:, :1]).all():
        raise InputError("attention_mask: differs between heads, expected one mask for all of them")
    sees = sees[:, 0].expand(batch, columns, columns)
    real = sees.diagonal(dim1=1, dim2=2)
    causal = torch.ones(columns, columns, dtype=torch.bool, device=sees.device).tril()
    both = real.unsqueeze(1) & real.unsqueeze(2)
    expected = causal & both
    if torch.equal(sees & both, expected):
        return (None if real.all() else real.long()), positions
    documents = (torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1).cumsum(-1).expand(batch, columns)
    packed = expected & (documents.unsqueeze(1) == documents.unsqueeze(2))
    if real.all() and torch.equal(sees, packed):
        return None, positions
    raise InputError("attention_mask: four dimensions that are neither causal over real tokens nor over the documents of position_ids; "
                     "give a mask [rows, columns], or position_ids that begin again with each document")
