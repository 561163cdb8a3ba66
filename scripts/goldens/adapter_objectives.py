"""The losses of adapters.py: inputs, loss and outputs of each, by transformers' and TRL's own code."""

import types

import torch
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.utils import add_fused_lm_head

from goldens.adapter_cases import BATCHES
from goldens.specs import Batch
from goldens.passes import IGNORED, forward
from goldens.trainers import light_trainer
from goldens.writing import make_inputs

PROMPT = 4  # tokens of a preference pair's prompt
BETA = 0.3


def preference_inputs(vocab_size, generator):
    """Two pairs: rows 0 and 1 chosen, 2 and 3 rejected, each with the prompt of its pair; padded on the right."""
    inputs = make_inputs(Batch((14, 10, 12, 15), "right"), vocab_size, generator)
    for pair in range(2):
        inputs["input_ids"][2 + pair, :PROMPT] = inputs["input_ids"][pair, :PROMPT]
    columns = torch.arange(inputs["input_ids"].shape[1])
    inputs["completion_mask"] = inputs["attention_mask"] * (columns >= PROMPT)
    del inputs["labels"]
    return inputs


class Sft:
    """ForCausalLMLoss of transformers."""

    name, variant = "sft", "mean"
    peer = "transformers: <Model>ForCausalLM.forward(labels=...) -> loss/loss_utils.py ForCausalLMLoss"

    def inputs(self, adapter, vocab_size, generator):
        return make_inputs(BATCHES[adapter.batch], vocab_size, generator)

    def prepare(self, base):
        pass

    def hyperparameters(self, adapter):
        return {
            "ignore_index": IGNORED,
            "reduction": "mean over labels != -100",
            "padding": BATCHES[adapter.batch].padding,
            "position_ids": "arange",
        }

    def loss(self, model, inputs):
        return forward(model, inputs).loss

    def outputs(self, model, inputs):
        with torch.no_grad():
            targets = inputs["labels"][:, 1:]
            log_p = forward(model, inputs).logits[:, :-1].log_softmax(-1)
            log_p = log_p.gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        return {"out.per_token_logps": torch.where(targets != IGNORED, log_p, 0.0)}

    def expected(self, inputs, loss):
        labels = int((inputs["labels"][:, 1:] != IGNORED).sum())
        return {"loss": loss, "num_valid_labels": labels}


class Dpo:
    """TRL's sigmoid loss; the reference is the model with its adapters disabled."""

    name, variant = "dpo", "sigmoid"
    peer = "TRL trainer/dpo_trainer.py DPOTrainer._compute_loss, called unbound with a namespace as self"

    def inputs(self, adapter, vocab_size, generator):
        return preference_inputs(vocab_size, generator)

    def prepare(self, base):
        add_fused_lm_head(base, outputs=("log_probs", "entropy", "mean_logits", "is_top1"))

    def hyperparameters(self, adapter):
        return {
            "beta": BETA,
            "loss_type": "sigmoid",
            "label_smoothing": 0.0,
            "f_divergence_type": "reverse_kl",
            "ld_alpha": None,
            "num_pairs": 2,
            "row_order": "rows 0..N-1 chosen, rows N..2N-1 rejected",
            "position_ids": "arange (TRL passes none)",
            "reference": "the base model with the adapter disabled",
        }

    def trainer(self, model):
        return light_trainer(
            DPOTrainer,
            model,
            ref_model=None,
            aux_loss_enabled=False,
            ld_alpha=None,
            precompute_ref_logps=False,
            f_divergence_type="reverse_kl",
            loss_types=["sigmoid"],
            loss_weights=[1.0],
            beta=BETA,
            label_smoothing=0.0,
            use_weighting=False,
            args=types.SimpleNamespace(gradient_checkpointing_kwargs=None),
            _total_train_tokens=0,
        )

    def loss(self, model, inputs):
        given = {name: inputs[name] for name in ("input_ids", "attention_mask", "completion_mask")}
        return DPOTrainer._compute_loss(self.trainer(model), model, given, return_outputs=False)

    def log_probabilities(self, model, inputs):
        labels = inputs["input_ids"].masked_fill(inputs["completion_mask"] == 0, IGNORED)
        with torch.no_grad():
            return model(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                use_cache=False,
                labels=labels,
                fused_lm_head=True,
            ).log_probs

    def outputs(self, model, inputs):
        policy = self.log_probabilities(model, inputs)
        with model.disable_adapter():
            reference = self.log_probabilities(model, inputs).sum(1)
        chosen, rejected = policy.sum(1).chunk(2)
        return {
            "out.per_token_logps": policy,
            "out.chosen_logps": chosen,
            "out.rejected_logps": rejected,
            "in.ref_chosen_logps": reference[:2],
            "in.ref_rejected_logps": reference[2:],
        }

    def expected(self, inputs, loss):
        return {"loss": loss}


OBJECTIVES = {"sft": Sft(), "dpo": Dpo()}
