#!/usr/bin/env python3
"""sb.patch(model, lane="module"): layers whose indexer picks the rows that each row sees, and layers that compress rows (DeepSeek V3.2 and V4, GLM-5, Hunyuan 4),
are streamed with the picks and the gradients of one pass over all rows, in float64."""

import unittest
import warnings

import streambp_bench as sb
import torch
import transformers
from any_model import difference
from module_lane_test import CLASSES, LIMIT, everything_in_float64, streamed
from module_lane_test import model_of as small_model
from patching import batch_of, packed_batch, relative, step
from python_case import Case
from streambp_bench._replaced import patched_state

CHUNKS = (1, 2, 5, 7, 22, 23, 40)
COMPRESSED = {"layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention", "compressed_sparse_attention"],
              "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 7}}
# Some layers see what an earlier one has picked.
SHARED = {"indexer_types": ["full", "shared", "full", "shared"]}
FAMILIES = {"deepseek_v32": ("DeepseekV32ForCausalLM", {"num_key_value_heads": 4}), "glm_moe_dsa": ("GlmMoeDsaForCausalLM", {"num_key_value_heads": 4} | SHARED),
            "hy_v4": ("HYV4ForCausalLM", SHARED), "deepseek_v4": ("DeepseekV4ForCausalLM", COMPRESSED)}
CLASSES |= {family: name for family, (name, _) in FAMILIES.items()}
warnings.simplefilter("ignore")


def model_of(family, **settings):
    name, own = FAMILIES[family]
    if not hasattr(transformers, name):
        raise unittest.SkipTest(f"transformers {transformers.__version__} has no {name}")
    return small_model(family, made_with=own | settings)


class Sparse(Case):
    def compare(self, model, batch, what, chunks=CHUNKS, prove=True):
        """All gradients, and that nothing ran whole. prove: by layers too, which takes longer than a step."""
        with everything_in_float64():
            loss, theirs = step(model, batch, use_cache=False)
            with streamed(model, prove=prove):
                state = patched_state(model)
                for state.chunk in chunks:
                    ours_loss, ours = step(model, batch)
                    error = max(relative(ours_loss, loss), difference(ours, theirs))
                    self.assertTrue(error <= LIMIT, f"{what}, chunk {state.chunk}: {error:.1e}")
                    type(self).reached = max(self.reached, error)
                self.assertEqual({proof.lane for proof in state.table or ()}, {"module"} if prove else set(), f"{what}\n{state.table}")
                self.assertEqual({call.warned for call in state.calls}, {""}, what)
        return theirs

    def test_picks_of_an_indexer(self):
        for family in FAMILIES:
            with self.subTest(family):
                for picked in self.turns((3, 16, 64), 1):  # the last is more than there are
                    self.compare(model_of(family, index_topk=picked), batch_of(61, (23, 23)), f"{family}, {picked} picked", self.turns(CHUNKS, 1))
                self.compare(model_of(family, index_topk=3), batch_of(61, (23, 15), "right"), f"{family}, padding on the right", self.turns(CHUNKS, 1), prove=family in ("hy_v4", "deepseek_v4"))  # whose states of four axes a proof finds

    def test_picks_matter(self):
        batch = batch_of(61, (23, 23))
        few, more = (self.compare(model_of("deepseek_v32", index_topk=picked), batch, "picks", (5,)) for picked in (3, 64))
        self.assertGreater(difference(few, more), 1e-3)

    def test_padding_on_the_left(self):
        for family in self.turns(("deepseek_v32", "glm_moe_dsa", "hy_v4"), 1):
            self.compare(model_of(family, index_topk=3), batch_of(61, (23, 15), "left"), f"{family}, padding on the left", (1, 7))

    def test_compressed_rows_of_padding_on_the_left_count_and_run_whole(self):
        model, batch = model_of("deepseek_v4"), batch_of(61, (23, 15), "left")
        with everything_in_float64():
            _, theirs = step(model, batch, use_cache=False)
            with streamed(model, 7), self.assertLogs("streambp_bench") as caught:
                _, ours = step(model, batch)
        self.assertTrue(any("rows of padding count" in line for line in caught.output), caught.output)
        self.assertTrue(difference(ours, theirs) <= LIMIT)

    def test_packed(self):
        self.compare(model_of("deepseek_v32", index_topk=3), packed_batch(61, (9, 10, 4)), "packed", self.turns(CHUNKS, 4))

    def test_memory_of_later_rows_is_never_read(self):
        model, batch = model_of("deepseek_v32", index_topk=3), batch_of(61, (23, 23))
        with everything_in_float64():
            _, theirs = step(model, batch, use_cache=False)
            with streamed(model, 5):
                whole = torch.Tensor.new_empty

                def poisoned(self, *sizes, **more):
                    made = whole(self, *sizes, **more)
                    return made.fill_(float("nan")) if made.is_floating_point() else made

                torch.Tensor.new_empty = poisoned
                try:
                    _, ours = step(model, batch)
                finally:
                    torch.Tensor.new_empty = whole
        self.assertTrue(difference(ours, theirs) <= LIMIT)

    def test_lane_auto_leaves_choices_among_equal_scores_to_the_layers(self):
        model, batch = model_of("deepseek_v32"), batch_of(61, (23, 15))
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith("indexer.weights_proj.weight"):
                    weight.zero_()
        with everything_in_float64():
            loss, theirs = step(model, batch, use_cache=False)
            sb.patch(model, chunk=7)
            with self.assertLogs("streambp_bench") as caught:
                ours_loss, ours = step(model, batch)
            sb.unpatch(model)
        self.assertIn("indexer of layer 0", caught.output[-1])
        error = max(relative(ours_loss, loss), difference(ours, theirs))
        self.assertTrue(error <= LIMIT, f"{error:.1e}")


if __name__ == "__main__":
    unittest.main()
