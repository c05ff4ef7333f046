"""What keeps the package easy to find one's way in; `make imports` holds the order of its rooms."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest_kopt

ROOT = Path(__file__).parents[1]
PACKAGE = Path(pytest_kopt.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))


def test_no_file_holds_several_ideas() -> None:
    long = {str(path): n for path in FILES if (n := len(path.read_text().splitlines())) > 400}
    assert not long, "split them by idea"


def test_no_folder_is_a_drawer() -> None:
    full = {str(folder): n for folder, n in Counter(f.parent for f in FILES).items() if n > 21}
    assert not full, "find the rooms in them"


def test_the_ways_through_the_code_lead_to_files() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:\w+/)+\w+\.py)`", page)
    lost = [name for name in named if not any((at / name).exists() for at in (PACKAGE, ROOT))]
    assert len(named) > 40 and not lost
