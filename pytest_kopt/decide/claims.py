"""Claims about the series of a table: a mean lies beyond a bound, at a one-sided level."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from pytest_kopt.decide.inference import Estimate, holm_rejects

_ABOVE, _BELOW = False, True
#: Whether the claims of a statement are shown with Holm's correction for their number.
_ALONE, _HOLM = False, True


class Statement(Enum):
    """The content of a claim: its words, the side of the bound, and the correction."""

    CASE_FASTER = ("a case gained", _ABOVE, _ALONE)
    CASE_SLOWER = ("a case is slower", _BELOW, _HOLM)
    CASE_WITHIN_LIMIT = ("a case is clear of its limit", _ABOVE, _ALONE)
    CASE_BEYOND_LIMIT = ("a case is beyond its limit", _BELOW, _HOLM)
    CASE_BEYOND_LIMIT_ALONE = ("an interval of 95 % is beyond the limit", _BELOW, _ALONE)
    CASE_BEYOND_LIMIT_ELSEWHERE = ("the same at the other operating point", _BELOW, _ALONE)
    CLASS_FASTER = ("a class gained", _ABOVE, _HOLM)
    CLASS_WORTH_A_PATH = ("a class gained more than the known bias", _ABOVE, _HOLM)
    CLASS_SLOWER = ("a class lost more than the known bias", _BELOW, _HOLM)
    CLASS_SLOWER_ALONE = ("an interval of 95 % is beyond the known bias", _BELOW, _ALONE)
    CLASS_WITHIN_NOISE = ("a class is clear of a loss of the noise", _ABOVE, _ALONE)
    FASTER = ("all cases, or the target, gained", _ABOVE, _ALONE)
    SLOWER = ("all cases, or the target, fell", _BELOW, _ALONE)
    NOT_SLOWER_THAN_NOISE = ("they are not slower by the noise", _ABOVE, _ALONE)
    NOT_FASTER_THAN_NOISE = ("they are not faster by the noise", _BELOW, _ALONE)
    OTHER_FIGURE_SLOWER = ("the figure of all cases fell that does not decide", _BELOW, _ALONE)


@dataclass(frozen=True, slots=True)
class SeriesClaim:
    """A statement about the estimate `of` a case, a class or all cases."""

    says: Statement
    of: str
    estimate: Estimate
    bound: float
    level: float

    @property
    def p_value(self) -> float:
        _, below, _ = self.says.value
        return (self.estimate.p_below if below else self.estimate.p_above)(self.bound)


def shown(claims: Iterable[SeriesClaim]) -> dict[Statement, set[str]]:
    """Return of what each statement is shown: of which cases, classes or figures."""
    families: dict[tuple[Statement, str], list[SeriesClaim]] = {}
    for claim in claims:
        _, _, is_family = claim.says.value
        families.setdefault((claim.says, "" if is_family else claim.of), []).append(claim)
    found: dict[Statement, set[str]] = {says: set() for says in Statement}
    for (says, _), of_family in families.items():
        p_values = {claim.of: claim.p_value for claim in of_family}
        found[says] |= holm_rejects(p_values, of_family[0].level)
    return found
