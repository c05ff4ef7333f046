"""Seeds: secret while a session runs, recorded afterwards."""

from __future__ import annotations

import re

from .project import TWO_WORKERS, Project
from .sources import SETTINGS

SEEDED = """\
import pytest
import torch


def inputs():
    x = torch.randn(4)
    with open("inputs.log", "a") as log:
        print(x.tolist(), file=log)
    return (x,)


@pytest.mark.kopt
def test_case(kopt):
    kopt(torch.neg, inputs=inputs, reference=lambda x: -x.double(), dims={"n": 4})
"""


def test_a_session_is_repeated_from_its_recorded_seed(empty: Project) -> None:
    """The seed is a fresh secret each session and stands beside the CSV afterwards."""
    empty.write("pyproject.toml", SETTINGS)
    empty.write("tests/test_seeded.py", SEEDED)
    inputs = []
    words: tuple[str, ...] = ()
    for name in ("first", "other"):
        run = empty.pytest("--summary-csv", f"{name}/rows.csv")
        assert run.code == 0, run.text
        inputs.append(empty.read("inputs.log"))
        (empty.root / "inputs.log").unlink()
    assert inputs[0] != inputs[1], "two sessions must not share their inputs"

    sidecars = [path.read_text() for path in sorted((empty.root / "first").iterdir())]
    found = re.search(r'"session_seed": ?"?(\d+)', "\n".join(sidecars))
    assert found, "no file beside the CSV holds the session's seed"
    words = ("-o", f"kopt_seed={found[1]}", "--summary-csv", "again.csv", *TWO_WORKERS)
    run = empty.pytest(*words)
    assert run.code == 0, run.text
    assert empty.read("inputs.log") == inputs[0]
