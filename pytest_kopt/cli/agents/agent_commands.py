"""Runs a command for an agent as a user would: with progress, and with cancellation."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

from pytest_kopt.exit_codes import ExitCode

_PAUSE_SECONDS = 0.2
#: How long an interrupted session may take to put back what it changed.
_GRACE_SECONDS = 120
#: As much of the output as an agent has use for: the verdict is at its end.
_MOST = 6000


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
            process.returncode or 0, *(_text(stream.fileno()) for stream in (out, err))
        )
    if finished.code == ExitCode.USAGE:
        lines = [*finished.err.splitlines(), *finished.out.splitlines()]
        refusal = next((line for line in lines if line.startswith("ERROR: ")), "")
        raise ToolError(refusal.removeprefix("ERROR: ") or finished.tail)
    return finished


async def _follow(process: anyio.abc.Process, out: int, agent: Context) -> None:
    count = 0
    while True:
        running = process.returncode is None
        *lines, _ = _text(out).split("\n")
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


def _text(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0).decode(errors="replace")
