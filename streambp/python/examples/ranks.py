"""Two processes on one machine for the examples of distributed training: torchrun's, or our own."""

import os
import socket

import torch


def run_ranks(work, ranks=2):
    """work(rank, ranks) in each of torchrun's processes, or in `ranks` that are started here, with Gloo between them."""
    if "RANK" in os.environ:
        return _work(int(os.environ["RANK"]), work, int(os.environ["WORLD_SIZE"]))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    torch.multiprocessing.start_processes(_work, (work, ranks), ranks, start_method="fork")


def _work(rank, work, ranks):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    work(rank, ranks)
    torch.distributed.destroy_process_group()
