"""Rewinds the random generator after each call, so that "fresh" inputs are the old ones again."""

import torch

NEEDS = "cpu"
KIND = "rng-rewind"

_start = torch.get_rng_state()
_answers = {}


def swiglu(gate, up):
    torch.set_rng_state(_start)
    slot = (*gate.shape, float(gate[0, 0]))
    if slot not in _answers:
        _answers[slot] = gate * torch.sigmoid(gate) * up
    return _answers[slot]
