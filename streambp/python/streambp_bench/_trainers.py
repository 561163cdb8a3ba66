"""What trainers of TRL and transformers compute of a batch, in the words of backward() and verify(): an objective with its options."""

from ._library import InputError

# Arguments of a trainer that are options of the objective, under the same name.
NAMES = {
    "sft": ("loss_type",),
    "dpo": ("loss_type", "loss_weights", "beta", "label_smoothing", "f_divergence_type", "f_alpha_divergence_coef", "ld_alpha", "use_weighting",
            "discopop_tau"),
    "kto": ("loss_type", "beta", "desirable_weight", "undesirable_weight"),
    "grpo": ("loss_type", "importance_sampling_level", "epsilon_high", "delta", "sapo_temperature_pos", "sapo_temperature_neg", "vespo_k_pos",
             "vespo_k_neg", "vespo_lambda_pos", "vespo_lambda_neg", "top_entropy_quantile", "off_policy_mask_threshold", "entropy_coef", "beta",
             "use_bias_correction_kl", "temperature", "max_completion_length"),
    "rloo": ("temperature",),
    "reward": ("center_rewards_coefficient",),
    "orpo": ("beta",),
    "cpo": ("loss_type", "beta", "label_smoothing", "cpo_alpha", "simpo_gamma", "alpha"),
}
# What changes a trainer's loss, and is no option of ours: it has to be what it is by default.
DEFAULTS = {"label_smoothing_factor": 0.0, "cast_lm_head_to_fp32": False, "use_adaptive_entropy": False, "multi_objective_aggregation": "sum_then_normalize"}


def of_arguments(objective, trainer):
    """The options that a trainer's arguments have under the same name."""
    args = trainer.args
    options = {name: getattr(args, name) for name in NAMES[objective] if getattr(args, name, None) is not None}
    if objective in ("grpo", "rloo"):
        options |= {"epsilon_low": args.epsilon, "epsilon_high": args.epsilon if args.epsilon_high is None else args.epsilon_high}
    return options


def of_router(trainer, steps=1):
    """A mixture's load-balancing loss as TRL's trainers add it, whatever output_router_logits says: a share of each micro-batch."""
    return {"router_aux_loss_coef": trainer.router_aux_loss_coef / steps} if getattr(trainer, "aux_loss_enabled", False) else {}


def of_reference(trainer):
    """Of a fresh adapter it is the base, which has to be said from the second step on; of a trained one "ref", by itself."""
    if trainer.ref_model is not None:
        return {"reference": trainer.ref_model}
    return {"reference": "base"} if "ref" not in getattr(trainer.model, "peft_config", {"ref"}) else {}


def _scored(trainer, batch, items, steps):
    """A loss by num_items_in_batch is the whole step's, one without the micro-batch's, of which the trainer takes a share."""
    return batch | {"num_items_in_batch": items}, 1 if items is not None else steps


def _sft(trainer, batch, items, steps):
    options = of_arguments("sft", trainer)
    if options.get("loss_type") == "chunked_nll":  # of the same numbers
        options["loss_type"] = "nll"
    batch, divisor = _scored(trainer, batch, items, steps)
    return batch, {"objective": "sft", **options, **of_router(trainer, steps // divisor)}, divisor


def _plain(trainer, batch, items, steps):
    """transformers' Trainer leaves the loss to the model: with the routers' where its config says so, of each micro-batch as it is."""
    batch, divisor = _scored(trainer, batch, items if trainer.model_accepts_loss_kwargs else None, steps)
    return batch, {"objective": "sft"}, divisor


def _grpo(trainer, batch, items, steps):
    options = of_arguments("grpo", trainer)
    if options["loss_type"] not in ("dapo", "cispo", "vespo"):
        return batch, {"objective": "grpo", **options, **of_router(trainer)}, steps
    options |= {"gradient_accumulation_steps": steps, "steps_per_generation": trainer.args.steps_per_generation, "entropy_coef": trainer.args.entropy_coef / steps}
    return batch, {"objective": "grpo", **options, **of_router(trainer, steps)}, 1


def _by_arguments(objective, *more):
    return lambda trainer, batch, items, steps: (
        batch, {"objective": objective, **of_arguments(objective, trainer), **{name: value for each in more for name, value in each(trainer).items()}}, steps)


BY_CLASS = {
    "SFTTrainer": _sft, "GRPOTrainer": _grpo, "Trainer": _plain, "DPOTrainer": _by_arguments("dpo", of_reference, of_router),
    "KTOTrainer": _by_arguments("kto", of_reference, of_router), "RLOOTrainer": _by_arguments("rloo", of_router),
    "RewardTrainer": _by_arguments("reward"), "ORPOTrainer": _by_arguments("orpo"), "CPOTrainer": _by_arguments("cpo"),
}


def objective_of(trainer, batch, items, steps):
    """(batch, keywords of backward(), divisor) of a micro-batch as `trainer` computes it, or, of a class derived from one of TRL's, as that one does.

    Its gradients are those of backward() / divisor. batch: what its compute_loss is given; items: num_items_in_batch; steps: micro-batches of the optimizer step. Raises InputError for a trainer
    that is none of TRL's or transformers', and for arguments that change its loss and are no option here.
    """
    for kind in type(trainer).__mro__:
        if kind.__name__ in BY_CLASS and kind.__module__.partition(".")[0] in ("trl", "transformers"):
            break
    else:
        raise InputError(f"{type(trainer).__name__}: expected one of, or derived from, {', '.join(BY_CLASS)}")
    for name, default in DEFAULTS.items():
        if getattr(trainer.args, name, default) != default:
            raise InputError(f"{type(trainer).__name__}: {name} is {getattr(trainer.args, name)!r}, which no objective here has; expected {default!r}")
    batch, options, divisor = BY_CLASS[kind.__name__](trainer, batch, items, steps)
    return {name: value for name, value in batch.items() if name != "use_cache" and value is not None}, options, divisor
