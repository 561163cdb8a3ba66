#!/usr/bin/env python3
"""sb.patch() on two Gloo ranks, in float64: DistributedDataParallel and FSDP2 give the gradients of the whole batch, and
transformers' Trainer the same steps at 1, 2 and 4 accumulated batches on one rank and on two."""

import tempfile
import unittest

import streambp_bench as sb
import torch
import torch.distributed.fsdp
import transformers
from on_ranks import refusal, results_on_ranks
from patching import LIMIT, batch_of, difference, gradients, in_float64, load, reference_step, relative, tiny

RANKS = 2
ROWS = 8  # of an optimizer's step
STEPS = 3
LOGGED = 1e-6  # of losses, which the Trainer adds up in float32
LENGTHS = (13, 7, 21, 9, 16, 5, 11, 18)


def model_in_float64():
    return tiny(seed=3, dtype=torch.float64)


def whole_batch():
    return batch_of(61, LENGTHS)


def share_of(rank):
    """A rank's rows, and how many tokens the whole batch scores."""
    batch = whole_batch()
    rows = slice(rank * ROWS // RANKS, (rank + 1) * ROWS // RANKS)
    return {name: tensor[rows] for name, tensor in batch.items()}, (batch["labels"][:, 1:] != -100).sum()


class InOrder(transformers.Trainer):
    """Rows in the data's order."""

    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def rows_of_steps():
    """The rows of STEPS steps, without padding."""
    rows = []
    for step in range(STEPS):
        batch = batch_of(61, LENGTHS, seed=10 + step)
        for ids, labels, length in zip(batch["input_ids"], batch["labels"], LENGTHS, strict=True):
            rows.append({"input_ids": ids[:length].tolist(), "labels": labels[:length].tolist()})
    return rows


def collate(rows):
    columns = max(len(row["input_ids"]) for row in rows)
    return {"input_ids": torch.tensor([row["input_ids"] + [0] * (columns - len(row["input_ids"])) for row in rows]),
            "attention_mask": torch.tensor([[1] * len(row["input_ids"]) + [0] * (columns - len(row["input_ids"])) for row in rows]),
            "labels": torch.tensor([row["labels"] + [-100] * (columns - len(row["labels"])) for row in rows])}


def train(accumulated, ranks):
    """(losses of the steps, parameters after them), by transformers' Trainer."""
    model = sb.patch(model_in_float64(), chunk=4)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder, per_device_train_batch_size=ROWS // accumulated // ranks, gradient_accumulation_steps=accumulated,
            max_steps=STEPS, learning_rate=0.05, lr_scheduler_type="constant", optim="sgd", logging_steps=1, report_to=[], use_cpu=True,
            save_strategy="no", disable_tqdm=True, max_grad_norm=1.0, average_tokens_across_devices=True,
            ddp_backend="gloo" if ranks > 1 else None)
        trainer = InOrder(model=model, args=arguments, train_dataset=rows_of_steps(), data_collator=collate)
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return torch.tensor(losses, dtype=torch.float64), {name: p.detach().clone() for name, p in model.named_parameters()}


def data_parallel(rank):
    model = sb.patch(model_in_float64(), chunk=5)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    batch, items = share_of(rank)
    (parallel(**batch, num_items_in_batch=items).loss * RANKS).backward()
    return gradients(model)


def fully_sharded(rank, split_head=False, policy=None):
    """The gradients of two passes, halved; with `policy` those of a model in float32, gathered in the policy's dtype."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    options = {"mesh": init_device_mesh("cpu", (RANKS,))} | ({"mp_policy": policy} if policy else {})
    model = sb.patch(model_in_float64().float() if policy else model_in_float64(), chunk=5)
    for layer in model.model.layers:
        fully_shard(layer, **options)
    if split_head:
        fully_shard(model.lm_head, **options)
        fully_shard(model.model.norm, **options)
    fully_shard(model, **options)
    batch, items = share_of(rank)
    for _ in range(2):  # the second pass adds to sharded gradients
        (model(**batch, num_items_in_batch=items).loss * RANKS).backward()
    return {name: gradient.full_tensor() / 2 for name, gradient in gradients(model).items()}


def mixture_fully_sharded():
    """The gradients of a batch that both ranks have, with the routers' loss."""
    from torch.distributed.fsdp import fully_shard

    model = sb.patch(load("qwen3-moe"), chunk=5)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    with in_float64():
        model(**whole_batch(), output_router_logits=True).loss.backward()
    return {name: gradient.full_tensor() for name, gradient in gradients(model).items()}


def refusal_of_inner_shards(rank):
    """The message for a model of which something inside a layer is sharded on its own."""
    from torch.distributed.fsdp import fully_shard

    model = sb.patch(model_in_float64(), chunk=5, lane="engine")
    fully_shard(model.model.layers[1].mlp)
    return refusal(lambda: model(**share_of(rank)[0]))


def work(rank):
    results = {"ddp": data_parallel(rank), "fsdp2": fully_sharded(rank),
               "fsdp2, head sharded alone": fully_sharded(rank, split_head=True)}
    half = torch.distributed.fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    results["fsdp2, bfloat16"] = fully_sharded(rank, policy=half)
    results["fsdp2, mixture"] = mixture_fully_sharded()
    results["refusal"] = refusal_of_inner_shards(rank)
    for accumulated in (1, 2, 4):
        results[f"trainer {accumulated}"] = train(accumulated, RANKS)
    return results


class PatchDistributed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.results = results_on_ranks(RANKS, work)

    def check(self, what):
        _, expected = reference_step(model_in_float64(), whole_batch())
        for rank in range(RANKS):
            error = difference(self.results[rank][what], expected)
            print(f"{what}, rank {rank}: {error:.1e}")
            self.assertTrue(error <= LIMIT, f"{what}, rank {rank}: {error:.1e}")

    def test_data_parallel(self):
        self.check("ddp")

    def test_fully_sharded(self):
        self.check("fsdp2")

    def test_fully_sharded_with_the_head_alone(self):
        self.check("fsdp2, head sharded alone")

    def test_a_mixture_with_its_routers_loss(self):
        _, expected = reference_step(load("qwen3-moe"), whole_batch(), output_router_logits=True)
        for rank in range(RANKS):
            error = difference(self.results[rank]["fsdp2, mixture"], expected)
            self.assertTrue(error <= LIMIT, f"rank {rank}: {error:.1e}")

    def test_shards_inside_a_layer_are_refused(self):
        for result in self.results:
            self.assertRegex(result["refusal"], "layers.1.mlp.*sharded.*fully_shard")

    def test_fully_sharded_and_gathered_in_bfloat16(self):
        _, expected = reference_step(model_in_float64(), whole_batch())
        found = self.results[0]["fsdp2, bfloat16"]
        error = (sum(((found[name].double() - g) ** 2).sum() for name, g in expected.items()) /
                 sum((g ** 2).sum() for g in expected.values())).sqrt().item()
        print(f"fsdp2, gathered in bfloat16: {error:.1e}")
        self.assertTrue(error <= 0.05, f"{error:.1e}")

    def test_trainer(self):
        losses, parameters = train(1, 1)
        self.assertEqual(len(losses), STEPS)
        self.assertTrue(difference(parameters, dict(model_in_float64().named_parameters())) > 0.01, "nothing was learned")
        runs = {f"{accumulated} x 1 rank": train(accumulated, 1) for accumulated in (2, 4)}
        runs |= {f"{accumulated} x {RANKS} ranks, rank {rank}": self.results[rank][f"trainer {accumulated}"]
                 for accumulated in (1, 2, 4) for rank in range(RANKS)}
        for name, (its_losses, its_parameters) in runs.items():
            error = difference(its_parameters, parameters)
            of_losses = max(relative(a, b) for a, b in zip(its_losses.tolist(), losses.tolist(), strict=True))
            print(f"Trainer, {name}: parameters {error:.1e}, losses as logged {of_losses:.1e}")
            self.assertTrue(error <= LIMIT, f"{name}: {error:.1e}")
            self.assertTrue(of_losses <= LOGGED, f"{name}: losses {of_losses:.1e}")


if __name__ == "__main__":
    unittest.main()
