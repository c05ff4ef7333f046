"""The same tree under two interpreters: what another torch or Triton does to its kernels."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_kopt.cases.collector import Collector
from pytest_kopt.cases.order import WorkerOrders
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.options.settings import Settings
from pytest_kopt.paired.arms import Versions
from pytest_kopt.processes.toolchain import Toolchain
from pytest_kopt.show.standing import Closing
from pytest_kopt.trials import judging
from pytest_kopt.trials.pull_request.gate import NEXT, VersionGate
from pytest_kopt.trials.trial import Measurements


class Toolchains(VersionGate):
    """`--kopt-base-python PATH`: this interpreter against another one."""

    option = "--kopt-base-python"
    other: Toolchain
    next_steps = NEXT | {Decision.ROLLED_BACK: "this environment makes a case slower"}

    def __init__(self, config: pytest.Config, settings: Settings, session: WorkerOrders) -> None:
        assert settings.base_python is not None
        super().__init__(config, settings, session)
        self.other = Toolchain.at(settings.base_python, config.rootpath)
        root = config.rootpath.resolve()
        self._versions = Versions(root, (root, root), (), other=self.other)

    @property
    def title(self) -> str:
        return f"this interpreter against {self.other}, policy {self.policy.name}"

    def get_ahead(self, ids: Sequence[str], measurements: Measurements) -> None:
        measurements.get_ahead(ids, self._versions)

    def close(
        self, collector: Collector, measurements: Measurements, interrupted: str = ""
    ) -> Closing:
        verdict, detail = self.cut_off(collector, interrupted), ""
        if verdict is None:
            results = collector.in_order()
            timed, interpreted = judging.by_clock(results)

            def compared() -> Verdict:
                timed_verdict = None
                if timed:
                    timed_verdict = self.compare(timed, self._versions, measurements).verdict
                return self.without_times(interpreted, timed_verdict)

            verdict, detail = self.judged(results, compared)
        verdict = judging.flagged(verdict, [f"the base is {self.other}"])
        return self.closed(verdict, str(self.other.python), collector.in_order(), detail)
