"""Cases once more in fresh processes, shown to nobody: one run of them, or several side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytest_kopt.cases.collector import Collector
from pytest_kopt.processes.case_processes import CaseProcesses, Listener
from pytest_kopt.processes.child import MAX_DEATHS, Child, filter_known
from pytest_kopt.processes.launcher import Starter
from pytest_kopt.processes.worker_orders import WorkerOrders


class Rerun:
    """Node ids that are run in fresh processes, replaced where they end them."""

    def __init__(
        self,
        config: pytest.Config,
        orders: WorkerOrders,
        env: Mapping[str, str],
        ids: Sequence[str],
        lives: int = MAX_DEATHS,
        copy: tuple[Path, Path] | None = None,
        starter: Starter | None = None,
        most: int = 1,
    ) -> None:
        """Prepare the run; nothing is started yet.

        A case that kills its process `lives` times is given up. With `copy`, the project's root and
        a copy of it, they run there. `starter` starts the processes (default: this host's), up to
        `most` at once.
        """
        found = self._found = Collector()
        hook = config.hook

        def collected(there: list[str]) -> Sequence[str]:
            found.collected(there)
            return filter_known(ids, there)

        def report(data: dict[str, Any]) -> None:
            found.add_report(hook.pytest_report_from_serializable(config=config, data=data))

        def collect_error(data: dict[str, Any]) -> None:
            found.add_collect_error(hook.pytest_report_from_serializable(config=config, data=data))

        listener = Listener(
            collected=collected,
            collect_error=collect_error,
            started=lambda nodeid, location: None,
            declared=found.declared,
            report=report,
            finished=lambda nodeid: None,
            died=lambda nodeid, how, times: found.died(nodeid, how, times, lives),
        )
        start = partial(Child, config, orders, env, list(ids), copy, starter)
        self._processes = CaseProcesses(start, listener, lives, most, len(ids))
        #: Ends the run from another thread.
        self.abandon = self._processes.abandon

    def run(self) -> Collector:
        """Run the cases and return what arrived."""
        self._processes.run()
        return self._found


def side_by_side(
    runs: Sequence[Rerun], places: int, done: Callable[[], None] = lambda: None
) -> list[Collector]:
    """Run them, so many at a time, and return what arrived of each; `done` is told of every end.

    What still runs is ended where one fails or this thread is interrupted.
    """

    def tell(future: Future[Collector]) -> None:
        done()

    # A process that one of its threads started ends with that thread: they stay to the end.
    with ThreadPoolExecutor(places) as pool:
        futures = [pool.submit(each.run) for each in runs]
        try:
            for future in futures:
                future.add_done_callback(tell)
            ended, _ = wait(futures, return_when=FIRST_EXCEPTION)
            # What went wrong in one run comes before what that does to the others.
            for future in ended:
                future.result()
        finally:
            for each in runs:
                each.abandon()
    return [future.result() for future in futures]
