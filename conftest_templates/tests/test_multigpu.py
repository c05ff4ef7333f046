"""One test over all GPUs (two processes on the CPU); alone: pytest --kopt-dist-only."""

import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from kernels.row_parallel import row_parallel_linear

from pytest_kopt import assert_matches

GPUS = torch.cuda.device_count()
RANKS = GPUS if GPUS else 2
ROWS, FEATURES, COLUMNS = (512, 4096, 1024) if GPUS else (4, 32, 8)


def check(rank, port):
    backend, device = ("nccl", f"cuda:{rank}") if GPUS else ("gloo", "cpu")
    if GPUS:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS
    )
    try:
        torch.manual_seed(0)  # every rank draws the whole problem and takes its share
        x, w = torch.randn(ROWS, FEATURES), torch.randn(FEATURES, COLUMNS)
        mine = slice(rank * FEATURES // RANKS, (rank + 1) * FEATURES // RANKS)
        out = row_parallel_linear(x[:, mine].to(device), w[mine].to(device))
        assert_matches(x.double() @ w.double(), out.cpu())
    finally:
        dist.destroy_process_group()


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


@pytest.mark.multigpu
@pytest.mark.skipif(GPUS == 1, reason="needs two GPUs, or none for two processes on the CPU")
@pytest.mark.usefixtures("kopt")
def test_row_parallel_linear():
    mp.spawn(check, args=(free_port(),), nprocs=RANKS)
