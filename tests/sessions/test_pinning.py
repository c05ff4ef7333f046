"""Sessions on GPUs that are not there: who works where, and who waits.

The bindings that list them are a stand-in; nothing here reaches a CUDA runtime.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import threading
import time
from typing import Any

import pytest

from pytest_kopt.devices.idle import SAMPLES

from .. import nursery
from ..fake_gpus import FakeDriver
from .project import KERNEL, SCRIPT, TWO_WORKERS, Project
from .sources import SETTINGS

ON_GPUS = ("--kopt-device", "cuda")

NOTE = """\
import os
import sys

with open("places.log", "a") as log:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    mask = os.environ["CUDA_VISIBLE_DEVICES"]
    print(worker, mask, "torch" in sys.modules, file=log)
"""

PLAIN = """\
import os
from pathlib import Path

import pytest


@pytest.mark.parametrize("n", range(4))
def test_something(n):
    if n == 0 and not Path("left").exists():
        Path("left").touch()
        os._exit(3)
"""


def gpus(project: Project, count: int) -> tuple[FakeDriver, dict[str, str]]:
    found = FakeDriver(project.root.parent / "driver", count)
    mask = ",".join(str(i) for i in reversed(range(count)))
    variables = found.variables(dict(os.environ)) | {"CUDA_VISIBLE_DEVICES": mask}
    return found, variables | {"PYTEST_ADDOPTS": "-p no:hypothesispytest -p no:anyio"}


def places(project: Project) -> dict[str, tuple[str, str]]:
    lines = [line.split() for line in project.read("places.log").splitlines()]
    return {worker: (mask, torch) for worker, mask, torch in lines}


def test_workers_and_their_replacements_keep_their_gpus(empty: Project) -> None:
    """Pinned in the order of the caller's mask, before a conftest could import torch."""
    empty.write("tests/conftest.py", NOTE)
    empty.write("tests/test_plain.py", PLAIN)
    found, variables = gpus(empty, 2)
    run = empty.pytest(*TWO_WORKERS, *ON_GPUS, **variables, **nursery.FRESH)
    assert run.code == 1 and "crashed" in run.out, run.text
    seen = places(empty)
    assert seen["gw0"] == (found.uuids[1], "False")
    assert seen["gw1"] == (found.uuids[0], "False")
    crashed = re.search(r"replacing crashed worker (gw\d)", run.out)
    assert crashed
    assert seen["gw2"] == seen[crashed.group(1)]


@pytest.mark.parametrize(("words", "workers"), [(ON_GPUS, 1), ((), 2)], ids=["kopt", "not-ours"])
def test_auto_is_a_worker_a_gpu(empty: Project, words: tuple[str, ...], workers: int) -> None:
    """Only where kopt measures on GPUs; elsewhere it is none of our business."""
    empty.write("tests/test_plain.py", "def test_nothing():\n    pass\n")
    _, variables = gpus(empty, 1)
    variables["PYTEST_XDIST_AUTO_NUM_WORKERS"] = "2"
    run = empty.pytest("-n", "auto", *words, **variables)
    assert run.code == 0, run.text
    assert re.search(rf"created: {workers}/{workers} worker", run.out), run.text


def test_multigpu_tests_see_every_gpu(empty: Project) -> None:
    empty.write("tests/conftest.py", NOTE)
    empty.write(
        "tests/test_ring.py", "import pytest\n\n@pytest.mark.multigpu\ndef test_ring():\n    pass\n"
    )
    found, variables = gpus(empty, 2)
    found.set(0, utilisation=50)
    run = empty.pytest("--kopt-dist-only", *ON_GPUS, **variables, **nursery.FRESH)
    assert run.code == 0 and "1 passed" in run.out, run.text
    assert places(empty)["main"] == ("1,0", "False")


def test_no_idle_gpu_ends_with_10_and_is_recorded_and_no_more(
    fresh: Project, mode: tuple[str, ...]
) -> None:
    fresh.edit_manifest(target_gpu="sm_90")
    found, variables = gpus(fresh, 2)
    found.set(0, utilisation=97)
    found.set(1, pids=[1])
    arguments = ("--kopt-gpu-wait", "0", *ON_GPUS, *mode)
    run = fresh.pytest("--kopt-round", "1", *arguments, **variables)
    assert run.code == 10, run.text
    for reason in (found.uuids[0], "utilisation 97 %", found.uuids[1], "process 1"):
        assert reason in run.text
    assert "INTERNALERROR" not in run.text and not fresh.was_measured
    (event,) = fresh.ledger()
    assert (event["event"], event["round"]) == ("no_idle_gpu", 1)
    assert found.uuids[1] in " ".join(event["in_the_way"])
    status = fresh.kopt("status").out
    assert f"no idle GPU: no (none within 0 minutes at {event['time']}, for round 1" in status
    fresh.edit_manifest(target_gpu="cpu")
    assert fresh.round(1).code == 0


def test_a_gpu_freed_meanwhile_is_taken(empty: Project) -> None:
    """The line that says what is waited for is on the terminal while it waits."""
    empty.write("tests/test_plain.py", f"{NOTE}\n\ndef test_nothing():\n    pass\n")
    empty.write(SCRIPT, "from pytest_kopt.devices import idle\n\nidle.POLL_SECONDS = 0.5\n")
    found, variables = gpus(empty, 2)
    for i in range(2):
        found.set(i, utilisation=97)

    def free_after_a_look() -> None:
        while found.readings <= 2 * SAMPLES:
            time.sleep(0.1)
        found.set(0, utilisation=0)

    free = threading.Thread(target=free_after_a_look, daemon=True)
    free.start()
    run = empty.pytest("--summary-csv", "out.csv", "--kopt-gpu-wait", "2", *ON_GPUS, **variables)
    free.join()
    assert run.code == 0, run.text
    assert "waiting for an idle GPU" in run.out and "utilisation 97 %" in run.out
    assert places(empty)["main"][0] == found.uuids[0], "a serial run is pinned as well"


# Placed, pinned and named as on GPUs; what runs there runs on the CPU.
NO_RUNTIME = """\
from types import SimpleNamespace

import torch

from pytest_kopt.session import worker

_bench = worker.Bench
torch.cuda.get_device_properties = lambda device: SimpleNamespace(uuid="")
worker.Bench = lambda **named: _bench(**named | {"device": "cpu"})
"""


@pytest.mark.long
def test_a_campaign_on_two_gpus(empty: Project) -> None:
    """Every case and all its processes on one GPU, named in each record."""
    found, variables = gpus(empty, 2)
    verdict, rows, devices = faster_round(empty, *TWO_WORKERS, **variables)
    assert set.union(*devices.values()) == set(found.uuids)
    assert {row["clocks"] for row in rows} == {"1980"}
    assert {s["label"]: {s["device"]} for s in verdict["shapes"]} == devices


def faster_round(
    empty: Project, *words: str, **variables: str
) -> tuple[dict[str, Any], list[dict[str, str]], dict[str, set[str]]]:
    """Play a campaign on GPUs until its round 2, which is faster.

    Returns its verdict, its pairs, and the one device of each case.
    """
    empty.write("pyproject.toml", SETTINGS)
    empty.write(KERNEL, SLEEPING.format(ms=2))
    empty.write(SCRIPT, NO_RUNTIME)
    empty.write("tests/test_slept.py", SLEPT_CASES)
    empty.write(".gitignore", "__pycache__/\n")
    empty.commit_all()
    about = ("--op", "slept", "--kernel", KERNEL, "--backend", "TORCH", "--gpu", "H200")
    assert empty.kopt("init", "c", *about, "--elsewhere").code == 0
    for number, ms in (("1", 2), ("next", 0.5)):
        empty.write(KERNEL, SLEEPING.format(ms=ms))
        run = empty.pytest("--kopt-round", number, *ON_GPUS, *words, **variables)
        assert run.code == 0, run.text
    here = empty.root / "agent/workspace/c/rounds/round-2"
    rows = list(csv.DictReader(io.StringIO((here / "artifacts/pairs.csv").read_text())))
    devices = {label: {r["device"] for r in rows if r["label"] == label} for label in LABELS}
    assert all(len(on) == 1 for on in devices.values())
    verdict = json.loads((here / "verdict.json").read_text())
    assert verdict["decision"] == "ACCEPTED"
    return verdict, rows, devices


LABELS = tuple(f"slept n={n}" for n in range(1, 5))

SLEEPING = """\
import time


def slept(x):
    time.sleep({ms}e-3)
    return x + 1
"""

SLEPT_CASES = """\
import pytest
import torch
from kernels.doubled import slept


@pytest.mark.kopt(schema="single")
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_slept(kopt, n):
    kopt(
        slept,
        inputs=lambda: (torch.randn(n, 64),),
        reference=lambda x: x.double() + 1,
        dims={"n": n},
    )
"""
