"""The process that decides: the second one that collects at the baseline, and signals."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from pytest_kopt.cases.replies import Collected
from pytest_kopt.session import supervisor
from pytest_kopt.session.controller import Controller
from pytest_kopt.session.interruption import as_ctrl_c, interrupt


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_no_second_signal_cuts_the_record_of_an_interrupted_round(number: signal.Signals) -> None:
    heard: list[int] = []

    def close(*_: object) -> SimpleNamespace:
        signal.raise_signal(number)
        return SimpleNamespace(verdict=None)

    session = mock.Mock(trial=mock.Mock(close=close))
    session.settings = SimpleNamespace(calibrate=None, check_only=False)
    former = signal.signal(number, lambda *_: heard.append(number))
    try:
        Controller.close(session, "Ctrl-C")
        assert heard == [] and session._publish.called
        Controller.close(session)
        assert heard == [number]
    finally:
        signal.signal(number, former)


def test_a_signal_that_was_ignored_stays_so() -> None:
    """As under nohup; any other ends the session as Ctrl-C does."""
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with as_ctrl_c():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is interrupt
    finally:
        signal.signal(signal.SIGHUP, former)


@pytest.mark.parametrize("why", ["shouldfail", "shouldstop"])
def test_after_a_failure_that_ends_the_session_no_case_runs(why: str) -> None:
    """With -x, --maxfail or an interrupt of a plugin's."""
    cases = supervisor.Supervisor(mock.Mock(), mock.Mock())
    session: Any = SimpleNamespace(shouldfail=False, shouldstop=False)
    cases._session = session
    assert cases.proceed()
    setattr(session, why, "stopping after 1 failures")
    assert not cases.proceed()
