"""docs/round.md against a round: its processes, messages and files, and no others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from .paired import FASTER, PLAIN, Gate, kernel, project_at
from .project import SCRIPT

PAGE = Path(__file__).parents[2] / "docs" / "round.md"
NAME = "plain_torch_cpu_20260101"
#: Notes what the process that decides sends, receives and writes, each line with its process.
NOTING = """
import json
import os
import sys

from pytest_kopt.processes import channel

_file = os.environ.get("NOTES_JIT_DIR", "")


def _note(**what):
    line = json.dumps({"pid": os.getpid(), **what})
    descriptor = os.open(_file + "/notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line.encode() + b"\\n")
    os.close(descriptor)


def _hear(event, arguments):
    if event == "os.rename":
        _note(written=os.fsdecode(arguments[1]))
    elif event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_APPEND:
        if not os.fsdecode(arguments[0]).endswith("/notes"):
            _note(written=os.fsdecode(arguments[0]))


_sent, _received = channel.Channel.send_text, channel.Channel.receive_text


def _note_sent(self, text):
    if self._read_message is channel.read_reply:
        _note(channel=id(self), order=json.loads(text))
    _sent(self, text)


def _note_received(self):
    text = _received(self)
    if self._read_message is channel.read_reply:
        _note(channel=id(self), reply=json.loads(text)["message"])
    return text


if _file:
    channel.Channel.send_text, channel.Channel.receive_text = _note_sent, _note_received
    sys.addaudithook(_hear)
"""


def round_of(root: Path) -> list[dict[str, Any]]:
    """Play a round that is accepted, and return what its process that decides noted."""
    gate = Gate(project_at(root))
    project, variables = gate.project, gate.variables()
    with (project.root / SCRIPT).open("a") as script:
        script.write(NOTING)
    words = ("init", NAME, "--op", "plain", "--kernel", PLAIN, "--backend", "TORCH", "--gpu", "cpu")
    assert project.kopt(*words, **variables).code == 0
    project.commit_all("A campaign")
    of_campaign = ("--kopt-campaign", NAME, "--kopt-round")
    assert project.pytest(*of_campaign, "1", **variables).code == 0
    project.write(PLAIN, kernel(FASTER, "new"))
    notes = gate.private / "notes"
    run = project.pytest(*of_campaign, "2", **variables, NOTES_JIT_DIR=str(gate.private))
    assert run.code == 0 and "ACCEPTED" in run.text, run.text
    return [json.loads(line) for line in notes.read_text().splitlines()]


def process_of(begin: dict[str, Any], orders: set[str]) -> str:
    """Return the page's name of a process, by what it was begun with and asked."""
    arms = begin["orders"]["arms"]
    if "TryNearby" in orders:
        return "near inputs"
    if arms is None:
        return "check"
    return "runner" if arms["names"] else "judge"


def tables_of(page: str) -> list[list[list[str]]]:
    """Return the cells of the page's tables, without their headers."""
    tables = re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE)
    return [[line.strip("| ").split(" | ") for line in table.splitlines()[2:]] for table in tables]


def test_a_round_has_the_processes_messages_and_files_of_the_page(tmp_path: Path) -> None:
    notes = round_of(tmp_path / "project")
    talks: list[tuple[dict[str, Any], set[str], set[str]]] = []
    talk_of: dict[int, tuple[dict[str, Any], set[str], set[str]]] = {}
    for note in notes:
        if "order" in note:
            if (kind := note["order"]["message"]) == "Begin":
                # A channel may have the id of one that is gone.
                talk_of[note["channel"]] = note["order"], set(), set()
                talks.append(talk_of[note["channel"]])
            talk_of[note["channel"]][1].add(kind)
        elif "reply" in note:
            talk_of[note["channel"]][2].add(note["reply"])
    found = {
        (process_of(begin, orders), frozenset(orders), frozenset(replies))
        for begin, orders, replies in talks
    }
    processes, messages, files = tables_of(PAGE.read_text())
    assert {name for name, *_ in found} == {name for name, *_ in processes}
    assert found == {
        (name, frozenset(asked.split(", ")), frozenset(told.split(", ")))
        for name, asked, told in messages
    }
    (decides,) = {note["pid"] for note in notes if "order" in note}
    written = [note["written"] for note in notes if "written" in note and note["pid"] == decides]
    # What processes hand over goes with the session.
    written = [path for path in written if "kopt-scratch-" not in path]
    inside = dict.fromkeys(path.partition(f"/{NAME}/")[2] for path in written)
    known = [re.sub(r"round-2", "round-N", path) for path in inside if "/." not in path]
    told = [path.strip("`").replace("vM", "v1") for path, _ in files]
    assert known == told
