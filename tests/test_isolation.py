"""What the system refuses to a process that runs kernel code, and what is said where it cannot."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_kopt.processes import isolation
from pytest_kopt.processes.child import HIDDEN, why_open
from pytest_kopt.processes.isolation import separate_caches

needs_landlock = pytest.mark.skipif(
    bool(isolation.lacking()), reason="this system cannot refuse all of it"
)

#: Isolates itself, then tries; prints what each attempt came to.
TRIES = """
import ctypes, json, os, resource, socket, subprocess, sys, tempfile
from pathlib import Path
from pytest_kopt.processes.isolation import isolate

base = Path(sys.argv[1])
isolate(base / "scratch", [base / "camp/rounds", base / "camp/ledger.jsonl"])
libc = ctypes.CDLL(None, use_errno=True)


def traced():
    if libc.ptrace(16, os.getppid(), None, None) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")


def compiled():
    source = Path(tempfile.mkdtemp()) / "a.c"
    source.write_text("int main() { return 7; }")
    subprocess.run(["cc", source, "-o", source.parent / "a"], check=True)
    assert subprocess.run([source.parent / "a"]).returncode == 7


def sibling(flags):
    # A child of this process's parent, or of whoever adopts this one's orphans.
    if (pid := libc.syscall(56 if os.uname().machine == "x86_64" else 220, flags, 0, 0, 0, 0)) < 0:
        raise OSError(ctypes.get_errno(), "clone")
    if not pid:
        os._exit(0)


def give_orphans_away():
    if libc.prctl(36, 0, 0, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "prctl")


def thread():
    import threading

    begun = threading.Thread(target=int)
    begun.start()
    begun.join()


def cupy_cache():
    cache = os.environ.get("CUPY_CACHE_DIR", os.path.expanduser("~/.cupy/kernel_cache"))
    os.makedirs(cache, exist_ok=True)
    (Path(cache) / "x").write_text("x")


def own_child():
    child = subprocess.Popen(["sleep", "60"])
    child.kill()
    child.wait()


camp, ring = base / "camp", 425
tries = {
    "read the ledger": lambda: (camp / "ledger.jsonl").read_text(),
    "read evidence": lambda: (camp / "rounds/round-1/verdict.json").read_text(),
    "read it by a link": lambda: (base / "link/round-1/verdict.json").read_text(),
    "write a test": lambda: (base / "test_kernel.py").write_text("assert True"),
    "truncate a test": lambda: os.truncate(base / "test_kernel.py", 0),
    "remove a test": lambda: (base / "test_kernel.py").unlink(),
    "make a file": lambda: (base / "conftest.py").write_text(""),
    "leave by a child": lambda: subprocess.run(
        [sys.executable, "-c", f"open({str(base / 'x')!r}, 'w')"], check=True, stderr=-3
    ),
    "signal": lambda: os.kill(os.getppid(), 0),
    "trace": traced,
    "read memory": lambda: open(f"/proc/{os.getppid()}/mem", "rb"),
    "limits": lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CORE, (0, 0)),
    "processors": lambda: os.sched_setaffinity(os.getppid(), {0}),
    "priority": lambda: os.setpriority(os.PRIO_PROCESS, os.getppid(), 5),
    "scheduler": lambda: os.sched_setscheduler(os.getppid(), os.SCHED_IDLE, os.sched_param(0)),
    "its own limits": lambda: resource.prlimit(0, resource.RLIMIT_CORE, (0, 0)),
    "its own processors": lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)),
    "its own priority": lambda: os.setpriority(os.PRIO_PROCESS, 0, 0),
    "a child of the parent": lambda: sibling(0x8000 | 17),
    "give orphans away": give_orphans_away,
    "a thread": thread,
    "inet": socket.socket,
    "inet6": lambda: socket.socket(socket.AF_INET6),
    "read its source": lambda: (base / "test_kernel.py").read_text(),
    "write scratch": lambda: tempfile.NamedTemporaryFile().write(b"x"),
    "write a cache": lambda: (Path(os.environ["MINE_CACHE_DIR"]) / "x").write_text("x"),
    "write CuPy's cache": cupy_cache,
    "write /dev/null": lambda: open("/dev/null", "w").write("x"),
    "compile": compiled,
    "end a child": own_child,
    "talk here": socket.socketpair,
    "talk to a server here": lambda: socket.socket(socket.AF_UNIX),
}
came_to = {}
for name, attempt in tries.items():
    try:
        attempt()
        came_to[name] = "done"
    except (PermissionError, subprocess.CalledProcessError):
        came_to[name] = "refused"
print(json.dumps(came_to))
"""
HARMLESS = (
    *("read its source", "write scratch", "write a cache", "write /dev/null", "compile"),
    *("end a child", "talk here", "write CuPy's cache", "a thread"),
    *("its own limits", "its own processors", "its own priority"),
)
#: Drivers of GPUs need it.
HAS_GPU = any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists()


@needs_landlock
def test_what_is_refused_and_what_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evidence = tmp_path / "camp/rounds/round-1"
    evidence.mkdir(parents=True)
    (evidence / "verdict.json").write_text("{}")
    (tmp_path / "camp/ledger.jsonl").write_text("{}")
    (tmp_path / "test_kernel.py").write_text("assert False")
    (tmp_path / "link").symlink_to(tmp_path / "camp/rounds")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MINE_CACHE_DIR", str(tmp_path / "mine"))
    done = subprocess.run(
        [sys.executable, "-c", TRIES, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    came_to = json.loads(done.stdout)
    assert {name for name, what in came_to.items() if what == "done"} == {
        *HARMLESS,
        *(["talk to a server here"] if HAS_GPU else ()),
    }
    assert (tmp_path / "test_kernel.py").read_text() == "assert False"


def test_a_user_without_a_name_has_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr("getpass.getuser", nobody)
    # The function sets variables of caches.
    monkeypatch.setattr(os, "environ", {**os.environ})
    caches = [*isolation._caches()]
    assert f"torchinductor_uid_{os.getuid()}" in {path.name for path in caches}


@pytest.mark.parametrize(
    ("version", "machine", "said"),
    [
        (0, "x86_64", "this system has no Landlock"),
        (1, "x86_64", "this system has no Landlock"),
        (5, "x86_64", "signals to other processes are not refused"),
        (7, "riscv64", "sockets are not refused on riscv64"),
        (7, "aarch64", ""),
    ],
)
def test_what_a_system_lacks_is_said(
    version: int, machine: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "_landlock", lambda: version)
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert said in isolation.lacking()
    assert bool(said) == bool(isolation.lacking())


def test_the_verdict_of_a_system_that_lacks_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "_landlock", lambda: 0)
    config = SimpleNamespace(stash=pytest.Stash())
    config.stash[HIDDEN] = ()
    assert "kernel code may write wherever you may" in why_open(cast("Any", config))


def test_without_landlock_a_process_goes_on_unbound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "_landlock", lambda: 0)
    assert not isolation.isolate(tmp_path, [])
    (tmp_path / "file").write_text("written")


def test_copies_of_kernels_own_caches_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    names = ("MINE_CACHE_DIR", "LARGE_CACHE_DIR", "NO_CACHE_PATH", "TRITON_CACHE_DIR")
    folders = {name: tmp_path / name.lower() for name in names}
    for name, folder in folders.items():
        monkeypatch.setenv(name, str(folder))
        if name != "NO_CACHE_PATH":
            (folder / "a").mkdir(parents=True)
            (folder / "a/tuned").write_text(name)
    os.truncate(folders["LARGE_CACHE_DIR"] / "a/tuned", 17 << 20)
    above = tmp_path / "above"
    monkeypatch.setenv("ALL_CACHE_HOME", str(above))
    scratch = above / "scratch"
    scratch.mkdir(parents=True)
    separate_caches(scratch)
    changed = {name for name, folder in folders.items() if os.environ[name] != str(folder)}
    assert changed == {"MINE_CACHE_DIR", "NO_CACHE_PATH"}
    assert os.environ["ALL_CACHE_HOME"] == str(above), "it holds the scratch folder itself"
    own = Path(os.environ["MINE_CACHE_DIR"], "a/tuned")
    assert own.read_text() == "MINE_CACHE_DIR" and own.is_relative_to(scratch)
    own.write_text("another choice")
    assert (folders["MINE_CACHE_DIR"] / "a/tuned").read_text() == "MINE_CACHE_DIR"
    assert Path(os.environ["NO_CACHE_PATH"]).is_dir()


def test_the_homes_cache_is_empty_but_for_compilers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, scratch = tmp_path / "user", tmp_path / "scratch"
    for path in (".cache/mine/fast.py", ".cache/torch/kernels/a", ".config/tool", "notes"):
        (user / path).parent.mkdir(parents=True, exist_ok=True)
        (user / path).write_text(path)
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os, "environ", {**os.environ})
    separate_caches(scratch)
    home = Path(os.environ["HOME"])
    assert home.is_relative_to(scratch)
    assert not (home / ".cache/mine").exists()
    assert {*os.listdir(home)} == {".cache", ".config", "notes"}
    assert (home / ".config/tool").read_text() == ".config/tool"
    # A compiler finds there what the last process made, and the next one what this one makes.
    assert (home / ".cache/torch/kernels/a").read_text() == ".cache/torch/kernels/a"
    (home / ".cache/flashinfer/b").write_text("made")
    assert (user / ".cache/pytest-kopt/flashinfer/b").read_text() == "made"
    assert {*os.listdir(user / ".cache")} == {"mine", "torch", "pytest-kopt"}
    (home / ".cache/own").mkdir()
    assert not (user / ".cache/own").exists()
