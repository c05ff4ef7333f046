"""What keeps the package easy to find one's way in; `make imports` holds the order of its rooms."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest

import pytest_kopt
from pytest_kopt.decide.grounds import Ground, Observation
from pytest_kopt.decide.verdict import Decision

ROOT = Path(__file__).parents[1]
PACKAGE = Path(pytest_kopt.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
#: Names that tell a reader nothing of what they hold.
VAGUE = {
    *("found", "given", "told", "kept", "asked", "held", "wanted", "said", "shown", "known"),
    *("other", "others", "both", "every", "own", "item", "each", "seen", "made", "done", "taken"),
}


@pytest.fixture(scope="module")
def nodes() -> list[tuple[Path, ast.AST]]:
    """The syntax of all files."""
    return [(path, node) for path in FILES for node in ast.walk(ast.parse(path.read_text()))]


def test_no_file_holds_several_ideas() -> None:
    long = {str(path): n for path in FILES if (n := len(path.read_text().splitlines())) > 700}
    assert not long, "split them by idea"


def test_no_folder_is_a_drawer() -> None:
    full = {str(folder): n for folder, n in Counter(f.parent for f in FILES).items() if n > 21}
    assert not full, "find the rooms in them"


def test_every_text_file_is_utf_8_whatever_the_locale(nodes: list[tuple[Path, ast.AST]]) -> None:
    # Ruff's PLW1514 sees only what it knows to be a path.
    implicit = [
        f"{path}:{node.lineno}"
        for path, node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (node.func.attr, len(node.args)) in {("read_text", 0), ("write_text", 1)}
        and "encoding" not in {keyword.arg for keyword in node.keywords}
    ]
    assert not implicit, "give an encoding"


def test_the_ways_through_the_code_lead_to_files() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:\w+/)+\w+\.py)`", page)
    lost = [name for name in named if not any((at / name).exists() for at in (PACKAGE, ROOT))]
    assert len(named) > 40 and not lost
    ways = page.partition("## Four ways through the code")[2]
    counted = re.findall(r"^1\. (.*?)\n\n(\d+) files", ways, re.MULTILINE | re.DOTALL)
    # A device is a CPU or a GPU.
    opened = [{*re.findall(r"(\w+\.py)`", steps)} - {"gpu.py"} for steps, _ in counted]
    assert [*map(len, opened)] == [int(count) for _, count in counted] and len(counted) == 4


def test_the_names_on_that_page_are_in_the_code() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    named = {name.rpartition(".")[2] for name in re.findall(r"`([A-Za-z_][\w.]*)`", page)}
    files = [*FILES, *ROOT.glob("tests/**/*.py")]
    words = {word for file in files for word in re.findall(r"\w+", file.read_text())}
    lost = named - words
    assert len(named) > 80 and not lost


def test_each_rule_of_honesty_has_its_place_in_the_code() -> None:
    page = (ROOT / "docs" / "honesty.md").read_text()
    rules = re.findall(r"^(\d+)\. \*\*", page, re.MULTILINE)
    places = dict(re.findall(r"^\| (\d+) \| `([\w.]+)` \|$", page, re.MULTILINE))
    assert rules == [*places] and len(rules) == 13
    for rule, name in places.items():
        text = resolve_name(f"pytest_kopt.{name}").__doc__
        assert f"It is rule {rule} of docs/honesty.md." in text, name


def test_no_two_files_share_a_name() -> None:
    names = Counter(path.name for path in FILES if not path.name.startswith("__"))
    assert [name for name, count in names.items() if count > 1] == []


def test_two_classes_share_a_name_in_two_places_at_most(nodes: list[tuple[Path, ast.AST]]) -> None:
    names = Counter(node.name for _, node in nodes if isinstance(node, ast.ClassDef))
    assert sum(count > 1 for count in names.values()) <= 2


def test_an_error_has_a_type_of_its_own_only_where_it_is_told_apart(
    nodes: list[tuple[Path, ast.AST]],
) -> None:
    bases = {
        node.name: {ast.unparse(base) for base in node.bases}
        for _, node in nodes
        if isinstance(node, ast.ClassDef)
    }
    errors = {"BaseException", "Exception", "ValueError"}
    own: set[str] = set()
    while more := {name for name in bases if bases[name] & errors} - own:
        own |= more
        errors |= more
    told_apart = set()
    for _, node in nodes:
        match node:
            case ast.ExceptHandler(type=ast.expr() as types):
                told_apart |= {n.id for n in ast.walk(types) if isinstance(n, ast.Name)}
            case ast.Call(func=ast.Name(id="isinstance" | "suppress"), args=args):
                names = (name for arg in args for name in ast.walk(arg))
                told_apart |= {n.id for n in names if isinstance(n, ast.Name)}
            case _:
                pass
    assert len(own) <= 17 and own <= told_apart


def test_only_the_public_call_takes_more_than_eight_arguments(
    nodes: list[tuple[Path, ast.AST]],
) -> None:
    functions = [(path, node) for path, node in nodes if isinstance(node, ast.FunctionDef)]
    many = {
        (path.name, node.name)
        for path, node in functions
        if len(node.args.args) + len(node.args.kwonlyargs) > 8
    }
    assert many == {("fixture.py", "__call__")}


def bound_names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            yield name
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case _:
            pass


def test_a_name_says_what_it_holds(nodes: list[tuple[Path, ast.AST]]) -> None:
    """Of the names that the package binds."""
    names = [name.strip("_") for _, node in nodes for name in bound_names(node)]
    assert len(names) > 10_000
    assert sum(name in VAGUE for name in names) / len(names) <= 0.012


def test_only_the_rules_decide(nodes: list[tuple[Path, ast.AST]]) -> None:
    """Outside of `decide/` a decision is compared or looked up, never chosen or put into a verdict.

    What is known of a version goes into `decide/` as facts.
    """
    chosen = []
    for path, parent in nodes:
        if "decide" in path.parts:
            continue
        match parent:
            case ast.Call(args=values) | ast.Dict(values=values):
                pass
            case ast.Assign(targets=[ast.Tuple()], value=ast.Tuple(elts=values)):
                pass
            case (
                ast.keyword(value=ast.expr() as value)
                | ast.Assign(value=ast.expr() as value)
                | ast.Return(value=ast.expr() as value)
            ):
                values = [value]
            case ast.IfExp(body=body, orelse=orelse):
                values = [body, orelse]
            case _:
                continue
        chosen += [f"{path}:{value.lineno}" for value in values if _is_decision(value)]
    assert not chosen, "state the fact, and let a rule decide"


def test_nothing_edits_a_decision_afterwards(nodes: list[tuple[Path, ast.AST]]) -> None:
    """A verdict is told what it rests on by `saying`, which refuses another decision."""
    edited = [
        f"{path}:{node.lineno}"
        for path, node in nodes
        if "decide" not in path.parts and isinstance(node, ast.Call)
        if re.match(r"replace\(\w*verdict\b|.*verdict\.model_copy\(", ast.unparse(node))
    ]
    assert edited == []
    told = Observation(Ground.DISCARDED, "").verdict("primus").saying(flags=["seen"])
    assert (told.decision, told.flags) == (Decision.ROLLED_BACK, ["seen"])
    with pytest.raises(AssertionError, match="the rules decide"):
        told.saying(decision=Decision.ACCEPTED)


def _is_decision(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node.value) == "Decision"
