"""The objectives of the topic `policy`: what their trainers are given, and their losses as TRL and verl compute them."""

from types import SimpleNamespace

import torch
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer
from trl.trainer.sft_trainer import SFTTrainer
from trl.trainer.utils import add_fused_lm_head

from goldens import verl_losses
from goldens.specs import Batch
from goldens.passes import IGNORED
from goldens.policy_cases import ROWS
from goldens.trainers import light_trainer
from goldens.writing import FIRST_TOKEN, make_inputs

GRPO_DEFAULTS = {
    "loss_type": "grpo",
    "beta": 0.0,
    "epsilon_low": 0.2,
    "epsilon_high": 0.2,
    "delta": None,
    "temperature": 1.0,
    "importance_sampling_level": "token",
    "sapo_temperature_neg": 1.05,
    "sapo_temperature_pos": 1.0,
    "vespo_k_pos": 2.0,
    "vespo_lambda_pos": 3.0,
    "vespo_k_neg": 3.0,
    "vespo_lambda_neg": 2.0,
    "top_entropy_quantile": 1.0,
    "entropy_coef": 0.0,
    "off_policy_mask_threshold": None,
    "use_bias_correction_kl": False,
}


class Held:
    """Calls a function once and gives its result ever after, for what runs without gradients."""

    def __init__(self, function):
        self.function = function
        self.result = None

    def __call__(self, *args, **kwargs):
        if self.result is None:
            self.result = self.function(*args, **kwargs)
        return self.result


class Grpo:
    peer = "TRL trainer/grpo_trainer.py GRPOTrainer._compute_loss"

    def __init__(self, case):
        self.case = case
        self.settings = {**GRPO_DEFAULTS, **case.settings}

    def batch(self, model, vocabulary, generator):
        inputs = padded_rows(self.case.model, vocabulary, generator)
        mask = inputs["completion_mask"]
        near = near_policy(model, inputs, self.settings["temperature"], mask, generator)
        inputs["advantages"] = torch.randn(len(mask), generator=generator)
        names = {"sampling": "sampling_per_token_logps", "old": "old_per_token_logps"}
        for name in filter(self.case.inputs.__contains__, names):
            inputs[names[name]] = near()
        if self.settings["beta"] > 0:
            inputs["ref_per_token_logps"] = near()
        # As vllm_importance_sampling_mode token_truncate and sequence_truncate make them of noise.
        noise = torch.randn(mask.shape, generator=generator) * 0.4 * mask
        if "ratio" in self.case.inputs:
            inputs["importance_sampling_ratio"] = noise.exp().clamp(max=self.case.inputs["ratio"])
        if "sequence_ratio" in self.case.inputs:
            ratio = noise.sum(-1, keepdim=True).exp()
            inputs["importance_sampling_ratio"] = ratio.clamp(max=self.case.inputs["sequence_ratio"])
        return inputs

    def described(self, inputs):
        described = {
            **self.settings,
            "prompt_length": inputs["input_ids"].size(1) - inputs["completion_mask"].size(1),
            "completion_length": inputs["completion_mask"].size(1),
            "max_completion_length": 48,
            "num_processes": 1,
            "current_gradient_accumulation_steps": 1,
            "steps_per_generation": 1,
            "position_ids": "arange (TRL passes none)",
            "completion": "the last completion_length columns of in.input_ids",
        }
        if self.settings["loss_type"] in ("dapo", "cispo", "vespo"):
            described["num_items_in_batch"] = int(inputs["completion_mask"].sum()) + 6
        if "importance_sampling_ratio" in inputs:
            described |= {"use_vllm": True, "vllm_importance_sampling_correction": True}
        if self.case.model == "qwen3-moe":
            described["router_aux_loss_coef"] = 0.0
        return described

    def loss(self, model, inputs):
        settings = self.described(inputs)
        return self.loss_of(
            GRPOTrainer,
            model,
            inputs,
            args=SimpleNamespace(report_to=[], **settings),
            current_gradient_accumulation_steps=1,
            use_vllm="importance_sampling_ratio" in inputs,
            vllm_importance_sampling_correction=True,
            use_adaptive_entropy=False,
            _entropy_bonus_enabled=settings["entropy_coef"] != 0.0,
            max_completion_length=settings["max_completion_length"],
            **{name: settings[name] for name in GRPO_DEFAULTS if name not in ("delta", "use_bias_correction_kl")},
        )

    def loss_of(self, cls, model, inputs, **attributes):
        settings = self.described(inputs)
        config = model.config
        coefficient = settings.get("router_aux_loss_coef", getattr(config, "router_aux_loss_coef", 0.0))
        trainer = light_trainer(
            cls,
            model,
            router_aux_loss_coef=coefficient,
            aux_loss_enabled=hasattr(config, "output_router_logits") and coefficient != 0.0,
            **attributes,
        )
        for name in ("get_high_entropy_mask", "get_off_policy_mask", "get_gamma_weights"):
            if hasattr(cls, name):
                setattr(trainer, name, Held(getattr(trainer, name)))
        start = settings["prompt_length"]
        given = {
            **inputs,
            "prompt_ids": inputs["input_ids"][:, :start],
            "prompt_mask": inputs["attention_mask"][:, :start],
            "completion_ids": inputs["input_ids"][:, start:],
            "num_items_in_batch": torch.tensor(float(settings.get("num_items_in_batch", 0))),
        }
        add_fused_lm_head(model, temperature=settings["temperature"], outputs=("log_probs", "entropy"))
        return lambda: trainer._compute_loss(model, given)

    def outputs(self, model, inputs, tensors):
        mask = inputs["completion_mask"]
        log_p = log_probabilities(model, inputs, self.settings["temperature"], mask.size(1))
        tensors["out.per_token_logps"] = log_p * mask
        return {}


class Rloo(Grpo):
    peer = "TRL trainer/rloo_trainer.py RLOOTrainer._compute_loss"

    def __init__(self, case):
        self.case = case
        self.settings = {"beta": 0.0, "epsilon_low": 0.2, "epsilon_high": 0.2, "temperature": 1.0, **case.settings}

    def batch(self, model, vocabulary, generator):
        inputs = super().batch(model, vocabulary, generator)
        inputs["old_logps"] = inputs.pop("old_per_token_logps").sum(1)
        return inputs

    def described(self, inputs):
        width = inputs["completion_mask"].size(1)
        return {
            **self.settings,
            "prompt_length": inputs["input_ids"].size(1) - width,
            "completion_length": width,
            "position_ids": "arange (TRL passes none)",
            "completion": "the last completion_length columns of in.input_ids",
        }

    def loss(self, model, inputs):
        return self.loss_of(
            RLOOTrainer,
            model,
            inputs,
            args=SimpleNamespace(report_to=[]),
            epsilon_low=self.settings["epsilon_low"],
            epsilon_high=self.settings["epsilon_high"],
        )


class Ppo:
    peer = "verl trainer/ppo/core_algos.py compute_policy_loss, kl_penalty, agg_loss, compute_value_loss"

    def __init__(self, case):
        self.case = case
        self.settings = {**verl_losses.DEFAULTS, **case.settings}

    def batch(self, model, vocabulary, generator):
        inputs = padded_rows(self.case.model, vocabulary, generator)
        mask = inputs.pop("completion_mask")
        inputs["position_ids"] = (inputs["attention_mask"].cumsum(1) - inputs["attention_mask"]).long()
        near = near_policy(model, inputs, self.settings["temperature"], mask, generator)
        width = mask.size(1)
        normal = lambda: torch.randn(mask.shape, generator=generator)  # noqa: E731
        inputs |= {
            "responses": inputs["input_ids"][:, -width:].contiguous(),
            "response_mask": mask,
            # One position longer where there is room, as in TRL; an empty response has none.
            "value_mask": mask | (torch.arange(width) == mask.sum(1, keepdim=True)) & (mask.sum(1, keepdim=True) > 0),
            "old_logprobs": near(),
            "advantages": normal() * mask,
            "old_values": normal(),
            "returns": normal(),
            "value_head.weight": normal()[:1, :1].new_empty(1, model.config.hidden_size).normal_(
                0.0, 0.3, generator=generator
            ),
        }
        if self.settings["kl_coef"] > 0:
            inputs["ref_logprobs"] = near()
        return inputs

    def described(self, inputs):
        width = inputs["responses"].size(1)
        return {
            **self.settings,
            "logits_divisor": self.settings["temperature"],
            "context_length": inputs["input_ids"].size(1) - width,
            "response_length": width,
            "value_model": "shared backbone",
            "position_ids": "attention_mask.cumsum(1) - attention_mask",
        }

    def loss(self, model, inputs):
        width = inputs["responses"].size(1)
        model.value_head = torch.nn.Linear(model.config.hidden_size, 1, bias=False)
        model.value_head.weight.data.copy_(inputs["value_head.weight"])
        return lambda: verl_losses.ppo(self.settings, inputs, *self._heads(model, inputs, width))

    def _heads(self, model, inputs, width):
        """Logits that predict the responses [B,R,V], divided by the temperature, and values there [B,R]."""
        positions = slice(-width - 1, -1)
        masks = {name: inputs[name] for name in ("input_ids", "attention_mask", "position_ids")}
        hidden = model.model(**masks, use_cache=False).last_hidden_state[:, positions]
        logits = model.lm_head(hidden)
        cap = getattr(model.config, "final_logit_softcapping", None)
        if cap is not None:
            logits = cap * torch.tanh(logits / cap)
        return logits / self.settings["temperature"], model.value_head(hidden).squeeze(-1)

    def outputs(self, model, inputs, tensors):
        width = inputs["responses"].size(1)
        logits, values = self._heads(model, inputs, width)
        log_p = logits.log_softmax(-1).gather(-1, inputs["responses"].unsqueeze(-1)).squeeze(-1)
        tensors["out.per_token_logps"] = log_p * inputs["response_mask"]
        tensors["out.values"] = values * inputs["value_mask"]
        return {}


class Dft:
    peer = "TRL trainer/sft_trainer.py SFTTrainer.compute_loss"

    def __init__(self, case):
        self.case = case

    def batch(self, model, vocabulary, generator):
        return make_inputs(Batch((15, 6, 11), "right"), vocabulary, generator)

    def described(self, inputs):
        return {
            "loss_type": "dft",
            "ignore_index": IGNORED,
            "reduction": "mean over labels != -100",
            "padding": "right",
            "position_ids": "arange",
        }

    def loss(self, model, inputs, items=None):
        trainer = light_trainer(
            SFTTrainer,
            model,
            args=SimpleNamespace(loss_type="dft", average_tokens_across_devices=False),
            aux_loss_enabled=False,
            compute_loss_func=None,
            label_smoother=None,
            _total_train_tokens=0,
        )
        add_fused_lm_head(model, outputs=("log_probs", "entropy", "is_top1"))
        return lambda: trainer.compute_loss(model, dict(inputs), num_items_in_batch=items)

    def outputs(self, model, inputs, tensors):
        labels = inputs["labels"][:, 1:]
        count = int((labels != IGNORED).sum())
        items = 2 * count + 3
        log_p = log_probabilities(model, inputs, 1.0, labels.size(1))
        tensors["out.per_token_logps"] = torch.where(labels != IGNORED, log_p, 0.0)
        return {
            "num_valid_labels": count,
            "num_items_in_batch": items,
            "loss_with_num_items_in_batch": self.loss(model, inputs, torch.tensor(items))().item(),
            "gradient_factor_with_num_items_in_batch": count / items,
        }


def padded_rows(model_name, vocabulary, generator):
    rows = ROWS.get(model_name, ROWS["others"])
    before, after = max(prompt for prompt, _ in rows), max(completion for _, completion in rows)
    mask = torch.zeros(len(rows), before + after, dtype=torch.int64)
    for row, (prompt, completion) in enumerate(rows):
        mask[row, before - prompt : before + completion] = 1
    tokens = torch.randint(FIRST_TOKEN, vocabulary, mask.shape, generator=generator)
    return {
        "input_ids": tokens * mask,
        "attention_mask": mask,
        "position_ids": torch.arange(before + after).repeat(len(rows), 1),
        "completion_mask": mask[:, before:].contiguous(),
    }


@torch.no_grad()
def log_probabilities(model, inputs, temperature, width):
    """Of the last `width` tokens of every row, [B, width], from the model's own logits."""
    masks = {name: inputs[name] for name in ("input_ids", "attention_mask", "position_ids")}
    logits = model(**masks, use_cache=False).logits[:, -width - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(-1, inputs["input_ids"][:, -width:].unsqueeze(-1)).squeeze(-1)


def near_policy(model, inputs, temperature, mask, generator):
    """Makes log-probabilities like the policy's own, 0 where nothing is scored."""
    log_p = log_probabilities(model, inputs, temperature, mask.size(1))
    return lambda: (log_p + torch.randn(mask.shape, generator=generator) * 0.3) * mask


OBJECTIVES = {"grpo": Grpo, "rloo": Rloo, "ppo": Ppo, "sft": Dft}
