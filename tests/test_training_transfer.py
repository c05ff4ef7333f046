"""The transfer check's lines, the buckets, and what a campaign's gain is worth in training."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_kopt.campaign.history.trend import attribute, audited
from pytest_kopt.decide.series import UNDER_SKEW
from pytest_kopt.decide.verdict import Aggregate, Decision, Verdict
from pytest_kopt.honesty.finding import Finding, is_finding
from pytest_kopt.honesty.transfer import (
    ACCEPT_ASTERISK,
    ACCEPT_REAL,
    REJECT,
    UNCLASSIFIED,
    Claim,
)
from pytest_kopt.show.files.summary import transfer

from .builders import few_examples

NAMES = [
    *("Bucket", "Cache key", "id(...) audit", "4-step trace hit rate"),
    *("Workload distribution robustness", "Benchmark gain", "Estimated real-training gain"),
    "Decision",
]


VERDICT = Verdict(
    decision=Decision.ACCEPTED,
    reason="",
    next_step="",
    compare="paired",
    policy="primus",
    aggregate=Aggregate(metric="Forward TFLOPS", change_pct=10.0),
)


@pytest.mark.parametrize(
    ("claim", "gain", "said", "credit"),
    [
        (Claim("K1"), 10.0, ACCEPT_REAL, 10.0),
        (Claim("W1", "w", 0.5, 20.0), 10.0, ACCEPT_ASTERISK, 2.5),
        (Claim("W1", "w", 0.5, 20.0), 1.0, ACCEPT_ASTERISK, 1.0),
        (Claim("W1"), 10.0, ACCEPT_ASTERISK, 0.0),
        (Claim("W2"), 10.0, REJECT, 0.0),
        (Claim("W3"), 10.0, REJECT, 0.0),
        (Claim(), 10.0, UNCLASSIFIED, None),
    ],
)
def test_what_a_round_is_credited_with(
    claim: Claim, gain: float, said: str, credit: float | None
) -> None:
    assert claim.decision == said
    assert claim.credited_pct(gain) == (None if credit is None else pytest.approx(credit))
    lines = transfer(claim, [], VERDICT)
    assert list(lines) == NAMES
    assert lines["Decision"] == said and lines["Benchmark gain"] == "+10.0 %"


def test_the_lines_say_what_was_seen() -> None:
    skew = Aggregate(metric=f"Forward TFLOPS {UNDER_SKEW}", change_pct=4.0)
    flags = ["memoised-tensors: it keeps w"]
    seen = VERDICT.model_copy(update={"flags": flags, "secondary": [skew]})
    lines = transfer(Claim("W1", "(id(w), w._version)", 0.5, 20.0), [], seen)
    assert lines["Cache key"] == "(id(w), w._version)"
    assert lines["id(...) audit"] == "memoised-tensors: it keeps w"
    assert lines["Workload distribution robustness"].endswith("gain under skew +4.00 %")
    assert lines["Estimated real-training gain"] == "at most quant time / step time = 2.500 %"


@pytest.mark.parametrize(
    ("decision", "said"),
    [
        (Decision.REJECTED_OVERFIT, REJECT),
        (Decision.ROLLED_BACK, "nothing to transfer: ROLLED_BACK"),
    ],
)
def test_a_round_that_is_not_kept_has_nothing_to_transfer(decision: Decision, said: str) -> None:
    lines = transfer(Claim("K1"), [], VERDICT.model_copy(update={"decision": decision}))
    assert lines["Decision"] == said


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
        audited(i + 2, Claim(bucket, None, quant, 10.0), gain)
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
    credits = [audited(2, Claim("W1"), 30.0), audited(3, Claim("K1"), 10.0)]
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
