"""A stranger's file against the baseline of a problem: one verdict, and nothing left behind."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from pytest_kopt.errors import BadInput
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.process_tree import adopt_orphans
from pytest_kopt.processes.isolation import lacking
from pytest_kopt.processes.launched import SCRATCH
from pytest_kopt.show.words import gate_outcome
from pytest_kopt.standalone.cases import Cases
from pytest_kopt.standalone.child_session import last_words, start, verdict_in
from pytest_kopt.standalone.limits import ProcessLimits, private_folder, remove
from pytest_kopt.standalone.made_trees import tree_with
from pytest_kopt.standalone.two_versions import check_words

#: A larger file is no kernel's source.
_MOST_BYTES = 1 << 20
#: The session's own; whatever the project's settings say.
_CONFINED = ("-o", "kopt_isolation=on", "-p", "no:cacheprovider", "--kopt-gate=improve")


def judge(
    submission: Path, cases: Cases, limits: ProcessLimits, words: Sequence[str] = ()
) -> dict[str, Any]:
    """Judge a file in the place of the problem's own, which is the baseline.

    `words` go to pytest. The document has `submission`, `sha256`, `outcome`, `exit_code`, `reason`,
    `limit` (which one it went beyond, or null), `seconds` and `verdict` (or null). A submission
    that cannot be read is an outcome as well. BadInput where this system confines no process.
    """
    if "no Landlock" in (problem := lacking()):
        raise BadInput(problem, where="kopt judge", legal="Linux 5.19 or newer with Landlock")
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
        files, other = {**cases.files, cases.place: source}, ("baseline", {cases.place: baseline})
        with tree_with(cases.root, files, other, builds=True) as made:
            verdict_file, log = folder / "verdict.json", folder / "output"
            words = (*check_words(made, verdict_file), *_CONFINED, *cases.within(made), *words)
            process = start(words, made, log, variables=variables, first=limits.apply)
            broken = limits.wait(process, folder)
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
