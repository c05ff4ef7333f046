"""A changed file that a kernel leans on without being made of it is named."""

from __future__ import annotations

import pytest

from pytest_kopt.honesty.audit import undeclared_dependencies

FILES = {
    "src/ops/__init__.py": b"",
    "src/ops/kernel.py": b"from . import tiles\nfrom ops.deep import table\nimport numpy\n",
    "src/ops/tiles.py": b"def f():\n    import far.away\n",
    "src/ops/deep.py": b"from .deeper import table\n",
    "src/ops/deeper.py": b"table = 1\n",
    "far/__init__.py": b"",
    "far/away.py": b"broken(\n",
    "src/ops/unrelated.py": b"import ops.kernel\n",
}


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ("src/ops/tiles.py", "src/ops/kernel.py:1"),
        ("src/ops/deep.py", "src/ops/kernel.py:2"),
        ("src/ops/deeper.py", "src/ops/deep.py:1"),
        ("far/away.py", "src/ops/tiles.py:2"),
    ],
)
def test_names_the_file_and_who_imports_it(changed: str, where: str) -> None:
    (finding,) = undeclared_dependencies(FILES, ["src/ops/kernel.py"], [changed])
    assert finding.check == "undeclared-dependency"
    assert not finding.rejects
    assert finding.where == where
    assert changed in finding.message


@pytest.mark.parametrize("changed", ["src/ops/unrelated.py", "src/ops/kernel.py", "README.md"])
def test_says_nothing_of_what_the_kernel_does_not_import_or_is_made_of(changed: str) -> None:
    assert undeclared_dependencies(FILES, ["src/ops/kernel.py"], [changed]) == []


def test_says_nothing_when_nothing_changed() -> None:
    assert undeclared_dependencies(FILES, ["src/ops/kernel.py"], []) == []
