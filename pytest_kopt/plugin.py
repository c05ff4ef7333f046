"""The pytest plugin: hooks that register and delegate. Importing it costs no heavy import."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_kopt.options.declare import MARKERS, add_options

if TYPE_CHECKING:
    from pytest_kopt.cases.fixture import Kopt


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    from pytest_kopt.session.assemble import assemble

    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    assemble(config)


@pytest.fixture
def kopt(request: pytest.FixtureRequest) -> Kopt:
    """Check a kernel against its reference, time it, and emit its row; see `Kopt.__call__`."""
    from pytest_kopt.session.worker import worker_of

    return worker_of(request.config).fixture(request)
