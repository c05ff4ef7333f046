"""Which test files use kopt, told from their source before they are imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_kopt.session.usage import will_use_kopt

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
    "@pytest.mark.parametrize('k, kopt', [(1, 2)])\ndef test_x(k, kopt): ...",
    "@pytest.fixture\ndef kopt(): return 2\ndef test_x(kopt): ...",
)


@pytest.mark.parametrize("source", USING)
def test_a_file_that_uses_kopt_is_seen(source: str, tmp_path: Path) -> None:
    assert will_use_kopt(written(tmp_path, source))


@pytest.mark.parametrize("source", OTHERS)
def test_letters_alone_are_no_use(source: str, tmp_path: Path) -> None:
    assert not will_use_kopt(written(tmp_path, source))


@pytest.mark.parametrize("argument", ["", "kopt"])
def test_a_fixture_of_a_conftest_file_with_the_name_is_another(
    argument: str, tmp_path: Path
) -> None:
    """Unless it takes ours."""
    conftest = f"import pytest\n@pytest.fixture\ndef kopt({argument}): ..."
    (tmp_path / "conftest.py").write_text(conftest)
    assert will_use_kopt(written(tmp_path / "below", "def test_x(kopt): ...")) is bool(argument)


def written(folder: Path, source: str) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / "test_x.py"
    file.write_text(source)
    return file
