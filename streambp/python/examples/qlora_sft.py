#!/usr/bin/env python3
"""QLoRA: TRL's SFTTrainer on a base that bitsandbytes has quantized to 4 bits (NF4), with a LoRA adapter: one line after the trainer is made.

    python qlora_sft.py [FILE] [--steps 10]
"""

import argparse
import tempfile
from pathlib import Path

import datasets
import peft
import streambp_bench as sb
import torch
import transformers
import trl
from tiny_model import byte_tokenizer, tiny_model


def quantized(folder):
    """The tiny model from a folder, as a model of the Hub is loaded."""
    tiny_model(tie_word_embeddings=False).save_pretrained(folder)
    config = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                             bnb_4bit_compute_dtype=torch.bfloat16)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=config, device_map={"": "cpu"}, dtype=torch.bfloat16)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", default=__file__, help="what to learn, a line an example (default: this script)")
    parser.add_argument("--steps", type=int, default=10, help="default: %(default)s")
    arguments = parser.parse_args()

    lines = [line for line in Path(arguments.file).read_text().splitlines() if len(line) > 8]
    with tempfile.TemporaryDirectory() as folder:
        config = trl.SFTConfig(output_dir=folder, per_device_train_batch_size=4, max_steps=arguments.steps, learning_rate=1e-2, logging_steps=1,
                               report_to=[], use_cpu=True, save_strategy="no")
        trainer = trl.SFTTrainer(model=quantized(folder), args=config, train_dataset=datasets.Dataset.from_dict({"text": lines}),
                                 processing_class=byte_tokenizer(), peft_config=peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", modules_to_save=["lm_head"]))
        sb.patch(trainer)
        print(sb.summary(trainer.model))
        trainer.train()


if __name__ == "__main__":
    main()
