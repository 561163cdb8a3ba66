"""Golden cases of objectives on pairs and labelled rows: DPO, CPO, SimPO, ORPO and KTO as TRL's trainers compute them.

The losses are the trainers' own methods, called on trainers without data or arguments but those that the methods read.
Batches are made by TRL's collators, which pad on the right, and pass no position_ids.
"""

import inspect
import math
import textwrap
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from trl.experimental.cpo import cpo_trainer
from trl.experimental.orpo import orpo_trainer
from trl.experimental.utils import DPODataCollatorWithPadding
from trl.trainer import dpo_trainer, kto_trainer
from trl.trainer.utils import add_fused_lm_head

from goldens.checks import CheckError, check_finite_differences, check_results, check_routing, check_weights
from goldens.models import MODELS
from goldens.passes import IGNORED, ResultCheck, as_in_file, experts_per_token, gradients_of, load_model, read_tensors
from goldens.preference_cases import CASES, OWN_MODELS, PAIRS, ROWS
from goldens.trainers import light_trainer, wide_backward
from goldens.versions import installed
from goldens.writing import FIRST_TOKEN, describe_case, save_case, write_model

class Held:
    """Answers with the first value it was given: differences of a loss have to hold constant what it detaches."""

    def __init__(self):
        self.value = None

    def __call__(self, value):
        if self.value is None:
            self.value = value
        return self.value


def _dpo_loss():
    """DPOTrainer._compute_loss with float64 among the dtypes of its table of largest exponents, and WPO's weights held."""
    source = textwrap.dedent(inspect.getsource(dpo_trainer.DPOTrainer._compute_loss))
    for theirs, ours in (
        ("torch.float32: 80.0}", "torch.float32: 80.0, torch.float64: 80.0}"),
        ("weights = torch.exp(mean_logps)", "weights = self.held(torch.exp(mean_logps))"),
    ):
        if source.count(theirs) != 1:
            raise CheckError(f"DPOTrainer._compute_loss has no '{theirs}'")
        source = source.replace(theirs, ours)
    names = {}
    exec(source, dpo_trainer.__dict__, names)
    return names["_compute_loss"]


def _router(model):
    """As the constructors of TRL's DPO and KTO trainers set it without an argument of their own."""
    config = model.config.get_text_config()
    coefficient = getattr(config, "router_aux_loss_coef", 0.0)
    return {
        "router_aux_loss_coef": coefficient,
        "aux_loss_enabled": hasattr(config, "output_router_logits") and coefficient != 0.0,
    }


def _fused_trainer(cls, model, settings, **attributes):
    outputs = ("log_probs", "entropy", "mean_logits", "is_top1")
    if settings.get("use_weighting"):
        outputs += ("log_sum_sq_probs",)
    add_fused_lm_head(model, outputs=outputs)
    return light_trainer(
        cls,
        model,
        precompute_ref_logps=True,
        ref_model=None,
        _total_train_tokens=0,
        _tp_size=1,
        **_router(model),
        **attributes,
    )


def _tokens(count, vocabulary, generator):
    return torch.randint(FIRST_TOKEN, vocabulary, (count,), generator=generator).tolist()


def _near(generator, count):
    return (torch.randn(count, generator=generator) * 1.5).tolist()


class Dpo:
    defaults = {
        "loss_type": ["sigmoid"],
        "loss_weights": None,
        "beta": 0.1,
        "label_smoothing": 0.0,
        "f_divergence_type": "reverse_kl",
        "f_alpha_divergence_coef": 0.5,
        "ld_alpha": None,
        "use_weighting": False,
        "discopop_tau": 0.05,
    }
    described = {"num_pairs": len(PAIRS), "reference": "in.ref_*_logps only"}
    peer = "TRL trainer/dpo_trainer.py DPOTrainer._compute_loss"

    def batch(self, vocabulary, settings, generator):
        examples = []
        for prompt, chosen, rejected in PAIRS:
            typical = -math.log(vocabulary)
            nears = _near(generator, 2)
            examples.append(
                {
                    "prompt_ids": _tokens(prompt, vocabulary, generator),
                    "chosen_ids": _tokens(chosen, vocabulary, generator),
                    "rejected_ids": _tokens(rejected, vocabulary, generator),
                    "ref_chosen_logps": typical * chosen + nears[0],
                    "ref_rejected_logps": typical * rejected + nears[1],
                }
            )
        return dpo_trainer.DataCollatorForPreference(pad_token_id=0)(examples)

    def loss(self, model, settings):
        trainer = _fused_trainer(
            dpo_trainer.DPOTrainer,
            model,
            settings,
            loss_types=settings["loss_type"],
            loss_weights=settings["loss_weights"] or [1.0] * len(settings["loss_type"]),
            args=SimpleNamespace(discopop_tau=settings["discopop_tau"]),
            **{name: settings[name] for name in ("beta", "label_smoothing", "f_divergence_type", "ld_alpha")},
            f_alpha_divergence_coef=settings["f_alpha_divergence_coef"],
            use_weighting=settings["use_weighting"],
            held=Held(),
        )
        compute = _dpo_loss()
        return lambda inputs: compute(trainer, model, inputs, False)


class Kto:
    defaults = {
        "loss_type": "kto",
        "beta": 0.1,
        "desirable_weight": 1.0,
        "undesirable_weight": 1.0,
        "calculate_KL": True,
    }
    described = {}
    peer = "TRL trainer/kto_trainer.py KTOTrainer._compute_loss, the rows of the KL estimate put below the others"

    def batch(self, vocabulary, settings, generator):
        examples = []
        for prompt, completion, label, other in ROWS:
            typical = -math.log(vocabulary)
            nears = _near(generator, 2)
            example = {
                "prompt_ids": _tokens(prompt, vocabulary, generator),
                "completion_ids": _tokens(completion, vocabulary, generator),
                "label": label,
                "ref_logps": typical * completion + nears[0],
            }
            if settings["calculate_KL"]:
                example["KL_completion_ids"] = _tokens(other, vocabulary, generator)
                # Far enough below the policy's own for an estimate above 0.
                example["ref_KL_logps"] = typical * other - 8.0 + nears[1]
            examples.append(example)
        return kto_trainer.DataCollatorForUnpairedPreference(pad_token_id=0)(examples)

    def loss(self, model, settings):
        trainer = _fused_trainer(kto_trainer.KTOTrainer, model, settings, args=SimpleNamespace(), **settings)
        held, compute = Held(), trainer._compute_kl_logps
        trainer._compute_kl_logps = lambda model, batch: held(compute(model, batch))
        return lambda inputs: trainer._compute_loss(model, inputs, False)


class Cpo:
    defaults = {
        "loss_type": "sigmoid",
        "beta": 0.1,
        "label_smoothing": 0.0,
        "simpo_gamma": 0.5,
        "alpha": 0.0,
        "cpo_alpha": 1.0,
    }
    described = {"num_pairs": len(PAIRS)}
    peer = "TRL experimental/cpo/cpo_trainer.py CPOTrainer.get_batch_loss_metrics"
    trainer = cpo_trainer.CPOTrainer
    own = {"pad_token_id": 0}

    def batch(self, vocabulary, settings, generator):
        """The concatenated rows, with the completions' mask; `features` are what the trainer takes."""
        self.features = []
        for prompt, *completions in PAIRS:
            start = _tokens(prompt, vocabulary, generator)
            feature = {}
            for name, count in zip(("chosen", "rejected"), completions, strict=True):
                tokens = _tokens(count, vocabulary, generator)
                feature[f"{name}_input_ids"] = start + tokens
                feature[f"{name}_attention_mask"] = [1] * (prompt + count)
                feature[f"{name}_labels"] = [IGNORED] * prompt + tokens
            self.features.append(feature)
        self.features = DPODataCollatorWithPadding(pad_token_id=0)(self.features)
        rows = self.trainer.concatenated_inputs(self.features, padding_value=0)
        return {
            "input_ids": rows["concatenated_input_ids"],
            "attention_mask": rows["concatenated_attention_mask"],
            "completion_mask": (rows["concatenated_labels"] != IGNORED).long(),
        }

    def loss(self, model, settings):
        trainer = light_trainer(
            self.trainer,
            model,
            is_encoder_decoder=False,
            aux_loss_enabled=getattr(model.config, "output_router_logits", False),
            aux_loss_coef=getattr(model.config, "router_aux_loss_coef", 0.0),
            **self.own,
            **settings,
        )
        # The features hold the batch's own rows.
        return lambda inputs: trainer.get_batch_loss_metrics(model, self.features)[0]


class Orpo(Cpo):
    defaults = {"beta": 0.1}
    peer = "TRL experimental/orpo/orpo_trainer.py ORPOTrainer.get_batch_loss_metrics"
    trainer = orpo_trainer.ORPOTrainer
    own = {"padding_value": 0}
    # The first term is over all tokens of the chosen rows.
    described = {**Cpo.described, "nll": "sequence"}


OBJECTIVES = {"dpo": Dpo, "kto": Kto, "cpo": Cpo, "simpo": Cpo, "orpo": Orpo}


def _log_probabilities(model, inputs, prefix, scored):
    """Of the tokens that came, 0 where `scored` [B,T] is not, [B,T-1], from the model's logits."""
    logits = model(
        input_ids=inputs[f"{prefix}input_ids"], attention_mask=inputs[f"{prefix}attention_mask"], use_cache=False
    ).logits
    chosen = F.log_softmax(logits[:, :-1], -1).gather(-1, inputs[f"{prefix}input_ids"][:, 1:].unsqueeze(-1))
    return torch.where(scored[:, 1:].bool(), chosen.squeeze(-1), 0.0)


def _joined(tensors):
    """A KTO batch with the rows of the KL estimate below the others, distinguished by `role`."""
    roles = tensors.pop("in.label").long()
    of_estimate = {name: tensors.pop(name) for name in list(tensors) if ".KL_" in name or ".ref_KL_" in name}
    for name, rows in of_estimate.items():
        own = tensors[name.replace("KL_", "")]
        if rows.dim() == 2:
            width = max(own.size(1), rows.size(1))
            own, rows = (F.pad(each, (0, width - each.size(1))) for each in (own, rows))
        tensors[name.replace("KL_", "")] = torch.cat([own, rows])
    return {**tensors, "in.role": F.pad(roles, (0, len(tensors["in.input_ids"]) - len(roles)), value=2)}


def _evaluate(model, loss, case, inputs):
    """One forward and backward pass, and everything that the case holds."""
    model.zero_grad(set_to_none=True)
    total = loss(inputs)
    total.backward()
    tensors = {f"in.{name}": tensor for name, tensor in inputs.items()}
    tensors["out.loss"] = total.reshape(1)
    with torch.no_grad():
        scored = inputs["completion_mask"].clone()
        if case.objective == "orpo":
            scored[: len(PAIRS)] = inputs["attention_mask"][: len(PAIRS)]
        tensors["out.per_token_logps"] = _log_probabilities(model, inputs, "", scored)
        if "KL_input_ids" in inputs:
            tensors["out.KL_per_token_logps"] = _log_probabilities(
                model, inputs, "KL_", inputs["KL_completion_mask"]
            )
    if case.objective == "kto":
        tensors = _joined(tensors)
    gradients = as_in_file({name: parameter.grad for name, parameter in model.named_parameters()}, model.config.model_type)
    tensors |= {f"grad.{name}": gradient for name, gradient in gradients.items()}
    return {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}


def _describe(case, model_type, objective, settings):
    settings = {name: value for name, value in settings.items() if value is not None}
    if isinstance(settings.get("loss_type"), list) and len(settings["loss_type"]) == 1:
        settings["loss_type"] = settings["loss_type"][0]
    source = {
        "peer": f"{objective.peer}, of a trainer that has nothing but what it reads",
        "batch": "TRL's collator",
        "gradient": "torch.autograd through transformers' modules",
        "per_token_logps": "torch log_softmax of transformers' logits",
    }
    return describe_case(
        f"{case.model}-{case.objective}-{case.variant}",
        case.model,
        model_type,
        case.objective,
        case.variant,
        {**settings, **objective.described, "position_ids": "arange (TRL passes none)"},
        source,
        installed("torch", "transformers", "trl"),
    )


def _make_case(root, case, spec, seed):
    folder = root / "models" / case.model
    generator = torch.Generator().manual_seed(seed)
    objective = OBJECTIVES[case.objective]()
    settings = {**objective.defaults, **case.settings}
    inputs = dict(objective.batch(spec.settings["vocab_size"], settings, generator))
    with ResultCheck() as results, wide_backward():
        model = load_model(folder)
        loss = objective.loss(model, settings)
        tensors = _evaluate(model, loss, case, inputs)
        described = _describe(case, spec.model_type, objective, settings)
        if case.objective in ("simpo", "orpo"):
            described["hyperparameters"].pop("loss_type", None)
        squares = sum((gradient**2).sum().item() for gradient in gradients_of(tensors).values())
        described["expected"] = {"loss": tensors["out.loss"].item(), "grad_norm": math.sqrt(squares)}
        described["checks"] = {
            **check_results(results),
            **check_weights(model, tensors, read_tensors(folder / "model.safetensors")),
            "finite_difference": check_finite_differences(
                model, inputs, gradients_of(tensors), generator, loss_of=lambda model, inputs: loss(inputs)
            ),
        }
        if experts_per_token(model.config):
            described["checks"]["routing"] = check_routing(model, {**inputs, "position_ids": None, "labels": None}, tensors)
    save_case(root, described, tensors)


def make(root, names):
    """DIR/cases/<model>-<objective>-<variant> for CASES, or those of the models `names`."""
    for i, case in enumerate(CASES):
        if names and case.model not in names:
            continue
        spec = OWN_MODELS.get(case.model) or MODELS[case.model]
        if not (root / "models" / case.model).exists():
            write_model(root / "models" / case.model, spec)
        try:
            _make_case(root, case, spec, 5000 + 10 * i + case.seed)
        except CheckError as error:
            raise CheckError(f"{case.model}-{case.objective}-{case.variant}: {error}") from None
