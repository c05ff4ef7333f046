"""The locks of devices: one measurement at a time on a host, never stuck, and room for checks."""

from __future__ import annotations

import os
import re
import select
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_kopt.devices import lock
from pytest_kopt.devices.lock import checking_lock, timing_lock
from pytest_kopt.process_tree import is_below

from .waiting import HANG, until

HOLD = """\
import sys, time
from pathlib import Path
from pytest_kopt.devices import lock
lock.DIRECTORY = Path({directory!r})
with lock.{kind}({device!r}):
    print("held", flush=True)
    sys.stdin.read()
print("released", flush=True)
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lock, "DIRECTORY", tmp_path / "locks")
    return tmp_path / "locks"


def holder(directory: Path, device: str, kind: str = "timing_lock") -> subprocess.Popen[str]:
    code = HOLD.format(directory=str(directory), device=device, kind=kind)
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def has_spoken(process: subprocess.Popen[str], within: float = 0.0) -> bool:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], within)
    return bool(ready)


def is_held(process: subprocess.Popen[str]) -> bool:
    assert process.stdout is not None
    return has_spoken(process, HANG) and process.stdout.readline() == "held\n"


def waits(process: subprocess.Popen[str]) -> bool:
    """Say whether a process has no lock yet, once the system has it among those that wait."""

    def is_listed() -> bool:
        lines = map(str.split, Path("/proc/locks").read_text().splitlines())
        return any("->" in words and str(process.pid) in words for words in lines)

    until(lambda: is_listed() or has_spoken(process))
    return not has_spoken(process)


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_processes_take_turns_on_one_device_and_not_on_two(directory: Path) -> None:
    """Whatever campaign, repository or TMPDIR they have."""
    with timing_lock("GPU-a"):
        other, same = holder(directory, "GPU-b"), holder(directory, "GPU-a")
        assert is_held(other)
        assert waits(same)
    assert is_held(same)
    end(other)
    end(same)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_process_leaves_nothing_stuck(directory: Path, number: signal.Signals) -> None:
    """One that is only stopped keeps the device."""
    process = holder(directory, "GPU-a")
    assert is_held(process)
    process.send_signal(number)
    waiting = holder(directory, "GPU-a")
    assert is_held(waiting) if number == signal.SIGKILL else waits(waiting)
    end(process)
    end(waiting)


def test_a_forked_process_does_not_keep_the_lock(directory: Path) -> None:
    """A kernel's own worker lives on with a copy of the descriptor."""
    with timing_lock("GPU-a"):
        pid = os.fork()
        if pid == 0:
            time.sleep(3600)
            os._exit(0)
    try:
        process = holder(directory, "GPU-a")
        assert is_held(process)
        end(process)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_checks_share_a_gpu_and_do_not_keep_a_timing_out(directory: Path) -> None:
    """Who asks for it alone is next when those that have it are done, whoever comes meanwhile."""
    with checking_lock("GPU-a"):
        check = holder(directory, "GPU-a", "checking_lock")
        assert is_held(check)
        timing = holder(directory, "GPU-a")
        assert waits(timing)
        late = holder(directory, "GPU-a", "checking_lock")
        assert waits(late)
        end(check)
    assert is_held(timing)
    assert waits(late)
    end(timing)
    assert is_held(late)
    end(late)


def test_timings_that_wait_come_before_a_check(directory: Path) -> None:
    """Also one that came after it: every timing has checked before, so that none starves."""
    with timing_lock("GPU-a"):
        first = holder(directory, "GPU-a")
        assert waits(first)
        check = holder(directory, "GPU-a", "checking_lock")
        assert waits(check)
        second = holder(directory, "GPU-a")
        assert waits(second)
    timings = [first, second]
    while timings:
        until(lambda: any(map(has_spoken, timings)))
        timings.sort(key=has_spoken)
        holds = timings.pop()
        assert is_held(holds) and all(map(waits, [*timings, check]))
        end(holds)
    assert is_held(check)
    end(check)


def test_a_check_on_the_cpu_waits_for_nobody(directory: Path) -> None:
    with timing_lock("cpu"):
        check = holder(directory, "cpu", "checking_lock")
        assert is_held(check)
        end(check)


def test_other_users_can_lock_too(directory: Path) -> None:
    """The directory takes everybody's files, and a lock file need only be readable."""
    with timing_lock("GPU-a"):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o1777
        for path in directory.iterdir():
            assert path.stat().st_mode & stat.S_IROTH
            path.chmod(0o444)
    with timing_lock("GPU-a"):
        pass


def test_a_link_in_the_place_of_a_lock_is_refused(directory: Path, tmp_path: Path) -> None:
    with timing_lock("GPU-a"):
        pass
    victim = tmp_path / "victim"
    (directory / "GPU-b.lock").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"), timing_lock("GPU-b"):
        pass
    assert not victim.exists()


def test_the_directory_does_not_depend_on_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from pytest_kopt.devices import lock; print(lock.DIRECTORY)"
    places = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"TMPDIR": directory, "USER": user},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for directory, user in (("/tmp", "a"), ("/var/tmp", "b"))
    }
    assert len(places) == 1


ASKS = """\
import subprocess, sys, time
from pathlib import Path
from pytest_kopt.devices import lock, processes
lock.DIRECTORY = Path({directory!r})
child = subprocess.Popen([sys.executable, "-c", {code!r}], stdin=subprocess.PIPE)
for _ in range({tries}):
    if found := processes.in_the_way():
        break
    time.sleep(0.05)
child.kill()
print(found)
"""


@pytest.mark.parametrize(("device", "tries"), [("GPU-a", 600), ("GPU-b", 20)])
def test_who_is_waited_for_is_named(directory: Path, device: str, tries: int) -> None:
    """A session's own processes wait for each other as well, which nobody has to hear of."""
    code = HOLD.format(directory=str(directory), device=device, kind="timing_lock")
    asks = ASKS.format(directory=str(directory), code=code, tries=tries)
    with timing_lock("GPU-a"):
        done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True)
    told = [line for line in done.stdout.splitlines() if line != "held"]
    if device == "GPU-b":
        assert told == [""], done.stderr
        return
    found = re.fullmatch(r"process (\d+) \(.+, since \d\d:\d\d\) measures on this device", told[0])
    assert found and is_below(os.getpid(), int(found[1])), done.stderr
