#!/usr/bin/env python3
"""sb.backward(process_group=...) in float64 on Gloo ranks: loss and gradients of the whole batch on one process, and of
sb.patch() under DistributedDataParallel; a refusal of one rank reaches all."""

import functools
import unittest

import streambp_bench as sb
import torch
from streambp_bench import _idle
from on_ranks import refusal, results_on_ranks, rows_of
from patching import LIMIT, batch_of, difference, gradients, reference_step, relative, tiny

LENGTHS = (13, 7, 21, 9, 16, 5)
SHARES = {2: ((0, 2), (2, 6)), 3: ((0, 1), (1, 5), (5, 6))}  # of the rows, by ranks


def whole_batch():
    return batch_of(61, LENGTHS)


def pairs():
    """Three pairs, chosen rows first, with a completion mask."""
    batch = whole_batch()
    columns = torch.arange(batch["input_ids"].shape[1])
    batch["completion_mask"] = ((columns >= 3) & (batch["attention_mask"] == 1)).long()
    del batch["labels"]
    return batch


def model():
    return tiny(seed=3, dtype=torch.float64)


def result(loss, of_model):
    return {"loss": loss.item(), "gradients": gradients(of_model)}


def work(rank, ranks):
    group = torch.distributed.group.WORLD
    own = rows_of(whole_batch(), range(*SHARES[ranks][rank]))
    results = {}
    for method in ("streambp", "checkpoint"):
        of_model = model()
        settings = {"chunk": 5} if method == "streambp" else {"chunk": "auto"}
        results[method] = result(sb.backward(of_model, own, method=method, process_group=group, **settings), of_model)
    of_model = model()
    for _ in range(2):
        loss = sb.backward(of_model, own, chunk=4, process_group=group)
    results["added twice"] = result(loss, of_model)
    if ranks == 3:
        of_model = model()
        own_pair = rows_of(pairs(), (rank, rank + 3))
        results["dpo"] = result(sb.backward(of_model, own_pair, "dpo", reference=tiny(seed=4, dtype=torch.float64), chunk=5,
                                                  process_group=group), of_model)
    else:
        parallel = torch.nn.parallel.DistributedDataParallel(sb.patch(model(), chunk=5))
        items = (whole_batch()["labels"][:, 1:] != -100).sum()
        (parallel(**own, num_items_in_batch=items).loss * ranks).backward()
        results["patch"] = gradients(parallel.module)
    _idle.LEAST_WORK, ask = 0, _idle.ask  # also of these few tokens it is asked what fits, and keeping the most is said to be the fastest
    _idle.ask = lambda *question: sorted(({**row, "cost": -row["beyond_resident_bytes"]} for row in ask(*question)), key=lambda row: row["cost"])
    for name, budget in (("all idle", "1GB"), ("one rank is full", 1000 if rank == 1 else "1GB"), ("one rank says no", rank != 1)):
        of_model = model()
        loss, info = sb.backward(of_model, own, chunk=5, process_group=group, idle_memory=budget, return_info=True)
        results[name] = result(loss, of_model) | {"kept": info.kept}
    bad = {**own, "input_ids": own["input_ids"] + (1000 if rank == 1 else 0)}
    results["a token too large"] = refusal(lambda: sb.backward(model(), bad, process_group=group))
    bad = {**own, "pixel_values": torch.zeros(1)} if rank == 1 else own
    results["an image"] = refusal(lambda: sb.backward(model(), bad, process_group=group))
    results["settings differ"] = refusal(lambda: sb.backward(model(), own, chunk=4 + rank, process_group=group))
    after = model()
    results["after refusals"] = result(sb.backward(after, own, chunk=5, process_group=group), after)
    return results


class Ranks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.results = {ranks: results_on_ranks(ranks, functools.partial(work, ranks=ranks)) for ranks in SHARES}

    def check(self, what, loss, expected, ranks):
        for rank, results in enumerate(self.results[ranks]):
            error = difference(results[what]["gradients"], expected)
            of_loss = relative(results[what]["loss"], loss)
            print(f"{what}, rank {rank} of {ranks}: gradients {error:.1e}, loss {of_loss:.1e}")
            self.assertTrue(error <= LIMIT, f"{what}, rank {rank} of {ranks}: {error:.1e}")
            self.assertTrue(of_loss <= LIMIT, f"{what}, rank {rank} of {ranks}: loss {of_loss:.1e}")

    def test_whole_batch(self):
        loss, expected = reference_step(model(), whole_batch())
        for ranks in SHARES:
            for what in ("streambp", "checkpoint", "after refusals"):
                self.check(what, loss, expected, ranks)
            self.check("added twice", loss, {name: 2 * gradient for name, gradient in expected.items()}, ranks)

    def test_idle_memory_is_spent_alike(self):
        for ranks, all_results in self.results.items():
            for rank, results in enumerate(all_results):
                self.assertRegex(results["all idle"]["kept"], "^attention,(queries,)?keys-values", f"rank {rank} of {ranks}")
                self.assertEqual((results["one rank is full"]["kept"], results["one rank says no"]["kept"]), ("none", "none"), f"rank {rank} of {ranks}")
                for name, gradient in results["one rank says no"]["gradients"].items():
                    self.assertTrue(torch.equal(gradient, results["all idle"]["gradients"][name]), name)

    def test_pairs(self):
        of_model = model()
        loss = sb.backward(of_model, pairs(), "dpo", reference=tiny(seed=4, dtype=torch.float64), chunk=5)
        self.check("dpo", loss.item(), gradients(of_model), 3)

    def test_same_as_level_2(self):
        for rank, results in enumerate(self.results[2]):
            mean = {name: gradient for name, gradient in results["patch"].items()}
            error = difference({name.removeprefix("module."): gradient for name, gradient in mean.items()}, results["streambp"]["gradients"])
            print(f"patch under DistributedDataParallel, rank {rank}: {error:.1e}")
            self.assertTrue(error <= LIMIT, f"rank {rank}: {error:.1e}")

    def test_same_bits_on_every_rank(self):
        for results in self.results.values():
            for other in results[1:]:
                for name, gradient in results[0]["streambp"]["gradients"].items():
                    self.assertTrue(torch.equal(gradient, other["streambp"]["gradients"][name]), name)

    def test_refusals_reach_all_ranks(self):
        for ranks, all_results in self.results.items():
            for rank, results in enumerate(all_results):
                self.assertRegex(results["a token too large"], "rank 1 of the process group: .*token", f"rank {rank} of {ranks}")
                self.assertRegex(results["an image"], "pixel_values: only text is streamed", f"rank {rank} of {ranks}")
                self.assertRegex(results["settings differ"], "rank 1 disagrees with rank 0 on the settings: 'chunk=5 ", f"rank {rank}")

    def test_what_is_no_group(self):
        with self.assertRaisesRegex(sb.InputError, "init_process_group"):
            sb.backward(model(), whole_batch(), process_group=object())


if __name__ == "__main__":
    unittest.main()
