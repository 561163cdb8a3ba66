"""Zamba 2, whose layers run transformer blocks in common: sb.backward by the engine, sb.patch by the layers' own code."""

import unittest

import streambp_bench as sb
import torch
from peft import LoraConfig, get_peft_model
from python_case import Case, autograd, in_float64, inputs_of, model_in_float64, take_gradients

MODELS = ("zamba2", "zamba2-plain")


class SharedBlocks(Case):
    def compare(self, model, what, inputs, run):
        theirs_loss, theirs = autograd(model, inputs)
        loss = run()
        self.assert_loss(loss, theirs_loss, what)
        self.assert_gradients(take_gradients(model), theirs, what)
        return theirs

    def test_backward_on_rows_padded_on_either_side(self):
        for name in MODELS:
            model = model_in_float64(name)
            for batch in ("b3_left", "b3_right"):
                inputs = inputs_of(model, batch)
                for chunk in (1, 7, 29, 100) if batch == "b3_left" else (6,):
                    with self.subTest(model=name, batch=batch, chunk=chunk):
                        theirs = self.compare(model, f"{name}, {batch}, chunk {chunk}", inputs, lambda: sb.backward(model, inputs, chunk=chunk))
            shared = [key for key in theirs if "shared_transformer" in key]
            self.assertTrue(shared and not any(key.startswith(f"model.layers.{model.config.hybrid_layer_ids[-1]}.shared") for key in theirs))

    def test_methods_and_frozen_parameters(self):
        model = model_in_float64("zamba2")
        inputs = inputs_of(model)
        for settings in ({"method": "standard"}, {"method": "checkpoint"}, {"method": "tiled", "chunk": 5}, {"method": "chunk-major", "chunk": 5},
                         {"every": 2, "chunk": 9}, {"keep": "attention", "chunk": 9}, {"offload": "host", "chunk": 9}, {"micro_batches": 3, "chunk": 4}):
            with self.subTest(settings=settings):
                self.compare(model, str(settings), inputs, lambda: sb.backward(model, inputs, **settings))
        for trained in ("shared_transformer", "layers.3.mamba_decoder", "embed_tokens"):
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(trained in name)
            with self.subTest(trained=trained):
                self.compare(model, f"{trained} alone", inputs, lambda: sb.backward(model, inputs, chunk=7))

    def adapted(self, name, target_modules):
        with in_float64():
            model = get_peft_model(model_in_float64(name), LoraConfig(r=2, target_modules=target_modules, task_type="CAUSAL_LM"))
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter_name, parameter in sorted(model.named_parameters()):
                if "lora_" in parameter_name:
                    parameter.normal_(0.0, 0.2, generator=generator)
        return model

    def test_adapters(self):
        for name, targets in (("zamba2", ["linear", "in_proj"]), ("zamba2", ["q_proj", "o_proj", "gate_up_proj", "down_proj"]),
                              ("zamba2", ["linear_k_adapter_list.1.0", "gate_up_proj_adapter_list.2.1"]), ("zamba2", "all-linear"),
                              ("zamba2-plain", "all-linear")):
            model = self.adapted(name, targets)
            inputs = inputs_of(model)
            for chunk in (1, 7, 29):
                with self.subTest(model=name, targets=targets, chunk=chunk):
                    theirs = self.compare(model, f"{name}, LoRA of {targets}, chunk {chunk}", inputs, lambda: sb.backward(model, inputs, chunk=chunk))
            blocks = {key.split(".shared_transformer.")[0] for key in theirs if ".shared_transformer." in key}
            self.assertEqual(len(blocks) > 1, targets != ["linear", "in_proj"], targets)  # each layer's own

    def test_patch_takes_the_layers_own_code(self):
        limit = 1e-5  # which has norms and the recurrence in float32
        for name in MODELS:
            model = model_in_float64(name).train()
            model.config.use_cache = False
            inputs = inputs_of(model, "b3_right")  # rows of padding alone are NaN in float32's masks
            theirs_loss, theirs = autograd(model, inputs, wide=False)
            self.assert_refused(lambda model=model: sb.patch(model, lane="engine"), "Zamba 2", "streambp_bench.backward")
            sb.patch(model, chunk=7)
            loss = model(**inputs).loss
            loss.backward()
            sb.unpatch(model)
            self.assert_loss(loss, theirs_loss, name, limit)
            reached = type(self).reached
            self.assert_gradients(take_gradients(model), theirs, f"{name}, patched", limit)
            type(self).reached = reached


if __name__ == "__main__":
    unittest.main()
