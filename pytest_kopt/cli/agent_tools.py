"""The tools and resources of `kopt mcp`: each runs a command and returns what it writes."""

from __future__ import annotations

import json
import os
import shlex
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
    "none) and do what its `next` says. A command there, such as `kopt stop`, is the tool of that "
    "name. Report the change_pct of a verdict with its interval, never a ratio of the times of two "
    "rounds. Edit kernel files with your own tools; never commit or restore them."
)

Name = Annotated[str, Field(description="the campaign")]
AnyName = Annotated[str, Field(description="the campaign; default: the branch's or the only one")]
Options = Annotated[list[str], Field(description="more options, such as --kopt-level=full")]
Notes = Annotated[
    dict[str, Any] | None,
    Field(description="the round's notes: summary, hypothesis, change, expected, bucket, …"),
]
_PAUSE_SECONDS = 0.2
#: How long an interrupted session may take to put back what it changed.
_GRACE_SECONDS = 120
#: As much of the output as an agent has use for: the verdict is at its end.
_MOST = 6000


class Done(BaseModel):
    """A command that has no document of its own."""

    exit_code: int = Field(description="the exit code of the command, as in the skill")
    output: str = Field(description="the end of what the command printed")


class SessionVerdict(Done):
    """A session that judges: its exit code (as in the skill), verdict.json, and its last words."""

    verdict: Verdict | None = Field(description="verdict.json; null if the session decided nothing")


class Recorded(BaseModel):
    """A recorded round: verdict.json, summary.md, and the measurements behind it."""

    verdict: Verdict
    summary: str
    rows_csv: str = Field(
        description="a row for each case: the candidate alone; the verdict has the change"
    )
    pairs_csv: str = Field(description="one line for each pair of timed blocks, empty if stored")


def server() -> MCPServer:
    """Return the server, for the project around the current folder."""
    tool_server = MCPServer(
        "kopt", instructions=_INSTRUCTIONS, version=version("pytest-kopt"), log_level="WARNING"
    )
    tools = (status, advise, init, note, verdict, profile, tips, report, discard, stop)
    for tool in (*tools, play_round, race, check, sanitize, gate):
        # `round` is a function of Python's.
        tool_server.add_tool(tool, name="round" if tool is play_round else None)
    pages = {"kopt://skill": bundled("conftest_templates") / "SKILL.md"}
    knowledge = bundled("knowledge")
    for page in sorted(knowledge.rglob("*.md")):
        pages[f"kopt://knowledge/{page.relative_to(knowledge).as_posix()}"] = page
    for uri, path in pages.items():
        name = uri.removeprefix("kopt://").removeprefix("knowledge/")
        tool_server.add_resource(
            FileResource(uri=uri, name=name, path=path, mime_type="text/markdown")
        )
    return tool_server


async def status(campaign: AnyName = "") -> dict[str, Any]:
    """Return where a campaign stands and what is next: `kopt status --json`."""
    return await _document("status", *filter(None, [campaign]))


async def advise(campaign: Name) -> dict[str, Any]:
    """Return what to read and try: `kopt advise --json`; pages are kopt://knowledge/ resources."""
    return await _document("advise", campaign)


async def init(
    campaign: Name,
    op: str,
    kernel: list[str],
    backend: str,
    gpu: str,
    tests: str = "",
    options: Annotated[
        list[str], Field(description="more options of `kopt init`, such as --max-iterations=20")
    ] = [],  # noqa: B006 - only read
) -> Done:
    """Set a campaign up: `kopt init`. The baseline is round 1."""
    words = ["init", campaign, "--op", op, "--backend", backend, "--gpu", gpu]
    words += [word for path in kernel for word in ("--kernel", path)]
    words += ["--tests", tests] if tests else []
    return await _done(*words, *options)


async def note(campaign: Name, round: int, notes: dict[str, Any]) -> Done:
    """Add what is only known after a round, or plan the next one: `kopt note`."""
    with _written(notes) as file:
        return await _done("note", campaign, str(round), str(file))


async def play_round(
    campaign: Name,
    context: Context,
    round: Annotated[str, Field(description="next, a number (1: the baseline), or final")] = "next",
    notes: Notes = None,
    options: Options = [],  # noqa: B006 - only read
) -> SessionVerdict:
    """Measure and judge what the kernel files hold now: `pytest --kopt-round`. Takes minutes."""
    words = ["--kopt-campaign", campaign, "--kopt-round", round, *options]
    return await _judged(_campaign(campaign).root, words, notes, context)


async def race(
    campaign: Name,
    candidates: Annotated[
        list[str], Field(description="folders with kernel files at their paths, or git refs")
    ],
    context: Context,
    round: str = "next",
    notes: Notes = None,
    options: Options = [],  # noqa: B006 - only read
) -> SessionVerdict:
    """Have several candidates race in one round: `pytest --kopt-candidates`."""
    raced = [f"--kopt-candidates={candidate}" for candidate in candidates]
    return await play_round(campaign, context, round, notes, [*raced, *options])


async def check(campaign: Name, context: Context) -> Done:
    """Check what the kernel files hold now, in seconds, without a round: `--kopt-check-only`."""
    return await _tested(campaign, "--kopt-check-only", context)


async def sanitize(
    campaign: Name,
    context: Context,
    tools: Annotated[str, Field(description="of compute-sanitizer, comma-separated")] = (
        "memcheck,racecheck,initcheck"
    ),
) -> Done:
    """Look for bad accesses, races and unwritten memory in what the files hold: --kopt-sanitize."""
    return await _tested(campaign, f"--kopt-sanitize={tools}", context)


async def gate(
    campaign: Name,
    base: Annotated[str, Field(description="a git ref")],
    context: Context,
    options: Options = [],  # noqa: B006 - only read
) -> SessionVerdict:
    """Compare the tree with its merge base with a git ref, on the campaign's tests: --kopt-base."""
    opened = _campaign(campaign)
    words = [f"--kopt-base={base}", *shlex.split(opened.manifest.tests), *options]
    return await _judged(opened.root, words, None, context)


def verdict(campaign: Name, round: int) -> Recorded:
    """Return a recorded round's verdict.json, summary and measurements."""
    layout = _campaign(campaign).layout
    artifacts = layout.artifacts(round)
    if not layout.verdict(round).is_file():
        raise ToolError(f"round {round} of {campaign} has no verdict. Fix: call status")
    return Recorded(
        verdict=Verdict.model_validate_json(layout.verdict(round).read_text(encoding="utf-8"), extra="ignore"),
        summary=_text(layout.summary(round)),
        rows_csv=_text(artifacts / "benchmark.csv"),
        pairs_csv=_text(artifacts / "pairs.csv"),
    )


def profile(campaign: Name, round: int) -> dict[str, Any]:
    """Return the profiles of a round that was measured with the option --kopt-profile."""
    files = sorted((_campaign(campaign).layout.profiles / f"round-{round}").glob("*.json"))
    if not files:
        raise ToolError(
            f"round {round} was not profiled. Fix: call round with options ['--kopt-profile']"
        )
    document: dict[str, Any] = json.loads(files[-1].read_text(encoding="utf-8"))
    return document


async def tips(campaign: Name) -> Done:
    """Return what campaigns on the same GPU, op and backend learned: `kopt tips show`."""
    return await _done("tips", "show", campaign)


async def report(campaign: Name) -> Done:
    """Write the campaign's HTML report and return its path: `kopt report`."""
    return await _done("report", campaign)


async def discard(campaign: Name) -> Done:
    """End the open round: it is rolled back, and its version is kept: `kopt discard`."""
    return await _done("discard", campaign)


async def stop(campaign: Name) -> Done:
    """End the campaign, only if a person asked for that: `kopt stop`."""
    return await _done("stop", campaign)


async def _done(*words: str) -> Done:
    finished = await run(["pytest_kopt.cli", *words], Path.cwd())
    return Done(exit_code=finished.code, output=finished.tail)


async def _tested(campaign: str, option: str, context: Context) -> Done:
    """Run the campaign's tests, without a verdict."""
    opened = _campaign(campaign)
    words = ["pytest", option, *shlex.split(opened.manifest.tests)]
    finished = await run(words, opened.root, context)
    return Done(exit_code=finished.code, output=finished.tail)


async def _document(*words: str) -> dict[str, Any]:
    finished = await run(["pytest_kopt.cli", *words, "--json"], Path.cwd())
    if finished.code:
        raise ToolError(finished.tail)
    document: dict[str, Any] = json.loads(finished.out)
    return document


async def _judged(
    root: Path, words: Sequence[str], notes: dict[str, Any] | None, context: Context
) -> SessionVerdict:
    with _written(notes) as file:
        written = file.with_name("verdict.json")
        words = ["pytest", *words, f"--kopt-verdict={written}"]
        words += [] if notes is None else [f"--kopt-notes={file}"]
        finished = await run(words, root, context)
        verdict = (
            Verdict.model_validate_json(written.read_text(encoding="utf-8"))
            if written.exists()
            else None
        )
    return SessionVerdict(exit_code=finished.code, verdict=verdict, output=finished.tail)


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


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


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
