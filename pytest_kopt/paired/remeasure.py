"""A re-measurement: the cases of a round once more, in one fresh process, shown to nobody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytest_kopt.cases.collector import Collector
from pytest_kopt.processes.case_processes import CaseProcesses, Listener
from pytest_kopt.processes.child import MAX_DEATHS, Child, filter_known
from pytest_kopt.processes.launcher import Starter
from pytest_kopt.processes.worker_orders import WorkerOrders


def measure_again(
    config: pytest.Config,
    orders: WorkerOrders,
    env: Mapping[str, str],
    ids: Sequence[str],
    lives: int = MAX_DEATHS,
    copy: tuple[Path, Path] | None = None,
    starter: Starter | None = None,
) -> Collector:
    """Run the node ids once more in one fresh process and return what arrived.

    A case that kills its process `lives` times is given up. With `copy`, the project's root and a
    copy of it, they run there. `starter` starts the process (default: this host's).
    """
    collector = Collector()

    def report(data: dict[str, Any]) -> None:
        collector.add_report(config.hook.pytest_report_from_serializable(config=config, data=data))

    def collected(found: list[str]) -> Sequence[str]:
        collector.collected(found)
        return filter_known(ids, found)

    listener = Listener(
        collected=collected,
        collect_error=lambda data: collector.add_collect_error(
            config.hook.pytest_report_from_serializable(config=config, data=data)
        ),
        started=lambda nodeid, location: None,
        declared=collector.declared,
        report=report,
        finished=lambda nodeid: None,
        died=lambda nodeid, how, times: collector.died(nodeid, how, times, lives),
    )
    start = partial(Child, config, orders, env, list(ids), copy, starter)
    CaseProcesses(start, listener, lives).run()
    return collector
