#!/usr/bin/env python3
"""sb.patch(model, lane="module") on two Gloo ranks, in float64: DistributedDataParallel and FSDP2 give the gradients of the whole batch, and gather a
layer's parameters once a direction, however many chunks it has. accelerate's hooks, which move weights in and out, stay where they are."""

import unittest
import warnings
from unittest import mock

import streambp_bench as sb
import torch
import torch.distributed.fsdp
from module_lane_test import everything_in_float64
from on_ranks import results_on_ranks
from patch_distributed_test import LIMIT, RANKS, model_in_float64, share_of, whole_batch
from patching import difference, gradients, reference_step, step
from python_case import Case
from streambp_bench._module_lane.lazy_logits import LazyLogits
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.distributed.tensor import DTensor

warnings.simplefilter("ignore")


def data_parallel(rank):
    """(gradients, how many of them arrived)."""
    model = sb.patch(model_in_float64(), lane="module", chunk=5)
    arrived = []
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: arrived.append(1) and None)
    parallel = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)  # Trainer's default without checkpointing, which clones every output
    batch, items = share_of(rank)
    with mock.patch.object(LazyLogits, "real", side_effect=AssertionError("logits that nobody looks at are computed")):
        (parallel(**batch, num_items_in_batch=items).loss * RANKS).backward()
    return gradients(model), len(arrived)


def fully_sharded(rank, first):
    """(gradients of two passes, halved; lanes; how often something was gathered in one pass). first: whether the model is patched before it is sharded."""
    model = model_in_float64()
    if first:
        sb.patch(model, lane="module", chunk=5)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    if not first:
        sb.patch(model, lane="module", chunk=5)
    lanes = [str(proof) for proof in sb.prove(model)]
    held = [name for name, each in model.named_parameters() if not isinstance(each, DTensor)]
    assert not held, f"a proof leaves {held} gathered, and later steps would compute with these"
    batch, items = share_of(rank)
    gathered, own = [], _fsdp_param_group.foreach_all_gather
    for _ in range(2):  # the second pass adds to sharded gradients
        gathered.clear()
        with mock.patch.object(_fsdp_param_group, "foreach_all_gather", lambda *args, **kwargs: gathered.append(1) or own(*args, **kwargs)):
            (model(**batch, num_items_in_batch=items).loss * RANKS).backward()
    return {name: gradient.full_tensor() / 2 for name, gradient in gradients(model).items()}, lanes, len(gathered)


def work(rank):
    with everything_in_float64():
        return {"ddp": data_parallel(rank), "fsdp2, patched first": fully_sharded(rank, True), "fsdp2, sharded first": fully_sharded(rank, False)}


class ModuleDistributed(Case):
    @classmethod
    def setUpClass(cls):
        cls.results = results_on_ranks(RANKS, work)

    def check(self, what):
        _, expected = reference_step(model_in_float64(), whole_batch())
        for rank in range(RANKS):
            error = difference(self.results[rank][what][0], expected)
            self.assertTrue(error <= LIMIT, f"{what}, rank {rank}: {error:.1e}")
            type(self).reached = max(self.reached, error)

    def test_data_parallel(self):
        self.check("ddp")
        for result in self.results:
            self.assertEqual(result["ddp"][1], len(list(model_in_float64().parameters())))

    def test_fully_sharded(self):
        layers = len(model_in_float64().model.layers)
        for what in ("fsdp2, patched first", "fsdp2, sharded first"):
            self.check(what)
            for result in self.results:
                _, lanes, gathered = result[what]
                self.assertTrue(all("by their own code" in line for line in lanes), lanes)
                self.assertEqual(gathered, 2 * layers + 1, what)  # each layer in both directions, the rest once

    def test_weights_that_accelerate_moves(self):
        import accelerate

        batch = whole_batch()
        with everything_in_float64():
            for hooked in (lambda model: accelerate.dispatch_model(model, {"": "cpu"}, force_hooks=True), lambda model: accelerate.cpu_offload(model.requires_grad_(False), "cpu")):
                model = hooked(model_in_float64())
                embeds = model.get_input_embeddings()(batch["input_ids"]).detach().requires_grad_()
                given = {**{name: batch[name] for name in ("attention_mask", "labels")}, "inputs_embeds": embeds}
                found = []
                for patched in (False, True):
                    if patched:
                        sb.patch(model, lane="module", chunk=5)
                        self.assertEqual({proof.lane for proof in sb.prove(model)}, {"module"}, sb.prove(model))
                    embeds.grad = None
                    _, of_model = step(model, given)
                    found.append({"embeds": embeds.grad, **of_model})
                self.assertTrue(difference(found[1], found[0]) <= LIMIT)


if __name__ == "__main__":
    unittest.main()
