"""Commands of the manifest: words without a shell, judged by their exit status."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from pytest_kopt.errors import BadInput

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """A finished command; `output` holds the end of stdout and stderr together."""

    command: str
    returncode: int
    output: str

    @property
    def failure(self) -> str:
        """How it failed and what it printed, "" where it did not."""
        how = f"`{self.command}` ended with status {self.returncode}\n{self.output}"
        return how.rstrip() if self.returncode else ""


def split(command: str) -> tuple[dict[str, str], list[str]]:
    """Return the leading NAME=value words and the command's, as shlex splits; or BadInput."""
    if "\0" in command:
        raise BadInput(f"{command!r} holds NUL", where="command")
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise BadInput(f"{command!r} cannot be split: {error}", where="command") from None
    environment = {}
    while words and (assignment := _ASSIGNMENT.fullmatch(words[0])):
        environment[assignment[1]] = assignment[2]
        words.pop(0)
    if not words:
        what = f"{command!r} names no program"
        raise BadInput(what, where="command", legal="[NAME=value] PROGRAM …")
    return environment, words
