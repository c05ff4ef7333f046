"""What a timing engine is and what it returns."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one direction of a case: one sample a repeat, each in ms per call."""

    engine: str
    samples_ms: tuple[float, ...]
    calls_per_sample: int

    @property
    def mean_ms(self) -> float:
        """Mean of the samples."""
        return statistics.fmean(self.samples_ms)

    @property
    def stddev_ms(self) -> float:
        """Population standard deviation of the samples (0.0 for one)."""
        return statistics.pstdev(self.samples_ms)

    def rate(self, work: float, unit: str) -> tuple[float, float]:
        """Return work / mean time and the population standard deviation of the samples' rates.

        `work` is FLOPs for TFLOPS or bytes for GB/s.
        """
        scale = {"TFLOPS": 1e12, "GB/s": 1e9}[unit] * 1e-3
        rates = [work / (sample * scale) for sample in self.samples_ms]
        return work / (self.mean_ms * scale), statistics.pstdev(rates)


class Engine(ABC):
    """A way to time a call; values of two engines are never compared."""

    name: str

    @abstractmethod
    def time(self, call: Callable[[], object]) -> Timing:
        """Time `call`, which launches the kernel once on inputs that are ready."""
