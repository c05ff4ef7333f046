"""A stranger's file against the baseline of a problem: one verdict, and nothing left behind.

Seconds, memory, disk and processes are limited. The watcher reads /proc a few times a second, and
needs neither a control group nor a user of its own: a process may exceed a limit between two
readings.
"""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from pytest_kopt.errors import BadInput
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.process_tree import adopt_orphans, children, down, end_descendants
from pytest_kopt.processes.isolation import lacking
from pytest_kopt.processes.launched import SCRATCH
from pytest_kopt.show.words import gate_outcome
from pytest_kopt.standalone.cases import Cases
from pytest_kopt.standalone.child_session import last_words, start, tree_with, verdict_in
from pytest_kopt.standalone.two_versions import check_words

#: A larger file is no kernel's source.
_MOST_BYTES = 1 << 20
#: The session's own; whatever the project's settings say.
_CONFINED = ("-o", "kopt_isolation=on", "-p", "no:cacheprovider", "--kopt-gate=improve")
#: How often processes are counted, which may become many in no time, and how often the rest is.
_PAUSE_SECONDS, _SLOW_SECONDS = 0.1, 0.5
#: What a file takes at least of the disk, its entry included.
_ENTRY = 4096
_SHARED = Path("/dev/shm")  # noqa: S108 - torch shares by it, so that kernel code may write there


def judged(
    submission: Path, cases: Cases, limits: ProcessLimits, words: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the verdict on a file in the place of the problem's own, which is the baseline.

    `words` go to pytest. The document has `submission`, `sha256`, `outcome`, `exit_code`, `reason`,
    `limit` (which one it went beyond, or null), `seconds` and `verdict` (or null). A submission
    that cannot be read is an outcome as well. BadInput where this system confines no process.
    """
    if "no Landlock" in (problem := lacking()):
        raise BadInput(problem, where="kopt judge", fix="use Linux 5.19 or newer with Landlock")
    began = monotonic()
    document: dict[str, Any] = {"submission": str(submission), "sha256": None}
    try:
        source = _read(submission)
    except BadInput as error:
        ended = {"outcome": "refused", "exit_code": int(ExitCode.FAILED), "reason": error.what}
        return {**document, **ended, "limit": None, "seconds": 0.0, "verdict": None}
    document["sha256"] = hashlib.sha256(source).hexdigest()
    adopt_orphans()
    baseline = (cases.root / cases.place).read_bytes()
    folder = Path(tempfile.mkdtemp(prefix=f"{SCRATCH}{os.getpid()}-")).resolve()
    former = tempfile.tempdir
    try:
        variables = private_folder(folder)
        # The tree lies there too: what is written to it counts, and goes with it.
        tempfile.tempdir = variables["TMPDIR"]
        files, other = (
            {**cases.files, cases.place: source},
            (Path(cases.place), {cases.place: baseline}),
        )
        with tree_with(cases.root, files, other, builds=True) as made:
            verdict_file, log = folder / "verdict.json", folder / "output"
            words = (*check_words(made, verdict_file), *_CONFINED, *cases.within(made), *words)
            before = {*shared_files()}
            process = start(words, made, log, variables=variables, first=limits.apply)
            broken = limits.wait(process, folder, before)
            verdict = None if broken else verdict_in(verdict_file)
            reason = broken or (verdict.reason if verdict else last_words(log))
            document |= {
                "outcome": "over a limit"
                if broken
                else gate_outcome(verdict)
                if verdict
                else "not judged",
                "exit_code": int(ExitCode.FAILED) if broken else process.returncode,
                "reason": reason,
                "limit": broken.partition(":")[0] or None,
            }
    finally:
        tempfile.tempdir = former
        remove(folder)
    document["seconds"] = round(monotonic() - began, 1)
    document["verdict"] = verdict and verdict.model_dump(mode="json")
    return document


def _read(file: Path) -> bytes:
    """Return the bytes of a plain file; BadInput for a link, a pipe or a large one."""
    with suppress(OSError):
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as stream:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                source = stream.read(_MOST_BYTES + 1)
                if len(source) <= _MOST_BYTES:
                    return source
                raise BadInput(f"is larger than {_MOST_BYTES} bytes", where=str(file))
    raise BadInput("is no plain file that can be read", where=str(file))


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """The limits of a session together with all that it starts."""

    seconds: float
    #: Bytes of memory.
    memory: int
    #: Bytes in files, of which one may have a quarter.
    disk: int
    #: Processes at a time.
    processes: int

    def apply(self) -> None:
        """Limit this process's files, and have the system end it first when memory is short.

        It leads a group of its own, which ends at once.
        """
        os.setsid()
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.disk // 4, self.disk // 4))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")

    def wait(self, process: subprocess.Popen[bytes], folder: Path, before: set[str]) -> str:
        """Wait until a process ends, or goes beyond a limit; return which, "" for none.

        It writes to `folder`, and `before` are the shared files from before its start. Nothing of
        what it started is left then: orphans have to be children of this process, which has no
        others.
        """
        began, looked = monotonic(), 0.0
        broken, count = "", 0
        try:
            while process.poll() is None and not broken:
                now = monotonic()
                pids = [*islice(down(process.pid), self.processes + 1)]
                if len(pids) > self.processes:
                    broken = f"processes: there are more than {self.processes}"
                elif now - began > self.seconds:
                    broken = f"time: it takes more than {self.seconds:g} s"
                # Of processes that fork the system tells slowly, while more and more come.
                elif now - looked > _SLOW_SECONDS and len(pids) <= count:
                    broken, looked = self._too_large(pids, folder, before), now
                count = len(pids)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0 if broken else _PAUSE_SECONDS)
            return broken
        finally:
            _end_all(process)
            for file in {*shared_files()} - before - _used(_SHARED):
                with suppress(OSError):
                    os.unlink(file)

    def _too_large(self, pids: list[int], folder: Path, before: set[str]) -> str:
        """Return whether memory or files of processes are beyond a limit, "" where none is."""
        # What processes share is counted once only by the slower one.
        if sum(map(_resident, pids)) > self.memory and sum(map(_proportional, pids)) > self.memory:
            return f"memory: it takes more than {self.memory >> 20} MiB"
        # Files below the folder, shared ones and nameless ones, no more of them than it takes.
        sizes = chain(_nameless(pids), _sizes(folder), _new_shared(before))
        if any(total > self.disk for total in accumulate(sizes)):
            return f"disk: its files take more than {self.disk >> 20} MiB"
        return ""


def _end_all(process: subprocess.Popen[bytes]) -> None:
    """End a process and what descends from it, until nothing does any more."""
    while process.poll() is None or children():
        # A group ends at once: what forks without end would grow while each is looked for.
        for pid in islice(down(os.getpid()), 1, None):
            with suppress(OSError):
                if (group := os.getpgid(pid)) != os.getpgrp():
                    os.killpg(group, signal.SIGKILL)
        end_descendants()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        sleep(0.01)


def _resident(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]
        return int(pages) * resource.getpagesize()
    return 0


def _proportional(pid: int) -> int:
    """Return a process's memory, of what is shared its part."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0


def _sizes(folder: Path) -> Iterator[int]:
    for top, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with suppress(OSError):
                yield max(os.lstat(os.path.join(top, name)).st_blocks * 512, _ENTRY)


def _nameless(pids: list[int]) -> Iterator[int]:
    """Yield the sizes of files that processes hold open and no folder has any more."""
    seen = set()
    for pid in pids:
        with suppress(OSError):
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    file = os.stat(f"/proc/{pid}/fd/{descriptor}")
                    key = file.st_dev, file.st_ino
                    if stat.S_ISREG(file.st_mode) and not file.st_nlink and key not in seen:
                        seen.add(key)
                        yield file.st_blocks * 512


def shared_files() -> Iterator[str]:
    """Yield this user's files in shared memory."""
    with suppress(OSError):
        for entry in os.scandir(_SHARED):
            with suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                    yield entry.path


def _used(folder: Path) -> set[str]:
    """Return the files below a folder that processes have mapped or open."""
    used = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            used |= {os.readlink(f) for f in (process / "fd").iterdir()}
            lines = (process / "maps").read_text(errors="replace", encoding="utf-8").splitlines()
            used |= {line.split(maxsplit=5)[-1] for line in lines if str(folder) in line}
    return used


def _new_shared(before: set[str]) -> Iterator[int]:
    for file in {*shared_files()} - before:
        with suppress(OSError):
            yield os.lstat(file).st_blocks * 512


def private_folder(folder: Path) -> dict[str, str]:
    """Return the variables by which a process keeps caches and temporary files in a folder."""
    import site

    for name in ("home", "tmp"):
        (folder / name).mkdir()
    return {
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "XDG_CACHE_HOME": str(folder / "home" / ".cache"),
        # Packages that the user has installed are still found.
        "PYTHONUSERBASE": site.getuserbase(),
    }


def remove(folder: Path) -> None:
    """Remove a folder, whatever rights its folders were left with."""
    for top, folders, _ in os.walk(folder):
        for name in folders:
            with suppress(OSError):
                os.chmod(os.path.join(top, name), 0o700)
    shutil.rmtree(folder, ignore_errors=True)
