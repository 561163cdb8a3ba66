"""DeepSeek V4 and MiniMax M3, whose layers see blocks of tokens: sb.backward and sb.patch by the engine and by the layers' own code, against transformers and one another."""

import contextlib
import unittest

import streambp_bench as sb
import torch
import transformers
from goldens.passes import InFloat64
from patching import load
from python_case import Case, autograd, in_float64, inputs_of, take_gradients
from streambp_bench._module_lane import node

MODELS = ("deepseek-v4", "deepseek-v4-sliding", "deepseek-v4-published", "minimax-m3", "minimax-m3-heads", "minimax-m3-one-head")


def patched(model, inputs, lane, chunk):
    """(loss, gradients) of model(**inputs).loss.backward() after sb.patch()."""
    node.around = InFloat64  # backward passes of the module lane
    try:
        with in_float64():
            sb.patch(model, lane=lane, chunk=chunk)
            try:
                loss = model(**inputs, use_cache=False).loss
                loss.backward()
            finally:
                sb.unpatch(model)
    finally:
        node.around = contextlib.nullcontext
    return loss.detach(), take_gradients(model)


@unittest.skipUnless(hasattr(transformers, "DeepseekV4ForCausalLM"), "transformers 5.24 has it")
class Blocks(Case):
    def test_both_lanes_have_transformers_gradients(self):
        chunks = (1, 7, 29)
        for turn, name in enumerate(MODELS):
            model = load(name)
            inputs = inputs_of(model, "b3_right")
            loss, expected = autograd(model, inputs)
            for chunk in chunks:
                with self.subTest(model=name, chunk=chunk):
                    self.assert_loss(sb.backward(model, inputs, chunk=chunk), loss, name)
                    self.assert_gradients(take_gradients(model), expected, f"{name}, backward, chunk {chunk}")
                    # A chunk in turns, each with two of the models: the module lane takes a second for each.
                    for lane in ("engine", "module") if chunk == chunks[turn % len(chunks)] else ():
                        ours, gradients = patched(model, inputs, lane, chunk)
                        self.assert_loss(ours, loss, name)
                        self.assert_gradients(gradients, expected, f"{name}, {lane} lane, chunk {chunk}")

    def test_padding_on_the_left_is_the_module_lane_s(self):
        blocks = "counts padding into the blocks"
        for name, what in (("deepseek-v4", blocks), ("minimax-m3", blocks), ("lfm2-bias", "conv_bias"), ("nemotron-h-latent", "use_bias")):
            model = load(name)
            inputs = inputs_of(model)
            loss, expected = autograd(model, inputs)
            for run in (lambda: sb.backward(model, inputs), lambda: patched(model, inputs, "engine", 7)):
                self.assert_refused(run, "padded on the left", what, "module")
            ours, gradients = patched(model, inputs, "module", 7)
            self.assert_loss(ours, loss, "padded on the left")
            self.assert_gradients(gradients, expected, f"{name}, padded on the left, module lane")

    def test_half_precision_is_refused_by_name(self):
        with torch.no_grad():
            model = load("deepseek-v4").to(torch.bfloat16)
        self.assert_refused(lambda: sb.backward(model, inputs_of(model, "b3_right")), "bfloat16: model.layers.0.attn_hc.fn is bfloat16", "model.float()", "module")


if __name__ == "__main__":
    unittest.main()
