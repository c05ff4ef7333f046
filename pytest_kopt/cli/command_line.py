"""A command of `kopt`: its name and arguments, and the function that it runs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.errors import BadInput
from pytest_kopt.options.project import Project
from pytest_kopt.show.files import projections

Shown = TypeVar("Shown")
#: Adds an argument, or several, to a parser or to a group of one.
Argument = Callable[[Any], object]
#: Does what was asked for; without an exit code that is 0.
Run = Callable[[argparse.Namespace], int | None]
#: The campaign of the examples in the help.
EXAMPLE = "softmax_triton_sm90_20261121"


class CommandParser(argparse.ArgumentParser):
    """Takes a command's arguments before, between and after its options."""

    _is_intermixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        # Some versions of Python intermix by this very method.
        if self._is_intermixing or self.get_default("run") is None:
            return super().parse_known_args(args, namespace)
        self._is_intermixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_intermixing = False

    def error(self, message: str) -> NoReturn:
        """Refuse words as other input is refused, so that a document says so as well."""
        self.print_usage(sys.stderr)
        raise BadInput(message, where=self.prog)


@dataclass(frozen=True, slots=True)
class Command:
    """A command with its help, which ends with an example; one with `actions` runs one of them."""

    name: str
    help: str
    example: str
    arguments: Sequence[Argument]
    run: Run | None = None
    actions: Sequence[Command] = ()

    def add_to(self, commands: argparse._SubParsersAction[CommandParser]) -> None:
        parser = commands.add_parser(
            self.name,
            help=self.help,
            description=self.help,
            epilog=f"example:\n  {self.example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.set_defaults(no_result={})
        for add in self.arguments:
            add(parser)
        if self.actions:
            below = parser.add_subparsers(metavar="ACTION", required=True)
            for action in self.actions:
                action.add_to(below)
        else:
            parser.set_defaults(run=self.run)


def command(example: str, *arguments: Argument) -> Callable[[Run], Command]:
    """Make a function the command that its name ends with; its docstring is the help."""

    def made(run: Run) -> Command:
        name, help = run.__name__.rpartition("_")[2], " ".join(str(run.__doc__).split())
        return Command(name, help, example, arguments, run)

    return made


def argument(*names: str, **settings: Any) -> Argument:
    return lambda parser: parser.add_argument(*names, **settings)


def no_result(**keys: object) -> Argument:
    """Give a command's document these keys where there is no result."""
    return lambda parser: parser.set_defaults(no_result=keys)


def one_of(*arguments: Argument) -> Argument:
    def add(parser: argparse.ArgumentParser) -> None:
        group = parser.add_mutually_exclusive_group()
        for add_to in arguments:
            add_to(group)

    return add


NAME = argument(
    "name", nargs="?", metavar="NAME", help="the campaign; default: the branch's or the only one"
)
ROUND = argument("round", type=int, metavar="N", help="number of the round")
JSON = argument("--json", action="store_true", help="print data instead of text")


def show(
    arguments: argparse.Namespace, document: Shown, lines: Callable[[Shown], Iterable[str]]
) -> None:
    """Print a document, as text unless `--json` is given."""
    if not arguments.json:
        print("\n".join(lines(document)))
        return
    data = document.model_dump(mode="json") if isinstance(document, BaseModel) else document
    print(json.dumps(data, indent=1))


@contextmanager
def changing(name: str | None) -> Iterator[Campaign]:
    """Open a campaign and hold it for a change, which its files then show."""
    campaign = Project.here().campaign(name)
    with campaign.locked():
        yield campaign
        projections.refresh(campaign)
