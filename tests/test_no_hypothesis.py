"""What is no hypothesis is refused before anything runs, as `kopt status` says beforehand."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_kopt.campaign import running
from pytest_kopt.errors import KernelError
from tests.campaigns import lines_of, status_of
from tests.crash import Steps
from tests.driven_campaign import CASES, RATES, DrivenCampaign, files_below
from tests.model_campaign import OUTCOMES

KERNEL = "kernels/a.py"


def shown(project: DrivenCampaign) -> dict[str, Any]:
    return status_of(project.opened())


def ended(project: DrivenCampaign) -> dict[str, Any]:
    """What whoever polls finds of a session that is over."""
    found = running.read(project.layout.running)
    assert found is not None and found["phase"] == "ended"
    return found


@pytest.fixture
def project(tmp_path: Path) -> DrivenCampaign:
    project = DrivenCampaign(tmp_path / "project", {KERNEL: b"OLD = 1\n"}, in_git=False)
    assert project.play("equal").verdict
    return project


def test_the_incumbents_kernel_needs_no_round(project: DrivenCampaign) -> None:
    before = files_below(project.root, project.root)
    ran = project.play("faster")
    assert "kernels: the same code as round 1: nothing to measure" in ran.refusal
    assert files_below(project.root, project.root) == before
    assert "discard" not in ran.refusal, "no round is open"
    document = shown(project)
    assert document["nothing_to_measure"] == ran.refusal
    assert not any("--kopt-round 2" in command for command in document["allowed"])
    assert document["next"].startswith("change the kernel (one hypothesis), then: pytest")
    project.write(KERNEL, b"OLD = 1\n# saved\n")
    assert project.play("faster").refusal == ran.refusal, "a comment is no other code"
    document = shown(project)
    assert document["next_action"]["action"] == "change_kernel"
    assert any("but runs the same code" in line for line in lines_of(document))
    project.write(KERNEL, b"OLD = 2\n")
    assert shown(project)["nothing_to_measure"] is None
    assert project.play("faster").verdict


def test_an_extra_benefit_keeps_the_same_code_at_once(project: DrivenCampaign) -> None:
    """Whatever the cases would show: they are not asked."""
    project.write(KERNEL, b"# What it is good for.\nOLD = 1\n")
    before = project.opened()
    wrong = replace(OUTCOMES["wrong"], benefit=True)
    ran = project.measure("next", wrong, RATES, Steps(project.root))
    assert ran.verdict and ran.verdict.decision == "ACCEPTED_WITH_NOTE", ran
    assert ran.verdict.compare == "none" and "easier to read" in ran.verdict.reason
    assert "the same code as round 1" in ran.verdict.reason
    assert [shape.same for shape in ran.verdict.shapes] == ["source"] * 4
    after = project.opened()
    assert after.state.incumbent_round == 2
    assert after.best.table() == before.best.table()
    assert after.candidate().same_content(after.incumbent()), "the new text is what is kept"
    decided = after.state.rounds[2].verdict
    assert decided and decided.paired and decided.paired.step_pct == 0.0, "the chain goes on"


def test_the_incumbents_files_may_have_failed_before_they_became_its(tmp_path: Path) -> None:
    project = DrivenCampaign(tmp_path / "project", {KERNEL: b"OLD = 1\n"}, in_git=False)
    assert project.play("wrong").verdict
    assert project.play("equal").verdict
    ran = project.play("equal with a benefit")
    assert ran.verdict and ran.verdict.decision == "ACCEPTED_WITH_NOTE", ran


def test_an_open_round_whose_kernel_was_put_back(project: DrivenCampaign) -> None:
    project.write(KERNEL, b"NEW = 1\n")
    assert project.play("wrong").verdict
    project.write(KERNEL, b"OLD = 1\n")
    assert "nothing to measure" in project.play("faster").refusal
    assert "nothing to measure" in shown(project)["next"]
    project.write(KERNEL, b"NEW = 2\n")
    ran = project.play("faster")
    assert ran.verdict and (ran.verdict.round, ran.verdict.attempt) == (2, 2)


def test_an_edited_harness_is_no_candidates_doing(project: DrivenCampaign) -> None:
    project.write(KERNEL, b"NEW = 1\n")
    harness = (project.root / CASES).read_bytes()
    project.write(CASES, harness + b"# a comment\n")
    before = files_below(project.root, project.root)
    refusal = project.play("faster").refusal
    assert ended(project)["exit_code"] == 4 and ended(project)["error"]["text"] == refusal
    assert f"{CASES} was edited" in refusal and "kopt init NEW --from c" in refusal
    assert files_below(project.root, project.root) == before
    project.write(CASES, harness)
    ran = project.play("faster")
    assert ran.verdict and (ran.verdict.round, ran.verdict.attempt) == (2, 1)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (b"OLD = 1\ndef broken(:\n", "kernels/a.py:2: SyntaxError"),
        (b"return 1\n", "kernels/a.py:1: SyntaxError: 'return' outside function"),
        (b"OLD = 1\0\n", "kernels/a.py"),
    ],
)
def test_a_kernel_that_does_not_parse(project: DrivenCampaign, text: bytes, where: str) -> None:
    project.write(KERNEL, text)
    before = files_below(project.root, project.root)
    with pytest.raises(KernelError) as error:
        project.play("faster")
    assert str(error.value).startswith(where) and "nothing was measured" in str(error.value)
    assert files_below(project.root, project.root) == before
    document = shown(project)
    assert document["next_action"]["arguments"]["error"]["text"] == str(error.value)
    assert str(error.value) in document["next"]
    assert not any("--kopt-round" in command for command in document["allowed"])
    left = ended(project)
    assert (left["exit_code"], left["error"]["text"]) == (1, str(error.value))


def test_a_kernel_that_did_not_import_is_told_until_it_is_edited(project: DrivenCampaign) -> None:
    project.write(KERNEL, b"import no_such\n")
    why = f"the kernel does not import; nothing was measured\n{KERNEL}:1: in <module>"
    running.end(project.layout.running, 1, KernelError(why))
    document = shown(project)
    assert (document["running"]["error"]["file"], document["running"]["error"]["line"]) == (
        *(KERNEL, 1),
    )
    asked = document["next_action"]
    assert (asked["action"], asked["arguments"]["error"]["line"]) == ("mend_kernel", 1)
    # As `cp -p` puts an older version back.
    earlier = project.layout.running.stat().st_mtime - 60
    project.write(KERNEL, b"NEW = 1\n")
    os.utime(project.root / KERNEL, (earlier, earlier))
    document = shown(project)
    assert document["running"] is None and document["next_action"]["action"] == "run_round"


def test_only_python_has_to_parse(project: DrivenCampaign) -> None:
    project.write("kernels/a.cu", b"__global__ void f() {}\n")
    assert project.play("faster").verdict
