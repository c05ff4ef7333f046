"""One case in the verdict: its change, its memory and first call, and the fault if it has one."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from pytest_kopt.decide.operating_points import OperatingPoint, PointName
from pytest_kopt.models import Document, optional

#: How it is known that both versions run the same code.
Same = Literal["source", "machine"]
#: A smaller ratio of the versions' memory is the rounding of allocators.
_SAME_MEMORY = 1.01


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
        before, now = (f"{n / 2**20:.4g}" for n in (self.incumbent_bytes, self.candidate_bytes))
        return f"{before} -> {now} MiB"


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
    points_differ: bool | None = optional("whether the changes differ by more than their intervals")
    operating_points: list[OperatingPoint] = Field(
        default=[], description="those that were measured, the one that decides first"
    )
