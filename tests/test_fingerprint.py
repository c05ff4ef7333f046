"""What belongs to the harness, which edits of it are seen, and what is left alone."""

from __future__ import annotations

import ast
import tempfile
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from pytest_kopt import imports, models
from pytest_kopt.honesty import fingerprint
from pytest_kopt.honesty.fingerprint import (
    NOTHING,
    Fingerprint,
    Harness,
    ObservedFiles,
    edits,
    moved,
)

FILES = {
    "pyproject.toml": "",
    "conftest.py": "",
    "project/__init__.py": "",
    "project/api.py": "from project.kernels.gemm import gemm\nfrom project.plain import EPS\n",
    "project/plain.py": "EPS = 1\n",
    "project/unused.py": "",
    "project/kernels/__init__.py": "",
    "project/kernels/gemm.py": (
        "from .tiles import TILE\nfrom project.plain import EPS\nimport torch\n"
    ),
    "project/kernels/tiles.py": "TILE = 32\n",
    "tests/conftest.py": "from cases import SHAPES\n",
    "tests/cases.py": "import project.kernels.gemm\nSHAPES = [1]\n",
    "tests/ops/test_gemm.py": (
        "import importlib\nfrom project.api import gemm\nfrom reference import gemm_reference\n"
        "late = importlib.import_module('late')\n"
        "def test(): from tests.ops import inside\n"
    ),
    "tests/ops/__init__.py": "",
    "tests/__init__.py": "",
    "tests/ops/inside.py": "",
    "tests/ops/test_other.py": "",
    "tests/elsewhere/conftest.py": "",
    "reference.py": "import numpy\n",
    "late.py": "",
    "agent/workspace/c/notes.py": "",
    ".venv/pyvenv.cfg": "",
    ".venv/lib/helper.py": "",
}
HARNESS = {
    *("conftest.py", "tests/conftest.py", "tests/cases.py", "tests/ops/test_gemm.py"),
    *("tests/ops/__init__.py", "tests/__init__.py", "tests/ops/inside.py"),
    *("reference.py", "late.py", "project/plain.py"),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def take(
    root: Path, before: Fingerprint | None = None, observed: ObservedFiles = NOTHING, **keys: object
) -> Fingerprint:
    harness = Harness(
        root=root,
        tests=("tests/ops/test_gemm.py",),
        kernel=("project/kernels/gemm.py",),
        folders=(root, root / "tests"),
        ignored=(root / "agent/workspace",),
    )
    manifest = {"engine": "auto", "max_iterations": 3, **keys}
    recorded = before.files if before else ()
    return harness.take({"addopts": "-q"}, manifest, observed, recorded)


def test_what_belongs_to_the_harness(root: Path) -> None:
    found = take(root)
    assert set(found.files) == HARNESS
    assert set(found.dependencies) == {
        *("project/kernels/tiles.py", "project/kernels/__init__.py", "project/__init__.py"),
    }
    assert models.read(Fingerprint, asdict(found)) == found


def append(name: str) -> Callable[[Path], object]:
    def spoil(root: Path) -> None:
        path = root / name
        path.write_text((path.read_text() if path.exists() else "") + "# a comment\n")

    return spoil


@pytest.mark.parametrize("name", sorted(HARNESS))
def test_any_byte_counts(root: Path, name: str) -> None:
    before = take(root)
    append(name)(root)
    (finding,) = edits(before, take(root, before))
    assert finding.message == f"{name} was edited"
    assert finding.rejects
    assert finding.check == "harness-edit"


@pytest.mark.parametrize(
    "name",
    [
        *("project/kernels/gemm.py", "project/kernels/tiles.py", "project/api.py"),
        *("project/unused.py", "tests/ops/test_other.py", "tests/elsewhere/conftest.py"),
        *("agent/workspace/c/notes.py", "notes.yaml", "out.csv", "tests/ops/fresh.py"),
        "tests/__pycache__/cases.pyc",
    ],
)
def test_what_no_case_uses_may_change(root: Path, name: str) -> None:
    before = take(root)
    (root / name).parent.mkdir(exist_ok=True)
    append(name)(root)
    assert [*edits(before, take(root, before))] == []


def test_files_that_come_and_go(root: Path) -> None:
    before = take(root)
    (root / "tests/ops/conftest.py").write_text("")
    (root / "numpy.py").write_text("")
    (root / "late.py").unlink()
    (root / "tests/cases.py").write_bytes(FILES["tests/cases.py"].replace("\n", "\r\n").encode())
    assert [finding.message for finding in edits(before, take(root, before))] == [
        "late.py was removed",
        "numpy.py was added",
        "tests/cases.py was edited",
        "tests/ops/conftest.py was added",
    ]


def test_what_only_a_worker_saw_belongs_to_it_when_it_lies_with_the_tests(root: Path) -> None:
    (root / "tests/ops/computed.py").write_text("")
    loaded = ("tests/ops/computed.py", "project/unused.py", "project/kernels/gemm.py", "gone.py")
    before = take(root, observed=ObservedFiles(loaded))
    assert set(before.files) == HARNESS | {"tests/ops/computed.py"}
    append("tests/ops/computed.py")(root)
    (finding,) = edits(before, take(root, before))
    assert finding.message == "tests/ops/computed.py was edited"


def test_what_decides_belongs_to_it_in_the_kernels_package_too(root: Path) -> None:
    """With what it imports by name, not with all that the package around the kernel imports."""
    write = {
        "project/kernels/__init__.py": "from .gemm import gemm\nfrom .other import other\n",
        "project/kernels/naive.py": "from .wide import wide\nfrom . import EPS\n",
        "project/kernels/wide.py": "from project.kernels import tiles\n",
        "project/kernels/other.py": "",
        "tests/ops/shapes.json": "",
        "tests/ops/mine.json": "",
    }
    for name, text in write.items():
        (root / name).write_text(text)
    before = take(root)
    seen = ObservedFiles(
        judged_by=["project/kernels/naive.py", "project/kernels/gemm.py"],
        opened={
            "tests/ops/shapes.json": ["tests/conftest.py"],
            "tests/ops/mine.json": ["project/kernels/gemm.py"],
        },
    )
    found = take(root, observed=seen)
    assert found.files.keys() - before.files.keys() == {
        *("project/kernels/naive.py", "project/kernels/wide.py", "project/kernels/__init__.py"),
        *("project/kernels/tiles.py", "tests/ops/shapes.json"),
    }


def test_settings_and_manifest_are_named_with_old_and_new_value(root: Path) -> None:
    before = take(root)
    after = take(root, before, engine="wall", max_iterations=9)
    (finding,) = edits(before, after)
    assert finding.message == 'manifest key engine: "auto" -> "wall"'
    changed = Fingerprint(before.files, {"addopts": "-p evil"}, before.manifest)
    (finding,) = edits(before, changed)
    assert finding.message == 'pytest setting addopts: "-q" -> "-p evil"'


def test_a_flat_project_keeps_its_kernel_out_of_the_harness(tmp_path: Path) -> None:
    for name, text in {
        "test_k.py": "from wrapper import k\nimport helper\n",
        "wrapper.py": "from kernel import k\n",
        "helper.py": "",
        "kernel.py": "import common\n",
        "common.py": "",
    }.items():
        (tmp_path / name).write_text(text)
    found = Harness(tmp_path, ("test_k.py",), ("kernel.py",), (tmp_path,)).take({}, {})
    assert set(found.files) == {"test_k.py", "helper.py"}
    assert set(found.dependencies) == {"common.py"}


def test_plugins_of_the_command_line_belong_to_it(root: Path) -> None:
    (root / "evil.py").write_text("")
    harness = Harness(
        root, ("tests/ops/test_gemm.py",), ("project/kernels",), (root,), ("evil", "xdist")
    )
    assert "evil.py" in harness.take({}, {}).files


def test_dependencies_that_moved_are_those_that_are_others_on_disk(root: Path) -> None:
    """A file that is no longer imported, and did not change, is none of them."""
    (root / "project/table.toml").write_text("block = 16")
    opened = {
        "project/table.toml": {"project/kernels/gemm.py"},
        "tests/golden.npz": {"tests/ops/test_gemm.py"},
        "project/kernels/gemm.py": {"project/kernels/gemm.py"},
    }
    before = take(root, observed=ObservedFiles(opened=opened))
    assert before.dependencies.keys() - take(root).dependencies.keys() == {"project/table.toml"}
    (root / "project/kernels/gemm.py").write_text("")
    assert moved(before, root) == []
    tiles = root / "project/kernels/tiles.py"
    text = tiles.read_text()
    tiles.write_text(f"# Another comment.\n{text}")
    assert moved(before, root) == []
    kept = {"project/kernels/tiles.py": sha256(tiles.read_bytes()).hexdigest(), "gone.txt": ""}
    assert moved(Fingerprint(dependencies=kept), root) == [], "as earlier campaigns have it"
    tiles.write_text(f"{text}\nMORE = 1\n")
    assert moved(before, root) == ["project/kernels/tiles.py"]
    (root / "project/table.toml").write_text("block = 2")
    tiles.unlink()
    assert sorted(moved(before, root)) == ["project/kernels/tiles.py", "project/table.toml"]


def test_source_that_does_not_parse_is_still_hashed(root: Path) -> None:
    (root / "late.py").write_text("def broken(:\n")
    before = take(root)
    assert "late.py" in before.files
    append("late.py")(root)
    assert [finding.message for finding in edits(before, take(root, before))] == [
        "late.py was edited"
    ]


def test_a_file_of_a_large_package_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file of such a package reaches all others: the baseline of one took a minute."""
    package = tmp_path / "package"
    (tmp_path / "tests").mkdir()
    package.mkdir()
    modules = [f"from package import m{(i + 1) % 40}, m{(i + 7) % 40}\n" for i in range(40)]
    for i, text in enumerate(modules):
        (package / f"m{i}.py").write_text(text)
    (package / "kernel.py").write_text("from package import m0\n")
    (package / "__init__.py").write_text("from package import kernel\n")
    (tmp_path / "tests/test_it.py").write_text("from package import kernel, m3\n")
    read: list[Path] = []
    named_in = imports._named_in

    def counted(path: Path) -> Iterable[Any]:
        read.append(path)
        return named_in(path)

    monkeypatch.setattr(imports, "_named_in", counted)
    found = Harness(tmp_path, ("tests/test_it.py",), ("package/kernel.py",), (tmp_path,)).take(
        {}, {}
    )
    assert len(read) == 43 and len(found.dependencies) == 41


@pytest.mark.parametrize(
    "name", ["statistics.py", "pynvml.py", "scipy/__init__.py", "tests/json.py"]
)
def test_a_new_module_that_hides_one_of_the_deciding_process_is_an_edit(
    root: Path, name: str
) -> None:
    before = take(root)
    path = root / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    (finding,) = edits(before, take(root))
    assert finding.message == f"{name} was added" and finding.rejects


@pytest.mark.parametrize("name", ["fast-1.dist-info", "tests/Fast.EGG-INFO"])
def test_a_new_plugin_that_metadata_of_the_project_names_is_an_edit(root: Path, name: str) -> None:
    """The deciding process loads it, as it would an installed one."""
    before = take(root)
    (root / "fast.py").write_text("")
    for each, group in ((name, "pytest11"), ("other.egg-info", "console_scripts")):
        (root / each).mkdir()
        (root / each / "entry_points.txt").write_text(f"[{group}]\nfast = fast:main\n")
    added = {finding.message for finding in edits(before, take(root))}
    assert added == {f"{name}/entry_points.txt was added", "fast.py was added"}


def test_plugins_of_an_environment_in_the_project_are_no_edit(root: Path) -> None:
    metadata = root / "venv/lib/site-packages/fast-1.dist-info"
    metadata.mkdir(parents=True)
    folders = (root, metadata.parent)
    before = Harness(root, ("tests/ops/test_gemm.py",), ("project/kernels",), folders)
    first = before.take({}, {})
    (metadata / "entry_points.txt").write_text("[pytest11]\nfast = fast\n")
    assert [*edits(first, before.take({}, {}))] == []


def test_a_kernel_may_be_called_like_a_module(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text("def push(x): return x\n")
    (tmp_path / "test_q.py").write_text("from queue import push\n")
    found = Harness(tmp_path, ("test_q.py",), ("queue.py",), (tmp_path,)).take({}, {})
    assert [*found.files] == ["test_q.py"]


def test_every_package_that_is_imported_may_not_be_hidden() -> None:
    names = set()
    for path in Path(fingerprint.__file__).parents[1].rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                modules = [node.module or ""]
            names |= {module.partition(".")[0] for module in modules}
    named = {f"{name}.py" for name in names - {"pytest_kopt", "kernels"}}
    assert {path.name for path in hidden(named)} == named


def hidden(names: Collection[str]) -> list[Path]:
    """What hides a module of a folder with files of these names."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            Path(folder, name).touch()
        return [*fingerprint.hiding([Path(folder)])]


@pytest.mark.parametrize("text", ["[pytest11]\nx =\n", "[pytest11]\nx\n", "[pytest11]\nx = \xff"])
def test_metadata_that_nobody_can_read_names_no_plugin(text: str, tmp_path: Path) -> None:
    metadata = tmp_path / "some.egg-info"
    metadata.mkdir()
    (metadata / "entry_points.txt").write_bytes(text.encode("latin-1"))
    assert [*fingerprint.declared_plugins(tmp_path)] == []
