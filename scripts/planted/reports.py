"""Mistakes in what is scored and how it is weighed, as they are reported of trainers: labels, documents, pairs, policies, teachers, adapters."""

import math

import torch
import torch.nn.functional as F
from goldens.passes import load_model

from planted.losses import Completions, pairs, sigmoid
from planted.passes import GOLDENS, added, mistake


@mistake("olmo2-sft-b3_left", "shifted twice", "token after the next", "one token too far")
def labels_shifted_twice(run):
    """labels are shifted by the collator and by the loss, so that each token is asked for the one after the next"""
    labels = F.pad(run.labels[:, 1:], (0, 1), value=-100)
    return run.gradients(run.loss(labels=labels))


@mistake("smollm3-sft-b3_left", "labels that are token", "token ")
def a_token_taken_for_padding(run):
    """one token of the text is the tokenizer's padding, and is nowhere a label"""
    labels = run.labels.clone()
    scored = labels[:, 1:][labels[:, 1:] != -100]
    labels[labels == scored.mode().values] = -100
    return run.gradients(run.loss(labels=labels))


@mistake("hunyuan-sft-b3_left", "smooth")
def labels_of_sft_smoothed(run):
    """the cross-entropy has label_smoothing 0.1"""
    logits, labels = run.logits()[:, :-1], run.labels[:, 1:]
    each = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, label_smoothing=0.1, reduction="none").view(labels.shape)
    return run.gradients(each.sum() / (labels != -100).sum())


@mistake("gemma3-sft-packed", "first token", "document")
def documents_predict_the_next(run):
    """a document's last token is asked for the first of the next one"""
    labels = torch.where(run.inputs["position_ids"] == 0, run.ids, run.labels)
    return run.gradients(run.loss(labels=labels))


@mistake("qwen3-sft-b3_right_promptmask", "prompt")
def prompts_scored(run):
    """tokens of the prompt are scored too"""
    return run.gradients(run.loss(labels=torch.where(run.mask == 1, run.ids, -100)))


@mistake("gpt-oss-sft-b3_left", "mean of the means of single rows")
def accumulated_means(run):
    """the loss is the mean of three micro-batches' means, as transformers had it until October 2024"""
    each, scored = run.losses()
    return run.gradients((each.sum(1) / scored.sum(1)).mean())


def divergence(run, student_temperature, teacher_temperature, scored):
    """Forward divergences of a teacher, over the scored tokens."""
    with torch.no_grad(), run.precision():
        teacher = load_model(GOLDENS / run.settings["teacher"]).to(run.dtype)
        of_teacher = teacher(input_ids=run.ids, attention_mask=run.mask, use_cache=False).logits
    student = run.logits()
    width = min(student.shape[-1], of_teacher.shape[-1])
    ours = torch.log_softmax(student[:, :-1, :width] / student_temperature, -1)
    theirs = torch.log_softmax(of_teacher[:, :-1, :width] / teacher_temperature, -1)
    each = (theirs.exp() * (theirs - ours)).sum(-1)
    return run.settings["temperature"] ** 2 * (each * scored).sum() / scored.sum()


@mistake("glm4-distill-forward", "teacher")
def teacher_without_temperature(run):
    """the teacher's logits are not divided by the temperature"""
    return run.gradients(divergence(run, run.settings["temperature"], 1.0, run.labels[:, 1:] != -100))


@mistake("glm4-distill-forward", "one token", "shift")
def divergences_of_all_tokens(run):
    """the divergence is over the tokens whose own labels are scored, not over those that predict them"""
    return run.gradients(divergence(run, run.settings["temperature"], run.settings["temperature"], run.labels[:, :-1] != -100))


def unpaired(run, desirable, undesirable, baseline=0.0):
    mask, roles = run.inputs["completion_mask"][:, 1:].to(run.dtype), run.inputs["role"]
    ratios = ((run.log_probabilities() * mask).sum(1) - run.inputs["ref_logps"])[roles < 2]  # the other rows are of the KL estimate
    good, bad = (1 - torch.sigmoid(sign * run.settings["beta"] * (ratios - baseline)) for sign in (1, -1))
    return run.gradients(torch.where(roles[roles < 2] == 1, desirable * good, undesirable * bad).mean())


@mistake("qwen3-pairs-kto-kto", "desirable_weight and undesirable_weight are exchanged")
def weights_of_kto_exchanged(run):
    """desirable_weight and undesirable_weight are exchanged"""
    return unpaired(run, run.settings["undesirable_weight"], run.settings["desirable_weight"])


@mistake("qwen3-pairs-kto-kto_kl", "KL")
def baseline_of_kto_missing(run):
    """the KL estimate of KTO is 0"""
    return unpaired(run, 1.0, 1.0)


@mistake("qwen3-pairs-kto-kto", "prompt")
def prompts_in_sums(run):
    """the prompts' tokens are in the sums of log-probabilities"""
    run.inputs["completion_mask"] = run.inputs["attention_mask"]
    return unpaired(run, run.settings["desirable_weight"], run.settings["undesirable_weight"])


@mistake("granite-dpo-sigmoid", "sigmoid_norm", "mean of its tokens")
def means_in_pairs(run):
    """log-probabilities of a completion are averaged, not summed; the reference's are sums"""
    lengths = run.inputs["completion_mask"][:, 1:].sum(1).to(run.dtype).chunk(2)
    return pairs(run, lambda c, r, rc, rr: sigmoid((c / lengths[0] - rc) - (r / lengths[1] - rr), run.settings["beta"]))


@mistake("cohere2-grpo-grpo_kl", "temperature is")
def policy_without_temperature(run):
    """the policy's logits are not divided by the temperature of the rollouts"""
    own = Completions(run, 1.0)
    return run.gradients(own.of_rows(own.clipped() + own.divergence()))


@mistake("deepseek-v3-grpo-grpo_kl", "dvantage")
def advantages_not_scaled(run):
    """advantages of the second group of two rows are divided by its rewards' standard deviation, those of the first are not"""
    own = Completions(run)
    factors = torch.tensor([1.0, 1.0, 1.7, 1.7], dtype=run.dtype)[:, None]
    return run.gradients(own.of_rows(own.clipped(own.advantages * factors) + own.divergence()))


@mistake("llama-lora-grpo-grpo_kl", "epsilon_high is ignored: 0.2")
def clip_is_symmetric(run):
    """ratios are clipped at 1 + epsilon_low above, too"""
    own = Completions(run)
    own.high = own.low
    return run.gradients(own.of_rows(own.clipped() + own.divergence()))


@mistake("qwen3-grpo-gspo", "length")
def ratios_of_sums(run):
    """a completion's ratio is that of its probability, not the root of it by its length"""
    own = Completions(run)
    total = ((own.policy - own.old) * own.mask).sum(1, keepdim=True)
    return run.gradients(own.of_rows(own.clipped(ratios=total.exp())))


@mistake("qwen3-lora-dpo-sigmoid", "reference")
def reference_has_the_adapter(run):
    """the reference is computed with the adapter left on: it is the policy"""
    mask = run.inputs["completion_mask"][:, 1:].to(run.dtype)
    chosen, rejected = (run.log_probabilities() * mask).sum(1).chunk(2)
    return run.gradients(sigmoid((chosen - chosen.detach()) - (rejected - rejected.detach()), 0.1))


def with_scales(run, change):
    for module in run.model.modules():
        if hasattr(module, "scaling") and isinstance(module.scaling, dict):
            module.scaling = {name: change(module, name, scale) for name, scale in module.scaling.items()}
    return run.gradients()


@mistake("llama-lora-sft-b3_right", "sqrt(r)")
def scale_of_rslora(run):
    """the adapter's scale is lora_alpha / sqrt(r)"""
    return with_scales(run, lambda module, name, scale: scale * math.sqrt(module.r[name]))


@mistake("phi3-lora-rslora", "twice", "2 times")
def adapter_twice(run):
    """the adapter is merged into the weights and added to them once more"""
    return with_scales(run, lambda module, name, scale: 2 * scale)


@mistake("qwen3-lora-sft-b3_right_promptmask", "dropout")
def dropout_left_on(run):
    """lora_dropout is 0.1 while gradients are compared"""
    torch.manual_seed(7)
    for module in run.model.modules():
        if hasattr(module, "lora_dropout"):
            module.lora_dropout["default"] = torch.nn.Dropout(0.1).train()
    return run.gradients()


@mistake("llama-linear-sft-b3_left", "gradients of other tokens than this batch's are in")
def gradients_of_other_tokens(run):
    """the gradients of a batch of other tokens are still there"""
    own, words = run.gradients(), set(run.ids.flatten().tolist())
    others = torch.tensor([token for token in range(run.model.config.vocab_size) if token not in words][:5] * 2)[None]
    return added(own, run.gradients(run.loss(run.logits(others, torch.ones_like(others)), others)))
