"""The lock on a campaign, running.json (how far its session is, or how it ended), its removal."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pytest_kopt.campaign.layout import Layout
from pytest_kopt.cases.details import place_of
from pytest_kopt.clock import now
from pytest_kopt.errors import BadInput, NoVerdict, storage_told
from pytest_kopt.process_tree import is_alive
from pytest_kopt.schema.table import write_atomically

RUNNING_VERSION = 1
ENDED = "ended"
#: The phase in which two versions are compared.
COMPARING = "comparing"


def read(file: Path) -> dict[str, Any] | None:
    """Return the document, None where there is none that can be read."""
    try:
        document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return document if {"phase", "pid"} <= document.keys() else None
    except (OSError, ValueError, AttributeError):
        return None


def is_live(document: dict[str, Any]) -> bool:
    return is_alive(document["pid"]) and document["phase"] != ENDED


def is_anothers(document: dict[str, Any] | None) -> bool:
    return bool(document and is_live(document) and document["pid"] != os.getpid())


def write(file: Path, **progress: Any) -> None:
    """Write the document, None for what is not known; one that cannot be written ends nothing."""
    document = {
        "schema_version": RUNNING_VERSION,
        "pid": os.getpid(),
        "phase": None,
        **dict.fromkeys(("case", "done", "total", "exit_code", "error", "started")),
        "updated": datetime.now().astimezone().isoformat(timespec="seconds"),
    }
    with suppress(OSError):
        write_atomically(file, json.dumps(document | progress, indent=1) + "\n")


def end(file: Path, exit_code: int | None, error: Exception | None = None, **progress: Any) -> None:
    """Write that the session has ended (`exit_code` None: pytest broke), unless another runs."""
    if is_anothers(read(file)):
        return
    path, line = (place_of(str(error)) if error else None) or (None, None)
    failure = {"text": str(error), "file": path, "line": line} if error else None
    write(file, **progress, phase=ENDED, exit_code=exit_code, error=failure)


@contextmanager
def refusals_left(file: Path) -> Iterator[None]:
    """Leave behind how the session ends where it is refused here."""
    try:
        yield
    except NoVerdict as error:
        end(file, error.exit_code, error)
        raise


@contextmanager
def hold(layout: Layout) -> Iterator[None]:
    """Hold a campaign for as long as this process lives; BadInput names the one that has it."""
    owner = layout.directory / ".lock-owner"
    lock = FileLock(layout.lock)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        who = "another process"  # about to write its name, or just gone
        with suppress(OSError):
            who = owner.read_text(encoding="utf-8")
        what = f"campaign {layout.name!r} is in use by {who}"
        fix = f"wait until it ends (kopt status {layout.name}), or stop it"
        raise BadInput(what, fix=fix) from None
    try:
        owner.write_text(
            f"process {os.getpid()} on {socket.gethostname()} since {now()}", encoding="utf-8"
        )
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()


def remove(layout: Layout) -> Path:
    """Pack a campaign's directory, then delete it; return the tarball.

    BadInput while a session or command uses it. A kill leaves the directory, or the tarball, or
    both.
    """
    moment = "".join(character for character in now() if character.isdigit())
    kept = layout.workspace / f"{layout.name}-{moment}.tar.gz"
    unfinished = kept.with_name(f".{kept.name}.kopt-new")
    with hold(layout), storage_told():
        try:
            with tarfile.open(unfinished, "w:gz") as tarball:
                tarball.add(layout.directory, layout.name)
            with unfinished.open("rb") as stream:
                os.fsync(stream.fileno())
            os.replace(unfinished, kept)
        finally:
            unfinished.unlink(missing_ok=True)
        # Without its manifest it is no campaign, however far this comes.
        layout.manifest.unlink()
        shutil.rmtree(layout.directory)
    return kept
