"""Every round after the baseline, from top to bottom: a candidate meets the incumbent.

The round is opened, which refuses what is not worth measuring. pytest runs the cases: all are
checked, those of the level are timed. The rows are gathered and judged, by all cases where a quick
round would keep the candidate. The verdict gets its flags, and is recorded and carried out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from pytest_kopt.campaign import levels, prerequisites
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history import trend
from pytest_kopt.campaign.kernel import KernelVersion
from pytest_kopt.campaign.ledger import PairedChange
from pytest_kopt.cases.details import in_a_line
from pytest_kopt.cases.result import CaseResult, Collector, names
from pytest_kopt.decide.grounds import (
    Ground,
    Observation,
    by_ground,
    same_code,
    wrong_rows,
)
from pytest_kopt.errors import BadInput, KernelError
from pytest_kopt.figures import changed
from pytest_kopt.honesty.audit import audit
from pytest_kopt.honesty.finding import Finding, names_of
from pytest_kopt.sameness.sources import differing
from pytest_kopt.schema.metrics import is_backward
from pytest_kopt.show.standing import Closing
from pytest_kopt.trials import judging
from pytest_kopt.trials.campaign_trial import (
    CampaignTrial,
    check_target_class,
    open_round,
    profiled,
    record_round,
)
from pytest_kopt.trials.comparing import compare_paired, compare_stored
from pytest_kopt.trials.stages import (
    Asked,
    Begun,
    Gathered,
    Judged,
    OpenTrial,
    Ran,
    frozen_cases,
    gather,
)

_PUT_BACK = "kopt restored the current best; restore the harness too"


class Examination:
    """The facts that count against a candidate: what its cases and the audit found."""

    def __init__(self, campaign: Campaign, kernel: KernelVersion) -> None:
        self._campaign = campaign
        self._kernel = kernel

    def findings(self, results: Sequence[CaseResult]) -> list[Finding]:
        return [*judging.findings_of(results), *self._audited]

    @cached_property
    def _audited(self) -> list[Finding]:
        incumbent = self._campaign.incumbent().sources
        return audit(self._kernel.sources, incumbent)


def open_against_incumbent(asked: Asked) -> OpenTrial:
    """Return the round as it can be run now, whatever its candidate is; else raise BadInput."""
    campaign = asked.campaign
    opened = _at_its_level(open_round(asked))
    # What the round will be compared with is read before anything is measured.
    campaign.incumbent()
    keys = {opened.frozen[name].key for name in opened.timed}
    rows = campaign.best.table().rows
    check_target_class(opened, [row for row in rows if row.key in keys])
    harness = asked.watch.check(opened.frozen)
    asked.watch.check_dependencies(harness)
    return replace(opened, harness=harness)


def _at_its_level(opened: OpenTrial) -> OpenTrial:
    """Choose the cases that are timed; BadInput where there is no such level."""
    campaign, asked = opened.campaign, opened.asked
    frozen = frozen_cases(campaign)
    shapes = campaign.manifest.representative_shapes
    recorded = campaign.recorded_manifest().get(levels.KEY)
    levels.check_unchanged(shapes, recorded, campaign.state.first_quick_round)
    representative = levels.representative(campaign.manifest, names(frozen.values()))
    level = levels.choose(asked.settings.level, len(frozen), shapes)
    title = opened.title
    if level == "quick":
        title += f", quick: {len(representative)} of {len(frozen)} cases are timed"
    return replace(
        opened,
        title=title,
        level=level,
        frozen=frozen,
        skipped=tuple(campaign.skipped_at_baseline()),
        representative=representative,
    )


def judge_candidate(ran: Ran) -> Judged:
    """Gather and judge; nothing is recorded or changed."""
    opened, asked = ran.opened, ran.opened.asked
    examination = Examination(asked.campaign, ran.begun.kernel)
    judged = _judge_same(ran) if ran.is_same else _judge(gather(ran), examination)
    if opened.level == "quick" and judged.verdict.decision.keeps and not ran.is_same:
        judged = _judge_by_all(judged, examination)
    findings = examination.findings(judged.gathered.results)
    notable = [finding for finding in findings if not finding.rejects or finding.repairs]
    return profiled(judged.flagged(*notable, *judged.nearby).saying_why_blocked())


def _judge_same(ran: Ran) -> Judged:
    """Judge the incumbent's code, of which its rows stand and nothing has run."""
    opened, kernel, number = ran.opened, ran.begun.kernel, ran.opened.same_as
    campaign = opened.campaign
    assert number is not None
    ran.collector.results = {result.nodeid: result for result in campaign.best.results()}
    gathered = gather(ran)
    where, shapes = f"the same code as round {number}", judging.same_shapes(gathered.results)
    same = same_code(where, opened.notes.extra_benefit, shapes)
    observed = [*gathered.observed(ran.collector.results, _PUT_BACK)]
    if differing(campaign.incumbent().sources, kernel.sources):
        observed.append(Observation(Ground.UNSOUND, "the kernel files changed meanwhile"))
    policy = opened.asked.policy
    return Judged(gathered, by_ground(observed, policy) or same.verdict(policy.name))


def _judge(checked: Gathered, examination: Examination) -> Judged:
    """Check all cases, compare those of the level, and decide by the first ground or by times."""
    cheats = judging.rejecting(examination.findings(checked.results))
    observed = [
        *checked.observed(checked.opened.frozen, _PUT_BACK),
        judging.dishonest(checked.results, cheats),
        _wrong(checked) if checked.table else None,
    ]
    gathered = checked.of_level()
    observed.append(judging.interpreted(gathered.results))
    if verdict := by_ground(observed, gathered.policy):
        return Judged(gathered, verdict)
    opened = gathered.opened
    if gathered.harness is not None:
        opened.asked.watch.check_dependencies(gathered.harness)
    if opened.asked.settings.compare == "stored":
        return Judged(gathered, compare_stored(gathered))
    compared = compare_paired(gathered, opened.campaign.incumbent())
    observed, paired = [_wrong(compared.gathered, compared.mistakes)], compared.paired
    if paired and paired.has_same_machine_code and not opened.notes.extra_benefit:
        observed.append(_same_machine_code(gathered))
    return compared.decided(observed)


def _wrong(gathered: Gathered, mistakes: Sequence[Finding] = ()) -> Observation | None:
    """Return that cases are wrong, some by `mistakes` that the comparison found."""
    wrong = wrong_rows(gathered.rows, gathered.policy, gathered.failed_repairs)
    if wrong is None or not mistakes:
        return wrong
    evidence = {**wrong.evidence, **judging.flags_of(mistakes)}
    return replace(wrong, reason=f"{wrong.reason}; {names_of(mistakes)}", evidence=evidence)


def _same_machine_code(gathered: Gathered) -> Observation:
    """Return that a race's best is the incumbent's machine code; BadInput for a lone candidate."""
    campaign = gathered.opened.campaign
    why = (
        f"the same machine code as round {campaign.state.incumbent_round}: the GPU does the same "
        "work in every case"
    )
    if gathered.opened.raced:
        return same_code(why, None, judging.same_shapes(gathered.results, "machine"))
    raise BadInput(
        why,
        where=", ".join(campaign.manifest.kernel_source),
        fix="change the launched code, or give notes with extra_benefit; --kopt-measure-same times "
        "it nevertheless",
    )


def _judge_by_all(quick: Judged, examination: Examination) -> Judged:
    """Time the remaining cases in this session, and have all of them decide.

    A candidate knows the representative cases, and could lose in all others.
    """
    ran, opened, total = quick.gathered.ran, quick.gathered.opened, quick.verdict.aggregate
    assert total is not None and total.change_pct is not None
    ran.measurements.time_also([name for name in opened.frozen if name not in opened.timed])
    judged = _judge(replace(gather(ran), level="full"), examination)
    flag = (
        f"quick, {total.metric} changed by {changed(total.change_pct)}: what is kept is decided by "
        f"all {len(opened.frozen)} cases"
    )
    return judged.saying(flags=[flag, *judged.verdict.flags])


def record(judged: Judged) -> Closing:
    """Record with the paired change."""
    table, opened, paired = judged.gathered.table, judged.gathered.opened, judged.paired
    is_full = judged.gathered.level == "full"
    is_kept_as_same = judged.gathered.ran.is_same and judged.verdict.decision.keeps
    none = _no_change(judged.gathered.results) if is_kept_as_same else None
    campaign, rows = opened.campaign, table.by_key() if table else ()
    return record_round(
        judged,
        paired=paired.change() if paired else none,
        baseline=None if is_full or not table else trend.figures(campaign.first.table().only(rows)),
    )


def _no_change(results: Sequence[CaseResult]) -> PairedChange:
    cells = [cell for result in results for cell in result.cells.items()]
    backward = any(is_backward(name) and value is not None for name, value in cells)
    return PairedChange(step_pct=0.0, forward_pct=0.0, backward_pct=0.0 if backward else None)


class CandidateRound(CampaignTrial):
    """The round of the version that lies in the tree; `CampaignTrial` calls its methods."""

    runs_benchmark = False

    def open(self) -> OpenTrial:
        opened, campaign = open_against_incumbent(self.asked), self.campaign
        prerequisites.check_parses(campaign)
        same_as = prerequisites.check_differs(campaign, opened.notes.extra_benefit)
        if same_as is None:
            return opened
        decided = campaign.state.rounds[same_as].verdict
        assert decided is not None
        return replace(opened, level=decided.level, same_as=same_as)

    def collected(self, begun: Begun, ids: Sequence[str], collector: Collector) -> Begun:
        """Raise KernelError when a file of the round's cases does not import any more."""
        for nodeid in begun.opened.frozen:
            error = judging.under(nodeid, collector.collect_errors)
            if error:
                why = "the kernel does not import; nothing was measured"
                raise KernelError(f"{in_a_line(error)}; {why}")
        return begun

    def conclude(self, ran: Ran) -> Closing:
        return record(judge_candidate(ran))
