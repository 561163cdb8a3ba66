#!/usr/bin/env python3
"""sb.backward(micro_batches=N, process_group=...) in float64 on two Gloo ranks with unequal batches: loss and gradients of the whole batch
in one pass of one process; what is no sum over micro-batches is refused on every rank."""

import unittest

import peft
import streambp_bench as sb
import torch
from on_ranks import refusal, results_on_ranks, rows_of
from patching import batch_of, difference, gradients, in_float64, load, reference_step, relative, tiny

RANKS = 2
LIMIT = 1e-12
LENGTHS = (13, 7, 21, 9, 16, 5, 11, 18)
SHARES = ((0, 3), (3, 8))  # of the rows, by ranks
PAIRS = ((0, 2), (2, 4))


def batch_with(unscored=()):
    """The whole batch, in which the rows `unscored` have no label."""
    batch = batch_of(61, LENGTHS)
    batch["labels"][list(unscored)] = -100
    return batch


def pairs():
    """Four pairs, chosen rows first, with a completion mask."""
    batch = batch_with()
    columns = torch.arange(batch["input_ids"].shape[1])
    batch["completion_mask"] = ((columns >= 2) & (batch["attention_mask"] == 1)).long()
    del batch["labels"]
    return batch


def own(batch, rank):
    return rows_of(batch, range(*SHARES[rank]))


def own_pairs(rank):
    begin, end = PAIRS[rank]
    return rows_of(pairs(), [*range(begin, end), *range(begin + 4, end + 4)])


def full():
    return tiny(seed=3, dtype=torch.float64)


def partly_frozen():
    model = full()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("mlp" not in name)
    return model


def adapted():
    torch.manual_seed(5)
    with in_float64():
        model = peft.get_peft_model(full(), peft.LoraConfig(r=3, lora_alpha=5, target_modules="all-linear", task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, dtype=parameter.dtype) * 0.3)
    return model


def mixture():
    """Whose config.json has the load of its experts balanced."""
    model = load("qwen3-moe")
    model.config.output_router_logits = True
    return model


UNSCORED = {"none": (), "a rank": (0, 1, 2), "a micro-batch": (3, 4), "all": range(8)}  # rows without a label
MODELS = {"full": full, "partly frozen": partly_frozen, "adapted": adapted}
UNBALANCED = {"router_aux_loss_coef": 0}


def result(model, batch, *objective, **settings):
    return {"loss": sb.backward(model, batch, *objective, **settings).item(), "gradients": gradients(model)}


def refusals(rank, group):
    mine, parts = own(batch_with(), rank), {"process_group": group, "micro_batches": 2}
    texts = {name: mine[name][:2] for name in ("input_ids", "attention_mask")}
    calls = {
        "too many": lambda: sb.backward(full(), mine, process_group=group, micro_batches=4),
        "numbers differ": lambda: sb.backward(full(), mine, process_group=group, micro_batches=2 + rank),
        "divisors differ": lambda: sb.backward(full(), {**mine, "num_items_in_batch": 40 + rank}, **parts),
        "no divisor": lambda: sb.backward(full(), {**mine, "num_items_in_batch": 0}, **parts),
        "too many pairs": lambda: sb.backward(full(), own_pairs(rank), "dpo", reference=full(), process_group=group, micro_batches=3),
        "balance": lambda: sb.backward(mixture(), mine, **parts),
        "sorted pairs": lambda: sb.backward(full(), own_pairs(rank), "dpo", reference=full(), loss_type="aot", **parts),
        "embeddings": lambda: sb.backward(full(), texts, "infonce", **parts)}
    return {what: refusal(call) for what, call in calls.items()}


def work(rank):
    group = torch.distributed.group.WORLD
    results = {}
    for parts in (1, 2, 3):
        ranks = {"process_group": group, "micro_batches": parts}
        for unscored, rows in UNSCORED.items():
            results["full", unscored, parts] = result(full(), own(batch_with(rows), rank), chunk=5, **ranks)
        for name in ("partly frozen", "adapted"):
            results[name, "none", parts] = result(MODELS[name](), own(batch_with(), rank), chunk=5, **ranks)
        results["checkpoint", parts] = result(full(), own(batch_with(), rank), method="checkpoint", **ranks)
        results["mixture", parts] = result(mixture(), own(batch_with(), rank), chunk=5, **UNBALANCED, **ranks)
    ranks = {"process_group": group, "micro_batches": 2, "chunk": 5}
    results["dpo"] = result(full(), own_pairs(rank), "dpo", reference=tiny(seed=4, dtype=torch.float64), **ranks)
    model = full()
    results["before"] = result(model, own(batch_with(), rank), **ranks)
    model.zero_grad(set_to_none=True)
    results["freed and made again"] = result(model, own(batch_with(), rank), **ranks)
    results["added to"] = result(model, own(batch_with(), rank), **ranks)
    results["refusals"] = refusals(rank, group)
    results["after refusals"] = result(full(), own(batch_with(), rank), **ranks)
    return results


class MicroBatchesOnRanks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.results = results_on_ranks(RANKS, work)

    def check(self, what, loss, expected):
        for rank, results in enumerate(self.results):
            error, of_loss = difference(results[what]["gradients"], expected), relative(results[what]["loss"], loss)
            print(f"{what}, rank {rank}: gradients {error:.1e}, loss {of_loss:.1e}")
            self.assertTrue(error <= LIMIT, f"{what}, rank {rank}: {error:.1e}")
            self.assertTrue(of_loss <= LIMIT, f"{what}, rank {rank}: loss {of_loss:.1e}")
            for name, gradient in self.results[0][what]["gradients"].items():
                self.assertTrue(torch.equal(results[what]["gradients"][name], gradient), f"{what}: {name} is not the same on rank {rank}")

    def check_all(self, name, loss, expected):
        for parts in (1, 2, 3):
            self.check((*name, parts), loss, expected)

    def test_whole_batch(self):
        for name, make in MODELS.items():
            loss, expected = reference_step(make(), batch_with())
            self.check_all((name, "none"), loss, expected)
        loss, expected = reference_step(full(), batch_with())
        self.check_all(("checkpoint",), loss, expected)
        for what in ("before", "freed and made again", "after refusals"):
            self.check(what, loss, expected)
        self.check("added to", loss, {name: 2 * gradient for name, gradient in expected.items()})

    def test_ranks_and_micro_batches_without_a_scored_token(self):
        for unscored in ("a rank", "a micro-batch"):
            loss, expected = reference_step(full(), batch_with(UNSCORED[unscored]))
            self.check_all(("full", unscored), loss, expected)
        for results in self.results:
            for parts in (1, 2, 3):
                nothing = results["full", "all", parts]
                self.assertEqual(nothing["loss"], 0.0)
                self.assertEqual(len(nothing["gradients"]), len(list(full().parameters())))
                self.assertFalse(any(gradient.any() for gradient in nothing["gradients"].values()))

    def test_pairs(self):
        whole = result(full(), pairs(), "dpo", reference=tiny(seed=4, dtype=torch.float64), chunk=5)
        self.check("dpo", whole["loss"], whole["gradients"])

    def test_mixture_whose_load_is_not_balanced(self):
        model = mixture()
        model.config.output_router_logits = False
        loss, expected = reference_step(model, batch_with())
        self.check_all(("mixture",), loss, expected)

    def test_refusals_are_the_same_on_all_ranks(self):
        expected = {"too many": "4 micro-batches: rank 0 has 3 sequences, expected at least one for each",
                    "too many pairs": "3 micro-batches: rank 0 has 2 pairs, expected at least one for each",
                    "numbers differ": "rank 1 disagrees with rank 0 on the settings: .*micro_batches=3.* and .*micro_batches=2",
                    "divisors differ": "rank 1 disagrees with rank 0 on the numbers in the batch: 'divisor=41 ' and 'divisor=40 '",
                    "no divisor": "sft: divisor is 0, expected a number above 0",
                    "balance": "sft: balances the load of experts .* expected no micro-batches, or router_aux_loss_coef=0",
                    "sorted pairs": "dpo: compares the rows of a batch with one another, expected no micro-batches",
                    "embeddings": "infonce: compares the rows of a batch with one another, expected no micro-batches"}
        for what, message in expected.items():
            for results in self.results:
                self.assertRegex(results["refusals"][what], message)
                self.assertEqual(results["refusals"][what], self.results[0]["refusals"][what])

    def test_balance_is_refused_on_one_process_too(self):
        batch = batch_with()
        self.assertRegex(refusal(lambda: sb.backward(mixture(), batch, micro_batches=2)), "balances the load of experts")
        whole = result(mixture(), batch, **UNBALANCED)
        parts = result(mixture(), batch, micro_batches=2, **UNBALANCED)
        self.assertTrue(difference(parts["gradients"], whole["gradients"]) <= LIMIT)


if __name__ == "__main__":
    unittest.main()
