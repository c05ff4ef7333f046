"""A GPU that somebody else uses: the gate waits and gives up with 10, or goes on once it is free.

python benchmarks/gpu_gate.py OUT [--dry]         (about a minute)

Another process keeps the first GPU busy. --dry: an NVML that only says so.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpu_report import ROOT, Report, run

GIVE_UP_AFTER_MINUTES = 0.3
FREED_AFTER_SECONDS = 15.0

#: Not a child of the sessions: to them it is a stranger's.
BUSY = """\
import torch
a = torch.randn(4096, 4096, device="cuda")
print("busy", flush=True)
while True:
    for _ in range(50):
        a @ a
    torch.cuda.synchronize()
"""
TESTS = """\
import pytest
import torch


def doubled(x):
    return 2 * x


@pytest.mark.kopt(schema="memory")
def test_doubled(kopt):
    kopt(
        doubled,
        inputs=lambda: (torch.randn(1 << 20, device=kopt.device),),
        reference=lambda x: 2 * x.double(),
        dims={"n": 1 << 20},
        nbytes=8 << 20,
    )
"""
PLAIN = "def test_nothing():\n    pass\n"


@contextlib.contextmanager
def occupied(variables: dict[str, str]) -> Iterator[Callable[[], None]]:
    """Keep a GPU busy; yields what ends that."""
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY],
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    if process.stdout.readline() != "busy\n":
        sys.exit("the GPU could not be kept busy")
    time.sleep(2)
    try:
        yield process.kill
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def said_to_be_occupied(driver: Any) -> Iterator[Callable[[], None]]:
    """Have the stand-in say so."""
    driver.set(0, utilisation=97)
    try:
        yield lambda: driver.set(0, utilisation=0)
    finally:
        driver.set(0, utilisation=0)


def main() -> None:
    dry = "--dry" in sys.argv
    report = Report(Path(sys.argv[1]), "gpu_gate")
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "project"
        root.mkdir()
        (root / "test_it.py").write_text(PLAIN if dry else TESTS)
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        variables = {"CUDA_VISIBLE_DEVICES": first}
        occupy: Callable[[], Any] = lambda: occupied(variables)  # noqa: E731
        if dry:
            sys.path.insert(0, str(ROOT))
            from tests.fake_gpus import FakeDriver

            driver = FakeDriver(Path(directory) / "driver", 1)
            variables = driver.variables(dict(os.environ)) | {"CUDA_VISIBLE_DEVICES": "0"}
            occupy = lambda: said_to_be_occupied(driver)  # noqa: E731
        words = ("--summary-csv", "out.csv", "--kopt-device", "cuda", "--kopt-gpu-wait")
        rows = []
        with occupy():
            done = run(root, *words, str(GIVE_UP_AFTER_MINUTES), **variables)
            rows.append({"GPU": "busy throughout", "exit": done.code, "seconds": done.seconds})
            report.add("busy_throughout", done.text)
        with occupy() as free:
            timer = threading.Timer(FREED_AFTER_SECONDS, free)
            timer.start()
            done = run(root, *words, "5", **variables)
            timer.join()
            rows.append({"GPU": "freed after 15 s", "exit": done.code, "seconds": done.seconds})
            report.add("freed_meanwhile", done.text)
    report.add("runs", rows)
    report.table("The availability gate", rows)
    if [row["exit"] for row in rows] != [10, 0]:
        sys.exit("not as asked: 10, then 0")


if __name__ == "__main__":
    main()
