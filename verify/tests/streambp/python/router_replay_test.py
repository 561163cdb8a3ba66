#!/usr/bin/env python3
"""backward() with experts that are given: transformers' gradients with the topk of its routers replaced, and what is refused."""

import unittest

import streambp_bench as sb
import torch
from goldens.passes import experts_per_token
from goldens.replay import Replay, is_sparse
from patching import load
from python_case import Case, InputError, autograd, inputs_of, take_gradients


def drawn(model, inputs, seed=5, leaves_last=False):
    """[B, T, layers with experts, k]: experts of every token, drawn; with leaves_last -1 for the last real token of each row."""
    generator = torch.Generator().manual_seed(seed)
    rows, columns = inputs["input_ids"].shape
    sparse = sum(is_sparse(model))
    experts = Replay(model, torch.zeros(1, sparse, 1, dtype=torch.int64)).experts
    indices = torch.rand(rows, columns, sparse, experts, generator=generator).topk(experts_per_token(model.config)).indices
    if leaves_last:
        indices[torch.arange(rows), inputs["attention_mask"].cumsum(-1).argmax(-1)] = -1
    return indices


class RouterReplay(Case):
    def test_gradients_are_those_of_the_given_experts(self):
        for name, leaves_last in (("qwen3-moe", False), ("gpt-oss", True), ("deepseek-v3", True), ("granite-moe", False), ("gemma4-moe", True)):
            model = load(name)
            inputs = inputs_of(model)
            indices = drawn(model, inputs, leaves_last=leaves_last)
            own = sb.backward(model, inputs, chunk=7)
            take_gradients(model)
            with Replay(model, indices.flatten(0, 1)):
                loss, expected = autograd(model, inputs)
            with self.subTest(model=name):
                self.assertGreater(abs(own.item() - loss), 1e-3)
                ours = sb.backward(model, inputs, chunk=7, router_indices=indices)
                self.assert_loss(ours, loss, name)
                self.assert_gradients(take_gradients(model), expected, name)
                again = sb.backward(model, {**inputs, "router_indices": indices.to(torch.int16)}, method="checkpoint")
                self.assert_loss(again, loss, name)
                self.assert_gradients(take_gradients(model), expected, f"{name}, checkpoint")

    def test_micro_batches_take_their_rows(self):
        model = load("qwen3-moe")
        inputs = inputs_of(model)
        indices = drawn(model, inputs)
        sb.backward(model, inputs, router_indices=indices)
        whole = take_gradients(model)
        sb.backward(model, inputs, router_indices=indices, micro_batches=3)
        self.assert_gradients(take_gradients(model), whole, "three micro-batches")

    def test_refusals_name_row_and_cure(self):
        model = load("qwen3-moe")
        inputs = inputs_of(model)
        indices = drawn(model, inputs)
        column = int(inputs["attention_mask"][0].argmax())
        for change, parts in (
            ((0, column, 0, 0, 8), (f"row 0, column {column} of input_ids", "expected 2 different ones of 0 to 7", "-1 in all 2 places")),
            ((0, column, 1, 1, int(indices[0, column, 1, 0])), (f"row 0, column {column}", "different")),
        ):
            wrong = indices.clone()
            wrong[change[:4]] = change[4]
            with self.assertRaises(InputError) as raised:
                sb.backward(model, inputs, router_indices=wrong)
            for part in ("router_indices", *parts):
                self.assertIn(part, str(raised.exception))
        for wrong, part in ((indices[:, :-1], "a row for each of input_ids"), (indices[..., :1], "1 experts of each token"), (indices.double(), "expected integers")):
            with self.assertRaisesRegex(InputError, part):
                sb.backward(model, inputs, router_indices=wrong)
        with self.assertRaisesRegex(InputError, "one or the other"):
            sb.backward(model, {**inputs, "router_indices": indices}, router_indices=indices)
        dense = load("qwen3")
        with self.assertRaisesRegex(InputError, "the model has no experts"):
            sb.backward(dense, inputs_of(dense), router_indices=torch.zeros(3, 29, 1, 1, dtype=torch.int64))
        self.assertTrue(all(parameter.grad is None for parameter in (*model.parameters(), *dense.parameters())))


if __name__ == "__main__":
    unittest.main()
