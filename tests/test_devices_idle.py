"""The availability gate: which GPU is idle, and how one is waited for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from pytest_kopt.devices import idle, processes
from pytest_kopt.devices.idle import AllGpusBusy, judge, look, wait_for_idle, wait_for_strangers
from pytest_kopt.devices.vendor import Device, Reading

from .fake_gpus import FakeVendor, gpu

A, B, C = gpu(0), gpu(1), gpu(2)
IDLE = Reading(memory_mib=4.0, utilisation_pct=0.0, processes=())


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(idle, "time", clock)
    return clock


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process that is not ours: it does not descend from the one that asks."""
    script = "sleep 60 >/dev/null 2>&1 & echo $!"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    pid = int(done.stdout)
    yield pid
    os.kill(pid, 9)


def states(table: dict[Device, Reading]) -> Callable[[Device, int], Reading]:
    return lambda device, number: table[device]


def test_the_most_idle_comes_first() -> None:
    table = {
        A: Reading(memory_mib=900.0, utilisation_pct=0.0),
        B: Reading(memory_mib=4.0, utilisation_pct=0.0),
        C: Reading(memory_mib=0.0, utilisation_pct=2.0),
    }
    vendor, said = FakeVendor([A, B, C], states(table)), list[str]()
    assert wait_for_idle(vendor, [A, B, C], 0, said.append) == [B, A, C]
    assert said == []


@pytest.mark.parametrize(
    ("readings", "reason"),
    [
        ([IDLE, Reading(utilisation_pct=2.5)], "utilisation"),
        ([Reading(memory_mib=10.0), Reading(memory_mib=900.0)], "memory"),
        ([IDLE, Reading(utilisation_pct=2.0, memory_mib=30.0)], ""),
        ([Reading()], ""),
    ],
)
def test_what_makes_a_gpu_busy(readings: list[Reading], reason: str) -> None:
    """One sample is enough; what the vendor does not say cannot be held against a GPU."""
    found = judge(A, readings, [])
    assert found.idle == (not reason)
    assert reason in str(found)


def test_a_stranger_keeps_a_gpu_and_own_processes_do_not(stranger: int) -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        table = {
            A: Reading(processes=(stranger,)),
            B: Reading(processes=(os.getpid(), child.pid)),
        }
        vendor, said = FakeVendor([A, B], states(table)), list[str]()
        assert wait_for_idle(vendor, [A, B], 0, said.append) == [B]
        busy = next(finding for finding in look(vendor, [A, B]) if not finding.idle)
        assert str(stranger) in str(busy) and "sleep" in str(busy)
    finally:
        child.kill()
        child.wait()


@contextmanager
def announced(device: Device) -> Iterator[int]:
    """Run a process that announces itself on a device; yield its pid."""
    code = (
        "from pytest_kopt.devices.processes import announce; import os, sys;"
        f"announce({device.uuid!r}); print(os.getpid(), flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None and other.stdin is not None
    try:
        yield int(other.stdout.readline())
    finally:
        other.kill()
        other.wait()
        other.stdin.close()
        other.stdout.close()


def test_another_kopt_sessions_process_is_no_stranger() -> None:
    """It takes turns under the device's lock, as long as it lives."""
    with announced(gpu(0, f"GPU-{os.getpid()}")) as pid:
        assert processes.is_announced(pid)
        assert processes.foreign([pid], root=1 << 22) == []
    assert not processes.is_announced(pid)
    assert processes.foreign([pid], root=1 << 22) == [pid]


def test_other_kopt_sessions_on_a_gpu_are_not_waited_for(stranger: int) -> None:
    """They time in turns, so what they compute and allocate is in nobody's way; a stranger is.

    Four sessions on one H200 had waited for each other's utilisation to end for up to 330 s.
    """
    shared, free = gpu(0, f"GPU-{os.getpid()}"), gpu(1, f"GPU-{os.getpid()}-free")
    unknown = 1 << 22

    def state(device: Device, number: int) -> Reading:
        if device is free:
            return Reading(utilisation_pct=0.0, memory_mib=4.0)
        return Reading(
            utilisation_pct=97.0, memory_mib=900.0 * number, processes=(unknown, *strangers)
        )

    strangers: tuple[int, ...] = ()
    vendor, said = FakeVendor([shared, free], state), list[str]()
    with pytest.raises(AllGpusBusy):
        wait_for_idle(vendor, [shared], 0, said.append)
    with announced(shared):
        assert wait_for_idle(vendor, [shared], 0, said.append) == [shared] and said == []
        assert wait_for_idle(vendor, [shared, free], 0, said.append) == [free], (
            "one that nobody uses is better"
        )
        strangers = (stranger,)
        with pytest.raises(AllGpusBusy, match=str(stranger)):
            wait_for_idle(vendor, [shared], 0, said.append)
    strangers = ()
    with pytest.raises(AllGpusBusy, match="utilisation"):
        wait_for_idle(vendor, [shared], 0, said.append)


def test_pids_of_another_namespace() -> None:
    """Before anything of ours runs they are somebody's; later they may be ours."""
    unknown = 1 << 22
    assert not processes.is_here(unknown)
    vendor, said = FakeVendor([A], states({A: Reading(processes=(unknown,))})), list[str]()
    with pytest.raises(AllGpusBusy, match="not of this container"):
        wait_for_idle(vendor, [A], 0, said.append)
    wait_for_strangers(vendor, A, 0, said.append)


def test_waiting_shows_what_it_waits_for_and_ends_at_the_limit(time: Time) -> None:
    """An hour, looks announced every ten minutes, seven in all."""
    vendor, said = FakeVendor([A], states({A: Reading(utilisation_pct=97.0)})), list[str]()
    with pytest.raises(AllGpusBusy, match=f"60 minutes.*{A.uuid}.*utilisation 97 %"):
        wait_for_idle(vendor, [A], 60, said.append)
    assert 3600 <= time.now < 3600 + 60
    assert len(said) == 6, "the seventh look is the answer"
    assert all(A.uuid in line and "--kopt-gpu-wait" in line for line in said)
    assert "up to 60 minutes more" in said[0] and "up to 10 minutes more" in said[-1]


def test_a_gpu_that_gets_free_is_taken_at_once(time: Time) -> None:
    def state(device: Device, number: int) -> Reading:
        busy = device is A or time.now < 700
        return Reading(utilisation_pct=80.0 if busy else 0.0)

    vendor, said = FakeVendor([A, B], state), list[str]()
    assert wait_for_idle(vendor, [A, B], 60, said.append) == [B]
    assert 700 <= time.now < 700 + 2 * idle.POLL_SECONDS
    assert len(said) == 3 and B.uuid in said[-1] and "going on" in said[-1]


def test_not_waiting_looks_once(time: Time) -> None:
    vendor, said = FakeVendor([A], states({A: Reading(utilisation_pct=97.0)})), list[str]()
    with pytest.raises(AllGpusBusy):
        wait_for_idle(vendor, [A], 0, said.append)
    assert said == [] and time.now < idle.POLL_SECONDS


def test_between_measurements_only_strangers_count(stranger: int, time: Time) -> None:
    """Utilisation tells of one's own work there."""

    def state(device: Device, number: int) -> Reading:
        return Reading(utilisation_pct=97.0, processes=(stranger,) if time.now < 60 else ())

    vendor, said = FakeVendor([A], state), list[str]()
    wait_for_strangers(vendor, A, 60, said.append)
    assert 60 <= time.now < 120 and str(stranger) in said[0]


def test_who_is_about_to_leave_costs_no_more_than_that(stranger: int, time: Time) -> None:
    """Two sessions on an H200 had waited five seconds for each other's processes that ended."""

    def state(device: Device, number: int) -> Reading:
        return Reading(processes=(stranger,) if time.now < 0.5 else ())

    vendor, said = FakeVendor([A], state), list[str]()
    wait_for_strangers(vendor, A, 60, said.append)
    assert 0.5 <= time.now < 1 and said == []
