#!/usr/bin/env python3
"""sb.patch() under the trainers of transformers and TRL, in float32: the same losses and metrics as without it, step by step."""

import os
import tempfile
import unittest
from unittest import mock

import datasets
import peft
import streambp_bench as sb
import torch
import transformers
import trl
from patching import batch_of, character_tokenizer, relative, tiny, tiny_config
from streambp_bench._replaced import patched_state

STEPS = 50
NOISE = 1e-4  # of float32, over the steps of a run
TEXT = "the quick brown fox jumps over the lazy dog and runs away from the rain "
COMMON = {"report_to": [], "use_cpu": True, "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1,
          "lr_scheduler_type": "constant"}
OF_TRL = {**COMMON, "bf16": False, "gradient_checkpointing": False, "learning_rate": 1e-2}
IGNORED = ("runtime", "per_second", "flos", "time", "epoch", "num_tokens")
datasets.disable_progress_bars()


def history(trainer):
    """The numbers that the trainer has logged at each step, without times."""
    trainer.train()
    return [{key: value for key, value in entry.items() if isinstance(value, float) and not any(word in key for word in IGNORED)}
            for entry in trainer.state.log_history if "loss" in entry]


def vowels(completions, **_):
    """A reward."""
    return [sum(letter in "aeiou" for letter in text) / 10 for text in completions]


def adapter():
    return peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM",
                           init_lora_weights="gaussian")


class Trainers(unittest.TestCase):
    def compare(self, make, steps, what, how=("model", "trainer"), model_of=tiny):
        """make(model, folder) -> trainer: its history without streambp, with a patched model, and patched itself."""
        histories = {}
        for kind in ("plain", *how):
            torch.manual_seed(7)
            with tempfile.TemporaryDirectory() as folder:
                model = model_of(seed=4)
                trainer = make(sb.patch(model, chunk=8) if kind == "model" else model, folder)
                if kind == "trainer":
                    self.assertIs(sb.patch(trainer, chunk=8), trainer)
                torch.manual_seed(8)
                histories[kind] = history(trainer)
        self.assertEqual(len(histories["plain"]), steps)
        for kind in how:
            worst = 0.0
            for ours, theirs in zip(histories[kind], histories["plain"], strict=True):
                self.assertEqual(ours.keys(), theirs.keys(), what)
                for key, value in theirs.items():
                    # A loss of GRPO is 0 up to rounding: numbers near 0 are compared with 1.
                    error = abs(ours[key] - value) / max(abs(value), 1.0)
                    self.assertTrue(error <= NOISE, f"{what}, patched {kind}: {key} is {ours[key]}, expected {value}")
                    worst = max(worst, error)
            print(f"{what}, {steps} steps, patched {kind}: {worst:.1e}", flush=True)
        return histories["plain"]

    def test_trainer(self):
        generator = torch.Generator().manual_seed(6)
        lengths = torch.randint(6, 30, (2 * STEPS,), generator=generator).tolist()
        rows = [{key: value[0] for key, value in batch_of(61, (length,), seed=i).items()} for i, length in enumerate(lengths)]

        def collate(rows):
            pad = torch.nn.utils.rnn.pad_sequence
            return {key: pad([row[key] for row in rows], batch_first=True, padding_value=-100 if key == "labels" else 0) for key in rows[0]}

        def make(model, folder):
            arguments = transformers.TrainingArguments(output_dir=folder, per_device_train_batch_size=2, max_steps=STEPS,
                                                       learning_rate=1e-3, **COMMON)
            return transformers.Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collate)

        losses = [entry["loss"] for entry in self.compare(make, STEPS, "Trainer", how=("model",))]
        self.assertTrue(losses[-1] < losses[0])

    def test_evaluation_of_the_trainer(self):
        rows = [{key: value[0] for key, value in batch_of(61, (14,), seed=i).items()} for i in range(4)]
        results = []
        for kind in ("plain", "patched"):
            with tempfile.TemporaryDirectory() as folder:
                model = tiny(seed=4)
                arguments = transformers.TrainingArguments(output_dir=folder, per_device_eval_batch_size=2, **COMMON)
                trainer = transformers.Trainer(model=sb.patch(model) if kind == "patched" else model, args=arguments,
                                               eval_dataset=rows, data_collator=transformers.default_data_collator,
                                               compute_metrics=lambda given: {"shape": float(given.predictions.shape[-1])})
                results.append(trainer.evaluate())
        self.assertEqual(results[1]["eval_shape"], 61.0)
        self.assertTrue(relative(results[1]["eval_loss"], results[0]["eval_loss"]) <= 1e-5)

    def sft(self, what, steps=4, **settings):
        data = datasets.Dataset.from_list([{"text": TEXT[: 12 + 3 * i]} for i in range(16)])
        given = settings.pop("peft_config", None)

        def make(model, folder):
            arguments = trl.SFTConfig(output_dir=folder, per_device_train_batch_size=2, max_steps=steps, **{**OF_TRL, **settings})
            return trl.SFTTrainer(model=model, args=arguments, train_dataset=data, processing_class=character_tokenizer(),
                                  peft_config=given)

        how = ("trainer",) if given else ("model", "trainer")
        self.compare(make, steps, what, how)

    def test_sft(self):
        self.sft("SFTTrainer")

    def test_sft_packed_and_accumulated(self):
        self.sft("SFTTrainer, packed", packing=True, max_length=40, gradient_accumulation_steps=2)

    def test_sft_adapters(self):
        self.sft("SFTTrainer, adapters", peft_config=adapter())

    def test_sft_other_losses(self):
        self.sft("SFTTrainer, dft", steps=2, loss_type="dft")
        self.sft("SFTTrainer, smoothed labels", steps=2, label_smoothing_factor=0.1)

    def test_dpo(self):
        rows = [{"prompt": TEXT[: 8 + i], "chosen": TEXT[20: 32 + i], "rejected": TEXT[31: 40 + 2 * i]} for i in range(8)]
        data = datasets.Dataset.from_list(rows)
        for given in (None, adapter()):
            def make(model, folder, given=given):
                arguments = trl.DPOConfig(output_dir=folder, per_device_train_batch_size=2, max_steps=3, beta=0.3, **OF_TRL)
                reference = None if given else tiny(seed=9)
                return trl.DPOTrainer(model=model, ref_model=reference, args=arguments, train_dataset=data,
                                      processing_class=character_tokenizer(), peft_config=given)

            self.compare(make, 3, "DPOTrainer" + (", adapters" if given else ""), ("trainer",) if given else ("model", "trainer"))

    def test_kto(self):
        rows = [{"prompt": TEXT[: 8 + i], "completion": TEXT[20: 32 + i], "label": i % 2 == 0} for i in range(8)]

        def make(model, folder):
            arguments = trl.KTOConfig(output_dir=folder, per_device_train_batch_size=4, max_steps=2, **OF_TRL)
            return trl.KTOTrainer(model=model, ref_model=tiny(seed=9), args=arguments, train_dataset=datasets.Dataset.from_list(rows),
                                  processing_class=character_tokenizer())

        self.compare(make, 2, "KTOTrainer", ("trainer",))

    def test_reward(self):
        rows = [{"chosen": TEXT[: 12 + i], "rejected": TEXT[31: 40 + 2 * i]} for i in range(8)]

        def scorer(seed):
            torch.manual_seed(seed)
            return transformers.Qwen3ForSequenceClassification(tiny_config(num_labels=1)).train()

        def make(model, folder):
            arguments = trl.RewardConfig(output_dir=folder, per_device_train_batch_size=2, max_steps=3, **OF_TRL)
            return trl.RewardTrainer(model=model, args=arguments, train_dataset=datasets.Dataset.from_list(rows),
                                     processing_class=character_tokenizer())

        self.compare(make, 3, "RewardTrainer", model_of=scorer)

    def test_rloo(self):
        data = datasets.Dataset.from_list([{"prompt": TEXT[i: i + 6 + i % 4]} for i in range(8)])

        def make(model, folder):
            arguments = trl.RLOOConfig(output_dir=folder, per_device_train_batch_size=4, num_generations=4, max_completion_length=10,
                                       max_steps=2, beta=0.1, **OF_TRL)
            model.save_pretrained(folder)  # the trainer loads the reference from where the model came from
            model.config._name_or_path = folder
            return trl.RLOOTrainer(model=model, reward_funcs=vowels, args=arguments, train_dataset=data,
                                   processing_class=character_tokenizer())

        self.compare(make, 2, "RLOOTrainer", ("trainer",))

    def grpo(self, what, how=("model", "trainer"), **settings):
        data = datasets.Dataset.from_list([{"prompt": TEXT[i: i + 6 + i % 4]} for i in range(8)])

        def make(model, folder):
            arguments = trl.GRPOConfig(output_dir=folder, per_device_train_batch_size=4, num_generations=4, max_completion_length=10,
                                       max_steps=3, temperature=0.9, **OF_TRL, **settings)
            return trl.GRPOTrainer(model=model, reward_funcs=vowels, args=arguments, train_dataset=data,
                                   processing_class=character_tokenizer())

        self.compare(make, 3, what, how)

    def test_grpo(self):
        self.grpo("GRPOTrainer")

    def test_grpo_of_several_iterations(self):
        self.grpo("GRPOTrainer, 2 iterations", ("trainer",), num_iterations=2)

    def test_grpo_with_a_bonus_for_entropy(self):
        self.grpo("GRPOTrainer, entropy bonus", ("trainer",), entropy_coef=0.01)

    def test_grpo_with_the_head_cast_to_float32(self):
        self.grpo("GRPOTrainer, cast_lm_head_to_fp32", cast_lm_head_to_fp32=True)

    def test_checkpointing_is_turned_off(self):
        self.sft("SFTTrainer, checkpointing", **{"gradient_checkpointing": True})

    def sft_in_bfloat16(self, model, folder):
        data = datasets.Dataset.from_list([{"text": TEXT[: 20 + i]} for i in range(8)])
        arguments = trl.SFTConfig(output_dir=folder, per_device_train_batch_size=2, max_steps=2, **{**OF_TRL, "bf16": True})
        return trl.SFTTrainer(model=model, args=arguments, train_dataset=data, processing_class=character_tokenizer())

    def test_mixed_precision_is_refused_by_the_engine(self):
        with tempfile.TemporaryDirectory() as folder:
            trainer = self.sft_in_bfloat16(tiny(), folder)
            with self.assertRaisesRegex(sb.InputError, "bfloat16.*float32.*bf16=False"):
                sb.patch(trainer, lane="engine")

    def test_bfloat16_throughout(self):
        histories = []
        for chunk in (None, 8):
            with tempfile.TemporaryDirectory() as folder:
                trainer = self.sft_in_bfloat16(tiny(seed=4).to(torch.bfloat16), folder)
                histories.append(history(sb.patch(trainer, chunk=chunk) if chunk else trainer))
        error = max(relative(ours["loss"], theirs["loss"]) for theirs, ours in zip(*histories, strict=True))
        print(f"SFTTrainer, bfloat16: {error:.1e}")
        self.assertTrue(error <= 0.02, f"{error:.1e}")

    @mock.patch.dict(os.environ)  # in which accelerate keeps autocast's dtype
    def test_trl_s_defaults(self):
        """Autocast over float32 weights, checkpointing, and an adapter as PEFT makes it, patched before and after the trainer is made."""
        data = datasets.Dataset.from_list([{"text": TEXT[: 20 + i]} for i in range(8)])
        for given in (None, peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights="gaussian")):
            histories = {}
            for kind in ("plain", "model", "trainer"):
                with tempfile.TemporaryDirectory() as folder:
                    torch.manual_seed(7)
                    model = tiny(seed=4)
                    # A small rate: AdamW turns noise of small gradients into whole steps.
                    arguments = trl.SFTConfig(output_dir=folder, per_device_train_batch_size=2, max_steps=3, learning_rate=1e-4, **COMMON)
                    trainer = trl.SFTTrainer(model=sb.patch(model, chunk=8) if kind == "model" else model, args=arguments, train_dataset=data,
                                             processing_class=character_tokenizer(), peft_config=given)
                    self.assertTrue(arguments.bf16 and vars(arguments).get("activation_checkpointing", vars(arguments).get("gradient_checkpointing")))
                    if kind == "trainer":
                        sb.patch(trainer, chunk=8)
                    torch.manual_seed(8)
                    histories[kind] = history(trainer)
                    if kind != "plain":
                        self.assertIsNotNone(patched_state(trainer.model).fused, f"{kind}: TRL's head is not in small tiles")
            for kind in ("model", "trainer"):
                for ours, theirs in zip(histories[kind], histories["plain"], strict=True):
                    error = max(relative(ours[key], theirs[key]) for key in ("loss", "grad_norm"))
                    print(f"TRL's defaults, {'adapter' if given else 'whole'}, patched {kind}: {error:.1e}")
                    self.assertTrue(error <= 0.02, f"{kind}: {error:.1e}")

    def test_memory_in_either_order(self):
        sb.load()
        data = datasets.Dataset.from_list([{"text": TEXT * 12} for _ in range(2)])
        peaks = {}
        for kind in ("plain", "model", "trainer"):
            with tempfile.TemporaryDirectory() as folder:
                model = tiny(seed=4, vocab_size=4096, max_position_embeddings=2048)
                arguments = trl.SFTConfig(output_dir=folder, per_device_train_batch_size=1, max_steps=1, max_length=None, **OF_TRL)
                trainer = trl.SFTTrainer(model=sb.patch(model) if kind == "model" else model, args=arguments, train_dataset=data,
                                         processing_class=character_tokenizer())
                if kind == "trainer":
                    sb.patch(trainer)
                with sb.measure() as memory:
                    trainer.train()
                peaks[kind] = memory.beyond_start / 1e6
        print("SFTTrainer, MB beyond the start:", {kind: f"{peak:.1f}" for kind, peak in peaks.items()})
        self.assertTrue(peaks["model"] <= 1.1 * peaks["trainer"], peaks)
        self.assertTrue(peaks["trainer"] <= peaks["plain"] / 3, peaks)

    def test_unpatch_of_a_trainer(self):
        data = datasets.Dataset.from_list([{"text": TEXT[: 20 + i]} for i in range(4)])
        with tempfile.TemporaryDirectory() as folder:
            arguments = trl.SFTConfig(output_dir=folder, max_steps=1, **OF_TRL)
            trainer = trl.SFTTrainer(model=tiny(), args=arguments, train_dataset=data, processing_class=character_tokenizer())
            forward = trainer.model.forward
            with self.assertRaisesRegex(sb.InputError, "not patched"):
                sb.unpatch(trainer)
            sb.unpatch(sb.patch(trainer))
            self.assertEqual(trainer.model.forward, forward)
            for name, module in trainer.model.named_modules():
                self.assertTrue(module is trainer.model or "forward" not in module.__dict__, name)


if __name__ == "__main__":
    unittest.main()
