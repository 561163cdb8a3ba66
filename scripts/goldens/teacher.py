"""Golden cases of distillation, reward models and embeddings.

The losses are other people's code, called as it is: TRL's GKDTrainer.generalized_jsd_loss (of distillation's labels:
transformers' ForCausalLMLoss), TRL's RewardTrainer.compute_loss, sentence-transformers' Pooling and
MultipleNegativesRankingLoss.
"""

import json
import math
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
import transformers
from trl.experimental.gkd import GKDTrainer
from trl.trainer.reward_trainer import RewardTrainer

from goldens.checks import CheckError, check_finite_differences, check_results, check_weights
from goldens.passes import IGNORED, ResultCheck, as_in_file, gradients_of, load_model, read_tensors
from goldens.specs import COMMON, Batch, Model, rope
from goldens.trainers import light_trainer
from goldens.writing import describe_case, make_inputs, save_case, write_model

VERSIONS = {"torch": "2.11.0", "transformers": "5.23.0", "trl": "1.16.0"}
OF_INFONCE = {**VERSIONS, "sentence-transformers": "6.2.0"}

SMALL = {
    **COMMON,
    "vocab_size": 61,
    "hidden_size": 16,
    "intermediate_size": 14,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "pad_token_id": 0,
}
OWN_MODELS = {
    "qwen3-score": Model(
        "qwen3", seed=401, settings={**SMALL, "num_labels": 1, "rope_parameters": rope(1000.0)}, batches={}
    ),
    "gemma2-score": Model(
        "gemma2",
        seed=402,
        settings={
            **SMALL,
            "num_labels": 1,
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": 18,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
            "sliding_window": 6,
            "rope_parameters": rope(1000.0),
        },
        legacy={"hidden_act": "gelu_pytorch_tanh"},
        batches={},
        norms_add_one=True,
    ),
}

RIGHT = Batch((19, 8, 13), "right")
LEFT = Batch((9, 17, 12), "left")
PAIRS = Batch((17, 9, 12, 15, 11, 6), "right")
PAIRS_LEFT = Batch((7, 16, 13, 4), "left")


@dataclass(frozen=True)
class Case:
    objective: str
    model: str
    variant: str
    batch: Batch
    options: dict = field(default_factory=dict)  # hyperparameters of case.json, by the objective's option names
    teacher: str = ""


CASES = (
    Case("distill", "mistral", "jsd", RIGHT, {"divergence": "jsd", "beta": 0.5}, "qwen2-window"),
    Case("distill", "gemma2", "jsd_0.1", LEFT, {"divergence": "jsd", "beta": 0.1, "temperature": 2.0}, "phi3"),
    Case(
        "distill",
        "phi3",
        "jsd_forward",
        RIGHT,
        {"divergence": "jsd", "beta": 0.0, "temperature": 0.7, "num_items_in_batch": 77},
        "mistral",
    ),
    Case("distill", "qwen3-moe", "jsd_reverse", LEFT, {"divergence": "jsd", "beta": 1.0}, "phi3"),
    Case(
        "distill",
        "qwen3-moe",
        "jsd_0.7_alpha",
        RIGHT,
        {"divergence": "jsd", "beta": 0.7, "temperature": 1.4, "alpha": 0.6},
        "mistral",
    ),
    Case("distill", "llama-yarn", "forward_alpha", RIGHT, {"divergence": "forward", "temperature": 2.0, "alpha": 0.5}, "phi3"),
    Case("distill", "gemma2", "reverse_alpha", RIGHT, {"divergence": "reverse", "temperature": 1.5, "alpha": 0.3}, "mistral"),
    # The teacher's table is longer, then the student's.
    Case(
        "distill",
        "qwen3",
        "longer_teacher",
        RIGHT,
        {"divergence": "jsd", "beta": 0.5, "temperature": 1.5, "alpha": 0.8, "vocabulary": "shared"},
        "llama",
    ),
    Case(
        "distill",
        "llama",
        "longer_student",
        LEFT,
        {"divergence": "forward", "temperature": 1.5, "alpha": 0.8, "vocabulary": "shared"},
        "qwen3",
    ),
    Case("reward", "qwen3-score", "margin", PAIRS, {"margin": True}),
    Case("reward", "qwen3-score", "centered_left", PAIRS_LEFT, {"center_rewards_coefficient": 0.05}),
    Case("reward", "gemma2-score", "centered", PAIRS, {"center_rewards_coefficient": 0.01, "margin": True}),
    Case("infonce", "llama-tied", "last", PAIRS, {"pooling": "last", "scale": 20.0}),
    Case("infonce", "qwen2-window", "mean_left", PAIRS_LEFT, {"pooling": "mean", "scale": 10.0, "symmetric": True}),
    Case("infonce", "gemma2", "negatives", PAIRS, {"pooling": "mean", "scale": 5.0, "negatives": 1}),
    Case("infonce", "llama-yarn", "dot", PAIRS, {"pooling": "last", "scale": 0.5, "similarity": "dot"}),
    # Rows that end with real tokens of pad_token_id: their score is taken before these.
    Case("reward", "qwen3-score", "real_pad", PAIRS, {"real_pad": True}),
    # Logits that are scaled, of the student and of the teacher.
    Case("distill", "granite", "jsd_alpha", RIGHT, {"divergence": "jsd", "beta": 0.4, "temperature": 1.3, "alpha": 0.7}, "glm4"),
    Case("distill", "glm4", "forward", LEFT, {"divergence": "forward", "temperature": 0.8}, "granite"),
)

PEERS = {
    "distill": "TRL: experimental/gkd GKDTrainer.generalized_jsd_loss; labels: transformers' ForCausalLMLoss",
    "reward": "TRL: RewardTrainer.compute_loss on transformers' <Model>ForSequenceClassification",
    "infonce": "sentence-transformers: Pooling, MultipleNegativesRankingLoss.compute_loss_from_embeddings",
}


def passed_on(inputs):
    return {name: inputs[name] for name in ("input_ids", "attention_mask", "position_ids")}


def shared(logits, tokens):
    """Logits of the first tokens, which both models have: what a teacher cut to the student's size says (GOLDTrainer)."""
    return logits[..., :tokens]


def distill_loss(case, model, teacher, inputs):
    options = case.options
    outputs = model(**passed_on(inputs), labels=inputs["labels"], use_cache=False)
    with torch.no_grad():
        of_teacher = teacher(**passed_on(inputs), use_cache=False).logits
    tokens = min(outputs.logits.shape[-1], of_teacher.shape[-1])
    temperature, alpha = options.get("temperature", 1.0), options.get("alpha", 1.0)
    hinton = options["divergence"] != "jsd"
    divergence = GKDTrainer.generalized_jsd_loss(
        shared(outputs.logits, tokens)[:, :-1],
        shared(of_teacher, tokens)[:, :-1],
        labels=inputs["labels"][:, 1:],
        beta={"forward": 0.0, "reverse": 1.0}.get(options["divergence"], options.get("beta")),
        temperature=temperature,
        num_items_in_batch=options.get("num_items_in_batch"),
    )
    weight = alpha * temperature**2 if hinton else alpha
    loss = weight * divergence + (1.0 - alpha) * outputs.loss if alpha < 1.0 else weight * divergence
    with torch.no_grad():
        targets = inputs["labels"][:, 1:]
        log_probabilities = outputs.logits[:, :-1].log_softmax(-1)
        log_probabilities = log_probabilities.gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        log_probabilities = torch.where(targets != IGNORED, log_probabilities, 0.0)
    return loss, {"out.per_token_logps": log_probabilities}


def reward_loss(case, model, teacher, inputs):
    trainer = light_trainer(
        RewardTrainer,
        model,
        args=SimpleNamespace(center_rewards_coefficient=case.options.get("center_rewards_coefficient")),
        _total_train_tokens=0,
        _tp_size=1,
    )
    given = passed_on(inputs)
    if "margin" in inputs:
        # The model takes no margin; TRL's own passes it on with the rest.
        taken = given | {"margin": inputs["margin"]}
        loss, outputs = RewardTrainer.compute_loss(
            trainer, lambda margin=None, **kwargs: model(**kwargs), taken, return_outputs=True
        )
    else:
        loss, outputs = RewardTrainer.compute_loss(trainer, model, given, return_outputs=True)
    return loss, {"out.rewards": outputs.logits.squeeze(-1)}


def infonce_loss(case, model, teacher, inputs):
    # Of this objective alone: it needs no such package for the others.
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import Pooling
    from sentence_transformers.util import cos_sim, dot_score

    options = case.options
    hidden = model.model(**passed_on(inputs), use_cache=False).last_hidden_state
    pooling = Pooling(hidden.shape[-1], pooling_mode={"last": "lasttoken", "mean": "mean"}[options["pooling"]])
    pooled = pooling({"token_embeddings": hidden, "attention_mask": inputs["attention_mask"]})["sentence_embedding"]
    blocks = 2 + options.get("negatives", 0)
    symmetric = options.get("symmetric", False)
    ranking = MultipleNegativesRankingLoss(
        None,
        scale=options["scale"],
        similarity_fct=dot_score if options.get("similarity") == "dot" else cos_sim,
        directions=("query_to_doc", "doc_to_query") if symmetric else ("query_to_doc",),
        partition_mode="per_direction" if symmetric else "joint",
    )
    return ranking.compute_loss_from_embeddings(list(pooled.chunk(blocks)), None), {"out.embeddings": pooled}


LOSSES = {"distill": distill_loss, "reward": reward_loss, "infonce": infonce_loss}


class WithLoss:
    """A model whose outputs have the case's loss: what checks.py asks of a model."""

    def __init__(self, case, model, teacher):
        self.case, self.model, self.teacher = case, model, teacher

    @property
    def config(self):
        return self.model.config

    def named_parameters(self):
        return self.model.named_parameters()

    def __call__(self, use_cache=False, **inputs):
        loss, tensors = LOSSES[self.case.objective](self.case, self.model, self.teacher, self.inputs)
        return SimpleNamespace(loss=loss, tensors=tensors)


def load(root, case):
    folder = root / "models" / case.model
    if case.objective != "reward":
        return load_model(folder)
    options = {"dtype": torch.float64, "attn_implementation": "eager"}
    return transformers.AutoModelForSequenceClassification.from_pretrained(folder, **options).eval()


def draw_inputs(root, case, generator):
    sizes = [
        json.loads((root / "models" / name / "config.json").read_text())["vocab_size"]
        for name in (case.model, case.teacher)
        if name
    ]
    inputs = make_inputs(case.batch, min(sizes), generator)
    if case.objective == "distill":
        # A prompt of two tokens is not scored.
        first = inputs["attention_mask"].argmax(1)
        for row, column in enumerate(first):
            inputs["labels"][row, column : column + 2] = IGNORED
        return inputs
    del inputs["labels"]
    if case.options.get("real_pad"):
        for row, pads in enumerate((1, 0, 2)):
            end = int(inputs["attention_mask"][row].sum())
            inputs["input_ids"][row, end - pads : end] = 0
    if case.options.get("margin"):
        inputs["margin"] = torch.rand(len(case.batch.lengths) // 2, generator=generator)
    return inputs


def write_case(root, case, seed):
    name = f"{case.model}-{case.objective}-{case.variant}"
    generator = torch.Generator().manual_seed(seed)
    inputs = draw_inputs(root, case, generator)
    with ResultCheck() as results:
        model = load(root, case)
        teacher = load_model(root / "models" / case.teacher) if case.teacher else None
        subject = WithLoss(case, model, teacher)
        subject.inputs = inputs
        outputs = subject()
        outputs.loss.backward()
    tensors = {f"in.{key}": tensor for key, tensor in inputs.items()}
    tensors |= {"out.loss": outputs.loss.detach().reshape(1), **outputs.tensors}
    # What embeddings don't depend on has no gradient: an untied LM head.
    gradients = {
        key: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for key, parameter in model.named_parameters()
    }
    tensors |= {f"grad.{key}": gradient for key, gradient in as_in_file(gradients, model.config.model_type).items()}
    tensors = {key: tensor.detach().contiguous().clone() for key, tensor in tensors.items()}
    squares = sum((gradient**2).sum().item() for gradient in gradients_of(tensors).values())
    hyperparameters = {"position_ids": "arange", **{k: v for k, v in case.options.items() if k not in ("margin", "real_pad")}}
    if case.objective == "distill":
        hyperparameters |= {"ignore_index": IGNORED, "reduction": "batchmean", "teacher": f"models/{case.teacher}"}
    if case.objective == "reward":
        hyperparameters["num_pairs"] = len(case.batch.lengths) // 2
    if case.objective == "infonce":
        hyperparameters["row_order"] = "anchors, positives, negatives"
    model_type = json.loads((root / "models" / case.model / "config.json").read_text())["model_type"]
    versions = OF_INFONCE if case.objective == "infonce" else VERSIONS
    source = {"peer": PEERS[case.objective], "gradient": "torch.autograd through transformers' modules"}
    description = {
        **describe_case(name, case.model, model_type, case.objective, case.variant, hyperparameters, source, versions),
        "expected": {"loss": tensors["out.loss"].item(), "grad_norm": math.sqrt(squares)},
        "checks": {
            **check_results(results),
            **check_weights(subject, tensors, read_tensors(root / "models" / case.model / "model.safetensors")),
            "finite_difference": check_finite_differences(
                subject, {**inputs, "labels": None}, gradients_of(tensors), generator
            ),
        },
    }
    save_case(root, description, tensors)


def make(root, names):
    """DIR/cases/<model>-distill|reward|infonce-<variant>, on models of the topic sft and of the public set.

    Of the models `names`, or all.
    """
    for name, spec in OWN_MODELS.items():
        if not names or name in names:
            write_model(root / "models" / name, spec, transformers.AutoModelForSequenceClassification)
    for i, case in enumerate(CASES):
        if names and case.model not in names:
            continue
        try:
            write_case(root, case, 40000 + i)
        except CheckError as error:
            raise CheckError(f"{case.model}-{case.objective}-{case.variant}: {error}") from None
