#!/usr/bin/env python3
"""TRL's SFTTrainer, streamed: one line after the trainer is made.

    python sft_trl.py [FILE] [--steps 10]
"""

import argparse
import tempfile
from pathlib import Path

import datasets
import streambp_bench as sb
import trl
from tiny_model import byte_tokenizer, tiny_model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", default=__file__, help="what to learn, a line an example (default: this script)")
    parser.add_argument("--steps", type=int, default=10, help="default: %(default)s")
    arguments = parser.parse_args()

    lines = [line for line in Path(arguments.file).read_text().splitlines() if len(line) > 8]
    with tempfile.TemporaryDirectory() as folder:
        config = trl.SFTConfig(
            output_dir=folder, per_device_train_batch_size=4, max_steps=arguments.steps, learning_rate=3e-3, logging_steps=1, report_to=[],
            use_cpu=True, save_strategy="no")
        trainer = trl.SFTTrainer(model=tiny_model(), args=config, train_dataset=datasets.Dataset.from_dict({"text": lines}),
                                 processing_class=byte_tokenizer())
        sb.patch(trainer, chunk="auto")  # the layers, and the head that the trainer asks for log-probabilities
        trainer.train()


if __name__ == "__main__":
    main()
