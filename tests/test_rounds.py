"""What a round makes of an option, or of a version, that the campaign has met before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_kopt.errors import BadInput
from pytest_kopt.trials.campaign_trial import engine_of
from tests.crash import Steps
from tests.driven_campaign import NAME, RATES, DrivenCampaign
from tests.model_campaign import OUTCOMES

KERNEL = "kernels/a.py"
TIDIER = b"OLD = 1\nTIDIER = True\n"


def test_a_version_that_failed_uses_up_no_repair_when_it_is_run_again(tmp_path: Path) -> None:
    project = DrivenCampaign(tmp_path / "project", {KERNEL: b"OLD = 1\n"}, in_git=False)

    def play(outcome: str) -> str:
        ran = project.measure("next", OUTCOMES[outcome], RATES, Steps(project.root))
        assert ran.verdict, ran
        return ran.verdict.next_step

    play("equal")
    project.write(KERNEL, b"NEW = 1\n")
    for _ in range(5):
        assert "(3 repairs left)" in play("wrong")
    project.write(KERNEL, b"NEW = 2\n")
    for _ in range(2):
        assert "(2 repairs left)" in play("wrong")


def test_what_a_check_of_honesty_calls_wrong_is_to_be_repaired(tmp_path: Path) -> None:
    """It rejected as overfit unless its finding said that it does not."""
    project = DrivenCampaign(tmp_path / "project", {KERNEL: b"OLD = 1\n"}, in_git=False)
    project.measure("next", OUTCOMES["equal"], RATES, Steps(project.root))
    project.write(KERNEL, b"NEW = 1\n")
    outcome = OUTCOMES["wrong when captured"]
    verdict = project.measure("next", outcome, RATES, Steps(project.root)).verdict
    assert verdict and verdict.decision == "REPAIR"
    assert [flag for flag in verdict.flags if flag.startswith("empty-capture: ")]


def test_no_round_is_run_on_a_detached_head(tmp_path: Path) -> None:
    """Its commit would be on no branch, and gone with the next switch."""
    project = DrivenCampaign(tmp_path / "project", {KERNEL: b"OLD = 1\n"}, in_git=True)
    project.git("switch", "--quiet", "--detach")
    refusal = project.play("equal").refusal
    assert "HEAD is detached" in refusal and "git switch BRANCH" in refusal


def test_a_file_that_a_kept_version_lacks_goes_from_git(tmp_path: Path) -> None:
    more = "kernels/b.py"
    first = {KERNEL: b"OLD = 1\n", more: b"MORE = 1\n"}
    project = DrivenCampaign(tmp_path / "project", first, in_git=True)
    assert project.play("equal").verdict
    project.write(more, None)
    verdict = project.play("faster").verdict
    assert verdict and verdict.decision == "ACCEPTED"
    assert project.git("ls-tree", "--name-only", "HEAD", "kernels/").split() == [KERNEL]


def test_a_command_that_writes_to_the_ledger_ends_the_round_and_leaves_it_as_it_was(
    tmp_path: Path,
) -> None:
    place = f"agent/workspace/{NAME}/ledger.jsonl"
    forge = f"sh -c 'test ! -e {place} || echo forged >> {place}'"
    first = {KERNEL: b"OLD = 1\n"}
    project = DrivenCampaign(tmp_path / "project", first, in_git=False, test_command=forge)
    assert project.play("equal").verdict
    before = project.layout.ledger.read_bytes()
    project.write(KERNEL, b"NEW = 1\n")
    refusal = project.play("faster").refusal
    assert f"`{forge}` changed the campaign's ledger; kopt restored it" in refusal
    assert project.layout.ledger.read_bytes() == before


def test_a_kernel_that_is_edited_while_it_is_measured_is_not_judged(tmp_path: Path) -> None:
    project = DrivenCampaign(tmp_path / "project", {KERNEL: b"OLD = 1\n"}, in_git=False)
    project.play("equal")
    project.write(KERNEL, b"NEW = 1\n")
    ran = project.play("faster", meanwhile=lambda: project.write(KERNEL, b"MINE = 1\n"))
    assert ran.verdict and ran.verdict.decision == "INCOMPLETE"
    assert "the kernel files changed while they were measured" in ran.verdict.reason
    assert project.kernel() == {KERNEL: b"MINE = 1\n"}


def test_the_final_comparison_takes_the_best_version_and_no_edit(tmp_path: Path) -> None:
    project = DrivenCampaign(tmp_path / "project", {KERNEL: b"OLD = 1\n"}, in_git=False)
    project.play("equal")
    project.write(KERNEL, b"NEW = 1\n")
    assert project.play("faster").verdict
    project.write(KERNEL, b"MINE = 1\n")
    ran = project.measure("final", OUTCOMES["faster"], RATES, Steps(project.root))
    assert "the kernel files are not those of round 2, the last accepted" in ran.refusal


def test_the_baseline_alone_names_the_inputs_that_the_cases_exclude(tmp_path: Path) -> None:
    """The cases are frozen with it: every round would carry the flag."""
    project = DrivenCampaign(tmp_path / "project", {KERNEL: b"OLD = 1\n"}, in_git=False)

    def flags(outcome: str) -> list[str]:
        domain = ("finite", "declared shapes")
        outcomes = replace(OUTCOMES[outcome], domain=domain)
        verdict = project.measure("next", outcomes, RATES, Steps(project.root)).verdict
        assert verdict
        return [flag for flag in verdict.flags if "domain" in flag]

    assert flags("equal") == ["the cases exclude inputs by domain=: declared shapes, finite"]
    project.write(KERNEL, b"NEW = 1\n")
    assert flags("faster") == []


def test_equal_speed_needs_an_extra_benefit(tmp_path: Path) -> None:
    project = DrivenCampaign(tmp_path / "project", {KERNEL: b"OLD = 1\n"}, in_git=False)
    project.play("equal")
    project.write(KERNEL, TIDIER)
    verdict = project.play("equal").verdict
    assert verdict and verdict.decision == "ROLLED_BACK"
    assert "is unchanged and no extra benefit is stated" in verdict.reason
    assert project.kernel() == {KERNEL: b"OLD = 1\n"}
    project.write(KERNEL, TIDIER)
    verdict = project.play("equal with a benefit").verdict
    assert verdict and verdict.decision == "ACCEPTED_WITH_NOTE"
    assert "easier to read" in verdict.reason
    assert project.kernel() == {KERNEL: TIDIER}


def test_three_failed_repairs_roll_back_to_the_last_accepted(tmp_path: Path) -> None:
    """Not to the round before, which was rolled back itself."""
    project = DrivenCampaign(tmp_path / "project", {KERNEL: b"OLD = 1\n"}, in_git=True)
    for name, outcome in (("OLD", "equal"), ("BEST", "faster"), ("SLOW", "slower")):
        project.write(KERNEL, f"{name} = 1\n".encode())
        assert project.play(outcome).verdict
    failed = [f"WRONG = {number}\n".encode() for number in range(4)]
    verdicts = []
    for version in failed:
        project.write(KERNEL, version)
        verdicts.append(project.play("wrong").verdict)
    assert [verdict and verdict.decision for verdict in verdicts] == [
        *["REPAIR"] * 3,
        "ROLLED_BACK",
    ]
    assert verdicts[-1] and "repair 3 of 3" in verdicts[-1].reason
    assert project.kernel() == {KERNEL: b"BEST = 1\n"}
    for attempt, version in enumerate(failed, start=1):
        kept = project.layout.attempt(4, attempt) / "kernel_snapshot" / KERNEL
        assert kept.read_bytes() == version, "no attempt is lost"
    assert "| 4 | ROLLBACK |" in project.layout.trend.read_text()


def opened(option: str, manifest: str, *frozen: str) -> SimpleNamespace:
    """Return a round of a campaign whose cases were timed by these engines."""
    names = [f"test_a.py::test[{i}]" for i in range(len(frozen))]
    cases = zip(names, frozen, strict=True)
    return SimpleNamespace(
        settings=SimpleNamespace(engine=option),
        campaign=SimpleNamespace(manifest=SimpleNamespace(engine=manifest)),
        frozen={name: SimpleNamespace(engine=engine) for name, engine in cases},
    )


@pytest.mark.parametrize(
    ("option", "manifest", "frozen", "engine"),
    [
        ("auto", "auto", (), "auto"),
        ("auto", "events", (), "events"),
        ("wall", "auto", (), "wall"),
        ("graph", "auto", ("graph+graph", "graph+events"), "graph"),
    ],
)
def test_the_manifest_names_the_engine_where_no_option_does(
    option: str, manifest: str, frozen: tuple[str, ...], engine: str
) -> None:
    assert engine_of(opened(option, manifest, *frozen)) == engine  # type: ignore[arg-type]


def test_an_engine_that_is_not_the_baselines_is_refused() -> None:
    """It would lose to the baseline's without a word."""
    with pytest.raises(BadInput) as refusal:
        engine_of(opened("wall", "auto", "graph+graph", "events"))  # type: ignore[arg-type]
    assert "wall, but the baseline was timed by events, graph" in str(refusal.value)
    assert "--kopt-engine" in str(refusal.value)
