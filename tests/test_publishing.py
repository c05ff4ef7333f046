"""What reviewers and their tools get: Markdown, annotations, JUnit properties, benchmark JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_kopt.cases.evidence import CaseEvidence
from pytest_kopt.cases.result import PROPERTY, CaseResult
from pytest_kopt.decide.case_verdict import Shape
from pytest_kopt.decide.verdict import Aggregate, Decision, NamedFinding, Verdict
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.show.exports.comment import comment
from pytest_kopt.show.exports.github import annotation_lines, append_summary
from pytest_kopt.show.exports.junit import unpack, verdict_properties
from pytest_kopt.show.exports.output_files import benchmark_json
from pytest_kopt.show.terminal import verdict_lines
from pytest_kopt.show.words import gate_outcome
from tests.builders import few_examples

ON_GITHUB = {"GITHUB_ACTIONS": "true"}
FLAG = Finding(
    "identity-keyed-cache", "a dict is keyed on id(x)", "kernels/softmax.py:3", "compute it"
)


def a_verdict(decision: Decision = Decision.ROLLED_BACK, **changes: Any) -> Verdict:
    shape: dict[str, Any] = {"check": "PASS", "dims": {"M": 64}}
    document: dict[str, Any] = {
        "decision": decision,
        "reason": "shown to be slower",
        "next_step": "another hypothesis",
        "compare": "paired",
        "engine": "graph",
        "policy": "primus",
        "aggregate": Aggregate(
            metric="Forward TFLOPS",
            candidate=291.0,
            incumbent=300.0,
            change_pct=-3.0,
            low_pct=-3.25,
            high_pct=-2.75,
        ),
        "shapes": [
            Shape(label="good", change_pct=1.5, status="improved", **shape),
            Shape(
                label="bad", change_pct=-7.5, low_pct=-8, high_pct=-7, status="regressed", **shape
            ),
        ],
        **changes,
    }
    return Verdict(**document)


def a_result(label: str = "bad", **changes: Any) -> CaseResult:
    result = CaseResult(
        nodeid=f"tests/test_softmax.py::test_softmax[{label}]",
        label=label,
        header=("label", "M", "Check", "Time (ms)", "Time (ms)_stddev", "out_snr"),
        dims={"M": 64},
        check="PASS",
        cells={"Time (ms)": 2.0, "Time (ms)_stddev": None, "out_snr": math.inf},
        evidence=CaseEvidence(
            engine="graph",
            device="GPU-0",
            calls_per_sample=7,
            forward_samples_ms=(2.0, 2.5, 1.5),
        ),
    )
    return replace(result, **changes)


def test_a_comment_says_what_the_verdict_says() -> None:
    assert "comparison" not in comment(a_verdict(compare="none"))
    text = comment(a_verdict(flags=[str(FLAG)]))
    assert text.startswith("### 🔴 kopt: rolled back\n")
    for part in (
        "shown to be slower",
        "300.0",
        "291.0",
        "-3.00 %",
        "[-3.25, -2.75]",
        "-7.50 %",
    ):
        assert part in text
    assert text.index("| bad") < text.index("| good"), "the worst first"
    assert "another hypothesis" in text and "keyed on id" in text


@pytest.mark.parametrize("decision", Decision)
def test_every_decision_can_be_commented(decision: Decision) -> None:
    bare = a_verdict(decision, aggregate=None, shapes=[], next_step="")
    assert str(decision).replace("_", " ").lower() in comment(bare)


@pytest.mark.parametrize(
    ("decision", "words", "low"),
    [
        (Decision.ROLLED_BACK, "slower", -3.25),
        (Decision.INCONCLUSIVE, "may be slower", -3.25),
        (Decision.ACCEPTED, "not slower", -3.25),
        (Decision.ACCEPTED, "faster", 0.5),
        (Decision.ACCEPTED_WITH_NOTE, "not slower, with a note", -3.25),
        (Decision.REPAIR, "wrong", -3.25),
        (Decision.REJECTED_OVERFIT, "refused", -3.25),
    ],
)
def test_a_gate_says_how_fast_and_rolls_nothing_back(
    decision: Decision, words: str, low: float
) -> None:
    total = Aggregate(metric="step speed", change_pct=1.0, low_pct=low, high_pct=4.0)
    same = Shape(label="same", dims={}, check="PASS", status="unchanged")
    verdict = a_verdict(decision, base="0" * 40, aggregate=total, shapes=[same])
    verdict = verdict.model_copy(update={"outcome": gate_outcome(verdict)})
    assert verdict.outcome == words
    text = comment(verdict)
    assert text.splitlines()[0].endswith(f" kopt: {words}")
    assert "rolled back" not in text and "Before" not in text and "Now" not in text
    (row,) = [line for line in text.splitlines() if "| same" in line]
    assert [cell.strip() for cell in row.split("|")[1:-1]] == [
        *("same", "PASS", "—", "", "not compared")
    ]
    assert f"{words} (" in list(verdict_lines(verdict))[1]


def test_cases_of_the_same_code_are_not_compared() -> None:
    """In a round as in a gate, and in the same words wherever they are told."""
    same = Shape(label="far", dims={}, check="PASS", status="unchanged", same="source")
    near = Shape(label="near", dims={}, check="PASS", status="improved", change_pct=9.0)
    verdict = a_verdict(Decision.ACCEPTED, round=2, attempt=1, shapes=[same, near])
    said = "1 of 2 cases run the same code in both versions: not compared"
    assert said in list(verdict_lines(verdict)) and f"{said}." in comment(verdict).splitlines()
    (row,) = [line for line in comment(verdict).splitlines() if "| far" in line]
    assert [cell.strip() for cell in row.split("|")[1:-1]] == ["far", "PASS", "—", "", "same code"]


def test_how_sure_intervals_are_is_said_once() -> None:
    total = Aggregate(metric="m", change_pct=9.0, low_pct=8.0, high_pct=10.0, confidence=0.9996)
    shown = list(verdict_lines(a_verdict(Decision.ACCEPTED, aggregate=total, secondary=[total])))
    said = "confidence: 99.96 % overall, 95 % per case"
    assert [line for line in shown if "sure" in line or "confiden" in line] == [said]


def test_a_comment_names_the_level_of_each_interval_and_shows_no_change_as_unknown() -> None:
    """An undecided case was "unchanged" below a reason that said it might have lost."""
    total = Aggregate(metric="m", change_pct=-2.0, low_pct=-7.0, high_pct=2.0, confidence=0.9996)
    case = Shape(label="a", dims={}, check="PASS", status="unchanged", change_pct=-2.2)
    open_, lost = (
        case.model_copy(update={"label": label, "low_pct": -6.8, "high_pct": high})
        for label, high in (("open", 2.6), ("lost", -0.5))
    )
    text = comment(a_verdict(Decision.INCONCLUSIVE, aggregate=total, shapes=[open_, lost]))
    assert "confidence: 99.96 % overall, 95 % per case." in text.splitlines()
    ends = [line.split("|")[-2].strip() for line in text.splitlines() if "| PASS" in line]
    assert ends == ["no change shown", "slower"]


def test_details_of_a_finding_are_listed_with_v() -> None:
    found = NamedFinding(
        check="held-out-untried", message="2 kinds", rejects=False, details=("a", "b")
    )
    verdict = a_verdict(flags=["held-out-untried: 2 kinds"], findings=[found])
    assert "held-out-untried: a; b" not in list(verdict_lines(verdict))
    assert "held-out-untried: a; b" in list(verdict_lines(verdict, verbosity=1))


def test_a_time_that_falls_is_a_speed_that_rises() -> None:
    """ "-50 % time improved: +100 %" contradicted itself."""
    total = Aggregate(
        metric="Time (ms)", better="lower", candidate=1.0, incumbent=1.2, change_pct=20.0
    )
    shown = list(verdict_lines(a_verdict(Decision.ACCEPTED, aggregate=total)))
    assert "Time (ms): 1.200 -> 1.000  speed +20.0 %" in shown


def test_a_comment_shows_foreign_text_as_it_is() -> None:
    evil = "<img src=x> @team [x](http://e.org) `a` **b** | c\n# d"
    shapes = [Shape(label=evil, dims={}, check="FAIL", status="failed")]
    text = comment(a_verdict(reason=evil, flags=[evil], shapes=shapes, next_step=evil))
    assert "<img" not in text and "&lt;img" in text
    assert "@team" not in text
    assert "](http" not in text.replace("\\]", "")
    assert "\n# d" not in text and "**b**" not in text
    table = [line for line in text.splitlines() if "failed" in line and line.startswith("|")]
    assert len(table) == 1
    assert table[0].replace("\\|", "").count("|") == 6, "a bar does not open a cell"


def test_a_comment_stays_below_the_limit_of_github() -> None:
    shape = Shape(label="x" * 120, dims={}, check="PASS", change_pct=1.0, status="improved")
    text = comment(a_verdict(shapes=[shape] * 1000))
    assert len(text) < 65536
    assert "and 800 more" in text


def test_flags_and_slower_cases_become_annotations() -> None:
    rejected = a_verdict(Decision.REJECTED_OVERFIT, flags=[str(FLAG), "no place"])
    lines = list(annotation_lines(ON_GITHUB, rejected, [a_result()]))
    assert lines[0].startswith(
        "::error file=kernels/softmax.py,line=3,title=kopt::identity-keyed-cache"
    )
    assert lines[1] == (
        "::error file=tests/test_softmax.py,title=kopt slower::bad: -7.50 %25 [-8.00, -7.00]"
    )
    assert len(lines) == 2
    noted = a_verdict(Decision.ACCEPTED_WITH_NOTE, flags=[str(FLAG)], shapes=[])
    assert next(annotation_lines(ON_GITHUB, noted, [])).startswith(
        "::warning file=kernels/softmax.py"
    )


def test_a_failed_check_becomes_an_annotation_of_one_line() -> None:
    failed = a_result(check="FAIL", diagnosis="out: 3 % off::error\nmore", label="a,b:c")
    lines = list(annotation_lines(ON_GITHUB, a_verdict(shapes=[]), [failed]))
    assert lines == [
        "::error file=tests/test_softmax.py,title=kopt check::a,b:c: FAIL out: 3 %25 off::error"
    ]


def test_there_are_no_annotations_elsewhere() -> None:
    assert list(annotation_lines({}, a_verdict(flags=[str(FLAG)]), [a_result(check="FAIL")])) == []


def test_the_step_summary_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_text("before\n")
    append_summary({"GITHUB_STEP_SUMMARY": str(path)}, "now")
    assert path.read_text() == "before\nnow\n"
    append_summary({}, "nowhere")


def a_report(*properties: tuple[str, object]) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid="t",
        location=("t", 0, "t"),
        keywords={},
        outcome="passed",
        longrepr=None,
        when="call",
        user_properties=properties,
    )


def test_a_report_carries_figures_and_not_our_json() -> None:
    report = a_report(("mine", 1), (PROPERTY, a_result().to_json()), (PROPERTY, "broken"))
    unpack(report)
    assert report.user_properties[0] == ("mine", 1)
    found = dict(report.user_properties[1:])
    assert found["kopt.check"] == "PASS" and found["kopt.Time (ms)"] == "2.0"
    assert found["kopt.M"] == "64" and found["kopt.device"] == "GPU-0"
    assert found["kopt.out_snr"] == "inf"
    assert "kopt.Time (ms)_stddev" not in found and PROPERTY not in found


def test_the_suite_tells_the_verdict() -> None:
    told = a_verdict(campaign="c", round=3, flags=["f"], outcome="slower")
    found = dict(verdict_properties(told))
    assert (found["kopt.decision"], found["kopt.outcome"]) == ("ROLLED_BACK", "slower")
    assert found["kopt.change: Forward TFLOPS"] == "-3.00 %"
    assert found["kopt.interval: Forward TFLOPS"] == "[-3.25, -2.75]"
    assert (found["kopt.round"], found["kopt.flag"]) == ("3", "f")


@few_examples
@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=40))
def test_statistics_are_pytest_benchmarks_own(samples: list[float]) -> None:
    stats = pytest.importorskip("pytest_benchmark.stats")
    theirs = stats.Stats()
    for sample in samples:
        theirs.update(sample / 1e3)
    result = a_result(evidence=CaseEvidence(forward_samples_ms=tuple(samples)))
    ours = json.loads(benchmark_json([result]))["benchmarks"][0]["stats"]
    assert set(ours) == {*theirs.fields, "data", "iterations"}
    for name in ("min", "max", "mean", "stddev", "rounds", "median", "total", "ops"):
        assert ours[name] == pytest.approx(getattr(theirs, name)), name
    assert ours["q1"] <= ours["median"] <= ours["q3"]


def test_cases_without_times_are_left_out() -> None:
    results = [
        a_result(evidence=CaseEvidence()),
        a_result(evidence=CaseEvidence(forward_samples_ms=(1.0,), interpreted=True)),
        a_result(
            "both",
            evidence=CaseEvidence(forward_samples_ms=(1.0,), backward_samples_ms=(2.0, 4.0)),
        ),
    ]
    document = json.loads(benchmark_json(results))
    assert [(e["name"], e["group"]) for e in document["benchmarks"]] == [
        ("test_softmax[both] forward", "forward"),
        ("test_softmax[both] backward", "backward"),
    ]
    assert document["benchmarks"][1]["stats"]["mean"] == pytest.approx(0.003)
