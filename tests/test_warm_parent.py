"""Forks of the warm parent: what they have, how they end, and when there are none."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_kopt.cases.evidence import SLOW, CaseEvidence
from pytest_kopt.cases.order import WorkerOrders
from pytest_kopt.cases.protocol import Begin
from pytest_kopt.cases.result import CaseResult, ExpectedCase
from pytest_kopt.devices.vendor import interpreter_environment
from pytest_kopt.processes import forking
from pytest_kopt.processes import launcher as launching
from pytest_kopt.processes.launched import Launched
from pytest_kopt.processes.launcher import Fork, Launcher
from pytest_kopt.trials import measurements

from . import nursery
from .waiting import HANG, until

ENV = {**os.environ, "KOPT_TEST": "parent"}


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    parent = warmed(ENV, tmp_path_factory.mktemp("parent"))
    yield parent
    parent.end()


def warmed(env: dict[str, str], directory: Path) -> Launcher:
    launcher = Launcher()
    launcher.environ = env
    launcher.warm({}, str(directory))
    return launcher


@pytest.fixture
def forked_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have parents begin where an interpreter is that has imported torch."""
    # Started between a parent and its forks, it would change the environment that both go by.
    nursery.address()
    monkeypatch.setattr(launching, "subprocess", nursery.STARTING)


def forked(parent: Launcher, env: dict[str, str], directory: Path) -> Launched:
    fork = parent.start(env, str(directory))
    assert isinstance(fork.process, Fork)
    return fork


def greeted(parent: Launcher, directory: Path, orders: WorkerOrders) -> Launched:
    """Return a fork that collects the tests of a directory."""
    return greet(forked(parent, ENV, directory), directory, orders)


def greet(fork: Launched, directory: Path, orders: WorkerOrders) -> Launched:
    fork.channel.send(Begin(orders, sys.path, [], [str(directory)]))
    return fork


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


def test_a_fork_leads_its_own_group_and_starts_in_its_directory(
    parent: Launcher, tmp_path: Path
) -> None:
    fork = forked(parent, ENV, tmp_path)
    pid = fork.process.pid
    assert os.getpgid(pid) == pid
    until(lambda: os.readlink(f"/proc/{pid}/cwd") == str(tmp_path))
    fork.kill()
    assert fork.process.returncode == -signal.SIGKILL
    fork.close()


def test_a_fork_ends_when_nobody_is_left_to_order(parent: Launcher, tmp_path: Path) -> None:
    fork = forked(parent, ENV, tmp_path)
    fork.channel.close()
    assert fork.process.wait(HANG) == 0


#: A conftest that leaves a process in a session of its own behind, and its id in a file.
LEAVES = """\
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open('unfinished', 'w') as file:
            file.write(str(os.getpid()))
        os.rename('unfinished', 'left')
        time.sleep(3600)
    os._exit(0)
"""


@pytest.mark.parametrize("how", ["it ends", "it is killed"])
def test_what_a_fork_leaves_behind_ends_with_it(parent: Launcher, how: str, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(LEAVES)
    fork = greeted(parent, tmp_path, WorkerOrders("cpu", "auto", 1, 60.0, ""))
    left = tmp_path / "left"
    until(left.exists)
    if how == "it ends":
        os.kill(fork.process.pid, signal.SIGKILL)
        fork.process.wait()
    else:
        fork.kill()
    until(lambda: not is_alive(int(left.read_text())))
    fork.close()


def test_waiting_has_a_limit(parent: Launcher, tmp_path: Path) -> None:
    fork = forked(parent, ENV, tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        fork.process.wait(0.01)
    assert fork.process.returncode is None
    fork.kill()
    fork.close()


def test_what_libraries_read_as_they_load_needs_an_interpreter_of_its_own(
    parent: Launcher, tmp_path: Path
) -> None:
    started = parent.start({**ENV, "LD_LIBRARY_PATH": "/elsewhere"}, str(tmp_path))
    assert isinstance(started.process, subprocess.Popen) and not parent.why_fresh
    started.kill()
    started.close()


def test_a_mask_does_not(parent: Launcher, tmp_path: Path) -> None:
    fork = forked(parent, {**ENV, "CUDA_VISIBLE_DEVICES": "GPU-1"}, tmp_path)
    fork.kill()
    fork.close()
    assert isinstance(fork.process, Fork) and not fork.process.is_orphan


@pytest.mark.usefixtures("forked_parents")
def test_forks_end_with_their_parent_and_the_next_are_interpreters(tmp_path: Path) -> None:
    launcher = Launcher()
    launcher.warm({}, str(tmp_path))
    first = launcher.start(os.environ, str(tmp_path))
    assert launcher._parent is not None
    assert launcher.why_fresh == ""
    os.kill(launcher._parent.pid, signal.SIGKILL)
    assert first.process.wait(HANG) == -signal.SIGKILL
    assert isinstance(first.process, Fork) and first.process.is_orphan
    until(lambda: "SIGKILL" in launcher.why_fresh)
    second = launcher.start(os.environ, str(tmp_path))
    assert "SIGKILL" in launcher.why_fresh
    assert isinstance(second.process, subprocess.Popen)
    second.channel.close()
    assert second.process.wait(HANG) == 0
    launcher.end()


@pytest.mark.usefixtures("forked_parents")
def test_ending_the_launcher_leaves_nothing(tmp_path: Path) -> None:
    launcher = Launcher()
    launcher.warm({}, str(tmp_path))
    (tmp_path / "conftest.py").write_text(LEAVES)
    taken = launcher.start(os.environ, str(tmp_path))
    greet(taken, tmp_path, WorkerOrders("cpu", "auto", 1, 60.0, ""))
    until((tmp_path / "left").exists)
    launcher.end()
    # What a busy parent has not ended itself ends with it, by a signal.
    until(lambda: not is_alive(taken.process.pid))
    until(lambda: not is_alive(int((tmp_path / "left").read_text())))
    launcher.end()


@pytest.mark.usefixtures("forked_parents")
def test_one_parent_is_kept_as_long_as_the_environment_is_the_same(tmp_path: Path) -> None:
    launcher = Launcher()
    launcher.warm({}, str(tmp_path))
    first = launcher._parent
    launcher.warm({}, str(tmp_path), ["json", "kopt_has_no_such_module"])
    assert launcher._parent is first
    launcher.warm({"KERNELS": "new"}, str(tmp_path))
    assert launcher._parent is not first
    launched = launcher.start({**os.environ, "KERNELS": "new"}, str(tmp_path))
    assert isinstance(launched.process, Fork)
    launcher.end()


def test_a_second_thread_makes_a_parent_unfit() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        assert "threads" in forking.unfit()
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("name", ["triton.runtime.cache", "triton.compiler.compiler"])
@pytest.mark.parametrize("has_gpu", [True, False])
def test_triton_hashes_itself_once_for_all_forks_where_a_gpu_is(
    has_gpu: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    for known in ("triton.runtime.cache", "triton.compiler.compiler"):
        given = {"triton_key": lambda: asked.append("key")} if known == name else {}
        monkeypatch.setitem(sys.modules, known, SimpleNamespace(**given))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for variable, value in interpreter_environment("cuda" if has_gpu else "cpu").items():
        monkeypatch.setenv(variable, value)
    forking._hash_triton()
    assert asked == ["key"] * has_gpu


def test_an_open_device_makes_a_parent_unfit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path / "nvidiactl"
    device.touch()
    monkeypatch.setattr(forking, "_DEVICES", (str(tmp_path),))
    monkeypatch.setattr(forking, "_threads", lambda: 1)
    assert forking.unfit() == ""
    with device.open():
        assert str(device) in forking.unfit()


@pytest.mark.usefixtures("forked_parents")
def test_an_unfit_parent_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def ask(self: Any, parent: Any, order: bytes, descriptors: list[int]) -> None:
        asked.append(order)
        raise ChildProcessError("the parent of its processes has 2 threads")

    monkeypatch.setattr(Launcher, "_ask", ask)
    launcher = Launcher()
    launcher.warm({}, str(tmp_path))
    for _ in range(2):
        started = launcher.start(os.environ, str(tmp_path))
        started.kill()
        started.close()
    assert len(asked) == 1
    assert launcher.why_fresh == "the parent of its processes has 2 threads"
    launcher.end()


@pytest.mark.usefixtures("forked_parents")
def test_a_parent_that_is_ended_while_it_is_asked_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session ends it while another thread waits for its answer."""
    launcher = Launcher()
    launcher.warm({}, str(tmp_path))
    control = launcher._control

    def ended(size: int) -> bytes:
        launcher.end()
        return b""

    asked = SimpleNamespace(sendmsg=lambda *more: 0, recv=ended, close=control.close)
    monkeypatch.setattr(launcher, "_control", asked)
    started = launcher.start(os.environ, str(tmp_path))
    assert isinstance(started.process, subprocess.Popen)
    assert launcher.why_fresh.startswith("the parent of its processes ended (")
    started.kill()
    started.close()


SITES = {
    "ended (exit status 1)": "import sys\n"
    "class Small:\n"
    "    def find_spec(self, name, *more):\n"
    "        if name == 'torch':\n"
    "            raise MemoryError\n"
    "sys.meta_path.insert(0, Small())\n",
    "cannot fork: Cannot allocate memory": "import errno, os\n"
    "def fork():\n"
    "    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))\n"
    "os.fork = fork\n",
}


@pytest.mark.parametrize("why", SITES)
def test_too_little_memory_for_the_parent_is_named(why: str, tmp_path: Path) -> None:
    """While it imports, or when it forks."""
    (tmp_path / "sitecustomize.py").write_text(SITES[why])
    env = {**ENV, "PYTHONPATH": str(tmp_path)}
    parent = warmed(env, tmp_path)
    started = parent.start(env, str(tmp_path))
    assert parent.why_fresh == f"the parent of its processes {why}"
    started.kill()
    started.close()
    parent.end()


@pytest.mark.parametrize(
    ("lacks", "why"),
    [
        ("fork", "this system does not fork processes"),
        ("/proc", "this system has no /elsewhere, by which a fork's safety is judged"),
    ],
)
def test_a_system_without_forks_starts_interpreters_and_says_so(
    lacks: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lacks == "fork":
        monkeypatch.delattr(os, "fork")
    else:
        monkeypatch.setattr("pytest_kopt.processes.launcher._TASKS", Path("/elsewhere"))
    launcher = Launcher()
    launcher.warm({}, str(tmp_path))
    started = launcher.start(os.environ, str(tmp_path))
    assert isinstance(started.process, subprocess.Popen)
    assert launcher.why_fresh == why
    started.kill()
    started.close()
    launcher.end()


def test_no_two_forks_draw_the_same() -> None:
    def drawn() -> bytes:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            forking.differ()
            os.write(writer, repr(random.random()).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        os.close(writer)
        with os.fdopen(reader, "rb") as file:
            return file.read()

    assert drawn() != drawn()


def test_what_cases_are_going_to_import_is_imported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = CaseEvidence(engine="wall", libraries=SLOW)
    result = CaseResult("t.py::test_x", header=("label", "Check"), evidence=evidence)
    orders = WorkerOrders("cpu", "auto", 1, 60.0, "", expected=(ExpectedCase.of(result),))
    (tmp_path / "test_x.py").write_text("import kernel\n")
    (tmp_path / "kernel.py").write_text("import xml.dom.minidom\n")
    loaded = list[str]()
    launcher = SimpleNamespace(warm=lambda env, directory, modules: loaded.extend(modules))
    monkeypatch.setattr(measurements, "launcher_of", lambda config: launcher)
    settings = {"pythonpath": [], "norecursedirs": [".*"], "python_files": ["test_*.py"]}
    config = SimpleNamespace(
        pluginmanager=SimpleNamespace(list_plugin_distinfo=list),
        invocation_params=SimpleNamespace(dir=tmp_path),
        args=[str(tmp_path)],
        getini=settings.__getitem__,
    )
    session: Any = object.__new__(measurements.Measurements)
    session._config, session._root, session.orders = config, tmp_path, orders
    session.sites = SimpleNamespace(here=SimpleNamespace(environment={}))
    session.warm_up()
    assert {*loaded} == {*SLOW, "xml.dom.minidom"}


def test_gpus_are_counted_by_their_files_while_libraries_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).write_text("")
    monkeypatch.setattr(forking, "_DEV", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    before = torch.cuda.device_count()
    with forking._counting_files():
        from torch.cuda import device_count as kept

        assert kept() == 2
    assert kept() == before == torch.cuda.device_count()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with forking._counting_files():
        assert torch.cuda.device_count() == 0


#: Folders of a user's installed packages, of which the interpreter knows one.
LIBRARIES = {
    "threaded": "import threading\n"
    "threading.Thread(target=threading.Event().wait, daemon=True).start()\n",
    "quiet": "",
    # As a library looks for an optional package that has the name of the project's.
    "curious": "try:\n    import project\nexcept ImportError:\n    pass\n",
    # As a development install finds its package.
    "linked": "import importlib.util, os, sys\n"
    "spec = importlib.util.spec_from_file_location('project', os.path.abspath('project.py'))\n"
    "sys.modules['project'] = importlib.util.module_from_spec(spec)\n",
}


def test_a_library_that_starts_threads_or_loads_the_project_is_left_to_the_forks(
    tmp_path: Path,
) -> None:
    base = {**ENV, "PYTHONUSERBASE": str(tmp_path)}
    ask = [sys.executable, "-c", "import site; print(site.getusersitepackages())"]
    folder = Path(subprocess.check_output(ask, env=base, text=True).strip())
    folder.mkdir(parents=True)
    for name, text in LIBRARIES.items():
        (folder / f"{name}.py").write_text(text)
    (tmp_path / "project.py").write_text("")
    env = {**base, "PYTHONPATH": os.pathsep.join([str(folder), str(tmp_path)])}
    parent = warmed(env, tmp_path)
    for unfit in ("threaded", "linked"):
        parent.warm({}, str(tmp_path), [unfit])
    parent.warm({}, str(tmp_path), ["json", "quiet", "curious", "project"])
    (tmp_path / "conftest.py").write_text(
        "import sys\nwith open('there', 'w') as file:\n"
        f"    file.write(' '.join(sorted({set(LIBRARIES) | {'project'}} & {{*sys.modules}})))\n"
    )
    fork = forked(parent, env, tmp_path)
    greet(fork, tmp_path, WorkerOrders("cpu", "auto", 1, 60.0, ""))
    until(lambda: (tmp_path / "there").exists() and (tmp_path / "there").read_text())
    assert (tmp_path / "there").read_text() == "curious quiet"
    fork.kill()
    fork.close()
    parent.end()
