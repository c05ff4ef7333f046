"""A race: of several candidates one becomes the round's, and is judged as any other.

The tree holds the incumbent, and pytest runs its cases: a race has nothing to say where they fail.
Each candidate is checked in a tree of its own; those that pass meet the incumbent in the same
processes. The best is put into the tree, and from there on the round is the ordinary one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_kopt.campaign.kernel import KernelVersion
from pytest_kopt.cases.collector import Collector
from pytest_kopt.decide.race import interval, winner
from pytest_kopt.decide.verdict import Decision, RaceCandidate, Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.paired.arms import NotComparable, Versions
from pytest_kopt.paired.comparison import Comparison
from pytest_kopt.paired.noise import Known
from pytest_kopt.paired.pairing import PairedMetric
from pytest_kopt.paired.race import Raced, run_race
from pytest_kopt.schema.metrics import parse_primary
from pytest_kopt.show.closing import Closing
from pytest_kopt.trials import judging
from pytest_kopt.trials.campaign_trial import Question
from pytest_kopt.trials.candidates import Candidate, candidates_of
from pytest_kopt.trials.gathering import add_error_rows, gather
from pytest_kopt.trials.rounds.candidate import close_candidate, open_against_incumbent, record
from pytest_kopt.trials.rounds.examination import Examination
from pytest_kopt.trials.stages import Asked, Gathered, Judged, Opened, RacedCandidate, Ran
from pytest_kopt.trials.trees import overlays, trees_once

_OPTION = "--kopt-candidates"


@dataclass(frozen=True, slots=True)
class _Checked:
    """A candidate after its check: its rows, and why it does not race ("": it does)."""

    candidate: Candidate
    found: Collector
    decision: Decision
    reason: str = ""


def open_race(asked: Asked) -> Opened:
    """Return the round with its candidates; BadInput where they cannot race now."""
    settings, campaign = asked.settings, asked.campaign
    for wrong, legal in (
        (settings.compare == "stored", "--kopt-compare paired"),
        (not settings.apply, "a race without --kopt-no-apply, as the best is put into the tree"),
    ):
        if wrong:
            raise BadInput("this option does not fit a race", where=_OPTION, legal=legal)
    opened = open_against_incumbent(asked)
    found = candidates_of(campaign, settings.candidates, Path.cwd())
    names = ", ".join(candidate.name for candidate in found)
    return replace(opened, candidates=found, title=f"{opened.title}, a race of {names}")


def close_race(ran: Ran) -> Closing:
    """Check and race the candidates, then put the best into the tree and close its round."""
    gathered = gather(ran)
    broken = _broken(gathered)
    if broken:
        return record(Judged(gathered, broken), begun_at=ran.opened.level)
    raced, full = _raced(gathered)
    root, incumbent, chosen = ran.opened.campaign.root, ran.begun.kernel, raced[0].kernel
    ran.collector.take_over(full)
    chosen.restore(root, over=incumbent)
    try:
        with ExitStack() as held:
            kernel = ran.opened.campaign.candidate()
            begun = replace(
                ran.begun,
                opened=replace(ran.opened, raced=tuple(raced)),
                kernel=kernel,
                beside=trees_once(ran.opened.campaign, kernel, held),
            )
            closing = close_candidate(replace(ran, begun=begun))
    except BaseException:
        incumbent.restore(root, over=chosen)
        raise
    if closing.verdict.decision is Decision.INCOMPLETE:
        incumbent.restore(root, over=chosen)
    return closing


def _broken(gathered: Gathered) -> Verdict | None:
    """Return INCOMPLETE where the incumbent's own cases cannot be relied on, else None."""
    ran, results, policy = gathered.ran, gathered.results, gathered.policy
    missing = judging.cut_off(ran.collector, list(ran.opened.expected), ran.interrupted, policy)
    if missing:
        return missing
    if judging.is_interpreted(results):
        return judging.incomplete(policy, *judging.INTERPRETED)
    failed = [result.nodeid for result in results if result.check != "PASS"]
    if failed or gathered.edits:
        why = f"the incumbent itself fails {failed[0]}" if failed else judging.EDITED_HARNESS
        return judging.incomplete(policy, why, "nothing was raced: find out why")
    return None


def _raced(gathered: Gathered) -> tuple[list[RacedCandidate], Collector]:
    """Return the candidates by place, and what the first one's cases come to."""
    ran, opened = gathered.ran, gathered.ran.opened
    root, ids = opened.campaign.root.resolve(), list(opened.expected)
    with ExitStack() as held:
        trees = _Trees(root, ran.begun.kernel, opened.candidates, held)
        checked = [_checked(candidate, ran, trees) for candidate in opened.candidates]
        passed = [item.candidate for item in checked if not item.reason]
        race = _race(gathered, passed, trees) if len(passed) > 1 else None
        order = _order(passed, race)
        rest = [item.candidate for item in checked if item.candidate not in order]
        found = {item.candidate.name: item for item in checked}
        placed = [
            _placed(place, found[candidate.name], race, order)
            for place, candidate in enumerate([*order, *rest], start=1)
        ]
        first = placed[0].told.name
        return placed, ran.measurements.run_in((root, trees.of(first)), ids)


class _Trees:
    """Trees of the project: one for each candidate, and one of the incumbent as its copy."""

    def __init__(
        self,
        root: Path,
        incumbent: KernelVersion,
        candidates: Iterable[Candidate],
        held: ExitStack,
    ) -> None:
        versions = {candidate.name: candidate.kernel for candidate in candidates}
        self._root = root
        self._changed = sorted({path for v in (incumbent, *versions.values()) for path in v.files})

        def tree(version: KernelVersion) -> Path:
            files = {path: version.sources.get(path) for path in self._changed}
            return held.enter_context(overlays(root, files)).trees[0]

        self._copy = tree(incumbent)
        self._trees = {name: tree(version) for name, version in versions.items()}

    def of(self, name: str) -> Path:
        """Return a candidate's tree."""
        return self._trees[name]

    def together(self, names: Sequence[str]) -> Versions:
        """Return the project with these candidates beside it."""
        trees = (self._copy, *(self._trees[name] for name in names))
        return Versions(self._root, trees, tuple(self._changed), raced=tuple(names))


def _checked(candidate: Candidate, ran: Ran, trees: _Trees) -> _Checked:
    """Check a candidate as a lone one is, in a process and a tree of its own."""
    opened, policy = ran.opened, ran.opened.asked.policy
    ids, root = list(opened.expected), opened.campaign.root.resolve()
    found = ran.measurements.run_in((root, trees.of(candidate.name)), ids, check_only=True)
    add_error_rows(found, opened.expected)
    judging.fail_rows_of_failed_tests(found)
    results = found.in_order()
    damning = judging.rejecting(
        Examination(opened.campaign, candidate.kernel, opened.notes.claim).found(results)
    )
    failed = [result for result in results if result.check != "PASS"]
    missing = judging.cut_off(found, ids, "", policy)
    if damning:
        return _Checked(candidate, found, Decision.REJECTED_OVERFIT, str(damning[0]))
    if failed:
        why = next(iter(failed[0].diagnosis.strip().splitlines()), "")
        reason = f"{failed[0].nodeid} is {failed[0].check}: {why}"
        return _Checked(candidate, found, Decision.REPAIR, reason)
    if missing:
        return _Checked(candidate, found, Decision.REPAIR, missing.reason)
    return _Checked(candidate, found, Decision.ROLLED_BACK)


def _race(gathered: Gathered, passed: Sequence[Candidate], trees: _Trees) -> Raced:
    opened, results, policy = gathered.opened, gathered.results, gathered.policy
    campaign = opened.campaign
    metric = parse_primary(campaign.manifest.primary_metric, gathered.rows, policy.directions)[0]
    ids = [result.nodeid for result in results]

    def compare(names: Sequence[str], most: int) -> Comparison:
        return gathered.ran.measurements.compare(ids, trees.together(names), most)

    try:
        return run_race(
            compare,
            [candidate.name for candidate in passed],
            results,
            PairedMetric.of(metric, gathered.rows),
            policy,
            Known.here(opened.asked.settings.workspace, results, campaign),
            opened.core,
        )
    except NotComparable as error:
        raise BadInput(
            f"the candidates cannot be measured in one process: {error}",
            where=_OPTION,
            legal="a round for each",
        ) from None


def _order(passed: Sequence[Candidate], race: Raced | None) -> list[Candidate]:
    """Return those that raced, the chosen one first; the others by their mean."""
    if race is None:
        return list(passed)
    sizes = {candidate.name: candidate.size for candidate in passed}
    chosen = winner(race.evidences, race.left, sizes) if race.left else ""
    return sorted(
        passed,
        key=lambda c: (c.name != chosen, c.name not in race.left, -race.standings[c.name].mean),
    )


def _placed(
    place: int, item: _Checked, race: Raced | None, order: Sequence[Candidate]
) -> RacedCandidate:
    name, reason = item.candidate.name, item.reason
    figures: Mapping[str, float] = {}
    if race is not None and name in race.standings:
        reason = race.standings[name].out or f"not better than {order[0].name}"
        if name in race.evidences:
            figures = interval(race.evidences[name])
    told = RaceCandidate(
        name=name,
        place=place,
        decision=item.decision,
        reason=reason,
        kernel=item.candidate.kernel.hashes,
        **figures,
    )
    return RacedCandidate(told, item.candidate.kernel, item.found.table())


RACE = Question(open_race, close_race, runs_benchmark=False)
