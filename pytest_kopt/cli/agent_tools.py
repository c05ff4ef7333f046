"""The tools of `kopt mcp`: status, round, note, verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resources import FileResource
from pydantic import BaseModel, Field

from pytest_kopt.bundled import bundled
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.decide.verdict import Verdict
from pytest_kopt.errors import BadInput
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
AnyName = Annotated[str, Field(description="the campaign; default: the branch's or the only one")]
_PAUSE_SECONDS = 0.2
#: How long an interrupted session may take to put back what it changed.
_GRACE_SECONDS = 120
#: As much of the output as an agent has use for: the verdict is at its end.
_MOST = 6000


class Done(BaseModel):
    """A command that has no document of its own."""

    exit_code: int = Field(description="the exit code of the command, as in the skill")
    output: str = Field(description="the end of what the command printed")


class RoundResult(Done):
    """A session that judges: its exit code (as in the skill), verdict.json, and its last words."""

    verdict: Verdict | None = Field(description="verdict.json; null if the session decided nothing")


def server() -> MCPServer:
    """Return the server, for the project around the current folder."""
    tool_server = MCPServer(
        "kopt", instructions=_INSTRUCTIONS, version=version("pytest-kopt"), log_level="WARNING"
    )
    for tool in (status, note, verdict):
        tool_server.add_tool(tool)
    # `round` is a function of Python's.
    tool_server.add_tool(play_round, name="round")
    skill = bundled("conftest_templates") / "SKILL.md"
    page = FileResource(uri="kopt://skill", name="skill", path=skill, mime_type="text/markdown")
    tool_server.add_resource(page)
    return tool_server


async def status(campaign: AnyName = "") -> dict[str, Any]:
    """Return where a campaign stands and what is next: `kopt status --json`."""
    words = ["pytest_kopt.cli", "status", *filter(None, [campaign]), "--json"]
    finished = await run(words, Path.cwd())
    if finished.code:
        raise ToolError(finished.tail)
    document: dict[str, Any] = json.loads(finished.out)
    return document


async def note(campaign: Name, round: int, notes: dict[str, Any]) -> Done:
    """Add what is only known after a round, or plan the next one: `kopt note`."""
    with _written(notes) as file:
        words = ["pytest_kopt.cli", "note", campaign, str(round), str(file)]
        finished = await run(words, Path.cwd())
    return Done(exit_code=finished.code, output=finished.tail)


async def play_round(
    campaign: Name,
    context: Context,
    round: Annotated[str, Field(description="next, a number (1: the baseline), or final")] = "next",
    notes: Annotated[
        dict[str, Any] | None,
        Field(description="the round's notes: summary, hypothesis, change, expected, bucket, …"),
    ] = None,
    options: Annotated[
        list[str], Field(description="more options, such as --kopt-level=full")
    ] = [],  # noqa: B006 - only read
) -> RoundResult:
    """Measure and judge what the kernel files hold now: `pytest --kopt-round`. Takes minutes."""
    words = ["pytest", "--kopt-campaign", campaign, "--kopt-round", round, *options]
    with _written(notes) as file:
        written = file.with_name("verdict.json")
        words += [f"--kopt-verdict={written}"]
        words += [] if notes is None else [f"--kopt-notes={file}"]
        finished = await run(words, _campaign(campaign).root, context)
        verdict = (
            Verdict.model_validate_json(written.read_text(encoding="utf-8"))
            if written.exists()
            else None
        )
    return RoundResult(exit_code=finished.code, verdict=verdict, output=finished.tail)


def verdict(campaign: Name, round: int) -> Verdict:
    """Return the verdict.json of a recorded round."""
    path = _campaign(campaign).layout.verdict(round)
    if not path.is_file():
        raise ToolError(f"round {round} of {campaign} has no verdict. Fix: call status")
    return Verdict.model_validate_json(path.read_text(encoding="utf-8"), extra="ignore")


@contextmanager
def _written(notes: dict[str, Any] | None) -> Iterator[Path]:
    """Yield a file of notes in a folder that goes with it; a refusal of them calls them so."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "notes.yaml")
        file.write_text(json.dumps(notes), encoding="utf-8")
        try:
            yield file
        except ToolError as error:
            raise ToolError(str(error).replace(str(file), "notes")) from None


def _campaign(name: str) -> Campaign:
    try:
        return Project.here().campaign(name)
    except BadInput as error:
        raise ToolError(str(error)) from None


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that has ended: exit code, what it printed, what it complained about."""

    code: int
    out: str
    err: str

    @property
    def tail(self) -> str:
        """The end of both."""
        return (self.out + self.err)[-_MOST:]


async def run(words: Sequence[str], root: Path, agent: Context | None = None) -> Finished:
    """Run a module, its lines as progress for an agent; ToolError if it refuses its input.

    Cancelling is Ctrl-C.
    """
    with tempfile.TemporaryFile("w+b") as out, tempfile.TemporaryFile("w+b") as err:
        process = await anyio.open_process(
            [sys.executable, "-m", *words],
            cwd=root,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            # Our own are the connection with the agent.
            stdin=subprocess.DEVNULL,
            stdout=out.fileno(),
            stderr=err.fileno(),
        )
        try:
            await (_follow(process, out.fileno(), agent) if agent else process.wait())
        finally:
            with anyio.CancelScope(shield=True):
                await _ended(process)
        finished = Finished(
            process.returncode or 0, *(_printed(stream.fileno()) for stream in (out, err))
        )
    if finished.code == ExitCode.USAGE:
        lines = [*finished.err.splitlines(), *finished.out.splitlines()]
        raise ToolError(refusal_in(lines) or finished.tail)
    return finished


async def _follow(process: anyio.abc.Process, out: int, agent: Context) -> None:
    count = 0
    while True:
        running = process.returncode is None
        *lines, _ = _printed(out).split("\n")
        for number, line in enumerate(lines[count:], start=count + 1):
            if line.strip():
                await agent.report_progress(number, None, line.strip())
        count = len(lines)
        if not running:
            return
        await anyio.sleep(_PAUSE_SECONDS)


async def _ended(process: anyio.abc.Process) -> None:
    """End what still runs by SIGTERM, which a session takes for Ctrl-C, and wait for it."""
    if process.returncode is None:
        process.terminate()
        with anyio.move_on_after(_GRACE_SECONDS):
            await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()


def _printed(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0).decode(errors="replace")
