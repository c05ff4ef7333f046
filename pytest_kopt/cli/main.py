"""Entry of `kopt`: which command, and bad input as one message with exit code 4."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import version
from itertools import chain
from typing import TextIO

import pytest

from pytest_kopt.cli.campaigns import (
    MEMORY,
    TIPS,
    abandon,
    advise,
    discard,
    note,
    remove,
    restore,
    retry,
    status,
    stop,
)
from pytest_kopt.cli.command_line import CommandParser
from pytest_kopt.cli.demo import demo
from pytest_kopt.cli.init import init
from pytest_kopt.cli.report import decide, export, mcp, report
from pytest_kopt.cli.standalone import bisect, calibrate, compare, judge, record, time
from pytest_kopt.errors import REPORT, BadInput, NoVerdict, storage_told
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.libraries import own_fault
from pytest_kopt.session.interruption import as_ctrl_c
from pytest_kopt.show.words import visible

_PACKAGE = "pytest-kopt"
#: The commands, in the order of the help.
_PURPOSES = {
    "without a campaign": (compare, time, judge, record, bisect, calibrate, demo),
    "start and follow a campaign": (init, status, advise, note, TIPS, MEMORY),
    "change its course": (decide, restore, retry, discard, stop, abandon, remove),
    "show it to others": (report, export, mcp),
}
_COMMANDS = tuple(chain.from_iterable(_PURPOSES.values()))
#: Commands whose words after "--" are another program's.
_PASS_WORDS_ON = (["bisect"], ["compare"], ["time"], ["judge"], ["record"])


class _Visible(io.TextIOBase):
    """A stream that shows escape sequences; its command goes on unread if its reader is gone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        if isinstance(stream, io.TextIOWrapper):
            # A locale's encoding may lack the signs of a verdict, and writing one would raise.
            stream.reconfigure(errors="replace")

    def write(self, text: str) -> int:
        with self._read_or_not():
            self._stream.write(visible(text))
        return len(text)

    def flush(self) -> None:
        with self._read_or_not():
            self._stream.flush()

    @contextmanager
    def _read_or_not(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            # What the stream still holds is flushed when Python ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def fileno(self) -> int:
        return self._stream.fileno()


def main(argv: Sequence[str] | None = None) -> int:
    parser = CommandParser(
        prog="kopt",
        description="\n".join(_overview()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"pytest-kopt {version(_PACKAGE)}")
    commands = parser.add_subparsers(metavar="COMMAND")
    for command in _COMMANDS:
        command.add_to(commands)
    with redirect_stdout(_Visible(sys.stdout)):
        code = _run(parser, commands.choices, argv)
        sys.stdout.flush()
    return code


def _overview() -> Iterator[str]:
    """Yield the head of the help: the commands by purpose."""
    yield "Kernel optimisation campaigns: everything around `pytest --kopt-round`."
    yield ""
    for purpose, members in _PURPOSES.items():
        yield f"{purpose}: {', '.join(command.name for command in members)}"


def _run(
    parser: CommandParser, commands: Mapping[str, CommandParser], argv: Sequence[str] | None
) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    # Argparse would take another program's arguments for ours, "--" or not.
    passes = words[:1] in _PASS_WORDS_ON and "--" in words
    ours = words[: words.index("--")] if passes else words
    try:
        arguments = parser.parse_args(ours, argparse.Namespace(words=words[len(ours) + 1 :]))
    except SystemExit:  # the help, or the version
        return 0
    except BadInput as error:
        named = commands.get(next(iter(ours), ""), parser)
        asked = argparse.Namespace(
            json="--json" in ours or named.get_default("json"),
            no_result=named.get_default("no_result") or {},
        )
        return _without_result(asked, ExitCode.USAGE, "ERROR: ", str(error))
    if "run" not in arguments:
        parser.print_help()
        return 0
    with as_ctrl_c():
        try:
            with storage_told():
                return int(arguments.run(arguments) or 0)
        except NoVerdict as error:
            return _without_result(arguments, error.exit_code, "ERROR: ", str(error))
        except Exception as error:
            if not (fault := own_fault(error)):
                raise
            traceback.print_exc()
            reason = f"{fault}. Fix: {REPORT}"
            return _without_result(arguments, ExitCode.USAGE, "ERROR: ", reason)
        except KeyboardInterrupt:
            return _without_result(arguments, pytest.ExitCode.INTERRUPTED, "", "interrupted")


def _without_result(arguments: argparse.Namespace, code: int, before: str, reason: str) -> int:
    """Print why a command has no result, as a document too if asked; return the code."""
    print(f"{before}{visible(reason)}", file=sys.stderr)
    if getattr(arguments, "json", False):
        # Who reads documents reads no other stream.
        print(json.dumps({"exit_code": int(code), "reason": reason, **arguments.no_result}))
    return int(code)
