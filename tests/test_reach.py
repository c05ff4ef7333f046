"""Functions that a change of a file does not reach, and every way in which it may reach one."""

from __future__ import annotations

import pytest

from pytest_kopt.sameness.sources import differing, unreached
from tests.source_edits import mutants, project

OPS = """\
import math
import torch
import triton
from . import helpers
from .helpers import twice as doubled

SIZE = 128
CACHE = {}


@triton.jit
def shared(x):
    return x * 2


@triton.jit
def first_kernel(x):
    return shared(x) + 1


def first(x):
    return first_kernel(x) + SIZE


def second(x):
    return doubled(x) - SIZE


def third(x):
    CACHE[x] = x
    return helpers.thrice(x)
"""
HELPERS = """\
def twice(x):
    return x * 2


def thrice(x):
    return x * 3
"""
_SECOND, _THIRD = (OPS.index(f"def {name}(") for name in ("second", "third"))
THIRD_BEFORE_SECOND = f"{OPS[_THIRD:]}\n\n{OPS[_SECOND:_THIRD].rstrip()}\n"
ALL = {"first", "second", "third"}
PATHS = ("kernels/ops.py", "kernels/helpers.py")
FILES = dict(zip(PATHS, (OPS.encode(), HELPERS.encode()), strict=True))


def edited(*edits: tuple[str, str]) -> dict[str, bytes]:
    """Return the files with texts replaced, each where it stands."""
    files = {path: content.decode() for path, content in FILES.items()}
    for old, new in edits:
        assert any(old in text for text in files.values()), old
        files = {path: text.replace(old, new) for path, text in files.items()}
    return {path: text.encode() for path, text in files.items()}


def runs_none_of(name: str, *edits: tuple[str, str]) -> bool:
    return unreached(name, FILES, edited(*edits), PATHS) is not None


@pytest.mark.parametrize(
    ("edit", "reaches"),
    [
        (("x) + 1", "x) + 2"), {"first"}),
        (("return x * 2\n\n\n@", "return x * 4\n\n\n@"), {"first"}),
        (("doubled(x) -", "doubled(x) +"), {"second"}),
        (("def twice(x):\n    return x * 2", "def twice(x):\n    return x * 5"), {"second"}),
        (("x * 3", "x * 4"), {"third"}),
        (("def first(x):", "def more(x):\n    return x\n\n\ndef first(x):"), set()),
        (("CACHE = {}", "CACHE = {}\n__all__ = ['first']"), ALL),
        (
            (
                "def second(x):",
                "@triton.jit\ndef more(x, n=SIZE):\n    return x\n\n\ndef second(x):",
            ),
            set(),
        ),
        # A definition that runs code of the project, or reads a variable.
        (("def second(x):", "def more(x, n=doubled(1)):\n    return x\n\n\ndef second(x):"), ALL),
        (("def second(x):", "def more(x, n=CACHE[1]):\n    return x\n\n\ndef second(x):"), ALL),
        # Functions in another order.
        ((OPS[_SECOND:], THIRD_BEFORE_SECOND), ALL),
        # What runs on import, and state that functions share, concern all of them.
        (("SIZE = 128", "SIZE = 64"), ALL),
        (("CACHE[x] = x", "CACHE[x] = 2 * x"), ALL),
        (("import math", "import cmath as math"), ALL),
    ],
)
def test_a_change_reaches_those_that_can_run_it(edit: tuple[str, str], reaches: set[str]) -> None:
    assert {name for name in ALL if not runs_none_of(name, edit)} == reaches


@pytest.mark.parametrize(
    "way",
    [
        "def second(x):\n    return getattr(helpers, 'thr' + 'ice')(x)",
        "def second(x):\n    return getattr(helpers, 'thrice')(x)",
        "def second(x):\n    import sys\n    return sys.modules['kernels.helpers'].thrice(x)",
        "def second(x):\n    from .helpers import thrice as other\n    return other(x)",
        "def second(x):\n    return (lambda y: helpers.thrice(y))(x)",
        "def second(x):\n    return globals()['th' + 'rice'](x)",
        "class Op:\n    run = helpers.thrice\n\n\ndef second(x):\n    return Op.run(x)",
        "TABLE = {'a': helpers.thrice}\n\n\ndef second(x):\n    return TABLE['a'](x)",
        "from .helpers import *\n\n\ndef second(x):\n    return thrice(x)",
        "from .helpers import thrice as max\n\n\ndef second(x):\n    return max(x)",
        "LATE = 'thrice'\n\n\ndef second(x):\n    return torch.run(LATE, x)",
        "def second(x, by=helpers.thrice):\n    return by(x)",
        "def middle(x):\n    return helpers.thrice(x)\n\n\ndef second(x):\n    return middle(x)",
        "import inspect\n\n\ndef second(x):\n    return inspect.getmodule(x).run(x)",
    ],
)
def test_ways_to_come_by_a_function(way: str) -> None:
    """None of them may be missed: a case would not be timed though its code changed."""
    plain = "def second(x):\n    return doubled(x) - SIZE"
    before, after = edited((plain, way)), edited((plain, way), ("x * 3", "x * 4"))
    assert unreached("second", before, after, PATHS) is None


@pytest.mark.parametrize(
    ("names", "is_reached"),
    [
        ("__all__ = ['second', 'thrice']", False),
        ("__all__ = ('second', 'thrice')", False),
        ("NAMES = ['second', 'thrice']", True),
        ("__all__ = [helpers.thrice.__name__]", True),
        ("__all__ = NAMES = ['thrice']", True),
    ],
)
def test_a_list_of_public_names_runs_none_of_them(names: str, is_reached: bool) -> None:
    listed = ("CACHE = {}", f"CACHE = {{}}\n{names}")
    before, after = edited(listed), edited(listed, ("x * 3", "x * 4"))
    assert (unreached("second", before, after, PATHS) is None) is is_reached


def test_a_file_that_went_is_a_change_to_all() -> None:
    assert unreached("first", FILES, {PATHS[0]: FILES[PATHS[0]]}, PATHS) is None


def test_a_mutant_of_what_a_function_runs_reaches_it() -> None:
    """`scale` and the class beside it run every function of the project but `padded`."""
    told = set[str]()
    for what, files in mutants():
        paths = [path for path in {*project(), *files} if path.endswith(".py")]
        before, after = (
            {path: of[path] for path in paths if path in of} for of in (project(), files)
        )
        if differing(before, after):
            names = {name for _, name in unreached("scale", before, after, paths) or ()}
            assert names <= {"padded"}, what
            told |= names
    assert told == {"padded"}
