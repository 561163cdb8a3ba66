#!/usr/bin/env python3
"""sb.patch(model, lane="module"): what layers give besides their hidden states reaches the loss once, in token order, with its gradient, while they are streamed:
router logits, keys and values that later layers read; hidden states of another shape than [B, T, D]; and what is put into layers besides modules with parameters.
All gradients are the model's own, in float64."""

import contextlib
import unittest
import warnings

import torch
import transformers
from module_lane_test import CLASSES, LIMIT, difference, everything_in_float64, model_of, streamed
from patching import batch_of, relative, step, tiny
from python_case import Case
from streambp_bench._replaced import patched_state

ROUTERS = ("mixtral", "qwen3_moe", "qwen2_moe", "gpt_oss")
SHARED = {"gemma3n_text": {"num_kv_shared_layers": 2}, "gemma4_text": {"num_kv_shared_layers": 2}}
CLASSES |= {"gemma3n_text": "Gemma3nForCausalLM", "gemma4_text": "Gemma4ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM", "qwen2_moe": "Qwen2MoeForCausalLM",
            "recurrent_gemma": "RecurrentGemmaForCausalLM"}
warnings.simplefilter("ignore")


class Sides(Case):
    def compare(self, model, batch, what, chunks=(1, 6, 40), lane="module", **more):
        with everything_in_float64():
            loss, theirs = step(model, batch, use_cache=False, **more)
            for chunk in chunks:
                with streamed(model, chunk, prove=lane != "module" or chunk == chunks[0] or what.startswith("gemma")):  # whose layers need one
                    table = patched_state(model).table or ()
                    self.assertTrue({proof.lane for proof in table} <= {lane}, f"{what}\n{table}")
                    ours_loss, ours = step(model, batch, **more)
                    self.assertEqual({call.warned for call in patched_state(model).calls}, {""}, what)
                error = max(relative(ours_loss, loss), difference(ours, theirs))
                self.assertTrue(error <= LIMIT, f"{what}, chunk {chunk}: {error:.1e}")
                type(self).reached = max(self.reached, error)
        return theirs

    def test_routers_losses(self):
        for family in ROUTERS:
            model = model_of(family, router_aux_loss_coef=0.5)
            without = self.compare(model, batch_of(61, (23, 15)), family, chunks=(6,))
            model.config.output_router_logits = True
            self.assertGreater(difference(self.compare(model, batch_of(61, (23, 15)), f"{family}, routers' losses", chunks=self.turns((1, 6, 40), 2)), without), 1e-3)

    def test_routers_logits_are_in_token_order(self):
        model, batch = model_of("mixtral"), batch_of(61, (23, 15))
        with everything_in_float64():
            theirs = model(**batch, use_cache=False, output_router_logits=True).router_logits
            with streamed(model, 6):
                ours = model(**batch, output_router_logits=True).router_logits
        self.assertEqual(len(ours), len(theirs))
        real = batch["attention_mask"].bool().flatten()  # what padding sees is the attention's own
        self.assertTrue(all(torch.allclose(one[real], other[real], atol=1e-12) for one, other in zip(ours, theirs, strict=True)))

    def test_a_loss_of_the_routers_alone(self):
        model, batch = model_of("mixtral"), batch_of(61, (23, 23))

        def gradients():
            model.zero_grad(set_to_none=True)
            sum((logits ** 2).sum() for logits in model(**batch, use_cache=False, output_router_logits=True).router_logits[:2]).backward()
            return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}

        with everything_in_float64():
            theirs = gradients()
            with streamed(model, 6):
                ours = {name: each for name, each in gradients().items() if name in theirs or bool(each.any())}
        self.assertTrue(difference(ours, theirs) <= LIMIT)

    def test_a_routers_loss_that_counts_padding_is_refused(self):
        model, batch = model_of("mixtral"), batch_of(61, (23, 15), "left")
        with everything_in_float64(), streamed(model, 6):
            routers = model(**batch, output_router_logits=True).router_logits
            self.assert_refused(lambda: sum((logits ** 2).sum() for logits in routers).backward(), "padding")

    def test_keys_and_values_that_layers_share(self):
        for family, settings in SHARED.items():
            model = model_of(family, **settings)
            self.assertTrue(any(layer.self_attn.is_kv_shared_layer for layer in model.model.layers))
            for padding in ("left", "right"):
                self.compare(model, batch_of(61, (23, 15), padding), f"{family}, {padding}", chunks=self.turns((1, 6, 40), 1))

    def test_keys_and_values_of_a_streamed_layer_in_a_whole_one_and_the_reverse(self):
        for whole in (1, 3):
            model = model_of("gemma4_text", **SHARED["gemma4_text"])
            batch = batch_of(61, (23, 15))
            with everything_in_float64():
                loss, theirs = step(model, batch, use_cache=False)
                with streamed(model, 6):
                    patched_state(model).calls[whole].reason = "the test says so"
                    ours_loss, ours = step(model, batch)
            self.assertTrue(max(relative(ours_loss, loss), difference(ours, theirs)) <= LIMIT, whole)

    def test_rows_of_an_encoder(self):
        common = {"vocab_size": 61, "is_decoder": True, "pad_token_id": 0}
        bart = {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 48, "dropout": 0.0, "is_encoder_decoder": False}
        gpt2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "add_cross_attention": True, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
        for family, settings in {"Bart": ("BartForCausalLM", bart), "GPT2": ("GPT2LMHeadModel", gpt2)}.items():
            torch.manual_seed(0)
            model = getattr(transformers, settings[0])(getattr(transformers, f"{family}Config")(**common, **settings[1])).double().train()
            for rows in (15, 23):  # as many as tokens: they are not those of the tokens
                batch = batch_of(61, (23, 23)) | {"encoder_hidden_states": torch.randn(2, rows, 32, dtype=torch.float64, requires_grad=True)}
                found = []
                for chunk in (None, 7):
                    batch["encoder_hidden_states"].grad = None
                    with everything_in_float64(), streamed(model, chunk) if chunk else contextlib.nullcontext():
                        loss, gradients = step(model, batch, use_cache=False)
                    found.append((loss, gradients | {"encoder": batch["encoder_hidden_states"].grad}))
                error = max(relative(found[1][0], found[0][0]), difference(found[1][1], found[0][1]))
                self.assertTrue(error <= LIMIT, f"{family}, {rows} rows: {error:.1e}")

    def test_layers_whose_padding_reaches_real_rows(self):
        model, batch = model_of("recurrent_gemma"), batch_of(61, (23, 15), "left")
        with everything_in_float64():
            loss, theirs = step(model, batch, use_cache=False)
            with streamed(model, 6):
                ours_loss, ours = step(model, batch)
        self.assertTrue(max(relative(ours_loss, loss), difference(ours, theirs)) <= LIMIT)


class Shifted(torch.nn.Module):
    """Its rows see the row before them."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, rows):
        return self.inner(rows) + 0.5 * torch.nn.functional.pad(rows[:, :-1], (0, 0, 1, 0))


class Batched(Shifted):
    """Counts what it sees in buffers, and normalises by it."""

    def __init__(self, inner):
        super().__init__(inner)
        self.norm = torch.nn.BatchNorm1d(16).double()

    def forward(self, rows):
        return self.norm(self.inner(rows).transpose(1, 2)).transpose(1, 2)


class Inside(Case):
    """What is put into layers, before patch() or after it."""

    def compare(self, put, late=False):
        batch = batch_of(61, (9, 8))
        for streams in (False, True):
            model = tiny(dtype=torch.float64)
            with everything_in_float64():
                leaves = [] if late else put(model)
                with streamed(model, 3) if streams else contextlib.nullcontext():
                    leaves = put(model) if late else leaves
                    model(**batch).loss.backward()
            found = {name: each.grad for name, each in model.named_parameters()} | dict(model.named_buffers()) | {str(i): each.grad for i, each in enumerate(leaves)}
            found = {name: each for name, each in found.items() if each is not None}
            expected = expected if streams else found
            error = difference(found, expected)
            self.assertTrue(error <= LIMIT, f"{put.__name__}: {error:.1e}")

    def test_modules_whose_rows_meet(self):
        def shifted(model):
            model.model.layers[1].mlp = Shifted(model.model.layers[1].mlp)
            return []

        self.compare(shifted, late=True)

    def test_leaves_that_are_no_parameters(self):
        def leaf(model):
            moved, inner = torch.linspace(0, 1, 24, dtype=torch.float64).requires_grad_(), model.model.layers[0].mlp.up_proj
            own = inner.forward
            inner.forward = lambda rows: own(rows) + moved
            return [moved]

        def attribute(model):
            made, inner = torch.linspace(0, 1, 24 * 16, dtype=torch.float64).view(24, 16).requires_grad_(), model.model.layers[0].mlp.up_proj
            inner._parameters.pop("weight")
            inner.weight = made * 2
            return [made]

        self.compare(leaf)
        self.compare(attribute, late=True)

    def test_buffers_that_a_forward_pass_writes(self):
        def batched(model):
            model.model.layers[1].mlp = Batched(model.model.layers[1].mlp)
            return []

        def spectral(model):
            torch.manual_seed(3)
            torch.nn.utils.parametrizations.spectral_norm(model.model.layers[0].mlp.up_proj)
            return []

        for put in (batched, spectral):
            self.compare(put)

    def test_a_layer_s_forward_that_hands_on_its_arguments(self):
        def twice(model):
            layer = model.model.layers[1]
            own = layer.forward
            layer.forward = lambda *args, **kwargs: own(*args, **kwargs) * 2
            return []

        self.compare(twice)


if __name__ == "__main__":
    unittest.main()
