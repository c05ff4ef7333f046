"""Which cases the base of a pull request has: its own tests, collected in a tree of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_kopt.errors import BadInput
from pytest_kopt.processes.child import Child, ChildDied, collect, mover
from pytest_kopt.processes.worker_orders import Brief
from pytest_kopt.trials.base import Base
from pytest_kopt.trials.trees import overlays


@dataclass(frozen=True, slots=True)
class Inventory:
    """Node ids of the cases, and the files that do not import, each with the reason."""

    ids: tuple[str, ...] = ()
    errors: dict[str, str] = field(default_factory=dict)


def take_inventory(config: pytest.Config, brief: Brief, base: Base) -> Inventory:
    """Collect the base's cases from the files and folders that this session is about.

    Raises BadInput when the base's tests cannot be collected at all.
    """
    present = {path: content for path, content in base.old.items() if content is not None}
    absent = [path for path, content in base.old.items() if content is None]
    with overlays(base.root, present, absent) as versions:
        tree = versions.trees[0]
        args = _arguments(config, mover(config, base.root, tree))
        if not args:
            return Inventory()
        child = Child(config, brief, {}, args, (base.root, tree))
        errors: dict[str, str] = {}

        def failed(data: dict[str, object]) -> None:
            report = config.hook.pytest_report_from_serializable(config=config, data=data)
            errors[report.nodeid] = report.longreprtext.strip().splitlines()[-1]

        try:
            return Inventory(tuple(collect(child, failed)), errors)
        except ChildDied as death:
            raise BadInput(
                f"its tests cannot be collected: {death}",
                where=f"--kopt-base {base.ref} ({base.commit[:12]})",
                legal="a base whose tests can be collected",
            ) from None
        finally:
            child.stop()


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
