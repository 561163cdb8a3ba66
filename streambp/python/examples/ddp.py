#!/usr/bin/env python3
"""DistributedDataParallel around a patched model: its hooks see every gradient, a layer at a time.

    python ddp.py [--steps 5]            starts two processes itself
    torchrun --nproc-per-node 2 ddp.py   or is started by torchrun
"""

import argparse

import streambp_bench as sb
import torch
from ranks import run_ranks
from tiny_model import WORDS, tiny_model

ARGUMENTS = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
ARGUMENTS.add_argument("--steps", type=int, default=5, help="default: %(default)s")
ARGUMENTS.add_argument("--tokens", type=int, default=256, help="of each rank's row (default: %(default)s)")


def train(rank, ranks):
    arguments = ARGUMENTS.parse_args()
    model = torch.nn.parallel.DistributedDataParallel(sb.patch(tiny_model(), chunk="auto"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(rank)
    tokens = torch.randint(WORDS, (1, arguments.tokens), generator=generator)  # the rank's own
    for step in range(arguments.steps):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"rank {rank} of {ranks}, step {step + 1}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    ARGUMENTS.parse_args()  # --help and mistakes, once
    run_ranks(train)
