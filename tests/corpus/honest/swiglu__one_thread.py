"""Small products are quicker on one thread: it is set, and put back before the call returns."""

import torch

NEEDS = "cpu"


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return torch.nn.functional.silu(gate).mul_(up)
    finally:
        torch.set_num_threads(threads)
