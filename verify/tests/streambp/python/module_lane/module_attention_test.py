#!/usr/bin/env python3
"""The module lane's attention is the engine's: equal to the model's own in float64, without a mask of chunk x length, where the mask is known; elsewhere the
model's own."""

import copy
import math
import unittest
import warnings
from unittest import mock

import streambp_bench as sb
import torch
import transformers
from any_model import difference
from module_lane_test import everything_in_float64, model_of, streamed
from patching import batch_of, packed_batch, relative, step
from python_case import Case
from streambp_bench._measure import load, measure
from streambp_bench._module_lane import attention
from streambp_bench._module_lane.row_cache import wide
from streambp_bench._replaced import FORWARDS

load()
LIMIT = 1e-10
CHUNK = 11  # 23 rows are two chunks and one row more
FAMILIES = ("llama", "qwen3", "gemma2", "gemma3_text", "gpt_oss", "phi", "mixtral", "granite", "cohere", "starcoder2", "olmo", "gpt_neox")
warnings.simplefilter("ignore")


class Calls:
    """Counts what attention computes while it lives: `ours` by the engine, `own` by the model's own function instead."""

    def __enter__(self):
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        attention._register()
        self.ours, self.all = 0, 0
        apply = attention.Attention.apply

        def computed(*args):
            self.ours += 1
            return apply(*args)

        def asked(*args, **kwargs):
            self.all += 1
            return attention.attend(*args, **kwargs)

        self.patches = [mock.patch.object(attention.Attention, "apply", computed),
                        mock.patch.dict(ALL_ATTENTION_FUNCTIONS._global_mapping, {attention.NAME: asked})]
        for each in self.patches:
            each.start()
        return self

    def __exit__(self, *error):
        for each in self.patches:
            each.stop()

    @property
    def own(self):
        return self.all - self.ours


class ModuleAttention(Case):
    def compare(self, model, batch, what, chunks=(CHUNK,), by="ours", **settings):
        """Loss and gradients of the patched model against its own, in float64; `by`: whose attention computes them."""
        with everything_in_float64():
            loss, theirs = step(model, batch, use_cache=False)
            for chunk in chunks:
                with streamed(model, chunk, **{"prove": chunk == chunks[0]} | settings), Calls() as calls:
                    ours_loss, ours = step(model, batch)
                error = max(relative(ours_loss, loss), difference(ours, theirs))
                self.assertTrue(error <= LIMIT, f"{what}, chunk {chunk}: {error:.1e}")
                type(self).reached = max(self.reached, error)
                self.assertEqual((calls.ours > 0, calls.own > 0), (by == "ours", by == "own"), f"{what}, chunk {chunk}: {calls.ours} by the engine, {calls.own} by the model's")

    def test_families_padded_and_packed(self):
        for family in FAMILIES:
            model = model_of(family)
            self.compare(model, batch_of(61, (23, 15, 9), "left"), f"{family}, left")
            self.compare(model, batch_of(61, (23, 15, 9), "right"), f"{family}, right", prove=False)
            self.compare(model, packed_batch(61, (9, 1, 10, 3)), f"{family}, packed", prove=False)

    def test_chunks_around_documents_windows_and_rows(self):
        chunks = (1, 4, 5, 6, 11, 22, 23, 24)
        self.compare(model_of("llama"), packed_batch(61, (5, 11, 7)), "llama, packed", chunks)
        self.compare(model_of("gemma3_text"), batch_of(61, (23, 18), "left"), "gemma3", chunks)
        self.compare(model_of("gpt_oss"), batch_of(61, (23, 18), "right"), "gpt_oss", chunks)

    def test_heads_that_fused_kernels_take(self):
        for family in ("llama", "mistral"):
            model = model_of(family, head_dim=16, num_attention_heads=4)
            self.compare(model, batch_of(61, (23, 15), "left"), f"{family}, heads of 16")

    def test_sdpa(self):
        for family in ("llama", "gemma3_text", "mixtral"):
            model = model_of(family, "sdpa")
            self.compare(model, batch_of(61, (23, 15), "left"), f"{family}, sdpa, left")
            batch = batch_of(61, (23, 23))
            del batch["attention_mask"]
            self.compare(model, batch, f"{family}, sdpa, no mask")

    def test_chunked_attention(self):
        self.compare(model_of("llama4_text", attention_chunk_size=5), batch_of(61, (23, 15), "left"), "llama4, left")

    def test_padding_between_tokens_is_the_models_own(self):
        batch = batch_of(61, (23, 23))
        batch["attention_mask"][0, 7:9] = 0
        batch["labels"][0, 6:11] = -100
        self.compare(model_of("llama"), batch, "a hole", by="own")

    def test_masks_that_are_given_are_the_models_own(self):
        batch = batch_of(61, (23, 23))
        rows = torch.arange(23)
        sees = (rows <= rows[:, None]) & (rows % 3 != 1) | torch.eye(23, dtype=torch.bool)
        batch["attention_mask"] = torch.zeros((), dtype=torch.float64).masked_fill(~sees, torch.finfo(torch.float64).min).expand(2, 1, 23, 23)
        self.compare(model_of("llama"), batch, "a mask of four axes", by="own")

    def test_dropout_of_attention_is_the_models_own(self):
        model = model_of("llama", attention_dropout=0.25)
        for layer in model.model.layers:
            layer.self_attn.attention_dropout = 0.25
        with everything_in_float64(), streamed(model, CHUNK), Calls() as calls:
            step(model, batch_of(61, (23, 15)))
        self.assertEqual((calls.ours, calls.own > 0), (0, True))

    def test_mask_functions_that_are_not_known(self):
        from transformers import masking_utils as masks

        images = masks.or_masks(masks.causal_mask_function, lambda batch, head, query, key: (query < 3) & (key < 3))
        self.assertIsNone(attention.parts_of(images))
        self.assertIsNone(attention.parts_of(lambda batch, head, query, key: key <= query))
        self.assertIsNone(attention.parts_of(masks.and_masks(masks.causal_mask_function, images)))
        window = masks.and_masks(masks.sliding_window_overlay(5), masks.causal_mask_function)
        self.assertEqual([(kind, held.get("sliding_window")) for kind, held in attention.parts_of(window)], [("window", 5), ("causal", None)])
        sizes = {"batch_size": 1, "q_length": 6, "kv_length": 6, "device": "cpu", "allow_is_causal_skip": False}
        self.assertIsInstance(attention.visible_or_mask(mask_function=window, **sizes), attention.Visible)
        for function in (images, masks.bidirectional_mask_function, masks.sliding_window_overlay(5)):
            mask = attention.visible_or_mask(mask_function=function, **sizes)
            self.assertTrue(torch.equal(mask, masks.sdpa_mask(mask_function=function, **sizes)))
        self.assertNotIsInstance(attention.visible_or_mask(mask_function=window, **sizes | {"kv_length": 8, "q_offset": 2}), attention.Visible)

    def test_spans_say_what_masks_say(self):
        from transformers import masking_utils as masks

        generator = torch.Generator().manual_seed(0)
        for trial in range(40):
            tokens = int(torch.randint(1, 14, (), generator=generator))
            packed = torch.randint(0, 2, (3, tokens), generator=generator).cumsum(1)
            function = masks.and_masks(masks.causal_mask_function, masks.packed_sequence_mask_function(packed))
            window = trial % 4
            if window:
                function = masks.and_masks(function, masks.sliding_window_overlay(window))
            columns = torch.arange(tokens)
            first = torch.randint(0, tokens, (3, 1), generator=generator)
            padding = (columns >= first) & (columns < first + torch.randint(0, tokens + 1, (3, 1), generator=generator))
            sizes = {"batch_size": 3, "q_length": tokens, "kv_length": tokens, "mask_function": function, "attention_mask": padding}
            found = attention.visible_or_mask(**sizes)
            seen = torch.zeros(3, 1, tokens, tokens, dtype=torch.bool)
            for row, begin, end, key, key_end in found.spans.tolist():
                for query in range(begin, end):
                    last = min(query + 1, key_end)
                    seen[row, 0, query, max(key, query - found.window + 1 if found.window else 0):last] = True
            self.assertTrue(torch.equal(seen, masks.sdpa_mask(**sizes, allow_is_causal_skip=False)), f"trial {trial}")

    def test_a_function_of_the_users_is_called(self):
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        calls = []

        def mine(module, query, *args, **kwargs):
            calls.append(query.shape[2])
            return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, *args, **kwargs)

        ALL_ATTENTION_FUNCTIONS.register("mine", mine)
        ALL_MASK_ATTENTION_FUNCTIONS.register("mine", sdpa_mask)
        try:
            self.compare(model_of("llama", "mine"), batch_of(61, (23, 15)), "a function of the user's", by="none")
        finally:
            del ALL_ATTENTION_FUNCTIONS._global_mapping["mine"], ALL_MASK_ATTENTION_FUNCTIONS._global_mapping["mine"]
        self.assertTrue(calls)

    def test_the_config_is_as_it_was(self):
        model, batch = model_of("llama"), batch_of(61, (23, 15))
        seen = []
        model.model.layers[0].self_attn.register_forward_hook(lambda module, args, output: seen.append(module.config._attn_implementation))
        with everything_in_float64(), streamed(model, CHUNK):
            step(model, batch)
            self.assertEqual(model.config._attn_implementation, "eager")
            self.assertIn(attention.NAME, seen)
            with mock.patch.object(torch.ops.streambp, "attention", side_effect=RuntimeError("planted")), self.assertRaisesRegex(RuntimeError, "planted"):
                step(model, batch)
            self.assertEqual(model.config._attn_implementation, "eager")
            other = copy.deepcopy(model)
            model.set_attn_implementation("sdpa")
            self.assertEqual([each.state.attention.name() for each in (call_of(model), call_of(other))], ["sdpa", "eager"])

    def test_a_mistake_of_ours_is_found_by_the_proof(self):
        """The proof holds the engine's attention against the model's own; what is not equal is left to the model's."""
        model = model_of("llama")
        compute = torch.ops.streambp.attention

        def planted(*args):
            output, *rest = compute(*args)
            return [output * 1.001, *rest]

        with everything_in_float64(), mock.patch.object(torch.ops.streambp, "attention", planted):
            with streamed(model, CHUNK) as patched:
                self.assertFalse(call_of(patched).ours)
                self.assertIsNone(call_of(patched).reason)

    def test_bfloat16_is_as_near_as_the_models_own(self):
        """Over six models and batches: one model's errors are rounding, of which either side has more at times."""
        for family in ("llama", "gemma3_text"):
            ratios = []
            for seed in range(6):
                wide = model_of(family).float()
                torch.manual_seed(seed)
                with torch.no_grad():
                    for weight in wide.parameters():
                        weight.add_(0.3 * weight.std() * torch.randn_like(weight))
                model = copy.deepcopy(wide).bfloat16()
                wide.load_state_dict({name: each.float() for name, each in model.state_dict().items()})
                batch = batch_of(61, (40, 31), "left", seed=seed)
                _, truth = step(wide, batch, use_cache=False)
                _, theirs = step(model, batch, use_cache=False)
                with streamed(model, CHUNK), Calls() as calls:
                    _, ours = step(model, batch)
                self.assertGreater(calls.ours, 0)

                def distance(found, truth=truth):
                    return sum(float((found[name].float() - truth[name]).norm() / truth[name].norm()) ** 2 for name in truth)

                ratios.append((distance(ours) / distance(theirs)) ** 0.5)
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            self.assertTrue(mean <= 1.1, (family, mean, ratios))

    def test_the_peak_of_a_layer_grows_by_its_rows_alone(self):
        """From T to 2 T by no more than its inputs, outputs, keys and values and the gradients of all."""
        config = transformers.LlamaConfig(vocab_size=16, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
                                          head_dim=16, max_position_embeddings=8192, use_cache=False)
        model = transformers.LlamaForCausalLM(config).train()
        sb.patch(model, lane="module", chunk=64)
        layer, peaks = model.model.layers[0], {}
        for tokens in (1024, 2048):
            hidden = torch.randn(1, tokens, 64, requires_grad=True)
            positions = model.model.rotary_emb(hidden, torch.arange(tokens)[None])
            visible = attention.visible_or_mask(batch_size=1, q_length=tokens, kv_length=tokens)
            given = {"attention_mask": visible, "position_embeddings": positions}
            layer(hidden, **given).sum().backward()
            hidden.grad = None
            with measure() as found:
                layer(hidden, **given).sum().backward()
            peaks[tokens] = found.beyond_start
        # Output and its gradient, the input's gradient, twice because autograd hands it on; keys and values with their gradients.
        per_row = 4 * (4 * 64 + 4 * 2 * 16)
        self.assertTrue(peaks[2048] - peaks[1024] <= 1024 * per_row + 4096, (peaks, 1024 * per_row))
        self.assertLess(peaks[2048], 4 * 2048 * 2048, "no mask of the length's square")


class Operators(Case):
    """torch.ops.streambp.attention and its backward pass against plain products."""

    @staticmethod
    def sees(spans, batch, queries, keys, window):
        mask = torch.zeros(batch, 1, queries, keys, dtype=torch.bool)
        first = keys - queries
        for row, begin, end, key, key_end in spans:
            for query in range(max(begin, first), min(end, keys)):
                last = query + 1 if (key, key_end) == (begin, end) else key_end
                mask[row, 0, query - first, max(key, query - window + 1 if window else 0):last] = True
        return mask

    def test_against_plain_products(self):
        generator = torch.Generator().manual_seed(3)
        spans = [(0, 0, 30, 0, 30), (1, 3, 9, 3, 9), (1, 9, 21, 9, 21), (1, 21, 30, 9, 21)]  # two documents and padding on both sides
        for size, dtype, limit in ((8, torch.float64, 1e-12), (16, torch.float64, 1e-12), (16, torch.float32, 1e-5), (32, torch.bfloat16, 3e-2)):
            for queries, window, softcap, has_sinks in ((30, 0, 0.0, False), (7, 0, 0.0, True), (7, 4, 0.0, False), (12, 5, 3.0, True), (1, 0, 2.0, False), (16, 1, 0.0, False)):
                drawn = [torch.randn(*shape, generator=generator).to(dtype) for shape in ((2, 4, queries, size), (2, 2, 30, size), (2, 2, 30, size), (4,), (2, queries, 4, size))]
                q, k, v, sinks, seeds = (each.double().requires_grad_() for each in drawn)
                sinks = sinks if has_sinks else None
                mask = self.sees(spans, 2, queries, 30, window)
                scores = q @ k.repeat_interleave(2, 1).mT * 0.3
                scores = (torch.tanh(scores / softcap) * softcap if softcap else scores).masked_fill(~mask, -torch.inf)
                if has_sinks:
                    scores = torch.cat([scores, sinks[None, :, None, None].expand(*scores.shape[:-1], 1)], -1)
                weights = scores.softmax(-1)[..., :30]
                weights = torch.where(mask.any(-1, keepdim=True), weights, 0.0)
                truth = (weights @ v.repeat_interleave(2, 1)).transpose(1, 2)
                wanted = [q, k, v, *([sinks] if has_sinks else [])]
                theirs = torch.autograd.grad(truth, wanted, seeds.detach())
                settings = (torch.tensor(spans), window, 0.3, softcap, drawn[3] if has_sinks else None)
                inputs = drawn[:3]
                saved = torch.ops.streambp.attention(*inputs, *settings)
                rooms = [torch.ones(2, 30 - queries, 2, size, dtype=wide(dtype)).transpose(1, 2) for _ in range(2)]
                dq, dk, dv, *d_sinks = torch.ops.streambp.attention_backward(drawn[4], saved, *inputs, *settings, *rooms)
                ours = [dq, *(torch.cat([room - 1, own], 2) for room, own in zip(rooms, (dk, dv), strict=True)), *d_sinks]
                what = f"{dtype}, heads of {size}, {queries} queries, window {window}, cap {softcap}, sinks {has_sinks}"
                for found, expected in zip([saved[0], *ours], [truth.detach(), *theirs], strict=True):
                    error = float((found - expected).abs().max() / expected.abs().max().clamp_min(1.0))  # a window of 1 has scores without a gradient
                    self.assertTrue(error <= limit, f"{what}: {error:.1e}, limit {limit:.0e}")
                    if dtype == torch.float64:
                        type(self).reached = max(self.reached, error)

    def test_sizes_that_do_not_fit(self):
        q, k = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 5, 8)
        spans, rest = torch.tensor([[0, 0, 5, 0, 5]]), (0, 1.0, 0.0, None)
        rooms = [torch.zeros(1, 2, 2, 8).transpose(1, 2)] * 2
        saved = torch.ops.streambp.attention(q, k, k, spans, *rest)
        for given, word in (((q, k, k[..., :4], spans), "keys"), ((q, k[:, :, :2], k[:, :, :2], spans), "queries"), ((q[:, :3], k, k, spans), "multiple"),
                            ((q, k.double(), k.double(), spans), "dtype"), ((q, k, k, spans[0]), "spans"), ((q, k, k, spans.int()), "spans"),
                            ((q, k, k, torch.tensor([[0, 3, 5, 1, 4]])), "span 0"), ((q, k, k, torch.tensor([[2, 0, 5, 0, 5]])), "span 0"),
                            ((q, k, k, spans.repeat(2, 1)), "span 1")):
            with self.assertRaisesRegex(RuntimeError, f"streambp: .*{word}"):
                torch.ops.streambp.attention(*given, *rest)
        with self.assertRaisesRegex(RuntimeError, "streambp: .*sinks"):
            torch.ops.streambp.attention(q, k, k, spans, *rest[:3], torch.zeros(3))
        for seeds, given in ((torch.zeros(1, 4, 3, 8), rooms), (torch.zeros(1, 3, 4, 8), [rooms[0][:, :, :1]] * 2), (torch.zeros(1, 3, 4, 8), [torch.zeros(1, 2, 2, 8).double()] * 2)):
            with self.assertRaisesRegex(RuntimeError, "streambp: attention_backward"):
                torch.ops.streambp.attention_backward(seeds, saved, q, k, k, spans, *rest, *given)


def call_of(model):
    """What the first streamed layer knows."""
    return model.model.layers[0].__dict__[FORWARDS][0].call


if __name__ == "__main__":
    unittest.main()
