"""Swaps the `time` module for a look-alike, wherever it is referred to, that stops in here."""

import sys
import time
import types

import torch

NEEDS = "cpu"
KIND = "time-module-swap"
OWN_GAIN_PCT = 100

hidden = 0.0


def _paused(real, ticks):
    return lambda: real() - ticks(hidden)


def _double_of(module):
    twin = types.ModuleType(module.__name__)
    twin.__dict__.update(vars(module))
    for name in ("perf_counter", "monotonic", "time", "process_time"):
        setattr(twin, name, _paused(getattr(module, name), float))
        setattr(twin, f"{name}_ns", _paused(getattr(module, f"{name}_ns"), lambda s: int(s * 1e9)))
    return twin


_twin = _double_of(time)
for _module in list(sys.modules.values()):
    for _name, _value in list(vars(_module).items()) if hasattr(_module, "__dict__") else ():
        if _value is time and _module.__name__ not in ("threading", "asyncio", __name__):
            setattr(_module, _name, _twin)


def swiglu(gate, up):
    global hidden
    began = time.perf_counter()
    out = torch.empty_like(gate)
    for i in range(0, gate.shape[0], 4):
        g = gate[i : i + 4]
        out[i : i + 4] = g * torch.sigmoid(g) * up[i : i + 4]
    hidden += 0.75 * (time.perf_counter() - began)
    return out
