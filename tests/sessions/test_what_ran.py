"""A change reaches every case that is not shown to leave it unread, and what ran is the tree."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from .paired import FASTER, OLD, PLAIN, SETTINGS, SLOWER, Gate, cases, kernel, project_at
from .project import Project

long = partial(pytest.param, marks=pytest.mark.long)
SRC = SETTINGS.replace('[".", "tests"]', '["tests"]')


def commit(project: Project, cost: str, imports: str, files: dict[str, str]) -> None:
    """Commit a kernel whose cost is an expression, and the files that it is made of."""
    project.write(PLAIN, kernel(cost, imports=imports))
    for path, text in files.items():
        project.write(path, text)
    project.commit_all("A kernel with settings")


#: By the name of a kernel: the file that it reads, what it imports, its cost, and what it reads.
READING = {
    "in_the_current_folder": (
        *("settings/plain.toml", ""),
        *('float(open("settings/plain.toml").read().removeprefix("ms = "))', "ms = {}"),
    ),
    "above_the_source": (
        *("tuned", "from pathlib import Path"),
        *('float((Path(__file__).resolve().parents[1] / "tuned").read_text())', "{}"),
    ),
    "in_cpp": (
        *("settings/mapped", "import torch"),
        'float(bytes(torch.from_file("settings/" + "mapp" + "ed", size=6, dtype=torch.uint8)))',
        "{:6.2f}",
    ),
    "by_a_program": (
        *("settings/read", "import subprocess"),
        *('float(subprocess.check_output(["cat", "settings/" + "re" + "ad"]))', "{}"),
    ),
    "by_a_name_that_stands_nowhere": (
        *("settings/256,cpu.json", ""),
        *('float(open("settings/" + str(2**8) + ",cpu.js" + "on").read())', "{}"),
    ),
}


@pytest.mark.parametrize(
    "names", [("in_the_current_folder", "in_cpp", "by_a_program"), long((*READING,))]
)
def test_settings_that_the_kernel_reads_are_each_versions_own(
    gate: Gate, names: Sequence[str]
) -> None:
    project = gate.project

    def set_all(cost: float) -> None:
        for path, _, _, text in (READING[name] for name in names):
            project.write(path, text.format(cost))

    for name in names:
        _, imports, cost, _ = READING[name]
        project.write(f"kernels/{name}.py", kernel(cost, name=name, imports=imports))
    project.write("tests/test_reading.py", cases(*((f"kernels.{name}", name) for name in names)))
    project.git("rm", "--quiet", "tests/test_plain.py")
    set_all(OLD)
    project.commit_all("Kernels with settings")
    set_all(SLOWER)
    done = gate()
    assert done.run.code == 8, done.run.text
    changes = [done.shapes[rows]["change_pct"] for rows in range(1, len(names) + 1)]
    assert changes == [pytest.approx(100 * (OLD / SLOWER - 1))] * len(names)


FIXTURE = """\
from pathlib import Path

import kernels.plain
import pytest


@pytest.fixture(autouse=True)
def tuned():
    kernels.plain.COST_MS = float((Path(__file__).parent / "tuned.txt").read_text())
"""


@pytest.mark.parametrize("reader", ["tests/conftest.py", long("tests/test_plain.py")])
def test_a_file_that_tests_read_is_no_kernels(gate: Gate, reader: str) -> None:
    """Both versions would be timed with the base's, and it slows neither."""
    before = gate.project.read(reader) if reader == "tests/test_plain.py" else ""
    commit(gate.project, str(OLD), "", {reader: before + FIXTURE, "tests/tuned.txt": str(OLD)})
    gate.project.write("tests/tuned.txt", str(SLOWER))
    done = gate()
    assert done.run.code == 0 and "no kernel code changed" in done.judged["reason"], done.run.text
    assert done.judged["flags"] == []


LOADS = "import ctypes\nfrom pathlib import Path\n\n{}(str(Path(__file__).with_name('fast.so')))"


def commit_with_library(gate: Gate, loads: str) -> None:
    library = find_spec("_ctypes")
    assert library is not None and library.origin is not None
    shutil.copy(library.origin, gate.project.root / "kernels/fast.so")
    gate.project.write(".gitignore", "__pycache__/\n*.so\n")
    commit(gate.project, str(OLD), LOADS.format(loads), {"Makefile": "all:\n\tcc -O3\n"})


def test_versions_share_a_library_whose_sources_are_the_same(gate: Gate) -> None:
    commit_with_library(gate, "ctypes.CDLL")
    gate.project.write(PLAIN, kernel(FASTER, imports=LOADS.format("ctypes.CDLL")))
    done = gate()
    assert done.run.code == 0 and done.judged["flags"] == [], done.run.text


@pytest.mark.parametrize("loads", ["ctypes.CDLL", long("Path")])
def test_a_build_file_is_not_passed_over_where_compiled_code_runs(gate: Gate, loads: str) -> None:
    """No rebuild_command is set: nothing builds the base's. It reaches nothing but such code."""
    commit_with_library(gate, loads)
    gate.project.write("Makefile", "all:\n\tcc -O0\n")
    done = gate()
    if loads == "ctypes.CDLL":
        assert done.run.code == 4, done.run.text
        assert "rebuild_command has to build it in place" in done.run.refusal
        assert "fast.so" in done.run.refusal and "set kopt_rebuild_command" in done.run.refusal
    else:
        assert done.run.code == 0 and "reaches no case" in done.judged["reason"], done.run.text


@pytest.mark.long
def test_a_module_that_is_gone_and_was_only_tried(gate: Gate) -> None:
    """The sources that are left are the base's."""
    cost = f'__import__("fast").MS if find_spec("fast") else {SLOWER}'
    imports = "from importlib.util import find_spec\n\ntry:\n    import fast\n"
    imports += "except ImportError:\n    pass"
    commit(gate.project, cost, imports, {"fast.py": f"MS = {OLD}\n"})
    gate.project.git("rm", "--quiet", "fast.py")
    done = gate()
    assert done.run.code == 8, done.run.text


@pytest.mark.long
def test_every_source_may_be_a_test_by_its_name(gate: Gate) -> None:
    words = ("-o", "python_files=*.py")
    gate.project.write(PLAIN, kernel(SLOWER, "new"))
    done = gate(*words)
    assert done.run.code == 8, done.run.text


def test_a_file_that_both_versions_open_is_named(gate: Gate) -> None:
    place = gate.project.root / "tuned.ini"
    commit(gate.project, f"float(open({str(place)!r}).read())", "", {"tuned.ini": str(OLD)})
    gate.project.write("tuned.ini", str(SLOWER))
    done = gate()
    assert done.run.code == 4, done.run.text
    assert f"opens the candidate's {place}" in done.run.refusal


@pytest.mark.long
def test_a_file_that_both_versions_open_by_a_variable_is_named(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = gate.project.root / "tuned.ini"
    monkeypatch.setenv("TUNED_FOLDER", str(gate.project.root))
    cost = 'float(open(os.environ["TUNED_" + "FOLDER"] + "/tun" + "ed.i" + "ni").read())'
    commit(gate.project, cost, "import os", {"tuned.ini": str(OLD)})
    gate.project.write("tuned.ini", str(SLOWER))
    done = gate()
    assert done.run.code == 4 and str(place) in done.run.refusal, done.run.text


class Copied(Gate):
    """The gate of a project whose tests call a copy of its kernel, which lies in `copy`."""

    def __init__(self, project: Project, copy: Path) -> None:
        super().__init__(project)
        self.copy = copy

    def variables(self) -> dict[str, str]:
        found = super().variables()
        return found | {"PYTHONPATH": f"{found['PYTHONPATH']}:{self.copy}"}


def copied(project: Project, copy: Path) -> Copied:
    """Put the kernel into src, tag that as good, copy it and slow the tree's down."""
    project.write("pyproject.toml", SRC)
    project.git("mv", "kernels", "src")
    project.write(f"src/{PLAIN}", project.read("src/plain.py"))
    project.write("src/kernels/__init__.py", "")
    project.git("rm", "--quiet", "-f", "src/plain.py", "src/__init__.py")
    project.commit_all("In src")
    project.git("tag", "good")
    for path, text in {"kernels/__init__.py": "", PLAIN: kernel()}.items():
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        (copy / path).write_text(text)
    project.write(f"src/{PLAIN}", kernel(SLOWER, "new"))
    return Copied(project, copy)


@pytest.mark.parametrize("where", ["venv/site-packages", long("elsewhere")])
def test_a_copy_elsewhere_is_not_what_is_judged(tmp_path: Path, where: str) -> None:
    """As `pip install .` leaves it, or PYTHONPATH: tests call another kernel than the tree's."""
    gate = copied(project_at(tmp_path / "project"), tmp_path / where)
    done = gate()
    assert done.run.code == 4, done.run.text
    for part in (str(gate.copy / PLAIN), f"src/{PLAIN}", "pip install -e ."):
        assert part in done.run.refusal
    assert done.trace == [], "nothing was measured"


def test_no_command_judges_a_copy(tmp_path: Path) -> None:
    """With the sources on the path all is well."""
    gate = copied(project_at(tmp_path / "project"), tmp_path / "elsewhere")
    project, copy = gate.project, gate.copy
    project.commit_all("Slower")
    run = project.kopt("bisect", "good", **gate.variables())
    assert run.code == 4 and str(copy / PLAIN) in run.text, run.text
    assert not (tmp_path / "project/agent").exists()
    words = ("init", "c", "--op", "c", "--backend", "TORCH", "--gpu", "cpu", "--elsewhere")
    here = {**gate.variables(), "PYTHONPATH": f"{project.root}/src"}
    run = project.kopt(*words, "--kernel", f"src/{PLAIN}", **here)
    assert run.code == 0, run.text
    run = project.pytest("--kopt-campaign", "c", "--kopt-round", "1", **gate.variables())
    assert run.code == 4 and str(copy / PLAIN) in run.refusal, run.text
    project.write("pyproject.toml", SRC.replace('["tests"]', '["src", "tests"]'))
    assert gate(base="good").run.code == 8
