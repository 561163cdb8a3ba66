"""Which attention a live model runs, and what its masks mean there."""

import torch

from .._library import InputError
from .attention_name import own_name
from .decoder import OF_TOWERS, text_config

# What a patched decoder takes next to inputs, masks and positions: whether it is there decides, or it is looked at elsewhere.
CACHES = ("past_key_values", "cache", "cache_params")  # transformers 5.24 has renamed it
DOCUMENTS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
TAKEN = {"input_ids", "attention_mask", "position_ids", "inputs_embeds", "use_cache", "return_dict", "output_attentions", "output_hidden_states",
         "output_router_logits", "num_items_in_batch", "is_causal", "seq_idx", *CACHES, *DOCUMENTS}


def implementation(base):
    """The name of the model's attention: "sdpa", "eager", "flash_attention_2", ..."""
    return str(own_name(text_config(base)) or "eager").removeprefix("paged|")


def check_attention(base):
    """Raises InputError for an attention that is not one of transformers' own causal ones: a registered or replaced function, is_causal=False.

    A replaced eager_attention_forward is found by check_functions().
    """
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if getattr(text_config(base), "is_causal", True) is False:
        raise InputError("is_causal is False in the model's config: tokens then see later ones, which a chunk can't; streambp computes causal "
                         "models")
    name = implementation(base)
    for what, functions in (("attention", ALL_ATTENTION_FUNCTIONS), ("mask", ALL_MASK_ATTENTION_FUNCTIONS)):
        function = functions.get(name) if name in functions else None
        own = getattr(function, "func", function)
        source = getattr(own, "__module__", None) or ""
        if function is None and name == "eager" or source.startswith("transformers."):
            continue
        if function is None:
            raise InputError(f"attn_implementation is '{name}', which is not registered here: its mathematics is not known; call "
                             "model.set_attn_implementation(\"sdpa\")")
        raise InputError(f"attn_implementation '{name}': its {what} function is {source}.{getattr(own, '__qualname__', own)}, which would not "
                         "run: streambp computes plain causal attention; call model.set_attn_implementation(\"sdpa\") if that is meant")


def mask_as_run(base, mask, position_ids, rows):
    """The mask [B, T] or None that stands for what the model's attention makes of mask and positions.

    transformers' flash attention drops a mask of ones, and takes documents from the positions of a single row alone; its others take a mask at
    its word, and documents from positions where there is none.
    """
    if "flash" not in implementation(base) or (mask is not None and mask.dim() != 2):
        return mask
    if mask is not None and bool(mask.all()):
        mask = None
    if mask is None and rows > 1 and position_ids is not None and position_ids.shape[-1] > 1:
        restarts = position_ids[..., 1:] != position_ids[..., :-1] + 1
        if bool(restarts.any()):
            return torch.ones(rows, position_ids.shape[-1], dtype=torch.int64, device=position_ids.device)
    return mask


def is_added(base, mask):
    """Whether the model's own attention adds a mask to scores that says by True and False what it hides: 1 is no more than 1 there, and nothing is hidden."""
    return torch.is_tensor(mask) and mask.dim() == 4 and not mask.is_floating_point() and implementation(base) == "eager"


ADDED = ("attention_mask: 4-D and not of floating point, with attn_implementation \"eager\", which adds it to scores, 1 where it is True, and hides nothing{}; "
         "give 0 and torch.finfo(dtype).min, or attn_implementation=\"sdpa\"")


def undivided(state, given):
    """`given`, a model's arguments by name, with a mask of ones where its own code would keep a cache, and so takes no notice of positions: where they
    leave some out and only ever grow (position interpolation's jumps), they are no documents. Positions that start anew stay documents, and that is said.

    state: what patch() has set on the model."""
    base = state.base
    positions, wanted = given.get("position_ids"), given.get("use_cache")
    keeps = getattr(text_config(base), "use_cache", False) if wanted is None else wanted
    if not keeps or not torch.is_tensor(positions) or positions.dim() != 2 or given.get("attention_mask") is not None or "flash" in implementation(base):
        return given
    steps = positions.diff()
    tokens = given["input_ids"] if given.get("input_ids") is not None else given.get("inputs_embeds")
    if tokens is None or bool((steps == 1).all()):
        return given
    if bool((steps < 1).any()):
        state.say_once("position_ids start anew within a row: documents are kept apart, as with use_cache=False; with a cache, its default, the model's own code lets "
                       "them see each other")
        return given
    return given | {"attention_mask": torch.ones(tokens.shape[:2], dtype=torch.int64, device=tokens.device)}


# Switches of a bias in front of a convolution, which shows where padding is: in what the convolution of a row's first tokens sees.
BIAS_BEFORE_CONVOLUTION = {
    **dict.fromkeys(("bamba", "falcon_h1", "granitemoehybrid"), "mamba_proj_bias"),
    **dict.fromkeys(("lfm2", "lfm2_moe", "lfm3"), "conv_bias"),
    "nemotron_h": "use_bias",
    "zamba2": "add_bias_linear",
}


def check_blocks(base, mask, embedded=False):
    """Raises InputError for what a model's own code makes of rows padded on the left: of DeepSeek V4's and MiniMax M3's blocks, and of convolutions
    behind a bias; and for embeddings without tokens where layers read these."""
    config = text_config(base)
    switch = BIAS_BEFORE_CONVOLUTION.get(config.model_type)
    is_padded_left = mask is not None and mask.dim() == 2 and bool((mask[:, 0] == 0).any())
    if switch is not None and is_padded_left and getattr(config, switch):
        raise InputError(f"attention_mask: rows are padded on the left, and with {switch} the model's own code lets padding into the convolutions of the tokens after it: "
                         "pad on the right, or patch(model, lane=\"module\") streams it as it is")
    if embedded and getattr(config, "ple_layer_ids", None):
        raise InputError("inputs_embeds: some layers add embeddings of n-grams of input_ids (ple_layer_ids); give input_ids")
    if config.model_type not in ("deepseek_v4", "minimax_m3_vl_text"):
        return
    if embedded and "hash_moe" in config.mlp_layer_types:
        raise InputError("inputs_embeds: some layers choose experts by input_ids (mlp_layer_types hash_moe); give input_ids")
    blocks = not set(config.layer_types) <= {"sliding_attention", "full_attention"}
    if blocks and is_padded_left:
        raise InputError("attention_mask: rows are padded on the left, and the model's own code counts padding into the blocks of tokens that its layers compress or pick: "
                         "pad on the right, or patch(model, lane=\"module\") streams it as it is")


def check_documents(given):
    """Raises InputError unless seq_idx, cu_seq_lens_q and its kin, where they are given, say what position_ids say."""
    index = given.get("seq_idx")
    if index is not None:
        positions = given.get("position_ids")
        if positions is None or not torch.equal(index[..., 1:] != index[..., :-1], positions[..., 1:] != positions[..., :-1] + 1):
            raise InputError("seq_idx: documents are told apart by position_ids here; expected position_ids that start at 0 with each of them")
    bounds = given.get("cu_seq_lens_q")
    if bounds is None and all(given.get(name) is None for name in DOCUMENTS):
        return
    positions = given.get("position_ids")
    others = given.get("cu_seq_lens_k")
    if bounds is None or positions is None or (others is not None and not torch.equal(others.cpu(), bounds.cpu())):
        raise InputError("cu_seq_lens_q: documents are told apart by position_ids here; expected position_ids that start at 0 with each of them, "
                         "and cu_seq_lens_k like cu_seq_lens_q")
    flat = positions.flatten().cpu()
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), 1 + (flat[1:] != flat[:-1] + 1).nonzero().flatten()])
    if not torch.equal(starts, bounds.flatten().cpu().long()[:-1]) or int(bounds.flatten()[-1]) != flat.numel():
        raise InputError("cu_seq_lens_q: its documents are not those of position_ids; expected both to begin them at the same tokens")


def check_keywords(given):
    """Raises InputError for an argument of a forward pass that streamed layers would drop."""
    if given.get("is_causal") is False:
        raise InputError("is_causal=False: streamed layers are causal; leave it out")
    for name, value in given.items():
        if name in TAKEN or value is None:
            continue
        if name in ("token_type_ids", "mm_token_type_ids") and not torch.as_tensor(value).any():
            continue  # 0 is text
        if name == "cache_position":
            continue  # columns are counted, and a cache is refused
        if name in OF_TOWERS:
            raise InputError(f"{name}: only text is streamed; call streambp_bench.unpatch(model) for batches with it")
        raise InputError(f"{name}: an argument that streamed layers don't know and would drop; expected some of "
                         f"{', '.join(sorted(TAKEN - set(CACHES) - {'is_causal'}))}; leave it out, or streambp_bench.unpatch(model)")
    check_documents(given)
