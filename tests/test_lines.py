"""Lines for pytest's terminal: where they are wrapped, and where they stay whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_kopt.show.lines import Line, rows
from tests.builders import few_examples

words = st.lists(st.text("abc%[]", min_size=1, max_size=30), min_size=1, max_size=30)


@few_examples
@given(words, st.integers(0, 4))
def test_a_line_is_broken_at_spaces_only(said: list[str], indent: int) -> None:
    line = " " * indent + " ".join(said)
    first, *others = rows(line, 80)
    assert max(map(len, (first, *others))) <= 80
    assert all(row.startswith(" " * indent + "  ") for row in others)
    assert " ".join([first, *(row.strip() for row in others)]) == line


def test_a_fact_is_one_line_where_there_is_no_width() -> None:
    assert rows("a fact " * 40, None) == ["a fact " * 40]


def test_a_command_and_the_row_of_a_table_stay_whole() -> None:
    command = f"`kopt restore {'a_long_name ' * 9}3`"
    assert rows(f"restored: kernels/k.py ({command} brings it back)", 80) == [
        "restored: kernels/k.py",
        f"  ({command}",
        "  brings it back)",
    ]
    row = Line("a cell  " * 20, whole=True)
    assert rows(row, 80) == [row]
