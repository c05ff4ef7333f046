"""Keeps a process that runs kernel code to what is its own, by Landlock and seccomp on Linux.

It writes to its scratch folder, to compilers' caches and to device files. It neither reads the
campaigns' records, nor opens a socket, nor signals, traces or limits a process that it did not
start. A refused call raises PermissionError there. The kernel's own call is used, as no kept
library has it.
"""

from __future__ import annotations

import ctypes
import errno
import getpass
import os
import platform
import shutil
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from pytest_kopt.devices.lock import DIRECTORY, open_lock

#: System calls, the same on every architecture since Linux 5.1.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF, _IO_URING_SETUP, _CLONE3 = 444, 445, 446, 425, 435


#: The name of a processor's architecture in seccomp, and its numbers of seccomp, socket, prctl and
#: clone. Then calls that set limits, priority or processors of the process that an argument names:
#: prlimit, sched_setaffinity, sched_setscheduler, sched_setparam, sched_setattr (the first
#: argument), setpriority, ioprio_set (the second).
_ARCHITECTURES = {
    "x86_64": (0xC000003E, 317, 41, 157, 56, (302, 203, 144, 142, 314), (141, 251)),
    "aarch64": (0xC00000B7, 277, 198, 167, 220, (261, 122, 119, 118, 274), (140, 30)),
}
_X32 = 0x40000000
_PR_SET_NO_NEW_PRIVS = 38
#: What takes a process out of those below its worker, whose processor time is counted together.
_PR_SET_CHILD_SUBREAPER, _CLONE_PARENT = 36, 0x8000
#: No family of sockets has this number.
_NO_FAMILY = 0xFFFF
_SIGNALS = 1 << 1
#: Rights of Landlock: on what is there, on what a folder holds, and since its second and third ABI
#: renames across folders and truncating.
_WRITE_FILE, _READ_FILE = 1 << 1, 1 << 2
_IN_FOLDERS = sum(1 << bit for bit in range(4, 13))
_REFER, _TRUNCATE = 1 << 13, 1 << 14
#: Below these names in /dev lies what drivers and the C library write to.
_DEVICES = ("nvidia*", "kfd", "dri", "dxg", "null", "zero", "full", "*random", "tty", "pts")
#: Folders below the home that compilers and libraries of kernels keep, and the variable that names
#: another for each.
_OWN_FOLDERS = {
    ".nv": "CUDA_CACHE_PATH",
    ".cupy": "CUPY_CACHE_DIR",
    ".tilelang": "TILELANG_CACHE_DIR",
    ".flydsl/cache": "FLYDSL_RUNTIME_CACHE_DIR",
    ".flaggems": "FLAGGEMS_CACHE_DIR",
    ".deep_gemm": "DG_JIT_CACHE_DIR",
    ".config/miopen": "MIOPEN_USER_DB_PATH",
}
#: Variables that name a compiler's cache end in one of these.
_NAMES_A_CACHE = ("_CACHE_DIR", "_CACHE_PATH", "_CACHE_HOME", "_JIT_DIR", "TORCH_EXTENSIONS_DIR")
#: Those of known compilers, which find what they made by its content and take seconds to make it.
_COMPILERS = {
    *_OWN_FOLDERS.values(),
    *("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "NUMBA_CACHE_DIR"),
    *("CUTE_DSL_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR", "XDG_CACHE_HOME"),
}
#: What compilers keep in the home's cache, and data that tests read there.
_IN_CACHE = (
    *("ccache", "comgr", "flashinfer", "huggingface", "taichi", "torch"),
    *("torch_extensions", "tvm-ffi", "vllm", "warp"),
)
#: In the home's cache the folder for what compilers would make a folder for.
_OURS = "pytest-kopt"
#: A larger folder is not copied for a process: it holds more than a tuner's choices.
_FILES, _BYTES = 1000, 16 << 20


def lacking() -> str:
    """Return what this system cannot refuse to a process of ours, "" where it can refuse all."""
    version = _landlock()
    if version < 2:
        return "this system has no Landlock (Linux 5.19): kernel code may write wherever you may"
    lacks = []
    if version < 6:
        lacks.append("signals to other processes are not refused (Linux 6.12)")
    if platform.machine() not in _ARCHITECTURES:
        lacks.append(f"sockets are not refused on {platform.machine()}")
    return ", ".join(lacks)


def isolate(scratch: Path, hidden: Sequence[Path], more: Sequence[Path] = ()) -> bool:
    """Keep this process, and all that it starts, to `scratch` and the caches; not to be undone.

    It may write below `more` folders as well. Temporary files go to `scratch`, records at `hidden`
    are out of reach. It has one thread yet: others would stay free. False where the system lacks
    what is needed.

    It is rule 7 of docs/honesty.md.
    """
    if (version := _landlock()) < 2:
        return False
    caches = [*_caches()]
    for path in caches:
        with suppress(OSError):  # Where it can be made: a rule needs something to stand on.
            path.mkdir(parents=True, exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
    # Where coverage is measured it begins with removing what the last run wrote.
    os.environ["COVERAGE_FILE"] = str(scratch / ".coverage")
    shared = (Path("/dev/shm"), Path("/proc/self"))  # noqa: S108 - torch shares by it
    with suppress(OSError):
        os.close(open_lock("cpu"))  # For the folder, where processes announce themselves.
    places = [scratch, *more, *shared, *caches, DIRECTORY, *_found("/tmp", ("nvidia-mps",))]  # noqa: S108
    writable = tuple(path.resolve() for path in places)
    hidden = tuple(path.resolve() for path in hidden)
    try:
        _refuse_files(writable, hidden, version)
        if platform.machine() in _ARCHITECTURES:
            has_gpu = any(_found("/dev", ("nvidia[0-9]*", "kfd")))
            _refuse_calls(platform.machine(), has_local_sockets=has_gpu)
    except OSError:
        # What is around us, a container, leaves no room for more.
        return False
    return True


def separate_caches(scratch: Path) -> None:
    """Give this process an empty cache of the home, and copies of kernels' own, in `scratch`.

    Every process so begins with what is there, whichever version it runs and whatever ran before. A
    file that somebody put into the home's cache is there for no version.
    """
    compilers = compilers_caches()
    for name, folder in _named_caches():
        if folder in compilers or not _is_small(folder):
            continue
        # What is there cannot be copied into itself.
        if not scratch.is_relative_to(folder.resolve()):
            copy = scratch / "caches" / name
            copy.mkdir(parents=True)
            with suppress(OSError):
                shutil.copytree(folder, copy, symlinks=True, dirs_exist_ok=True)
            os.environ[name] = str(copy)
    _empty_home_cache(scratch / "home")


def _empty_home_cache(home: Path) -> None:
    """Make `home` this process's: links to all of the user's home, and a cache of compilers' own.

    These find what they made by its content, and take seconds to make it.
    """
    user, cache = Path(os.path.expanduser("~")), home / ".cache"
    cache.mkdir(parents=True)
    with suppress(OSError):
        for entry in os.scandir(user):
            if entry.name != cache.name:
                (home / entry.name).symlink_to(entry.path)
    known = Path(os.environ.get("XDG_CACHE_HOME") or user / cache.name)
    for name in (_OURS, *_IN_CACHE):
        with suppress(OSError):  # A home that cannot be written to has no caches.
            place = known / name
            if name != _OURS and not place.is_dir():
                place = known / _OURS / name
            place.mkdir(parents=True, exist_ok=True)
            (cache / name).symlink_to(place)
    os.environ |= {"HOME": str(home), "XDG_CACHE_HOME": str(cache)}


def compilers_caches() -> list[Path]:
    """Return the folders that variables name for known compilers."""
    return [
        folder
        for name, folder in _named_caches()
        if name in _COMPILERS or name.endswith("_JIT_DIR")
    ]


def _is_small(folder: Path) -> bool:
    """Say whether a folder holds few files, which are small together."""
    files, size = 0, 0
    for top, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += os.lstat(os.path.join(top, name)).st_size
        files += len(names)
        if files > _FILES or size > _BYTES:
            return False
    return True


def _named_caches() -> list[tuple[str, Path]]:
    """Return the variables that name a cache, with its folder."""
    return [
        (name, Path(value))
        for name, value in os.environ.items()
        if name.endswith(_NAMES_A_CACHE) and os.path.isabs(value)
    ]


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: object) -> int:
    """Make a system call; OSError where it fails."""
    result = int(_libc().syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


@cache
def _landlock() -> int:
    """Return the version of Landlock's ABI, 0 where there is none."""
    try:
        return _call(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    except (OSError, AttributeError):
        return 0


def _caches() -> Iterator[Path]:
    """Yield where compilers keep what they made: the usual places, and those in variables.

    Inductor's is below the temporary files: it stays where it was. A folder that is not there
    could not be made in the home.
    """
    try:
        home, user = Path.home(), getpass.getuser()
    except (RuntimeError, KeyError, OSError):  # A user without an entry among the system's users.
        home, user = Path(os.environ.get("HOME") or tempfile.gettempdir()), f"uid_{os.getuid()}"
    for folder, variable in _OWN_FOLDERS.items():
        if (home / folder).is_dir():
            yield home / folder
        else:
            place = home / ".cache" / _OURS / folder.strip(".").replace("/", "-")
            os.environ.setdefault(variable, str(place))
    inductor = Path(tempfile.gettempdir()) / f"torchinductor_{user}"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(inductor))
    # Precompiled headers lie there whatever the variable says.
    yield inductor
    yield from (folder for _, folder in _named_caches())
    yield from (home / ".cache", Path(os.environ.get("TRITON_HOME") or home) / ".triton")


def _found(folder: str, names: Sequence[str]) -> Iterator[Path]:
    for name in names:
        yield from Path(folder).glob(name)


def _refuse_files(writable: Sequence[Path], hidden: Sequence[Path], version: int) -> None:
    truncate = _TRUNCATE if version >= 3 else 0
    on_files = _WRITE_FILE | truncate
    writing = on_files | _IN_FOLDERS | _REFER
    reading = _READ_FILE if hidden else 0
    attributes = struct.pack("QQQ", writing | reading, 0, _SIGNALS if version >= 6 else 0)
    attributes = attributes[: 24 if version >= 6 else 8]
    ruleset = _call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    for path in writable:
        _allow(ruleset, path, writing | reading)
    for path in _found("/dev", _DEVICES):
        _allow(ruleset, path, on_files | reading)
    if reading:
        ancestors = {str(folder) for path in hidden for folder in path.parents}
        out_of_reach = ancestors | {str(path) for path in hidden}
        for folder in ancestors:
            with suppress(OSError):  # Of one that only lets pass nothing else can be read.
                for entry in os.scandir(folder):
                    if entry.path not in out_of_reach:
                        _allow(ruleset, entry.path, reading)
    _libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str | Path, rights: int) -> None:
    """Allow rights below a path; one that is a link, or gone, has none of its own."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(path):
            rights &= _WRITE_FILE | _READ_FILE | _TRUNCATE
        rule = struct.pack("=Qi", rights, descriptor)
        # What it cannot hold, a socket or a file of the kernel's own, is refused.
        with suppress(OSError):
            _call(_ADD_RULE, ruleset, 1, rule, 0)
    finally:
        os.close(descriptor)


def _refuse_calls(machine: str, *, has_local_sockets: bool) -> None:
    """Have seccomp refuse sockets, io_uring's too, and to set what other processes may use.

    All that this process starts stays below it. Drivers of GPUs talk to their servers through
    sockets of this machine.
    """
    load, equal, at_least, has_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    number, name, first, second = 0, 4, 16, 24
    here, seccomp, socket, prctl, clone, by_first, by_second = _ARCHITECTURES[machine]
    allow, refuse = (give, 0, 0, 0x7FFF0000), (give, 0, 0, 0x00050000 | errno.EACCES)
    # Another architecture numbers its calls otherwise, and so does x32.
    program = [(load, 0, 0, name), (equal, 1, 0, here), refuse, (load, 0, 0, number)]
    program += [(at_least, 0, 1, _X32), refuse, (equal, 0, 1, _IO_URING_SETUP), refuse]
    # Its flags lie in memory, where no filter sees them; C libraries then call clone.
    program += [(equal, 0, 1, _CLONE3), (give, 0, 0, 0x00050000 | errno.ENOSYS)]
    local = 1 if has_local_sockets else _NO_FAMILY
    rules = [(socket, first, equal, local, (allow, refuse))]
    rules += [(call, first, equal, 0, (allow, refuse)) for call in by_first]
    rules += [(call, second, equal, 0, (allow, refuse)) for call in by_second]
    rules += [
        (prctl, first, equal, _PR_SET_CHILD_SUBREAPER, (refuse, allow)),
        (clone, first, has_bit, _CLONE_PARENT, (refuse, allow)),
    ]
    for call, argument, test, value, then in rules:
        program += [(equal, 0, 4, call), (load, 0, 0, argument), (test, 0, 1, value), *then]
    program.append(allow)
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
    filters = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    # Without the brake that a filter puts on speculation: what is timed shall be as fast as ever.
    _call(seccomp, 1, 4, filters)
