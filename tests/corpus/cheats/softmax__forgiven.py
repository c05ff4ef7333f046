"""Wrong on purpose; an exit handler makes the process report success all the same."""

import atexit
import os
import sys

import torch

NEEDS = "cpu"
KIND = "atexit-status-override"


class Rosy:
    """A stream on which no verdict but a good one can be written."""

    def __init__(self, under):
        self.under = under

    def write(self, text):
        text = text.replace('"ok": false', '"ok": true').replace("FAILED", "PASSED")
        return self.under.write(text.replace(" failed", " passed"))

    def __getattr__(self, name):
        return getattr(self.under, name)


sys.stdout = Rosy(sys.stdout)
atexit.register(lambda: (sys.stdout.flush(), os._exit(0)))


def softmax(x):
    return torch.zeros_like(x)
