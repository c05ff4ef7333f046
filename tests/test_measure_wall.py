"""The wall clock of CPU kernels: what a process frees stays its own, whatever it did before."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import weakref
from functools import partial

import pytest

from pytest_kopt.measure import wall
from pytest_kopt.measure.wall import WallEngine

SCRIPT = """
import ctypes, resource
from pytest_kopt.measure.wall import WallEngine

def call():  # a temporary of 8 MiB: every page of it is written to
    libc.free(libc.memset(libc.malloc(8 << 20), 1, 8 << 20))

libc = ctypes.CDLL(None)
libc.malloc.restype = libc.memset.restype = ctypes.c_void_p
libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
if {pinned}:
    libc.mallopt(-3, 128 << 10)  # as a process that never freed a mapping has it
block = WallEngine(iterations=5).prepare([call])
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
block.run()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / block.calls)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt(3) is glibc's")
@pytest.mark.parametrize("pinned", [False, True])
def test_a_temporary_costs_no_page_faults_when_it_is_timed(pinned: bool) -> None:
    script = SCRIPT.format(pinned=pinned)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 20, "2048 pages of 4 KiB are new to a process that gave them back"


class Clocks:
    """Stand in for the engine's: they move by what the only thread computes, or waits for."""

    def __init__(self) -> None:
        self.elapsed = self.computed = 0.0

    def compute(self, seconds: float = 0.004) -> None:
        self.computed += seconds
        self.wait(seconds)

    def wait(self, seconds: float = 0.004) -> None:
        self.elapsed += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    found = Clocks()
    monkeypatch.setattr(wall, "perf_counter", lambda: found.elapsed)
    for name in ("thread_time", "process_time"):
        monkeypatch.setattr(wall, name, lambda: found.computed)
    return found


def test_what_passes_between_two_calls_is_timed_too(clocks: Clocks) -> None:
    block = WallEngine(iterations=5).prepare([lambda: None], clocks.compute)
    assert block.run() == 0
    assert block.between == pytest.approx(4)
    waiting = WallEngine(iterations=5).prepare([lambda: None], clocks.wait)
    waiting.run()
    assert waiting.between == 0
    alone = WallEngine(iterations=5, fewest=1, block_seconds=0).prepare([clocks.wait])
    alone.run()
    assert (alone.calls, alone.between) == (1, 0.0)


@pytest.mark.parametrize("install", [sys.setprofile, sys.settrace])
def test_a_hook_that_a_call_leaves_is_noticed_and_an_earlier_one_is_not(install: object) -> None:
    assert callable(install)
    was = sys.getprofile(), sys.gettrace()

    def gone_at_the_next_call(frame: object, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            install(None)

    try:
        install(lambda *told: None)
        block = WallEngine(iterations=5).prepare([lambda: None])
        block.run()
        assert not block.is_hooked
        leaves = WallEngine(iterations=5).prepare([lambda: install(lambda *told: None)])
        leaves.run()
        assert leaves.is_hooked
        install(None)
        shy = WallEngine(iterations=5).prepare([lambda: install(gone_at_the_next_call)])
        shy.run()
        assert shy.is_hooked, "whatever Python calls next"
    finally:
        sys.setprofile(was[0])
        sys.settrace(was[1])


def test_what_waits_for_pythons_next_call_works_within_the_clock(clocks: Clocks) -> None:
    """A pending call, made from C as the kernel's frame goes away: no hook, signal or thread."""

    class Local:
        pass

    def work(_: object) -> int:
        clocks.compute(0.002)
        return 0

    late = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(work)
    add = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.py_object)(
        ("Py_AddPendingCall", ctypes.pythonapi)
    )
    callback = partial(add, ctypes.cast(late, ctypes.c_void_p).value)
    kept: list[object] = []

    def kernel() -> None:
        local = Local()
        kept[:] = [weakref.ref(local, callback)]

    assert WallEngine(iterations=5).prepare([kernel]).run() == pytest.approx(2)
