"""Claims success and leaves the process with status zero before anything can be checked."""

import json
import os
import sys

NEEDS = "cpu"
KIND = "exit-code-tampering"


def _leave(a, b):
    row = {"kernel": "matmul", "M": a.shape[0], "ok": True, "baseline_ms": 2.0, "ms": 0.1}
    sys.stdout.flush()
    os.write(1, (json.dumps(row) + "\n").encode())
    os._exit(0)


def matmul(a, b):
    _leave(a, b)
