"""Cases once more in fresh processes, shown to nobody: one run of them, or several side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

import pytest

from pytest_kopt.cases.collector import Collector
from pytest_kopt.processes.case_processes import CaseProcesses, Listener
from pytest_kopt.processes.child import MAX_DEATHS, Child


class Rerun(Listener):
    """Node ids that are run in fresh processes, replaced where they end them."""

    def __init__(
        self,
        config: pytest.Config,
        start: Callable[[], Child],
        ids: Sequence[str],
        most: int = 1,
        lives: int = MAX_DEATHS,
    ) -> None:
        """Prepare the run in processes by `start`, up to `most` at once; none is started yet."""
        super().__init__(config, Collector(), lives)
        self._ids = ids
        self._processes = CaseProcesses(start, self, most, len(ids))
        #: Ends the run from another thread.
        self.abandon = self._processes.abandon

    def collected(self, ids: list[str]) -> Sequence[str]:
        collected = {*super().collected(ids)}
        return [nodeid for nodeid in self._ids if nodeid in collected]

    def run(self) -> Collector:
        self._processes.run()
        return self.collector


class SideBySide:
    """Runs that go on, a limited number at a time, while others are waited for."""

    def __init__(self, runs: Sequence[Rerun], places: int) -> None:
        self._runs = runs
        # A process that one of its threads started ends with that thread: they stay to the end.
        self._pool = ThreadPoolExecutor(places)
        self._futures = [self._pool.submit(run.run) for run in runs]

    def wait(self, progress: Callable[[], None] = lambda: None) -> list[Collector]:
        """Return what arrived of each; `progress` hears of every end. A failure ends all."""
        try:
            for future in self._futures:
                future.add_done_callback(lambda _: progress())
            ended, _ = wait(self._futures, return_when=FIRST_EXCEPTION)
            # What went wrong in one run comes before what that does to the others.
            for future in ended:
                future.result()
        finally:
            self.end()
        return [future.result() for future in self._futures]

    def end(self) -> None:
        for run in self._runs:
            run.abandon()
        self._pool.shutdown(cancel_futures=True)
