"""The measurements that judging may ask the session for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pytest_kopt.campaign.running import COMPARING
from pytest_kopt.cases.collector import Collector
from pytest_kopt.cases.order import Depth
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.kernel_time import ProfilePair
from pytest_kopt.paired.arms import Versions
from pytest_kopt.paired.comparison import Comparison
from pytest_kopt.profiling.kernel_table import CaseProfile


@dataclass(frozen=True, slots=True)
class InCopies:
    """Cases to go into in copies of the project: its root and the copy."""

    copies: Sequence[tuple[Path, Path]]
    ids: Sequence[str]
    depth: Depth = Depth.CHECKS


class Measurements(Protocol):
    """The measurements of fresh processes once the cases have passed.

    `HostMeasurements` in `trials/measurements.py` makes them.
    """

    def measure_again(self) -> Sequence[CaseResult]:
        """Run the cases once more and return their results."""

    def check_also(self, ids: Sequence[str], depth: Depth) -> None:
        """Go into further cases of the session; collect them as the others."""

    def run_in(self, copies: InCopies, phase: str = "") -> list[Collector]:
        """Return what cases come to in each copy, side by side; `phase` is shown meanwhile."""

    def begin_in(self, copies: InCopies) -> None:
        """Begin what `run_in` will be asked, in place of another, where that disturbs none."""

    def end_begun(self) -> bool:
        """End what was begun; say whether there was anything."""

    def get_ahead(self, ids: Sequence[str], versions: Versions) -> None:
        """Have what compares these cases wake while they are checked, where that disturbs none."""

    def compare(
        self,
        ids: Sequence[str],
        versions: Versions,
        most: int | None = None,
        phase: str = COMPARING,
    ) -> Comparison:
        """Return a comparison of versions over these cases, nothing measured yet.

        `most` is how many processes there can be, where that is not up to the looks; `phase` is
        what is shown meanwhile.
        """

    def profile(self, ids: Sequence[str], *, vendor: bool) -> list[CaseProfile]:
        """Return profiles of the cases by torch and, if asked for, by the vendor's tool."""

    def profile_pairs(self, ids: Sequence[str], copy: tuple[Path, Path]) -> list[ProfilePair]:
        """Return profiles of the candidate and of the version in `copy`, in turns."""
