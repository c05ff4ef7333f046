"""The second process that collects at the baseline."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_kopt.cases.replies import Collected
from pytest_kopt.session import supervisor


class Twin:
    """A process that collected other ids than the cases' own."""

    def __init__(self, *_: object, **__: object) -> None:
        self.calls: list[str] = []

    def receive(self) -> Collected:
        self.calls.append("collected")
        return Collected(ids=["t.py::t[at 0x2]"])

    def dismiss(self) -> None: ...
    def kill(self) -> None: ...
    def stop(self) -> None: ...


@pytest.mark.parametrize(("kind", "has_measured"), [("cpu", False), ("cuda", True)])
def test_on_a_gpu_the_baseline_does_not_wait_for_the_second_collection(
    kind: str, has_measured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ids are compared all the same, before anything is recorded."""
    measured = []

    def run(self: supervisor.Supervisor, *_: object) -> None:
        self.collected(["t.py::t[at 0x1]"])
        measured.append(True)

    monkeypatch.setattr(supervisor, "Child", Twin)
    monkeypatch.setattr(supervisor.Supervisor, "run", run)
    controller: Any = SimpleNamespace(
        measurements=SimpleNamespace(
            environment={},
            checkers=1,
            checker=None,
            foreseen=(),
            in_their_order=lambda ids: ids,
            sites=SimpleNamespace(here=SimpleNamespace(kind=kind), asked=[]),
        ),
        orders=SimpleNamespace(expected=None),
        settings=SimpleNamespace(round=1),
        trial=object(),
        collected=lambda ids: ids,
        ended_by=lambda error: None,
        is_settled=False,
        collector=SimpleNamespace(startup_death=""),
    )
    config: Any = SimpleNamespace(pluginmanager=SimpleNamespace(get_plugin=lambda name: None))
    cases = supervisor.Supervisor(config, controller)
    monkeypatch.setattr(cases, "collector", SimpleNamespace(collect_errors=[]))
    session: Any = SimpleNamespace(testscollected=0, shouldfail=False, shouldstop=False)
    with pytest.raises(pytest.UsageError, match="test ids differ between two processes"):
        cases.pytest_runtestloop(session)
    assert bool(measured) is has_measured
