"""The transfer check's lines, the buckets, and what a campaign's gain is worth in training."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_kopt.campaign.history.trend import attribute, audited
from pytest_kopt.honesty.finding import Finding, is_finding
from pytest_kopt.honesty.transfer import (
    ACCEPT_ASTERISK,
    ACCEPT_REAL,
    REJECT,
    UNCLASSIFIED,
    Claim,
    Trace,
    TransferEvidence,
    bucket_findings,
    credited_pct,
    decision,
)
from pytest_kopt.show.files.summary import trace_text, transfer_lines

from .builders import few_examples

NAMES = [
    *("Bucket", "Cache key", "id(...) audit", "4-step trace hit rate"),
    *("Workload distribution robustness", "Benchmark gain", "Estimated real-training gain"),
    "Decision",
]
WEIGHTS = Trace(("weight",), ({"weight": (1, 2)},))


def shown(change: float | None = 10.0, **more: object) -> TransferEvidence:
    return TransferEvidence(overfit=bool(more.pop("overfit", False)), change_pct=change, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("claim", "seen", "said", "credit"),
    [
        (Claim("K1"), shown(), ACCEPT_REAL, 10.0),
        (Claim("W1", "w", 0.5, 20.0), shown(), ACCEPT_ASTERISK, 2.5),
        (Claim("W1", "w", 0.5, 20.0), shown(1.0), ACCEPT_ASTERISK, 1.0),
        (Claim("W1"), shown(), ACCEPT_ASTERISK, 0.0),
        (Claim("K1"), shown(new_weight_cache=True), ACCEPT_ASTERISK, 0.0),
        (Claim("W2"), shown(), REJECT, 0.0),
        (Claim("W3"), shown(), REJECT, 0.0),
        (Claim("K1"), shown(overfit=True), REJECT, 0.0),
        (Claim(), shown(), UNCLASSIFIED, None),
    ],
)
def test_what_a_round_is_credited_with(
    claim: Claim, seen: TransferEvidence, said: str, credit: float | None
) -> None:
    assert decision(claim, seen) == said
    found = credited_pct(claim, seen)
    assert found == (None if credit is None else pytest.approx(credit))
    lines = transfer_lines(claim, seen)
    assert [name for name, _ in lines] == NAMES
    assert dict(lines)["Decision"] == said


def test_the_lines_say_what_was_seen() -> None:
    lines = dict(
        transfer_lines(
            Claim("W1", "(id(w), w._version)", 0.5, 20.0),
            shown(
                findings=("a", "b"), traces={"x": WEIGHTS, "y": None}, distributions=("uniform",)
            ),
        )
    )
    assert lines["Cache key"] == "(id(w), w._version)"
    assert lines["id(...) audit"] == "a; b"
    assert lines["4-step trace hit rate"] == "weight 50%"
    assert "uniform" in lines["Workload distribution robustness"]
    assert lines["Benchmark gain"] == "+10.0 %; credited +2.50 %"
    assert lines["Estimated real-training gain"].startswith("not estimated: no time")


@pytest.mark.parametrize(
    ("claim", "seen", "says"),
    [
        (Claim("K1"), shown(saved_ms=0.5), "not estimated: the notes give no `step_ms`"),
        (Claim(step_ms=20.0), shown(saved_ms=0.5), "not estimated: no time or no bucket"),
        (Claim("K1", step_ms=20.0), shown(saved_ms=0.5), "+2.50 % of a step of 20 ms"),
        (Claim("W1", "w", 0.1, 20.0), shown(saved_ms=0.5), "+0.50 % of a step of 20 ms"),
    ],
)
def test_a_gain_of_a_step_needs_the_time_of_a_step(
    claim: Claim, seen: TransferEvidence, says: str
) -> None:
    lines = dict(transfer_lines(claim, seen))
    assert lines["Estimated real-training gain"].startswith(says)


def test_traces_in_words() -> None:
    assert trace_text(None) == "not measured"
    assert trace_text({"x": None}).startswith("no cache seen")
    low = Trace(("weight", "activation"), ({"weight": (1, 4), "activation": (0, 4)},))
    assert trace_text({"x": WEIGHTS, "y": low}) == "activation 0%, weight 25%"


def finding(bucket: str) -> Finding:
    return Finding("stale-result", "m", bucket=bucket)


@pytest.mark.parametrize(
    ("declared", "found", "check", "rejects"),
    [
        (None, ["W1"], None, False),
        ("K1", [], None, False),
        ("W1", ["W1"], None, False),
        ("K1", ["W1"], "bucket-mismatch", False),
        ("K1", ["W1", "W2"], "bucket-mismatch", True),
        ("W1", ["W3"], "bucket-mismatch", True),
        ("W2", [], "declared-bucket", True),
        ("W3", [""], "declared-bucket", True),
    ],
)
def test_buckets_are_checked(
    declared: str | None, found: list[str], check: str | None, rejects: bool
) -> None:
    said = [*bucket_findings(Claim(declared), map(finding, found))]
    assert [item.check for item in said] == ([] if check is None else [check])
    assert any(item.rejects for item in said) is rejects


rounds = st.lists(
    st.tuples(
        st.sampled_from(["K1", "K3", "W1", "W2", None]),
        st.floats(-1, 50),
        st.floats(0.01, 1),
    ),
    max_size=8,
)


@few_examples
@given(rounds)
def test_attribution(items: list[tuple[str | None, float, float]]) -> None:
    credits = [
        audited(i + 2, Claim(bucket, None, quant, 10.0), shown(gain))
        for i, (bucket, gain, quant) in enumerate(items)
    ]
    s_real, w_real, headline = attribute(credits)
    product = 1.0
    for item in credits:
        product *= 1 + (item.credited_pct or 0.0) / 100
    assert s_real + w_real == pytest.approx((product - 1) * 100, abs=1e-6)
    if all(c.bucket in ("K1", "K3") for c in credits):
        assert headline == pytest.approx(s_real + w_real, abs=1e-6)


def test_an_unbounded_weight_cache_leaves_a_gap() -> None:
    credits = [audited(2, Claim("W1"), shown(30.0)), audited(3, Claim("K1"), shown(10.0))]
    assert attribute(credits) == pytest.approx((10.0, 0.0, 43.0))


def test_what_a_case_was_measured_under_is_no_finding() -> None:
    stale = Finding("stale-result", "an earlier result", "kernels/a.py:3")
    assert is_finding(str(stale), ["small", "M16"])
    for flag in (
        "M16: throttled: sw_power_cap; clock drifted from 1965 to 1605 MHz (4 of 4 processes)",
        "small: temperature drifted from 45 to 57 °C",
        "compared in two processes (a bias of up to 0.3 % is known): does not load twice",
    ):
        assert not is_finding(flag, ["small", "M16"])
