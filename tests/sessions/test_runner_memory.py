"""What kernel code finds where it runs: a probe looks at everything that its process holds.

What it found is held against the table in docs/confinement.md, row by row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .paired import PLAIN, Gate, kernel, project_at
from .project import CAMPAIGN, SCRIPT

#: Looks once where a case is checked and once in a timed block.
PROBE = """
import gc
import inspect
import json
import os
import re
import sys
from pathlib import Path

_plain, _calls, _logs = plain, [], Path(os.environ["TRACE"]).parent


def plain(x):
    result = _plain(x)
    _calls.append(1)
    if len(_calls) > 2:
        _look()
    return result


def _look():
    held, names, frame = [sys.modules, os.environ, sys.argv], set(), sys._getframe(1)
    while frame is not None:
        names.add(frame.f_code.co_name)
        held += [frame.f_locals, frame.f_code]
        frame = frame.f_back
    where = "timed" if {"serve_arms", "run_written"} <= names else ""
    where = "checked" if "run_case" in names else where
    log = _logs / f"held-{where}"
    if not where or log.exists():
        return
    found = [*held, *gc.get_objects(), *gc.get_referents(*held, *gc.get_objects())]
    while held:
        # What cannot be in a circle is not tracked: tuples and dicts of numbers and texts.
        held = [x for x in gc.get_referents(*found[-len(held):]) if not gc.is_tracked(x)]
        held = [x for x in held if type(x) in (tuple, dict)]
        found += held
    numbers = {x for x in found if type(x) is int and x > 1 << 32}
    texts = {x for x in found if type(x) is str}
    texts |= {x.decode(errors="replace") for x in found if type(x) is bytes and len(x) < 100_000}
    texts |= {str(x) for x in found if isinstance(x, Path)}
    codes = {getattr(x, "__code__", x) for x in found if inspect.isfunction(x) or inspect.iscode(x)}
    kinds = {type(x) for x in found}
    open_files = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    log.write_text(json.dumps({
        "told": len((_logs / "told").read_text().splitlines()),
        "numbers": [*numbers, *{int(n) for x in texts for n in re.findall("[0-9]{11,20}", x)}],
        "texts": [x for x in texts if os.getcwd() in x or CAMPAIGN in x]
        + [os.readlink(path) for path in open_files if os.path.lexists(path)]
        + Path("/proc/self/cmdline").read_text().split(chr(0))
        + Path("/proc/self/environ").read_text().split(chr(0))
        + [f"{name}={value}" for name, value in os.environ.items()]
        + Path("/proc/self/maps").read_text().splitlines(),
        "code": [f"{code.co_filename} {code.co_qualname}" for code in codes],
        "kinds": [f"{kind.__module__}.{kind.__qualname__}" for kind in kinds],
    }))
""".replace("CAMPAIGN", f"{CAMPAIGN[::-1]!r}[::-1]")
#: Has the deciding process write down what it tells the others, seeds as well.
LISTENS = """
from pathlib import Path

from pytest_kopt.processes.channel import text_of
from pytest_kopt.processes.child import Child

_send = Child.send


def _noted(self, order):
    with open(Path(os.environ["TRACE"]).with_name("told"), "a") as log:
        print(text_of(order).decode(), file=log)
    _send(self, order)


Child.send = _noted
"""
CASES = """
import pytest
import torch
from kernels.plain import plain


@pytest.mark.kopt
@pytest.mark.parametrize("rows", [1, 2])
def test_plain(kopt, rows):
    kopt(
        plain,
        inputs=lambda: (torch.randn(rows, 8),),
        reference=lambda x: 2 * x.double(),
        dims={"rows": rows},
    )
"""
SEED = 5_555_555_555_555
DOCUMENT = Path(__file__).parents[2] / "docs/confinement.md"

#: The rows of the table, and when one is found in what a process held and was told before.
FACTS: dict[str, Callable[[Mapping[str, Any], set[int], set[int]], bool]] = {
    "the test module, and so `inputs()`, reference and gate of every case": lambda held, _, __: any(
        text.endswith("/tests/test_plain.py test_plain.<locals>.<lambda>") for text in held["code"]
    ),
    "where the project and its tests lie": lambda held, _, __: any(
        text.endswith("/tests/test_plain.py") for text in held["texts"]
    ),
    "seeds of the running case and block, in use": lambda held, before, _: (
        not before.isdisjoint(held["numbers"])
    ),
    "the session's seed": lambda held, _, __: SEED in held["numbers"],
    "seeds of blocks, cases and shapes to come": lambda held, _, after: (
        not after.isdisjoint(held["numbers"])
    ),
    "how exact the baseline's results were": lambda held, _, __: (
        "pytest_kopt.honesty.accuracy.Accuracy" in held["kinds"]
    ),
    "a path to the campaign, its records, notes or verdict": lambda held, _, __: any(
        word in text for text in held["texts"] for word in (CAMPAIGN, "agent/", "the-notes")
    ),
    "times, verdicts, or what the judge found": lambda held, _, __: any(
        kind.startswith(("pytest_kopt.paired.", "pytest_kopt.decide.verdict.Verdict"))
        for kind in held["kinds"]
    ),
}


def seeds(message: Mapping[str, Any]) -> set[int]:
    return {
        int(number) for number in re.findall(r'"(?:seed|secret)": (\d{11,})', json.dumps(message))
    }


def test_a_runner_holds_what_the_document_says_and_nothing_else(tmp_path: Path) -> None:
    project = project_at(tmp_path / "project")
    project.write("tests/test_plain.py", CASES)
    project.write(SCRIPT, project.read(SCRIPT) + LISTENS)
    project.commit_all("Have two cases")
    words = ("--op", "plain", "--kernel", PLAIN, "--backend", "TORCH", "--gpu", "cpu")
    assert project.kopt("init", CAMPAIGN, *words).code == 0
    gate = Gate(project)
    variables = gate.variables()
    assert project.round(1, **variables).code == 0
    project.write(PLAIN, kernel(cost=375.0, who="plain new") + PROBE)
    notes = gate.private / "the-notes.yaml"
    notes.write_text("hypothesis: it is faster\n")
    options = f"--kopt-notes={notes} -o kopt_seed={SEED} -p no:randomly"
    run = project.round(2, **variables, PYTEST_ADDOPTS=options)
    assert run.code == 8, run.text

    told = [seeds(json.loads(line)) for line in (gate.private / "told").read_text().splitlines()]
    found = {}
    for where in ("timed", "checked"):
        held = json.loads((gate.private / f"held-{where}").read_text())
        before, after = (
            set().union(*part) for part in (told[: held["told"]], told[held["told"] :])
        )
        assert len(after - before) > 5
        found[where] = {row: rule(held, before, after - before) for row, rule in FACTS.items()}
    lines = [line.strip("| ").split(" | ") for line in DOCUMENT.read_text().splitlines()]
    written = {cells[0]: tuple(cells[1:]) for cells in lines if cells[0] in FACTS}
    assert written == {
        row: tuple("yes" if found[where][row] else "no" for where in ("timed", "checked"))
        for row in FACTS
    }
