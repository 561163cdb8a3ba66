"""Idle memory: what a step keeps of its layers by itself, that gradients don't change by it, and that the peak is what was predicted."""

import logging
import unittest
from unittest import mock

import torch
import transformers
from python_case import Case

import streambp_bench as sb
from streambp_bench import _idle
from streambp_bench._library import InputError
from streambp_bench._log import logger
from streambp_bench._measure import load, measure

load()  # before any model is made: its tensors are counted
ALL = "attention,queries,keys-values,attention-half,gate-up"


def small_model(dtype=torch.float32, **changes):
    torch.manual_seed(0)
    config = {"vocab_size": 1999, "hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
              "head_dim": 32, "tie_word_embeddings": False, "max_position_embeddings": 4096, **changes}
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**config)).to(dtype).train()


def batch_of(rows, columns, padding=0):
    tokens = torch.randint(5, 1999, (rows, columns), generator=torch.Generator().manual_seed(columns))
    mask = torch.ones_like(tokens)
    if padding:
        mask[1:, -padding:] = 0
    return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}


def gradients(model):
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    for parameter in model.parameters():
        parameter.grad = None
    return found


def lines_of(case, function):
    with case.assertLogs(logger, logging.INFO) as seen:
        logger.info("a line")  # there is one in any case
        result = function()
    return [line for line in seen.output if "idle memory" in line], result


def planned(function):
    """function() with what was asked of the planning program counted."""
    with mock.patch.object(_idle, "ask", wraps=_idle.ask) as asked:
        function()
    return asked.call_count


class Backward(Case):
    def assert_same_bits(self, ours, theirs, what):
        self.assertEqual(set(ours), set(theirs), what)
        for name, gradient in ours.items():
            self.assertTrue(torch.equal(gradient, theirs[name]), f"{what}: {name}")

    def test_all_is_kept_and_no_bit_changes(self):
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            model, batch = small_model(dtype), batch_of(2, 900, padding=150)
            plain, without = sb.backward(model, batch, return_info=True, idle_memory=False)
            expected = gradients(model)
            loss, info = sb.backward(model, batch, return_info=True)
            self.assertEqual((without.kept, without.predicted_bytes), ("none", None))
            self.assertRegex(info.kept, "^attention,(queries,)?keys-values", dtype)  # in float64 moving queries costs more than making them again
            self.assertTrue(torch.equal(loss, plain))
            self.assert_same_bits(gradients(model), expected, dtype)

    def test_peak_is_not_above_the_prediction(self):
        model = small_model()
        for rows, columns, padding in ((1, 1500, 0), (3, 700, 320), (2, 1024, 0)):
            batch = batch_of(rows, columns, padding)
            sb.backward(model, batch)  # makes .grad
            for budget in (True, "30MB", "18MB", "1MB"):
                with self.subTest(columns=columns, budget=budget), measure() as m:
                    _, info = sb.backward(model, batch, return_info=True, idle_memory=budget)
                if budget == "1MB":
                    self.assertEqual((info.kept, info.predicted_bytes), ("none", None))
                    continue
                print(f"{rows} x {columns}, {budget}: {info.kept}, predicted {info.predicted_bytes}, measured {m.beyond_start}")
                if info.predicted_bytes is not None:
                    self.assertTrue(m.beyond_start <= info.predicted_bytes, (columns, budget))
                    self.assertTrue(budget is True or info.predicted_bytes <= _idle.parse_bytes("budget", budget))

    def test_a_smaller_budget_keeps_less(self):
        model, batch = small_model(), batch_of(1, 1500)
        sb.backward(model, batch)
        kept = []
        for budget in ("1GB", "24MB", "20MB", "1MB"):
            _, info = sb.backward(model, batch, return_info=True, idle_memory=budget)
            kept.append(info.kept)
        self.assertEqual((kept[0], kept[-1]), (ALL, "none"))
        self.assertGreater(len(set(kept)), 2, kept)

        for parameter in model.parameters():
            parameter.grad = None
        _, info = sb.backward(model, batch, return_info=True, idle_memory="24MB")
        self.assertEqual(info.kept, kept[1], "a budget is beyond gradients, be they there or not")

    def test_a_budget_that_no_step_fits_is_said(self):
        model, batch = small_model(), batch_of(1, 1500)
        lines, _ = lines_of(self, lambda: [sb.backward(model, batch, idle_memory="1MB") for _ in range(2)])
        self.assertEqual(len(lines), 1, lines)
        self.assertRegex(lines[0], r"keeps nothing is predicted to take \d.* more than idle_memory's 1 MB; a smaller chunk or head_chunk")

    def test_a_share_of_what_is_available(self):
        model, batch = small_model(), batch_of(1, 1500)
        sb.backward(model, batch)
        _, info = sb.backward(model, batch, return_info=True)
        least = info.predicted_bytes
        for available, expected in ((2 * least, True), (2 * least - 1000, False)):  # a choice stays as long as it takes half
            with mock.patch.object(_idle, "idle_bytes", lambda device, size=available: size):
                _, info = sb.backward(model, batch, return_info=True)
            self.assertEqual(info.kept == ALL, expected, available)

    def test_once_for_a_shape(self):
        model = small_model()
        self.assertEqual(planned(lambda: sb.backward(model, batch_of(1, 1500))), 1)
        again = [batch_of(1, 1500), batch_of(1, 1490), batch_of(2, 760, padding=30)]  # 1,490 tokens each, rounded up to the same
        self.assertEqual(planned(lambda: [sb.backward(model, batch) for batch in again]), 0)
        self.assertEqual(planned(lambda: sb.backward(model, batch_of(1, 1000))), 1)
        self.assertEqual(planned(lambda: sb.backward(model, batch_of(1, 40))), 0)  # too small to ask
        model.lm_head.weight.requires_grad_(False)
        self.assertEqual(planned(lambda: sb.backward(model, batch_of(1, 1500))), 1)

    def test_what_the_caller_says_is_done(self):
        model, batch = small_model(), batch_of(1, 1500)
        for settings in ({"keep": "none"}, {"keep": "keys-values"}, {"every": 2}, {"method": "checkpoint"}, {"keep_attention": False}, {"idle_memory": False}):
            asked = planned(lambda settings=settings: sb.backward(model, batch, **settings))
            self.assertEqual(asked, 0, settings)
        for value in ("much", -1, 0.5, None):
            with self.assertRaisesRegex(InputError, "idle_memory"):
                sb.backward(model, batch, idle_memory=value)

    def test_one_line_says_it(self):
        model, batch = small_model(), batch_of(1, 1500)
        lines, _ = lines_of(self, lambda: [sb.backward(model, batch) for _ in range(3)])
        self.assertEqual(len(lines), 1)
        self.assertRegex(lines[0], "keeps attention, queries, keys-values, .* of the layers, .* predicted .* of .* idle; idle_memory=False keeps nothing")

    def test_other_objectives(self):
        model = small_model()
        batch = batch_of(4, 600)
        completion = torch.ones_like(batch.pop("labels"))
        completion[:, :100] = 0
        pairs = batch | {"completion_mask": completion, "ref_chosen_logps": torch.tensor([-700.0, -710.0]), "ref_rejected_logps": torch.tensor([-700.0, -690.0])}
        samples = batch | {"completion_mask": completion, "advantages": torch.tensor([1.0, -1.0, 0.5, 0.2])}
        for objective, given in (("dpo", pairs), ("grpo", samples)):
            sb.backward(model, given, objective, idle_memory=False)
            expected = gradients(model)
            sb.backward(model, given, objective)
            kept = gradients(model)
            self.assert_same_bits(kept, expected, objective)
            sb.backward(model, given, objective)
            with measure() as m:
                _, info = sb.backward(model, given, objective, return_info=True)
            self.assertEqual(info.kept, ALL, objective)
            print(f"{objective}: predicted {info.predicted_bytes}, measured {m.beyond_start}")
            self.assertTrue(m.beyond_start <= info.predicted_bytes, objective)
            gradients(model)


class Patch(Case):
    def step(self, model, batch, calls=1):
        losses = [model(**batch).loss for _ in range(calls)]
        sum(losses).backward()
        return losses[0].detach()

    def test_no_bit_changes(self):
        for dtype, padding in ((torch.float32, 150), (torch.float64, 0), (torch.bfloat16, 0)):
            model, batch = small_model(dtype), batch_of(2, 900, padding)
            sb.patch(model, lane="engine", idle_memory=False)
            plain = self.step(model, batch)
            expected = gradients(model)
            sb.patch(model, lane="engine")
            self.assertTrue(torch.equal(self.step(model, batch), plain))
            found = gradients(model)
            self.assertEqual(set(found), set(expected))
            for name, gradient in found.items():
                self.assertTrue(torch.equal(gradient, expected[name]), name)
            self.assertRegex(str(sb.summary(model)), "kept of the last step: attention, (queries, )?keys-values")

    def test_peak_is_not_above_the_prediction_and_nothing_stays(self):
        model, batch = small_model(), batch_of(1, 1500)
        sb.patch(model, lane="engine")
        self.step(model, batch)  # makes .grad
        state = model.__dict__["_streambp"]
        for budget in (None, 40_000_000, 1_000_000):
            state.idle_memory = budget
            with measure() as m:
                loss = model(**batch).loss
                loss.backward()
            weights = state.configuration().weights
            widest = sum(tensor.numel() for tensor in weights.parameters(weights.head_names()).values())
            more = 4 * (6 * 1500 * 128 + 3 * widest)
            print(f"{budget}: {state.kept.keep}, predicted {state.kept.bytes} and {more}, measured {m.beyond_start}")
            self.assertEqual(state.kept.keep == "none", budget == 1_000_000)
            if state.kept.bytes is not None:
                self.assertTrue(m.beyond_start <= state.kept.bytes + more)
            self.assertTrue(m.live_bytes - m.start_bytes <= 1_000_000, "what was kept is gone with the backward pass, though its loss is still there")
            del loss

    def test_a_graph_that_is_run_twice(self):
        model, batch = small_model(torch.float64), batch_of(1, 1000)
        sb.patch(model, lane="engine")
        loss = model(**batch).loss
        loss.backward(retain_graph=False)
        once = gradients(model)
        self.assertNotEqual(model.__dict__["_streambp"].kept.keep, "none")
        self.step(model, batch, calls=2)
        for name, gradient in gradients(model).items():
            self.assertTrue((gradient - 2 * once[name]).abs().max() <= 1e-12 * once[name].abs().max(), name)

    def test_not_without_gradients(self):
        model, batch = small_model(), batch_of(1, 1500)
        sb.patch(model, lane="engine")
        with torch.no_grad():
            self.assertEqual(planned(lambda: model(**batch)), 0)
        self.assertEqual(planned(lambda: self.step(model, batch)), 1)
        self.assertEqual(planned(lambda: self.step(model, batch)), 0)


if __name__ == "__main__":
    unittest.main()
