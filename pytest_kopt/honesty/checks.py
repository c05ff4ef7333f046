"""Every check of honesty, in one table: when it is asked.

A check is a function that yields findings, or returns nothing; its parameters are named like the
facts of its phase, as a test's are like fixtures. To add
a check, write the function in a file of its own and add its line to TABLE. KEPT and GAINED have one
check each, whose finding their caller reads.
"""

from __future__ import annotations

import importlib
import inspect
import operator
import pkgutil
from collections.abc import Iterator
from enum import Enum
from types import SimpleNamespace
from typing import Any, NamedTuple

from pytest_kopt.honesty.finding import Finding


class Phase(Enum):
    """When checks are asked, and the names of the facts that they can ask for."""

    HARNESS = "before anything runs", "before now"
    IMPORTED = "kernel code was imported", "before after"
    WATCHED = "a process that ran kernel code is asked what it saw", "guards tripwire"
    TRAINED = "in a training loop in small", "course"
    RECALLED = "before a case is timed, with fresh and with known tensors", "course"
    BLOCKS = "blocks were timed", "threads threads_now blocks asks_known"
    JUDGED = "results of timed calls are judged", "blocks floors"
    TIMED = "a case was timed", "ms nbytes flops device why told computes"
    COMPARED = "a version would be kept", "replicas"
    NEARBY = "other shapes and inputs were tried", "tried candidate incumbent gains died"
    KEPT = "before a version is kept", "slower gain"
    AUDITED = "the sources are read", "candidate incumbent"
    CLAIMED = "the notes are held against what was found", "claim found"
    GAINED = "a gain is held against what fresh tensors have of it", "inflation"
    COLLECTED = "the tests have run", "silent"

    def __init__(self, when: str, facts: str) -> None:
        self.when = when
        self.facts = tuple(facts.split())


class Check(NamedTuple):
    """A function in `pytest_kopt`, as `module:name`, that yields findings.

    It is asked `only` where this fact, or this attribute of one, is true.
    """

    phase: Phase
    function: str
    only: str = ""

    def ask(self, **facts: Any) -> Iterator[Finding]:
        """Yield what the function finds, nothing where it is not to be asked."""
        if self.only and not operator.attrgetter(self.only)(SimpleNamespace(**facts)):
            return
        # Looked up anew each time: what a kernel replaces in a module is found there.
        function = pkgutil.resolve_name(f"pytest_kopt.{self.function}")
        names = inspect.signature(function).parameters
        yield from function(*(facts[name] for name in names)) or ()


def load() -> None:
    """Import what holds the functions, before code that could change what they use."""
    for check in TABLE:
        importlib.import_module(f"pytest_kopt.{check.function.partition(':')[0]}")


def of_phase(phase: Phase) -> Iterator[Check]:
    """Yield the checks of a phase, in the table's order."""
    return (check for check in TABLE if check.phase is phase)


def ask(phase: Phase, **facts: Any) -> list[Finding]:
    """Return what all checks of a phase find; `facts` are those that the phase names."""
    return [found for check in of_phase(phase) for found in check.ask(**facts)]


TABLE = (
    Check(Phase.HARNESS, "honesty.fingerprint:edits"),
    Check(Phase.IMPORTED, "honesty.watching.state:changes"),
    Check(Phase.WATCHED, "honesty.watching.watch:patched"),
    Check(Phase.WATCHED, "honesty.watching.watch:heard"),
    Check(Phase.TRAINED, "cases.running.steps.training_check:caches"),
    Check(Phase.RECALLED, "cases.running.steps.training_check:known_tensors"),
    Check(Phase.BLOCKS, "honesty.watching.state:taken_threads"),
    Check(Phase.BLOCKS, "cases.running.spot_checks:known_content", only="asks_known"),
    Check(Phase.JUDGED, "cases.running.spot_checks:wrong_results"),
    Check(Phase.TIMED, "honesty.physics:too_fast"),
    Check(Phase.TIMED, "cases.running.timing:uncaptured", only="why"),
    Check(Phase.COMPARED, "paired.witness:hidden_time"),
    Check(Phase.NEARBY, "honesty.heldout:held_out_findings"),
    Check(Phase.NEARBY, "honesty.heldout:untried"),
    Check(Phase.NEARBY, "honesty.heldout:death", only="died"),
    Check(Phase.KEPT, "honesty.inflation:slowed"),
    Check(Phase.AUDITED, "honesty.audit:audit"),
    Check(Phase.CLAIMED, "honesty.transfer:bucket_findings"),
    Check(Phase.GAINED, "honesty.inflation:gap_finding"),
    Check(Phase.COLLECTED, "cases.collector:never_called"),
)
