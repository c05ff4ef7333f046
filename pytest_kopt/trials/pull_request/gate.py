"""The steps of every gate: judge cases, compare two versions, and say what comes next."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_kopt import policies
from pytest_kopt.cases.details import in_a_line, with_details
from pytest_kopt.cases.order import Purpose, WorkerOrders
from pytest_kopt.cases.result import CaseResult, Collector
from pytest_kopt.decide.case_verdict import Shape
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.devices.idle import AllGpusBusy
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.options.settings import Settings
from pytest_kopt.paired.arms import CandidateDied, NotComparable, Versions
from pytest_kopt.paired.noise import NoiseHistory
from pytest_kopt.paired.pairing import Criteria, PairedMetric, PairedResult, judge
from pytest_kopt.paired.replica import Caught
from pytest_kopt.show.standing import Closing
from pytest_kopt.show.words import gate_outcome
from pytest_kopt.trials import judging
from pytest_kopt.trials.measurements import Measurements

COMPUTE = "compute what the cases ask for"
#: What to do after a decision.
NEXT = {
    Decision.ACCEPTED: "",
    Decision.ACCEPTED_WITH_NOTE: "look at the slower case",
    Decision.ROLLED_BACK: "make the slower cases faster, or keep the base's code for them",
    Decision.INCONCLUSIVE: "not decided: run it again, on a quieter machine if there is one",
}


#: The worst first.
_WORST = (
    *(Decision.REPAIR, Decision.REJECTED_OVERFIT, Decision.ROLLED_BACK, Decision.INCOMPLETE),
    *(Decision.INCONCLUSIVE, Decision.ACCEPTED_WITH_NOTE, Decision.ACCEPTED),
)


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the worst verdict on parts of the cases, with the cases and flags of all parts."""
    first, *others = sorted(verdicts, key=lambda verdict: _WORST.index(verdict.decision))
    reasons = [
        first.reason,
        *(f"in {_labels(verdict.shapes)}: {verdict.reason}" for verdict in others),
    ]
    return first.model_copy(
        update={
            "reason": "; ".join(reasons),
            "shapes": [shape for verdict in (first, *others) for shape in verdict.shapes],
            "flags": [*dict.fromkeys(f for verdict in (first, *others) for f in verdict.flags)],
        }
    )


class VersionGate:
    """A verdict without a campaign, on the tree and an `other` side; leaves nothing behind.

    Made while pytest is configured, begun when the session starts, closed when all cases ran.
    """

    option: str
    other: object
    next_steps = NEXT
    #: Lines below the header: what is to be read before anything runs.
    preface: Sequence[str] = ()
    #: The file that says how far the session is: nobody would read it.
    running_file: Path | None = None

    def __init__(
        self, config: pytest.Config, settings: Settings, session: WorkerOrders, **orders: Any
    ) -> None:
        self.config, self.settings = config, settings
        self.policy = policies.load(settings.policy or "primus")
        self._orders = replace(session, purpose=Purpose.COMPARISON, **orders)

    @property
    def title(self) -> str:
        """The subject, for the header line."""
        raise NotImplementedError

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that every process which runs kernel code gets."""
        return {}

    @property
    def is_settled(self) -> bool:
        """Whether the verdict is known without running anything: both versions are the same."""
        return False

    def orders(self, session: WorkerOrders) -> WorkerOrders:
        return self._orders

    def begin(self) -> str:
        """Take what the trial needs, else BadInput; return why nothing can be measured."""
        return ""

    def check_collection(self, ids: Sequence[str], collector: Collector, filtered: bool) -> None:
        judging.check_some(ids, collector, self.option)

    def get_ahead(self, ids: Sequence[str], measurements: Measurements) -> None:
        """Begin what closing will measure, as far as that can be told before these cases ran."""
        raise NotImplementedError

    def close(
        self, collector: Collector, measurements: Measurements, interrupted: str = ""
    ) -> Closing:
        """Judge; raises BadInput for drifted input."""
        raise NotImplementedError

    def no_idle_gpu(self, error: AllGpusBusy) -> None:
        """Record nothing: there is no campaign."""

    def release(self) -> None:
        """Give everything back; safe to repeat."""

    def closed(
        self, verdict: Verdict, base: str, results: Sequence[CaseResult], detail: str
    ) -> Closing:
        thresholds = self.policy.model_dump(mode="json")
        told = {"base": base, "outcome": gate_outcome(verdict), "thresholds": thresholds}
        return Closing(with_details(verdict.model_copy(update=told), results), detail)

    def cut_off(
        self, collector: Collector, interrupted: str, known: Sequence[str] = ()
    ) -> Verdict | None:
        """Return INCOMPLETE or REPAIR where not every case has a row; BadInput for refused input.

        A file of cases that does not import, the other side's `known` ones or others, is wrong.
        """
        judging.refuse(collector.refusals)
        judging.fail_rows_of_failed_tests(collector)
        unfinished = judging.cut_off(collector, None, interrupted, self.policy)
        failed = judging.not_imported(collector, known, self.config.rootpath)
        if not failed or interrupted or (unfinished and collector.results):
            return unfinished
        return self.wrong(collector.in_order(), "; ".join(failed.values()))

    def judged(
        self, results: Sequence[CaseResult], compared: Callable[[], Verdict]
    ) -> tuple[Verdict, str]:
        """Return the verdict on wrong cases, else the `compared`, and a candidate's stack."""
        failed = [result for result in results if result.check != "PASS"]
        if failed:
            names = ", ".join(result.nodeid for result in failed[:3])
            kinds = "/".join(sorted({result.check for result in failed}))
            why = f"{len(failed)} of {len(results)} case(s) are {kinds}: {names}"
            why += f"; the first: {in_a_line(failed[0].diagnosis)}"
            return self.wrong(results, why), ""
        try:
            return compared(), ""
        except Caught as caught:
            if caught.accuses:
                return judging.overfit(results, caught.findings, self.policy, COMPUTE), ""
            return self._refused(results, caught.findings, "the results are not the base's"), ""
        except CandidateDied as death:
            how = str(death)
            told = judging.all_failed(results, {death.case: how}, "ERROR")
            return self.wrong(told, how.splitlines()[0]), judging.head(how)
        except NotComparable as error:
            raise BadInput(
                f"kopt cannot run the cases with the base's kernels: {error}",
                where=str(self.other),
                fix=error.fix or "keep renamed functions and modules under both names",
            ) from None

    def compare(
        self, cases: Sequence[CaseResult], versions: Versions, measurements: Measurements
    ) -> PairedResult:
        """Compare these cases; the step says after it what to do."""
        criteria = Criteria(
            [PairedMetric("step speed", "step")],
            self.policy,
            NoiseHistory.here(self.settings.workspace, cases),
            gate=self.settings.gate,
            reached_only=True,
        )
        with measurements.compare([case.nodeid for case in cases], versions) as comparison:
            paired = judge(comparison, cases, criteria)
        return replace(paired, verdict=self._with_nearby(paired))

    def without_times(self, cases: Sequence[CaseResult], timed: Verdict | None) -> Verdict:
        """Return the verdict on `timed` (None: there are none) together with interpreted cases.

        As long as there is one of those not every case is judged.
        """
        if not cases and timed:
            return timed
        why, step = judging.INTERPRETED
        why = f"{len(cases)} case(s) not judged, {some([case.nodeid for case in cases])}: {why}"
        if timed:
            why += f"; of the other cases: {timed.reason}"
        verdict = timed or judging.incomplete(self.policy, why, step)
        shapes = verdict.shapes + judging.shapes(cases, {case.nodeid for case in cases})
        update = {"decision": Decision.INCOMPLETE, "reason": why, "next_step": step}
        return verdict.model_copy(update={**update, "shapes": shapes})

    def _with_nearby(self, paired: PairedResult) -> Verdict:
        """Return the verdict with what the versions did at shapes near the declared ones."""
        nearby, verdict = paired.nearby, paired.verdict
        reached = [result for result in paired.results if result.nodeid not in paired.same]
        if wrong := [finding for finding in nearby if finding.rejects]:
            why = "the other side is right where this one is not"
            return judging.flagged(self._refused(reached, wrong, why), nearby)
        update: dict[str, Any] = {}
        if verdict.decision is not Decision.INCOMPLETE:
            update["next_step"] = self.next_steps.get(verdict.decision, "")
        narrower = [finding for finding in nearby if finding.repairs]
        if narrower and verdict.decision is Decision.ACCEPTED:
            names = judging.names_of(narrower)
            reason = f"{verdict.reason}; it supports less than the other side: {names}"
            update |= {"decision": Decision.ACCEPTED_WITH_NOTE, "reason": reason}
        return judging.flagged(verdict.model_copy(update=update), nearby)

    def _refused(
        self, results: Sequence[CaseResult], findings: Sequence[Finding], why: str
    ) -> Verdict:
        """Return the verdict on a version that cheats, or else on a wrong one; `why` begins it."""
        if cheats := judging.rejecting(findings):
            return judging.overfit(results, cheats, self.policy, COMPUTE)
        failed = {finding.where: str(finding) for finding in findings}
        failing = judging.all_failed(results, failed, "FAIL")
        reason = f"{why}: {judging.names_of(findings)}"
        return judging.flagged(self.wrong(failing, reason), findings)

    def wrong(self, results: Sequence[CaseResult], reason: str) -> Verdict:
        step = "correct what the reason names; nothing was compared"
        return judging.uncompared(results, self.policy, Decision.REPAIR, reason, step)


def without(gone: Sequence[str], new: Sequence[str], verdict: Verdict) -> Verdict:
    """Return the verdict on a change that removes cases: refused, unless it is worse as it is."""
    if not gone or not (verdict.decision.keeps or verdict.decision is Decision.INCONCLUSIVE):
        return verdict
    names = some(gone)
    renamed = f" or have a new name ({some(new)})" if new else ""
    return verdict.model_copy(
        update={
            "decision": Decision.ROLLED_BACK,
            "reason": f"{len(gone)} case(s) of the base are gone, skipped or xfailed, and nothing "
            f"says that their shapes are not slower: {names}; of the others: {verdict.reason}",
            "next_step": "bring them back, or pass --kopt-allow-removed if they are meant to go"
            + renamed,
            "removed": list(gone),
        }
    )


def _labels(shapes: Sequence[Shape]) -> str:
    return some([shape.nodeid or shape.label for shape in shapes])


def some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:3]) + (", …" if len(ids) > 3 else "")
