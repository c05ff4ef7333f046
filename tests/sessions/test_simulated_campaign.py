"""Campaigns that end and go on: the stops, in sessions, and a hundred rounds and more."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest

from pytest_kopt.cli.main import main

from .project import CAMPAIGN, KERNEL, Project
from .simulated import Simulation
from .sources import doubled_kernel


@pytest.mark.long
def test_regressions_in_a_row_end_a_campaign_until_the_limit_is_raised(fresh: Project) -> None:
    played = Simulation(fresh, max_regressions=2)
    played.baseline()
    assert "Termination Check" not in played.play("regression").out
    run = played.play("regression")
    end = run.out.partition("Termination Check")[2]
    assert "- regressions in a row: ✅ (2 of 2, measured)" in end
    assert "to go on: review the directions" in end
    played.refused("regressions in a row (2 of 2, measured)", "max_regressions", "--kopt-policy")
    summary = fresh.read("performance.md").partition("## Stop Summary")[2]
    assert summary.count("| round-") == 2

    fresh.write("patient.yaml", "base: kernel-opt\nmax_repairs: 1\nmax_regressions: 50\n")
    run = played.play("keep", "--kopt-policy", "patient.yaml")
    assert "Termination Check" not in run.out
    shown = fresh.git("show", "--name-only", "--format=%s", "HEAD").split()
    assert shown[-2:] == [KERNEL, "performance.md"]
    assert fresh.git("status", "--porcelain", "--", "performance.md") == ""
    assert "the one that adds this line" in fresh.git("show", "HEAD:performance.md")


def test_a_target_and_a_limit_end_a_campaign_until_they_are_raised(started: Project) -> None:
    started.edit_manifest(performance_target=">7 GB/s", max_iterations=1)
    started.write(KERNEL, doubled_kernel(187.5))
    run = started.play(2)
    assert run.code == 0, run.text
    end = run.out.partition("Termination Check")[2]
    assert "T1 performance_target: ✅ (Combined Step GB/s is" in end
    assert "T3 max_iterations reached: ✅ (1 of 1 rounds after the baseline)" in end
    assert "-> Satisfied condition(s): T1, T3" in end and "--kopt-round final" in end
    log = (started.campaign / "logs/optimize.md").read_text()
    assert "-> Satisfied condition(s): T1, T3" in log.partition("## Termination Check")[2]
    document = json.loads(started.kopt("status", "--json").out)
    assert document["next_round"] is None
    assert not any("--kopt-round 3" in command for command in document["allowed"])

    slower = doubled_kernel(312.5)
    started.write(KERNEL, slower)
    before = started.contents()
    run = started.play(3)
    assert run.code == 4 and "T1" in run.refusal and "T3" in run.refusal
    assert "set a higher performance_target" in run.refusal
    assert "raise max_iterations" in run.refusal
    assert started.contents() == before

    started.edit_manifest(performance_target=">700 GB/s", max_iterations=3)
    assert started.play(3).code == 8
    events = [event["event"] for event in started.ledger()]
    assert events.count("manifest_changed") == 2


#: Regressions in rows of one to four, each ended by something else.
_ENDINGS = itertools.cycle(["keep", "tie", "bench failure", "keep", "failed repairs", "repaired"])
_ROWS = itertools.cycle([1, 4, 2, 3])


def next_row() -> list[str]:
    return [*["regression"] * next(_ROWS), next(_ENDINGS)]


@pytest.mark.long
def test_119_rounds(fresh: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stop fires where it should, and only there; logs grow, the chain holds."""
    last = 119
    played = Simulation(
        fresh, max_regressions=5, max_iterations=last - 1, performance_target=">9.1 GB/s"
    )
    played.baseline()
    patient: tuple[str, ...] = ()
    stops = []
    kinds: Iterator[str] = iter([])
    while True:
        state = played.campaign.state
        verdict = state.rounds[max(state.rounds)].verdict
        assert verdict is not None
        if "regressions in a row" in verdict.stops and not patient:
            stops.append("regressions")
            played.refused("regressions in a row (5 of 5, measured)")
            fresh.write("patient.yaml", "base: kernel-opt\nmax_repairs: 1\nmax_regressions: 50\n")
            patient = ("--kopt-policy", "patient.yaml")
        if "T1" in verdict.stops:
            stops.append("T1")
            played.refused("T1 performance_target (Combined Step GB/s")
            fresh.edit_manifest(performance_target=">700 GB/s")
        if "T3" in verdict.stops:
            stops.append("T3")
            break
        if state.next_round == 40 and not patient:
            kinds = iter(["regression"] * 5)
        kind = next(kinds, None)
        if kind is None:
            kinds = iter(next_row())
            kind = next(kinds)
        played.play(kind, *patient)
    assert stops == ["regressions", "T1", "T3"]
    played.refused(f"T3 max_iterations reached ({last - 1} of {last - 1} rounds after")
    assert fresh.kopt("stop", CAMPAIGN).code == 0
    played.refused("T4 user requested stop (stopped)")

    state = played.campaign.state
    assert [item.number for item in state.decided_rounds()] == list(range(1, last + 1))
    commits = fresh.git("log", "--oneline", "--grep", r"^\[optimize\]").splitlines()
    assert len(commits) == played.accepted
    log = (fresh.campaign / "logs/optimize.md").read_text()
    assert log.count("## Termination Check") == 4 and log.count("## Stop Summary") == 1
    monkeypatch.chdir(fresh.root)
    assert main(["status", CAMPAIGN]) == 0
