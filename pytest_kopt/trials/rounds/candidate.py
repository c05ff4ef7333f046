"""Every round after the baseline, from top to bottom: a candidate meets the incumbent.

The round is opened, which refuses what is not worth measuring. pytest runs the cases: all are
checked, those of the level are timed. The rows are gathered and judged, by all cases where a quick
round would keep the candidate. The verdict gets its flags, and is recorded and carried out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_kopt.campaign import levels, prerequisites
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.kernel import KernelVersion
from pytest_kopt.cases.details import in_a_line
from pytest_kopt.cases.result import Collector, names
from pytest_kopt.decide.grounds import (
    Ground,
    Observation,
    by_ground,
    same_code,
    wrong_rows,
)
from pytest_kopt.decide.verdict import Verdict
from pytest_kopt.errors import BadInput, KernelError
from pytest_kopt.figures import changed
from pytest_kopt.honesty.audit import audit
from pytest_kopt.honesty.finding import Finding, names_of
from pytest_kopt.paired.pairing import PairedResult
from pytest_kopt.sameness.sources import differing
from pytest_kopt.schema.table import Classes
from pytest_kopt.show.standing import Closing
from pytest_kopt.trials import judging
from pytest_kopt.trials.campaign_trial import (
    CampaignTrial,
    check_target_class,
    open_round,
    record_round,
)
from pytest_kopt.trials.comparing import compare_paired, compare_stored, decided, mistakes
from pytest_kopt.trials.stages import Asked, OpenTrial, Ran, frozen_cases, gather

_PUT_BACK = "kopt restored the current best; restore the harness too"


def open_against_incumbent(asked: Asked) -> OpenTrial:
    """Return the round as it can be run now, whatever its candidate is; else raise BadInput."""
    campaign = asked.campaign
    number, title, notes = open_round(asked)
    frozen = frozen_cases(campaign)
    shapes = campaign.manifest.representative_shapes
    recorded = campaign.recorded_manifest().get(levels.KEY)
    levels.check_unchanged(shapes, recorded, campaign.state.first_quick_round)
    representative = levels.representative(campaign.manifest, names(frozen.values()))
    level = levels.choose(asked.settings.level, len(frozen), shapes)
    if level == "quick":
        title += f", quick: {len(representative)} of {len(frozen)} cases are timed"
    # What the round will be compared with is read before anything is measured.
    campaign.incumbent()
    timed = representative if level == "quick" else frozen
    keys = {frozen[name].key for name in timed}
    rows = campaign.best.table().rows
    classes = Classes(tuple(campaign.manifest.classes), notes.target_class)
    check_target_class(classes, [row for row in rows if row.key in keys])
    harness = asked.watch.check(frozen)
    asked.watch.check_dependencies(harness)
    return OpenTrial(asked, title, number, harness, frozen, representative, level, notes)


def audited(campaign: Campaign, kernel: KernelVersion) -> list[Finding]:
    return audit(kernel.sources, campaign.incumbent().sources)


def judge_candidate(ran: Ran) -> tuple[Verdict, PairedResult | None, str]:
    """Gather and judge, and record or change nothing.

    Returns the verdict, what it rests on, and the stack of a case that ended its process.

    It is rule 10 of docs/honesty.md.
    """
    opened = ran.opened
    in_source = audited(opened.campaign, ran.kernel)
    if ran.is_same:
        verdict, paired, detail = _judge_same(ran), None, ""
    else:
        gather(ran)
        verdict, paired, detail = _judge(ran, in_source)
    total = verdict.aggregate
    if ran.level == "quick" and verdict.decision.keeps and not ran.is_same:
        # A candidate knows the representative cases, and could lose in all others.
        assert total is not None and total.change_pct is not None
        ran.measurements.time_also(opened.untimed)
        ran.level = "full"
        gather(ran)
        verdict, paired, detail = _judge(ran, in_source)
        flag = (
            f"quick, {total.metric} changed by {changed(total.change_pct)}: what is kept is "
            f"decided by all {len(opened.frozen)} cases"
        )
        verdict = verdict.saying(flags=[flag, *verdict.flags])
    findings = [*judging.findings_of(ran.results), *in_source]
    notable = [finding for finding in findings if not finding.rejects or finding.repairs]
    nearby = paired.nearby if paired else ()
    return judging.flagged(verdict, [*notable, *nearby]), paired, detail


def _judge_same(ran: Ran) -> Verdict:
    """Judge the incumbent's code, of which its rows stand and nothing has run."""
    opened, campaign = ran.opened, ran.opened.campaign
    ran.collector.results = {result.nodeid: result for result in campaign.best.results()}
    gather(ran)
    where, shapes = f"the same code as round {opened.same_as}", judging.same_shapes(ran.results)
    observed = [*ran.observed(ran.collector.results, _PUT_BACK)]
    if differing(campaign.incumbent().sources, ran.kernel.sources):
        observed.append(Observation(Ground.UNSOUND, "the kernel files changed meanwhile"))
    policy = opened.asked.policy
    same = same_code(where, opened.notes.extra_benefit, shapes)
    return by_ground(observed, policy) or same.verdict(policy.name)


def _judge(ran: Ran, in_source: Sequence[Finding]) -> tuple[Verdict, PairedResult | None, str]:
    """Check all cases, compare those of the level, and decide by the first ground or by times."""
    opened, results = ran.opened, ran.results
    cheats = judging.rejecting([*judging.findings_of(results), *in_source])
    observed = [
        *ran.observed(opened.frozen, _PUT_BACK),
        judging.dishonest(results, cheats),
        _wrong(ran) if results else None,
    ]
    ran.leave_out_untimed()
    observed.append(judging.interpreted(ran.results))
    if verdict := by_ground(observed, ran.policy):
        return verdict, None, ""
    opened.asked.watch.check_dependencies(ran.harness)
    if opened.asked.settings.compare == "stored":
        return compare_stored(ran), None, ""
    paired, observation, detail = compare_paired(ran, opened.campaign.incumbent())
    observed = [observation, _wrong(ran, mistakes(paired))]
    if paired and paired.has_same_machine_code and not opened.notes.extra_benefit:
        observed.append(_same_machine_code(ran))
    return decided(observed, paired, ran.policy), paired, detail


def _wrong(ran: Ran, near_inputs: Sequence[Finding] = ()) -> Observation | None:
    """Return that cases are wrong, some by what the comparison found near their inputs."""
    wrong = wrong_rows(ran.rows, ran.policy, ran.failed_repairs)
    if wrong is None or not near_inputs:
        return wrong
    evidence = {**wrong.evidence, **judging.flags_of(near_inputs)}
    return replace(wrong, reason=f"{wrong.reason}; {names_of(near_inputs)}", evidence=evidence)


def _same_machine_code(ran: Ran) -> Observation:
    """Return that a race's best is the incumbent's machine code; BadInput for a lone candidate."""
    campaign = ran.opened.campaign
    why = (
        f"the same machine code as round {campaign.state.incumbent_round}: the GPU does the same "
        "work in every case"
    )
    if ran.raced:
        return same_code(why, None, judging.same_shapes(ran.results, "machine"))
    raise BadInput(
        why,
        where=", ".join(campaign.manifest.kernel_source),
        fix="change the launched code, or give notes with extra_benefit; --kopt-measure-same times "
        "it nevertheless",
    )


class CandidateRound(CampaignTrial):
    """The round of the version that lies in the tree; `CampaignTrial` calls its methods."""

    runs_benchmark = False

    def open(self) -> OpenTrial:
        opened, campaign = open_against_incumbent(self.asked), self.campaign
        prerequisites.check_parses(campaign)
        opened.same_as = prerequisites.check_differs(campaign, opened.notes.extra_benefit)
        if opened.same_as is not None:
            decided = campaign.state.rounds[opened.same_as].verdict
            assert decided is not None
            opened.level = decided.level
        return opened

    def collected(self, opened: OpenTrial, ids: Sequence[str], collector: Collector) -> None:
        """Raise KernelError when a file of the round's cases does not import any more."""
        for nodeid in opened.frozen:
            error = judging.under(nodeid, collector.collect_errors)
            if error:
                why = "the kernel does not import; nothing was measured"
                raise KernelError(f"{in_a_line(error)}; {why}")

    def conclude(self, ran: Ran) -> Closing:
        return record_round(ran, *judge_candidate(ran))
