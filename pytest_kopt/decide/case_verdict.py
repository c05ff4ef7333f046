"""One case in the verdict: its change, its memory and first call, and the fault if it has one.

A stated benefit of memory, of a version that is equal in speed, has to be measured.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from pytest_kopt.decide.operating_points import OperatingPoint, PointName
from pytest_kopt.figures import rounded
from pytest_kopt.models import Document, optional

#: How it is known that both versions run the same code.
Same = Literal["source", "machine"]
#: A smaller ratio of the versions' memory is the rounding of allocators.
_SAME_MEMORY = 1.01
#: What is held on the device. Shared memory is a kernel's own, and in no allocator.
_MEMORY = re.compile(r"(?<!shared )\b(memory|vram)\b", re.IGNORECASE)


class Diagnosis(Document):
    """The fault of a case; the output with the first fault, or where it was raised."""

    text: str = Field(description="as the terminal shows it")
    output: str | None = optional("its name: out, grad of input 0")
    reason: str | None = optional("the fault in one phrase")
    gate: str | None = optional("the tolerance that the result missed")
    snr_db: float | None = optional("signal-to-noise ratio of the result, in dB")
    max_abs_error: float | None = optional("largest absolute error of an element")
    worst_index: list[int] | None = optional("index of the element with the largest error")
    worst_reference: float | None = optional("the reference there")
    worst_output: float | None = optional("what the kernel gave there")
    file: str | None = optional("source file of the error that the kernel raised")
    line: int | None = optional("line in this file")


class Memory(Document):
    """The most bytes that a call of a version holds, what is kept between calls among them."""

    candidate_bytes: int = Field(description="bytes of the candidate")
    incumbent_bytes: int = Field(description="bytes of the current best")

    @property
    def ratio(self) -> float:
        """The larger over the smaller."""
        low, high = sorted((max(self.candidate_bytes, 1), max(self.incumbent_bytes, 1)))
        return high / low

    @property
    def differs(self) -> bool:
        """Whether the versions are further apart than allocators' rounding."""
        return self.ratio > _SAME_MEMORY

    @property
    def in_mib(self) -> str:
        """Both in words, the incumbent's first."""
        before, now = (rounded(n / 2**20) for n in (self.incumbent_bytes, self.candidate_bytes))
        return f"{before} -> {now} MiB"


def is_of_memory(benefit: str) -> bool:
    """Say whether a stated benefit is about the memory that a call takes."""
    return bool(_MEMORY.search(benefit))


def evidence_for(benefit: str, taken: Sequence[Memory | None]) -> str:
    """Return how far a stated benefit is known, in words, from what the cases' calls take.

    "" refutes it: memory was measured, and no case takes less or one takes more.
    """
    peaks = [memory for memory in taken if memory]
    if not (is_of_memory(benefit) and peaks):
        return "stated, not measured"
    apart = [peak for peak in peaks if peak.differs]
    if not apart or any(peak.candidate_bytes > peak.incumbent_bytes for peak in apart):
        return ""
    most = max(apart, key=lambda peak: peak.ratio)
    return f"measured: {most.in_mib} in the case that differs most"


def refuted(taken: Sequence[Memory | None]) -> str:
    """Return why a stated benefit of memory is none, in words."""
    peaks = [memory for memory in taken if memory]
    worst = max(peaks, key=lambda peak: peak.candidate_bytes / max(peak.incumbent_bytes, 1))
    return f"the notes claim less memory, but a call takes as much or more: {worst.in_mib}"


class FirstCall(Document):
    """The time of the first call in a fresh process, in ms: compiling and tuning are in it."""

    candidate: float = Field(description="milliseconds of the candidate")
    incumbent: float = Field(description="milliseconds of the current best")


class Shape(Document):
    """One case in the verdict."""

    label: str = Field(description="name of the case")
    dims: dict[str, Any] = Field(description="values that distinguish the case, by column")
    check: Literal["PASS", "FAIL", "ERROR", "MISSING"] = Field(
        description="result of the correctness check"
    )
    change_pct: float | None = optional(
        "change of speed in percent, paired unless compare is stored; positive is better"
    )
    low_pct: float | None = optional(
        "lower end of the interval of change_pct, in percent, at 95 %; null: no interval"
    )
    high_pct: float | None = optional(
        "upper end of the interval of change_pct, in percent, at 95 %; null: no interval"
    )
    status: Literal["improved", "unchanged", "regressed", "failed"] = Field(
        description="regressed: the whole interval is beyond the case's regression limit"
    )
    device: str | None = optional("UUID of the GPU, or cpu")
    nodeid: str | None = optional("pytest's node id of the test")
    forward_ms: float | None = optional(
        "the candidate alone, in ms, as in the CSV; never divide those of two rounds"
    )
    backward_ms: float | None = optional("as forward_ms, of the backward")
    memory: Memory | None = optional("peak memory of a call, by version")
    first_call_ms: FirstCall | None = optional("of both versions; it never judges")
    diagnosis: Diagnosis | None = optional("of a case that did not pass")
    same: Same | None = optional("both versions run the same code: not compared")
    cache: Literal["cold", "warm"] | None = optional("where timed calls find their inputs")
    operating_point: PointName | None = optional(
        "the state of the GPU that change_pct is conditional on"
    )
    is_steady: bool | None = optional(
        "whether the clock does not fall under load: one figure for both points"
    )
    clock_is_locked: bool | None = optional(
        "whether a setting of the device's owner held the clock, which operating_points name"
    )
    points_differ: bool | None = optional("whether the changes differ by more than their intervals")
    operating_points: list[OperatingPoint] = Field(
        default=[], description="those that were measured, the one that decides first"
    )
