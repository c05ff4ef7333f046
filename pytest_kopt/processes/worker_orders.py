"""What a process that runs cases has to know, sent to it by the one that decides."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pytest_kopt import wire
from pytest_kopt.cases.order import ArmsOrder, ProfileOrder
from pytest_kopt.cases.result import ExpectedCase

if TYPE_CHECKING:
    from pytest_kopt.options.settings import Settings


@dataclass(frozen=True, slots=True)
class WorkerOrders:
    """Orders for a worker.

    `expected` are the baseline's cases (None: nothing is frozen); `classes` columns that every case
    has to have; `cases_only` deselects every test that is no case; with `one_schema` the rows stand
    in one CSV; `ignored` are node ids to leave out (skipped at the baseline), `selected` the labels
    or node ids that alone are measured (none: all). With `arms` the cases are not checked and timed
    but held ready for a comparison, with `profile` they are profiled, with `check_only` they are
    checked, not timed, with `only_results` for nothing but right results. With `measure_same` arms
    are timed that have a GPU do the same. Of cases that are `compared` later, what a comparison
    asks as well is left to it. `repeats` and `iterations` are the samples of a case and, on the
    CPU, the most calls in one (None: as ever).
    `target` is the architecture and `language` the one that a campaign is for, `metric` what
    decides there. `markers` are those that the deciding process has registered.
    """

    device: str
    engine: str
    session_seed: int
    timeout: float
    suite: str
    cases_only: bool = False
    one_schema: bool = False
    expected: tuple[ExpectedCase, ...] | None = None
    ignored: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    selected: tuple[str, ...] = ()
    arms: ArmsOrder | None = None
    profile: ProfileOrder | None = None
    check_only: bool = False
    only_results: bool = False
    compared: bool = False
    measure_same: bool = False
    repeats: int | None = None
    iterations: int | None = None
    target: str | None = None
    language: str = ""
    metric: str | None = None
    markers: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Settings, device: str, session_seed: int) -> WorkerOrders:
        """Return the orders of a session without a campaign."""
        return cls(
            device,
            settings.engine,
            session_seed,
            settings.timeout,
            settings.suite,
            one_schema=settings.one_schema,
            check_only=settings.check_only,
            measure_same=settings.measure_same,
            repeats=settings.repeats,
            iterations=settings.iterations,
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkerOrders:
        return wire.read(cls, json.loads(text))
