"""The trials of a session, and the measurements that judging may ask the session for.

A round of a campaign, the gate of a pull request and a campaign's final comparison are trials. Each
is made while pytest is configured, begun when the session starts, and closed when all cases ran.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pytest_kopt.campaign.running import COMPARING
from pytest_kopt.cases.collector import Collector
from pytest_kopt.cases.order import Depth, WorkerOrders
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.kernel_time import ProfilePair
from pytest_kopt.devices.idle import AllGpusBusy
from pytest_kopt.paired.arms import Versions
from pytest_kopt.paired.comparison import Comparison
from pytest_kopt.profiling.kernel_table import CaseProfile
from pytest_kopt.show.standing import Closing


@dataclass(frozen=True, slots=True)
class InCopies:
    """Cases to go into in copies of the project: its root and the copy."""

    copies: Sequence[tuple[Path, Path]]
    ids: Sequence[str]
    depth: Depth = Depth.CHECKS


class Measurements(Protocol):
    """The measurements of fresh processes once the cases have passed."""

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


class Trial(Protocol):
    """Something to be judged at the end of the session; what has a body needs no campaign."""

    @property
    def title(self) -> str:
        """The subject of the trial, for the header line."""

    @property
    def preface(self) -> Sequence[str]:
        """Lines below the header: what is to be read before anything runs."""
        return ()

    @property
    def running_file(self) -> Path | None:
        """The file that says how far the session is, None where nobody would read it."""
        return None

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that every process which runs kernel code gets."""
        return {}

    @property
    def is_settled(self) -> bool:
        """Whether the verdict is known without running anything: both versions are the same."""
        return False

    def get_ahead(self, ids: Sequence[str], measurements: Measurements) -> None:
        """Begin what closing will measure, as far as that can be told before these cases ran."""
        return

    def orders(self, session: WorkerOrders) -> WorkerOrders:
        """Return the orders of the workers, made from those of a session that judges nothing."""

    def begin(self) -> str:
        """Take what the trial needs, else BadInput; return why nothing can be measured."""
        return ""

    def check_collection(self, ids: Sequence[str], collector: Collector, filtered: bool) -> None:
        """Raise BadInput when these cases cannot be judged."""

    def close(
        self, collector: Collector, measurements: Measurements, interrupted: str = ""
    ) -> Closing:
        """Judge, record and carry out; raises BadInput, with nothing changed, for drifted input."""

    def no_idle_gpu(self, error: AllGpusBusy) -> None:
        """Record that the session ends because no GPU was idle; the round stays open."""
        return

    def release(self) -> None:
        """Give everything back; safe to repeat."""
        return
