"""Both versions are tried at shapes near the declared ones, in a process that times neither."""

from __future__ import annotations

import json

import pytest

from .project import KERNEL, Project
from .sources import begun

CASES = """\
import json

import pytest
import torch
from kernels.doubled import doubled


@pytest.mark.kopt(schema="memory")
@pytest.mark.parametrize("rows", [512])
def test_doubled(kopt, rows):
    kopt(
        doubled,
        inputs=lambda: (torch.randn(rows, 64),),
        reference=lambda x: 2 * x.double(),
        dims={"rows": rows, "columns": 64},
        nbytes=512 * rows,
    )
"""
SLOW = """\
import torch


def doubled(x):
    return torch.stack([row + row for row in x])
"""
SPECIAL = """\
import torch


def doubled(x):
    out = torch.zeros_like(x)
    whole = len(x) // 32 * 32
    return torch.add(x[:whole], x[:whole], out=out[:whole]) if whole == len(x) else out
"""


NARROW = """\
import torch


def doubled(x):
    assert len(x) % 32 == 0, "rows come in tiles"
    return x + x
"""


NEARLY_AS_FAST = """\
import torch


def doubled(x):
    return torch.cat([part + part for part in x.tensor_split(24)])
"""


@pytest.fixture
def slow(empty: Project) -> Project:
    """A campaign whose baseline is slow and supports every shape."""
    return begun(empty, CASES, SLOW)


@pytest.mark.long
def test_a_kernel_for_the_declared_shapes_only_is_to_be_repaired(slow: Project) -> None:
    slow.write(KERNEL, SPECIAL)
    run = slow.round(2)
    assert run.code == 1, run.text
    verdict = slow.verdict(2)
    assert verdict["decision"] == "REPAIR"
    assert "held-out-shape: wrong at rows=" in verdict["reason"]
    near = {found["kind"]: found for found in slow.evidence(2)["session"]["held_out"]}
    aligned, uneven = near["aligned"], near["uneven"]
    assert aligned["outcomes"] == {"incumbent": "right", "candidate": "right"}
    assert uneven["outcomes"] == {"incumbent": "right", "candidate": "wrong"}
    seconds = aligned["seconds"]
    assert seconds["incumbent"] > 2 * seconds["candidate"]
    assert aligned["dims"]["rows"] in (256, 768)


@pytest.mark.long
def test_a_kernel_that_says_what_it_does_not_support_is_kept_with_a_note(slow: Project) -> None:
    slow.write(KERNEL, NARROW)
    run = slow.round(2)
    assert run.code == 0, run.text
    verdict = slow.verdict(2)
    assert verdict["decision"] == "ACCEPTED_WITH_NOTE"
    assert "supports less than the incumbent: held-out-shape: raises at rows=" in verdict["reason"]


@pytest.mark.long
def test_a_winner_that_is_found_out_takes_nobody_with_it(slow: Project) -> None:
    """It is right at the declared shape and the fastest; the next best is judged in its place."""
    for name, text in (("special", SPECIAL), ("honest", NEARLY_AS_FAST)):
        slow.write(f"ideas/{name}/{KERNEL}", text)
    given = ("--kopt-candidates=ideas/special", "--kopt-candidates=ideas/honest")
    run = slow.round("next", *given)
    assert run.code == 0, run.text
    verdict = slow.verdict(2)
    first, second = verdict["candidates"]
    assert verdict["decision"] == first["decision"] == "ACCEPTED"
    assert (first["name"], second["name"]) == ("ideas/honest", "ideas/special")
    assert second["decision"] == "REPAIR" and "held-out-shape: wrong at rows" in second["reason"]
    assert second["change_pct"] > first["change_pct"] > 0
    assert slow.git("show", f"HEAD:{KERNEL}") == NEARLY_AS_FAST


@pytest.mark.parametrize(
    ("kernel", "code", "decision", "said"),
    [
        (SPECIAL, 1, "REPAIR", "held-out-shape: wrong at rows="),
        (NARROW, 0, "ACCEPTED_WITH_NOTE", "less than the other side: held-out-shape: raises"),
    ],
    ids=["wrong nearby", "raises nearby"],
)
def test_a_gate_says_what_a_round_says_of_shapes_nearby(
    empty: Project, kernel: str, code: int, decision: str, said: str
) -> None:
    empty.write("tests/test_cases.py", CASES)
    empty.write(KERNEL, SLOW)
    empty.commit_all("The base")
    empty.write(KERNEL, kernel)
    told = empty.root / "verdict.json"
    run = empty.pytest("--kopt-base=HEAD", "--kopt-verdict", str(told), "tests")
    assert run.code == code, run.text
    verdict = json.loads(told.read_text())
    assert verdict["decision"] == decision and said in verdict["reason"]
    assert "held-out-shape" in {found["check"] for found in verdict["findings"]}


UNTIL_WARM = """\
import os


def doubled(x):
    return x + x if os.environ.get("WARM") else x
"""


def test_files_that_failed_are_not_right_without_an_edit_or_a_reason(slow: Project) -> None:
    """A tuner was wrong until its cache on disk was warm: REPAIR, and ACCEPTED the next time."""
    slow.write(KERNEL, UNTIL_WARM)
    assert slow.round(2).code == 1
    assert slow.verdict(2)["decision"] == "REPAIR", slow.verdict(2)
    run = slow.round(2, WARM="1")
    assert run.code == 1, run.text
    verdict = slow.verdict(2)
    assert verdict["decision"] == "REPAIR"
    assert "the same files failed in round 2, attempt 1" in verdict["reason"]
    assert "root_cause" in verdict["next_step"]
    why = "WARM was not set at first"
    notes = slow.notes(hypothesis="fewer calls", root_cause=why)
    run = slow.round(2, "--kopt-notes", notes, WARM="1")
    assert run.code == 0, run.text
    verdict = slow.verdict(2)
    assert verdict["decision"] == "ACCEPTED_WITH_NOTE" and why in verdict["reason"]
