"""The campaigns of `benchmarks/campaigns`: how a step's edits apply, and that kernels are right."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pytest_kopt.campaign import tips
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.campaign.state import Round

from . import nursery

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from run_campaign import NotApplicable, Step, edited, load, names  # noqa: E402

SOURCE = """\
import math

#: How many.
COUNT = 4


@decorated
def first(x):
    return x + COUNT


def second(x):
    return first(x)
"""


@pytest.mark.parametrize(
    ("edit", "old", "new"),
    [
        ({"replace": "COUNT = 4", "with": "COUNT = 8"}, "COUNT = 4", "COUNT = 8"),
        (
            {"define": "first", "as": "def first(x):\n    return 2 * x\n"},
            "@decorated\ndef first(x):\n    return x + COUNT\n",
            "def first(x):\n    return 2 * x\n",
        ),
        ({"define": "COUNT", "as": "COUNT = 2"}, "COUNT = 4\n", "COUNT = 2\n"),
        (
            {"insert": "def zeroth():\n    pass\n", "before": "first"},
            "@decorated",
            "def zeroth():\n    pass\n\n\n@decorated",
        ),
        (
            {"remove": "first"},
            "@decorated\ndef first(x):\n    return x + COUNT\n\n\n",
            "",
        ),
    ],
)
def test_an_edit_changes_one_place(edit: dict[str, str], old: str, new: str) -> None:
    assert SOURCE.count(old) == 1
    assert edited(SOURCE, [edit]) == SOURCE.replace(old, new)


@pytest.mark.parametrize(
    "edit",
    [
        {"replace": "x", "with": "y"},
        {"replace": "absent", "with": "y"},
        {"define": "third", "as": "third = 3"},
        {"remove": "third"},
    ],
)
def test_an_edit_that_does_not_fit_one_place_is_refused(edit: dict[str, str]) -> None:
    with pytest.raises(NotApplicable):
        edited(SOURCE, [edit])


def test_what_is_noted_afterwards_follows_the_outcome() -> None:
    step = Step(
        name="02_step",
        notes={},
        attempts=(),
        kept={"lesson": "it helps"},
        lost={"lesson": "it does not", "root_cause": "unknown"},
        tip=("here", "there"),
    )
    assert step.afterwards(True) == {
        "lesson": "it helps",
        "tip": "it helps (here; there)",
    }
    assert step.afterwards(False)["tip"] == "it does not (here; there)"


@pytest.mark.parametrize("name", names())
def test_a_campaign_can_be_told_to_its_end(name: str) -> None:
    """Each step applies to the whole chain, and to the baseline where it needs no other."""
    plan = load(name)
    assert len(plan.steps) >= 8
    assert sum(len(step.attempts) > 1 for step in plan.steps) == 1, "one honest mistake"
    known = {step.name for step in plan.steps}
    source = plan.source()
    for step in plan.steps:
        assert {*step.needs, step.resolves or step.name} <= known
        assert {"summary", "hypothesis", "change", "expected", "evidence", "bucket"} <= set(
            step.notes
        )
        assert step.kept["lesson"] and step.lost["lesson"] and step.lost["root_cause"]
        for kept in (True, False):
            noted = Notes.model_validate(step.notes | step.afterwards(kept))
            tips.check(noted, Round(2), name)
        for edits in step.attempts:
            source = edited(source, edits)
            compile(source, step.name, "exec")
        if not step.needs:
            edited(plan.source(), step.attempts[0])


def check(name: str, *versions: str) -> dict[str, bool]:
    """Return which versions of a campaign's kernel are right, in Triton's interpreter."""
    done = nursery.run(
        [sys.executable, str(Path(__file__).with_name("check_kernels.py")), name, *versions],
        cwd=Path.cwd(),
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(BENCHMARKS)},
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    words = (line.split() for line in done.stdout.splitlines())
    return {version: found == "right" for version, found in words}


def expected(name: str) -> dict[str, bool]:
    """A first attempt that has repairs is the one that is wrong."""
    found = {"baseline": True}
    for step in load(name).steps:
        for place in range(len(step.attempts)):
            found[f"{step.name}:{place}"] = place == len(step.attempts) - 1
    return found


def test_a_mistake_is_one_and_its_repair_mends_it() -> None:
    pytest.importorskip("triton")
    versions = ("baseline", "02_one_pass:0", "02_one_pass:1")
    wanted = expected("rmsnorm")
    assert check("rmsnorm", *versions) == {name: wanted[name] for name in versions}


@pytest.mark.long
@pytest.mark.parametrize("name", names())
def test_every_version_is_right_but_the_one_that_is_repaired(name: str) -> None:
    pytest.importorskip("triton")
    assert check(name) == expected(name)
