"""The wall clock of CPU kernels: what a process frees stays its own, whatever it did before."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_kopt.measure import wall
from pytest_kopt.measure.wall import WallBlock

SCRIPT = """
import ctypes, resource
from pytest_kopt.measure.wall import WallBlock, WallEngine

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


def test_what_a_call_leaves_to_another_one_of_its_block_costs_the_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first of five does the work of all: a median of calls would not notice."""
    passed, calls = [0.0], [0]
    monkeypatch.setattr(wall, "perf_counter", lambda: passed[0])

    def call() -> None:
        passed[0] += 0.02 if calls[0] % 5 == 0 else 0.0
        calls[0] += 1

    assert WallBlock([call], 5).run() == pytest.approx(20 / 5)
