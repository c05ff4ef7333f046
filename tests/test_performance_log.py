from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history.stops import REGRESSIONS
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.roofline import Roofline
from pytest_kopt.show.files import projections
from tests.campaigns import KERNEL, campaign_at, lines_of, record, status_of

COLUMNS = (
    "Date | Commit | Status | Round | Benchmark command | Target | Kernel | Benchmark "
    "| GPU time (us) | vs best | Explanation"
)


def tables(text: str) -> list[dict[str, str]]:
    """The rows of all tables of the results, each by column."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        header, _, *rows = (
            [cell.strip() for cell in line.strip("| ").split("|")] for line in block.splitlines()
        )
        if " | ".join(header) == COLUMNS:
            found += [dict(zip(header, row, strict=True)) for row in rows]
    return found


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    return campaign_at(tmp_path, policy="kernel-opt", benchmark_command="python bench.py")


def text_of(campaign: Campaign) -> str:
    return (campaign.root / "performance.md").read_text()


def test_it_holds_the_baseline_and_what_was_kept_and_nothing_else(campaign: Campaign) -> None:
    record(campaign, 1, Decision.BASELINE)
    record(campaign, 2, Decision.ROLLED_BACK, change_pct=-9.0)
    record(campaign, 3, Decision.REPAIR)
    record(campaign, 3, Decision.ACCEPTED, change="wider loads", key_finding="narrow before")
    record(campaign, 4, Decision.INCONCLUSIVE)
    record(campaign, 5, Decision.REJECTED_OVERFIT)
    record(campaign, 6, Decision.ACCEPTED_WITH_NOTE, target_class="M=16", change_pct=2.5)
    text = text_of(campaign)
    assert text.splitlines()[2].startswith(f"| {COLUMNS.split(' | ')[0]}")
    found = tables(text)
    assert [(row["Status"], row["Round"]) for row in found] == [
        ("baseline", "c round-1"),
        ("keep", "c round-3"),
        ("keep", "c round-6"),
    ]
    assert found[1]["Benchmark"] == "Forward TFLOPS 100.0"
    assert found[1]["vs best"] == "+1.00 %"
    assert found[1]["Explanation"] == "wider loads; narrow before"
    assert found[1]["Benchmark command"] == "python bench.py"
    assert [row["Target"] for row in found] == ["global", "global", "M=16"]


def test_it_only_grows_and_is_written_once(campaign: Campaign) -> None:
    text = ""
    for number, decision in enumerate(
        (Decision.BASELINE, Decision.ACCEPTED, Decision.ROLLED_BACK, Decision.ACCEPTED), start=1
    ):
        record(campaign, number, decision)
        assert text_of(campaign).startswith(text)
        text = text_of(campaign)
    projections.refresh(campaign)
    assert text_of(campaign) == text
    (campaign.root / "performance.md").unlink()
    projections.refresh(campaign)
    assert text_of(campaign) == text


def test_campaigns_of_one_project_share_it(tmp_path: Path) -> None:
    one, two = (campaign_at(tmp_path, name, policy="kernel-opt") for name in ("one", "two"))
    record(one, 1, Decision.BASELINE)
    record(two, 1, Decision.BASELINE)
    record(one, 2, Decision.ACCEPTED)
    found = [row["Round"] for row in tables(text_of(one))]
    assert found == ["one round-1", "two round-1", "one round-2"]


def test_what_somebody_wrote_stays_and_the_table_begins_anew(campaign: Campaign) -> None:
    (campaign.root / "performance.md").write_text("# Mine\n\nSome prose.\n")
    record(campaign, 1, Decision.BASELINE)
    assert text_of(campaign).startswith("# Mine\n\nSome prose.\n\n| Date")
    record(campaign, 2, Decision.ACCEPTED)
    assert text_of(campaign).count("| Date") == 1
    assert len(tables(text_of(campaign))) == 2


def test_no_other_policy_writes_it(tmp_path: Path) -> None:
    campaign = campaign_at(tmp_path)
    record(campaign, 1, Decision.BASELINE)
    assert not (tmp_path / "performance.md").exists()


@pytest.fixture
def stopped(campaign: Campaign) -> Campaign:
    record(campaign, 1, Decision.BASELINE)
    for number in range(2, 7):
        record(campaign, number, Decision.ROLLED_BACK, change_pct=-9.0, hypothesis=f"idea {number}")
    return campaign


def test_the_stop_summary_says_why_and_lists_the_last_five(stopped: Campaign) -> None:
    summary = text_of(stopped).partition("## Stop Summary: c\n")[2]
    assert "- Stop reason: 5 measured regressions in a row" in summary
    assert "- Best: round-1, commit -" in summary
    assert "- Best metrics: Forward TFLOPS 100.0" in summary
    rows = [line for line in summary.splitlines() if line.startswith("| round-")]
    assert len(rows) == 5
    for number, row in enumerate(rows, start=2):
        assert f"round-{number} attempt 1" in row and f"idea {number}" in row and "-9.00 %" in row


def test_the_log_has_the_summary_and_the_check_under_any_policy(tmp_path: Path) -> None:
    campaign = campaign_at(tmp_path)
    record(campaign, 1, Decision.BASELINE)
    for number in range(2, 7):
        assert "Termination Check" not in campaign.layout.optimize_log.read_text()
        record(campaign, number, Decision.ROLLED_BACK, change_pct=-9.0)
    log = campaign.layout.optimize_log.read_text()
    assert "- regressions in a row: ✅ (5 of 5, measured)" in log
    assert log.index("## Termination Check") < log.index("## Stop Summary")
    campaign.layout.optimize_log.unlink()
    projections.refresh(campaign)
    assert campaign.layout.optimize_log.read_text() == log


def test_a_campaign_that_goes_on_appends_after_its_stop(stopped: Campaign) -> None:
    before = text_of(stopped)
    record(stopped, 7, Decision.ACCEPTED)
    assert text_of(stopped).startswith(before)
    assert [row["Round"] for row in tables(text_of(stopped))] == ["c round-1", "c round-7"]
    (stopped.root / "performance.md").unlink()
    projections.refresh(stopped)
    assert [row["Round"] for row in tables(text_of(stopped))] == ["c round-1", "c round-7"]
    assert text_of(stopped).startswith(before)


def test_the_status_says_it_has_ended_and_what_is_still_allowed(stopped: Campaign) -> None:
    document = status_of(stopped)
    json.dumps(document)
    assert document["next_round"] is None
    assert document["next"].startswith("the campaign ends here; to go on: review")
    assert document["counters"] == {
        "accepted": 0,
        "rolled_back": 5,
        "by_decision": {"BASELINE": 1, "ROLLED_BACK": 5},
        "rollbacks_in_a_row": 5,
        "regressions_in_a_row": 5,
        "max_regressions": 5,
    }
    assert [item["round"] for item in document["recent_regressions"]] == [2, 3, 4, 5, 6]
    held = [item["name"] for item in document["termination_check"] if item["holds"]]
    assert held == [REGRESSIONS]
    assert document["allowed"] == ["kopt advise c", "kopt report c", "kopt stop c"]
    text = "\n".join(lines_of(document))
    assert "measured regressions in a row: 5 of 5" in text
    assert "round 6: Forward TFLOPS - -> 100.0 (-9.00 %): idea 6" in text
    assert "- regressions in a row: ✅" in text
    assert "First, compare the kernel with the best public one" in text


def test_the_hardware_efficiency_of_the_last_accepted_round_ends_a_campaign(
    campaign: Campaign,
) -> None:
    def reaching(pct: float) -> list[Roofline]:
        return [Roofline(label="a", way="forward", bound="memory", achieved_pct=pct)]

    record(campaign, 1, Decision.BASELINE, rooflines=reaching(70.0))
    record(campaign, 2, Decision.ROLLED_BACK, rooflines=reaching(95.0))
    assert status_of(campaign)["next_round"] == 3
    record(campaign, 3, Decision.ACCEPTED, rooflines=reaching(92.0))
    assert status_of(campaign)["next_round"] is None
    log = campaign.layout.optimize_log.read_text()
    assert "- T2 hardware efficiency: ✅ (92.0 % of the attainable rate, asked for 90 %)" in log
    assert "-> Satisfied condition(s): T2" in log


def test_the_status_of_a_campaign_that_goes_on(campaign: Campaign) -> None:
    record(campaign, 1, Decision.BASELINE)
    record(campaign, 2, Decision.ACCEPTED, change="wider loads")
    record(campaign, 3, Decision.ROLLED_BACK, hypothesis="more stages", lesson="LDS is full")
    (campaign.root / KERNEL).write_text("VERSION = 4\n")
    document = status_of(campaign)
    assert document["next_round"] == 4
    assert document["stagnation"] is None
    assert document["allowed"][:2] == [
        "pytest --kopt-campaign c --kopt-round 4",
        "kopt restore c 2 && pytest --kopt-campaign c --kopt-round final",
    ]
    text = "\n".join(lines_of(document))
    for line in ("tried: wider loads", "tried: more stages", "learned: LDS is full"):
        assert f"      {line}" in text.splitlines()
    assert "-> Satisfied condition(s): none" in text
    record(campaign, 4, Decision.INCONCLUSIVE)
    assert status_of(campaign)["stagnation"]["action"].startswith("list what")


def test_logs_only_grow_over_dozens_of_rounds(tmp_path: Path) -> None:
    campaign = campaign_at(tmp_path, policy="kernel-opt", max_iterations=37)
    layout = campaign.layout
    files = (layout.trend, layout.optimize_log, tmp_path / "performance.md")
    record(campaign, 1, Decision.BASELINE)
    before = [path.read_bytes() if path.exists() else b"" for path in files]
    ends = {}
    for number in range(2, 39):
        slower = number % 9 > 2
        decision = Decision.ROLLED_BACK if slower else Decision.ACCEPTED
        if number % 9 == 6:
            decision = Decision.INCONCLUSIVE
        record(campaign, number, decision, change_pct=-9.0 if slower else 3.0)
        now = [path.read_bytes() if path.exists() else b"" for path in files]
        assert all(new.startswith(old) for new, old in zip(now, before, strict=True))
        before = now
        verdict = campaign.state.rounds[number].verdict
        assert verdict is not None
        if verdict.stops:
            ends[number] = list(verdict.stops)
    assert ends == {38: ["T3"]}
    assert status_of(campaign)["next_round"] is None
