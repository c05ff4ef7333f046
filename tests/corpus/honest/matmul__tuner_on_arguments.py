"""First call of a shape times every variant on the caller's own operands, as autotuners do."""

from __future__ import annotations

import enum
import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

NEEDS = "cpu"


class Strategy(enum.Enum):
    DIRECT = "direct"
    PADDED = "padded"
    COLUMNS = "columns"
    ADDMM = "addmm"


@dataclass(frozen=True, slots=True)
class Config:
    strategy: Strategy
    tile: int = 0


def _direct(a, b, cfg):
    return torch.mm(a, b)


def _padded(a, b, cfg):
    """Rows padded to the tile with zeros; the extra rows are dropped again."""
    rows = -(-a.shape[0] // cfg.tile) * cfg.tile
    if rows == a.shape[0]:
        return torch.mm(a, b)
    wide = a.new_zeros(rows, a.shape[1])
    wide[: a.shape[0]] = a
    return torch.mm(wide, b)[: a.shape[0]].contiguous()


def _columns(a, b, cfg):
    out = a.new_empty(a.shape[0], b.shape[1])
    for j in range(0, b.shape[1], cfg.tile):
        out[:, j : j + cfg.tile] = a @ b[:, j : j + cfg.tile]
    return out


def _addmm(a, b, cfg):
    return torch.addmm(a.new_zeros(()), a, b, beta=0)


RUN: dict[Strategy, Callable] = {
    Strategy.DIRECT: _direct,
    Strategy.PADDED: _padded,
    Strategy.COLUMNS: _columns,
    Strategy.ADDMM: _addmm,
}
CANDIDATES = [
    Config(Strategy.DIRECT),
    Config(Strategy.PADDED, 64),
    Config(Strategy.COLUMNS, 64),
    Config(Strategy.ADDMM),
]


@dataclass
class Tuner:
    """Best configuration for a key; remembers timings so that they can be printed."""

    repeats: int = int(os.environ.get("MM_TUNE_REPEATS", "3"))
    best: dict[tuple, Config] = field(default_factory=dict)
    timings: dict[tuple, dict[Config, float]] = field(default_factory=dict)

    def pick(self, a, b) -> Config:
        key = (*a.shape, b.shape[1], a.dtype, a.device, a.is_contiguous(), b.is_contiguous())
        if key not in self.best:
            was = gc.isenabled()
            gc.disable()
            try:
                found = {cfg: self._time(cfg, a, b) for cfg in CANDIDATES}
            finally:
                if was:
                    gc.enable()
            self.timings[key] = found
            self.best[key] = min(found, key=found.__getitem__)
        return self.best[key]

    def _time(self, cfg, a, b) -> float:
        run = RUN[cfg.strategy]
        run(a, b, cfg)
        best = float("inf")
        for _ in range(self.repeats):
            begin = time.perf_counter_ns()
            run(a, b, cfg)
            best = min(best, time.perf_counter_ns() - begin)
        return best


tuner = Tuner()


@torch.no_grad()
def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    cfg = tuner.pick(a, b)
    return RUN[cfg.strategy](a, b, cfg)
