"""What keeps the package easy to find one's way in; `make imports` holds the order of its rooms."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest_kopt

FILES = sorted(Path(pytest_kopt.__file__).parent.rglob("*.py"))


def test_no_file_holds_several_ideas() -> None:
    long = {str(path): n for path in FILES if (n := len(path.read_text().splitlines())) > 400}
    assert not long, "split them by idea"


def test_no_folder_is_a_drawer() -> None:
    full = {str(folder): n for folder, n in Counter(f.parent for f in FILES).items() if n > 21}
    assert not full, "find the rooms in them"
