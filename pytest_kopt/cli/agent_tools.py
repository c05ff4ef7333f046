"""The tools of `kopt mcp`, each a command of the shell: status, round, note, verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resources import FileResource
from pydantic import Field

from pytest_kopt.bundled import PACKAGE, SKILL
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.options.project import Project
from pytest_kopt.standalone.child_session import refusal_in

_INSTRUCTIONS = (
    "Optimise a GPU kernel in rounds: one hypothesis, one change in the kernel files, one measured "
    "verdict. Read the resource kopt://skill first, then call status (without a name if you know "
    "none) and do what its `next` says; other commands run in your shell. "
    "Report the change_pct of a verdict with its interval, never a ratio of the times of two "
    "rounds. Edit kernel files with your own tools; never commit or restore them."
)

Name = Annotated[str, Field(description="the campaign")]
Notes = dict[str, Any]
#: How long an interrupted session may take to put back what it changed.
_GRACE_SECONDS = 120
#: As much of the output as an agent has use for: the verdict is at its end.
_MOST = 6000


def server() -> MCPServer:
    """Return the server, for the project around the current folder."""
    tool_server = MCPServer(
        "kopt", instructions=_INSTRUCTIONS, version=version("pytest-kopt"), log_level="WARNING"
    )
    # `round` is a function of Python's.
    for tool, name in ((status, None), (note, None), (verdict, None), (play_round, "round")):
        tool_server.add_tool(tool, name=name)
    skill = PACKAGE / SKILL / "SKILL.md"
    page = FileResource(uri="kopt://skill", name="skill", path=skill, mime_type="text/markdown")
    tool_server.add_resource(page)
    return tool_server


async def status(
    campaign: Annotated[str, Field(description="default: the branch's or the only one")] = "",
) -> dict[str, Any]:
    """Return where a campaign stands and what is next: `kopt status --json`."""
    words = ["pytest_kopt.cli", "status", *filter(None, [campaign]), "--json"]
    document: dict[str, Any] = json.loads((await run(words, Path.cwd()))[1])
    return document


async def note(campaign: Name, round: int, notes: Notes) -> str:
    """Add what is only known after a round, or plan the next one: `kopt note`."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "notes.yaml")
        file.write_text(json.dumps(notes), encoding="utf-8")
        words = ["pytest_kopt.cli", "note", campaign, str(round), str(file)]
        return (await run(words, Path.cwd()))[1]


async def play_round(
    campaign: Name,
    round: Annotated[str, Field(description="next, a number (1: the baseline), or final")] = "next",
    notes: Annotated[
        Notes | None,
        Field(description="the round's notes: summary, hypothesis, change, expected, bucket, …"),
    ] = None,
    options: Annotated[
        list[str], Field(description="more options, such as --kopt-level=full")
    ] = [],  # noqa: B006 - only read
) -> dict[str, Any]:
    """Measure and judge what the kernel files hold now: `pytest --kopt-round`. Takes minutes.

    Returns the exit code, verdict.json (null if the session decided nothing) and the end of what
    the session printed.
    """
    words = ["pytest", "--kopt-campaign", campaign, "--kopt-round", round, *options]
    with tempfile.TemporaryDirectory() as directory:
        file, written = Path(directory, "notes.yaml"), Path(directory, "verdict.json")
        words += [f"--kopt-verdict={written}"]
        if notes is not None:
            file.write_text(json.dumps(notes), encoding="utf-8")
            words += [f"--kopt-notes={file}"]
        code, output = await run(words, Project.here().campaign(campaign).root)
        judged = written.read_text(encoding="utf-8") if written.exists() else "null"
    return {"exit_code": code, "verdict": json.loads(judged), "output": output[-_MOST:]}


def verdict(campaign: Name, round: int) -> dict[str, Any]:
    """Return the verdict.json of a recorded round."""
    path = Project.here().campaign(campaign).layout.verdict(round)
    if not path.is_file():
        raise ToolError(f"round {round} of {campaign} has no verdict. Fix: call status")
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


async def run(words: Sequence[str], root: Path) -> tuple[int, str]:
    """Run a module; return its exit code and what it printed. ToolError if it refuses its input.

    Cancelling is Ctrl-C.
    """
    with tempfile.TemporaryFile("w+b") as out, tempfile.TemporaryFile("w+b") as err:
        # Our own streams are the connection with the agent.
        process = await anyio.open_process(
            [sys.executable, "-m", *words],
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=out.fileno(),
            stderr=err.fileno(),
        )
        try:
            await process.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await _ended(process)
        printed, said = (
            os.pread(stream.fileno(), os.fstat(stream.fileno()).st_size, 0).decode(errors="replace")
            for stream in (out, err)
        )
    if process.returncode == ExitCode.USAGE:
        lines = [*said.splitlines(), *printed.splitlines()]
        raise ToolError(refusal_in(lines) or f"{printed}{said}"[-_MOST:])
    return process.returncode or 0, printed


async def _ended(process: anyio.abc.Process) -> None:
    """End what still runs by SIGTERM, which a session takes for Ctrl-C, and wait for it."""
    if process.returncode is None:
        process.terminate()
        with anyio.move_on_after(_GRACE_SECONDS):
            await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()
