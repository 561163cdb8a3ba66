"""Every objective of sb.backward, on the golden cases: gradients that TRL's, verl's and sentence-transformers' code gave for these models.

The cases' own tensors say what is in the batch, their hyperparameters the options: verify/goldens/README.md.
"""

import json
import unittest

import torch
import transformers
from python_case import GOLDENS, Case, as_in_file, in_float64, model_in_float64, of_transformers, read_tensors, take_gradients

import streambp_bench as sb
from streambp_bench._library import library
from streambp_bench._live_model.model import Weights, engine_of

RENAMED = {("distill", "num_items_in_batch"): "divisor", ("ppo", "logits_divisor"): "temperature", ("ppo", "temperature"): None,
           ("sft", "reduction"): None, ("distill", "reduction"): None}
SMOOTHED = {"dpo": ("robust", "exo_pair", "aot"), "cpo": ("sigmoid",)}  # TRL's trainers have label_smoothing whatever the loss is
ON_EMBEDDINGS = ("reward", "infonce")


def read_case(name):
    folder = GOLDENS / "cases" / name
    case = json.loads((folder / "case.json").read_text())
    tensors = read_tensors(folder / "tensors.safetensors")
    inputs = {key[3:]: tensor for key, tensor in tensors.items() if key.startswith("in.")}
    gradients = {key[5:]: tensor for key, tensor in tensors.items() if key.startswith("grad.")}
    return case, inputs, gradients


def options_of(case, known):
    """The hyperparameters that are options of the objective."""
    objective = case["objective"]
    options = {}
    for key, value in case["hyperparameters"].items():
        name = RENAMED.get((objective, key), key)
        if value is not None and name in known:
            options[name] = value
    losses = options.get("loss_type", "")
    if objective in SMOOTHED and not any(name in losses for name in SMOOTHED[objective]):
        options.pop("label_smoothing", None)
    if objective == "simpo":
        options.pop("loss_type", None)
    return options


def counts_padding(case, inputs):
    """Whether transformers' own code would count padding into DeepSeek V4's or MiniMax M3's blocks, which the case does not."""
    masks = [tensor for name, tensor in inputs.items() if name.endswith(("attention_mask", "prompt_mask"))]
    has_blocks = case["model_type"] in ("deepseek_v4", "minimax_m3_vl_text") and not case["model"].endswith("-sliding")
    return has_blocks and any(bool((mask[:, 0] == 0).any()) for mask in masks)


class GoldenCases(Case):
    models = {}

    @classmethod
    def setUpClass(cls):
        engine = engine_of(Weights(cls.model("llama")))
        cls.known = {kind["name"]: [option["name"] for option in kind["options"]] for kind in json.loads(engine.objectives())}
        cls.run_objectives = set()

    @classmethod
    def model(cls, name):
        if name not in cls.models or "dynamic" in name:  # whose rotary embedding remembers the longest batch so far
            cls.models[name] = model_in_float64(name)
        return cls.models[name]

    def run_case(self, name, **more):
        case, inputs, expected = read_case(name)
        model = self.model(case["model"].removeprefix("models/"))
        options = options_of(case, self.known[case["objective"]])
        if case["objective"] == "distill":
            more["teacher"] = self.model(case["hyperparameters"]["teacher"].removeprefix("models/"))
        loss = sb.backward(model, inputs, case["objective"], chunk=7, options=options, **more)
        self.assert_loss(loss, case["expected"]["loss"], name)
        gradients = as_in_file(take_gradients(model), model.config.model_type)
        self.assert_gradients({key: gradients[key] for key in expected}, expected, name)
        for key in gradients.keys() - expected.keys():
            self.assertFalse(gradients[key].any(), f"{name}: {key}")
        self.run_objectives.add(case["objective"])

    def test_every_case_of_whole_models(self):
        names = sorted(path.name for path in (GOLDENS / "cases").iterdir())
        run = 0
        for name in names:
            case = json.loads((GOLDENS / "cases" / name / "case.json").read_text())
            if case["finetuning"] != "full" or case["objective"] == "ppo" or not of_transformers(self.model(case["model"].removeprefix("models/"))):
                continue
            with self.subTest(case=name):
                if counts_padding(case, read_case(name)[1]):
                    self.assert_refused(lambda name=name: self.run_case(name), "padded on the left", "module")
                    continue
                self.run_case(name)
                run += 1
        print(f"golden cases: {run} of whole models")
        self.assertEqual(self.run_objectives, set(self.known) - {"ppo"})
        self.assertGreater(run, 160)

    def test_a_reference_model_is_as_good_as_its_log_probabilities(self):
        case, inputs, expected = read_case("qwen3-dpo-sigmoid_refmodel")
        model, reference = self.model("qwen3"), model_in_float64("qwen3")
        weights = read_tensors(GOLDENS / "cases/qwen3-dpo-sigmoid_refmodel/reference.safetensors")
        reference.load_state_dict(weights, strict=False)
        batch = {key: tensor for key, tensor in inputs.items() if not key.startswith("ref_")}
        options = options_of(case, self.known["dpo"])
        loss = sb.backward(model, batch, "dpo", reference=reference, chunk=5, **options)
        self.assert_loss(loss, case["expected"]["loss"], "reference")
        self.assert_gradients(take_gradients(model), expected, "reference")
        self.assertTrue(all(parameter.grad is None for parameter in reference.parameters()))
        self.assert_refused(lambda: sb.backward(model, batch, "dpo"), "reference")
        self.assert_refused(lambda: sb.backward(model, batch, "dpo", reference="base"), "adapters")
        self.assert_refused(lambda: sb.backward(model, inputs, "dpo", reference=reference), "reference")

    def test_ppo_s_policy_and_critic(self):
        case, inputs, expected = read_case("qwen3-ppo-separate")
        options = options_of(case, self.known["ppo"])
        values = ("value_mask", "old_values", "returns")
        policy_batch = {key: tensor for key, tensor in inputs.items() if key not in values}
        model = self.model("qwen3")
        sb.backward(model, policy_batch, "ppo", chunk=7, **{**options, "vf_coef": 0})
        policy = {key: tensor for key, tensor in expected.items() if not key.startswith("value_model.")}
        self.assert_gradients(take_gradients(model), policy, "policy")

        # A critic predicts no tokens: none of the responses' is scored.
        folder = GOLDENS / "cases/qwen3-ppo-separate"
        with in_float64():
            config = transformers.AutoConfig.from_pretrained(GOLDENS / "models/qwen3", num_labels=1)
            critic = transformers.AutoModelForSequenceClassification.from_config(config, dtype=torch.float64).eval()
        critic.load_state_dict(read_tensors(folder / "value_model.safetensors"))
        batch = {**inputs, "response_mask": torch.zeros_like(inputs["response_mask"])}
        loss, info = sb.backward(critic, batch, "ppo", chunk=7, options=options, return_info=True)
        self.assert_loss(loss, options["vf_coef"] * case["expected"]["vf_loss"], "critic")
        self.assertIsNone(info.log_probabilities)
        self.assertEqual(info.values.shape, inputs["input_ids"].shape)
        of_critic = {key.removeprefix("value_model."): tensor for key, tensor in expected.items() if key.startswith("value_model.")}
        self.assert_gradients(take_gradients(critic), of_critic, "critic")

    def test_unknown_names(self):
        model = self.model("llama")
        _, inputs, _ = read_case("llama-sft-b1")
        self.assert_refused(lambda: sb.backward(model, inputs, "spo"), "'spo'", "sft", "grpo")
        self.assert_refused(lambda: sb.backward(model, inputs, label_smothing=0.1), "label_smothing", "label_smoothing", "head_chunk")
        self.assert_refused(lambda: sb.backward(model, inputs, options={"beta": 0.1}), "beta", "loss_type")
        self.assert_refused(lambda: sb.backward(model, inputs, options={"loss_type": "nll"}, loss_type="nll"), "twice")
        self.assert_refused(lambda: sb.backward(model, inputs, chunk=0.5), "chunk")
        self.assert_refused(lambda: sb.backward(model, inputs, method="magic"), "magic", "streambp")
        message = self.assert_refused(lambda: sb.backward(model, inputs, head_chunk=-3), "head_chunk", "-3")
        self.assertNotIn("--", message)
        self.assert_refused(lambda: sb.backward(model, {**inputs, "advantages": torch.ones(1)}), "advantages")
        self.assert_refused(lambda: sb.backward(model, inputs, first_labels="maybe"), "maybe")
        self.assert_refused(lambda: sb.backward(model, inputs, "distill"), "teacher")
        self.assertTrue(library())


if __name__ == "__main__":
    unittest.main()
