#!/usr/bin/env python3
"""sb.chain: gradients through n applications of a step are those of a plain loop, in float64, and its peak does not grow with n beyond the states."""

import unittest

import streambp_bench as sb
import torch
from python_case import Case

LIMIT = 1e-12


class Step(torch.nn.Module):
    """A residual step that reads its index, draws noise, and has a state of two tensors."""

    def __init__(self, width=6, dropout=0.0):
        super().__init__()
        self.of_index, self.up, self.down = torch.nn.Embedding(64, width), torch.nn.Linear(width, 3 * width), torch.nn.Linear(3 * width, width)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, state, index):
        x, total = state["x"], state["total"]
        x = x + self.dropout(self.down(torch.tanh(self.up(x + self.of_index.weight[index]))))
        return {"x": x, "total": total + x.square().mean()}


def result(step, n, seed=3, **how):
    """(loss, gradients of the initial state and of the parameters) of a plain loop, or of chain(**how)."""
    step.zero_grad(set_to_none=True)
    begin = torch.randn(4, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    torch.manual_seed(seed)
    state = {"x": begin, "total": torch.zeros((), dtype=torch.float64)}
    if how:
        state = sb.chain(step, state, n, **how)
    else:
        for index in range(n):
            state = step(state, index)
    loss = state["x"].sum() + state["total"]
    loss.backward()
    return {"loss": loss.detach(), "begin": begin.grad, **{name: each.grad for name, each in step.named_parameters()}}


class Chain(Case):
    def compare(self, step, n, what, **how):
        theirs, ours = result(step, n), result(step, n, **how)
        for name, tensor in theirs.items():
            error = (ours[name] - tensor).abs().max().item() / (tensor.abs().max().item() or 1.0)
            self.assertTrue(error <= LIMIT, f"{what}: {name} off by {error:.1e}")
            type(self).reached = max(self.reached, error)

    def test_as_a_plain_loop(self):
        torch.manual_seed(0)
        step = Step().double()
        for n in (1, 2, 7, 20):
            for every in (1, 2, 3, 7, 8, 30):
                self.compare(step, n, f"{n} steps, every {every}", every=every)
        self.compare(step, 7, "in host memory", every=2, offload=True)

    def test_dropout_is_drawn_once(self):
        torch.manual_seed(0)
        step = Step(dropout=0.4).double()
        for every in (1, 3):
            self.compare(step, 8, f"dropout, every {every}", every=every)

    def test_one_tensor(self):
        weight = torch.tensor(0.9, dtype=torch.float64, requires_grad=True)
        end = sb.chain(lambda x, _: x * weight, torch.tensor(2.0, dtype=torch.float64), 5, every=2)
        end.backward()
        self.assertTrue(abs(weight.grad.item() - 2 * 5 * 0.9**4) <= LIMIT)

    def test_the_peak_does_not_grow_with_steps(self):
        rows, width = 64, 256
        step = torch.nn.Sequential(torch.nn.Linear(width, 8 * width), torch.nn.Tanh(), torch.nn.Linear(8 * width, width))
        state, of_step = rows * width * 4 + 512, torch.get_rng_state().numel() + 512  # random numbers can be drawn anew; alignment

        def peak(n, every):
            step.zero_grad(set_to_none=False)
            with sb.measure() as memory:
                sb.chain(lambda x, _: x + step(x), torch.ones(rows, width), n, every=every).sum().backward()
            return memory.beyond_start

        sb.load()
        peak(4, 1)
        for every, few, many in ((1, 8, 40), (8, 16, 64)):
            grown, states = peak(many, every) - peak(few, every), (many - few) // every
            self.assertTrue(grown <= states * state + 2 * (many - few) * of_step, f"every {every}: {grown} more bytes for {states} states of {state}")

    def test_refusals(self):
        one = torch.ones(2)
        self.assert_refused(lambda: sb.chain(lambda x, _: x, one, 0), "n is 0")
        self.assert_refused(lambda: sb.chain(lambda x, _: x, one, 2, every=0), "every is 0")
        self.assert_refused(lambda: sb.chain(lambda x, _: x, 3, 2), "state")
        self.assert_refused(lambda: sb.chain(lambda x, _: (x, x), one, 2), "step 0")


if __name__ == "__main__":
    unittest.main()
