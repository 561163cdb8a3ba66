"""LoRA adapters of PEFT's live models: the gradients of their own autograd, and of the golden cases; what is refused."""

import json
import unittest

import peft
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils import get_peft_model_state_dict
from python_case import GOLDENS, Case, autograd, in_float64, inputs_of, model_in_float64, of_transformers, take_gradients
from objectives_test import counts_padding, options_of, read_case

import streambp_bench as sb
from streambp_bench._live_model.model import Weights, engine_of

SMALL = {"r": 3, "lora_alpha": 5, "task_type": "CAUSAL_LM"}


def adapted(name, seed=7, **settings):
    """A golden model with an adapter whose A and B are both drawn."""
    with in_float64():
        model = get_peft_model(model_in_float64(name), LoraConfig(**{**SMALL, **settings})).eval()
    return drawn(model, seed)


def drawn(model, seed):
    """`model` with random numbers in its adapters' A and B."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in sorted(model.named_parameters()):
            if "lora_" in key:
                parameter.normal_(0.0, 0.3, generator=generator)
    return model


class Adapters(Case):
    def compare(self, model, what, inputs=None, **settings):
        inputs = inputs or inputs_of(model)
        theirs_loss, theirs = autograd(model, inputs)
        loss = sb.backward(model, inputs, chunk=7, **settings)
        self.assert_loss(loss, theirs_loss, what)
        self.assert_gradients(take_gradients(model), theirs, what)
        return theirs

    def test_every_linear_map(self):
        for name in ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "phi3", "qwen3-moe"):
            with self.subTest(model=name):
                theirs = self.compare(adapted(name, target_modules="all-linear", use_rslora=True), name)
                self.assertTrue(all("lora_" in key for key in theirs))

    def test_settings(self):
        linear = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        for what, settings in {
            "bias of B": {"target_modules": linear, "lora_bias": True},
            "biases of the base": {"target_modules": ["q_proj", "v_proj"], "bias": "all"},
            "biases of adapted maps": {"target_modules": ["q_proj", "v_proj"], "bias": "lora_only"},
            "patterns": {"target_modules": linear, "rank_pattern": {"layers.1.self_attn.q_proj": 2, "down_proj": 4},
                         "alpha_pattern": {"o_proj": 11}},
            "a pattern of modules": {"target_modules": r".*layers\.(0|2)\.(self_attn\.(q|o)_proj|mlp\.up_proj)"},
            "some layers": {"target_modules": ["q_proj", "down_proj"], "layers_to_transform": [1]},
            "head": {"target_modules": ["q_proj", "lm_head"]},
            "embedding": {"target_modules": ["q_proj", "embed_tokens"]},
            "a norm trained whole": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
        }.items():
            with self.subTest(what=what):
                self.compare(adapted("qwen2", **settings), what)

    def test_one_copy_of_embedding_and_head(self):
        for saved in (["embed_tokens"], ["lm_head"], ["embed_tokens", "lm_head"]):
            with self.subTest(saved=saved):
                model = adapted("llama-tied", target_modules=["q_proj"], modules_to_save=saved, ensure_weight_tying=True)
                theirs = self.compare(model, str(saved))
                self.assertEqual(sum("lora_" not in key for key in theirs), 1)

    def test_experts(self):
        for parameters in (["mlp.experts.gate_up_proj"], ["mlp.experts.down_proj"],
                           ["mlp.experts.gate_up_proj", "mlp.experts.down_proj", "gate.weight"]):
            with self.subTest(parameters=parameters):
                self.compare(adapted("qwen3-moe", target_modules=["q_proj"], target_parameters=parameters), str(parameters))
        # Names of dense MLPs: of Mixtral's experts PEFT knows others.
        self.compare(adapted("mixtral", target_modules=["q_proj", "gate_proj", "down_proj"]), "names that nothing has")
        for parameters in (["mlp.experts.down_proj"], ["mlp.experts.gate_up_proj", "mlp.experts.down_proj", "router.weight"]):
            with self.subTest(model="gpt-oss", parameters=parameters):
                self.compare(adapted("gpt-oss", target_modules=["q_proj"], target_parameters=parameters), str(parameters))

    def test_golden_cases(self):
        run, refused = 0, 0
        for path in sorted((GOLDENS / "cases").iterdir()):
            case = json.loads((path / "case.json").read_text())
            if case["finetuning"] != "lora":
                continue
            base = model_in_float64(case["model"].removeprefix("models/"))
            if not of_transformers(base):
                continue
            with self.subTest(case=path.name):
                if self.run_golden_case(path, case, base):
                    run += 1
                else:
                    refused += 1
        print(f"golden cases: {run} of adapters, {refused} refused")
        self.assertEqual((run, refused), (87, 4))

    def run_golden_case(self, path, case, base):
        """Whether it ran: rows that are trained alone are refused, as is padding that transformers counts."""
        _, inputs, expected = read_case(path.name)
        with in_float64():
            model = PeftModel.from_pretrained(base, path / "adapter", is_trainable=True)
        model.eval()
        if path.name.endswith("-tokens"):
            self.assert_refused(lambda: sb.backward(model, inputs), "trainable_token_indices", "modules_to_save")
            return False
        if counts_padding(case, inputs):
            self.assert_refused(lambda: sb.backward(model, inputs), "padded on the left", "module")
            return False
        settings = json.loads((path / "adapter/adapter_config.json").read_text())
        engine = engine_of(Weights(model))
        known = {kind["name"]: [option["name"] for option in kind["options"]] for kind in json.loads(engine.objectives())}
        more = {}
        if case["hyperparameters"].get("reference", "").startswith("the base model"):
            more["reference"] = "base"
            inputs = {key: tensor for key, tensor in inputs.items() if not key.startswith("ref_")}
        loss = sb.backward(model, inputs, case["objective"], chunk=7, options=options_of(case, known[case["objective"]]), **more)
        self.assert_loss(loss, case["expected"]["loss"], path.name)
        gradients = get_peft_model_state_dict(model, state_dict=take_gradients(model), save_embedding_layers=False)
        self.assert_gradients({key: gradients[key] for key in expected}, expected, f"{path.name} ({settings['target_modules']})")
        return True

    def test_reference_is_the_base(self):
        model = adapted("llama", target_modules="all-linear")
        case, inputs, _ = read_case("llama-dpo-sigmoid")
        given = {key: tensor for key, tensor in inputs.items() if not key.startswith("ref_")}
        sb.backward(model, given, "dpo", chunk=6, reference="base")
        by_name = take_gradients(model)
        sb.backward(model, given, "dpo", chunk=6, reference=model_in_float64("llama"))
        self.assert_gradients(by_name, take_gradients(model), "the base as a model of its own")
        self.assertEqual(case["objective"], "dpo")

    def test_transformers_own_adapters(self):
        model = model_in_float64("llama")
        with in_float64():
            try:
                model.add_adapter(LoraConfig(r=2, lora_alpha=3, target_modules=["q_proj", "down_proj"]), "mine")
            except ValueError as error:  # transformers 5.24 asks for a newer PEFT
                self.skipTest(str(error))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_" in name:
                    parameter.normal_(0.0, 0.3)
        model.eval()
        self.assertEqual(len(self.compare(model, "add_adapter")), 2 * 2 * model.config.num_hidden_layers)

    def test_another_adapter_that_is_not_active(self):
        model = adapted("llama", target_modules=["q_proj", "v_proj"])
        with in_float64():
            model.add_adapter("other", LoraConfig(r=2, target_modules=["q_proj", "up_proj"], task_type="CAUSAL_LM"))
        self.compare(model, "one of two")
        model.set_adapter("other")
        self.compare(model, "the other of two")


class Refused(Case):
    def refuse(self, model, *words):
        return self.assert_refused(lambda: sb.backward(model, inputs_of(model)), *words)

    def test_variants(self):
        self.refuse(adapted("llama", target_modules=["q_proj"], use_dora=True), "DoRA", "use_dora=False")
        model = adapted("llama", target_modules=["q_proj"], lora_dropout=0.1)
        self.refuse(model.train(), "lora_dropout", "0.1", "lora_dropout=0")
        model.eval()
        sb.backward(model, inputs_of(model))
        self.assertTrue(take_gradients(model))

    def test_states(self):
        model = adapted("llama", target_modules=["q_proj"])
        model.merge_adapter()
        self.refuse(model, "merged", "unmerge_adapter")
        model.unmerge_adapter()
        with model.disable_adapter():
            self.refuse(model, "disabled")
        for module in model.modules():
            if hasattr(module, "scale_layer"):
                module.scale_layer(2.0)
        self.refuse(model, "scaled by", "q_proj")

    def test_several(self):
        model = adapted("llama", target_modules=["q_proj"])
        with in_float64():
            model.add_adapter("other", LoraConfig(r=2, target_modules=["v_proj"]))
        model.base_model.set_adapter(["default", "other"])
        self.refuse(model, "2 are active", "other")

    def test_other_kinds(self):
        with in_float64():
            model = get_peft_model(model_in_float64("llama"), peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]))
        self.refuse(model, "IA3", "LORA")

    def test_another_dtype_than_the_base(self):
        base = model_in_float64("llama").to(torch.bfloat16)
        settings = LoraConfig(target_modules=["q_proj"], **SMALL)
        self.refuse(get_peft_model(base, settings), "float32", "bfloat16", "autocast_adapter_dtype=False")
        model = get_peft_model(model_in_float64("llama").to(torch.bfloat16), settings, autocast_adapter_dtype=False)
        sb.backward(model, inputs_of(model))
        self.assertTrue(all(gradient.dtype == torch.bfloat16 for gradient in take_gradients(model).values()))


if __name__ == "__main__":
    unittest.main()
