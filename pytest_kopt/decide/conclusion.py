"""Facts about a version besides its times, and their consequence for a verdict by times.

Every pipeline hands its facts over before it has the verdict: nothing changes a decision later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytest_kopt.decide.case_verdict import Shape
from pytest_kopt.decide.grounds import Observation, some
from pytest_kopt.decide.policy import Policy
from pytest_kopt.decide.verdict import Decision, Verdict


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """Statements of the notes, the ledger and the examination; "" is none."""

    #: The benefit that the author claims for a version that is equal in speed.
    extra_benefit: str = ""
    #: Why the examination of the gain does not confirm it.
    doubt: str = ""
    #: The names of what the version no longer supports, which refuses nothing.
    narrower: str = ""
    #: Where and why the same files failed their checks before.
    failed_before: str = ""
    #: The cause of that failure, by the notes.
    root_cause: str = ""


class Answer(NamedTuple):
    """The answer of the rules, by the keys of a verdict."""

    decision: Decision
    reason: str
    next_step: str


#: Nothing is known but times.
NO_FACTS = VersionFacts()


def settled(answer: Answer, facts: VersionFacts) -> Answer:
    """Return the answer by times with what the facts change: only what would be kept.

    A doubt comes first. Files that failed before are kept for a stated cause only: a cache or a
    race may have made them right this time. Anything else is noted.
    """
    if not answer.decision.keeps:
        return answer
    if facts.doubt:
        reason = f"{answer.reason}; but {facts.doubt}"
        return Answer(Decision.INCONCLUSIVE, reason, "measure it again on a quieter machine")
    if facts.failed_before and not facts.root_cause:
        return Answer(
            Decision.REPAIR,
            f"right this time, but {facts.failed_before}: a cache or a race may have made the "
            "difference",
            "edit the kernel, or name the cause as root_cause in --kopt-notes",
        )
    cause = f"{facts.failed_before}, and the notes say why: {facts.root_cause}"
    narrower = f"it supports less than the other version: {facts.narrower}"
    notes = [cause] * bool(facts.failed_before) + [narrower] * bool(facts.narrower)
    if not notes:
        return answer
    reason = "; ".join([answer.reason, *notes])
    return Answer(Decision.ACCEPTED_WITH_NOTE, reason, answer.next_step)


def with_untimed(
    timed: Verdict | None, untimed: Sequence[Shape], policy: Policy, why: Observation
) -> Verdict:
    """Return the verdict on timed cases (None: there are none) together with `untimed` ones.

    As long as a case has no times not every case is judged.
    """
    if timed and not untimed:
        return timed
    labels = some([shape.nodeid or shape.label for shape in untimed])
    reason = f"{len(untimed)} case(s) not judged, {labels}: {why.reason}"
    if timed:
        reason += f"; of the other cases: {timed.reason}"
    verdict = timed or why.verdict(policy.name)
    answer = Answer(why.ground.decision, reason, why.next_step)
    return _answered(verdict, answer, shapes=[*verdict.shapes, *untimed])


def without(missing: Sequence[str], new: Sequence[str], verdict: Verdict) -> Verdict:
    """Return the verdict on a change that leaves cases of the base without a comparison.

    It is refused, unless it is worse as it is.
    """
    if not missing or not (verdict.decision.keeps or verdict.decision is Decision.INCONCLUSIVE):
        return verdict
    renamed = f" or have a new name ({some(new)})" if new else ""
    reason = (
        f"{len(missing)} case(s) of the base are gone, skipped, xfailed or changed with what they "
        f"call, and nothing says that their shapes are not slower: {some(missing)}; of the others: "
        f"{verdict.reason}"
    )
    step = "bring them back, or pass --kopt-allow-removed if they are meant to go or to change"
    answer = Answer(Decision.ROLLED_BACK, reason, step + renamed)
    return _answered(verdict, answer, removed=list(missing))


def _answered(verdict: Verdict, answer: Answer, **more: object) -> Verdict:
    return verdict.model_copy(update=answer._asdict() | more)
