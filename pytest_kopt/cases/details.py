"""The details of each case in a verdict, for agents: its place, its times, its faults."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.verdict import Diagnosis, Shape, Verdict
from pytest_kopt.schema.table import cell

#: Where a traceback of pytest or Python says that something was raised.
_PYTHON_PLACE = re.compile(r'File "([^"\n]+)", line (\d+)')
_PYTEST_PLACE = re.compile(r"^(\S[^:\n]*\.py):(\d+): ", re.MULTILINE)
#: Folders of what is installed.
_LIBRARY = re.compile(r"/(site-packages|dist-packages|lib/python3\.\d+)/")


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
    return verdict.model_copy(update={"shapes": shapes, "next_action": verdict.action(number)})


def of_shapes(
    shapes: Iterable[Shape], results: Sequence[CaseResult]
) -> Iterator[tuple[Shape, CaseResult | None]]:
    """Yield each case of a verdict with its result; a pull request may have dims twice."""
    by_name = {(name, case.key): case for case in results for name in ("", case.label, case.nodeid)}
    for shape in shapes:
        key = tuple(cell(value) for value in shape.dims.values())
        yield shape, by_name.get((shape.nodeid or shape.label, key), by_name.get(("", key)))


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
