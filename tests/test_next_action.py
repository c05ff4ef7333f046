"""What `kopt status --json` asks of a program that reads nothing else."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_kopt.campaign import running
from pytest_kopt.campaign.ledger import Final
from pytest_kopt.clock import now
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.trials.harness import edited_harness
from tests.campaigns import status_of
from tests.crash import Steps
from tests.driven_campaign import CASES, NAME, RATES, DrivenCampaign

KERNEL = "kernels/a.py"


@pytest.fixture
def project(tmp_path: Path) -> DrivenCampaign:
    project = DrivenCampaign(tmp_path / "project", {KERNEL: b"OLD = 1\n"}, in_git=False)
    play(project, "equal")
    return project


def play(project: DrivenCampaign, outcome: str) -> Verdict:
    verdict = project.play(outcome).verdict
    assert verdict
    return verdict


def shown(project: DrivenCampaign) -> dict[str, Any]:
    return status_of(project.opened())


def asked(project: DrivenCampaign) -> tuple[str, dict[str, Any]]:
    action = shown(project)["next_action"]
    return action["action"], action["arguments"]


def test_an_accepted_kernel_is_no_obstacle(project: DrivenCampaign) -> None:
    """A program stops at an obstacle: a person has to mend it."""
    document = shown(project)
    assert document["obstacle"] is None and asked(project)[0] == "change_kernel"
    assert document["nothing_to_measure"].startswith("kernels: the same code as round 1")
    project.write(KERNEL, b"OLD = 1  # a comment\n")
    assert asked(project)[0] == "change_kernel" and shown(project)["edited"] == [KERNEL]
    project.write(KERNEL, b"NEW = 1\n")
    assert asked(project)[0] == "run_round" and shown(project)["nothing_to_measure"] is None
    assert Path(document["directory"]) == project.layout.directory


def test_a_kernel_that_does_not_parse_is_its_authors_to_mend(project: DrivenCampaign) -> None:
    project.write(KERNEL, b"OLD = 1\ndef broken(:\n")
    word, arguments = asked(project)
    assert word == "mend_kernel" and shown(project)["obstacle"] is None
    assert (arguments["error"]["file"], arguments["error"]["line"]) == (KERNEL, 2)
    assert arguments["round"] == 2 and arguments["kernel"] == ["kernels"]
    assert "discard" not in arguments


def test_a_repair_says_how_many_are_left_and_becomes_a_round_to_run(
    project: DrivenCampaign,
) -> None:
    project.write(KERNEL, b"NEW = 1\n")
    play(project, "wrong")
    word, arguments = asked(project)
    assert (word, arguments["round"], arguments["repairs_left"]) == ("repair", 2, 3)
    assert arguments["discard"] == f"kopt discard {NAME}" in shown(project)["allowed"]
    project.write(KERNEL, b"NEW = 2\n")
    assert asked(project)[0] == "run_round"
    play(project, "wrong")
    assert asked(project)[0] == "repair" and asked(project)[1]["repairs_left"] == 2
    project.write(KERNEL, b"OLD = 1\n")
    word, arguments = asked(project)
    assert word == "change_kernel" and "discard" in arguments, "to run it would be refused"
    assert shown(project)["next"].startswith("change the kernel: kernels: the same code")


def test_an_ended_campaign_is_compared_once(tmp_path: Path) -> None:
    """It asked for the final comparison again, whenever one was over."""
    kernel = {KERNEL: b"OLD = 1\n"}
    project = DrivenCampaign(tmp_path / "project", kernel, in_git=False, max_iterations=1)
    play(project, "equal")
    project.write(KERNEL, b"NEW = 1\n")
    play(project, "faster")
    for decision, word in (("INCOMPLETE", "run_final"), ("ACCEPTED", "stop")):
        assert asked(project)[0] == "run_final"
        done = Final(time=now(), best=2, decision=Decision(decision), reason="", evidence={})
        project.opened().append(done)
        assert asked(project)[0] == word


def test_a_final_with_an_edit_restores_the_best_first(project: DrivenCampaign) -> None:
    """It was refused, and asked for again: a program that reads nothing else did not get out."""
    project.write(KERNEL, b"NEW = 1\n")
    play(project, "faster")
    project.end("stopped", Steps(project.root))
    final = f"pytest --kopt-campaign {NAME} --kopt-round final"
    assert asked(project) == ("run_final", {"command": final})
    project.write(KERNEL, b"NEW = 1  # a comment\n")
    restoring = f"kopt restore {NAME} 2 && {final}"
    assert asked(project) == ("run_final", {"command": restoring})
    assert restoring in shown(project)["allowed"]


def test_each_state_has_its_word(tmp_path: Path) -> None:
    project = DrivenCampaign(tmp_path / "new", {KERNEL: b"OLD = 1\n"}, in_git=False)
    word, arguments = asked(project)
    assert (word, arguments["round"]) == ("run_baseline", 1)
    assert "--kopt-round 1" in arguments["command"]
    play(project, "equal")
    project.write(KERNEL, b"NEW = 1\n")
    play(project, "interrupted")
    assert (asked(project)[0], asked(project)[1]["round"]) == ("rerun", 2)
    play(project, "faster")
    project.end("stopped", Steps(project.root))
    word, arguments = asked(project)
    assert word == "run_final" and "--kopt-round final" in arguments["command"]
    project.write(CASES, (project.root / CASES).read_bytes() + b"# a comment\n")
    campaign = project.opened()
    document = status_of(campaign, harness=edited_harness(campaign))
    assert document["next_action"]["action"] == "restore_harness", "a final would be refused"


def test_nothing_is_left_of_a_campaign_that_gained_nothing(project: DrivenCampaign) -> None:
    project.end("stopped", Steps(project.root))
    assert asked(project) == ("stop", {})


def test_every_case_has_its_place_its_times_and_what_is_wrong(project: DrivenCampaign) -> None:
    """As in verdict.json, for a program that reads nothing else."""
    project.write(KERNEL, b"NEW = 1\n")
    play(project, "wrong")
    right, wrong, *_ = shown(project)["cases"]
    assert right["nodeid"] == f"{CASES}::test[0]" and right["diagnosis"] is None
    assert right["forward_ms"] == pytest.approx(1 / RATES[0], rel=0.5)
    assert wrong["check"] == "FAIL" and {"worst_index", "snr_db", "file", "line"} <= {
        *wrong["diagnosis"]
    }


def test_an_edited_harness_names_the_files_to_put_back(project: DrivenCampaign) -> None:
    project.write(KERNEL, b"NEW = 1\n")
    project.write(CASES, (project.root / CASES).read_bytes() + b"# a comment\n")
    campaign = project.opened()
    document = status_of(campaign, harness=edited_harness(campaign))
    action = document["next_action"]
    assert (action["action"], action["arguments"]["files"]) == ("restore_harness", [CASES])
    assert f"{CASES} was edited" in document["obstacle"] == action["arguments"]["obstacle"]
    assert not any("--kopt-round" in command for command in document["allowed"])


@pytest.mark.parametrize("is_committed", [False, True])
def test_an_edited_test_comes_back_by_the_command(tmp_path: Path, is_committed: bool) -> None:
    """What is committed has to be committed again: a final round compares commits."""
    project = DrivenCampaign(tmp_path / "project", {KERNEL: b"OLD = 1\n"}, in_git=True)
    play(project, "equal")
    before = (project.root / CASES).read_bytes()
    project.write(KERNEL, b"NEW = 1\n")
    project.write(CASES, before + b"# a comment\n")
    if is_committed:
        project.git("commit", "-qm", "Edit a test", "--", CASES)
    campaign = project.opened()
    action = status_of(campaign, harness=edited_harness(campaign))["next_action"]
    assert action["action"] == "restore_harness"
    command = action["arguments"]["command"]
    assert ("git commit" in command) is is_committed
    for key in ("user.name", "user.email"):
        project.git("config", key, "somebody@example.org")
    subprocess.run(command, shell=True, cwd=project.root, check=True, capture_output=True)
    assert (project.root / CASES).read_bytes() == before
    status = project.git("status", "--porcelain")
    assert f"M {KERNEL}" in status and CASES not in status
    left = edited_harness(project.opened())
    assert left is None or left["files"] == []
    assert asked(project)[0] == "run_round"


def test_while_another_session_runs_nothing_that_it_refuses_is_allowed(
    project: DrivenCampaign,
) -> None:
    project.write(KERNEL, b"NEW = 1\n")
    running.write(project.layout.running, phase="checking", pid=os.getppid())
    document = shown(project)
    told = {"pid": os.getppid(), "phase": "checking"}
    assert asked(project) == ("wait", told)
    assert document["allowed"] == [f"kopt {word} {NAME}" for word in ("advise", "report")]
    assert f"wait until process {os.getppid()}" in document["next"]
    running.write(project.layout.running, phase="checking")
    assert asked(project)[0] == "run_round", "its own session looks past itself"


def test_what_rejects_a_candidate_has_a_name(project: DrivenCampaign) -> None:
    """The name stood in sentences alone; docs/findings.md says by name what to do."""
    project.write(KERNEL, b"NEW = 1\n")
    verdict = play(project, "cheating")
    (finding,) = verdict.findings
    assert (finding.check, finding.rejects) == ("stale-result", True)
    assert verdict.reason.endswith(": stale-result")
    assert any(flag.startswith(f"stale-result: {finding.message}") for flag in verdict.flags)
    written = json.loads((project.layout.directory / "rounds/round-2/verdict.json").read_text())
    assert written["findings"][0]["check"] == "stale-result"


def test_no_command_writes_over_tests_that_were_never_committed(tmp_path: Path) -> None:
    """The baseline's commit has other ones: the round would be refused afterwards as well."""
    project = DrivenCampaign(tmp_path / "project", {KERNEL: b"OLD = 1\n"}, in_git=True)
    project.write(CASES, (project.root / CASES).read_bytes() + b"# of the baseline\n")
    play(project, "equal")
    project.write(CASES, (project.root / CASES).read_bytes() + b"# edited\n")
    campaign = project.opened()
    action = status_of(campaign, harness=edited_harness(campaign))["next_action"]
    assert action["action"] == "restore_harness" and action["arguments"]["files"] == [CASES]
    assert "command" not in action["arguments"]


def test_a_rejected_round_says_what_to_try_before_the_next_command(
    project: DrivenCampaign,
) -> None:
    project.write(KERNEL, b"NEW = 1\n")
    play(project, "slower")
    last = project.opened().state.rounds[2].verdict
    assert last is not None
    then = "change the kernel (one hypothesis), then: pytest"
    assert shown(project)["next"].startswith(f"{last.next_step}; {then}")
