"""Cases refused at collection: no CSV can hold them, nothing can judge them, no GPU runs them.

A process that runs cases reports it as a failure of its collection. That report reaches the
controller from a child, in a plain run from a worker of xdist.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice

import pytest

from pytest_kopt.cases.benchmark import FIXTURE, undecidable
from pytest_kopt.cases.fixture import marked_schema
from pytest_kopt.cases.order import WorkerOrders
from pytest_kopt.errors import BadInput
from pytest_kopt.schema.columns import Schema, resolve
from pytest_kopt.schema.metrics import primary_names

#: The section of a report that marks it as a refusal.
_REFUSED = "kopt refused"


@contextmanager
def refusing(config: pytest.Config) -> Iterator[None]:
    """Report a BadInput as a failure of the collection, with which the session ends."""
    try:
        yield
    except BadInput as error:
        report = pytest.CollectReport("", "failed", str(error), [], [(_REFUSED, "")])
        config.hook.pytest_collectreport(report=report)


def check_cases(cases: Sequence[pytest.Item], orders: WorkerOrders) -> None:
    """Raise BadInput where one CSV cannot hold these cases, or nothing can judge them."""
    if orders.decides:
        _have_references(cases)
    if orders.has_one_schema and orders.expected is None:
        _have_one_schema(cases)
    for _, schema in islice(_schemas(cases) if orders.metric else (), 1):
        primary_names(orders.metric, [column.name for column in schema.columns])


def refused(report: pytest.CollectReport) -> str:
    """Return why the cases are refused, "" for any other report."""
    is_ours = any(name == _REFUSED for name, _ in report.sections)
    return report.longreprtext if is_ours else ""


def _have_references(cases: Sequence[pytest.Item]) -> None:
    for test in cases:
        fixtures = getattr(test, "fixturenames", ())
        if FIXTURE in fixtures and "kopt" not in fixtures:
            raise undecidable(test)


def _schemas(cases: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, Schema]]:
    """Yield cases with their schema; a marker that cannot be read is refused when its case runs."""
    for test in cases:
        with suppress(BadInput):
            yield test, resolve(marked_schema(test), test.nodeid)


def _have_one_schema(cases: Sequence[pytest.Item]) -> None:
    schemas = [*_schemas(cases)]
    for test, another in schemas[1:]:
        first, schema = schemas[0]
        if another != schema:
            raise BadInput(
                f"cases of one CSV have one schema, but {first.nodeid} has {schema.name!r}, "
                f"{test.nodeid} has {another.name!r}",
                fix="name the tests of one function; without a campaign --summary-csv=DIR/ writes "
                "one CSV for each",
            )
