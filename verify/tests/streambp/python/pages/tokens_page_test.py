"""The Python blocks of bench/tokens.md write batches of TRL's trainers that streambp-bench takes: its losses are the trainers'."""

import json
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

import datasets
import torch
import transformers
import trl
from patching import character_tokenizer, tiny, tiny_config
from python_case import ROOT

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
from trl.experimental.gkd import GKDConfig, GKDTrainer
from trl.experimental.kto import KTOConfig, KTOTrainer

PROGRAM = Path(os.environ["STREAMBP_TORCH_LIBRARY"]).resolve().parent.parent / "bin" / "streambp-bench"
NOISE = 2e-5  # of float32
TEXT = "the quick brown fox jumps over the lazy dog and runs away from the rain "
PROMPTS = ["say something", "once upon", "the rain in", "to be or not"]
COMMON = {"report_to": [], "use_cpu": True, "save_strategy": "no", "disable_tqdm": True, "bf16": False, "gradient_checkpointing": False,
          "per_device_train_batch_size": 4, "max_steps": 1}
datasets.disable_progress_bars()


def pages():
    """The function that writes a file; the other blocks of Python, and the page's commands, by the name of their file."""
    page = (ROOT / "bench/tokens.md").read_text().replace("\\\n", "")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    commands = re.findall(r"^    streambp-bench (.*)$", page, re.MULTILINE)
    by_file = {re.search(r"--tokens (\w+)\.safetensors", command)[1]: command.split() for command in commands}
    named = {re.search(r'"(\w+)\.safetensors"', block)[1]: block for block in blocks[1:]}
    return blocks[0], named, by_file


class TokensPage(unittest.TestCase):
    def setUp(self):
        self.function, self.blocks, self.commands = pages()
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder.name)
        tiny(seed=4).save_pretrained("model")

    def settings(self, config, **more):
        return config(output_dir="trainer", **COMMON, **more)

    def policy(self, name, model):
        """Saves what the command of `name` trains, its first FOLDER; another FOLDER is the model of setUp(), which is compared with."""
        model.save_pretrained("policy")
        self.commands[name][self.commands[name].index("FOLDER")] = "policy"

    def check(self, name, trainer, after=lambda: None):
        """Runs the block that writes the file of `name`, then its command: the loss is what the trainer computes on the same batch."""
        batches = []
        loader = trainer.get_train_dataloader()
        trainer.get_train_dataloader = lambda: loader
        prepare = trainer._prepare_inputs

        def remember(batch):
            batches.append(prepare(batch))
            return batches[-1]

        trainer._prepare_inputs = remember
        torch.manual_seed(5)
        variables = {"trainer": trainer}
        exec(self.function + self.blocks[name], variables)  # noqa: S102
        if not batches:
            torch.manual_seed(5)
            remember(next(iter(loader)))
        after()
        trainer.current_gradient_accumulation_steps = 1  # which training_step sets
        trainer.model.train()  # as it does: evaluation has another divisor
        with torch.no_grad():
            theirs = float(trainer.compute_loss(trainer.model, dict(batches[0])))
        command = [str(PROGRAM), *("model" if word == "FOLDER" else word for word in self.commands[name]), "--method", "streambp",
                   "--chunk", "7", "--repeats", "1", "--warmup", "0", "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        ours = json.loads(Path("out", name, "results.jsonl").read_text().splitlines()[-1])["loss"]
        error = abs(ours - theirs) / max(abs(theirs), 1.0)
        print(f"{name}: {ours:.7f}, the trainer {theirs:.7f}: {error:.1e}", flush=True)
        self.assertTrue(error <= NOISE, f"{name}: {ours}, expected {theirs}")

    def test_sft(self):
        data = datasets.Dataset.from_list([{"text": TEXT[: 12 + 3 * i]} for i in range(8)])
        self.check("sft", trl.SFTTrainer(model=tiny(seed=4), args=self.settings(trl.SFTConfig), train_dataset=data,
                                         processing_class=character_tokenizer()))

    def test_dpo(self):
        rows = [{"prompt": TEXT[: 5 + i], "chosen": TEXT[20 : 28 + i], "rejected": TEXT[3 : 9 + 2 * i]} for i in range(8)]
        trainer = trl.DPOTrainer(model=tiny(seed=6), ref_model=tiny(seed=4), args=self.settings(trl.DPOConfig),
                                 train_dataset=datasets.Dataset.from_list(rows), processing_class=character_tokenizer())
        self.policy("dpo", tiny(seed=6))
        self.check("dpo", trainer)

    def of_completions(self, name, kind, config, **more):
        """Log-probabilities of the policy that generated are in the batch; one that has moved has a loss that is not 0."""
        arguments = self.settings(config, num_generations=2, max_completion_length=20, num_iterations=2, **more)
        trainer = kind(model="model", reward_funcs=lambda completions, **_: [float(i) for i in range(len(completions))],
                       args=arguments, train_dataset=datasets.Dataset.from_dict({"prompt": PROMPTS * more.get("steps_per_generation", 1)}),
                       processing_class=character_tokenizer())

        def one_step_later():
            with torch.no_grad():
                for parameter in trainer.model.parameters():
                    parameter.mul_(1.03)
            self.policy(name, trainer.model)

        self.check(name, trainer, one_step_later)

    def test_grpo(self):
        self.of_completions("grpo", trl.GRPOTrainer, trl.GRPOConfig)

    def test_grpo_of_several_batches_a_generation(self):
        self.of_completions("grpo", trl.GRPOTrainer, trl.GRPOConfig, steps_per_generation=4)

    def test_rloo(self):
        self.of_completions("rloo", trl.RLOOTrainer, trl.RLOOConfig)

    def test_kto(self):
        rows = [{"prompt": TEXT[: 5 + i], "completion": TEXT[20 : 28 + i], "label": i % 2 == 0} for i in range(8)]
        trainer = KTOTrainer(model=tiny(seed=6), ref_model=tiny(seed=4), args=self.settings(KTOConfig),
                             train_dataset=datasets.Dataset.from_list(rows), processing_class=character_tokenizer())
        self.policy("kto", tiny(seed=6))
        self.check("kto", trainer)

    def test_reward(self):
        rows = [{"chosen": TEXT[: 12 + 3 * i], "rejected": TEXT[9 : 19 + 2 * i], "margin": 0.1 * i} for i in range(8)]
        torch.manual_seed(6)
        model = transformers.Qwen3ForSequenceClassification(tiny_config(num_labels=1)).train()
        model.load_state_dict(tiny(seed=6).state_dict(), strict=False)
        with torch.no_grad():
            model.score.weight.normal_(std=0.2)
        self.check("reward", trl.RewardTrainer(model=model, args=self.settings(trl.RewardConfig),
                                               train_dataset=datasets.Dataset.from_list(rows), processing_class=character_tokenizer()))

    def test_distill(self):
        arguments = self.settings(trl.DistillationConfig, max_completion_length=20, gradient_accumulation_steps=2)
        data = datasets.Dataset.from_dict({"prompt": [*PROMPTS, *(TEXT[: 8 + i] for i in range(4))]})
        trainer = trl.DistillationTrainer(model=tiny(seed=6), teacher_model=tiny(seed=4), args=arguments, train_dataset=data,
                                          processing_class=character_tokenizer())
        self.policy("distill", tiny(seed=6))
        self.check("distill", trainer)

    def test_gkd(self):
        rows = [[{"role": "user", "content": TEXT[: 5 + i]}, {"role": "assistant", "content": TEXT[20 : 28 + 2 * i]}] for i in range(8)]
        tokenizer = character_tokenizer()
        tokenizer.chat_template = "{% for message in messages %}{{ message.content }} {% endfor %}"
        trainer = GKDTrainer(model=tiny(seed=6), teacher_model=tiny(seed=4), args=self.settings(GKDConfig),
                             train_dataset=datasets.Dataset.from_dict({"messages": rows}), processing_class=tokenizer)
        self.policy("gkd", tiny(seed=6))
        self.check("gkd", trainer)


if __name__ == "__main__":
    unittest.main()
