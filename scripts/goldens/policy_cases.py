"""Which cases of policy objectives there are: see policy.py."""

from dataclasses import dataclass, field

from goldens.models.family_models import FAMILIES
from goldens.specs import COMMON, Batch, Model, rope

SMALL = "llama-small"
SMALL_MODEL = Model(
    "llama",
    seed=301,
    settings={
        **COMMON,
        "vocab_size": 37,
        "hidden_size": 16,
        "intermediate_size": 10,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "rope_parameters": rope(1000.0),
    },
    batches={"dft": Batch((15, 6, 11), "right")},
)

# Tokens of each row's prompt and completion. The last row's completion is masked out, as a truncated one is.
# phi3's are longer than its original context of 16 even without their padding, which PPO's positions leave out.
ROWS = {
    SMALL: ((5, 8), (2, 3), (4, 1), (3, 0)),
    "phi3": ((8, 5), (3, 12), (6, 1), (7, 11)),
    "others": ((8, 5), (3, 12), (6, 1), (7, 9)),
}


@dataclass(frozen=True)
class Case:
    """`inputs` names the tensors that the batch has in addition to advantages; a number is how far ratios are truncated."""

    model: str
    objective: str
    variant: str
    settings: dict = field(default_factory=dict)
    inputs: dict = field(default_factory=lambda: {"old": True})
    seed: int = 0  # another draw where one of the settings would make no difference


SEQUENCE = {"importance_sampling_level": "sequence"}
TOKEN_RATIO = {"old": True, "ratio": 1.5}
SEQUENCE_RATIO = {"old": True, "sequence_ratio": 1.2}

ROUTER = {model: {"router_aux_loss_coef": 0.05} for model in ("mixtral", "qwen2-moe", "gpt-oss", "qwen3-next", "qwen3-5-moe", "qwen4-exp")}

CASES = (
    Case("mistral", "grpo", "delta", {"delta": 1.1, "beta": 0.05, "use_bias_correction_kl": True}),
    Case("phi3", "grpo", "cispo_is", {"loss_type": "cispo", "epsilon_high": 1.15, "temperature": 0.8}, TOKEN_RATIO),
    Case("gemma2", "grpo", "sapo", {"loss_type": "sapo", "temperature": 1.2, "beta": 0.04}),
    Case("qwen3-moe", "grpo", "entropy", {"loss_type": "dapo", "top_entropy_quantile": 0.4, "entropy_coef": 0.05}),
    Case("qwen3-moe-aux", "grpo", "aux", {"loss_type": "luspo", **SEQUENCE}),
    Case(SMALL, "grpo", "delta", {"delta": 1.25, "epsilon_high": 0.28}),
    Case(SMALL, "grpo", "gspo_delta", {"delta": 1.05, "epsilon_high": 0.04, **SEQUENCE}),
    Case(SMALL, "grpo", "cispo_onpolicy", {"loss_type": "cispo", "epsilon_high": 5.0}, {}),
    Case(SMALL, "grpo", "cispo_gspo", {"loss_type": "cispo", "epsilon_high": 1.02, "entropy_coef": 0.1, **SEQUENCE}),
    Case(SMALL, "grpo", "sapo", {"loss_type": "sapo", "sapo_temperature_neg": 2.5, "sapo_temperature_pos": 0.7}),
    Case(SMALL, "grpo", "vespo", {"loss_type": "vespo", "beta": 0.1}),
    Case(SMALL, "grpo", "vespo_is", {"loss_type": "vespo", "vespo_k_neg": 0.5, "vespo_lambda_pos": 1.5}, TOKEN_RATIO, 1),
    Case(SMALL, "grpo", "luspo", {"loss_type": "luspo"}),
    Case(SMALL, "grpo", "entropy", {"entropy_coef": 0.2, "temperature": 0.7}),
    Case(SMALL, "grpo", "top_entropy", {"top_entropy_quantile": 0.2, "loss_type": "bnpo", "beta": 0.3}),
    Case(SMALL, "grpo", "top_entropy_onpolicy", {"top_entropy_quantile": 0.5, "entropy_coef": 0.02}, {}),
    Case(
        SMALL,
        "grpo",
        "off_policy_mask",
        {"off_policy_mask_threshold": 0.05, "beta": 0.1, "use_bias_correction_kl": True},
        {"old": True, "sampling": True},
        seed=2,
    ),
    Case(SMALL, "grpo", "off_policy_mask_old", {"off_policy_mask_threshold": 0.02, "loss_type": "dapo"}),
    Case(SMALL, "grpo", "bias_correction", {"beta": 0.5, "use_bias_correction_kl": True, **SEQUENCE}),
    Case(SMALL, "grpo", "is_token", {"loss_type": "dapo", "beta": 0.2}, TOKEN_RATIO),
    Case(SMALL, "grpo", "is_sequence", {"loss_type": "dr_grpo"}, SEQUENCE_RATIO),
    Case("gemma2", "ppo", "entropy_k1", {"entropy_coef": 0.05, "kl_coef": 0.2, "kl_estimator": "k1"}),
    Case("mistral", "ppo", "dual_k2", {"clip_ratio_c": 1.3, "kl_coef": 0.2, "kl_estimator": "k2"}),
    Case("phi3", "ppo", "entropy_k3", {"entropy_coef": 0.1, "kl_coef": 0.3, "temperature": 0.7}),
    Case("qwen3-moe", "ppo", "entropy_k3", {"entropy_coef": 0.02, "kl_coef": 0.1, "clip_ratio_c": 1.25}),
    Case(SMALL, "ppo", "entropy", {"entropy_coef": 0.1}),
    Case(SMALL, "ppo", "k3", {"kl_coef": 0.4, "temperature": 1.3}),
    Case(SMALL, "rloo", "clipped", {"epsilon_low": 0.1, "epsilon_high": 0.3, "temperature": 0.8}, seed=1),
    Case("qwen3-moe-aux", "rloo", "aux"),
    Case(SMALL, "sft", "dft"),
    Case("gemma2", "sft", "dft"),
    *(Case(model, "grpo", "grpo_kl", {"beta": 0.1, "temperature": 0.9, **ROUTER.get(model, {})}) for model in FAMILIES),
)
