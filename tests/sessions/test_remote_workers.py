"""Workers on other hosts: two socket servers on two loopback addresses stand in for them."""

from __future__ import annotations

import csv
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ..fake_gpus import FakeNvidiaSmi
from .project import KERNEL, Project
from .sources import SETTINGS
from .test_pinning import NO_RUNTIME, ON_GPUS, SLEEPING, SLEPT_CASES

execnet = pytest.importorskip("execnet")

SERVER = """\
import sys
import execnet.script.socketserver as script
from execnet.gateway_base import get_execmodel

script.execmodel = get_execmodel("thread")
script.startserver(script.bind_and_listen(sys.argv[1], script.execmodel))
"""


@contextmanager
def host(address: str, directory: Path, driver: FakeNvidiaSmi, mask: str) -> Iterator[str]:
    """Run execnet's socket server, as a host with GPUs of its own; yield what --tx takes."""
    directory.mkdir()
    with socket.socket() as found:
        found.bind((address, 0))
        port = found.getsockname()[1]
    environ = {name: text for name, text in os.environ.items() if "VISIBLE" not in name}
    environ |= driver.variables(environ) | {"CUDA_VISIBLE_DEVICES": mask}
    with (directory / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-u", "-c", SERVER, f"{address}:{port}"],
            cwd=directory,
            env=environ,
            stdout=log,
            stderr=log,
        )
        try:
            while "Accept" not in (directory / "log").read_text():
                assert server.poll() is None, (directory / "log").read_text()
            yield f"socket={address}:{port}"
        finally:
            server.kill()
            server.wait()


def test_each_host_pins_its_worker_to_a_gpu_of_its_own(empty: Project, tmp_path: Path) -> None:
    """Found there and not here, before torch; rows and evidence come home."""
    empty.write("pyproject.toml", SETTINGS)
    empty.write(KERNEL, SLEEPING.format(ms=1))
    empty.write("tests/conftest.py", NO_RUNTIME)
    empty.write("tests/test_slept.py", SLEPT_CASES)
    drivers = [FakeNvidiaSmi(tmp_path / f"driver{i}", 2, first=8 * i) for i in range(2)]
    masks = ("1,0", "GPU-00000008")
    with ExitStack() as stack:
        words: list[str] = []
        for i, driver in enumerate(drivers):
            address = f"127.0.0.{i + 1}"
            words += [
                "--tx",
                stack.enter_context(host(address, tmp_path / f"host{i}", driver, masks[i])),
            ]
        path = str(empty.root / "tests")
        run = empty.pytest(
            *words,
            "--dist",
            "load",
            "--rsyncdir",
            str(empty.root),
            *ON_GPUS,
            "--summary-csv",
            "out.csv",
            path,
        )
    assert run.code == 0, run.text
    rows = list(csv.DictReader(empty.read("out.csv").splitlines()))
    assert [row["label"] for row in rows] == ["n1", "n2", "n3", "n4"]
    assert {row["Check"] for row in rows} == {"PASS"}
    evidence = json.loads(empty.read("out.csv.evidence.json"))
    wanted = {drivers[0].uuids[1], drivers[1].uuids[0]}
    assert {result["evidence"]["device"] for result in evidence} == wanted
