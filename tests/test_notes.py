"""Notes of a round: in Markdown as in YAML, and before the round is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_kopt.campaign import notes
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.campaign.state import fold
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.errors import BadInput
from pytest_kopt.show.files import projections
from pytest_kopt.show.standing import closing_lines as standing
from tests.campaigns import campaign_at, record, status_of

WRITTEN = """\
# 4 warps instead of 8

## Hypothesis

The kernel is bound by registers:

```
## not a section
- neither: this
```

## Single change
num_warps 8 -> 4
## Expected
+5 % on the large shapes
## Bucket
K2
## w1_quant_ms
0.5
## Key finding
"""


def read(tmp_path: Path, text: str, name: str = "notes.md") -> Notes:
    path = tmp_path / name
    path.write_text(text)
    return notes.load(path)


@pytest.mark.parametrize("name", ["notes.md", "NOTES.MD", "notes.markdown"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_sections_are_keys(tmp_path: Path, name: str, end: str) -> None:
    assert read(tmp_path, WRITTEN.replace("\n", end), name) == Notes(
        hypothesis="The kernel is bound by registers:\n\n```\n## not a section\n"
        "- neither: this\n```",
        change="num_warps 8 -> 4",
        expected="+5 % on the large shapes",
        bucket="K2",
        w1_quant_ms=0.5,
    )


def test_a_summary_is_read_as_it_was_written(tmp_path: Path) -> None:
    """What the plugin filled in, and what nobody has stated, is left out."""
    campaign = campaign_at(tmp_path)
    record(campaign, 1, Decision.BASELINE)
    own: dict[str, Any] = {
        "hypothesis": "fewer warps\nleave more registers",
        "change": "num_warps 8 -> 4",
        "expected": "+5 %",
        "attribution": "registers",
        "bucket": "K2",
        "root_cause": "spills\nat D = 128",
        "next": "split K",
    }
    record(campaign, 2, Decision.ROLLED_BACK, **own)
    found = notes.load(campaign.layout.summary(2))
    assert found == Notes.model_validate(own)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("Hypothesis: x\n", "contains no section"),
        ("# Hypothesis\nx\n", "contains no section"),
        ("## Hypothesys\nx\n", "section 'Hypothesys' is unknown .*hypothesis"),
        ("## Hypothesis\nx\n## hypothesis\ny\n", "hypothesis is given twice"),
        ("## Rollback Analysis\nit was slow\n", "'Rollback Analysis' holds no line"),
        ("## Bucket\nK9\n", "key 'bucket' is 'K9'"),
        ("## Step ms\nfast\n", "key 'step_ms' is 'fast'"),
        ("## Hypothesis\n\0\n", "holds NUL"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=f"notes.md: .*{complaint}"):
        read(tmp_path, text)


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    found = campaign_at(tmp_path)
    record(found, 1, Decision.BASELINE)
    return found


def test_the_next_rounds_notes_come_before_it(campaign: Campaign) -> None:
    campaign.note(2, Notes(hypothesis="fewer warps", change="num_warps 8 -> 4"))
    projections.refresh(campaign)
    assert campaign.state.next_round == 2
    assert [item["round"] for item in status_of(campaign)["rounds"]] == [1]
    record(campaign, 2, Decision.ACCEPTED, change="num_warps 8 -> 2")
    assert campaign.state.rounds[2].last.number == 1
    assert campaign.state.rounds[2].notes == Notes(
        hypothesis="fewer warps", change="num_warps 8 -> 2"
    )
    summary = campaign.layout.summary(2).read_text()
    assert "## Hypothesis\n\nfewer warps\n" in summary


def test_a_baseline_can_be_noted_before_it(tmp_path: Path) -> None:
    campaign = campaign_at(tmp_path)
    campaign.note(1, Notes(hypothesis="where we begin"))
    record(campaign, 1, Decision.BASELINE)
    assert campaign.state.baseline is not None
    assert campaign.state.rounds[1].notes.hypothesis == "where we begin"


def test_only_the_next_round_can_be_noted_ahead(campaign: Campaign) -> None:
    before = campaign.layout.ledger.read_bytes()
    for number in (0, 3):
        with pytest.raises(BadInput, match=rf"round {number} does not exist \(allowed: 1, 2\)"):
            campaign.note(number, Notes(lesson="x"))
    assert campaign.layout.ledger.read_bytes() == before
    assert fold([]).next_round == 1


def test_a_review_is_due_though_the_next_round_is_noted(campaign: Campaign) -> None:
    record(campaign, 2, Decision.ROLLED_BACK)
    record(campaign, 3, Decision.ROLLED_BACK)
    campaign.note(4, Notes(hypothesis="another"))
    from pytest_kopt import policies

    text = "\n".join(standing(campaign, policies.load("primus")))
    assert "2 rounds in a row were not kept" in text
