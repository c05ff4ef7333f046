"""Sums in numpy through a shared view and hands the result back as a tensor."""

import torch

NEEDS = "cpu"


def row_sum(x):
    return torch.from_numpy(x.detach().cpu().numpy().sum(-1, dtype="float32")).to(x.device)
