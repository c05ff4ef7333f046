"""The same tree under two interpreters: what another torch or Triton does to its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_kopt import policies
from pytest_kopt.cases.collector import Collector
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.options.settings import Settings
from pytest_kopt.paired.arms import CandidateDied, NotComparable, Versions
from pytest_kopt.paired.noise import Known
from pytest_kopt.paired.pairing import PairedMetric, judge
from pytest_kopt.paired.replica import Caught
from pytest_kopt.processes.toolchain import Toolchain
from pytest_kopt.processes.worker_orders import WorkerOrders
from pytest_kopt.show.standing import Closing
from pytest_kopt.show.words import gate_outcome
from pytest_kopt.trials import judging
from pytest_kopt.trials.trial import Measurements, Trial

_NEXT = {
    Decision.ACCEPTED: "",
    Decision.ACCEPTED_WITH_NOTE: "mind the slower case",
    Decision.ROLLED_BACK: "this environment makes a case slower",
    Decision.INCONCLUSIVE: "not decided: run it again, on a quieter machine if there is one",
}
_STEP = PairedMetric("step speed", "step")


class Toolchains(Trial):
    """`--kopt-base-python PATH`: this interpreter against another one; leaves nothing behind."""

    def __init__(self, config: pytest.Config, settings: Settings, session: WorkerOrders) -> None:
        assert settings.base_python is not None
        self._settings = settings
        self._policy = policies.load(settings.policy or "primus")
        self._other = Toolchain.at(settings.base_python, config.rootpath)
        self._orders = replace(session, cases_only=True, compared=True)
        root = config.rootpath.resolve()
        self._versions = Versions(root, (root, root), (), other=self._other)

    @property
    def title(self) -> str:
        return f"this interpreter against {self._other}, policy {self._policy.name}"

    def versions(self) -> Versions:
        return self._versions

    def orders(self, session: WorkerOrders) -> WorkerOrders:
        return self._orders

    def begin(self) -> str:
        """Nothing has to be built or held."""
        return ""

    def check_collection(self, ids: Sequence[str], collector: Collector, filtered: bool) -> None:
        """Raise BadInput where there is no case."""
        judging.check_some(ids, collector, "--kopt-base-python")

    def close(
        self, collector: Collector, measurements: Measurements, interrupted: str = ""
    ) -> Closing:
        """Judge; nothing is recorded or changed."""
        judging.refuse(collector.refusals)
        judging.fail_rows_of_failed_tests(collector)
        verdict = judging.cut_off(collector, None, interrupted, self._policy)
        verdict = verdict or self._judge(collector, measurements)
        told = {
            "base": str(self._other.python),
            "outcome": gate_outcome(verdict),
            "thresholds": self._policy.model_dump(mode="json"),
            "next_step": _NEXT.get(verdict.decision, verdict.next_step),
        }
        verdict = judging.flagged(verdict, [f"the base is {self._other}"])
        return Closing(verdict.model_copy(update=told))

    def _judge(self, collector: Collector, measurements: Measurements) -> Verdict:
        results = collector.in_order()
        failed = [result.nodeid for result in results if result.check != "PASS"]
        if failed:
            why = f"{len(failed)} of {len(results)} case(s) fail here: {failed[0]}"
            return judging.uncompared(results, self._policy, Decision.REPAIR, why, "mend them")
        if judging.is_interpreted(results):
            return judging.incomplete(self._policy, *judging.INTERPRETED)
        known = Known.here(self._settings.workspace, results)
        try:
            ids = [result.nodeid for result in results]
            with measurements.compare(ids, self._versions) as comparison:
                gate = self._settings.gate
                return judge(comparison, results, [_STEP], self._policy, known, gate=gate).verdict
        except Caught as caught:
            return judging.overfit(results, caught.findings, self._policy)
        except (NotComparable, CandidateDied) as error:
            raise BadInput(
                f"the cases cannot be measured there: {error}",
                where=f"--kopt-base-python {self._other.python}",
                legal="an environment in which they run",
            ) from None
