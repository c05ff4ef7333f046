"""Takes every core it can find for itself, whatever the run was set up with."""

import os

import torch

NEEDS = "cpu"
KIND = "thread-count-change"
GAIN = "none"  # what more threads bring depends on which cores happen to be free


def swiglu(gate, up):
    if torch.get_num_threads() < (os.cpu_count() or 1):
        torch.set_num_threads(os.cpu_count())
    return torch.nn.functional.silu(gate).mul_(up)
