"""A stranger's file against the baseline of a problem: one verdict, within a time limit."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from pytest_kopt.errors import BadInput
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.process_tree import adopt_orphans, end_descendants
from pytest_kopt.processes.isolation import lacking
from pytest_kopt.processes.launched import SCRATCH
from pytest_kopt.show.words import gate_outcome
from pytest_kopt.standalone.cases import Cases
from pytest_kopt.standalone.child_session import tree_with
from pytest_kopt.standalone.two_versions import SessionEnd, check

#: A larger file is no kernel's source.
_MOST_BYTES = 1 << 20
#: The session's own; whatever the project's settings say.
_CONFINED = ("-o", "kopt_isolation=on", "-p", "no:cacheprovider", "--kopt-gate=improve")


def judged(
    submission: Path, cases: Cases, seconds: float, words: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the verdict on a file in the place of the problem's own, which is the baseline.

    `words` go to pytest. The document has `submission`, `sha256`, `outcome`, `exit_code`, `reason`,
    `seconds` and `verdict` (or null). A submission that cannot be read is an outcome as well.
    BadInput where this system confines no process.
    """
    if "no Landlock" in (problem := lacking()):
        raise BadInput(problem, where="kopt judge", fix="use Linux 5.19 or newer with Landlock")
    began = monotonic()
    document: dict[str, Any] = {"submission": str(submission), "sha256": None}
    try:
        source = _read(submission)
    except BadInput as error:
        refusal = {"outcome": "refused", "exit_code": int(ExitCode.FAILED), "reason": error.what}
        return {**document, **refusal, "seconds": 0.0, "verdict": None}
    document["sha256"] = hashlib.sha256(source).hexdigest()
    place = Path(cases.place)
    files, baseline = {**cases.files, cases.place: source}, (cases.root / place).read_bytes()
    # A process that the kernel detached would outlive its session, and disturb the next one.
    adopt_orphans()
    prefix = f"{SCRATCH}{os.getpid()}-"
    with (
        tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder,
        tree_with(cases.root, files, (place, {cases.place: baseline}), builds=True) as made,
    ):
        words, variables = (*_CONFINED, *cases.within(made), *words), _private(folder)
        try:
            ended = check(made, words, silent=True, seconds=seconds, variables=variables)
            outcome = gate_outcome(ended.verdict) if ended.verdict else "not judged"
        except subprocess.TimeoutExpired:
            why = f"it takes more than {seconds:g} s"
            ended, outcome = SessionEnd(ExitCode.FAILED, None, why), "over the time limit"
        finally:
            end_descendants()
    return {
        **document,
        "outcome": outcome,
        "exit_code": int(ended.code),
        "reason": ended.reason,
        "seconds": round(monotonic() - began, 1),
        "verdict": ended.verdict and ended.verdict.model_dump(mode="json"),
    }


def _read(file: Path) -> bytes:
    """Return the bytes of a plain file; BadInput for a link, a pipe or a large one."""
    with suppress(OSError):
        if file.is_file() and not file.is_symlink():
            if file.stat().st_size <= _MOST_BYTES:
                return file.read_bytes()
            raise BadInput(f"is larger than {_MOST_BYTES} bytes", where=str(file))
    raise BadInput("is no plain file that can be read", where=str(file))


def _private(folder: str) -> dict[str, str]:
    """Return the variables by which a session keeps caches and temporary files in a folder."""
    import site

    home, temporary = (Path(folder).resolve() / name for name in ("home", "tmp"))
    home.mkdir()
    temporary.mkdir()
    return {
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "XDG_CACHE_HOME": str(home / ".cache"),
        # Packages that the user has installed are still found.
        "PYTHONUSERBASE": site.getuserbase(),
    }
