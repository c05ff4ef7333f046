from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_kopt import policies
from pytest_kopt.decide.policy import Limit, Policy
from pytest_kopt.errors import BadInput
from tests.builders import few_examples

ANY_PERCENT = st.floats(-100, 100)


def policy_file(directory: Path, text: str) -> str:
    path = directory / "mine.yaml"
    path.write_text(text)
    return str(path)


def test_primus_has_the_seeds_thresholds() -> None:
    policy = policies.load("primus")
    assert (policy.name, policy.shape_gate_pct, policy.noise_pct) == ("primus", 5.0, 2.0)
    assert (policy.max_repairs, policy.chain_noise_pct, policy.minimum_gain_pct) == (3, 1.0, 0.0)
    again = policy.remeasure
    assert (again.below_pct, again.times, again.rule) == (2.0, 3, "mean-and-spread")
    assert (again.mean_pct, again.spread_ratio) == (1.0, 0.5)


def test_kernel_opt_takes_1_percent_for_noise_unless_it_comes_twice() -> None:
    policy = policies.load("kernel-opt")
    assert (policy.name, policy.noise_pct, policy.shape_gate_pct) == ("kernel-opt", 1.0, 5.0)
    again = policy.remeasure
    assert (again.below_pct, again.times, again.rule) == (1.0, 1, "same-direction")


def test_the_presets_are_listed() -> None:
    assert policies.names() == ["kernel-opt", "primus"]


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match=r"'primos'.*kernel-opt, primus, a YAML file"):
        policies.load("primos")


def test_a_file_changes_only_what_it_names(tmp_path: Path) -> None:
    policy = policies.load(policy_file(tmp_path, "shape_gate_pct: 3\n"))
    assert policy.name == "mine"
    assert policy == policies.load("primus").model_copy(
        update={"name": "mine", "shape_gate_pct": 3.0}
    )


def test_a_file_may_start_from_another_preset_and_change_one_key_of_its_remeasuring(
    tmp_path: Path,
) -> None:
    path = policy_file(tmp_path, "base: kernel-opt\nname: ours\nremeasure: {times: 2}\n")
    policy = policies.load(path)
    assert (policy.name, policy.noise_pct) == ("ours", 1.0)
    assert (policy.remeasure.times, policy.remeasure.rule) == (2, "same-direction")


def test_keys_of_earlier_releases_change_nothing(tmp_path: Path) -> None:
    path = policy_file(tmp_path, "full_below_pct: 2\nkernel_time: true\n")
    expected = policies.load("primus").model_copy(update={"name": "mine"})
    assert policies.load(path) == expected


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("shape_gate: 5\n", "shape_gate", "allowed: name, shape_gate_pct"),
        ("shape_gate_pct: -1\n", "shape_gate_pct", "-1"),
        ("shape_gate_pct: 101\n", "shape_gate_pct", "101"),
        ("shape_gate_pct: .nan\n", "shape_gate_pct", "nan"),
        ("shape_gate_pct: five\n", "shape_gate_pct", "'five'"),
        ("shape_gate_pct: true\n", "shape_gate_pct", "True"),
        ("noise_pct: null\n", "noise_pct", "None"),
        ("max_repairs: -1\n", "max_repairs", "-1"),
        ("max_repairs: 2.5\n", "max_repairs", "2.5"),
        ("remeasure: {times: 0}\n", "remeasure.times", "0"),
        ("remeasure: {rule: twice}\n", "remeasure.rule", "'twice'"),
        ("remeasure: {spread_ratio: 0}\n", "remeasure.spread_ratio", "0"),
        ("remeasure: 3\n", "remeasure", "3"),
        ("directions: {occupancy: up}\n", "directions.occupancy", "'up'"),
        ("gates: [err]\n", "gates", "'err'"),
        ("base: primos\n", "base", "'primos'"),
        ("name: primus\n", "name", "'primus', the name of a preset"),
        ("base: primus\nname: kernel-opt\n", "name", "none of kernel-opt, primus"),
    ],
)
def test_what_cannot_be_used_is_named_with_file_key_and_value(
    tmp_path: Path, text: str, key: str, value: str
) -> None:
    with pytest.raises(BadInput) as refusal:
        policies.load(policy_file(tmp_path, text))
    message = str(refusal.value)
    assert "mine.yaml" in message and key in message and value in message


def test_a_file_named_like_a_preset_needs_another_name(tmp_path: Path) -> None:
    path = tmp_path / "primus.yaml"
    path.write_text("max_regressions: 9\n")
    with pytest.raises(BadInput, match=r"primus.yaml: key 'name' is 'primus'.*a name of your own"):
        policies.load(str(path))
    path.write_text("name: patient\nmax_regressions: 9\n")
    assert policies.load("primus.yaml", tmp_path).name == "patient"


def test_what_differs_from_a_recorded_policy_is_named_but_for_name_and_stop_limits() -> None:
    recorded = policies.load("primus").model_dump(mode="json")
    assert policies.load("primus").differences(recorded) == []
    patient = policies.load("primus").model_copy(update={"name": "p", "max_regressions": 9})
    assert patient.differences(recorded) == []
    found = policies.load("kernel-opt").differences(recorded)
    assert "noise_pct: 2.0 -> 1.0" in found and "remeasure.times: 3 -> 1" in found
    assert patient.differences({"name": "older", "noise_pct": 2.0, "gone": 1}) == []


def test_a_file_that_is_no_yaml_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"mine.yaml.*line 2"):
        policies.load(policy_file(tmp_path, "name: a\nname: b: c\n"))


@pytest.mark.parametrize("offset", [0.0, 9e-10, -9e-10])
def test_within_the_tolerance_a_percentage_is_the_threshold_itself(offset: float) -> None:
    policy = Policy(name="any")
    assert policy.reaches(5 + offset, 5)
    assert not policy.below(5 + offset, 5)
    assert not policy.exceeds(5 + offset, 5)


@pytest.mark.parametrize("offset", [2e-9, 1e-6, 1.0])
def test_outside_the_tolerance_it_is_above_or_below(offset: float) -> None:
    policy = Policy(name="any")
    assert policy.exceeds(5 + offset, 5) and policy.reaches(5 + offset, 5)
    assert policy.below(5 - offset, 5) and not policy.reaches(5 - offset, 5)


@given(ANY_PERCENT, ANY_PERCENT)
@few_examples
def test_below_is_the_opposite_of_reaches(change: float, limit: float) -> None:
    policy = Policy(name="any")
    assert policy.below(change, limit) != policy.reaches(change, limit)


def test_a_limit_of_microseconds_as_more_time_and_as_a_loss_of_speed() -> None:
    """100 us more of 1 ms are 10 % more time, and 1/11 less speed."""
    limit = Limit(1.0, 100.0, 1.0)
    assert limit.time_pct == pytest.approx(10.0, rel=1e-12)
    assert limit.speed_pct == pytest.approx(100 / 11, rel=1e-12)
    assert Limit(50.0, 100.0, 1.0).speed_pct == 50.0
    assert Limit(0.5, 100.0, None).time_pct == 0.5, "the time of a call is not known"
