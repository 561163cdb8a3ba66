"""Which cases of preference objectives there are: see preference.py."""

from dataclasses import dataclass, field

from goldens.models.family_models import FAMILIES
from goldens.specs import COMMON, Model, rope

PAIRS_MODEL = "qwen3-pairs"
OWN_MODELS = {
    PAIRS_MODEL: Model(
        "qwen3",
        seed=201,
        settings={
            **COMMON,
            "vocab_size": 31,
            "hidden_size": 16,
            "intermediate_size": 12,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 8,
            "tie_word_embeddings": True,
            "rope_parameters": rope(1000.0),
        },
        batches={},
    )
}

# (prompt, chosen completion, rejected completion), and (prompt, completion, label, completion of the KL estimate).
PAIRS = ((5, 7, 9), (3, 8, 2), (4, 3, 6))
ROWS = ((5, 7, True, 4), (3, 6, False, 8), (6, 2, True, 5), (2, 9, False, 3))


@dataclass(frozen=True)
class Case:
    model: str
    objective: str
    variant: str
    settings: dict = field(default_factory=dict)
    seed: int = 0  # of another batch, where differences of the first are too coarse a check


def _pairs_cases():
    dpo = {
        "sigmoid_norm": {"loss_type": ["sigmoid_norm"]},
        "hinge": {"loss_type": ["hinge"], "beta": 0.3},
        "exo_pair": {"loss_type": ["exo_pair"], "label_smoothing": 0.05},
        "nca_pair": {"loss_type": ["nca_pair"]},
        "bco_pair": {"loss_type": ["bco_pair"]},
        "sppo_hard": {"loss_type": ["sppo_hard"], "beta": 0.4},
        "aot": {"loss_type": ["aot"], "label_smoothing": 0.1},
        "aot_unpaired": {"loss_type": ["aot_unpaired"]},
        "apo_zero": {"loss_type": ["apo_zero"]},
        "apo_down": {"loss_type": ["apo_down"]},
        "discopop": {"loss_type": ["discopop"], "discopop_tau": 0.2},
        "sft": {"loss_type": ["sft"]},
        "mpo": {"loss_type": ["sigmoid", "bco_pair", "sft"], "loss_weights": [0.8, 0.2, 1.0]},
        "ld_alpha": {"loss_type": ["sigmoid"], "ld_alpha": 0.3},
        "wpo": {"loss_type": ["sigmoid", "nca_pair"], "loss_weights": [1.0, 0.5], "use_weighting": True},
        "forward_kl": {"loss_type": ["sigmoid"], "f_divergence_type": "forward_kl"},
        "js_divergence": {"loss_type": ["robust"], "label_smoothing": 0.2, "f_divergence_type": "js_divergence"},
        "alpha_divergence": {
            "loss_type": ["ipo"],
            "f_divergence_type": "alpha_divergence",
            "f_alpha_divergence_coef": 0.7,
        },
    }
    cpo = {
        "sigmoid": {"loss_type": "sigmoid", "label_smoothing": 0.1, "cpo_alpha": 0.5},
        "hinge": {"loss_type": "hinge", "cpo_alpha": 0.0},
        "ipo": {"loss_type": "ipo", "beta": 0.2},
        "alphapo": {"loss_type": "simpo", "alpha": 0.25, "cpo_alpha": 0.0, "beta": 1.5},
    }
    yield from (Case(PAIRS_MODEL, "dpo", name, settings) for name, settings in dpo.items())
    yield from (Case(PAIRS_MODEL, "cpo", name, settings) for name, settings in cpo.items())
    simpo = {"loss_type": "simpo", "cpo_alpha": 0.0, "beta": 2.0, "simpo_gamma": 0.7}
    yield Case(PAIRS_MODEL, "simpo", "simpo", simpo)
    yield Case(PAIRS_MODEL, "simpo", "simpo_smoothed", {**simpo, "label_smoothing": 0.1, "cpo_alpha": 0.3})
    yield Case(PAIRS_MODEL, "orpo", "orpo", {"beta": 0.25})
    yield Case(PAIRS_MODEL, "kto", "kto", {"calculate_KL": False, "desirable_weight": 1.3, "undesirable_weight": 0.8})
    yield Case(PAIRS_MODEL, "kto", "kto_kl", {"calculate_KL": True, "beta": 0.2})
    yield Case(PAIRS_MODEL, "kto", "apo_zero_unpaired", {"calculate_KL": False, "loss_type": "apo_zero_unpaired"})
    yield Case("phi3", "dpo", "hinge", {"loss_type": ["hinge"]})
    yield Case("mistral", "dpo", "sigmoid", {"loss_type": ["sigmoid"], "beta": 0.2})
    yield Case("gemma2", "dpo", "robust", {"loss_type": ["robust"], "label_smoothing": 0.1})
    yield Case("qwen3-moe", "dpo", "sigmoid", {"loss_type": ["sigmoid"]})
    yield Case("qwen3-moe-aux", "dpo", "ipo", {"loss_type": ["ipo"]})
    yield Case("qwen3-moe-aux", "orpo", "orpo", {})
    yield Case("qwen3-moe-aux", "kto", "kto_kl", {"calculate_KL": True})
    for model in FAMILIES:
        yield Case(model, "dpo", "sigmoid", {"loss_type": ["sigmoid"], "beta": 0.3}, seed=1 if model == "zamba2" else 0)


CASES = tuple(_pairs_cases())
