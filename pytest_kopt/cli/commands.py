"""How the commands are added to the parser of `kopt`."""

from __future__ import annotations

import argparse
from typing import TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_name(parser: argparse.ArgumentParser) -> None:
    """Add the campaign's name, which is inferred where none is given."""
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="the campaign; default: the branch's or the only one",
    )


def command(commands: Commands, name: str, help: str, example: str) -> argparse.ArgumentParser:
    """Add a command whose help ends with an example."""
    return commands.add_parser(
        name,
        help=help,
        description=help,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
