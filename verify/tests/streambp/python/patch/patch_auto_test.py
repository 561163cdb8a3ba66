#!/usr/bin/env python3
"""sb.patch(model), lane="auto": the engine where it is exact, the model's own code for whatever it refuses, when patched and from call to call;
in float64 the gradients are the unpatched model's, and a line says what was taken."""

import contextlib
import copy
import io
import types
import unittest
import warnings

import streambp_bench as sb
import torch
from module_lane_test import everything_in_float64, model_of
from patching import batch_of, difference, gradients, in_float64, packed_batch, relative, step, tiny
from python_case import Case
from streambp_bench._engine_lane.lane import Patched
from streambp_bench._module_lane.lane import ModuleLane
from streambp_bench._replaced import patched_state
from torch.utils.checkpoint import checkpoint

warnings.simplefilter("ignore")


def adapters(model, **settings):
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=3, target_modules=["q_proj", "down_proj"], init_lora_weights=False, **settings)).train()


class Auto(Case):
    def setUp(self):
        self.model, self.batch = tiny(dtype=torch.float64), batch_of(61, (23, 15))

    @contextlib.contextmanager
    def said(self, *words, lines=1):
        """Inside, `lines` lines are said, the last with every word."""
        with self.assertLogs("streambp_bench") as caught:
            yield
        self.assertEqual(len(caught.output), lines, caught.output)
        for word in words:
            self.assertIn(word, caught.output[-1])

    def assert_step(self, model, batch=None, what="", **more):
        """A step of the patched model is as exact as one of a copy that is not."""
        batch = self.batch if batch is None else batch
        other = copy.deepcopy(model)
        sb.unpatch(other)
        other.gradient_checkpointing_disable()
        with everything_in_float64():
            loss, theirs = step(other, batch, use_cache=False, **more)
            ours_loss, ours = step(model, batch, **more)
        error = max(relative(ours_loss, loss), difference(ours, theirs))
        self.assertTrue(error <= 1e-10, f"{what}: {error:.1e}")
        type(self).reached = max(self.reached, error)

    def test_what_is_taken(self):
        with self.said("2 layers by the engine; head streamed"):
            sb.patch(self.model, chunk=7)
        self.assertIsInstance(patched_state(self.model), Patched)
        self.assert_step(self.model)
        with everything_in_float64(), self.said("4 PhiDecoderLayer by their own code, proved on 33 rows", "head streamed"):
            model = sb.patch(model_of("phi"), chunk=7)
        self.assertIsInstance(patched_state(model), ModuleLane)
        self.assert_step(model)
        self.assert_step(model, packed_batch(61, (9, 10, 4)))

    def test_states_when_it_is_patched(self):
        for what, model in (("DoRA", adapters(tiny(dtype=torch.float64), use_dora=True).double()),
                            ("adapters, by the model inside", adapters(tiny(dtype=torch.float64)).double().base_model.model),
                            ("hooks", self.with_hook(tiny(dtype=torch.float64)))):
            with self.subTest(what):
                with everything_in_float64(), self.said("by their own code", "head streamed"):
                    sb.patch(model, chunk=7)
                self.assert_step(model, what=what)

    @staticmethod
    def with_hook(model):
        model.model.layers[1].mlp.register_forward_hook(Halves())
        return model

    def test_states_that_come_later(self):
        sb.patch(self.model, chunk=7)
        self.assert_step(self.model)
        handle = self.model.model.layers[0].self_attn.register_forward_hook(Halves(first=True))
        with self.said("the engine leaves this to the layers' own code", "hook", "self_attn"):
            self.assert_step(self.model, what="a hook")
            self.assert_step(self.model, what="a hook, again")
        handle.remove()
        with self.assertNoLogs("streambp_bench"):
            self.assert_step(self.model, what="by the engine again")
        adapted = adapters(self.model).double()
        with self.said("other parameters or modules"):
            self.assert_step(adapted, what="adapters")
        self.assertIs(sb.unpatch(adapted), adapted)

    def test_accelerates_autocast_ends_with_each_call(self):
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState

        model = sb.patch(tiny(dtype=torch.float32), chunk=7)
        try:
            prepared = Accelerator(mixed_precision="bf16", cpu=True).prepare_model(model)
            with self.assertLogs("streambp_bench") as caught:
                loss, _ = step(prepared, self.batch)
        finally:
            AcceleratorState._reset_state(True)
        self.assertIn("the engine leaves this to the layers' own code", "".join(caught.output))
        self.assertTrue(0.0 < loss < 100.0, loss)
        self.assertFalse(torch.is_autocast_enabled("cpu"))

    def test_autocast_that_comes_later(self):
        model = tiny()
        truth = step(copy.deepcopy(model).double(), self.batch)[1]
        sb.patch(model, chunk=7)

        def distance(found):
            return max(float((found[name] - each).norm() / each.norm()) for name, each in truth.items())

        other = copy.deepcopy(model)
        sb.unpatch(other)
        with torch.autocast("cpu", torch.bfloat16):
            theirs = step(other, self.batch)
            with self.said("autocast", "by their own code"):
                ours = step(model, self.batch)
        self.assertTrue(relative(ours[0], theirs[0]) <= 5e-3)
        self.assertTrue(1e-4 < distance(ours[1]) <= 1.5 * distance(theirs[1]), (distance(ours[1]), distance(theirs[1])))
        self.assertTrue(distance(step(model, self.batch)[1]) < 1e-4)

    def test_dropout_that_comes_later(self):
        model = tiny(dtype=torch.float64, attention_dropout=0.3)
        for layer in model.model.layers:
            layer.self_attn.attention_dropout = 0.0
        with everything_in_float64(), self.said("by the engine"):
            sb.patch(model, chunk=7)
        for layer in model.model.layers:
            layer.self_attn.attention_dropout = 0.3
        with everything_in_float64(), self.said("attention_dropout"):
            losses = {step(model, self.batch)[0] for _ in range(2)}
        self.assertEqual(len(losses), 2)

    def test_batches_that_the_engine_refuses(self):
        holes = self.batch["attention_mask"].clone()
        holes[0, 7] = 0
        left = batch_of(61, (12, 19), "left")
        predicted = {**left, "labels": left["input_ids"].masked_fill(left["attention_mask"] == 0, -100)}
        self.model.set_attn_implementation("sdpa")
        sb.patch(self.model, chunk=7)
        for what, batch, words in (("holes", {**self.batch, "attention_mask": holes}, "hole"), ("labels", predicted, "padding would predict"),
                                   ("embeddings", {**self.batch, "output_hidden_states": True}, "output_hidden_states")):
            with self.said(words):
                self.assert_step(self.model, batch, what)
        with self.assertNoLogs("streambp_bench"):
            self.assert_step(self.model)

    def test_labels_that_padding_predicts_cost_one_forward_pass(self):
        left = batch_of(61, (12, 19), "left")
        left["labels"] = left["input_ids"].masked_fill(left["attention_mask"] == 0, -100)
        self.model.set_attn_implementation("sdpa")
        calls = []
        self.model.model.layers[0].register_forward_hook(lambda *_: calls.append(1))
        sb.patch(self.model, chunk=7, prove=False)
        self.model(**left)
        self.assertEqual(len(calls), 1)

    def test_bad_input_is_refused_by_the_model_itself(self):
        sb.patch(self.model, chunk=7)
        self.batch["labels"][0, 4] = 61
        with self.assertRaisesRegex(IndexError, "Target 61"):
            step(self.model, self.batch)
        with self.assertRaisesRegex(ValueError, "exactly one of input_ids"):
            self.model(labels=self.batch["labels"])

    def test_checkpointing_is_turned_off(self):
        for lane in ("auto", "engine", "module"):
            model = tiny(dtype=torch.float64)
            model.gradient_checkpointing_enable()
            with everything_in_float64():
                sb.patch(model, chunk=7, lane=lane)
                if lane == "module":
                    with self.said("gradient_checkpointing is turned off"):
                        step(model, self.batch)
            self.assertFalse(model.is_gradient_checkpointing)
            model.gradient_checkpointing_enable({"use_reentrant": False})  # as trainers do
            self.assert_step(model, what=lane)
            self.assertFalse(model.is_gradient_checkpointing)
            sb.unpatch(model)
            self.assertTrue(model.is_gradient_checkpointing)

    def test_one_lane_alone_refuses(self):
        self.assert_refused(lambda: sb.patch(self.with_hook(self.model), lane="engine"), "forward hook")
        self.assertNotIn("forward", vars(self.model))
        for name in ("a/model", None, 3):
            self.assert_refused(lambda name=name: sb.patch(name), repr(name), "from_pretrained")
        self.assert_refused(lambda: sb.patch(torch.nn.Linear(2, 2)), "Linear")

    def test_what_has_no_lane_of_its_own_code(self):
        """A classifier has no head for words; its layers stream all the same."""
        import transformers
        from patching import tiny_config
        from python_case import in_float64

        with in_float64():
            model = transformers.Qwen3ForSequenceClassification(tiny_config(num_labels=3)).double().train()
        batch = {"input_ids": self.batch["input_ids"], "attention_mask": self.batch["attention_mask"], "labels": torch.tensor([2, 0])}
        with everything_in_float64():
            sb.patch(model, chunk=7)
        self.assert_step(model, batch)

    def test_unpatch_leaves_nothing(self):
        before = [dict(vars(module)) for module in self.model.modules()]
        sb.patch(self.model, chunk=7)
        with torch.autocast("cpu", torch.bfloat16):
            self.model(**self.batch)
        sb.unpatch(self.model)
        self.assertEqual([set(vars(module)) for module in self.model.modules()], [set(each) for each in before])
        self.assertEqual([vars(module).get("forward") for module in self.model.modules()], [each.get("forward") for each in before])

    def test_logits_of_the_engine_s_lane(self):
        with everything_in_float64():
            theirs = self.model(**self.batch)
            real = self.batch["attention_mask"].bool()
            (theirs.loss + theirs.logits[real].square().mean()).backward()
            expected = {name: each.grad for name, each in self.model.named_parameters()}
            self.model.zero_grad(set_to_none=True)
            sb.patch(self.model, chunk=7)
            ours = self.model(**self.batch)
            self.assertIsNone(ours.logits.made)
            self.assertTrue(torch.allclose(ours.logits.real()[real], theirs.logits[real], atol=1e-12))  # real(): under the mode that lifts float32
            ours = self.model(**self.batch)
            ours.logits.real()
            (ours.loss + ours.logits[real].square().mean()).backward()
        self.assertEqual(ours.logits.shape, theirs.logits.shape)
        self.assertTrue(difference({name: each.grad for name, each in self.model.named_parameters()}, expected) <= 1e-10)


class Around(Case):
    """What users put around a model means in a patched one what it means in theirs, or is refused by name."""

    def setUp(self):
        self.batch = batch_of(61, (23, 15))
        self.real = self.batch["attention_mask"][..., None].bool()

    def assert_same(self, run, lanes=("auto", "module"), **settings):
        """run(model, patch) gives tensors, which are those of a model that is not patched; patch(model) does that, where it is wanted."""
        with everything_in_float64():
            expected = run(tiny(dtype=torch.float64, **settings), lambda model: None)
            for lane in lanes:
                with self.subTest(lane):
                    ours = run(tiny(dtype=torch.float64, **settings), lambda model: sb.patch(model, lane=lane, chunk=7, head_chunk=5))
                    error = difference(ours, expected)
                    self.assertTrue(error <= 1e-10, f"{error:.1e}")
                    type(self).reached = max(self.reached, error)

    def test_hooks_are_given_rows_of_sequences(self):
        def decoder(model):
            return model.model, lambda output: output.last_hidden_state

        def layer(model):
            return model.model.layers[0], lambda output: output

        def mlp(model):
            return model.model.layers[0].mlp, lambda output: output

        def run(model, patch):
            module, read = place(model)
            seen = []
            module.register_forward_hook(lambda module, args, output: seen.append(read(output)))
            patch(model)
            seen.clear()  # of a proof
            loss = model(**self.batch).loss
            self.assertEqual(seen[0].shape, (2, 23, 16))
            (loss + (seen[0] * self.real).square().mean(1).sum()).backward()
            return gradients(model) | {"seen": seen[0].detach() * self.real}

        for place in (decoder, layer, mlp):
            with self.subTest(place.__name__):
                self.assert_same(run)

    def test_hooks_with_parameters_of_their_own(self):
        def run(model, patch):
            moves = [torch.nn.Parameter(torch.full((size,), 0.1, dtype=torch.float64)) for size in (16, 24)]
            model.model.layers[1].register_forward_pre_hook(lambda module, args: (args[0] + moves[0], *args[1:]))
            model.model.layers[0].mlp.up_proj.register_forward_hook(lambda module, args, output: output + moves[1])
            model.model.layers[1].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 0.5, *inputs[1:]))
            patch(model)
            model(**self.batch).loss.backward()
            return gradients(model) | {str(i): each.grad for i, each in enumerate(moves)}

        self.assert_same(run)

    def test_hooks_of_one_forward_pass(self):
        def run(model, patch):
            patch(model)
            handle = model.model.layers[0].mlp.register_forward_hook(lambda module, args, output: output * 1.5)
            loss = model(**self.batch).loss
            handle.remove()
            loss.backward()
            return gradients(model)

        self.assert_same(run)

    def test_lent_parameters(self):
        def run(model, patch):
            patch(model)
            lent = {name: (each.detach() * 1.1).requires_grad_() for name, each in model.named_parameters()}
            torch.func.functional_call(model, lent, (), self.batch).loss.backward()
            return {name: each.grad for name, each in lent.items()}

        self.assert_same(run)

    def test_what_is_differentiated_by_torch_func(self):
        def run(model, patch):
            patch(model)
            lent = {name: each.detach() for name, each in model.named_parameters()}
            return torch.func.grad(lambda values: torch.func.functional_call(model, values, (), self.batch).loss)(lent)

        self.assert_same(run)

    def test_a_checkpoint_around_the_model(self):
        def run(model, patch):
            patch(model)
            checkpoint(lambda batch: model(**batch).loss, self.batch, use_reentrant=False, context_fn=lambda: (contextlib.nullcontext(), in_float64())).backward()
            return gradients(model)

        self.assert_same(run)

    def test_positions_that_leave_some_out(self):
        batch = {"input_ids": self.batch["input_ids"][:1], "labels": self.batch["input_ids"][:1], "position_ids": torch.cat([torch.arange(9), torch.arange(30, 44)])[None]}

        def run(model, patch):
            patch(model)
            model(**batch).loss.backward()
            return gradients(model)

        self.assert_same(run, use_cache=True)  # a cache, by which transformers' masks take no notice of positions
        self.assert_same(run, use_cache=False)  # each jump begins a document there
        with self.assertLogs("streambp_bench") as caught:
            sb.patch(tiny(use_cache=True))(**packed_batch(61, (9, 10)))
        self.assertIn("position_ids start anew", caught.output[-1])

    def test_weights_that_change_before_the_backward_pass(self):
        for lane in ("engine", "module"):
            model = sb.patch(tiny(), lane=lane)
            loss = model(**self.batch).loss
            with torch.no_grad():
                model.model.layers[0].mlp.up_proj.weight.mul_(1.5)
            with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                loss.backward()

    def test_second_derivatives_are_refused(self):
        for lane in ("engine", "module"):
            model = sb.patch(tiny(), lane=lane)
            first = torch.autograd.grad(model(**self.batch).loss, list(model.parameters()), create_graph=True)
            with self.assertRaisesRegex(sb.InputError, "first derivatives alone"):
                sum(each.square().sum() for each in first).backward()

    def test_a_pickled_model_is_its_own(self):
        model = sb.patch(tiny(dtype=torch.float64), chunk=7)
        file = io.BytesIO()
        with self.assertLogs("streambp_bench") as caught:
            torch.save(model, file)
        self.assertIn("patch it again", caught.output[0])
        file.seek(0)
        other = torch.load(file, weights_only=False)
        self.assertIsNone(patched_state(other))
        with everything_in_float64():
            sb.patch(other.train(), chunk=7)
            self.assertTrue(difference(step(other, self.batch)[1], step(model, self.batch)[1]) <= 1e-10)

    def test_logits_of_padding(self):
        model = sb.patch(tiny(), chunk=7)
        for more in ({}, {"labels": None}):
            output = model(**self.batch | more)
            with self.assertLogs("streambp_bench") if not more else contextlib.nullcontext() as caught:
                output.logits.sum()
            if not more:
                self.assertIn("rows of padding are not computed", caught.output[-1])

    def test_copies_on_several_gpus(self):
        model = tiny()
        trainer = types.SimpleNamespace(train=None, accelerator=None, model=model, args=types.SimpleNamespace(n_gpu=2))
        with self.assertRaisesRegex(sb.InputError, "torchrun"):
            sb.patch(trainer)
        self.assertIsNone(patched_state(model))


class Halves:
    """A forward hook that can be copied with its model."""

    def __init__(self, first=False):
        self.first = first

    def __call__(self, module, args, output):
        return (output[0] * 0.5, *output[1:]) if self.first else output * 0.5


if __name__ == "__main__":
    unittest.main()
