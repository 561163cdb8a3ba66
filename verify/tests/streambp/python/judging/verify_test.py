"""sb.verify: verdicts on gradients that are right, scaled, perturbed, incomplete, and of mistakes that are planted."""

import unittest

import peft
import torch
import transformers
from python_case import Case, autograd, in_float64, inputs_of, model_in_float64

import streambp_bench as sb
from streambp_bench._verify import verify


def labelled(model, batch="b3_right"):
    """A batch whose labels are its real tokens."""
    inputs = inputs_of(model, batch)
    return {name: inputs[name] for name in ("input_ids", "attention_mask", "labels") if name in inputs}


def changed(gradients, name, factor):
    return {key: gradient * factor if key == name else gradient for key, gradient in gradients.items()}


class Verdicts(Case):
    def assert_verdict(self, report, verdict, what):
        self.assertEqual(report.verdict, verdict, f"{what}:\n{report}")
        print(f"{what}: {str(report).splitlines()[0]}")

    def test_hugging_face_in_float64(self):
        for name in ("qwen3", "gemma3", "phi3", "qwen3-moe"):
            with self.subTest(model=name):
                model = model_in_float64(name)
                inputs = inputs_of(model)
                loss, theirs = autograd(model, inputs)
                report = verify(model, inputs, gradients=theirs)
                self.assert_verdict(report, "exact", name)
                self.assertTrue(report.error <= 1e-10, report)
                self.assertTrue(abs(report.loss - loss) <= 1e-10 * abs(loss), report.loss)

    def test_ours(self):
        for name in ("llama", "qwen3-moe"):
            model = model_in_float64(name)
            inputs = inputs_of(model)
            sb.backward(model, inputs, chunk=7)
            report = verify(model, inputs, gradients="grad")
            self.assert_verdict(report, "exact", name)
            self.assertTrue(report.exact)

    def test_strong_decays_in_float32(self):
        # Whose gradients transformers takes as differences of sums, up to 0.6 % off here.
        cases = [("qwen3-5", 5), ("qwen3-next", 6)]
        if hasattr(transformers, "Qwen4ExpConfig"):
            cases += [("qwen4-exp", 4), ("qwen4-exp", 6), ("qwen4-exp-recurrent", 8)]
        for name, seed in cases:
            with self.subTest(model=name, seed=seed):
                model, generator = model_in_float64(name), torch.Generator().manual_seed(seed)
                with torch.no_grad():
                    for key, parameter in model.named_parameters():
                        if parameter.dim() > 1:
                            parameter.normal_(0.0, 0.3, generator=generator)
                        elif key.endswith("A_log"):
                            parameter.uniform_(1.0, 16.0, generator=generator).log_()
                        elif key.endswith("dt_bias"):
                            parameter.fill_(1.0)
                self.assert_verdict(verify(model.float(), labelled(model)), "exact", f"strong decays, {name}, seed {seed}")

    def test_own_autograd_in_float32_leaves_grad_alone(self):
        model = model_in_float64("qwen3").float()
        inputs = labelled(model)
        kept = {}
        for number, (name, parameter) in enumerate(model.named_parameters()):
            if number % 2:
                kept[name] = parameter.grad = torch.full_like(parameter, number)
        report = verify(model, inputs)
        self.assert_verdict(report, "exact", "float32")
        self.assertEqual(report.compute_dtype, "float32")
        self.assertGreaterEqual(report.noise_runs, 1)
        for number, (name, parameter) in enumerate(model.named_parameters()):
            self.assertIs(parameter.grad, kept.get(name))
            if name in kept:
                self.assertTrue(bool((parameter.grad == number).all()))

    def test_models_that_train_otherwise(self):
        model = model_in_float64("llama").float().train()
        inputs = labelled(model)
        model.gradient_checkpointing_enable()
        self.assert_verdict(verify(model, inputs), "exact", "float32 with gradient checkpointing")
        model.gradient_checkpointing_disable()
        patched = sb.patch(model, chunk=6)
        self.assert_verdict(verify(patched, inputs), "exact", "float32, patched")
        sb.unpatch(model)
        without_labels = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        self.assert_verdict(verify(model, without_labels), "exact", "float32, labels left out")

    def test_scaled_and_perturbed(self):
        model = model_in_float64("qwen2")
        inputs = inputs_of(model)
        _, theirs = autograd(model, inputs)
        report = verify(model, inputs, gradients={name: 3 * gradient for name, gradient in theirs.items()})
        self.assert_verdict(report, "scaled", "three times")
        self.assertTrue(abs(report.factor - 3) < 1e-9 and report.factor_differs, report.factor)
        name = "model.layers.0.self_attn.k_proj.weight"
        report = verify(model, inputs, gradients=changed(theirs, name, 1 + 1e-6))
        self.assert_verdict(report, "wrong", "a millionth off")
        self.assertEqual(report.worst_parameter, name)
        self.assertTrue(abs(report.error / 1e-6 - 1) < 1e-3, report.error)
        report = verify(model, inputs, gradients=changed(theirs, name, float("nan")))
        self.assert_verdict(report, "wrong", "not a number")
        report = verify(model, inputs, gradients=changed(theirs, name, 1 + 1e-6), tolerance=1e-5)
        self.assert_verdict(report, "exact", "a millionth off, with a tolerance")
        report = verify(model, inputs, gradients={key: each for key, each in theirs.items() if key != name})
        self.assert_verdict(report, "incomplete", "one is missing")
        self.assertEqual(report.missing, [name])

    def test_frozen_parameters_are_not_asked_for(self):
        model = model_in_float64("llama")
        model.lm_head.weight.requires_grad_(False)
        inputs = inputs_of(model)
        _, theirs = autograd(model, inputs)
        self.assertNotIn("lm_head.weight", theirs)
        self.assert_verdict(verify(model, inputs, gradients=theirs), "exact", "a frozen head")

    def test_adapters(self):
        torch.manual_seed(0)
        lora = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], lora_dropout=0.0)
        with in_float64():
            model = peft.get_peft_model(model_in_float64("qwen3"), lora, autocast_adapter_dtype=False).double()
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1)
        inputs = inputs_of(model)
        _, theirs = autograd(model, inputs)
        report = verify(model, inputs, gradients=theirs)
        self.assert_verdict(report, "exact", "LoRA, under PEFT's names")
        report = verify(model, inputs, gradients={name: gradient / 2 for name, gradient in theirs.items()})
        self.assert_verdict(report, "scaled", "LoRA, halved")

    def test_pairs(self):
        model = model_in_float64("qwen3")
        generator = torch.Generator().manual_seed(3)
        tokens = torch.randint(3, model.config.vocab_size, (2, 12), generator=generator)
        mask = torch.ones_like(tokens)
        mask[:, :4] = 0
        batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "completion_mask": mask,
                 "ref_chosen_logps": torch.tensor([-30.0]), "ref_rejected_logps": torch.tensor([-31.0])}
        sb.backward(model, batch, "dpo", beta=0.3, chunk=5)
        self.assertGreater(float(model.model.norm.weight.grad.abs().max()), 1e-6)
        self.assert_verdict(verify(model, batch, "dpo", "grad", beta=0.3), "exact", "dpo")
        self.assert_verdict(verify(model, batch, "dpo", "grad", beta=0.2), "scaled", "dpo with another beta, one pair")
        without = {name: tensor for name, tensor in batch.items() if not name.startswith("ref_")}
        model.zero_grad()
        reference = model_in_float64("qwen3")
        with torch.no_grad():
            reference.lm_head.weight.mul_(1.1) if not reference.config.tie_word_embeddings else reference.model.norm.weight.mul_(1.1)
        sb.backward(model, without, "dpo", reference=reference, chunk=5)
        self.assert_verdict(verify(model, without, "dpo", "grad", reference=reference), "exact", "dpo with a reference model")


class Diagnoses(Case):
    """Mistakes in a training loop of Hugging Face's model, in float64."""

    def setUp(self):
        self.model = model_in_float64("qwen3")
        self.inputs = labelled(self.model)

    def diagnosis_of(self, loss_of):
        self.model.zero_grad(set_to_none=True)
        with in_float64():
            logits = self.model(input_ids=self.inputs["input_ids"], attention_mask=self.inputs["attention_mask"], use_cache=False).logits
            loss_of(logits, self.inputs["labels"]).backward()
        report = verify(self.model, self.inputs, gradients="grad", diagnose=True)
        print(str(report.diagnosis).splitlines()[0])
        return report

    def test_nothing_wrong(self):
        report = self.diagnosis_of(lambda logits, labels: torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()))
        self.assertEqual((report.verdict, report.diagnosis.finding), ("exact", "right"))

    def test_labels_not_shifted(self):
        report = self.diagnosis_of(lambda logits, labels: torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()))
        self.assertEqual((report.verdict, report.diagnosis.finding), ("wrong", "explained"), str(report))
        self.assertIn("not-shifted", report.diagnosis.name)

    def test_a_sum_in_place_of_a_mean(self):
        report = self.diagnosis_of(
            lambda logits, labels: torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum"))
        scored = int((self.inputs["labels"][:, 1:] != -100).sum())
        self.assertEqual(report.verdict, "scaled", str(report))
        self.assertTrue(abs(report.factor / scored - 1) < 1e-9, report.factor)
        self.assertTrue(any("sum" in hint for hint in report.hints), report.hints)


class Refusals(Case):
    def test_bad_input(self):
        model = model_in_float64("qwen3")
        inputs = inputs_of(model)
        self.assert_refused(lambda: verify(model, inputs, "dpo"), "gradients")
        self.assert_refused(lambda: verify(model, inputs, gradients="grad"), ".grad")
        self.assert_refused(lambda: verify(model, inputs, gradients="gradient"), "gradient")
        self.assert_refused(lambda: verify(model, inputs, gradients=[1]), "list")
        self.assert_refused(lambda: verify(model, inputs, gradients={"lm_head.weight": 3}), "lm_head.weight")
        self.assert_refused(lambda: verify(model, inputs, tolerance=0), "tolerance")
        self.assert_refused(lambda: verify(model, inputs, chunk=4), "chunk")
        self.assert_refused(lambda: verify(model, inputs, compute_dtype="int8", gradients={"a": torch.ones(1)}), "int8")
        self.assert_refused(lambda: verify(model, {**inputs, "advantages": torch.ones(3)}, gradients={"a": torch.ones(1)}), "advantages")
        model.requires_grad_(False)
        self.assert_refused(lambda: verify(model, inputs), "requires_grad")

    def test_a_hook_that_would_step(self):
        model = model_in_float64("qwen3")
        model.model.norm.weight.register_post_accumulate_grad_hook(lambda parameter: None)
        self.assert_refused(lambda: verify(model, labelled(model)), "model.norm.weight", "gradients=")


if __name__ == "__main__":
    unittest.main()
