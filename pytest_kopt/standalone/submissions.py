"""A stranger's file against the baseline of a problem: one verdict, within a time limit."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from pytest_kopt.errors import BadInput
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.process_tree import adopt_orphans, end_descendants
from pytest_kopt.processes.isolation import lacking
from pytest_kopt.processes.launched import scratch
from pytest_kopt.standalone.cases import Cases
from pytest_kopt.standalone.child_session import two_with
from pytest_kopt.standalone.two_versions import check

#: The session's own; whatever the project's settings say.
_CONFINED = ("-o", "kopt_isolation=on", "-p", "no:cacheprovider", "--kopt-gate=improve")


def judged(
    submission: Path, cases: Cases, seconds: float, words: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the verdict on a file in the place of the problem's own, which is the baseline.

    `words` go to pytest. The document has `outcome`, `exit_code`, `reason`, `seconds` and `verdict`
    (or null). BadInput for a submission that cannot be read, and if this system confines no
    process.
    """
    if "no Landlock" in (problem := lacking()):
        raise BadInput(problem, where="kopt judge", fix="use Linux 5.19 or newer with Landlock")
    # A link could lead to a file that only the judge may read, and a pipe never ends.
    if submission.is_symlink() or not submission.is_file():
        raise BadInput("is no plain file", where=str(submission))
    began, place = monotonic(), Path(cases.place)
    files = {**cases.files, cases.place: submission.read_bytes()}
    baseline = {cases.place: (cases.root / place).read_bytes()}
    # A process that the kernel detached would outlive its session.
    adopt_orphans()
    with (
        scratch() as folder,
        two_with(cases.root, files, place, baseline, builds=True) as (tree, base),
    ):
        words, variables = (*_CONFINED, *cases.within(tree), *words), _private(folder)
        try:
            code, verdict, reason = check(
                tree, base, words, silent=True, seconds=seconds, variables=variables
            )
            outcome = verdict.outcome if verdict else "not judged"
        except subprocess.TimeoutExpired:
            code, verdict, reason = ExitCode.FAILED, None, f"it takes more than {seconds:g} s"
            outcome = "over the time limit"
        finally:
            end_descendants()
    return {
        "outcome": outcome,
        "exit_code": int(code),
        "reason": reason,
        "seconds": round(monotonic() - began, 1),
        "verdict": verdict and verdict.model_dump(mode="json"),
    }


def _private(folder: Path) -> dict[str, str]:
    """Return the variables by which a session keeps caches and temporary files in a folder."""
    import site

    home, temporary = (folder / name for name in ("home", "tmp"))
    home.mkdir()
    temporary.mkdir()
    return {
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "XDG_CACHE_HOME": str(home / ".cache"),
        # Packages that the user has installed are still found.
        "PYTHONUSERBASE": site.getuserbase(),
    }
