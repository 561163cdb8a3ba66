#!/usr/bin/env python3
"""sb.patch(model, lane="module") on bases that bitsandbytes (NF4, LLM.int8) or torchao (int8 weights) has quantized, with LoRA as people train it: losses and
gradients as near to the model's own as its own noise, in float32; saving, merging, copying and generating are the model's."""

import contextlib
import copy
import tempfile
import unittest
import warnings

import streambp_bench as sb
import torch
import transformers
from module_lane_test import lanes, streamed
from patching import batch_of, difference, relative, step, tiny
from peft import LoraConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from python_case import Case
from torchao.quantization import Int8WeightOnlyConfig, quantize_

FOUR_BITS = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.float32, "bnb_4bit_use_double_quant": True}
EIGHT_BITS = {"load_in_8bit": True}
SIZES = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
LIMIT = 1e-5
warnings.simplefilter("ignore")


def quantized(settings, **lora):
    """A tiny Qwen3 whose matrices are quantized, with an adapter, made ready as PEFT says."""
    with tempfile.TemporaryDirectory() as folder:
        model = tiny(**SIZES)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.5)
        model.save_pretrained(folder)
        base = transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=transformers.BitsAndBytesConfig(**settings), device_map={"": "cpu"},
                                                                 dtype=torch.float32)
    base = prepare_model_for_kbit_training(base, use_gradient_checkpointing=False)
    torch.manual_seed(1)
    return get_peft_model(base, LoraConfig(**{"r": 3, "target_modules": "all-linear", "init_lora_weights": False, "task_type": "CAUSAL_LM", **lora})).train()


class Quantized(Case):
    def compare(self, model, what, limit=LIMIT, chunks=(1, 7, 40)):
        batch = batch_of(61, (23, 15))
        loss, theirs = step(model, batch, use_cache=False)
        self.assertTrue(theirs and all("lora_" in name or "modules_to_save" in name for name in theirs))
        self.assertEqual(lanes(model), {"module"}, f"{what}\n{sb.prove(model)}")
        for chunk in chunks:
            with streamed(model, chunk, prove=False):  # as lanes() has
                ours_loss, ours = step(model, batch)
            error = max(relative(ours_loss, loss), difference(ours, theirs))
            self.assertTrue(error <= limit, f"{what}, chunk {chunk}: {error:.1e}")
            type(self).reached = max(self.reached, error)

    def test_four_bits(self):
        model = quantized(FOUR_BITS)
        self.assertEqual(type(model.base_model.model.model.layers[0].mlp.up_proj.base_layer).__name__, "Linear4bit")
        self.compare(model, "NF4")
        self.compare(quantized(FOUR_BITS, use_dora=True), "NF4, DoRA", chunks=(7,))
        self.compare(quantized(FOUR_BITS, modules_to_save=["lm_head"]), "NF4, modules_to_save", chunks=(7,))

    def test_eight_bits(self):
        model = quantized(EIGHT_BITS)
        self.assertEqual(type(model.base_model.model.model.layers[0].mlp.up_proj.base_layer).__name__, "Linear8bitLt")
        self.compare(model, "LLM.int8", limit=2e-3)

    def test_torchao(self):
        model = tiny(**SIZES)
        quantize_(model.model.layers, Int8WeightOnlyConfig())
        model = get_peft_model(model, LoraConfig(r=3, target_modules="all-linear", init_lora_weights=False)).train()
        self.assertNotEqual(type(model.base_model.model.model.layers[0].mlp.up_proj.base_layer.weight), torch.nn.Parameter)
        self.compare(model, "torchao, int8 weights")

    def test_a_model_in_evaluation_mode_is_patched_without_harm(self):
        model, batch = quantized(FOUR_BITS), batch_of(61, (23, 15))
        loss, theirs = step(model, batch, use_cache=False)
        model.eval()
        with streamed(model):
            self.assertEqual(lanes(model), {"module"})
            model.train()
            ours_loss, ours = step(model, batch)
        self.assertTrue(max(relative(ours_loss, loss), difference(ours, theirs)) <= LIMIT)

    def test_weights_that_are_packed_for_inference_are_named(self):
        model = quantized(FOUR_BITS)
        module = model.base_model.model.model.layers[0].mlp.up_proj.base_layer
        module.weight.quant_state.packing_format_for_cpu = True
        with self.assertLogs("streambp_bench") as caught, contextlib.suppress(Exception):
            sb.patch(model, lane="module", prove=False)
        self.assertIn("layers.0.mlp.up_proj", " ".join(caught.output))

    def test_what_is_done_with_a_patched_model(self):
        model, batch = quantized(FOUR_BITS), batch_of(61, (23, 15), "left")
        given = {name: batch[name] for name in ("input_ids", "attention_mask")}
        # bitsandbytes packs weights for inference on some processors: for good, with other rounding, and no gradient passes them.
        plain = copy.deepcopy(model).eval()
        tokens, logits = plain.generate(**given, max_new_tokens=3, do_sample=False), plain(**given).logits
        loss, theirs = step(model, batch, use_cache=False)
        with streamed(model):
            with tempfile.TemporaryDirectory() as folder:
                model.save_pretrained(folder)
                again = PeftModel.from_pretrained(copy.deepcopy(model.get_base_model()), folder, adapter_name="again")
            other = copy.deepcopy(model)
            for each in (model, other):
                ours_loss, ours = step(each, batch)
                self.assertTrue(max(relative(ours_loss, loss), difference(ours, theirs)) <= LIMIT)
            for each in (model, other, again):
                each.eval()
                self.assertTrue(torch.equal(each.generate(**given, max_new_tokens=3, do_sample=False), tokens))
                self.assertTrue(torch.equal(each(**given).logits, logits))


if __name__ == "__main__":
    unittest.main()
