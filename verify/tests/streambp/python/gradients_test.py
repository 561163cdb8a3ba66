"""sb.backward on Hugging Face's model objects: the gradients of their own autograd, in their own .grad."""

import copy
import unittest
from unittest import mock

import torch
from python_case import LIMIT, Case, autograd, in_float64, inputs_of, model_in_float64, packed_inputs, relative_difference, take_gradients

import streambp_bench as sb
from streambp_bench._live_model.model import MAY_BE_WIDE, Weights

MODELS = ("gemma2", "gemma3", "gpt-oss", "llama", "llama-dynamic", "llama-linear", "llama-tied", "llama-yarn", "llama-yarn-mscale", "mistral",
          "phi3", "qwen2", "qwen2-window", "qwen3", "qwen3-moe", "qwen3-moe-aux", "qwen3-moe-step", "qwen3-yarn-factor", "llama-pad")


class EveryFamily(Case):
    def compare(self, name, inputs, what, model=None, **settings):
        model = model or model_in_float64(name)
        theirs_loss, theirs = autograd(model, inputs)
        loss = sb.backward(model, inputs, **settings)
        self.assertEqual((loss.dtype, loss.shape, loss.requires_grad), (torch.float64, (), False))
        self.assert_loss(loss, theirs_loss, f"{name}, {what}")
        self.assert_gradients(take_gradients(model), theirs, f"{name}, {what}")

    def test_uneven_rows_padded_on_either_side(self):
        for name in MODELS:
            model = model_in_float64(name)
            for batch in ("b3_left", "b3_right"):
                with self.subTest(model=name, batch=batch):
                    self.compare(name, inputs_of(model, batch), batch, model, chunk=7)

    def test_documents_of_a_row(self):
        for name in ("qwen3", "gemma2", "llama", "mistral", "phi3", "qwen3-moe-aux"):
            with self.subTest(model=name):
                model = model_in_float64(name)
                self.compare(name, packed_inputs(model, (5, 12, 3, 8)), "packed", model, chunk=6)

    def test_awkward_chunks(self):
        for name in ("mistral", "qwen3-moe"):
            model = model_in_float64(name)
            inputs = inputs_of(model)  # 56 tokens
            theirs_loss, theirs = autograd(model, inputs)
            for chunk in (1, 6, 7, 8, 55, 56, 57, 4096):
                with self.subTest(model=name, chunk=chunk):
                    loss, info = sb.backward(model, inputs, chunk=chunk, return_info=True)
                    self.assertEqual((info.tokens, info.method), (56, "streambp"))
                    self.assert_loss(loss, theirs_loss, f"{name}, chunk {chunk}")
                    self.assert_gradients(take_gradients(model), theirs, f"{name}, chunk {chunk}")

    def test_methods_and_settings(self):
        model = model_in_float64("llama")
        inputs = inputs_of(model)
        theirs_loss, theirs = autograd(model, inputs)
        for settings in ({"method": "standard"}, {"method": "checkpoint"}, {"method": "logits-only"}, {"method": "tiled", "chunk": 5},
                         {"method": "chunk-major", "chunk": 5}, {"keep": "attention", "chunk": 5},
                         {"keep": ["attention", "queries", "gate-up:1"], "chunk": 5}, {"every": 2, "chunk": 9}, {"offload": "host", "chunk": 9},
                         {"order": "forward", "chunk": 9}, {"head_chunk": 3, "chunk": 9}, {"micro_batches": 3, "chunk": 4}):
            with self.subTest(settings=settings):
                loss = sb.backward(model, inputs, **settings)
                self.assert_loss(loss, theirs_loss, str(settings))
                self.assert_gradients(take_gradients(model), theirs, str(settings))

    def test_log_probabilities_at_their_columns(self):
        model = model_in_float64("qwen3")
        inputs = inputs_of(model)
        _, info = sb.backward(model, inputs, chunk=5, return_info=True)
        with torch.no_grad(), in_float64():
            logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], position_ids=inputs["position_ids"],
                           use_cache=False).logits[:, :-1].log_softmax(-1)
        targets = inputs["labels"][:, 1:]
        expected = torch.where(targets != -100, logits.gather(-1, targets.clamp(min=0)[..., None])[..., 0], 0.0)
        self.assertTrue((info.log_probabilities[:, :-1] - expected).abs().max() <= LIMIT)
        self.assertFalse(info.log_probabilities[:, -1].any())

    def test_num_items_in_batch(self):
        model = model_in_float64("llama")
        inputs = inputs_of(model)
        theirs_loss, theirs = autograd(model, {**inputs, "num_items_in_batch": 77})
        loss = sb.backward(model, {**inputs, "num_items_in_batch": 77}, chunk=8)
        self.assert_loss(loss, theirs_loss, "num_items_in_batch")
        self.assert_gradients(take_gradients(model), theirs, "num_items_in_batch")

    def test_a_causal_mask_of_four_dimensions(self):
        model = model_in_float64("llama")
        inputs = inputs_of(model)
        _, theirs = autograd(model, inputs)
        columns = inputs["input_ids"].shape[1]
        sees = torch.ones(columns, columns, dtype=torch.bool).tril() & inputs["attention_mask"].bool()[:, None, None, :]
        for mask in (sees, torch.where(sees, 0.0, -1e9)):
            _, info = sb.backward(model, {**inputs, "attention_mask": mask}, chunk=8, return_info=True)
            self.assertEqual(any("adds it to scores" in note for note in info.notes), mask is sees)  # transformers' own eager attention does
            self.assert_gradients(take_gradients(model), theirs, "4-D mask")
        packed = packed_inputs(model, (5, 12, 3))
        _, theirs = autograd(model, packed)
        documents = (packed["position_ids"] == 0).cumsum(1)
        sees = torch.ones(20, 20, dtype=torch.bool).tril() & (documents[0][:, None] == documents[0][None, :])
        sb.backward(model, {**packed, "attention_mask": sees[None, None]}, chunk=8)
        self.assert_gradients(take_gradients(model), theirs, "4-D mask of documents")


class Gradients(Case):
    """What happens to .grad and to the weights."""

    def setUp(self):
        self.model = model_in_float64("llama-tied")
        self.inputs = inputs_of(self.model)

    def test_second_call_adds_into_the_same_storage(self):
        _, theirs = autograd(self.model, self.inputs)
        sb.backward(self.model, self.inputs, chunk=7)
        storages = {name: parameter.grad.data_ptr() for name, parameter in self.model.named_parameters()}
        gradients = {name: parameter.grad for name, parameter in self.model.named_parameters()}
        sb.backward(self.model, self.inputs, chunk=5)
        for name, parameter in self.model.named_parameters():
            self.assertIs(parameter.grad, gradients[name])
            self.assertEqual(parameter.grad.data_ptr(), storages[name])
        doubled = {name: 2 * gradient for name, gradient in theirs.items()}
        self.assert_gradients(take_gradients(self.model), doubled, "two calls")

    def test_adds_to_autograd_s_own(self):
        _, theirs = autograd(self.model, self.inputs)
        with in_float64():
            self.model(**self.inputs, use_cache=False).loss.backward()
        before = {name: parameter.grad.clone() for name, parameter in self.model.named_parameters()}
        sb.backward(self.model, self.inputs)
        ours = {name: gradient - before[name] for name, gradient in take_gradients(self.model).items()}
        self.assert_gradients(ours, theirs, "after autograd's")

    def test_weights_are_lent_not_copied(self):
        for name in ("llama-tied", "qwen3-moe", "phi3"):
            model = model_in_float64(name)
            before = {key: (parameter.data_ptr(), parameter.detach().clone()) for key, parameter in model.named_parameters()}
            views = []
            original = Weights.views_of

            def spy(weights, names, tensors):
                views.append(original(weights, names, tensors))
                return views[-1]

            with mock.patch.object(Weights, "views_of", spy):
                sb.backward(model, inputs_of(model), chunk=9)
            storages = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
            values, gradients = views[-2], views[-1]
            self.assertEqual({view.untyped_storage().data_ptr() for view in values.values()}, storages)
            self.assertEqual({view.untyped_storage().data_ptr() for view in gradients.values()},
                             {parameter.grad.untyped_storage().data_ptr() for parameter in model.parameters()})
            self.assertEqual(sum(view.numel() for view in values.values()), sum(p.numel() for p in model.parameters()))
            for key, parameter in model.named_parameters():
                self.assertEqual(parameter.data_ptr(), before[key][0])
                self.assertTrue(torch.equal(parameter, before[key][1]))

    def test_frozen_parameters_get_none(self):
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_("layers.1" in name and "mlp" in name)
        _, theirs = autograd(self.model, self.inputs)
        sb.backward(self.model, self.inputs, chunk=7)
        for parameter in self.model.parameters():
            self.assertEqual(parameter.grad is not None, parameter.requires_grad)
        self.assert_gradients(take_gradients(self.model), theirs, "one layer's MLP")
        self.model.requires_grad_(False)
        self.assert_refused(lambda: sb.backward(self.model, self.inputs), "requires_grad")

    def test_refused_batches_leave_gradients_as_they_were(self):
        wrong = {**self.inputs, "input_ids": self.inputs["input_ids"] + 10_000}
        self.assert_refused(lambda: sb.backward(self.model, wrong), "input_ids")
        self.assertTrue(all(parameter.grad is None for parameter in self.model.parameters()))

    def test_engine_follows_the_model(self):
        _, theirs = autograd(self.model, self.inputs)
        sb.backward(self.model, self.inputs)
        take_gradients(self.model)
        with torch.no_grad():
            self.model.model.norm.weight.mul_(2.0)
        _, changed = autograd(self.model, self.inputs)
        sb.backward(self.model, self.inputs)
        self.assert_gradients(take_gradients(self.model), changed, "changed weights")
        self.assertTrue(relative_difference(changed["model.norm.weight"], theirs["model.norm.weight"]) > 0.1)
        self.model.config.rms_norm_eps = 0.5
        for module in self.model.modules():
            if hasattr(module, "variance_epsilon"):
                module.variance_epsilon = 0.5
        _, changed = autograd(self.model, self.inputs)
        sb.backward(self.model, self.inputs)
        self.assert_gradients(take_gradients(self.model), changed, "changed config")
        self.model.float()
        sb.backward(self.model, self.inputs)
        self.assertEqual(self.model.model.norm.weight.grad.dtype, torch.float32)


class OtherDtypes(Case):
    def test_float32_is_as_exact_as_hugging_face_s(self):
        worst = 0.0
        for name in ("qwen3", "llama", "gemma2", "qwen3-moe"):
            truth_model = model_in_float64(name)
            inputs = inputs_of(truth_model)
            _, truth = autograd(truth_model, inputs)
            model = model_in_float64(name).float()
            _, theirs = autograd(model, inputs, wide=False)
            loss = sb.backward(model, inputs, chunk=16)
            self.assertEqual(loss.dtype, torch.float32)
            ours = take_gradients(model)
            error = sum(((ours[key].double() - truth[key]) ** 2).sum() / (truth[key] ** 2).sum() for key in truth) ** 0.5
            noise = sum(((theirs[key].double() - truth[key]) ** 2).sum() / (truth[key] ** 2).sum() for key in truth) ** 0.5
            worst = max(worst, (error / noise).item())
            self.assertTrue(error <= 1.25 * noise, f"{name}: {error:.2e}, Hugging Face's own {noise:.2e}")
        print(f"float32: at most {worst:.2f} times Hugging Face's own error")

    def test_bfloat16_with_what_transformers_keeps_in_float32(self):
        """Routers, and biases of decays, as from_pretrained leaves them; all experts are chosen, so that rounding changes no choice."""
        for name in ("deepseek-v3-plain", "kimi-linear-listed"):
            model = model_in_float64(name)
            kept = [parameter for key, parameter in model.named_parameters() if key.endswith(MAY_BE_WIDE)]
            model.config.num_experts_per_tok = next(parameter.shape[0] for key, parameter in model.named_parameters() if key.endswith(".gate.weight"))
            for module in model.modules():
                if hasattr(module, "top_k"):
                    module.top_k = model.config.num_experts_per_tok
            model.to(torch.bfloat16)
            for parameter in kept:
                parameter.data = parameter.data.float()
            truth_model = copy.deepcopy(model).double()
            inputs = inputs_of(model)
            _, truth = autograd(truth_model, inputs)
            _, theirs = autograd(model, inputs, wide=False)
            sb.backward(model, inputs, chunk=9)
            ours = take_gradients(model)
            self.assertTrue(all(ours[key].dtype == parameter.dtype for key, parameter in model.named_parameters()))
            error, noise = (sum((each[key].double() - truth[key]).norm() / truth[key].norm() for key in truth) / len(truth) for each in (ours, theirs))
            print(f"bfloat16, {name}: {error / noise:.2f} times Hugging Face's own error, which is {noise:.3f}")
            self.assertTrue(kept and error <= 1.5 * noise, name)

    def test_bfloat16_and_float16_run(self):
        truth_model = model_in_float64("qwen3")
        inputs = inputs_of(truth_model)
        truth_loss, truth = autograd(truth_model, inputs)
        model = model_in_float64("qwen3").to(torch.bfloat16)
        loss = sb.backward(model, inputs, chunk=16)
        self.assert_loss(loss, truth_loss, "bfloat16", limit=0.05)
        for name, gradient in take_gradients(model).items():
            self.assertEqual(gradient.dtype, torch.bfloat16)
            error = ((gradient.double() - truth[name]) ** 2).sum() / (truth[name] ** 2).sum()
            self.assertTrue(error.sqrt() <= 0.1, f"{name}: {error.sqrt():.2e}")


class OnCuda(Case):
    @unittest.skipUnless(torch.cuda.is_available(), "needs a CUDA device")
    def test_gradients_on_a_stream_of_the_caller_s(self):
        model = model_in_float64("qwen3")
        inputs = inputs_of(model)
        truth_loss, truth = autograd(model, inputs)
        model = model.float().cuda()
        on_device = {name: tensor.cuda() for name, tensor in inputs.items()}
        stream = torch.cuda.Stream()
        for batch in (on_device, inputs):
            with torch.cuda.stream(stream):
                loss = sb.backward(model, batch, chunk=7)
            stream.synchronize()
            self.assertEqual(loss.device.type, "cuda")
            self.assert_loss(loss, truth_loss, "on CUDA", limit=1e-5)
            ours = {name: gradient.double().cpu() for name, gradient in take_gradients(model).items()}
            self.assert_gradients(ours, truth, "on CUDA", limit=1e-3)


if __name__ == "__main__":
    unittest.main()
