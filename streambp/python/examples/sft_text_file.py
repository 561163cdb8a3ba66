#!/usr/bin/env python3
"""A loop of your own: a small model learns a text file, byte by byte. sb.backward() stands for model(...).loss and loss.backward().

    python sft_text_file.py [FILE] [--tokens 2048] [--steps 20]
"""

import argparse
from pathlib import Path

import streambp_bench as sb
import torch
from tiny_model import tiny_model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", default=__file__, help="what to learn (default: this script)")
    parser.add_argument("--tokens", type=int, default=1024, help="bytes of a step (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="default: %(default)s")
    arguments = parser.parse_args()

    data = torch.frombuffer(bytearray(Path(arguments.file).read_bytes()), dtype=torch.uint8).long()
    model = tiny_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(arguments.steps):
        start = step * arguments.tokens % max(len(data) - arguments.tokens, 1)
        tokens = data[start: start + arguments.tokens].unsqueeze(0)
        loss = sb.backward(model, {"input_ids": tokens, "labels": tokens}, chunk="auto")
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step + 1}: loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
