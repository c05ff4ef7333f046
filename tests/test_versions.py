"""Two versions of a kernel in one process: each runs its own code and shares no state."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_kopt.cases.order import CANDIDATE, INCUMBENT, PLACEBO, ArmsOrder
from pytest_kopt.cases.running import loaded_versions
from pytest_kopt.versions import executed_files, twin
from pytest_kopt.versions.affected_modules import NotLoadable, universe
from pytest_kopt.versions.tree import linked
from pytest_kopt.versions.twin import SecondVersion

Layout = dict[str, str]
Twin = tuple[Callable[..., Any], Callable[..., Any], SecondVersion]


class Tree:
    """A project on sys.path whose kernel file exists in an old and a new version."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, files: Layout) -> None:
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def twin(self, module: str, name: str, kernel: str, old: str) -> Twin:
        """Return a function, its incumbent and the incumbent's modules; `old` replaces `kernel`."""
        function = getattr(importlib.import_module(module), name)
        return self.twin_of(function, kernel, old)

    def twin_of(self, function: Callable[..., Any], kernel: str, old: str) -> Twin:
        number = len(list(self.root.parent.glob("old-*")))
        place = self.root.parent / f"old-{number}"
        tree = linked(self.root, place, {kernel: old.encode()}).place
        changed = {self.root / kernel}
        # A file that is no module belongs to the source of the function, which had it opened.
        opened = {str(path): {str(twin.own_file(function).pop())} for path in changed}
        incumbent, version = twin.find(function, changed, self.root, tree, opened)
        return function, incumbent, version


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tree]:
    root = tmp_path.resolve() / "project"
    root.mkdir()
    monkeypatch.syspath_prepend(str(root))
    before = set(sys.modules)
    yield Tree(root)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or root).startswith(str(root)):
            del sys.modules[name]


KERNEL = "def answer():\n    return {value}\n"
LAYOUTS: dict[str, tuple[Layout, str, str, str]] = {
    "a module": ({"alone.py": KERNEL.format(value="'new'")}, "alone", "answer", "alone.py"),
    "a package with a relative import": (
        {
            "pack/__init__.py": "",
            "pack/core.py": KERNEL.format(value="'new'"),
            "pack/api.py": "from .core import answer as core\n\n\n"
            "def answer():\n    return core()\n",
        },
        "pack.api",
        "answer",
        "pack/core.py",
    ),
    "a package that imports from its modules": (
        {
            "full/__init__.py": "from .api import answer\n",
            "full/core.py": KERNEL.format(value="'new'"),
            "full/api.py": "from . import core\n\n\ndef answer():\n    return core.answer()\n",
        },
        "full.api",
        "answer",
        "full/core.py",
    ),
    "an import inside the function": (
        {
            "late_core.py": KERNEL.format(value="'new'"),
            "late.py": "def answer():\n    from late_core import answer as core\n\n"
            "    return core()\n",
        },
        "late",
        "answer",
        "late_core.py",
    ),
    "a namespace package": (
        {
            "space/core.py": KERNEL.format(value="'new'"),
            "space/api.py": "from space import core\n\n\ndef answer():\n    return core.answer()\n",
        },
        "space.api",
        "answer",
        "space/core.py",
    ),
    "a module read through its package": (
        {
            "whole/__init__.py": "",
            "whole/core.py": KERNEL.format(value="'new'"),
            "whole/api.py": "import whole.core\n\n\ndef answer():\n"
            "    return whole.core.answer()\n",
        },
        "whole.api",
        "answer",
        "whole/core.py",
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_version_runs_its_own_code(tree: Tree, layout: str) -> None:
    files, module, name, kernel = LAYOUTS[layout]
    tree.write(files)
    # One call first, as in a round: what it imports only then belongs to the version as well.
    assert getattr(importlib.import_module(module), name)() == "new"
    function, incumbent, version = tree.twin(module, name, kernel, KERNEL.format(value="'old'"))
    assert (function(), incumbent(), function()) == ("new", "old", "new")
    executed_files.check(incumbent, version.files, version.first_files, "incumbent")
    executed_files.check(function, version.first_files, version.files, "candidate")


OWN = "from . import tools as own\nfrom .core import answer as tools"
ALL = "both both.api both.core both.tools"


@pytest.mark.parametrize(
    ("edited", "package", "imports", "reached"),
    [
        ("core", "", "from both.tools import value", ""),
        ("core", "", "from .tools import value", ""),
        ("core", "", "from . import tools\nvalue = tools.value", ""),
        ("core", "", "import both.tools as t\nvalue = t.value", ""),
        ("core", "", "import both.tools\nvalue = both.tools.value", "both both.api both.core"),
        ("core", "", "from both import *\nvalue = 1", "both both.api both.core"),
        ("tools", "", "from both.tools import value", "both both.api both.tools"),
        # The package may have the module set what others read.
        (*("core", "from . import core", "from both.tools import value"), ALL),
        # A name of the package is no module, although one is called so.
        (*("core", OWN, "from both import tools\nvalue = tools()"), ALL),
        ("__init__", "", "from both.tools import value", "both both.api both.tools"),
    ],
)
def test_a_module_is_of_a_change_only_if_it_reads_what_changed(
    edited: str, package: str, imports: str, reached: str, tree: Tree
) -> None:
    tree.write(
        {
            "both/__init__.py": f"{package}\n",
            "both/core.py": KERNEL.format(value="'new'"),
            "both/tools.py": "value = 1\n",
            "both/api.py": f"{imports}\n\n\ndef get():\n    return value\n",
        }
    )
    importlib.import_module("both.core")
    importlib.import_module("both.api")
    found = universe("both.api", [tree.root / f"both/{edited}.py"], tree.root)
    assert sorted(found) == reached.split()


@pytest.mark.parametrize(("replica", "proofs"), [(None, 3), (0, 3), (1, 0)])
def test_one_replica_proves_which_files_each_version_runs(
    replica: int | None, proofs: int, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All replicas load them, and what is of no replica, as trials of other shapes, proves too."""
    tree.write({"alone.py": KERNEL.format(value="'new'")})
    old = {"alone.py": KERNEL.format(value="'old'").encode()}
    trees = [linked(tree.root, tree.root.parent / name, old).place for name in ("one", "two")]
    proven: list[str] = []
    monkeypatch.setattr(executed_files, "check", lambda *given: proven.append(given[-1]))
    monkeypatch.setattr(loaded_versions, "make_inputs", lambda case, seed: [])
    answer = importlib.import_module("alone").answer
    case: Any = SimpleNamespace(
        function=answer, rewritten=(), positional=lambda function: function, backward=False
    )
    order = ArmsOrder(
        (CANDIDATE, INCUMBENT, PLACEBO),
        root=str(tree.root),
        trees=tuple(map(str, trees)),
        changed=("alone.py",),
        replica=replica,
    )
    called: list[str] = []

    def first_call(arm: str, call: Callable[[], Any]) -> None:
        called.append(arm)
        call()

    versions = loaded_versions.load_versions(case, order, 1, None, first_call)
    assert {name: version() for name, version in versions.items()} == {
        CANDIDATE: "new",
        INCUMBENT: "old",
        PLACEBO: "old",
    }
    assert called == [CANDIDATE, INCUMBENT, PLACEBO] and len(proven) == proofs


def test_the_versions_share_no_module_state(tree: Tree) -> None:
    source = "calls = []\n\n\ndef count():\n    calls.append(1)\n    return len(calls)\n"
    tree.write({"counting.py": source})
    function, incumbent, _ = tree.twin("counting", "count", "counting.py", source)
    assert [function(), function(), incumbent(), function()] == [1, 2, 1, 3]


def test_a_file_beside_the_source_is_the_versions_own(tree: Tree) -> None:
    source = (
        "from pathlib import Path\n\n\ndef read():\n    return ({path} / 'table').read_text()\n"
    )
    for name, path in {
        "plain": "Path(__file__).parent",
        "resolved": "Path(__file__).resolve().parent",
        "above": "Path(__file__).resolve().parent / 'data'",
    }.items():
        table = f"{name}/data/table.json" if name == "above" else f"{name}/table.json"
        code = source.format(path=path).replace("'table'", "'table.json'")
        tree.write({f"{name}/__init__.py": "", f"{name}/code.py": code, table: "new"})
        function, incumbent, _ = tree.twin(f"{name}.code", "read", table, "old")
        assert (function(), incumbent()) == ("new", "old"), name


def test_a_partial_is_rebuilt_around_the_incumbent(tree: Tree) -> None:
    tree.write({"scaled.py": "def scaled(x, factor):\n    return x * factor\n"})
    module = importlib.import_module("scaled")
    partial = functools.partial(module.scaled, factor=3)
    old = "def scaled(x, factor):\n    return x * factor + 1\n"
    function, incumbent, _ = tree.twin_of(partial, "scaled.py", old)
    assert (function(2), incumbent(2)) == (6, 7)


CONFIG = """\
from dataclasses import dataclass
from enum import Enum


class Mode(Enum):
    PLAIN = 1


@dataclass(frozen=True)
class Config:
    factor: int
    mode: Mode = Mode.PLAIN


def scaled(x, config):
    assert isinstance(config, Config) and config.mode is Mode.PLAIN
    return x * config.factor
"""


def test_a_config_of_the_kernels_own_is_known_to_both_versions(tree: Tree) -> None:
    """It cost the comparison in one process."""
    tree.write({"configured.py": CONFIG})
    module = importlib.import_module("configured")
    old = CONFIG.replace("config.factor\n", "config.factor + 1\n")
    function, incumbent, version = tree.twin_of(module.scaled, "configured.py", old)
    given = (2, module.Config(3))
    with pytest.raises(AssertionError):
        incumbent(*given)
    then = twin.translating(incumbent, given, version.names, version)
    now = twin.translating(function, given, version.names)
    assert (now(*given), then(*given)) == (6, 7)
    assert now(2, config=given[1]) == 6 and then(2, config=given[1]) == 7
    assert twin.translating(incumbent, (2, 3), version.names, version) is incumbent


def test_a_config_with_other_fields_needs_two_processes(tree: Tree) -> None:
    tree.write({"refielded.py": CONFIG})
    module = importlib.import_module("refielded")
    old = CONFIG.replace("    factor: int", "    factor: int\n    scale: int = 1")
    _, incumbent, version = tree.twin_of(module.scaled, "refielded.py", old)
    with pytest.raises(NotLoadable, match="an argument is a Config of 'refielded'"):
        twin.translating(incumbent, (2, module.Config(3)), version.names, version)


def test_a_closure_is_refused_with_what_to_write_instead(tree: Tree) -> None:
    tree.write({"near.py": KERNEL.format(value=1)})
    importlib.import_module("near")
    with pytest.raises(NotLoadable, match="plain function at module level"):
        tree.twin_of(lambda: 1, "near.py", KERNEL.format(value=2))


def test_a_registration_with_torch_is_refused(tree: Tree) -> None:
    source = "import torch\n\n\ndef make():\n    return torch.library.custom_op('a::b')\n"
    tree.write({"registering.py": source})
    with pytest.raises(NotLoadable, match=r"custom_op\(\) at line 5"):
        tree.twin("registering", "make", "registering.py", source)


def test_an_incumbent_that_does_not_import_says_so(tree: Tree) -> None:
    tree.write({"broken.py": KERNEL.format(value=1)})
    with pytest.raises(NotLoadable, match="does not import: ImportError: gone"):
        tree.twin("broken", "answer", "broken.py", "raise ImportError('gone')\n")


def test_a_version_that_runs_the_others_code_is_found_out(tree: Tree) -> None:
    tree.write(
        {
            "hidden_core.py": KERNEL.format(value="'new'"),
            "hidden.py": "import importlib\n\nimport hidden_core\n\n\ndef answer():\n"
            "    return importlib.import_module('hidden_core').answer()\n",
        }
    )
    _, incumbent, version = tree.twin(
        "hidden", "answer", "hidden_core.py", KERNEL.format(value="'old'")
    )
    with pytest.raises(NotLoadable, match="ran the other version's"):
        executed_files.check(incumbent, version.files, version.first_files, "incumbent")


def test_the_folder_to_start_in_is_no_link_into_the_project(tmp_path: Path) -> None:
    root = tmp_path / "project"
    for name in ("packages/one/tests/data/table.csv", "packages/two/big.bin", "lib.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("new")
    tree = linked(root, tmp_path / "tree", {"lib.py": b"old"}, "packages/one/tests").place
    start = tree / "packages/one/tests"
    assert start.resolve() == start
    assert (start / "data/table.csv").read_text() == "new"
    assert (tree / "packages/two").is_symlink()


def test_a_folder_that_only_the_other_version_has_is_there_as_a_whole(tmp_path: Path) -> None:
    root = tmp_path / "project"
    (root / "ops").mkdir(parents=True)
    (root / "ops" / "a.py").write_text("mine")
    paths = ("kernels/__init__.py", "kernels/norm.py", "kernels/parts/scale.py", "ops/new/b.py")
    files = {path: path.encode() for path in paths}
    tree = linked(root, tmp_path / "tree", {**files}).place
    assert {path: (tree / path).read_bytes() for path in files} == files
    assert (tree / "ops/a.py").read_text() == "mine"


def test_a_link_of_the_project_leads_to_the_file_of_the_same_version(tmp_path: Path) -> None:
    """To a file that differs or is copied, to its folder, and through another link."""
    root = tmp_path / "project"
    for path in ("real/norm.py", "real/same.py", "other/kept.py"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("new")
    (root / "kernels").mkdir()
    (root / "kernels/norm.py").symlink_to("../real/norm.py")
    (root / "kernels/same.py").symlink_to(root / "real/same.py")
    (root / "whole").symlink_to("real")
    (root / "again").symlink_to("kernels")
    (root / "kernels/kept.py").symlink_to("../other/kept.py")
    tree = linked(root, tmp_path / "tree", {"real/norm.py": b"old"}).place
    for path in ("kernels/norm.py", "whole/norm.py", "again/norm.py"):
        assert (tree / path).read_text() == "old"
        assert (tree / path).resolve() == tree / "real/norm.py"
    assert (tree / "kernels/same.py").resolve() == tree / "real/same.py"
    assert (tree / "kernels/kept.py").read_text() == "new"
    assert (root / "real/norm.py").read_text() == "new"


SETTINGS = """\
BLOCK = 512
TABLE = {"a": 1}
REGISTRY = {}
CACHE = {}


class Config:
    rows = 8


def implementation():
    return BLOCK


def answer():
    CACHE["filled"] = True
    return {value}, implementation(), Config.rows, dict(TABLE)
"""
REGISTERING = """\
from tuned import kernel

kernel.REGISTRY["answer"] = kernel.answer


def answer():
    return kernel.answer()
"""


@pytest.fixture
def settings(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A kernel whose module tests set, imported while imports are noted."""
    monkeypatch.setattr(twin, "_left_by_import", {})
    monkeypatch.setattr(twin, "_written_by_calls", set())
    execute = SourceFileLoader.exec_module
    monkeypatch.setattr(SourceFileLoader, "exec_module", execute)
    twin.note_imports(tree.root, SourceFileLoader)
    text = SETTINGS.replace("{value}", "'new'")
    tree.write({"tuned/__init__.py": "", "tuned/kernel.py": text, "tuned/api.py": REGISTERING})
    importlib.import_module("tuned.api")
    return importlib.import_module("tuned.kernel")


def with_settings(tree: Tree) -> Callable[[], Any]:
    """Return the older version of the kernel, with what tests have set by now."""
    old = SETTINGS.replace("{value}", "'old'")
    with twin.kernel_calls() as set_by_tests:
        _, incumbent, version = tree.twin("tuned.api", "answer", "tuned/kernel.py", old)
        version.take_settings(set_by_tests)
    return incumbent


def test_a_constant_that_tests_set_holds_for_both_versions(
    tree: Tree, settings: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a module writes into another when it is imported, and caches, are no settings."""
    with twin.kernel_calls():
        assert settings.answer()[:2] == ("new", 512)
    monkeypatch.setattr(settings, "BLOCK", 16)
    assert with_settings(tree)()[:2] == ("old", 16)
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("TABLE", lambda module: module.TABLE.update(a=2)),
        ("Config", lambda module: setattr(module.Config, "rows", 9)),
        ("implementation", lambda module: setattr(module, "implementation", lambda: 0)),
        ("REGISTRY", lambda module: module.REGISTRY.update(answer=print)),
    ],
)
def test_what_leads_to_one_version_asks_for_a_process_of_each(
    tree: Tree, settings: ModuleType, name: str, setting: Callable[[ModuleType], None]
) -> None:
    assert with_settings(tree)()[0] == "old"
    setting(settings)
    with pytest.raises(NotLoadable, match=f"tuned.kernel.{name} was set after its import"):
        with_settings(tree)
