#!/usr/bin/env python3
"""backward() with the columns, or blocks, that attention sees: transformers' gradients with what its indexers return replaced, and what is refused."""

import unittest

import streambp_bench as sb
import torch
import transformers
from goldens.picks import GivenPicks, drawn_picks, own_picks
from on_ranks import refusal, results_on_ranks, rows_of
from patching import load
from python_case import Case, InputError, autograd, in_float64, inputs_of, packed_inputs, take_gradients


def drawn(model, inputs, seed=5, leaves_some=True):
    return drawn_picks(model, inputs, torch.Generator().manual_seed(seed), leaves_some)


SHARES = ((0, 2), (2, 3))  # of the rows, by ranks


def work(rank):
    """Loss and gradients of the ranks' rows as one batch, each of them with its own picks, and what is refused where one rank's are bad."""
    group = torch.distributed.group.WORLD
    model = load("deepseek-v32")
    whole = inputs_of(model)
    whole["indexer_indices"] = drawn(model, whole)
    own = rows_of(whole, range(*SHARES[rank]))
    loss = sb.backward(model, own, chunk=7, process_group=group)
    found = {"loss": loss.item(), "gradients": take_gradients(model)}
    if rank == 1:
        own["indexer_indices"][0, -1, 0] = 0
    found["refusals"] = {"indexer_indices: row 0, column 28 of input_ids sees column 0": refusal(lambda: sb.backward(model, own, chunk=7, process_group=group))}
    del own["indexer_indices"]
    experts = torch.arange(model.config.num_experts_per_tok) * (1 - rank)
    own["router_indices"] = experts.expand(*own["input_ids"].shape, model.config.num_hidden_layers, -1)
    found["refusals"]["router_indices: row 0, column 19 of input_ids has experts [0, 0"] = refusal(lambda: sb.backward(model, own, chunk=7, process_group=group))
    return found


class OnRanks(Case):
    """Comes before the other tests: its processes are forked from one that has computed nothing yet."""

    @classmethod
    def setUpClass(cls):
        cls.results = results_on_ranks(len(SHARES), work)

    def test_each_rank_s_picks_are_of_its_own_rows(self):
        model = load("deepseek-v32")
        inputs = inputs_of(model)
        picks = drawn(model, inputs)
        with GivenPicks(model, inputs, picks):
            loss, expected = autograd(model, inputs)
        for rank, found in enumerate(self.results):
            self.assert_loss(torch.tensor(found["loss"], dtype=torch.float64), loss, f"rank {rank}")
            self.assert_gradients(found["gradients"], expected, f"rank {rank}")
            for part, refused in found["refusals"].items():
                self.assertIn("rank 1", refused)
                self.assertIn(part, refused)


class Picks(Case):
    def of_given(self, model, inputs, picks):
        """Loss and gradients of transformers, whose indexers return `picks`."""
        with GivenPicks(model, inputs, picks):
            return autograd(model, inputs)

    def test_gradients_are_those_of_the_given_columns(self):
        names = ["deepseek-v32", "glm-moe-dsa"] + (["hy-v4"] if hasattr(transformers, "HYV4ForCausalLM") else [])
        for name in names:
            model = load(name)
            for what, inputs in (("padded on the left", inputs_of(model)), ("packed", packed_inputs(model, (13, 1, 15)))):
                picks = drawn(model, inputs)
                own = sb.backward(model, inputs, chunk=7)
                take_gradients(model)
                loss, expected = self.of_given(model, inputs, picks)
                with self.subTest(model=name, rows=what):
                    self.assertGreater(abs(own.item() - loss), 1e-3)
                    ours = sb.backward(model, inputs, chunk=7, indexer_indices=picks)
                    self.assert_loss(ours, loss, name)
                    self.assert_gradients(take_gradients(model), expected, f"{name}, {what}")
                    again = sb.backward(model, {**inputs, "indexer_indices": picks.to(torch.int32)}, method="checkpoint")
                    self.assert_loss(again, loss, name)
                    self.assert_gradients(take_gradients(model), expected, f"{name}, {what}, checkpoint")

    @unittest.skipUnless(hasattr(transformers, "DeepseekV4ForCausalLM"), "transformers 5.24 has it")
    def test_blocks(self):
        model = load("deepseek-v4")
        inputs = inputs_of(model, "b3_right")
        picks = drawn(model, inputs)
        loss, expected = self.of_given(model, inputs, picks)
        ours = sb.backward(model, inputs, chunk=7, indexer_indices=picks)
        self.assert_loss(ours, loss, "deepseek-v4")
        self.assert_gradients(take_gradients(model), expected, "deepseek-v4")

    def test_what_indexers_pick_changes_nothing(self):
        model = load("glm-moe-dsa")
        inputs = inputs_of(model)
        with in_float64():
            picks = own_picks(model, inputs)
        loss = sb.backward(model, inputs, chunk=7)
        expected = take_gradients(model)
        given = sb.backward(model, inputs, chunk=7, indexer_indices=picks)
        self.assert_loss(given, loss.item(), "its own")
        self.assert_gradients(take_gradients(model), expected, "its own")

    def test_choices_among_equal_scores_are_the_model_s_own(self):
        model = load("deepseek-v32")
        inputs = inputs_of(model)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith("indexer.weights_proj.weight"):
                    weight.zero_()
        loss, expected = autograd(model, inputs)
        with self.assertRaisesRegex(InputError, "indexer of layer 0: .* very score .*indexer_indices"):
            sb.backward(model, inputs, chunk=7)
        self.assertTrue(all(parameter.grad is None for parameter in model.parameters()))
        with in_float64():
            picks = own_picks(model, inputs)
        given = sb.backward(model, inputs, chunk=7, indexer_indices=picks)
        self.assert_loss(given, loss, "given")
        self.assert_gradients(take_gradients(model), expected, "given")

    def test_micro_batches_take_their_rows(self):
        model = load("deepseek-v32")
        inputs = inputs_of(model)
        picks = drawn(model, inputs)
        sb.backward(model, inputs, indexer_indices=picks)
        whole = take_gradients(model)
        sb.backward(model, inputs, indexer_indices=picks, micro_batches=3)
        self.assert_gradients(take_gradients(model), whole, "three micro-batches")

    def test_refusals_name_row_and_cure(self):
        model = load("deepseek-v32")
        inputs = inputs_of(model)
        picks = drawn(model, inputs, leaves_some=False)
        first = int(inputs["attention_mask"][0].argmax())
        for column, pick, part in (
            (first + 2, first + 3, f"row 0, column {first + 2} of input_ids sees column {first + 3}, which is ahead of it in layer 1"),
            (first + 2, first - 1, f"sees column {first - 1}, which is padding or another document's in layer 1, expected different ones from {first}"),
        ):
            wrong = picks.clone()
            wrong[0, column, 1] = -1
            wrong[0, column, 1, 2] = pick
            with self.assertRaises(InputError) as raised:
                sb.backward(model, inputs, indexer_indices=wrong)
            for text in ("indexer_indices", part, "-1 in all 6 places where the indexer is to pick"):
                self.assertIn(text, str(raised.exception))
        twice = picks.clone()
        twice[0, first + 2, 0] = first
        for wrong, part in (
            (twice, "twice in layer 0"),
            (picks[:, :-1], "a row for each of input_ids"),
            (picks[:, :, :1], "in 1 layers"),
            (torch.cat((picks, picks), dim=-1), r"12 of each token in 3 layers, expected 1 to 6 \(index_topk\)"),
            (picks.double(), "expected integers"),
        ):
            with self.assertRaisesRegex(InputError, part):
                sb.backward(model, inputs, indexer_indices=wrong)
        with self.assertRaisesRegex(InputError, "one or the other"):
            sb.backward(model, {**inputs, "indexer_indices": picks}, indexer_indices=picks)
        dense = load("qwen3")
        with self.assertRaisesRegex(InputError, "the model has no indexers"):
            sb.backward(dense, inputs_of(dense), indexer_indices=torch.zeros(3, 29, 1, 1, dtype=torch.int64))
        self.assertTrue(all(parameter.grad is None for parameter in (*model.parameters(), *dense.parameters())))


if __name__ == "__main__":
    unittest.main()
