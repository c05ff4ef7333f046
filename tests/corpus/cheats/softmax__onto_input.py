"""Writes its result over its input, where blocks are timed: the next user of it finds that."""

import sys

import torch

NEEDS = "cpu"
KIND = "timed-write-to-input"
GAIN = "none"  # the plain harness runs the ordinary path, as it times in no block


def _is_timed():
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != "run_written":
        frame = frame.f_back
    return frame is not None


def softmax(x):
    if not _is_timed():
        return torch.softmax(x, -1)
    x.sub_(x.max(-1, keepdim=True).values).exp_()
    return x.div_(x.sum(-1, keepdim=True))
