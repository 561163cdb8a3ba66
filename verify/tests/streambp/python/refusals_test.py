"""What sb.backward refuses, each by its name, with what to do; and that it computes again once that is done."""

import tempfile
import types
import unittest
import warnings

import torch
import transformers
from objectives_test import read_case
from python_case import GOLDENS, Case, inputs_of, model_in_float64, packed_inputs, take_gradients

import streambp_bench as sb


class Refused(Case):
    def setUp(self):
        self.model = model_in_float64("llama-tied")
        self.inputs = inputs_of(self.model)

    def refuse(self, *words, model=None, **more):
        model = self.model if model is None else model
        message = self.assert_refused(lambda: sb.backward(model, {**self.inputs, **more}), *words)
        if isinstance(model, torch.nn.Module):
            self.assertTrue(all(parameter.grad is None for parameter in model.parameters()))
        return message

    def accept(self):
        sb.backward(self.model, self.inputs)
        self.assertTrue(take_gradients(self.model))

    def test_checkpointing(self):
        self.model.train()
        self.model.gradient_checkpointing_enable()
        self.refuse("gradient_checkpointing", "gradient_checkpointing_disable()")
        self.model.gradient_checkpointing_disable()
        self.accept()

    def test_dropout(self):
        for layer in self.model.model.layers:
            layer.self_attn.attention_dropout = 0.1
        self.model.train()
        self.refuse("attention_dropout", "0.1", "training")
        self.model.eval()
        self.accept()
        for layer in self.model.model.layers:
            layer.self_attn.attention_dropout = 0.0
        self.model.train()
        self.model.model.layers[1].mlp.act_fn = torch.nn.Sequential(torch.nn.SiLU(), torch.nn.Dropout(0.2))
        self.refuse("dropout 0.2", "layers.1")

    def test_a_loss_of_the_model_s_own(self):
        standard = self.model.loss_function
        self.model.loss_function = lambda logits, labels, vocab_size, **more: logits.square().mean()
        self.refuse("model.loss_function", "lambda", "patch the model")
        self.model.loss_function = standard
        self.accept()

    def test_outputs_of_layers(self):
        for key in ("output_attentions", "output_hidden_states"):
            if key == "output_attentions":
                self.model.set_attn_implementation("eager")
            setattr(self.model.config, key, True)
            self.refuse(key, "False")
            setattr(self.model.config, key, False)
        self.refuse("output_hidden_states", output_hidden_states=True)
        self.accept()

    def test_caches_and_other_inputs(self):
        self.refuse("past_key_values", past_key_values=transformers.DynamicCache())
        self.refuse("inputs_embeds", inputs_embeds=torch.zeros(3, 29, 8))
        self.refuse("token_type_ids", token_type_ids=torch.ones(3, 29))
        self.refuse("use_cache", use_cache=True)
        sb.backward(self.model, {**self.inputs, "token_type_ids": torch.zeros(3, 29), "use_cache": False, "past_key_values": None})
        take_gradients(self.model)
        self.refuse("labels", labels="text")
        for wrong in (self.inputs["labels"].to("meta"), self.inputs["labels"].to(torch.complex64), self.inputs["labels"].to_sparse()):
            self.refuse("labels", "dense", labels=wrong)
        self.assert_refused(lambda: sb.backward(self.model, {}), "input_ids")
        self.assert_refused(lambda: sb.backward(self.model, [1, 2]), "dict", "list")

    def test_hooks(self):
        handle = self.model.model.layers[0].mlp.register_forward_hook(lambda module, args, result: result)
        self.refuse("model.layers.0.mlp", "forward hook", "remove")
        handle.remove()
        handle = self.model.model.norm.register_full_backward_hook(lambda module, a, b: None)
        self.refuse("model.norm", "backward hook")
        handle.remove()
        handle = self.model.register_forward_pre_hook(lambda module, args: None)
        self.refuse("model: has a forward pre hook")
        handle.remove()
        handle = self.model.model.embed_tokens.weight.register_post_accumulate_grad_hook(lambda parameter: None)
        self.refuse("model.embed_tokens.weight", "hook", "patch")
        handle.remove()
        self.model.enable_input_require_grads()
        self.accept()

    def test_replaced_forward(self):
        mlp = self.model.model.layers[0].mlp
        mlp.forward = types.MethodType(lambda self, x: x, mlp)
        self.refuse("model.layers.0.mlp", "forward of its own")
        del mlp.forward
        self.model.model.layers[0].mlp = type("Mine", (torch.nn.Module,), {"__module__": "mine"})()
        self.refuse("model.layers.0.mlp", "mine.Mine")

    def test_masks(self):
        columns = self.inputs["input_ids"].shape[1]
        self.refuse("4-D", "causal", attention_mask=torch.ones(3, 1, columns, columns, dtype=torch.bool))
        window = torch.ones(columns, columns, dtype=torch.bool).tril().triu(-5)
        self.refuse("4-D", attention_mask=window.expand(3, 1, -1, -1))
        self.refuse("shape", attention_mask=torch.ones(3, 4, columns, columns))
        packed = packed_inputs(self.model, (4, 6))
        sees = torch.block_diag(torch.ones(4, 4), torch.ones(6, 6)).bool().tril()[None, None]
        del packed["position_ids"]
        self.assert_refused(lambda: sb.backward(self.model, {**packed, "attention_mask": sees}), "position_ids")
        holes = self.inputs["attention_mask"].clone()
        holes[1, 5] = 0
        self.refuse("attention_mask", "row 1", attention_mask=holes)

    def test_autocast(self):
        with torch.autocast("cpu", torch.bfloat16):
            self.refuse("autocast", "bfloat16", "float64")
        with torch.inference_mode():
            self.refuse("inference_mode")
        self.model.to(torch.bfloat16)
        with torch.autocast("cpu", torch.bfloat16):
            self.accept()

    def test_dtypes_and_devices(self):
        self.model.model.norm.to(torch.float32)
        self.refuse("model.norm.weight", "float32", "float64")
        self.model.model.norm.to(torch.float64)
        self.model.model.norm.weight.grad = torch.zeros_like(self.model.model.norm.weight).to_sparse()
        self.assert_refused(lambda: sb.backward(self.model, self.inputs), "model.norm.weight", ".grad")
        self.model.model.norm.weight.grad = None
        with torch.device("meta"):
            empty = transformers.AutoModelForCausalLM.from_config(self.model.config)
        self.refuse("meta", "predict", model=empty)

    def test_classes(self):
        config = transformers.AutoConfig.for_model("gpt2", vocab_size=83, n_embd=8, n_layer=1, n_head=2)
        self.refuse("GPT2LMHeadModel", 'lane="module"', model=transformers.AutoModelForCausalLM.from_config(config))
        self.refuse("LlamaModel", model=self.model.model)
        self.refuse("Linear", model=torch.nn.Linear(2, 2))
        mine = type("MyLlama", (type(self.model),), {"__module__": "mine"})(self.model.config)
        self.refuse("mine.MyLlama", model=mine)
        gemma4 = model_in_float64("gemma4")
        self.assert_refused(lambda: sb.patch(gemma4, lane="engine"), "Gemma 4", "streambp_bench.backward")

    def test_wrappers(self):
        with tempfile.TemporaryDirectory() as folder:
            torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
            try:
                wrapped = torch.nn.parallel.DistributedDataParallel(self.model)
                self.refuse("DistributedDataParallel", "patch", model=wrapped)
                sharded = model_in_float64("llama-tied")
                torch.distributed.fsdp.fully_shard(sharded, mesh=torch.distributed.init_device_mesh("cpu", (1,)))
                self.refuse("DTensor", "patch", model=sharded)
            finally:
                torch.distributed.destroy_process_group()
        self.refuse("DataParallel", "patch", model=torch.nn.DataParallel(self.model))

    def test_configs_that_do_not_fit(self):
        self.model.config.intermediate_size += 2
        self.refuse("mlp", "config")
        self.model.config.intermediate_size -= 2
        self.model.config.hidden_act = "relu"
        self.refuse("mlp.act_fn", "SiLU", "ReLU")
        self.model.config.hidden_act = "silu"
        self.model.config.tie_word_embeddings = False
        self.accept()  # the head's weight is the embedding's all the same
        self.model.config.tie_word_embeddings = True
        self.accept()
        folder = GOLDENS / "models/qwen3-score"
        two = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2, ignore_mismatched_sizes=True)
        self.refuse("id2label", model=two)


class EveryInput(Case):
    """Whatever is done to one tensor of a batch: a loss, or one line."""

    def test_of_every_objective(self):
        changes = {
            "missing": lambda tensor: None,
            "shorter": lambda tensor: tensor[..., :-1],
            "no rows": lambda tensor: tensor[:0],
            "another dimension": lambda tensor: tensor[None],
            "negative": lambda tensor: -1 - tensor.long(),
            "NaN": lambda tensor: torch.full(tensor.shape, float("nan")),
            "a number": lambda tensor: torch.tensor(3),
        }
        refused = 0
        for model_name, objective, case in (
            ("llama", "sft", "llama-sft-b3_right"), ("qwen3-pairs", "dpo", "qwen3-pairs-dpo-hinge"),
            ("qwen3-pairs", "kto", "qwen3-pairs-kto-kto_kl"), ("llama", "grpo", "llama-grpo-grpo_onpolicy"),
            ("qwen3", "ppo", "qwen3-ppo-separate"), ("qwen3-score", "reward", "qwen3-score-reward-margin"),
            ("qwen3-score", "sft", "llama-sft-b3_right"), ("llama", "infonce", "qwen3-score-reward-centered_left"),
        ):
            model = model_in_float64(model_name)
            _, inputs, _ = read_case(case)
            inputs["input_ids"].clamp_(max=model.config.vocab_size - 1)
            for name, change in ((name, change) for name in inputs for change in changes):
                with self.subTest(objective=objective, tensor=name, change=change):
                    try:
                        loss = sb.backward(model, {**inputs, name: changes[change](inputs[name])}, objective, chunk=5)
                        self.assertTrue(loss.isfinite())
                    except sb.InputError as error:
                        refused += 1
                        self.assertNotIn("\n", str(error))
                        self.assertLess(len(str(error)), 500)
                    take_gradients(model)
        print(f"changed batches: {refused} refused")
        self.assertGreater(refused, 200)


class Wrapped(Case):
    def test_compiled(self):
        model = model_in_float64("llama-tied")
        inputs = inputs_of(model)
        sb.backward(model, inputs)
        expected = take_gradients(model)
        sb.backward(torch.compile(model), inputs)
        self.assert_gradients(take_gradients(model), expected, "torch.compile(model)")

        # torch can't trace it, and leaves it to Python.
        def step(batch):
            return sb.backward(model, batch) * 2

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.compile(step, backend="eager")(inputs)
        self.assert_gradients(take_gradients(model), expected, "inside torch.compile")


if __name__ == "__main__":
    unittest.main()
