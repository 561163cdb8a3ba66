"""Where a transformers model has its decoder: base.model, or base.model.language_model next to a tower for images (transformers 5).

Classes with such a tower (WHOLE) are trained on text alone here: what the tower has no part in, as Hugging Face's own forward has it for
batches without images. Everything that is said of a model is then said of its decoder and head.
"""

from .._library import InputError
from .families import WHOLE

PREFIX = "model.language_model."
# Of config.json: tokens whose embeddings a whole model replaces by what its towers give.
REPLACED = ("image_token_id", "video_token_id", "audio_token_id")
# Inputs that belong to a tower: text alone is streamed.
OF_TOWERS = ("pixel_values", "pixel_values_videos", "image_sizes", "image_grid_thw", "video_grid_thw", "image_position_ids", "video_position_ids",
             "num_frames_per_video", "input_features", "input_features_mask", "input_values", "input_values_mask", "mm_encoder_outputs", "per_layer_inputs")
# What whole models hand on for their towers alone, be there images or not.
FOR_TOWERS = ("labels", "vision_feature_layer")


def model_class(base):
    """The class of a transformers model: FSDP2 puts one of its own in front of it."""
    return next(kind for kind in type(base).__mro__ if not kind.__module__.startswith("torch.distributed."))


def is_whole(base):
    return model_class(base).__name__ in WHOLE


def decoder(base):
    """The decoder, with embedding, layers and final norm."""
    return base.model.language_model if is_whole(base) else base.model


def last_norm(backbone):
    """The decoder's final norm, which Nemotron-H, LFM2 and Bamba call otherwise; of Qwen4-Exp what reads its streams, and norms them."""
    return next(getattr(backbone, name) for name in ("norm", "norm_f", "embedding_norm", "final_layernorm", "hyper_connection_mixer") if hasattr(backbone, name))


def has_streams(backbone):
    """Whether a token has several residual streams between layers (Hunyuan 4, DeepSeek V4, GLM-5.3, Qwen4-Exp), packed side by side [N, S D]."""
    return hasattr(backbone, "hc_head") or hasattr(backbone, "hyper_connection_mixer")


def into_streams(backbone, hidden):
    """[N, S D] of packed embeddings [N, D], once for each stream."""
    if not has_streams(backbone):
        return hidden
    return hidden.repeat(1, backbone.config.hc_mult if hasattr(backbone, "hc_head") else backbone.config.hc_count)


def final_rows(backbone, hidden):
    """What the head reads [N, D] of packed hidden states between layers."""
    if hasattr(backbone, "hc_head"):
        hidden = backbone.hc_head(hidden.unflatten(1, (backbone.config.hc_mult, -1)).unsqueeze(0)).squeeze(0)
    return last_norm(backbone)(hidden)


def text_config(base):
    """The decoder's config."""
    return base.config.get_text_config() if is_whole(base) else base.config


def fingerprint(config):
    """Text that differs where what two configs of a class hold does; to_json_string() takes fifty times as long."""
    return repr({key: fingerprint(value) if hasattr(value, "to_json_string") else value for key, value in vars(config).items()})


def text_class_name(base):
    """The name of the class that decoder and head alone would be of. Raises InputError for a decoder that the whole class is not known with."""
    name = model_class(base).__name__
    if name not in WHOLE:
        return name
    inner = model_class(decoder(base)).__name__
    if inner not in WHOLE[name]:
        raise InputError(f"{name}: its text model is a {inner}, expected a {' or a '.join(WHOLE[name])}")
    return WHOLE[name][inner]


def text_name(base, name):
    """The name that a module or parameter would have in a model of decoder and head alone; None for a tower's."""
    if not is_whole(base) or not name.startswith("model.") or name == PREFIX[:-1]:
        return name
    return "model." + name.removeprefix(PREFIX) if name.startswith(PREFIX) else None


def text_modules(base):
    """[(name, module)] of the modules that take part in a pass over text. A walk takes a millisecond: who checks several things hands the list on."""
    modules = list(base.named_modules())
    return [pair for pair in modules if text_name(base, pair[0]) is not None] if is_whole(base) else modules


def check_text_tokens(base, input_ids):
    """Raises InputError for tokens that stand for images, sounds or videos."""
    if not is_whole(base) or input_ids is None:
        return
    for key in REPLACED:
        token = getattr(base.config, key, None)
        if token is not None and bool((input_ids == token).any()):
            raise InputError(f"batch: input_ids has token {token}, the config's {key}: only text is streamed; leave such rows to "
                             "model(**batch).loss.backward()")
