"""Where the noise of a comparison is known from, and that it is kept for the next."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_kopt import policies
from pytest_kopt.cases.evidence import CaseEvidence
from pytest_kopt.cases.order import ALONE, CANDIDATE, INCUMBENT, PLACEBO
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.cli.main import main
from pytest_kopt.decide.known_noise import DEVICE_TIMED, EARLIER, HOST_TIMED
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.nearby_shapes import Tried
from pytest_kopt.paired.comparison import Comparison
from pytest_kopt.paired.noise import NoiseHistory, Scatter, keep
from pytest_kopt.paired.pairing import Criteria, PairedResult, compare
from pytest_kopt.paired.samples import CaseQuads, Quad
from pytest_kopt.schema.metrics import Metric
from pytest_kopt.trials.calibration import calibration
from tests.campaigns import campaign_at, record

from .scripted import block_time

PRIMUS = policies.load("primus")
MODEL = "NVIDIA H200"
Replica = dict[str, CaseQuads]


def replicas(
    count: int,
    *,
    names: str = "abc",
    gain: float = 1.0,
    sd: float = 0.001,
    engine: str = "graph",
    device: str = "GPU-1",
    backward: bool = False,
) -> list[Replica]:
    """Replicas of cases that scatter by `sd` between processes."""
    dice = Random(count)

    def quads(factor: float, arm: str) -> list[Quad]:
        old, new = (block_time(ms, backward=backward) for ms in (1.0, factor))
        return [[(arm, new), (INCUMBENT, old), (INCUMBENT, old), (arm, new)]] * 3

    return [
        {
            name: CaseQuads(
                *(name, engine),
                {
                    "candidate": quads((1 + dice.gauss(0, sd)) / gain, CANDIDATE),
                    "placebo": quads(1 + dice.gauss(0, sd), PLACEBO),
                },
                device,
            )
            for name in names
        }
        for _ in range(count)
    ]


def results(names: str = "abc") -> list[CaseResult]:
    return [
        CaseResult(
            name,
            name,
            ("label", "n"),
            {"n": name},
            "PASS",
            evidence=CaseEvidence(device_model=MODEL),
        )
        for name in names
    ]


@dataclass
class Measuring:
    """A comparison whose replicas are there already."""

    waiting: list[Replica]
    flags: tuple[str, ...] = ()
    tried: tuple[Tried, ...] = ()
    written: str = ""
    why_apart: str = ""
    untried: str = ""
    asks_more: bool = True
    caught: tuple[Finding, ...] = ()
    nearby: list[str] = field(default_factory=list)
    measured: list[Replica] = field(default_factory=list)

    def replicas(self, count: int) -> Iterator[Replica]:
        for _ in range(count):
            self.measured.append(self.waiting.pop(0))
            yield self.measured[-1]

    def to_document(self) -> dict[str, object]:
        return {}

    def try_nearby(self) -> None:
        self.nearby.append("finished")

    def judge_postponed(self) -> None:
        self.nearby.append("judged")

    def findings_nearby(self, gains: Mapping[str, float]) -> tuple[Finding, ...]:
        return self.caught

    def under_load(self, ids: Collection[str], turns: int) -> Replica:
        assert not ids, "no clock is known"
        return {}

    def in_company(self, gain: float) -> Replica:
        old, alone = (INCUMBENT, block_time(1.0)), (ALONE, block_time(1.0))
        beside = {"alone": [[old, alone, alone, old]] * 3}
        seen = (gain, gain - 1e-5, gain + 1e-5)
        return {
            name: replace(case, quads=case.quads | beside, outside=seen)
            for name, case in self.measured[-1].items()
            if not case.same
        }


def compared(
    history: NoiseHistory, *, gain: float = 1.0, sd: float = 0.001
) -> tuple[PairedResult, int]:
    comparison = cast(Comparison, Measuring(replicas(8, gain=gain, sd=sd)))
    metric = Metric("Forward TFLOPS", "higher")
    found = compare(comparison, results(), Criteria([metric], PRIMUS, history))
    return found, len(found.replicas)


def test_a_session_keeps_its_scatter_and_what_was_known(tmp_path: Path) -> None:
    found, count = compared(NoiseHistory(), gain=1.01)
    assert found.verdict.decision is Decision.ACCEPTED and count == 2
    assert found.verdict.noise is not None
    assert found.verdict.noise.source == DEVICE_TIMED.source
    prior = cast(dict[str, Any], found.session["priors"])["Forward TFLOPS"]["a"]
    assert prior["sd_pct"] == pytest.approx(0.2, abs=0.01)
    assert (prior["freedom"], prior["source"]) == (DEVICE_TIMED.freedom, DEVICE_TIMED.source)
    text = json.loads(json.dumps(found.session))
    kept = Scatter.model_validate(text).log_ratios_by_way["step"]["b"]
    assert (kept.engine, kept.device, len(kept.main), len(kept.placebo)) == ("graph", "GPU-1", 2, 2)
    assert kept.main[0] == found.replicas[0]["b"].ratio("step")


def test_a_campaigns_rounds_are_the_nearest_source(tmp_path: Path) -> None:
    campaign = campaign_at(tmp_path)
    record(campaign, 1, Decision.BASELINE)
    for number in (2, 3):
        found, _ = compared(NoiseHistory.here(campaign.layout.workspace, results(), campaign))
        assert found.verdict.noise is not None and "default" in found.verdict.noise.source
        comparison = Scatter.of(replicas(3)).model_dump() if number == 3 else found.session
        record(campaign, number, Decision.ROLLED_BACK, comparison=comparison)
    found, _ = compared(NoiseHistory.here(campaign.layout.workspace, results(), campaign))
    assert found.verdict.noise is not None
    assert found.verdict.noise.source == EARLIER
    assert found.verdict.noise.sd_pct == pytest.approx(0.1 / 3**0.5, rel=0.6)


def test_evidence_that_is_gone_or_older_tells_nothing(tmp_path: Path) -> None:
    campaign = campaign_at(tmp_path)
    record(campaign, 1, Decision.BASELINE)
    record(campaign, 2, Decision.ROLLED_BACK, comparison={"replicas": 4})
    record(campaign, 3, Decision.ROLLED_BACK, comparison=Scatter.of(replicas(8)).model_dump())
    (campaign.layout.attempt(3, 1) / "evidence.json").unlink()
    known = NoiseHistory.here(campaign.layout.workspace, results(), campaign)
    assert known.noise("step", replicas(1)[0]).prior("a") == DEVICE_TIMED


@pytest.mark.parametrize(
    ("now", "is_known"),
    [
        ({}, True),
        ({"device": "GPU-2"}, False),
        ({"engine": "events"}, False),
        ({"names": "ab"}, True),
        ({"names": "abcd"}, False),
    ],
)
def test_only_the_same_cases_device_and_engine_count(now: dict[str, Any], is_known: bool) -> None:
    known = NoiseHistory((Scatter.of(replicas(4)),))
    today = replicas(1, **now)[0]
    found = known.noise("step", today).prior(list(today))
    assert (found.source == EARLIER) is is_known


def test_a_direction_has_its_own_scatter_or_that_of_the_only_one() -> None:
    both, one = (Scatter.of(replicas(4, backward=found)) for found in (True, False))
    assert set(both.log_ratios_by_way) == {"forward", "backward", "step"}
    assert set(one.log_ratios_by_way) == {"step"}
    for way in ("forward", "backward", "step"):
        found = NoiseHistory((one,)).noise(way, replicas(1)[0])
        assert found.prior(["a"]).source == EARLIER


def test_what_the_host_times_has_another_default() -> None:
    found = NoiseHistory().noise("step", replicas(1, engine="wall")[0])
    assert found.prior(["a"]) == HOST_TIMED


class TestACalibration:
    def test_it_is_a_session_of_each_device_of_its_model(self, tmp_path: Path) -> None:
        path = keep(tmp_path, calibration(results(), replicas(8), "one process"))
        assert path == tmp_path / "noise" / "nvidia-h200.json"
        known = NoiseHistory.here(tmp_path, results())
        noise = known.noise("forward", replicas(1, device="GPU-7", names="abz")[0])
        assert noise.prior(["a", "b"]).source == EARLIER
        assert noise.prior(["z"]) == DEVICE_TIMED, "nobody measured this case"
        other = known.noise("forward", replicas(1, engine="wall")[0])
        assert other.prior(["a"]) == HOST_TIMED
        elsewhere = [CaseResult("a", "a", evidence=CaseEvidence(device_model="NVIDIA B200"))]
        assert NoiseHistory.here(tmp_path, elsewhere) == NoiseHistory()

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("{", "is not JSON"),
            ("[]", "is no calibration"),
            ('{"log_ratios_by_way": {"step": 3}}', "log_ratios_by_way"),
            ('{"log_ratios_by_way": {"step": {"a": {"engine": "graph", "device": "", '
             '"main": [NaN], "placebo": []}}}}', "main"),
        ],
    )  # fmt: skip
    def test_a_damaged_one_is_named(self, tmp_path: Path, text: str, says: str) -> None:
        path = keep(tmp_path, {"device": MODEL})
        assert NoiseHistory.here(tmp_path, results()).noise("step", replicas(1)[0])
        path.write_text(text)
        with pytest.raises(BadInput, match=says) as refused:
            NoiseHistory.here(tmp_path, results())
        assert str(path) in str(refused.value)

    def test_the_command_keeps_it_in_the_workspace(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        monkeypatch.chdir(tmp_path)
        document = calibration(results(), replicas(8), "one process")

        def measured(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
            Path(words[words.index("--kopt-verdict") + 1]).write_text(json.dumps(document))
            return subprocess.CompletedProcess(words, 0)

        monkeypatch.setattr("pytest_kopt.cli.standalone.subprocess", SimpleNamespace(run=measured))
        assert main(["calibrate", "--noise"]) == 0
        path = tmp_path / "agent/workspace/noise/nvidia-h200.json"
        assert f"written to {path}" in capsys.readouterr().out
        assert json.loads(path.read_text()) == json.loads(json.dumps(document))


def test_a_gain_is_undecided_where_no_process_loads_a_case_near_its_shape() -> None:
    comparison = cast(Comparison, Measuring(replicas(8, gain=1.05), untried="a: it does not load"))
    metric = Metric("Forward TFLOPS", "higher")
    verdict = compare(comparison, results(), Criteria([metric], PRIMUS, NoiseHistory())).verdict
    assert verdict.decision is Decision.INCONCLUSIVE
    assert verdict.reason.endswith("; but a: it does not load")


def test_a_case_that_the_change_does_not_reach_never_decides() -> None:
    """A gain was rolled back since an untouched case was "−1.6 % [−9.5, +6.9]: not safe"."""
    there = replicas(8, names="ab", gain=1.05)
    for replica in there:
        replica["z"] = CaseQuads("z", "", same="source")
    metric = Metric("Forward TFLOPS", "higher")
    comparison = cast(Comparison, Measuring(there))
    criteria = Criteria([metric], PRIMUS, NoiseHistory())
    verdict = compare(comparison, results("abz"), criteria).verdict
    assert verdict.decision is Decision.ACCEPTED, verdict.reason
    (far,) = [shape for shape in verdict.shapes if shape.label == "z"]
    assert (far.same, far.status) == ("source", "unchanged")
    assert far.change_pct is far.low_pct is far.high_pct is None


@pytest.mark.parametrize(
    ("gain", "nearby"),
    [(0.5, []), (1.0, []), (1.5, ["finished", "judged"])],
    ids=["a loss", "the same", "kept"],
)
def test_only_what_would_be_kept_waits_for_shapes_nearby(gain: float, nearby: list[str]) -> None:
    measuring = Measuring(replicas(8, gain=gain))
    wrong = Finding("output-dtype", "float64 instead of float32", where="a")
    measuring.caught = (wrong,)
    metric = Metric("Forward TFLOPS", "higher")
    found = compare(
        cast(Comparison, measuring), results(), Criteria([metric], PRIMUS, NoiseHistory())
    )
    assert measuring.nearby == nearby
    assert found.nearby == (wrong,)
