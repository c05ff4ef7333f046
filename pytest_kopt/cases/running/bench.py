"""The device on which a process measures its cases, and what the baseline expects of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.order import Depth, WorkerOrders
from pytest_kopt.cases.result import ExpectedCase
from pytest_kopt.cases.running.switches import new_operators
from pytest_kopt.devices.lock import Waiting
from pytest_kopt.devices.vendor import Reading
from pytest_kopt.honesty.audit_hook import AuditHook
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.measure.engine import BLOCK_MS
from pytest_kopt.measure.wall import WallEngine
from pytest_kopt.schema.table import describe_header_drift


@dataclass(frozen=True, slots=True)
class Bench(WorkerOrders):
    """The orders of this process, and what it measures with."""

    #: Blocks on the CPU.
    cpu: WallEngine = field(default_factory=WallEngine)
    #: The least length of a block on a GPU.
    gpu_block_ms: float = BLOCK_MS
    #: What the device's host calls it.
    uuid: str = "cpu"
    #: Returns the device's state.
    read: Callable[[], Reading] = Reading
    #: This process's.
    audit_hook: AuditHook | None = None
    #: Those of torch that others than kernels replaced here.
    operators: frozenset[str] = frozenset()
    #: Entered while a case waits for its turn on the device.
    waiting: Waiting = nullcontext

    def times(self, interpreted: bool) -> bool:
        """Say whether a case is timed; one that was interpreted only where a row has to be full."""
        return self.depth is Depth.TIMES and (self.purpose.decides or not interpreted)

    @property
    def freezes(self) -> bool:
        """Whether this run is the baseline itself, or decides without any."""
        return self.purpose.decides and self.expected is None

    def frozen(self, nodeid: str) -> ExpectedCase:
        """Return what the baseline knows of a case, one of which nothing is known without it."""
        nothing = ExpectedCase(nodeid, "", (), {})
        return next((case for case in self.expected or () if case.nodeid == nodeid), nothing)

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


def hold_against_baseline(case: Case, expected: Sequence[ExpectedCase] | None) -> None:
    """Raise BadInput when the case is not the one that the baseline froze under this node id."""
    if expected is None:
        return
    frozen = next((known for known in expected if known.nodeid == case.nodeid), None)
    if frozen is None:
        fix = "undo the edit of the tests, or begin again: kopt init NEW --from OLD"
        raise case.refusal("is not in the baseline", fix=fix)
    if case.header != frozen.header:
        drift = describe_header_drift(case.header, frozen.header)
        raise case.refusal(drift, ",".join(frozen.header))
    empty = {column.name for column in case.schema.columns if column.is_backward}
    had_backward = not empty or not empty <= set(frozen.empty)
    if empty and case.backward != had_backward:
        raise case.refusal(f"backward is {case.backward} now", f"the baseline's {had_backward}")
    if case.dims != frozen.dims:
        raise case.refusal(f"dims drifted: {case.dims}", f"the baseline's {frozen.dims}")
    for name in ("limit_pct", "weight", "cache", "operating_point"):
        now, then = getattr(case, name), getattr(frozen, name)
        if now != then:
            raise case.refusal(f"{name} is {now!r} now", f"the baseline's {then!r}")
