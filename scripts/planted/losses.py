"""Mistakes in a loss, made where transformers' log-probabilities become one: SFT, GRPO and DPO as TRL has them."""

import torch
import torch.nn.functional as F

from planted.passes import mistake

GRPO, DPO = "qwen3-grpo-grpo_kl", "qwen3-dpo-sigmoid"


@mistake("qwen3-sft-b3_left", "mean of the means of columns 0 to 17 and 18 to 35")
def means_of_halves(run):
    """the loss is the mean of the means of two halves of the columns, as of two ranks of a sequence"""
    each, scored = run.losses()
    half = each.shape[1] // 2
    return run.gradients((each[:, :half].sum() / scored[:, :half].sum() + each[:, half:].sum() / scored[:, half:].sum()) / 2)


@mistake("qwen2-small-sft-b3_right", "z-loss")
def z_loss_added(run):
    """0.001 times the mean square of the logits' log-sum-exp is added"""
    logits = run.logits()
    each, scored = run.losses(logits)
    return run.gradients((each + 1e-3 * logits[:, :-1].logsumexp(-1).square() * scored).sum() / scored.sum())


@mistake("llama-linear-sft-b3_left", "shard")
def softmax_of_shards(run):
    """each half of the vocabulary has a softmax of its own, as where its denominators are not summed over two ranks"""
    logits, labels = run.logits()[:, :-1], run.labels[:, 1:]
    scored, half = labels != -100, run.model.config.vocab_size // 2
    targets = labels.clamp_min(0)
    total = torch.where(targets < half, logits[..., :half].logsumexp(-1), logits[..., half:].logsumexp(-1))
    return run.gradients(((total - logits.gather(-1, targets[..., None]).squeeze(-1)) * scored).sum() / scored.sum())


@mistake("qwen3-sft-b3_right", "tokens of each row from index 15 on are not scored")
def rows_cut_off(run):
    """rows are cut off after 16 tokens"""
    return run.gradients(run.loss(run.logits(run.ids[:, :16], run.mask[:, :16]), run.labels[:, :16]))


@mistake("qwen3-sft-b3_right", "last 16 tokens")
def rows_keep_their_ends(run):
    """of each row the last 16 tokens are left"""
    ids, mask, labels = torch.zeros_like(run.ids[:, :16]), torch.zeros_like(run.mask[:, :16]), torch.full_like(run.labels[:, :16], -100)
    for row, length in enumerate(run.mask.sum(1).tolist()):
        kept = min(length, 16)
        for left, whole in ((ids, run.ids), (mask, run.mask), (labels, run.labels)):
            left[row, :kept] = whole[row, length - kept:length]
    return run.gradients(run.loss(run.logits(ids, mask), labels))


class Completions:
    """What GRPO's loss is made of."""

    def __init__(self, run, temperature=None):
        self.mask = run.inputs["completion_mask"].to(run.dtype)
        width = self.mask.shape[1]
        self.policy = run.log_probabilities(run.settings["temperature"] if temperature is None else temperature)[:, -width:]
        self.old, self.reference = run.inputs["old_per_token_logps"], run.inputs.get("ref_per_token_logps")
        self.advantages = run.inputs["advantages"][:, None]
        self.beta, self.low, self.high = (run.settings[name] for name in ("beta", "epsilon_low", "epsilon_high"))

    def clipped(self, advantages=None, old=None, ratios=None):
        advantages = self.advantages if advantages is None else advantages
        ratios = (self.policy - (self.old if old is None else old)).exp() if ratios is None else ratios
        return -torch.min(ratios * advantages, ratios.clamp(1 - self.low, 1 + self.high) * advantages)

    def divergence(self):
        ahead = self.reference - self.policy
        return self.beta * (ahead.exp() - ahead - 1)

    def of_rows(self, each, mask=None):
        mask = self.mask if mask is None else mask
        return ((each * mask).sum(1) / mask.sum(1).clamp_min(1)).mean()

    def of_tokens(self, each):
        return (each * self.mask).sum() / self.mask.sum()


@mistake(GRPO, "kl_estimator is k1")
def divergence_by_k1(run):
    """the KL term is the difference of log-probabilities (k1)"""
    own = Completions(run)
    return run.gradients(own.of_rows(own.clipped() + own.beta * (own.policy - own.reference)))


@mistake(GRPO, "KL term is that of the other direction")
def divergence_of_the_other_direction(run):
    """policy and reference are exchanged in k3"""
    own = Completions(run)
    ahead = own.policy - own.reference
    return run.gradients(own.of_rows(own.clipped() + own.beta * (ahead.exp() - ahead - 1)))


@mistake(GRPO, "KL term is averaged as loss_type")
def divergence_over_tokens(run):
    """the KL term is the mean over all tokens, the rest the mean of rows' means"""
    own = Completions(run)
    return run.gradients(own.of_rows(own.clipped()) + own.of_tokens(own.divergence()))


@mistake(GRPO, "temperature")
def divergence_without_temperature(run):
    """the KL term's log-probabilities are not divided by the temperature"""
    own, plain = Completions(run), Completions(run, 1.0)
    return run.gradients(own.of_rows(own.clipped() + plain.divergence()))


@mistake(GRPO, "old log-probabilities are not used")
def old_policy_is_the_policy(run):
    """the ratio is 1 everywhere"""
    own = Completions(run)
    return run.gradients(own.of_rows(own.clipped(old=own.policy.detach()) + own.divergence()))


@mistake(GRPO, "micro-batches of 2 rows")
def means_of_micro_batches(run):
    """the loss is the mean of the tokens' means of two micro-batches"""
    own = Completions(run)
    each = (own.clipped() + own.divergence()) * own.mask
    return run.gradients(sum(each[first:first + 2].sum() / own.mask[first:first + 2].sum() for first in (0, 2)) / 2)


@mistake(GRPO, "each row's last token is neither scored nor counted")
def ends_not_scored(run):
    """the last token of each completion, the end of text, is masked"""
    own = Completions(run)
    return run.gradients(own.of_rows(own.clipped() + own.divergence(), without_ends(own.mask)))


def without_ends(mask):
    mask = mask.clone()
    for row in mask:
        row[int(row.nonzero().max())] = 0
    return mask


@mistake(GRPO, "advantages are other rows'")
def advantages_of_other_rows(run):
    """each row has the advantage of the one before"""
    own = Completions(run)
    return run.gradients(own.of_rows(own.clipped(own.advantages.roll(1, 0)) + own.divergence()))


@mistake(GRPO, "importance_sampling_level is sequence")
def ratios_of_sequences(run):
    """a row's ratio is that of its whole completion"""
    own = Completions(run)
    mean = ((own.policy - own.old) * own.mask).sum(1, keepdim=True) / own.mask.sum(1, keepdim=True)
    return run.gradients(own.of_rows(own.clipped(ratios=mean.exp()) + own.divergence()))


@mistake(GRPO, "ratios are not clipped")
def ratios_not_clipped(run):
    """ratios are not clipped"""
    own = Completions(run)
    return run.gradients(own.of_rows(-(own.policy - own.old).exp() * own.advantages + own.divergence()))


@mistake("qwen3-grpo-dapo", "divided by the scored tokens = 53 instead of 131")
def window_of_its_own(run):
    """the loss is divided by the micro-batch's own tokens, not by those of all that are accumulated"""
    own = Completions(run)
    return run.gradients(own.of_tokens(own.clipped()))


@mistake("qwen3-grpo-dapo", "mean of the means of single rows")
def rows_means_for_tokens(run):
    """the loss is the mean of the rows' means where it should be a mean over tokens"""
    own = Completions(run)
    return run.gradients(own.of_rows(own.clipped()))


def pairs(run, loss, mask=None):
    """Gradients of loss(chosen, rejected, reference's chosen, reference's rejected), of sums of log-probabilities [N]."""
    mask = (run.inputs["completion_mask"] if mask is None else mask)[:, 1:].to(run.dtype)
    sums = (run.log_probabilities() * mask).sum(1)
    chosen, rejected = sums.chunk(2)
    return run.gradients(loss(chosen, rejected, run.inputs["ref_chosen_logps"], run.inputs["ref_rejected_logps"]))


def sigmoid(margin, beta):
    return -F.logsigmoid(beta * margin).mean()


@mistake(DPO, "beta is 0.5 instead of 0.1")
def another_beta(run):
    """beta is 0.5"""
    return pairs(run, lambda c, r, rc, rr: sigmoid((c - rc) - (r - rr), 0.5))


@mistake(DPO, "reference_free")
def no_reference(run):
    """the reference is left out"""
    return pairs(run, lambda c, r, rc, rr: sigmoid(c - r, 0.1))


@mistake(DPO, "chosen and rejected are exchanged")
def reference_exchanged(run):
    """the reference's log-probabilities of chosen and rejected are exchanged"""
    return pairs(run, lambda c, r, rc, rr: sigmoid((c - rr) - (r - rc), 0.1))


@mistake(DPO, "are summed, not averaged")
def sum_over_pairs(run):
    """the loss is the sum over pairs"""
    return pairs(run, lambda c, r, rc, rr: -F.logsigmoid(0.1 * ((c - rc) - (r - rr))).sum())


@mistake(DPO, "rejected completions are missing")
def rejected_detached(run):
    """no gradient reaches the rejected completions"""
    return pairs(run, lambda c, r, rc, rr: sigmoid((c - rc) - (r.detach() - rr), 0.1))


@mistake(DPO, "label_smoothing is 0.1 instead of 0")
def labels_smoothed(run):
    """labels are smoothed by 0.1"""
    return pairs(run, lambda c, r, rc, rr: 0.9 * sigmoid((c - rc) - (r - rr), 0.1) + 0.1 * sigmoid((c - rc) - (r - rr), -0.1))


@mistake(DPO, "loss_type is hinge")
def hinge(run):
    """the loss is the hinge's"""
    return pairs(run, lambda c, r, rc, rr: torch.relu(1 - 0.1 * ((c - rc) - (r - rr))).mean())


@mistake(DPO, "each row's last token is neither scored nor counted")
def ends_of_pairs_not_scored(run):
    """the last token of each completion is masked"""
    return pairs(run, lambda c, r, rc, rr: sigmoid((c - rc) - (r - rr), 0.1), without_ends(run.inputs["completion_mask"]))


@mistake(DPO, "pairs")
def other_pairs(run):
    """each chosen completion is held against the other pair's rejected one"""
    return pairs(run, lambda c, r, rc, rr: sigmoid((c - rc) - (r - rr).flip(0), 0.1))


@mistake(DPO, "chosen completions' cross-entropy")
def cross_entropy_added(run):
    """the chosen completions' cross-entropy is added"""
    mask = run.inputs["completion_mask"][:, 1:].to(run.dtype)
    count = mask[: len(mask) // 2].sum()
    return pairs(run, lambda c, r, rc, rr: sigmoid((c - rc) - (r - rr), 0.1) - c.sum() / count)
