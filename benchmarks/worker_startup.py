"""What the processes of a session cost before their first case: interpreters, or forks of a parent.

python benchmarks/worker_startup.py docs/results/worker_startup_cpu.json

A worker of pytest-xdist starts an interpreter for its cases; forked, it would begin where the
parent's replicas do.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pytest_kopt.processes.launcher import WarmParent

IMPORTS = "import pytest, torch, pytest_kopt.session.assemble, pytest_kopt.cases.running.runner"
REPEATS = 3


def interpreters(count: int) -> None:
    started = [subprocess.Popen([sys.executable, "-c", IMPORTS]) for _ in range(count)]
    assert [process.wait() for process in started] == [0] * count


def forks(count: int) -> None:
    """Start the parent too: a session pays for it once."""
    parent = WarmParent(os.environ, os.getcwd())
    for _ in range(count):
        fork = parent.fork(os.environ, os.getcwd(), "")
        assert fork is not None
        # It waits for orders, and ends when nobody is left to give any.
        fork.channel.close()
        assert fork.process.wait(60) == 0
    parent.end()


def cost(start: Callable[[int], None], count: int) -> tuple[float, float]:
    """Return wall time and processor time in s."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    start(count)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    rows = []
    for count in (1, 2, 4):
        for name, start in (("interpreters", interpreters), ("parent and forks", forks)):
            taken = [cost(start, count) for _ in range(REPEATS)]
            wall, processor = (statistics.median(column) for column in zip(*taken, strict=True))
            rows.append(
                {"started": name, "workers": count, "wall s": wall, "processor s": processor}
            )
            print(rows[-1], flush=True)
    Path(sys.argv[1]).write_text(json.dumps({"load": os.getloadavg()[0], "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
