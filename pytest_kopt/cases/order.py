"""Orders to a process that runs cases, and who gives them; imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

CANDIDATE, INCUMBENT, PLACEBO = "candidate", "incumbent", "placebo"
#: The incumbent in a process without the candidate.
ALONE = "incumbent, alone"
#: The arms of a grouped GEMM with group sizes drawn anew, by the arm that they are like.
UNEVEN = {CANDIDATE: "candidate, uneven groups", INCUMBENT: "incumbent, uneven groups"}

#: The directions of an arm's blocks, in their order.
WAYS = ("forward", "backward")
#: Of a timed call as many results at most are written down as the first says: how many there are,
#: then the address and the bytes of each, in numbers as the second says.
RESULTS, PLACES = 8, 1 + 8 * 2


@dataclass(frozen=True, slots=True)
class ArmsOrder:
    """Which arms this process holds and where the other versions lie.

    `names` in the order in which they are prepared; `own` is the project's version, those of
    `others` lie in the overlay `trees`, in that order. In a race the project's is the incumbent's,
    and the others are its copy and the candidates. `changed` are the paths below `root` that differ
    (none: whatever file a case's function stands in). Without trees the process runs only its own
    version: that of `tree`, which must use none of the changed files below `root`, or the
    project's. Where it
    `tells_more` it is told what the arms have a GPU do before they are timed (which they are where
    that is the same only with `measure_same`) and what known content is worth to the candidate.
    With `nearby` they are not timed but tried at shapes near the case's own.
    """

    names: tuple[str, ...]
    root: str = ""
    tree: str = ""
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

    def changed_data(self) -> list[Path]:
        """Return the changed files of this process's own version that are no Python source."""
        here = self.tree or self.root
        return [Path(here, path).resolve() for path in self.changed if not path.endswith(".py")]

    def without(self, out: Collection[str]) -> ArmsOrder:
        """Return the order of the arms that are not `out`, whose trees are not looked at."""
        if not out:
            return self
        kept = [both for both in zip(self.others, self.trees, strict=True) if both[0] not in out]
        return replace(
            self,
            names=tuple(name for name in self.names if name not in out),
            others=tuple(name for name, _ in kept),
            trees=tuple(tree for _, tree in kept),
        )


@dataclass(frozen=True, slots=True)
class ProfileOrder:
    """The order to profile cases: `answers` is the directory for what was seen.

    With `external` a vendor's tool watches this process, and the steps only run between its marks.
    """

    answers: str
    external: bool = False


class Commander(Protocol):
    """The process that decides, for one that runs a case; `processes.channel` lists what is said.

    Files for it lie in `scratch`; `seed` is the case's own, None: the session's; `out` are arms of
    the order that are no longer asked for.
    """

    scratch: Path
    seed: int | None
    out: Collection[str]

    def tell(self, kind: str, **fields: Any) -> None: ...

    def hear(self) -> Mapping[str, Any]:
        """Wait for the next order, `stop` where the other side is gone."""
