"""Which cases the base of a pull request has: its own tests, collected in a tree of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_kopt.cases.collector import Collector
from pytest_kopt.devices.masks import interpreter_environment
from pytest_kopt.errors import BadInput
from pytest_kopt.processes.child import Child, ChildDied, collect, mover
from pytest_kopt.processes.worker_orders import WorkerOrders
from pytest_kopt.trials.pull_request.base import Base
from pytest_kopt.trials.trees import overlays
from pytest_kopt.trials.trial import Measurements


@dataclass(frozen=True, slots=True)
class Inventory:
    """Node ids of the cases, and the files that do not import, each with the reason."""

    ids: tuple[str, ...] = ()
    errors: dict[str, str] = field(default_factory=dict)


@contextmanager
def tree_of(base: Base) -> Iterator[tuple[Path, Path]]:
    """Yield the project's root and a tree of the whole base, its tests included."""
    with overlays(base.root, base.old) as versions:
        yield versions.root, versions.trees[0]


def take_inventory(config: pytest.Config, orders: WorkerOrders, base: Base) -> Inventory:
    """Collect the base's cases from the files and folders that this session is about.

    Raises BadInput when the base's tests cannot be collected at all.
    """
    with tree_of(base) as copy:
        args = _arguments(config, mover(config, *copy))
        if not args:
            return Inventory()
        child = Child(config, orders, interpreter_environment(orders.device), args, copy)
        errors: dict[str, str] = {}

        def failed(data: dict[str, object]) -> None:
            report = config.hook.pytest_report_from_serializable(config=config, data=data)
            errors[report.nodeid] = report.longreprtext.strip().splitlines()[-1]

        try:
            return Inventory(tuple(collect(child, failed)), errors)
        except ChildDied as death:
            raise BadInput(
                f"its tests cannot be collected: {death}",
                where=str(base),
                legal="a base whose tests can be collected",
            ) from None
        except BaseException:
            # Ctrl-C: it would not listen before it has collected.
            child.kill()
            raise
        finally:
            child.stop()


def removed(
    config: pytest.Config, then: Inventory, base: Base, now: Collector, measurements: Measurements
) -> list[str]:
    """Return the base's cases that are gone, and those that are skipped now and were not there.

    Nothing is said of the rest of a file where single tests were asked for.
    """
    if any("::" in arg for arg in config.args):
        return []
    skipped = [nodeid for nodeid in then.ids if nodeid in now.skipped]
    ran = set[str]()
    if skipped:
        with tree_of(base) as copy:
            (there,) = measurements.run_in([copy], skipped, check_only=True)
        # What a test only has parameters for is no sign that it came to its case.
        ran = {nodeid for nodeid, row in there.undecided.items() if not row.evidence.guessed}
    return [nodeid for nodeid in then.ids if nodeid not in now.order or nodeid in ran]


def _arguments(config: pytest.Config, moved: Callable[[str], str]) -> list[str]:
    """Return the session's files and folders that the base has.

    Without the parts after "::", since asking for a case that does not exist there would end the
    collection. Names of packages (--pyargs) are the same in the base's tree.
    """
    if config.option.pyargs:
        return list(dict.fromkeys(arg.partition("::")[0] for arg in config.args))
    here = Path(moved(str(config.invocation_params.dir)))
    paths = dict.fromkeys(here / moved(arg.partition("::")[0]) for arg in config.args)
    return [str(path) for path in paths if path.exists()]
