"""`kopt mcp` as an agent meets it: the SDK's client over stdin and stdout."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.cli.demo import _KERNEL, STEPS, _make_project, source

from .. import nursery
from ..waiting import HANG
from .project import CAMPAIGN, KERNEL, Project
from .sources import doubled_kernel
from .test_two_at_once import FASTER, WAITS

anyio = pytest.importorskip("anyio")
# Every worker collects this file, one starts a client: the SDK takes seconds to import.
if find_spec("mcp") is None:
    pytest.skip("the MCP SDK is not installed", allow_module_level=True)

TOOLS = {"status", "note", "round", "verdict"}
DEMO = "rmsnorm_torch_cpu_demo"


@asynccontextmanager
async def client(project: Project, python: str = sys.executable) -> AsyncIterator[Any]:
    """Yield a client of a server that was started in a project and runs commands with `python`."""
    import mcp

    start = f"import sys; sys.executable = {python!r}; from pytest_kopt.cli.main import main"
    server = mcp.StdioServerParameters(
        command=sys.executable,
        args=["-c", f"{start}; sys.exit(main(['mcp']))"],
        cwd=project.root,
        env=project.environment(),
    )
    async with mcp.Client(server) as found:
        yield found


@pytest.fixture
def forks(tmp_path: Path) -> str:
    """A program that stands in for Python; it hands its signals on."""
    python = tmp_path / "python"
    python.write_text(nursery.tool())
    python.chmod(0o755)
    return str(python)


async def called(agent: Any, tool: str, **arguments: Any) -> dict[str, Any]:
    """Return the structured result of a tool that has to succeed."""
    done = await agent.call_tool(tool, arguments)
    assert not done.is_error, done.content
    assert isinstance(done.structured_content, dict)
    return done.structured_content


async def refused(agent: Any, tool: str, **arguments: Any) -> str:
    """Return the message of a tool that has to fail."""
    done = await agent.call_tool(tool, arguments)
    assert done.is_error, done
    (said,) = done.content
    assert isinstance(said.text, str)
    return said.text


def test_an_agent_asks_and_cancels_a_round(started: Project, forks: str) -> None:
    async def play() -> None:
        async with client(started, forks) as agent:
            await finds_tools_and_pages_and_one_message_for_bad_input(agent, started)
            await leaves_what_ctrl_c_leaves(agent, started)

    anyio.run(play)


async def finds_tools_and_pages_and_one_message_for_bad_input(agent: Any, started: Project) -> None:
    tools = {tool.name: tool for tool in (await agent.list_tools()).tools}
    assert set(tools) == TOOLS
    for tool in tools.values():
        assert next(iter(tool.input_schema["properties"])) == "campaign"
        assert tool.output_schema and tool.description
    pages = {str(page.uri) for page in (await agent.list_resources()).resources}
    assert pages == {"kopt://skill"}
    where = await called(agent, "status")
    assert where["next_round"] == 2 and where["incumbent_round"] == 1
    skill = await agent.read_resource("kopt://skill")
    assert "kopt mcp" in skill.contents[0].text
    told = await refused(agent, "status", campaign="other")
    assert "'other' does not exist" in told and CAMPAIGN in told
    assert "Traceback" not in told and "ERROR" not in told
    told = await refused(agent, "note", campaign=CAMPAIGN, round=2, notes={"sumary": "x"})
    assert "notes.yaml: key 'sumary' is unknown" in told
    assert "nothing to measure" in await refused(agent, "round", campaign=CAMPAIGN)
    started.write(KERNEL, FASTER)
    with Campaign(Layout(started.campaign), started.root).locked():
        told = await refused(agent, "round", campaign=CAMPAIGN)
    assert "in use by" in told and f"process {os.getpid()} on" in told
    assert "no verdict" in await refused(agent, "verdict", campaign=CAMPAIGN, round=7)
    kept = await called(agent, "verdict", campaign=CAMPAIGN, round=1)
    assert kept["decision"] == "BASELINE"


async def leaves_what_ctrl_c_leaves(agent: Any, started: Project) -> None:
    """Of a cancelled round nothing runs on, nothing is decided, and it can be run again."""
    started.write(KERNEL, doubled_kernel(187.5, first=WAITS))
    async with anyio.create_task_group() as group:
        group.start_soon(agent.call_tool, "round", {"campaign": CAMPAIGN})
        with anyio.fail_after(HANG):
            while not (started.root / "measured/waits.log").exists():
                await anyio.sleep(0.1)
        group.cancel_scope.cancel()
    owner = started.campaign / ".lock-owner"
    with anyio.fail_after(HANG):
        while owner.exists():
            await anyio.sleep(0.1)
    where = await called(agent, "status")
    assert where["next_round"] == 2 and where["rounds"][-1]["decision"] == "INCOMPLETE"
    started.write(KERNEL, FASTER)
    done = await called(agent, "round", campaign=CAMPAIGN)
    assert done["exit_code"] == 0 and done["verdict"]["decision"] == "ACCEPTED"


def test_a_cancelled_command_ends_where_interrupts_are_ignored(tmp_path: Path) -> None:
    """As below an agent that a shell started in its background; rounds were decided after all."""
    from pytest_kopt.cli import agent_tools

    (tmp_path / "test_slow.py").write_text(
        "import pathlib, time\n"
        "def test_it():\n    pathlib.Path('began').touch()\n    time.sleep(3600)\n"
    )

    async def play() -> None:
        with anyio.fail_after(HANG):
            async with anyio.create_task_group() as group:
                group.start_soon(agent_tools.run, ["pytest", "test_slow.py"], tmp_path)
                while not (tmp_path / "began").exists():
                    await anyio.sleep(0.1)
                group.cancel_scope.cancel()

    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        anyio.run(play)
    finally:
        signal.signal(signal.SIGINT, former)


@pytest.mark.long
def test_an_agent_plays_the_demo(tmp_path: Path, forks: str) -> None:
    project = Project(tmp_path / "project")
    _make_project(project.root)
    words = ("--op", "rmsnorm", "--kernel", _KERNEL, "--backend", "TORCH", "--gpu", "cpu")
    assert project.kopt("init", DEMO, *words, "--tests", "tests/test_rmsnorm.py").code == 0

    async def play() -> None:
        async with client(project, forks) as agent:
            for step in STEPS:
                (project.root / _KERNEL).write_text(source(step.version))
                notes = {"summary": step.version, "hypothesis": step.story}
                number = str(step.round)
                done = await called(agent, "round", campaign=DEMO, round=number, notes=notes)
                assert done["verdict"]["decision"] in step.expected, done
            await called(agent, "note", campaign=DEMO, round=5, notes={"lesson": "no caches"})
            kept = await called(agent, "verdict", campaign=DEMO, round=2)
            assert kept["decision"] == "ACCEPTED"

    anyio.run(play)
