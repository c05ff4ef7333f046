"""What is remembered before kernel code is imported, and what of it may change afterwards."""

from __future__ import annotations

import functools
import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_kopt.honesty.watching import guards, state
from pytest_kopt.honesty.watching.guards import Guards
from pytest_kopt.numerics import compare, gates


@pytest.fixture(scope="module")
def taken() -> Guards:
    return Guards.take(["pytest_kopt.cases.running.runner"])


@pytest.fixture(autouse=True)
def untouched(taken: Guards) -> Iterator[None]:
    assert taken.findings() == []
    yield
    assert taken.findings() == []


def named(taken: Guards) -> str:
    (finding,) = taken.findings()
    assert finding.check == "patched-function"
    return finding.message


REPLACED = {
    "time.perf_counter": (time, "perf_counter"),
    "statistics.median": (statistics, "median"),
    "gc.collect": (gc, "collect"),
    "torch.allclose": (torch, "allclose"),
    "torch.exp": (torch, "exp"),
    "torch.Tensor.double": (torch.Tensor, "double"),
    "torch.cuda.synchronize": (torch.cuda, "synchronize"),
    "torch.testing.assert_close": (torch.testing, "assert_close"),
    "pytest_kopt.numerics.compare.compare": (compare, "compare"),
    "pytest_kopt.numerics.gates.Gate.passes": (gates.Gate, "passes"),
}


@pytest.mark.parametrize("name", REPLACED)
def test_a_replaced_function_is_named(
    taken: Guards, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, attribute = REPLACED[name]
    monkeypatch.setattr(owner, attribute, lambda *args, **kwargs: True)
    assert name in named(taken)
    monkeypatch.undo()


def test_one_function_of_torch_under_the_name_of_another_is_a_replacement(
    taken: Guards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "allclose", torch.equal)
    assert "torch.allclose" in named(taken)
    monkeypatch.undo()


def test_an_instance_in_the_place_of_a_function_is_a_replacement(
    taken: Guards, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Anything:
        def __call__(self, *args: object) -> bool:
            return True

    monkeypatch.setattr(compare, "snr_of", Anything())
    assert "compare.snr_of" in named(taken)
    monkeypatch.undo()


def test_exchanged_code_is_found_in_the_same_object(taken: Guards) -> None:
    function, code = torch.testing.assert_close, torch.testing.assert_close.__code__
    function.__code__ = (lambda *args, **kwargs: None).__code__
    try:
        assert "torch.testing.assert_close" in named(taken)
    finally:
        function.__code__ = code


def test_an_edited_table_of_tolerances_is_found(
    taken: Guards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gates.TOLERANCES, "float32", 1e3)
    assert "gates.TOLERANCES" in named(taken)
    monkeypatch.undo()


def test_what_a_library_wraps_in_itself_is_its_own_business(
    taken: Guards, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapped = torch.no_grad()(torch.manual_seed)
    monkeypatch.setattr(torch, "manual_seed", wrapped)
    assert taken.findings() == []
    monkeypatch.undo()


def test_what_a_kernel_wraps_is_not(taken: Guards, monkeypatch: pytest.MonkeyPatch) -> None:
    @functools.wraps(torch.exp)
    def exp(*args: Any) -> Any:
        return torch.log(*args)

    monkeypatch.setattr(torch, "exp", exp)
    assert "torch.exp" in named(taken)
    monkeypatch.undo()


@pytest.mark.long
def test_the_compiler_changes_nothing_that_is_guarded() -> None:
    """In a process of its own: importing the compiler takes seconds and cannot be undone."""
    program = (
        "from pytest_kopt.honesty.watching.guards import Guards; "
        "taken = Guards.take(['pytest_kopt.cases.running.runner']); "
        "import torch, torch._dynamo, torch.func, torch.utils.data; "
        "torch.func.vmap(torch.sin)(torch.ones(3)); "
        "torch.manual_seed(1); "
        "print(taken.findings())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_project_code_is_no_library() -> None:
    assert guards.is_library(statistics.__file__)
    assert guards.is_library(torch.__file__)
    assert not guards.is_library(__file__)
    assert not guards.is_library("<string>")


@pytest.mark.parametrize("package", ["xdist", "execnet"])
def test_a_package_beside_the_installed_ones_is_a_library_once_it_is_loaded(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watch over writes asks before torch is imported; in a worker below execnet's own code."""
    assert not guards.is_library(str(tmp_path / "kernel.py"))
    monkeypatch.setitem(sys.modules, package, SimpleNamespace(__file__=f"{tmp_path}/x/__init__.py"))
    assert guards.is_library(str(tmp_path / "x" / "remote.py"))


# --- state ---------------------------------------------------------------------------------------


def changed(before: state.State) -> str:
    (finding,) = state.changes(before, state.look())
    assert finding.check == "process-state"
    return finding.message


def test_a_process_that_is_left_alone_has_not_changed() -> None:
    assert [*state.changes(state.look(), state.look())] == []


def test_state_that_a_kernel_changes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    before = state.look()
    thresholds = gc.get_threshold()
    try:
        gc.set_threshold(7)
        assert "gc thresholds" in changed(before)
    finally:
        gc.set_threshold(*thresholds)
    try:
        torch.set_default_dtype(torch.bfloat16)
        assert "torch default dtype was torch.float32, is torch.bfloat16" in changed(before)
    finally:
        torch.set_default_dtype(torch.float32)
    with monkeypatch.context() as patch:
        patch.setenv("PYTEST_ADDOPTS", "--kopt-engine wall")
        assert "environment PYTEST_ADDOPTS" in changed(before)


def test_a_mode_that_hears_every_call_is_named() -> None:
    from torch.overrides import TorchFunctionMode

    class Diplomat(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    before = state.look()
    with Diplomat():
        assert "torch modes" in changed(before)


def test_how_the_system_runs_the_process_is_its_state(tmp_path: Path) -> None:
    """In a process of its own: an ordinary user cannot come back from the idle class."""
    program = (
        "import os, signal\n"
        "from pytest_kopt.honesty.watching import state\n"
        "before = state.look()\n"
        "assert [*state.changes(before, state.look())] == []\n"
        "signal.signal(signal.SIGALRM, signal.SIG_IGN)\n"
        "signal.setitimer(signal.ITIMER_REAL, 9.0, 9.0)\n"
        "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\n"
        "os.nice(1)\n"
        "print([*state.changes(before, state.look())][0])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    for name in ("niceness was 0, is 1", "interval timer was 0.0, is 9.0", "scheduling class"):
        assert name in done.stdout, done.stdout + done.stderr


def test_a_default_device_is_no_foreign_mode() -> None:
    before = state.look()
    with torch.device("cpu"):
        assert [*state.changes(before, state.look())] == []


TRIPS = """
import gc, sys
from pathlib import Path
from pytest_kopt.honesty.watching.audit_hook import Tripwire
root = Path(sys.argv[1])
wire = Tripwire(root)
wire.install()
sys.path.insert(0, str(root))
import kernel
kernel.honest(root)
print([f.check for f in wire.findings()])
steps = (kernel.conftest, kernel.ledger, kernel.own_source, kernel.rename, kernel.bytecode)
for step in steps:
    step(root)
    print([(f.check, f.message) for f in wire.findings()])
Path(root, "conftest.py").write_text("")
"""
TRIPPING = """
import gc, importlib.util, json, logging, os, shutil, tempfile

def honest(root):
    gc.collect()
    (root / "cache").mkdir()
    (root / "cache" / "tuned.json").write_text(json.dumps({"64": 4}))
    (root / "cache" / "generated.py").write_text("x = 1")
    tempfile.NamedTemporaryFile().close()
    (root / "conftest.py").read_text()
    import conftest

def bytecode(root):
    import py_compile
    (root / "other.py").write_text("inputs = zeros")
    cached = importlib.util.cache_from_source(root / "conftest.py")
    try:
        py_compile.compile(root / "other.py", cached)
    except PermissionError:
        pass

def conftest(root):
    with open(root / "conftest.py", "a") as file:
        file.write("#")

def ledger(root):
    (root / "agent" / "c" / "rounds").mkdir()
    try:
        (root / "agent" / "c" / "rounds" / "verdict.json").write_text("{}")
    except PermissionError:
        pass

def own_source(root):
    with open(__file__, "a") as file:
        file.write("#")

def rename(root):
    (root / "new").write_text("")
    os.replace(root / "new", root / "pyproject.toml")
"""


def test_the_tripwire_hears_what_kernel_code_writes(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(TRIPPING)
    (tmp_path / "conftest.py").write_text("")
    (tmp_path / "agent" / "c").mkdir(parents=True)
    (tmp_path / "agent" / "c" / "ledger.jsonl").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", TRIPS, str(tmp_path)], capture_output=True, text=True
    )
    honest, *steps = done.stdout.splitlines()
    assert honest == "[]", done.stdout + done.stderr
    written = ("conftest.py", "agent/c/rounds/verdict.json", "kernel.py", "pyproject.toml")
    for line, name in zip(steps[:4], written, strict=True):
        assert line == f"[('harness-written', 'kernel code wrote to {name}')]"
    assert "kernel code wrote to __pycache__/conftest.cpython" in steps[4]
    assert not (tmp_path / "agent/c/rounds/verdict.json").exists()


READS = """
import sys, sysconfig
from pathlib import Path
from pytest_kopt.honesty.watching.audit_hook import Tripwire
root = Path(sys.argv[1])
wire = Tripwire(root)
wire.install()
packages = Path(sysconfig.get_path("purelib"))
for file, name in (("_pytest/cacheprovider.py", "pytests"), ("other/files.py", "others")):
    code = compile("open(root / name).read()", str(packages / file), "exec")
    exec(code, {"root": root, "name": name})
print([Path(name).name for name in wire.opened])
"""


def test_what_pytest_reads_is_no_file_of_the_kernels(tmp_path: Path) -> None:
    """Its cache, read by xdist's workers, made every later round one of other files."""
    for name in ("pytests", "others"):
        (tmp_path / name).write_text("")
    words = [sys.executable, "-c", READS, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.stdout == "['others']\n", done.stdout + done.stderr
