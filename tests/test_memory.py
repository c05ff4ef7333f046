from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_kopt.campaign import ledger
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.campaign.state import CampaignState, fold
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.roofline import Roofline
from pytest_kopt.show.files import projections
from tests.builders import NOW, attempt_events, few_examples
from tests.campaigns import campaign_at, lines_of, record, status_of

S2_FIELDS = {
    *("performance", "optimization", "profile_evidence", "correctness", "isa_metric_progress"),
    *("search_log", "pitfalls_and_fixes", "references", "quality_gate", "git_commit_hash"),
    "masked",
}
ROOFLINE = Roofline(
    label="case256",
    way="forward",
    bound="memory",
    achieved_pct=42.0,
    sources=["hbm_bandwidth: 4.8 TB/s <- knowledge/hardware/sm_90/spec.yaml:H200.hbm_bandwidth"],
)
BLOCKED = Roofline(label="case512", way="forward", bound="UNKNOWN", unknown=["l2: UNKNOWN"])


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    found = campaign_at(tmp_path)
    record(found, 1, Decision.BASELINE, rates=(100.0, 200.0))
    record(
        found,
        2,
        Decision.ACCEPTED,
        rates=(200.0, 400.0),
        rooflines=[ROOFLINE, BLOCKED],
        change="wider loads",
        bucket="K2",
        expected="+50 %",
        evidence="ncu: half of the requests are partial",
    )
    record(found, 3, Decision.REPAIR, change="bigger tiles")
    record(
        found, 3, Decision.ROLLED_BACK, change="bigger tiles", root_cause="spills", lesson="stay"
    )
    return found


def read(campaign: Campaign, version: int) -> dict[str, object]:
    document: dict[str, object] = json.loads(campaign.layout.memory(version).read_text())
    return document


def test_every_decided_round_is_remembered_with_s2s_fields(campaign: Campaign) -> None:
    for version in (0, 1, 2):
        document = read(campaign, version)
        assert set(document) == S2_FIELDS | {"version", "round", "timestamp"}
        assert document["version"] == f"v{version}"
    assert not campaign.layout.memory(3).exists()


def test_what_was_measured_and_noted_is_in_it(campaign: Campaign) -> None:
    document = read(campaign, 1)
    performance = document["performance"]
    assert isinstance(performance, dict)
    assert performance["tflops"] == pytest.approx(300.0)
    assert performance["bandwidth_gbps"] is None
    total = campaign.state.rounds[2].last.verdict().aggregate
    assert total is not None
    assert performance["comparison_with_previous"]["change_pct"] == total.change_pct
    micros = 2 * 256**3 / 200e12 * 1e6
    assert performance["latency_us_by_shape"]["case256"] == pytest.approx(micros)
    assert document["optimization"] == {
        "action_category": "K2",
        "action_description": "wider loads",
        "expected_impact": "+50 %",
        "risks_and_rollback": None,
    }
    assert document["correctness"] == {"rel_err": pytest.approx(0.01), "status": "PASS"}
    assert document["isa_metric_progress"] == [
        {
            "metric": f"{label} forward: share of the attainable rate (%)",
            "target": 90.0,
            "current": current,
            "met": False,
        }
        for label, current in (("case256", 42.0), ("case512", None))
    ]
    (reference,) = document["references"]  # type: ignore[misc]
    assert reference["path_or_url"] == ROOFLINE.sources[0]  # type: ignore[has-type]
    assert document["quality_gate"] == {"result": "PASS", "failure_reason": None}


def test_an_unknown_fact_and_every_failure_is_a_pitfall(campaign: Campaign) -> None:
    (unknown,) = read(campaign, 1)["pitfalls_and_fixes"]  # type: ignore[misc]
    assert unknown["error_message"] == "l2: UNKNOWN"  # type: ignore[has-type]
    failed, rolled_back = read(campaign, 2)["pitfalls_and_fixes"]  # type: ignore[misc]
    assert failed["error_type"] == "accuracy"  # type: ignore[has-type]
    assert failed["error_message"] != rolled_back["error_message"]  # type: ignore[has-type]
    assert rolled_back["root_cause"] == "spills"  # type: ignore[has-type]
    assert rolled_back["lesson"] == "stay"  # type: ignore[has-type]


def test_it_is_rebuilt_from_ledger_and_evidence(campaign: Campaign) -> None:
    campaign.mask([2], masked=True)
    projections.refresh(campaign)
    before = {path.name: path.read_text() for path in campaign.layout.memory(0).parent.iterdir()}
    assert json.loads(before["v2.json"])["masked"] is True
    for path in campaign.layout.memory(0).parent.iterdir():
        path.unlink()
    campaign.layout.shown.unlink()
    projections.refresh(Campaign(campaign.layout, campaign.root))
    after = {path.name: path.read_text() for path in campaign.layout.memory(0).parent.iterdir()}
    assert after == before


def test_what_a_kill_left_unwritten_is_made_up_for(campaign: Campaign) -> None:
    projections.refresh(campaign)
    campaign.note(3, Notes(lesson="a lesson that came late"))
    # Here the session that noted it was killed.
    later = Campaign(campaign.layout, campaign.root)
    projections.refresh(later)
    assert "a lesson that came late" in campaign.layout.summary(3).read_text()
    assert campaign.layout.shown.read_text() == f"{later.state.events}\n"


@pytest.mark.parametrize("content", [b"", b"-1", b"7" * 5000, b"\xff\xfe", b"99"])
def test_a_count_that_cannot_be_is_no_count(campaign: Campaign, content: bytes) -> None:
    projections.refresh(campaign)
    campaign.layout.shown.write_bytes(content)
    campaign.layout.summary(2).unlink()
    projections.refresh(campaign)
    assert campaign.layout.summary(2).is_file()


def test_a_masked_round_is_no_part_of_the_status(campaign: Campaign) -> None:
    campaign.mask([2], masked=True)
    document = status_of(campaign)
    assert [item["round"] for item in document["rounds"]] == [1, 2]
    assert document["masked"] == ["v2"]
    assert document["next_round"] == 4, "its number stays taken"
    assert "masked, not shown: v2 (v0 is round 1)" in lines_of(document)
    campaign.mask([2], masked=False)
    assert [item["round"] for item in status_of(campaign)["rounds"]] == [1, 2, 3]


def state_of(decisions: list[Decision], masked: list[int]) -> CampaignState:
    events: list[ledger.AnyEvent] = [*attempt_events(1, Decision.BASELINE)]
    for number, decision in enumerate(decisions, start=2):
        events += attempt_events(number, decision)
    events.append(ledger.Masking(time=NOW, versions=masked, masked=True))
    return fold(events)


closed = st.sampled_from([Decision.ACCEPTED, Decision.ROLLED_BACK, Decision.INCONCLUSIVE])


@few_examples
@given(st.lists(closed, min_size=2, max_size=12), st.sets(st.integers(1, 12)), st.integers(0, 99))
def test_a_restart_masks_half_never_the_baseline_nor_the_best(
    decisions: list[Decision], masked: set[int], seed: int
) -> None:
    state = state_of(decisions, sorted(v for v in masked if v <= len(decisions)))
    best = state.rounds[state.incumbent_round or 1].version
    free = {round.version for round in state.decided_rounds()} - state.masked - {0, best}
    drawn = state.half(seed)
    assert set(drawn) <= free
    assert len(free) / 2 <= len(drawn) <= len(free) / 2 + 0.5
    assert state.half(seed) == drawn, "the seed is all there is to it"


def test_different_seeds_draw_differently() -> None:
    state = state_of([Decision.ROLLED_BACK] * 10, [])
    assert len({tuple(state.half(seed)) for seed in range(10)}) > 1
