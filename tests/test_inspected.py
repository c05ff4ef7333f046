"""What is seen of another process without its help."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from pytest_kopt.devices import processes
from pytest_kopt.devices.processes import Inspected
from pytest_kopt.process_tree import children

from . import waiting

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux tells it")

#: Says where its bytes lie, then adds 1 to the first of them for ever, or does nothing.
COUNTS = """\
import ctypes, sys, time
held = ctypes.create_string_buffer(b"\\0kernel", 7)
print(ctypes.addressof(held), flush=True)
number = 0
while sys.argv[1] == "counts":
    number += 1
    held[0] = number % 251
time.sleep(600)
"""


@pytest.fixture
def start() -> Iterator[Callable[[str], tuple[Inspected, int]]]:
    started = []

    def begin(what: str) -> tuple[Inspected, int]:
        words = [sys.executable, "-c", COUNTS, what]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        return Inspected(process.pid), int(process.stdout.readline())

    yield begin
    for process in started:
        process.kill()
        process.communicate()


Start = Callable[[str], tuple[Inspected, int]]


def test_a_stopped_process_writes_no_more(start: Start) -> None:
    other, address = start("counts")
    for _ in range(20):
        with other.stopped():
            first = other.read(address, 7)
            cpu = other.cpu_ms()
            assert {other.read(address, 7) for _ in range(50)} == {first}
            assert other.cpu_ms() == cpu
        assert first[1:] == b"kernel"


def test_what_is_written_into_a_stopped_process_is_what_it_finds(start: Start) -> None:
    other, address = start("counts")
    with other.stopped():
        other.write(address + 1, b"KERNEL")
    assert other.read(address + 1, 6) == b"KERNEL"
    with pytest.raises(OSError, match="Input/output error"):
        other.write(8, b"kernel")
    with pytest.raises(OSError, match="there is no address"):
        other.write((1 << 64) - 1, b"kernel")


def test_it_stands_still_until_the_last_that_asked_for_it_is_through(start: Start) -> None:
    other, address = start("counts")
    with other.stopped():
        with other.stopped():
            first = other.read(address, 1)
        assert {other.read(address, 1) for _ in range(50)} == {first}
    while other.read(address, 1) == first:
        pass


def test_it_goes_on_afterwards(start: Start) -> None:
    other, address = start("counts")
    with other.stopped():
        before = other.read(address, 1)
    while other.read(address, 1) == before:
        pass


def test_the_processor_time_is_that_of_what_it_computes(start: Start) -> None:
    busy, _ = start("counts")
    idle, _ = start("sleeps")
    waiting.until(lambda: " S " in Path(f"/proc/{idle.pid}/stat").read_text())
    before = {process: process.cpu_ms() or 0.0 for process in (busy, idle)}

    def used(process: Inspected) -> float:
        return (process.cpu_ms() or 0.0) - before[process]

    # Being stopped takes a process some time as well.
    waiting.until(lambda: used(busy) > 10 * used(idle))


#: For each line it starts a child that computes for 50 ms by its own clock, and writes that clock.
#: The child is waited for at once, or killed at the next line; one that nobody waits for is reaped
#: by the system.
STARTS = """
import os, signal, sys, time
if sys.argv[1] == "unwaited":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print(0, flush=True)
for line in sys.stdin:
    reader, writer = os.pipe()
    if not (child := os.fork()):
        while time.process_time() < 0.05:
            pass
        os.write(writer, str(time.process_time()).encode())
        if sys.argv[1] == "waited":
            os._exit(0)
        time.sleep(600)
    used = os.read(reader, 99).decode()
    if sys.argv[1] == "waited":
        os.waitpid(child, 0)
    print(used, flush=True)
    if sys.argv[1] != "waited":
        sys.stdin.readline()
        os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(child, 0)
        except ChildProcessError:
            pass
        print(0, flush=True)
"""


@pytest.mark.parametrize("how", ["waited", "killed", "unwaited"])
def test_the_processor_time_of_a_child_that_has_ended_stays_counted(how: str) -> None:
    words = [sys.executable, "-c", STARTS, how]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, text=True, stdin=pipe, stdout=pipe) as process:
        orders, replies = process.stdin, process.stdout
        assert orders is not None and replies is not None

        def told() -> float:
            print(file=orders, flush=True)
            return float(replies.readline()) * 1e3

        replies.readline()
        other, used = Inspected(process.pid), 0.0
        seen = [other.cpu_ms() or 0.0]
        for _ in range(3):
            used += told()
            seen.append(other.cpu_ms() or 0.0)
            if how != "waited":
                told()
                seen.append(other.cpu_ms() or 0.0)
        # The system keeps the time of ended children in ticks.
        assert seen == sorted(seen)
        assert seen[-1] - seen[0] >= used - 1e3 / os.sysconf("SC_CLK_TCK")
        process.kill()


def test_a_thread_that_ends_while_threads_are_listed_leaves_the_clock_readable(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel had one end at that moment, and was timed by another clock."""
    other, _ = start("sleeps")
    listed = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: [str(2**22 + 5), *listed(path)])
    assert (other.cpu_ms() or 0.0) > 0.0


def test_a_child_that_ends_while_it_is_told_to_stop_keeps_nobody_running(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, address = start("counts")
    monkeypatch.setattr(processes, "down", lambda pid: iter([pid, 2**22 + 5]))
    with other.stopped():
        first = other.read(address, 7)
        assert {other.read(address, 7) for _ in range(50)} == {first}


def test_a_process_whose_clock_was_told_ends_with_an_error_and_not_without_a_clock(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, _ = start("sleeps")
    assert other.cpu_ms() is not None

    def untold(clock: int) -> float:
        raise OSError("it is not told")

    monkeypatch.setattr(time, "clock_gettime", untold)
    with pytest.raises(ProcessLookupError, match="processor time"):
        other.cpu_ms()
    assert Inspected(other.pid).cpu_ms() is None


def test_what_is_not_mapped_is_not_read(start: Start) -> None:
    other, address = start("sleeps")
    for where, size in ((8, 8), (address, 1 << 45), (1 << 70, 8)):
        with pytest.raises(OSError, match=r"Input/output error|bytes at \d+: "):
            other.read(where, size)


def test_a_process_that_is_gone_is_not_seen(start: Start) -> None:
    _, address = start("sleeps")
    gone = Inspected(2**22 + 5)
    assert gone.cpu_ms() is None
    with pytest.raises(ProcessLookupError), gone.stopped():
        pass
    with pytest.raises(FileNotFoundError):
        gone.read(address, 1)


def _is_stopped(stat: Path) -> bool:
    return " T " in stat.read_text()


def _grows(file: Path, size: int) -> bool:
    return file.stat().st_size > size


def test_what_it_started_stands_still_too(start: Start, tmp_path: Path) -> None:
    counting = f"while 1: open({str(tmp_path / 'file')!r}, 'a').write('x')"
    words = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {counting!r}])"
    process = subprocess.Popen([sys.executable, "-c", words])
    file = tmp_path / "file"
    try:
        waiting.until(lambda: file.exists() and file.stat().st_size > 0)
        for _ in range(5):
            with Inspected(process.pid).stopped():
                (child,) = children(process.pid)
                stat = Path(f"/proc/{child}/stat")
                waiting.until(partial(_is_stopped, stat))
            before = file.stat().st_size
            waiting.until(partial(_grows, file, before))
    finally:
        for child in children(process.pid):
            os.kill(child, signal.SIGKILL)
        process.kill()
        process.wait()
