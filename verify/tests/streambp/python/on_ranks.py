"""What tests on several ranks share: processes with Gloo between them, and what each of them has found."""

import os
import socket
import tempfile
from pathlib import Path

import streambp_bench as sb
import torch


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def work(rank, ranks, port, folder, results_of):
    """One rank: its results into a file of `folder`."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.save(results_of(rank), Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


def results_on_ranks(ranks, results_of):
    """What `results_of(rank)` gives, by ranks. They are forked, so that what has been imported is not imported again: this process has computed nothing yet."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(work, (ranks, free_port(), folder, results_of), ranks, start_method="fork")
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(ranks)]


def rows_of(batch, rows):
    return {name: tensor[list(rows)] for name, tensor in batch.items()}


def refusal(call):
    try:
        call()
    except sb.InputError as error:
        return str(error)
    return "accepted"
