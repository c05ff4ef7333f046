"""The files of the projects that sessions run in.

The kernel's cost is scripted: it advances a clock of its own, which a plugin puts in the place of
the wall clock before kernels are imported. A round then takes milliseconds and its
gain is exactly what the test says. Projects that shall be timed for real leave that plugin out.
"""

from __future__ import annotations

from collections.abc import Mapping

from .project import CAMPAIGN, CASES, KERNEL, LOCKS, SCRIPT, Project

ROWS = (2, 4)

#: Plugins that no test of sessions is about: each process of a session begins sooner without.
LEFT_OUT = ", ".join(
    f'"-p", "no:{name}"'
    for name in (
        *("cacheprovider", "hypothesispytest", "benchmark", "anyio"),
        *("logging", "doctest", "unittest"),
    )
)
SETTINGS = f"""\
[tool.pytest.ini_options]
testpaths = ["tests"]
pythonpath = ["."]
addopts = [{LEFT_OUT}]
"""
#: With the fixture of pytest-benchmark, which starts a dozen processes in every session.
BENCHMARKS = SETTINGS.replace(', "-p", "no:benchmark"', "")
# The scripted clock knows nothing of pairs; these are the sessions of the stored rule.
STORED = 'kopt_compare = "stored"\n'

CLOCK = '''\
"""A clock that only moves when the kernel says so."""

import os
from pathlib import Path

_now = 0.0
_log = Path(__file__).parent / "measured" / "log"
_slip = Path(__file__).with_name("slip.txt")
# In all processes but xdist's workers.
_slips = _slip.exists() and "PYTEST_XDIST_WORKER" not in os.environ
_factor = float(_slip.read_text()) if _slips else 1.0
_told = set()


def spend(milliseconds):
    """Move on, and leave the log that says so."""
    global _now
    _now += milliseconds * _factor * 1e-3
    if os.getpid() not in _told:
        _told.add(os.getpid())
        _log.parent.mkdir(exist_ok=True)
        _log.touch()


def now():
    return _now
'''

# By this clock nobody is in another's way: only sessions of one process of the tests take turns.
# Every process of a session compiles this anew, and pytest would rewrite it as well.
SCRIPTED = f"""\
'PYTEST_DONT_REWRITE'
import os
from pathlib import Path

import clock
from pytest_kopt.devices import lock
from pytest_kopt.measure import wall
from pytest_kopt.processes.child import Child
from pytest_kopt.devices.processes import Inspected

assert callable(wall.perf_counter)
wall.perf_counter = clock.now
receive = Child.receive


def remembered(self):
    self.reply = receive(self)
    return self.reply


assert isinstance(Child.waited_ms, property)
Child.receive = remembered
Child.waited_ms = property(lambda self: getattr(self.reply, "ms", 0.0))
assert callable(Inspected.cpu_ms)
Inspected.cpu_ms = lambda process: None
lock.DIRECTORY = Path(os.environ.get("{LOCKS}", lock.DIRECTORY))
"""

WATCHDOG = '''\
"""The limit of a case, which is over once a kernel hangs. `limits.log` says for whom it runs."""

import faulthandler
import os
import threading
from pathlib import Path

from pytest_kopt.processes import channel

_log = Path(__file__).with_name("limits.log")
_how = {}


def _note(what):
    with _log.open("a") as log:
        log.write(f"{os.getpid()} {what}\\n")


def dump_traceback_later(seconds, **how):
    _how.update(how)
    faulthandler.dump_traceback_later(seconds, **how)
    _note("runs")


def cancel_dump_traceback_later():
    faulthandler.cancel_dump_traceback_later()
    _note("rests")


def hang():
    faulthandler.dump_traceback_later(0.1, **_how)
    threading.Event().wait()


class _Watchdog:
    dump_traceback_later = staticmethod(dump_traceback_later)
    cancel_dump_traceback_later = staticmethod(cancel_dump_traceback_later)


channel.faulthandler = _Watchdog
'''
#: What a kernel does under it to hang.
HANG = "__import__('watchdog').hang()"


def with_watchdog(project: Project) -> dict[str, str]:
    """Return the variables of a run whose limit is over as soon as a kernel hangs."""
    folder = project.root.parent / "watchdog"
    folder.mkdir(exist_ok=True)
    (folder / "watchdog.py").write_text(WATCHDOG)
    plugins = project.environment().get("PYTEST_PLUGINS", "")
    plugins = ",".join(filter(None, (plugins, "watchdog")))
    return {"PYTHONPATH": str(folder), "PYTEST_PLUGINS": plugins, "WATCHDOG_CACHE_DIR": str(folder)}


DOUBLED = '''\
"""Doubles a tensor."""

import torch
from clock import spend

COST_MS = {cost_ms}
FACTOR = {factor}


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.rows = x.shape[0]
        spend(COST_MS[ctx.rows])
        return FACTOR * x

    @staticmethod
    def backward(ctx, grad):
        spend(4 * COST_MS[ctx.rows])
        return FACTOR * grad


def doubled(x):
    {first}
    return Doubled.apply(x)
'''

DOUBLED_CASES = """\
import pytest
import torch
from kernels.doubled import doubled


@pytest.mark.kopt(schema="memory")
@pytest.mark.parametrize("rows", [2, 4])
def test_doubled(kopt, rows):
    kopt(
        doubled,
        inputs=lambda: (torch.randn(rows, 8, requires_grad=True),),
        reference=lambda x: 2 * x.double(),
        dims={"rows": rows, "columns": 8},
        backward=True,
        nbytes=1e9 * rows,
    )
"""

IGNORED = "__pycache__/\nmeasured/\n*.yaml\nout/\n"


def doubled_kernel(
    cost_ms: float | Mapping[int, float] = 250.0, *, factor: float = 2.0, first: str = "pass"
) -> str:
    """Return a version of the kernel: its forward's cost by rows, its factor, what it does first.

    With 250 ms a case of n rows reaches 4 n GB/s forward, and half of that backward. Costs in
    whole sixteenths of a second make sums without rounding: such rows are the same in every run.
    """
    costs = dict(cost_ms) if isinstance(cost_ms, Mapping) else dict.fromkeys(ROWS, cost_ms)
    return DOUBLED.format(cost_ms=costs, factor=factor, first=first)


def begun(project: Project, cases: str, kernel: str) -> Project:
    """Write a project of this test file and kernel, and measure its baseline by a real clock."""
    project.write("pyproject.toml", SETTINGS)
    project.write("kernels/__init__.py", "")
    project.write(CASES, cases)
    project.write(KERNEL, kernel)
    project.write(".gitignore", "__pycache__/\n")
    project.commit_all()
    assert project.init().code == 0
    baseline = project.pytest("--kopt-campaign", CAMPAIGN, "--kopt-round", "1")
    assert baseline.code == 0, baseline.text
    return project


def write_doubled(project: Project) -> None:
    """Write the project of the campaigns: one kernel, two cases, forward and backward."""
    project.write("pyproject.toml", SETTINGS + STORED)
    project.write("clock.py", CLOCK)
    project.write("kernels/__init__.py", "")
    project.write(KERNEL, doubled_kernel())
    project.write(CASES, DOUBLED_CASES)
    project.write(".gitignore", IGNORED)
    project.write("README.md", "A project.\n")
    project.write(SCRIPT, SCRIPTED)
