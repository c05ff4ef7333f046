"""Which test files use kopt, told from their source before they are imported."""

from __future__ import annotations

import pytest

from pytest_kopt.session.usage import mentions_kopt

USING = (
    "@pytest.mark.kopt(schema='memory')\ndef test_x(): ...",
    "pytestmark = mark.kopt",
    "def test_x(kopt): ...",
    "@pytest.mark.usefixtures('kopt')\ndef test_x(): ...",
    "def test_x(request): request.getfixturevalue('kopt')",
    "from pytest_kopt import snr",
    "import pytest_kopt.numerics",
)
OTHERS = (
    "linkopts = ['-lm']",
    "# as kopt does\ndef test_x(): ...",
    "def test_x(): assert parse('kopt') and LINKOPTS",
    "from build import linkopts as kopts",
    "kopt = 1 +",
)


@pytest.mark.parametrize("source", USING)
def test_a_file_that_uses_kopt_is_seen(source: str) -> None:
    assert mentions_kopt(source.encode())


@pytest.mark.parametrize("source", OTHERS)
def test_letters_alone_are_no_use(source: str) -> None:
    assert not mentions_kopt(source.encode())
