"""Each version runs its own code, and none of the other's: the kernels say who they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from .paired import FASTER, OLD, PLAIN, Gate, Gated, cases, kernel, project_at
from .project import SERIAL, TWO_WORKERS, Project

long = pytest.mark.long
GAIN = 100 * (OLD / FASTER - 1)


def is_the_truth(done: Gated) -> None:
    """A block that ran any of the other version's code would have cost something in between."""
    assert done.run.code == 0, done.run.text
    assert done.judged["noise"]["excess"] == 1, "nothing scattered"
    for shape in done.shapes.values():
        assert shape["change_pct"] == pytest.approx(GAIN), shape["label"]


def spending(what: str) -> str:
    """A helper's file that spends the time, for kernels that are more than one function."""
    return (
        f"import functools\nfrom dataclasses import dataclass\n\nfrom clock import spend\n\n{what}"
    )


STATE = """\
COST_MS = {cost}
ran = []


def stateful(x):
    ran.append("{who}")
    assert set(ran) == {{"{who}"}}
    spend(COST_MS, "{who}")
    return 2.0 * x
"""
CONFIGURED = """\
@dataclass(frozen=True)
class Config:
    ms: float = {cost}


DEFAULT = Config()


def configured(x, config=DEFAULT):
    assert isinstance(config, Config)
    spend(config.ms, "{who}")
    return 2.0 * x
"""
CACHED = """\
@functools.lru_cache
def cost(columns):
    return {cost}


def cached(x):
    spend(cost(x.shape[1]), "{who}")
    return 2.0 * x
"""
SCALED = """\
def scaled(x, factor):
    spend({cost}, "{who}")
    return factor * x
"""
DROPPING = """\
{imports}def dropping(x):
    spend({cost}, "dropping {version}")
    return 2.0 * x
"""
WRAPPED = """

def wrapped(x):
    return inner(x)
"""


def write_layouts(project: Project, version: str, cost: float) -> None:
    """Write kernels of many layouts; each calls itself by its layout and version."""

    def core(name: str, who: str) -> str:
        return kernel(cost, f"{who} {version}", name=name)

    def filled(text: str, who: str) -> str:
        return spending(text.format(cost=cost, who=f"{who} {version}"))

    project.write("pack/__init__.py", "from .api import relative\n")
    project.write("pack/core.py", core("core", "relative"))
    project.write(
        "pack/api.py", "from . import core\n\n\ndef relative(x):\n    return core.core(x)\n"
    )
    project.write("state.py", filled(STATE, "stateful"))
    project.write("configured_kernel.py", filled(CONFIGURED, "configured"))
    project.write("cached_kernel.py", filled(CACHED, "cached"))
    project.write("scaled_kernel.py", filled(SCALED, "scaled"))
    project.write("inner_kernel.py", core("inner", "wrapped"))
    project.write("late_core.py", core("core", "late"))
    project.write(
        "late_kernel.py", "def late(x):\n    from late_core import core\n\n    return core(x)\n"
    )
    imports = "import pack.helping\n\n\n" if version == "old" else ""
    dropping = DROPPING.format(imports=imports, cost=cost, version=version)
    project.write("pack/helping.py", "")
    project.write("dropping_kernel.py", spending(dropping))
    project.write("src/below/__init__.py", "")
    project.write("src/below/kernel.py", core("below", "below"))


LAYOUTS = (
    *(("pack", "relative"), ("state", "stateful"), ("configured_kernel", "configured")),
    *(("cached_kernel", "cached"), ("scaled_kernel", "scaled"), ("inner_kernel", "inner")),
    *(("late_kernel", "late"), ("dropping_kernel", "dropping"), ("below.kernel", "below")),
)


def layout_cases() -> str:
    """The cases of all layouts: one passes a partial, one a wrapper of the test module."""
    text = cases(*LAYOUTS).replace("import pytest\n", "import functools\n\nimport pytest\n", 1)
    text = text.replace("        scaled,\n", "        functools.partial(scaled, factor=2.0),\n")
    return text.replace("        inner,\n", "        wrapped,\n") + WRAPPED


@pytest.mark.parametrize("words", [SERIAL, pytest.param(TWO_WORKERS, marks=long)], ids=["1", "n2"])
def test_layouts_in_one_process(tmp_path: Path, words: tuple[str, ...]) -> None:
    project = project_at(tmp_path / "project")
    project.replace("pyproject.toml", '[".", "tests"]', '[".", "src", "tests"]')
    project.git("rm", "--quiet", "tests/test_plain.py")
    project.write("tests/test_layouts.py", layout_cases())
    write_layouts(project, "old", OLD)
    project.commit_all("The base")
    write_layouts(project, "new", FASTER)
    done = Gate(project)(*words)
    is_the_truth(done)
    assert done.judged["flags"] == [], "one process held both"
    layouts = [
        *("relative", "stateful", "configured", "cached", "scaled", "wrapped", "late", "dropping"),
        "below",
    ]
    everyone = {f"{layout} {version}" for layout in layouts for version in ("old", "new")}
    # Two for the look, in the second's company the incumbent is timed.
    assert sum(ran == everyone for ran in done.processes.values()) == 2
    alone = {who for who in everyone if who.endswith(" old")}
    # It judges results by gates that its own call names, and is timed as well.
    assert sum(ran == alone for ran in done.processes.values()) == 1


REGISTERING = '''\
"""Doubles a tensor in an operator that torch knows by name."""

import torch
from clock import spend


@torch.library.custom_op("scripted::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    spend({cost}, "{who}")
    return 2.0 * x


def plain(x):
    return doubled(x)
'''


def is_in_two_processes(done: Gated, *why: str) -> None:
    """Named in the verdict, and no process ran both."""
    (flag,) = done.judged["flags"]
    for part in ("two processes", *why):
        assert part in flag
    kinds = Counter(frozenset(ran) for ran in done.processes.values())
    assert set(kinds) == {frozenset({"old"}), frozenset({"new"})}
    assert kinds[frozenset({"old"})] == 6, "incumbent and copy twice; its types; what lies near"


@long
def test_a_kernel_that_registers_an_operator(tmp_path: Path) -> None:
    """A second registration would change what the first version returns, without a word."""
    project = project_at(tmp_path / "project")
    project.write(PLAIN, REGISTERING.format(cost=OLD, who="old"))
    project.commit_all("Registers")
    project.write(PLAIN, REGISTERING.format(cost=FASTER, who="new"))
    done = Gate(project)()
    is_the_truth(done)
    is_in_two_processes(done, "kernels.plain", "custom_op")


NATIVE = '''\
"""Doubles a tensor; what it costs is compiled."""

import ctypes
from pathlib import Path

from clock import spend

_library = ctypes.CDLL(str(Path(__file__).parent / "libcost.so"))
_library.cost.restype = ctypes.c_double


def plain(x):
    cost = _library.cost()
    spend(cost, "old" if cost == 250.0 else "new")
    return 2.0 * x
'''
COMPILE = "cc -shared -fPIC -o kernels/libcost.so kernels/cost.c"


@pytest.fixture
def compiled(tmp_path: Path, has_compiler: Callable[[], bool]) -> Gate:
    """The gate in a project with a compiled kernel whose source was changed."""
    if not has_compiler():
        pytest.skip("no C compiler here")
    project = project_at(tmp_path / "project")
    project.write(PLAIN, NATIVE)
    project.write("kernels/cost.c", f"double cost(void) {{ return {OLD}; }}\n")
    project.write(".gitignore", "__pycache__/\n*.so\n")
    project.commit_all("Compiled")
    project.write("kernels/cost.c", f"double cost(void) {{ return {FASTER}; }}\n")
    assert project.run(*COMPILE.split()).code == 0
    return Gate(project)


@pytest.fixture(scope="session")
def has_compiler() -> Callable[[], bool]:
    """Whether `cc` can be run."""
    import shutil

    return lambda: shutil.which("cc") is not None


@long
def test_a_compiled_kernel_is_rebuilt_in_a_tree_of_its_own(compiled: Gate) -> None:
    """The gate's own check that nothing is left or changed covers what was built in the project."""
    done = compiled("-o", f"kopt_rebuild_command={COMPILE}")
    is_the_truth(done)
    is_in_two_processes(done, "rebuild_command")


@long
def test_a_compiled_kernel_without_a_command_is_not_compared_in_silence(compiled: Gate) -> None:
    """Both sides would load the one library there is: that is no verdict."""
    done = compiled()
    assert done.run.code == 4, done.run.text
    assert "rebuild_command" in done.run.refusal


@long
@pytest.mark.parametrize(
    ("command", "code", "parts"),
    [
        ("true install -e .", 4, ("`true install -e .` installs", "build in place")),
        ("false", 1, ("`false` ended with status 1",)),
    ],
)
def test_commands_that_cannot_build(
    compiled: Gate, command: str, code: int, parts: tuple[str, ...]
) -> None:
    done = compiled("-o", f"kopt_rebuild_command={command}")
    assert done.run.code == code, done.run.text
    for part in parts:
        assert part in done.run.text


@long
def test_a_base_that_does_not_build(compiled: Gate) -> None:
    project = compiled.project
    new = project.read("kernels/cost.c")
    project.write("kernels/cost.c", "double cost(void) { return }\n")
    project.commit_all("Does not build")
    project.write("kernels/cost.c", new)
    done = compiled("-o", f"kopt_rebuild_command={COMPILE}")
    assert done.run.code == 4, done.run.text
    assert "does not build" in done.run.refusal and "cost.c" in done.run.text
