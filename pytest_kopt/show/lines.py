"""Lines for pytest's terminal: coloured, and wrapped at spaces where there is a width."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pytest_kopt.show.words import printed

if TYPE_CHECKING:
    import pytest

#: A command, which somebody copies.
_COMMAND = re.compile("`[^`]*`")
#: Stands for a space in a command; `printed` leaves none in a line.
_HELD = "\0"
_HANGING = "  "
Markup = dict[str, bool]


class Line(str):
    """A line with the markup that pytest's terminal writer gives it where there are colours.

    `whole` keeps the row of a table, or of a stack, from being wrapped.
    """

    markup: Markup
    whole: bool

    def __new__(cls, text: str, *, whole: bool = False, **markup: bool) -> Line:
        line = super().__new__(cls, text)
        line.markup, line.whole = markup, whole
        return line


def write(reporter: pytest.TerminalReporter, lines: Iterable[str]) -> None:
    """Write lines, wrapped and coloured on a terminal only; none does anything to the terminal."""
    columns = columns_of(reporter)
    for line in lines:
        for row in rows(line, columns):
            reporter.write_line(row, **(line.markup if isinstance(line, Line) else {}))


def columns_of(reporter: pytest.TerminalReporter | None) -> int | None:
    """Return the width of a terminal, None for a file or a pipe: a fact is one line there."""
    if reporter is None or not reporter.isatty:
        return None
    return reporter.config.get_terminal_writer().fullwidth


def rows(line: str, columns: int | None) -> list[str]:
    """Return the rows in which a line is printed, broken at spaces but not in a `command`."""
    pieces = printed(line)
    if columns is None or (isinstance(line, Line) and line.whole):
        return pieces
    return [row for piece in pieces for row in _wrapped(piece, columns)]


def _wrapped(line: str, columns: int) -> list[str]:
    if len(line) <= columns:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    parts = textwrap.wrap(
        _COMMAND.sub(lambda command: command[0].replace(" ", _HELD), line),
        columns,
        subsequent_indent=indent + _HANGING,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [part.replace(_HELD, " ") for part in parts]
