"""Two algorithms, chosen by how wide the rows are; each is right for every width."""

import torch

NEEDS = "cpu"
WIDE = 1280


def _narrow(x):
    return torch.softmax(x, dim=-1)


def _wide(x):
    return x.sub(torch.logsumexp(x, dim=-1, keepdim=True)).exp_()


def softmax(x):
    return _wide(x) if x.shape[-1] > WIDE else _narrow(x)
