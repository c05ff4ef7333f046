"""Faults that the cases of a session cannot show, by what their checks recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from pytest_kopt.cases.result import CaseResult


def blind_spots(results: Iterable[CaseResult]) -> Iterator[str]:
    """Yield a sentence for each thing that all cases of a function leave open.

    A tolerance that accepts zeros is none of them: such a case is an ERROR.
    """
    by_function: dict[str, list[CaseResult]] = {}
    for result in results:
        if result.check == "PASS" and (function := result.evidence.function):
            by_function.setdefault(function, []).append(result)
    for function, cases in by_function.items():
        if len({tuple(sorted(case.dims.items())) for case in cases}) == 1:
            yield f"{function}: other shapes than this one; parametrize the sizes"
        dtypes = {case.evidence.dtype for case in cases}
        if len(dtypes) == 1 and (dtype := dtypes.pop()):
            yield f"{function}: other dtypes than {dtype}; parametrize it if the kernel takes more"
        if shared := sorted({file for case in cases for file in _shared(case)}):
            yield (
                f"{function}: a mistake in {', '.join(shared)} of the kernel's package, whose code "
                "draws the inputs or computes the reference; keep both in the tests"
            )


def _shared(case: CaseResult) -> Iterator[str]:
    """Yield the files of the kernel's package, or its own, that judge the case."""
    home, test = case.evidence.home, case.nodeid.partition("::")[0]
    package = PurePosixPath(home or "").parent
    for file in case.evidence.judged_by or () if home else ():
        is_inside = bool(package.name) and PurePosixPath(file).is_relative_to(package)
        if file != test and (file == home or is_inside):
            yield file
