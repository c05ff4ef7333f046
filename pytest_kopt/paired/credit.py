"""Whether a gain is credited: what a version that would be kept is asked beyond its ratios."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_kopt.honesty.finding import Finding
from pytest_kopt.paired.company import Company, look_alone
from pytest_kopt.paired.comparison import Comparison
from pytest_kopt.paired.replica import CaseQuads, Caught
from pytest_kopt.paired.witness import Witness, hidden_time, look_outside


@dataclass(frozen=True, slots=True)
class Credit:
    """What the outside clock says of a version, and what the current best alone does."""

    witness: Witness = field(default_factory=Witness)
    alone: Company = field(default_factory=Company)

    @property
    def doubt(self) -> str:
        """Why the version is not kept all the same, "" where it is."""
        return self.witness.doubt or self.alone.doubt

    @property
    def flags(self) -> list[str]:
        return [str(self.alone.finding)] if self.alone.finding else []

    def to_document(self) -> dict[str, object]:
        return {
            "incumbent_alone": self.alone.to_document(),
            "outside_clock": self.witness.to_document(),
        }


def examine(
    comparison: Comparison,
    replicas: Sequence[Mapping[str, CaseQuads]],
    gain_pct: float | None,
    loss_pct: float | None,
) -> Credit:
    """Hold what was measured against the outside clock, and against the current best alone.

    With `loss_pct` no gain is claimed, but that no more than so much is lost. Raises Caught.
    """
    _refuse(hidden_time(replicas))
    witness = look_outside(replicas, lambda: comparison.replicas(1), loss_pct)
    _refuse([witness.contradiction] if witness.contradiction else [])
    if comparison.written:
        _refuse([_written(comparison.written)])
    beside_alone: list[Mapping[str, CaseQuads]] = []

    def in_company() -> Mapping[str, CaseQuads]:
        beside_alone.append(comparison.in_company())
        return beside_alone[-1]

    alone = look_alone(in_company, gain_pct)
    _refuse(hidden_time(beside_alone))
    if alone.finding and alone.finding.rejects:
        _refuse([alone.finding])
    return Credit(witness, alone)


def _refuse(findings: Iterable[Finding]) -> None:
    if caught := [*findings]:
        raise Caught(caught)


def _written(path: str) -> Finding:
    return Finding(
        "harness-written",
        f"{path} was written in the tree of the current best while it was compared",
        advice="a kernel and its build write to their own tree",
    )
