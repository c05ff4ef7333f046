"""Where and how a process measures its cases, and what the baseline expects of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.order import Depth
from pytest_kopt.cases.result import ExpectedCase
from pytest_kopt.cases.running.switches import new_operators
from pytest_kopt.devices.lock import Waiting
from pytest_kopt.devices.vendor import Reading
from pytest_kopt.honesty.audit_hook import AuditHook
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.measure.engine import BLOCK_MS
from pytest_kopt.measure.wall import WallEngine
from pytest_kopt.schema.table import NO_CLASSES, Classes, describe_header_drift


@dataclass(frozen=True, slots=True)
class Bench:
    """Where and how the cases of this process are measured.

    `device` is torch's name, `uuid` what its host calls it, `read` returns its state. `expected`
    holds the baseline's cases by node id, None when nothing is frozen yet; a run that `freezes` is
    the baseline itself. `audit_hook` is this process's, `operators` are those of torch that others
    than kernels replaced in it. Every case has to have the columns that tell the `classes` apart,
    and is gone into as far as `depth` says: it is timed by `repeats` samples in blocks of `cpu`, or
    of `gpu_block_ms` at least. If it is `compared` later, it is asked there what known content is
    worth. `waiting` is entered while a case waits for its turn on the device. A candidate is to be
    written in `language` ("": any).
    """

    device: str
    engine: str
    session_seed: int
    expected: Mapping[str, ExpectedCase] | None = None
    cpu: WallEngine = field(default_factory=WallEngine)
    gpu_block_ms: float = BLOCK_MS
    uuid: str = "cpu"
    read: Callable[[], Reading] = Reading
    freezes: bool = False
    audit_hook: AuditHook | None = None
    operators: frozenset[str] = frozenset()
    classes: Classes = NO_CLASSES
    depth: Depth = Depth.TIMES
    compared: bool = False
    repeats: int = 3
    waiting: Waiting = nullcontext
    language: str = ""

    def times(self, interpreted: bool) -> bool:
        """Say whether a case is timed; one that was interpreted only where a row has to be full."""
        return self.depth is Depth.TIMES and (self.is_judged or not interpreted)

    @property
    def is_judged(self) -> bool:
        """Whether the session decides on what these cases come to."""
        return self.freezes or self.expected is not None

    def frozen(self, nodeid: str) -> ExpectedCase:
        """Return what the baseline knows of a case, one of which nothing is known without it."""
        return (self.expected or {}).get(nodeid) or ExpectedCase(nodeid, "", (), {})

    @property
    def is_first(self) -> bool:
        """Whether no baseline has asked its cases yet if they tell right from wrong."""
        return self.expected is None

    @property
    def is_confined(self) -> bool:
        return self.audit_hook is not None and self.audit_hook.is_confined

    def opened(self, root: Path) -> dict[str, tuple[str, ...]]:
        """Return the files below the project's root that were opened, each with by which."""
        inside, opened = f"{root}{os.sep}", self.audit_hook.opened if self.audit_hook else {}
        return {
            name.removeprefix(inside): tuple(sorted(by.removeprefix(inside) for by in authors))
            for name, authors in opened.items()
            if name.startswith(inside)
        }

    def heard(self) -> list[Finding]:
        heard = self.audit_hook.findings() if self.audit_hook else []
        return [*heard, *new_operators(self.operators)]


def hold_against_baseline(case: Case, expected: Mapping[str, ExpectedCase] | None) -> None:
    """Raise BadInput when the case is not the one that the baseline froze under this node id."""
    if expected is None:
        return
    frozen = expected.get(case.nodeid)
    if frozen is None:
        raise case.refusal("is not in the baseline", "the cases of the baseline")
    if case.header != frozen.header:
        drift = describe_header_drift(case.header, frozen.header)
        raise case.refusal(drift, ",".join(frozen.header))
    empty = {column.name for column in case.schema.columns if column.is_backward}
    had_backward = not empty or not empty <= set(frozen.empty)
    if empty and case.backward != had_backward:
        raise case.refusal(f"backward is {case.backward} now", f"the baseline's {had_backward}")
    if case.dims != frozen.dims:
        raise case.refusal(f"dims drifted: {case.dims}", f"the baseline's {frozen.dims}")
