#!/usr/bin/env python3
"""TRL's DPOTrainer with a LoRA adapter, as both are by default: one line after the trainer is made.

    python dpo_lora.py [--steps 10]
"""

import argparse
import tempfile

import datasets
import peft
import streambp_bench as sb
import trl
from tiny_model import byte_tokenizer, tiny_model

QUESTIONS = ["Which colour is the sky?", "What do bees make?", "How many legs has a spider?", "Where do fish live?"]
ANSWERS = ["It is blue.", "They make honey.", "It has eight.", "They live in water."]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10, help="default: %(default)s")
    arguments = parser.parse_args()

    rows = {"prompt": QUESTIONS, "chosen": ANSWERS, "rejected": ["No." for _ in ANSWERS]}
    with tempfile.TemporaryDirectory() as folder:
        config = trl.DPOConfig(output_dir=folder, per_device_train_batch_size=4, max_steps=arguments.steps, learning_rate=1e-2, logging_steps=1,
                               report_to=[], use_cpu=True, save_strategy="no")
        trainer = trl.DPOTrainer(model=tiny_model(), args=config, train_dataset=datasets.Dataset.from_dict(rows), processing_class=byte_tokenizer(),
                                 peft_config=peft.LoraConfig(r=8, lora_alpha=16, lora_dropout=0.05, target_modules="all-linear", task_type="CAUSAL_LM"))
        sb.patch(trainer)  # checkpointing is turned off, and autocast, dropout and the adapter stay as they are
        print(sb.summary(trainer.model))
        trainer.train()


if __name__ == "__main__":
    main()
