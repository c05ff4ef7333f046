"""The errors that a user can correct: unusable input, kernels that do not load, a full disk."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from pytest_kopt.exit_codes import ExitCode

#: What the operating system says of a disk that takes no more, or takes nothing from this user.
_STORAGE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO),
    *(errno.EROFS, errno.EACCES, errno.EPERM),
}


#: What to do where kopt failed.
REPORT = "report this message to pytest-kopt; neither the kernel nor its test is at fault"


class NoVerdict(Exception):
    """An error that ends a session before its verdict, or a command, with an exit code.

    The message names what is wrong and where it stands (file, key, option, column or case). It
    ends with the allowed values (`legal`), or with what to do (`fix`).
    """

    exit_code: ClassVar[ExitCode]

    def __init__(
        self, what: str, *, where: str = "", legal: str | Iterable[str] = "", fix: str = ""
    ) -> None:
        self.what = what
        self.where = where
        self.legal = legal if isinstance(legal, str) else ", ".join(legal)
        self.fix = fix
        super().__init__(str(self))

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        text = f"{text} (allowed: {self.legal})" if self.legal else text
        return f"{text}. Fix: {self.fix}" if self.fix else text


class BadInput(NoVerdict):
    """Something the user gave cannot be used."""

    exit_code = ExitCode.USAGE


def text_of(path: Path) -> str:
    """Return the text of a user's file; BadInput where it is missing or not UTF-8."""
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise BadInput(f"kopt cannot read the file: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError as error:
        raise BadInput(f"is not UTF-8 (byte {error.start})", where=str(path)) from None


class KernelError(NoVerdict):
    """The kernel does not parse or import.

    The message names file and line. Raised before anything is measured or changed.
    """

    exit_code = ExitCode.FAILED


class CannotFinish(NoVerdict):
    """Something outside of us kept a session from carrying out what it had begun.

    Nothing is lost: what the ledger holds is finished by the next session, what it does not hold
    was not decided.
    """

    exit_code = ExitCode.INCOMPLETE


@contextmanager
def storage_told() -> Iterator[None]:
    """Turn the operating system's word on a full or closed disk into CannotFinish."""
    try:
        yield
    except OSError as error:
        if error.errno not in _STORAGE:
            raise
        place = error.filename or "the disk of the campaign"
        raise CannotFinish(f"{error.strerror}", where=place) from error


def of_extra(extra: str, module: str, package: str = "") -> Any:
    """Import a module that an extra of ours brings; BadInput where its package is missing.

    The package has the module's name unless one is given.
    """
    try:
        return import_module(module)
    except ImportError:
        package = package or module
        fix = f"pip install {package} (the extra {extra!r} has it)"
        raise BadInput(f"{package} is not installed", where=extra, fix=fix) from None
