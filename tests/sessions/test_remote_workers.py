"""Lanes on other hosts: two socket servers on two loopback addresses stand in for them."""

from __future__ import annotations

import csv
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from .. import nursery
from ..fake_gpus import FakeDriver
from ..waiting import until
from .project import KERNEL, SCRIPT, Project, Run
from .sources import SETTINGS
from .test_pinning import NO_RUNTIME, NOTE, ON_GPUS, SLEEPING, SLEPT_CASES

execnet = pytest.importorskip("execnet")

SERVER = """\
import sys
import execnet.script.socketserver as script
from execnet.gateway_base import get_execmodel

script.execmodel = get_execmodel("thread")
script.startserver(script.bind_and_listen(sys.argv[1], script.execmodel))
"""


@contextmanager
def host(address: str, directory: Path, driver: FakeDriver, mask: str) -> Iterator[str]:
    """Run execnet's socket server, as a host with GPUs of its own; yield what --tx takes."""
    directory.mkdir()
    with socket.socket() as found:
        found.bind((address, 0))
        port = found.getsockname()[1]
    environ = {name: text for name, text in os.environ.items() if "VISIBLE" not in name}
    environ |= driver.variables(environ) | {"CUDA_VISIBLE_DEVICES": mask}
    if (driver.directory / SCRIPT).exists():
        environ["PYTEST_PLUGINS"] = Path(SCRIPT).stem
    with (directory / "log").open("w") as log:
        (directory / "server.py").write_text(SERVER)
        words = [sys.executable, "server.py", f"{address}:{port}"]
        unbuffered = {"PYTHONUNBUFFERED": "1"}
        server = nursery.start(words, directory, environ | unbuffered, log.fileno())
        try:
            until(lambda: "Accept" in (directory / "log").read_text())
            yield f"socket={address}:{port}"
        finally:
            server.kill()
            server.wait()


@pytest.fixture
def drivers(tmp_path: Path) -> list[FakeDriver]:
    """Two hosts' GPUs, none of them the other's."""
    return [FakeDriver(tmp_path / f"driver{i}", 2, first=8 * i) for i in range(2)]


@contextmanager
def two_hosts(tmp_path: Path, drivers: list[FakeDriver]) -> Iterator[tuple[str, ...]]:
    """Run both; yield the words that distribute a run over them."""
    with ExitStack() as stack:
        places = [
            stack.enter_context(host(f"127.0.0.{i + 1}", tmp_path / f"host{i}", driver, mask))
            for i, (driver, mask) in enumerate(zip(drivers, ("1,0", "GPU-00000008"), strict=True))
        ]
        yield (*(word for place in places for word in ("--tx", place)), "--dist", "load")


def run(project: Project, words: tuple[str, ...], *more: str) -> Run:
    root = str(project.root)
    return project.pytest(*words, "--rsyncdir", root, *ON_GPUS, *more, f"{root}/tests")


TWO_TESTS = "def test_one():\n    pass\n\n\ndef test_two():\n    pass\n"


def test_each_lane_is_pinned_to_a_gpu_of_its_host(
    empty: Project, tmp_path: Path, drivers: list[FakeDriver]
) -> None:
    """To a GPU found there and not here: this process sees none at all."""
    empty.write("tests/conftest.py", NOTE)
    empty.write("tests/test_plain.py", TWO_TESTS)
    with two_hosts(tmp_path, drivers) as words:
        done = run(empty, words, "--summary-csv", "out.csv", "-p", "no:hypothesispytest")
    assert done.code == 0, done.text
    logs = sorted(tmp_path.glob("host*/pyexecnetcache/project/places.log"))
    # The project's own log was copied there as well.
    seen = [
        {line.split()[1] for line in log.read_text().splitlines() if line.startswith("gw")}
        for log in logs
    ]
    assert seen == [{drivers[0].uuids[1]}, {drivers[1].uuids[0]}]


def test_a_host_without_an_idle_gpu_ends_the_session(
    empty: Project, tmp_path: Path, drivers: list[FakeDriver]
) -> None:
    empty.write("tests/test_plain.py", TWO_TESTS)
    drivers[1].set(0, utilisation=88)
    with two_hosts(tmp_path, drivers) as words:
        done = run(empty, words, "--summary-csv", "out.csv", "--kopt-gpu-wait", "0")
    assert done.code == 10, done.text
    assert drivers[1].uuids[0] in done.text and "utilisation 88 %" in done.text


@pytest.mark.long
def test_rows_and_evidence_come_home(
    empty: Project, tmp_path: Path, drivers: list[FakeDriver]
) -> None:
    empty.write("pyproject.toml", SETTINGS)
    empty.write(KERNEL, SLEEPING.format(ms=1))
    empty.write("tests/test_slept.py", SLEPT_CASES)
    for driver in drivers:
        (driver.directory / SCRIPT).write_text(NO_RUNTIME)
    with two_hosts(tmp_path, drivers) as words:
        done = run(empty, words, "--summary-csv", "out.csv")
    assert done.code == 0, done.text
    rows = list(csv.DictReader(empty.read("out.csv").splitlines()))
    assert [row["label"] for row in rows] == [f"slept n={n}" for n in range(1, 5)]
    assert {row["Check"] for row in rows} == {"PASS"}
    evidence = json.loads(empty.read("out.csv.evidence.json"))
    wanted = {drivers[0].uuids[1], drivers[1].uuids[0]}
    assert {result["evidence"]["device"] for result in evidence} == wanted
