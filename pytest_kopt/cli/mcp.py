"""`kopt mcp`: the commands as tools for agents, over stdin and stdout."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout

from pytest_kopt.cli.command_line import command
from pytest_kopt.errors import BadInput


@command("claude mcp add kopt -- kopt mcp")
def mcp(_: argparse.Namespace) -> None:
    """Serve this project's campaigns to an agent: Model Context Protocol over stdin and stdout."""
    try:
        from pytest_kopt.cli.agent_tools import server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        raise BadInput(
            "the MCP SDK is not installed", where="kopt mcp", fix="pip install 'pytest-kopt[mcp]'"
        ) from None
    # The protocol's own stream, not the one that makes text safe to show.
    with redirect_stdout(sys.__stdout__):
        server().run("stdio")
