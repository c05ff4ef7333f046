"""Sources that are the same program, and sources that are not: no kernel runs, no clock either."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_kopt.sameness.sources import differing
from tests.source_edits import HARMLESS, MAIN, mutants, project

_DICE = st.randoms(use_true_random=False)


@pytest.mark.parametrize("edit", HARMLESS, ids=lambda edit: edit.__name__)
@pytest.mark.parametrize("seed", range(8))
def test_an_edit_that_changes_nothing(edit: Any, seed: int) -> None:
    edited = edit(project(), random.Random(seed))
    assert edited != project() or edit.__name__.startswith("docstr")
    assert differing(project(), edited) == []


@given(edits=st.lists(st.sampled_from(HARMLESS), min_size=1, max_size=6), dice=_DICE)
def test_any_number_of_them(edits: list[Any], dice: random.Random) -> None:
    edited = project()
    for edit in edits:
        edited = edit(edited, dice)
    assert differing(project(), edited) == []


def test_every_mutant_differs() -> None:
    assert len(mutants()) >= 200
    called_same = [what for what, files in mutants() if not differing(project(), files)]
    assert called_same == []


@given(
    mutant=st.deferred(lambda: st.sampled_from(mutants())),
    edits=st.lists(st.sampled_from(HARMLESS), max_size=3),
    dice=_DICE,
)
def test_a_mutant_is_not_hidden_by_harmless_edits(
    mutant: tuple[str, dict[str, bytes]], edits: list[Any], dice: random.Random
) -> None:
    files = mutant[1]
    for edit in edits:
        files = edit(files, dice)
    assert differing(project(), files), mutant[0]


def replaced(old: str, new: str) -> dict[str, bytes]:
    """Return the project with a text replaced in its main file."""
    files = project()
    text = files[MAIN].decode()
    assert old in text
    return {**files, MAIN: text.replace(old, new).encode()}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # What a name means changes, though no name or number is another one.
        ("import math\n", "import math\nfrom cmath import *\n"),
        ("import math\n", "import cmath as math\n"),
        ("from .sizes import rounded", "from .sizes import padded as rounded"),
        (
            "from .sizes import rounded",
            "from .sizes import rounded\nfrom operator import le as max",
        ),
        ("LIMIT = 1 << 16\n", "LIMIT = 1 << 16\nsorted = list\n"),
        ("kept = []", "kept = []\n    global LIMIT"),
        ("part = value // 2", "value = value // 2\n        part = value"),
        ("for value in values:", "for values in values:"),
        ("kept", "chosen"),
        ("lambda item: -item[1]", "lambda item: -ordered[1]"),
        # The same statements in an order that matters.
        (
            'FAST = os.environ.get("SCALE_FAST", "1") == "1"\nLIMIT = 1 << 16\n',
            'LIMIT = 1 << 16\nFAST = os.environ.get("SCALE_FAST", "1") == "1"\n',
        ),
        ("import os\n", ""),
        ("import torch\n", "import torch\nimport setup_everything\n"),
        # What bytecode does not show.
        ("shift: tl.constexpr = 3", "shift: int = 3"),
        ("shift: tl.constexpr = 3", "shift = 3"),
        ("EVEN: tl.constexpr = True", "EVEN=True"),
        # A file that reads its own text.
        ("import os\n", "import os\nimport inspect\n"),
    ],
)
def test_edits_that_mean_something_else(old: str, new: str) -> None:
    assert differing(project(), replaced(old, new))


def test_a_file_whose_text_counts() -> None:
    """A comment is a change where the program may look at it."""
    for line in (b"import inspect\n", b"where = __file__\n", b"names = dir()\n"):
        old = {MAIN: project()[MAIN] + line}
        assert differing(old, {MAIN: old[MAIN] + b"# more\n"}) == [MAIN]
    assert differing({MAIN: b"x = 1 +\n"}, {MAIN: b"x = 1 + # more\n"}) == [MAIN]


PIECES = (
    *("LIMIT = 3", "LIMIT = 4", "STATE = []", "STATE.append(LIMIT)", "OTHER = one(2)"),
    *("def one(n):\n    return n + LIMIT", "def two(n, m=LIMIT):\n    return one(n) * m"),
    *("def one(n):\n    rest = n\n    return rest - 1", "from math import floor as one"),
    *("def three(n):\n    LIMIT = n + 1\n    return LIMIT + len(STATE)", "import math"),
    *("def four(n):\n    global LIMIT\n    LIMIT = n\n    return two(n)", "max = min"),
    *("def five(n):\n    rest = [n for n in range(n)]\n    return max(rest, default=n)",),
    *("import functools", "two = functools.partial(one)", "del LIMIT", "def len(x):\n    return 7"),
    *("class A:\n    LIMIT = LIMIT\n    def one(self):\n        return one(1)", "OTHER = LIMIT"),
)


def outcome(text: str) -> str:
    """Run a program and return what all of its functions give, or why it fails."""
    space: dict[str, Any] = {}
    found = []
    try:
        exec(compile(text, "a.py", "exec", dont_inherit=True), space)
    except Exception as error:
        return f"{type(error).__name__}"
    for name in ("one", "two", "three", "four", "five", "A", "OTHER", "LIMIT", "STATE"):
        value = space.get(name)
        try:
            found.append(value(5) if callable(value) and name != "A" else repr(value)[:10])
        except Exception as error:
            found.append(type(error).__name__)
    return repr(found)


@settings(max_examples=200)
@given(pieces=st.lists(st.sampled_from(PIECES), min_size=2, max_size=9), dice=_DICE)
def test_programs_that_are_called_the_same_do_the_same(
    pieces: list[str], dice: random.Random
) -> None:
    """Any statement may go anywhere: whatever is called the same gives the same when it is run."""
    other = list(pieces)
    for _ in range(dice.randrange(1, 3)):
        other.insert(dice.randrange(len(other)), other.pop(dice.randrange(len(other))))
    old, new = "\n".join(pieces) + "\n", "\n".join(other) + "\n"
    if outcome(old).endswith("Error"):
        return
    if not differing({"a.py": old.encode()}, {"a.py": new.encode()}):
        assert outcome(old) == outcome(new)
