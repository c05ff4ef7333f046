"""What a person sees of a round at a terminal of 80 columns."""

from __future__ import annotations

import fcntl
import itertools
import os
import pty
import re
import struct
import sys
import termios
from contextlib import suppress

from .. import nursery
from ..waiting import HANG
from .project import CAMPAIGN, KERNEL, Project
from .sources import doubled_kernel as kernel

COLUMNS = 80
_COLOUR = re.compile("\x1b\\[[0-9;]*m")


def on_a_terminal(project: Project, *words: str) -> list[str]:
    """Return the lines that pytest shows on a terminal, without colours and progress."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    variables = project.environment()
    del variables["COLUMNS"]
    command = [sys.executable, "-m", "pytest", *words]
    process = nursery.start(command, project.root, variables, terminal)
    os.close(terminal)
    shown = b""
    # The last process to close its end makes this an error.
    with suppress(OSError):
        while piece := os.read(controller, 65536):
            shown += piece
    os.close(controller)
    process.wait(HANG)
    text = _COLOUR.sub("", shown.decode())
    return [line.rpartition("\r")[2] for line in text.replace("\r\n", "\n").split("\n")]


def section(project: Project) -> str:
    """Return kopt's section of the next round, which is no wider than the terminal."""
    shown = on_a_terminal(project, "--kopt-campaign", CAMPAIGN, "--kopt-round", "next")
    start = next(i for i, line in enumerate(shown) if re.fullmatch("=+ kopt =+", line))
    ours = [*itertools.takewhile(lambda line: "short test summary" not in line, shown[start:])]
    assert max(map(len, ours)) <= COLUMNS, "\n".join(shown)
    return "\n".join(ours)


def test_no_line_of_a_round_is_wider_than_the_terminal(started: Project) -> None:
    """A decision of 162 characters was broken within a word."""
    started.write(KERNEL, kernel(500.0))
    text = section(started)
    assert re.search(r"^round 2, attempt 1: ROLLED_BACK \(.+\n  .+\)$", text, re.MULTILINE), text
    for command in (
        f"kopt restore {CAMPAIGN} 2",
        f"pytest --kopt-campaign {CAMPAIGN} --kopt-round next",
    ):
        assert f"`{command}`" in text, text
    assert f"`{command}`" in started.verdict(1)["next_step"]
