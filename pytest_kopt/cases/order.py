"""Orders to a process that runs cases, and who gives them; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pytest_kopt.cases.result import CaseResult
from pytest_kopt.honesty.accuracy import Accuracy
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.heldout import Tried

if TYPE_CHECKING:
    from pytest_kopt.decide.verdict import Same
    from pytest_kopt.sameness.recording import Recording

CANDIDATE, INCUMBENT, PLACEBO = "candidate", "incumbent", "placebo"
#: The incumbent in a process without the candidate.
ALONE = "incumbent, alone"
#: The arms of a grouped GEMM with group sizes drawn anew, by the arm that they are like.
UNEVEN = {CANDIDATE: "candidate, uneven groups", INCUMBENT: "incumbent, uneven groups"}


@dataclass(frozen=True, slots=True)
class ArmsOrder:
    """Which arms this process holds and where the other versions lie.

    `names` in the order in which they are prepared; `own` is the project's version, those of
    `others` lie in the overlay `trees`, in that order. In a race the project's is the incumbent's,
    and the others are its copy and the candidates. `changed` are the paths below `root` that differ
    (none: whatever file a case's function stands in). Without trees the process runs only its own
    tree's version, and must run none of the changed files below `root` when that is given. Where it
    `tells_more` it is told what the arms have a GPU do before they are timed (which they are where
    that is the same only with `measure_same`) and what known content is worth to the candidate.
    With `nearby` they are not timed but tried at shapes near the case's own.
    """

    names: tuple[str, ...]
    root: str = ""
    trees: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    tells_more: bool = False
    nearby: bool = False
    measure_same: bool = False
    own: str = CANDIDATE
    others: tuple[str, ...] = (INCUMBENT, PLACEBO)

    @property
    def is_referee(self) -> bool:
        """Whether this process holds no arm and judges what others' gave."""
        return not self.names


@dataclass(frozen=True, slots=True)
class ProfileOrder:
    """The order to profile cases: `answers` is the directory for what was seen.

    With `external` a vendor's tool watches this process, and the steps only run between its marks.
    """

    answers: str
    external: bool = False


@dataclass(frozen=True, slots=True)
class BlockOrder:
    """The order to run a block of an arm, or none: "" is the end of the blocks.

    `seed` is what content is drawn under, of the block or of what comes without one; nobody knows
    it before. With `is_looked_at` (a GPU) a result of the block is kept and judged. Where the
    last block's is to be (the CPU), `keeps` is its place among those of the arm that are judged.
    """

    arm: str
    seed: int = 0
    is_looked_at: bool = False
    keeps: int | None = None


class Commander(Protocol):
    """The other side; its files lie in `scratch`, `seed` is the case's own, None: the session's."""

    scratch: Path
    seed: int | None

    def declared(self, result: CaseResult) -> None:
        """Hand in the ERROR row that a case gets if it takes its process down."""

    def loaded(self, nodeid: str) -> Mapping[str, Any] | None:
        """Say that all is there; wait for the device, or for what a referee has to judge."""

    def agree(self, nodeid: str, engine: str, not_captured: Mapping[str, str]) -> str:
        """Say what times this process's arms, and why no graph; return what is to time all arms."""

    def ready(self, nodeid: str, arms: Sequence[str]) -> None: ...

    def same(self, nodeid: str, how: Same) -> None:
        """Say that the versions are the same for this case: there is nothing to compare."""

    def changed(self, nodeid: str, before: Recording, after: Recording, arch: str) -> None:
        """Say what the incumbent and the candidate have the device do, of this architecture."""

    def refuse(self, nodeid: str, reason: str) -> None: ...

    def next_block(self) -> BlockOrder:
        """Wait for the next block, or for the end of them."""

    def timed(self, forward_ms: float, backward_ms: float | None) -> None: ...

    def kept(
        self, nodeid: str, looks: Sequence[Mapping[str, Any]]
    ) -> Mapping[str, Accuracy] | None:
        """Hand over what was looked at; None where it was right, else the baseline's accuracy."""

    def judged(self, nodeid: str, findings: Sequence[Finding], why_not: str) -> None:
        """Say what a referee found, or why it cannot judge."""

    def caught(self, nodeid: str, findings: Sequence[Finding]) -> None:
        """Say what the candidate gave away while it was timed; nothing, as a rule."""

    def tried(self, shape: Tried) -> None:
        """Tell what the arms did at a shape near the case's own."""
