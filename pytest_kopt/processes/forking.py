"""The warm parent itself: it imports what takes long, then forks whatever runs kernel code.

It holds nothing of the project, never touches a device and has one thread. The last two are looked
at before every fork, since a context, or a lock that a thread holds, would be broken in the fork.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import os
import random
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from _pytest.config import default_plugins

from pytest_kopt.cases.running.switches import compile_here
from pytest_kopt.libraries import (
    is_library,
    is_projects,
    leave_project,
    loaded_files,
    project_around,
    set_libraries_aside,
)
from pytest_kopt.process_tree import adopt_orphans, end_descendants, end_with_parent, leave
from pytest_kopt.processes.bytecode import kept_bytecode
from pytest_kopt.processes.channel import prepare
from pytest_kopt.versions.affected_modules import project_modules

#: Without torch no case runs. What is not there, like Triton or a vendor's library, is left out.
_FIRST = (
    *("torch", "pytest", "numpy.random", "pynvml", "pytest_kopt.processes.served"),
    *("pytest_kopt.cases.running.run_case", "pytest_kopt.cases.running.timed_versions"),
    *("pytest_kopt.sameness.launches", "pytest_kopt.session.assemble"),
    # pytest loads these as it starts.
    *("tomllib", "pdb", "readline", "_pytest._argcomplete", "xdist.newhooks"),
    *("pytest_benchmark.hookspec", "pytest_benchmark.storage.file"),
    *(f"_pytest.{name}" for name in default_plugins),
)
#: Device files of NVIDIA's and AMD's drivers, open in a process that has a context.
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/dxg")
_ENDING_SECONDS = 1.0
#: Where device files are, and the variable that hides NVIDIA's GPUs.
_DEV, _MASK = Path("/dev"), "CUDA_VISIBLE_DEVICES"
#: With it torch says that there are GPUs where it counts some, and need not initialise one.
_COUNTS = "PYTORCH_NVML_BASED_CUDA_CHECK"
#: How far the first allocations on the host are shifted, at most, in pages.
_PAGES = 512
_BALLAST: list[bytearray] = []
#: How a fork's exit status is written to the deciding process.
STATUS = struct.Struct("i")


def main() -> None:
    """Enter the parent: its argument is the descriptor of the socket that asks for forks."""
    end_with_parent()
    adopt_orphans()
    # What is imported stays: to look for garbage in it takes a tenth of the time.
    gc.disable()
    # Inductor starts a pool of compilers, and threads for it, as it is imported.
    compile_here()
    control = socket.socket(fileno=int(sys.argv[1]))
    waking, wake = wakes_when_forks_end()
    leave_project(project_around(Path.cwd()))
    _import(["triton"])
    hashing = threading.Thread(target=_hash_triton)
    hashing.start()
    _import(_FIRST)
    prepare()
    hashing.join()
    set_libraries_aside()
    # Where other sources lie is kept: a fork that asked the system for them would need longer.
    project_modules(Path.cwd())
    # The system's thread is there for a moment longer.
    begin = time.monotonic()
    while _threads() > 1 and time.monotonic() < begin + _ENDING_SECONDS:
        time.sleep(0.001)
    children: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([control.fileno(), waking], [], [])
        if waking in ready:
            reap(waking, children)
            # Left behind by a fork that has ended.
            end_descendants(but=children)
        if control.fileno() in ready:
            waking, wake = _answer(control, (waking, wake), children)


def _import(names: Iterable[str]) -> None:
    with kept_bytecode():
        for name in names:
            try:
                importlib.import_module(name)
            except (MemoryError, EOFError):
                raise
            except Exception:  # noqa: S112 - whoever needs it says what is wrong with it
                continue
    gc.freeze()


def _hash_triton() -> None:
    """Have Triton hash itself: 500 MB that each process else reads once, for 0.4 s.

    It keeps the hash as long as a process lives, and uses it before it takes any kernel from its
    cache. Its interpreter, which runs where no GPU is, uses none.
    """
    if os.environ.get("TRITON_INTERPRET") == "1":
        return
    for module in ("triton.runtime.cache", "triton.compiler.compiler"):
        with suppress(Exception):
            sys.modules[module].triton_key()


def unfit() -> str:
    """Return why this process cannot be forked, "" if it can."""
    threads = _threads()
    if threads != 1:
        return f"the parent of its processes has {threads} threads"
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{descriptor}")
            if target.startswith(_DEVICES):
                return f"the parent of its processes has opened {target}"
    return ""


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _answer(
    control: socket.socket, waking: tuple[int, int], children: dict[int, int]
) -> tuple[int, int]:
    """Fork once, or import more; the parent and all forks end where nobody is left to ask.

    Returns the pipe that wakes from then on.
    """
    order, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 4, socket.MSG_CMSG_CLOEXEC)
    if not order:
        leave(0)
    if not descriptors:
        return _import_in_successor(control, waking, children, json.loads(order))
    reader, writer, log, status = descriptors
    reply: dict[str, Any]
    parent = os.getpid()
    try:
        pid = -1 if (why := unfit()) else os.fork()
    except OSError as error:
        pid, why = -1, f"the parent of its processes cannot fork: {error.strerror}"
    if pid == 0:
        for descriptor in (control.detach(), status, *waking, *children.values()):
            os.close(descriptor)
        _become(json.loads(order), parent, reader, writer, log)
    for descriptor in (reader, writer, log):
        os.close(descriptor)
    if pid < 0:
        os.close(status)
        reply = {"unfit": why}
    else:
        # The fork does so as well: whoever comes first, its group is there for who is told of it.
        with suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)
        children[pid] = status
        reply = {"pid": pid}
    with suppress(BrokenPipeError):
        control.send(json.dumps(reply).encode())
    return waking


def _import_in_successor(
    control: socket.socket, waking: tuple[int, int], children: dict[int, int], names: Sequence[str]
) -> tuple[int, int]:
    """Import installed modules in a fork that takes this process's place, if it can be forked.

    A library may start threads, open a device or load a module of the project as it is imported:
    then this process stays. From a module of the project every version would run that one.
    """
    # Torch alone loads most of what projects import: a fork for that takes every session longer.
    if children or unfit() or all(name in sys.modules for name in names):
        return waking
    told, tell = os.pipe()
    parent = os.getpid()
    try:
        successor = os.fork()
    except OSError:
        # Whoever asks for a fork is told.
        return waking
    if successor == 0:
        end_with_parent()
        adopt_orphans()
        if os.getppid() != parent:
            os._exit(1)
        with _counting_files():
            _import(filter(_is_installed, names))
        set_libraries_aside()
        project = project_around(Path.cwd())
        if unfit() or any(is_projects(project, file) for file in loaded_files().values()):
            os._exit(0)
        new = wakes_when_forks_end()
        os.write(tell, b"1")
        for descriptor in (told, tell, *waking):
            os.close(descriptor)
        return new
    os.close(tell)
    has_succeeded = bool(os.read(told, 1))
    os.close(told)
    if has_succeeded:
        # What asked for forks hears from the successor alone.
        control.close()
    code = os.waitstatus_to_exitcode(os.waitpid(successor, 0)[1])
    if not has_succeeded:
        return waking
    end_descendants()
    if code < 0:
        # How the successor was killed is told of this process.
        os.kill(os.getpid(), -code)
    os._exit(code)


def _is_installed(module: str) -> bool:
    """Say whether a module is an installed package's: nothing of the project is imported here."""
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(module.partition(".")[0])
        folders = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
        return any(folder and is_library(folder) for folder in folders)
    return False


@contextmanager
def _counting_files() -> Iterator[None]:
    """Have torch count NVIDIA's GPUs by their device files, and open none.

    Its own answers open the driver, which a fork cannot use any more, or its management library,
    which leaves a thread behind.
    """
    cuda: Any = sys.modules.get("torch.cuda")
    files = [path for path in _DEV.glob("nvidia*") if path.name[6:].isdigit()]
    if cuda is None or not files or os.environ.get(_MASK) in ("", "-1"):
        yield
        return
    count, is_importing = cuda.device_count, True

    # A library that keeps the function for good gets torch's answer later on.
    def device_count() -> int:
        return len(files) if is_importing else count()

    before = os.environ.get(_COUNTS)
    os.environ[_COUNTS], cuda.device_count = "1", device_count
    try:
        yield
    finally:
        is_importing, cuda.device_count = False, count
        os.environ.pop(_COUNTS)
        os.environ.update({} if before is None else {_COUNTS: before})


def wakes_when_forks_end() -> tuple[int, int]:
    """Return the two ends of a pipe that can be read from when a fork has ended."""
    waking, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(waking, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    return waking, wake


def reap(waking: int, children: dict[int, int]) -> None:
    """Report every fork that has ended to the process that started it, through its descriptor."""
    with suppress(BlockingIOError):
        os.read(waking, 4096)
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            descriptor = children.pop(ended[0], None)
            if descriptor is None:
                # An orphan.
                continue
            with suppress(BrokenPipeError):
                os.write(descriptor, STATUS.pack(os.waitstatus_to_exitcode(ended[1])))
            os.close(descriptor)


def _become(order: Mapping[str, Any], parent: int, reader: int, writer: int, log: int) -> NoReturn:
    """Be the process that was asked for; this returns to nobody."""
    try:
        os.setpgid(0, 0)
        end_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        gc.enable()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        for name, value in order["env"].items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        os.chdir(order["directory"])
        differ()
        from pytest_kopt.processes.served import serve

        serve(reader, writer, Path(order["scratch"]))
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    os._exit(1)


def differ() -> None:
    """Have no two forks draw the same random numbers or put their buffers at the same places."""
    random.seed()
    for name in ("torch", "numpy.random"):
        if name in sys.modules:
            sys.modules[name].seed()
    draw = random.SystemRandom()
    _BALLAST.extend(bytearray(draw.randrange(1, 4096)) for _ in range(draw.randrange(64)))
    _BALLAST.append(bytearray(4096 * draw.randrange(1, _PAGES)))
