"""A session that finds no idle GPU (S4): what it leaves, and that a kill leaves all or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.recording import record_no_idle_gpu
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.devices.idle import AllGpusBusy
from pytest_kopt.show.files import projections
from tests.campaigns import campaign_at, lines_of, record, status_of
from tests.crash import Steps
from tests.driven_campaign import DrivenCampaign, made_quick

BUSY = AllGpusBusy(60.0, ["GPU-1 (NVIDIA H200): process 1037 (python3); utilisation 97 %"])


def waited(campaign: Campaign) -> None:
    """Record what a session does that finds no idle GPU."""
    record_no_idle_gpu(campaign, BUSY, final=False)
    projections.refresh(campaign)


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    found = campaign_at(tmp_path, policy="kernel-opt")
    record(found, 1, Decision.BASELINE)
    record(found, 2, Decision.ACCEPTED)
    record(found, 3, Decision.ROLLED_BACK, change_pct=-9.0, hypothesis="more stages")
    return found


def test_performance_md_says_who_was_in_the_way_what_is_best_and_what_failed(
    campaign: Campaign,
) -> None:
    waited(campaign)
    text = (campaign.root / "performance.md").read_text()
    summary = text.partition("## Stop Summary: c\n")[2]
    assert "- Stop reason: no idle GPU, none within 60 minutes at " in summary
    assert "for round 4; in the way: GPU-1 (NVIDIA H200): process 1037 (python3)" in summary
    assert "- Best: round-2, commit -" in summary
    assert "| round-3 attempt 1 |" in summary and "more stages" in summary


def test_the_termination_check_tells_it_until_something_is_measured(campaign: Campaign) -> None:
    waited(campaign)
    log = campaign.layout.optimize_log.read_text()
    assert log.count("- no idle GPU: ✅ (none within 60 minutes at") == 1
    assert "-> Satisfied condition(s): no idle GPU" in log and "## Stop Summary" in log
    document = status_of(campaign)
    assert document["next_round"] == 4 and "kopt-round 4" in document["next"]
    shown = [line for line in lines_of(document) if line.startswith("- no idle GPU")]
    assert "process 1037 (python3)" in shown[0] and "run it again" in shown[0]
    record(campaign, 4, Decision.ACCEPTED)
    assert not any("process 1037" in line for line in lines_of(status_of(campaign)))
    assert campaign.layout.optimize_log.read_text().startswith(log)


def test_what_came_later_does_not_change_what_was_told(campaign: Campaign) -> None:
    waited(campaign)
    path = campaign.root / "performance.md"
    told = path.read_text().partition("<!-- c no-idle-gpu-1 -->")[2]
    record(campaign, 4, Decision.ROLLED_BACK, change_pct=-9.0)
    record(campaign, 5, Decision.ACCEPTED)
    path.unlink()
    projections.refresh(campaign)
    assert told in path.read_text()


def test_a_wait_before_the_baseline(tmp_path: Path) -> None:
    campaign = campaign_at(tmp_path, policy="kernel-opt")
    waited(campaign)
    assert "- Best: -, commit -" in (tmp_path / "performance.md").read_text()
    assert "No measured regression" in campaign.layout.optimize_log.read_text()
    assert status_of(campaign)["next_round"] == 1


def test_every_wait_leaves_its_own_entry(campaign: Campaign) -> None:
    waited(campaign)
    waited(campaign)
    assert (campaign.root / "performance.md").read_text().count("## Stop Summary") == 2


def test_other_policies_write_no_performance_md(tmp_path: Path) -> None:
    campaign = campaign_at(tmp_path)
    waited(campaign)
    assert not (tmp_path / "performance.md").exists()


def started(root: Path) -> DrivenCampaign:
    project = DrivenCampaign(root, {"kernels/a.py": b"OLD = 1\n"}, in_git=False)
    assert project.play("equal").verdict
    project.write("kernels/a.py", b"NEW = 1\n")
    return project


def test_a_kill_leaves_the_wait_or_nothing_and_the_round_goes_on(tmp_path: Path) -> None:
    with made_quick(in_git=False):
        begun = started(tmp_path / "begun")
        before, seen = begun.ledger(), set()
        for project in begun.deaths(
            tmp_path, lambda here, steps: here.find_no_idle_gpu(BUSY, steps)
        ):
            assert project.kernel() == {"kernels/a.py": b"NEW = 1\n"}
            events = [event["event"] for event in project.news(before)]
            assert events in ([], ["no_idle_gpu"]), project.root
            ran = project.play("faster")
            assert ran.verdict and (ran.verdict.round, ran.verdict.attempt) == (2, 1), ran
            log = project.layout.optimize_log.read_text()
            assert log.count("<!-- no-idle-gpu-1 -->") == len(events), project.root
            seen.add(len(events))
        assert seen == {0, 1}


def test_nothing_is_recorded_while_another_session_holds_the_campaign(tmp_path: Path) -> None:
    project = started(tmp_path / "project")
    before = project.ledger()
    with project.opened().locked():
        ran = project.find_no_idle_gpu(BUSY, Steps(project.root))
    assert not ran.refusal and project.ledger() == before
