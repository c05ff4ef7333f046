"""Another host's processes and devices, asked for over a connection; the host is this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_kopt.cases.protocol import StopWorker
from pytest_kopt.devices import pinning
from pytest_kopt.devices.idle import AllGpusBusy
from pytest_kopt.devices.lock import open_lock
from pytest_kopt.devices.vendor import CPU, Reading
from pytest_kopt.errors import BadInput, CannotFinish
from pytest_kopt.processes import sites
from pytest_kopt.processes.remote_host import HostAgent, RemoteHost
from pytest_kopt.versions.tree import difference, linked

from .fake_gpus import FakeVendor, gpu
from .test_warm_parent import is_alive
from .waiting import HANG, until

pytest.importorskip("execnet")
fcntl = pytest.importorskip("fcntl")

SPEC = f"popen//python={sys.executable} -u"


def opened(*roots: Path, environment: dict[str, str] | None = None) -> RemoteHost:
    host = RemoteHost("far", SPEC, roots, lambda gateway: None, print)
    host.open("cpu", None, environment or {}, None)
    return host


@pytest.fixture(scope="module")
def host() -> Iterator[RemoteHost]:
    host = opened(environment={"KOPT_TEST": "far"})
    yield host
    host.end()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def agent_of(pid: int) -> int:
    """Return the process that execnet started here, whether a fork or a child of it is meant."""
    while (parent := parent_of(pid)) != os.getpid():
        pid = parent
    return pid


def is_locked(device: str) -> bool:
    descriptor = open_lock(device)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def test_it_says_what_it_is(host: RemoteHost) -> None:
    assert (host.kind, host.placement.devices) == ("cpu", (CPU,))
    assert host.environment["KOPT_TEST"] == "far"
    assert host.environ["PATH"] == os.environ["PATH"] and host.cores == os.cpu_count()
    assert host.pin(CPU) == {} and host.read(CPU) == Reading()


def test_a_process_there_ends_as_one_here_does(host: RemoteHost, tmp_path: Path) -> None:
    first, second = (host.start(host.environ, str(tmp_path)) for _ in range(2))
    assert os.readlink(f"/proc/{first.process.pid}/cwd") == str(tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        second.process.wait(0.01)
    first.kill()
    assert first.process.returncode == -signal.SIGKILL
    second.channel.send(StopWorker())
    # It asked for orders and got none.
    assert second.process.wait(HANG) != 0
    with pytest.raises(EOFError):
        second.channel.receive()
    assert "AssertionError" in second.log.getvalue().decode()  # type: ignore[attr-defined]
    for launched in (first, second):
        launched.close()


def test_a_lost_host_is_waited_for_by_nobody(tmp_path: Path) -> None:
    host = opened()
    launched = host.start(host.environ, str(tmp_path))
    os.kill(agent_of(launched.process.pid), signal.SIGKILL)
    with pytest.raises(EOFError):
        launched.channel.receive()
    assert launched.process.wait(HANG) == -signal.SIGKILL
    with pytest.raises(CannotFinish, match="the connection to far was lost"):
        host.read(CPU)
    until(lambda: not is_alive(launched.process.pid))
    host.end()


def test_the_end_of_a_session_ends_what_runs_there(tmp_path: Path) -> None:
    host = opened()
    pid = host.start(host.environ, str(tmp_path)).process.pid
    agent = agent_of(pid)
    host.end()
    until(lambda: not is_alive(pid) and not is_alive(agent))


def test_a_device_is_locked_there(host: RemoteHost) -> None:
    device = CPU
    with host.lock(device):
        assert is_locked(device.uuid)


def test_what_stands_in_the_way_there_is_told_with_its_name() -> None:
    host = RemoteHost("far", SPEC, (), print, print)
    with pytest.raises(BadInput, match=r"far: .*no GPU|far: --kopt-device"):
        host.open("cuda", None, {"CUDA_VISIBLE_DEVICES": ""}, None)
    host.end()
    with pytest.raises(BadInput, match="the connection to far failed"):
        RemoteHost("far", "popen//python=false x", (), print, print)


def test_a_stranger_on_its_gpu_is_waited_for_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    busy = FakeVendor([gpu(0)], lambda device, number: Reading(processes=(1,)))
    monkeypatch.setattr("pytest_kopt.devices.pinning.find_vendor", lambda: busy)
    monkeypatch.setattr(pinning.discover, "__defaults__", (os.environ, lambda: busy))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    agent = HostAgent(print, tmp_path)
    monkeypatch.setattr(agent._launcher, "warm", lambda *given: None)
    assert agent.open("cuda", None, {}, None)["devices"][0]["uuid"] == gpu(0).uuid
    with pytest.raises(AllGpusBusy):
        agent.strangers(gpu(0).uuid, 0.0)


def test_a_tree_there_is_the_one_made_here(tmp_path: Path) -> None:
    """Also where xdist has copied the project; files that neither version changed are links."""
    files = {"kernels/a.py": "new", "kernels/gone.py": "new", "data.bin": "data", "b/c.py": "c"}
    root, far = tmp_path / "project", tmp_path / "far" / "project"
    for place in (root, far):
        for path, text in files.items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_text(text)
    other = {"kernels/a.py": b"old", "kernels/d/e.py": b"only old", "kernels/gone.py": None}
    tree = linked(root, tmp_path / "tree", other).place
    assert difference(root, tree) == other

    host = opened(root)
    host._directory = far.parent
    assert host.copied(root / "kernels") == (root, far)
    with pytest.raises(BadInput, match=r"--rsyncdir: .* is not copied to far"):
        host.copied(tmp_path)
    made = host.tree(root, tree)
    assert difference(far, made) == other
    assert (made / "data.bin").resolve() == far / "data.bin"
    host.end()
    assert not made.exists()


@pytest.mark.parametrize(
    ("text", "host", "connection"),
    [
        ("popen", "", "popen"),
        ("popen//python=python3.12", "", "popen//python=python3.12"),
        ("ssh=gpu1//python=p//id=x", "gpu1", "ssh=gpu1//python=p//chdir=d"),
        ("popen//python=srun -w n p", "srun -w n p", "popen//python=srun -w n p"),
        ("popen//via=proxy", "gpu2", "ssh=gpu2"),
        ("socket=gpu3:8888", "gpu3", "socket=gpu3:8888"),
    ],
)
def test_how_a_connection_is_made(text: str, host: str, connection: str) -> None:
    spec, proxies = (
        sites.spec_of(text),
        {"proxy": sites.spec_of("ssh=gpu2//id=proxy")},
    )
    if spec.ssh:
        spec.chdir = "d"  # As xdist has it where nothing is said.
    assert sites.host_of(spec, proxies) == host
    assert sites._connection_of(spec, proxies) == connection


def test_no_server_is_installed_on_another_host() -> None:
    with pytest.raises(BadInput, match="installs no server"):
        sites._connection_of(sites.spec_of("popen//installvia=x"), {})
