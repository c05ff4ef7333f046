"""What a process that runs kernel code watches in itself, from before the first import.

It holds what was remembered then, hears what happens, and tells at every look what is wrong. What
it has told stays told: a patch made at import concerns every case that runs afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.watching.audit_hook import Bounds, Tripwire
from pytest_kopt.honesty.watching.guards import Guards
from pytest_kopt.honesty.watching.state import changes, look

#: Everything that measures; imported before kernel code, so that it binds what is genuine.
_MEASURING = (
    *("pytest_kopt.cases.running.runner", "pytest_kopt.cases.running.arms"),
    "pytest_kopt.cases.fixture",
)


class Watch:
    """Guards, tripwire and state of one process."""

    def __init__(self, guards: Guards, tripwire: Tripwire) -> None:
        self._guards = guards
        self._tripwire = tripwire
        self._told: dict[str, Finding] = {}

    @classmethod
    def start(cls, root: Path, bounds: Bounds | None = None) -> Watch:
        """Import what measures, torch included, remember all of it and begin to listen."""
        tripwire = Tripwire(root, bounds)
        tripwire.install()
        return cls(Guards.take(_MEASURING), tripwire)

    @contextmanager
    def importing(self, device: str = "cpu") -> Iterator[None]:
        """Watch over an import."""
        before = look(device)
        try:
            yield
        finally:
            self._tell(changes(before, look(device)))

    def guard(self, whose: str, modules: Iterable[ModuleType]) -> None:
        """Watch over another version's modules from now on."""
        self._guards.guard(whose, modules)

    def findings(self) -> list[Finding]:
        """Return everything that is wrong, or was, as far as this process can tell."""
        self._guards.extend()
        self._tell([*self._guards.findings(), *self._tripwire.findings()])
        return list(self._told.values())

    @property
    def opened(self) -> Mapping[str, set[str]]:
        """The files that were opened by now, each with the sources that had them opened."""
        return self._tripwire.opened

    @property
    def is_confined(self) -> bool:
        """Whether the system refuses this process what is beyond its bounds."""
        return self._tripwire.bounds is not None

    def _tell(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self._told.setdefault(finding.check, finding)
