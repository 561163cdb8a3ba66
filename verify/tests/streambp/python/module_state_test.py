"""What runs decides: modules that hold something else than the model's config, and functions put instead of transformers' own."""

import time
import types
import unittest
import warnings
from unittest import mock

import torch
from module_lane_test import everything_in_float64
from patching import load, patched, step, tiny
from python_case import Case, autograd, in_float64, inputs_of, model_in_float64, packed_inputs, take_gradients
from transformers.loss import loss_utils
from transformers.models.qwen3 import modeling_qwen3

import streambp_bench as sb


def _backward(model, batch):
    """(loss, gradients, notes) of backward()."""
    model.zero_grad(set_to_none=True)
    loss, info = sb.backward(model, batch, return_info=True)
    return loss.item(), take_gradients(model), info.notes


class ModulesDecide(Case):
    """Each is done to a live model; Hugging Face's own pass is the truth."""

    def both_levels(self, model, batch, what, notes=()):
        """backward() and patch() give the gradients of the model's own pass, and say where config and module differ."""
        model.config.use_cache = False
        loss, truth = autograd(model, batch)
        ours, own_gradients, said = _backward(model, batch)
        self.assert_loss(ours, loss, what)
        self.assert_gradients(own_gradients, truth, what)
        self.assertEqual(len(said), len(notes), said)
        for words, note in zip(notes, said, strict=True):
            for word in words:
                self.assertIn(word, note)
        if getattr(model.config, "output_router_logits", False):
            return
        model.train()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with patched(model, chunk=7):
                model.zero_grad(set_to_none=True)
                with in_float64():
                    model(**batch).loss.backward()
                self.assert_gradients(take_gradients(model), truth, f"{what}, patched")
        model.eval()

    def test_pad_token_id_set_after_the_model_was_made(self):
        model = model_in_float64("qwen3")
        self.assertIsNone(model.model.embed_tokens.padding_idx)
        batch = inputs_of(model)
        model.config.pad_token_id = int(batch["input_ids"][0, -1])
        self.both_levels(model, batch, "a padding row that is trained", [("pad_token_id is None", str(model.config.pad_token_id))])

    def test_pad_token_id_taken_away(self):
        model = model_in_float64("qwen3-pad")
        batch = inputs_of(model)
        pad = model.model.embed_tokens.padding_idx
        batch["input_ids"][0, -2] = pad
        model.config.pad_token_id = None
        self.both_levels(model, batch, "a padding row that is not trained", [(f"pad_token_id is {pad}", "None")])

    def test_router_loss(self):
        for name in ("qwen3-moe-aux", "mixtral-aux"):
            model = model_in_float64(name)
            model.config.router_aux_loss_coef *= 3.6
            self.both_levels(model, inputs_of(model), name, [("router_aux_loss_coef",)])
            model.router_aux_loss_coef = 0.3
            self.both_levels(model, inputs_of(model), f"{name}, the model's own", [("router_aux_loss_coef is 0.3",)])

    def test_top_k_of_routers(self):
        model = model_in_float64("qwen3-moe")
        model.config.output_router_logits = False
        model.config.num_experts_per_tok = 1
        self.both_levels(model, inputs_of(model), "as many experts as the routers choose", [("num_experts_per_tok is 2", "1")])
        model.model.layers[0].mlp.gate.top_k = 1
        self.assert_refused(lambda: _backward(model, inputs_of(model)), "its config says")

    def test_eps_of_norms(self):
        model = model_in_float64("qwen3")
        norms = [module for module in model.modules() if hasattr(module, "variance_epsilon")]
        for norm in norms:
            norm.variance_epsilon = 0.01
        self.both_levels(model, inputs_of(model), "eps of every norm", [("rms_norm_eps is 0.01",)])
        norms[3].variance_epsilon = 0.02
        self.assert_refused(lambda: _backward(model, inputs_of(model)), "variance_epsilon", "its config says")

    def test_untied_after_patching(self):
        model = load("llama-tied")
        batch = inputs_of(model)
        with patched(model, chunk=7):
            tied = step(model, batch)
            model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
            untied = step(model, batch)
        loss, truth = autograd(model, batch)
        self.assert_loss(untied[0], loss, "untied")
        self.assert_loss(tied[0], loss, "the same values")
        self.assert_gradients(untied[1], truth, "untied")
        self.assertIn("lm_head.weight", untied[1])
        _, ours, _ = _backward(model, batch)
        self.assert_gradients(ours, truth, "untied, backward")

    def test_config_and_modules_that_change_together_after_patching(self):
        def untied(model):
            model.config.tie_word_embeddings, model.lm_head.weight = False, torch.nn.Parameter(model.lm_head.weight.detach() * 1.1)

        def eps(model):
            model.config.rms_norm_eps = 0.05
            for norm in (module for module in model.modules() if hasattr(module, "variance_epsilon")):
                norm.variance_epsilon = 0.05

        for change in (untied, eps):
            model = load("llama-tied")
            batch = inputs_of(model)
            with patched(model, chunk=7):
                step(model, batch)
                change(model)
                loss, ours = step(model, batch)
            expected, truth = autograd(model, batch)
            self.assert_loss(loss, expected, change.__name__)
            self.assert_gradients(ours, truth, change.__name__)

    def test_frequencies(self):
        model = model_in_float64("llama")
        rotary = model.model.rotary_emb
        rotary.inv_freq = rotary.inv_freq * 1.25
        self.both_levels(model, inputs_of(model), "edited frequencies")
        rotary.attention_scaling = 0.9
        self.both_levels(model, inputs_of(model), "and another factor")
        model = model_in_float64("gemma3")
        model.model.rotary_emb.sliding_attention_inv_freq.mul_(0.7)
        self.both_levels(model, inputs_of(model), "frequencies of layers with a window")

    def test_frequencies_cast_with_the_model(self):
        """model.to(bfloat16) rounds them, and Hugging Face rotates by what is left."""
        model = model_in_float64("llama")
        rotary = model.model.rotary_emb
        rotary.inv_freq = rotary.inv_freq.bfloat16().double()
        self.both_levels(model, packed_inputs(model, (40, 9)), "frequencies of bfloat16")

    def test_dynamic_scaling_remembers_the_longest_batch(self):
        model = model_in_float64("llama-dynamic")
        original = model.config.max_position_embeddings
        generator = torch.Generator().manual_seed(3)
        long = {"input_ids": torch.randint(3, model.config.vocab_size, (1, 2 * original), generator=generator)}
        middle = {"input_ids": torch.randint(3, model.config.vocab_size, (1, original + 3), generator=generator)}
        short = {"input_ids": torch.randint(3, model.config.vocab_size, (1, original - 2), generator=generator)}
        for batch in (long, middle, short):
            batch["labels"] = batch["input_ids"]
        for order in ((middle, long, middle), (long, middle, short, middle)):
            truth = model_in_float64("llama-dynamic")
            ours = model_in_float64("llama-dynamic")
            for i, batch in enumerate(order):
                expected = autograd(truth, batch)
                with in_float64():
                    got = _backward(ours, batch)
                self.assert_loss(got[0], expected[0], f"batch {i}")
                self.assert_gradients(got[1], expected[1], f"batch {i}")

    def test_what_can_not_be_given_is_refused(self):
        for what, change, *words in (
                ("scaling", lambda m: setattr(m.model.layers[1].self_attn, "scaling", 0.5), "layers.1.self_attn.scaling is 0.5"),
                ("is_causal", lambda m: setattr(m.model.layers[0].self_attn, "is_causal", False), "is_causal is False"),
                ("act_fn", lambda m: setattr(m.model.layers[0].mlp, "act_fn", torch.nn.GELU()), "mlp.act_fn", "GELU"),
                ("a function", use_function, "mlp.act_fn: is", "tanh", "SiLUActivation"),
                ("window", lambda m: setattr(m.model.layers[0].self_attn, "sliding_window", 4), "sliding_window is 4"),
        ):
            with self.subTest(what=what):
                model = model_in_float64("qwen3")
                model.config.use_cache = False
                change(model)
                self.assert_refused(lambda model=model: _backward(model, inputs_of(model)), *words)
                self.assert_refused(lambda model=model: sb.patch(model.train(), lane="engine"), *words)
                model = load("qwen3")
                with patched(model):
                    step(model, inputs_of(model))
                    change(model)
                    self.assert_refused(lambda model=model: step(model, inputs_of(model)), *words)


    def test_norms_of_torch_are_refused(self):
        model = model_in_float64("qwen3")
        attention = model.model.layers[1].self_attn
        norm = torch.nn.RMSNorm(attention.head_dim, eps=0.1)
        norm.weight, attention.k_norm = attention.k_norm.weight, norm
        self.assert_refused(lambda: _backward(model, inputs_of(model)), "k_norm: is a torch.nn.modules.normalization.RMSNorm", "Qwen3RMSNorm")
        self.assert_refused(lambda: sb.patch(model.train(), lane="engine"), "k_norm: is a torch.nn.modules.normalization.RMSNorm")


def use_function(model):
    """In place of an activation that is a module."""
    del model.model.layers[0].mlp.act_fn
    model.model.layers[0].mlp.act_fn = torch.tanh


class FunctionsDecide(Case):
    """Functions that a library or a user has put instead of transformers' own."""

    def both_refuse(self, model, *words):
        self.assert_refused(lambda: _backward(model, inputs_of(model)), *words)
        self.assert_refused(lambda: sb.patch(model, lane="engine"), *words)

    def test_of_a_class(self):
        model = load("qwen3")
        original = modeling_qwen3.Qwen3MLP.forward

        def doubled(self, x):
            return 2 * original(self, x)

        with mock.patch.object(modeling_qwen3.Qwen3MLP, "forward", doubled):
            self.both_refuse(model, "Qwen3MLP.forward", "doubled", "undo")
        with patched(model):
            step(model, inputs_of(model))
            with mock.patch.object(modeling_qwen3.Qwen3RMSNorm, "forward", doubled):
                self.assert_refused(lambda: step(model, inputs_of(model)), "Qwen3RMSNorm.forward")
        _backward(model, inputs_of(model))

    def test_of_a_file(self):
        model = load("qwen3")
        for name in ("apply_rotary_pos_emb", "rotate_half", "repeat_kv", "eager_attention_forward"):
            with mock.patch.object(modeling_qwen3, name, lambda *a, **k: None):
                self.both_refuse(model, f"modeling_qwen3.{name}", "replaced")

    def test_of_torch(self):
        model = load("qwen3")
        original = torch.nn.Linear.forward
        with mock.patch.object(torch.nn.Linear, "forward", lambda self, x: original(self, x) * 2):
            self.both_refuse(model, "Linear.forward")
        with mock.patch.object(torch.nn.functional, "silu", lambda x, inplace=False: x.relu()):
            self.both_refuse(model, "torch.nn.functional.silu")

    def test_of_the_loss(self):
        original = loss_utils.fixed_cross_entropy
        for lane in ("engine", "module"):
            model = load("qwen3")
            batch = inputs_of(model)
            with mock.patch.object(loss_utils, "fixed_cross_entropy", lambda *args, **kwargs: original(*args, **kwargs) * 3):
                expected, truth = autograd(model, batch)
                with everything_in_float64(), patched(model, lane=lane, chunk=7):
                    loss, ours = step(model, batch)
                self.assert_refused(lambda model=model, batch=batch: _backward(model, batch), "fixed_cross_entropy", "patch the model")
            self.assert_loss(loss, expected, lane)
            self.assert_gradients(ours, truth, lane)

    def test_of_the_model_itself(self):
        model = load("qwen3")
        original = model.forward
        model.forward = types.MethodType(lambda self, *args, **kwargs: original(*args, **kwargs), model)
        self.both_refuse(model, "model.forward", "which would not run")
        del model.forward
        try:
            import accelerate
        except ImportError:
            self.skipTest("no accelerate")
        prepared = accelerate.Accelerator(cpu=True, mixed_precision="bf16").prepare(tiny())
        self.both_refuse(prepared, "accelerate", "mixed precision")

    def test_all_obstacles_at_once(self):
        model = load("qwen3")
        model.config.output_attentions = True
        model.model.layers[0].self_attn.scaling = 1.0
        model.model.layers[1].self_attn.attention_dropout = 0.1
        message = self.assert_refused(lambda: sb.patch(model, lane="engine"), "3 obstacles", "(1) output_attentions", "(2) ", "(3) ")
        self.assertIn("attention_dropout is 0.1", message)


class Cost(Case):
    def test_of_looking(self):
        """Printed, not asserted: what all checks of a step cost."""
        from streambp_bench._live_model.refusals import check_state

        model = load("qwen3")
        check_state(model)
        times = []
        for _ in range(30):
            start = time.perf_counter()
            check_state(model)
            times.append(time.perf_counter() - start)
        print(f"checks of a model of {len(model.model.layers)} layers: {1e3 * sorted(times)[15]:.2f} ms")


if __name__ == "__main__":
    unittest.main()
