"""What a tiny model and a batch of make_goldens.py are given, and the settings that many models share."""

from dataclasses import dataclass, field

LONGEST = 29


@dataclass(frozen=True)
class Batch:
    """Rows of `lengths` tokens, padded on one side to the longest of them; the first `prompts` of each are not scored."""

    lengths: tuple
    padding: str = "none"
    prompts: tuple = ()


BATCHES = {
    "b1": Batch((LONGEST,)),
    "b3_right": Batch((LONGEST, 11, 18), "right"),
    "b3_left": Batch((17, LONGEST, 10), "left"),
}

PROMPTS = {"b3_right_promptmask": Batch((LONGEST, 11, 18), "right", (9, 3, 12))}

FEW = {name: BATCHES[name] for name in ("b1", "b3_left")}

# The original context of the models with one of 16: the last length that leaves their frequencies alone.
SHORT = {"b1_short": Batch((16,))}


@dataclass(frozen=True)
class Model:
    """`settings` go to the config class of `model_type`; `legacy` is what transformers 4 spells otherwise.

    None where transformers 4 can't say it: then there is no config.legacy.json.
    """

    model_type: str
    seed: int
    settings: dict
    legacy: dict | None = field(default_factory=dict)
    batches: dict = field(default_factory=lambda: BATCHES)
    norms_add_one: bool = False


COMMON = {
    "vocab_size": 83,
    "hidden_size": 24,
    "intermediate_size": 14,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}


def rope(theta, rope_type="default", **settings):
    return {"rope_type": rope_type, "rope_theta": theta, **settings}
