"""The details of each case in a verdict, for agents, and the faults that no case can show."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from pytest_kopt.cases.order import Choices
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.case_verdict import Diagnosis, Shape
from pytest_kopt.decide.verdict import Verdict

#: Where a traceback of pytest or Python says that something was raised.
_PYTHON_PLACE = re.compile(r'File "([^"\n]+)", line (\d+)')
_PYTEST_PLACE = re.compile(r"^(\S[^:\n]*\.py):(\d+): ", re.MULTILINE)
#: Folders of what is installed.
_LIBRARY = re.compile(r"/(site-packages|dist-packages|lib/python3\.\d+)/")
#: Configurations of autotuned kernels that a verdict names.
_CHOICES = 2


def with_details(
    verdict: Verdict, results: Sequence[CaseResult], number: int | None = None
) -> Verdict:
    """Return the verdict of a round with what is next, and what is known of its cases."""
    shapes = [
        shape.model_copy(
            update={
                "nodeid": result.nodeid,
                "forward_ms": _time(result, "Forward Time (ms)") or _time(result, "Time (ms)"),
                "backward_ms": _time(result, "Backward Time (ms)"),
                "diagnosis": diagnosis(result),
            }
            if result
            else {}
        )
        for shape, result in of_shapes(verdict.shapes, results)
    ]
    return verdict.saying(shapes=shapes, next_action=verdict.action(number))


def of_shapes(
    shapes: Iterable[Shape], results: Sequence[CaseResult]
) -> Iterator[tuple[Shape, CaseResult | None]]:
    """Yield each case of a verdict with its result."""
    by_name = {name: case for case in results for name in (case.label, case.nodeid)}
    yield from ((shape, by_name.get(shape.nodeid or shape.label)) for shape in shapes)


def place_of(text: str) -> tuple[str, int] | None:
    """Return file and line of the innermost frame of a traceback, of the project's if it has any.

    None where the text shows no frame.
    """
    frames = _PYTHON_PLACE.findall(text) or _PYTEST_PLACE.findall(text)
    project_frames = [frame for frame in frames if not _LIBRARY.search(frame[0])]
    if not frames:
        return None
    path, line = (project_frames or frames)[-1]
    return path, int(line)


def in_a_line(text: str) -> str:
    """Return the first line of a diagnosis, of a traceback what was raised and where."""
    lines = text.strip().splitlines() or [""]
    if not any(line.startswith(("Traceback (", "E ")) for line in lines):
        return lines[0]
    error, place = lines[-1].removeprefix("E ").strip(), place_of(text)
    if place is None:
        return error
    path = Path(place[0])
    with suppress(ValueError):
        path = path.relative_to(Path.cwd())
    return f"{path}:{place[1]}: {error}"


def diagnosis(result: CaseResult) -> Diagnosis | None:
    """Return what went wrong in a case, None where nothing did."""
    if result.check == "PASS":
        return None
    failed = result.evidence.failed
    first: dict[str, Any] = asdict(failed[0]) if failed else {}
    file, line = place_of(result.diagnosis) or (None, None)
    return Diagnosis(text=result.diagnosis, file=file, line=line, **first)


def _time(result: CaseResult, column: str) -> float | None:
    value = result.cells.get(column)
    return value if isinstance(value, float) and math.isfinite(value) else None


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


def merged_choices(choices: Iterable[Mapping[str, Mapping[str, str]]]) -> Choices:
    """Return the choices of several processes; the first one that chose for a key decides."""
    merged: Choices = {}
    for kernel, by_key in chain.from_iterable(each.items() for each in choices):
        merged[kernel] = {**by_key, **merged.get(kernel, {})}
    return merged


def choices_of(results: Iterable[CaseResult]) -> Choices:
    """Return the choices that the processes of these results made."""
    return merged_choices(result.evidence.autotuned or {} for result in results)


def tuning_flags(choices: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the flag that says how autotuned kernels ran; none where there are none."""
    lines = [
        f"{kernel.partition('@')[0]} {key}: {config}"
        for kernel, by_key in choices.items()
        for key, config in by_key.items()
    ]
    if not lines:
        return []
    more = f"; {len(lines) - _CHOICES} more" if len(lines) > _CHOICES else ""
    return [f"autotuned once, for all processes: {'; '.join(lines[:_CHOICES])}{more}"]
