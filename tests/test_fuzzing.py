"""Documents that something has gone over: each is read, or refused with one message."""

from __future__ import annotations

import random
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_kopt import policies
from pytest_kopt.campaign import ledger, manifest, notes
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.campaign.outlook.status import status
from pytest_kopt.campaign.state import fold
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.documents import dump_yaml
from pytest_kopt.errors import BadInput
from pytest_kopt.schema.table import format_csv, read_csv
from pytest_kopt.show.standing import status_lines as lines

from .builders import gemm_table, manifest_document
from .campaigns import campaign_at, record
from .waiting import no_hang

FEW, MANY = 100, 15_000
MOST_BYTES = 500 << 20

#: What breaks readers: other syntax, other types, extremes, things that are nearly nothing.
MORSELS: list[bytes] = [
    *(b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\r", b"\r\n", b"\n\n", b"\t", b'"', b"'", b"\\"),
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b": ",
        b"- ",
        b"? ",
        b"&a ",
        b"*a",
        b"!!python/name:os.system ",
        b"|",
    ),
    *(b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"-0", b"9" * 400, b"0x1F", b"1_0", b","),
    *(text.encode() for text in ("\u202e", "\ud7ff", "\U0001f525", "é")),
    *(b"#" * 300, b"[" * 3000, b"{a: " * 500, b"../../etc/passwd", b"$(id)", b"<script>"),
]


def mutated(data: bytes, dice: random.Random) -> bytes:
    """Return the bytes after one to four accidents."""
    for _ in range(dice.randint(1, 4)):
        at, to = sorted(dice.randint(0, len(data)) for _ in range(2))
        piece = dice.choice(MORSELS)
        lines = data.split(b"\n")
        line = dice.randrange(len(lines))
        accidents: list[Callable[[], bytes]] = [
            lambda: data[:at] + piece + data[at:],  # noqa: B023 - called in this turn
            lambda: data[:at] + piece + data[to:],  # noqa: B023
            lambda: data[:at] + data[to:],  # noqa: B023
            lambda: data[:at],  # noqa: B023
            lambda: data[:to] + data[at:],  # noqa: B023
            lambda: b"\n".join([*lines[:line], *lines[line + 1 :]]),  # noqa: B023
            lambda: b"\n".join([*lines[:line], lines[line], *lines[line:]]),  # noqa: B023
            lambda: data[:at] + bytes([dice.randrange(256)]) + data[at + 1 :],  # noqa: B023
        ]
        data = dice.choice(accidents)()
    return data


def whole_campaign(root: Path) -> Campaign:
    """Return a campaign with an open round, so that every document of one is there."""
    campaign = campaign_at(root)
    record(campaign, 1, Decision.BASELINE)
    record(campaign, 2, Decision.ACCEPTED, hypothesis="fewer tiles", change="tile 64 -> 32")
    record(campaign, 3, Decision.REPAIR)
    return campaign


def look(path: Path) -> None:
    """Read a campaign as `kopt status` and the next round do, evidence included."""
    root = next(parent for parent in path.parents if (parent / "kernels").is_dir())
    directory = next(parent for parent in path.parents if parent.parent.name == "workspace")
    campaign = Campaign(Layout(directory), root)
    "\n".join(lines(status(campaign)))
    for item in campaign.state.rounds.values():
        if item.verdict:
            item.last.verdict()
        if item.attempts:
            item.last.results()
    if campaign.state.incumbent_round:
        campaign.best.table()


def read_ledger(path: Path) -> None:
    fold(ledger.read(path))


def sources(root: Path) -> dict[str, tuple[Path, Callable[[Path], object]]]:
    """Return every document with the reader that it is for."""
    campaign = whole_campaign(root)
    layout = campaign.layout
    given = root / "given"
    given.mkdir()
    table = gemm_table([100.0, 200.0])
    (given / "rows.csv").write_text(format_csv(table.header, table.rows))
    (given / "manifest.yaml").write_text(dump_yaml(manifest_document()))
    (given / "notes.yaml").write_text(
        "summary: half the tiles\nhypothesis: fewer tiles cost less\nbucket: W1\n"
        "w1_quant_ms: 0.5\nstep_ms: 10\ncache_key: id(weight), weight._version\n"
    )
    (given / "policy.yaml").write_text("base: primus\nshape_gate_pct: 3\n")
    return {
        "csv": (given / "rows.csv", read_csv),
        "manifest": (given / "manifest.yaml", manifest.load),
        "notes": (given / "notes.yaml", notes.load),
        "policy": (given / "policy.yaml", lambda path: policies.load(str(path))),
        "ledger": (layout.ledger, read_ledger),
        "the campaign's ledger": (layout.ledger, look),
        "verdict": (layout.attempt(2, 1) / "verdict.json", look),
        "evidence": (layout.attempt(2, 1) / "evidence.json", look),
    }


def refusal_of(read: Callable[[Path], object], path: Path, where: str) -> str:
    """Return the one message of a reader that refuses a document, "" when it reads it."""
    try:
        read(path)
    except BadInput as refusal:
        return str(refusal)
    except Exception as error:
        raise AssertionError(f"{where}: {type(error).__name__}") from error
    return ""


def unharmed(root: Path, name: str, count: int) -> None:
    """Read a document that many times, mutated each time; only BadInput may come of it."""
    path, read = sources(root)[name]
    whole = path.read_bytes()
    read(path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(count):
        path.write_bytes(mutated(whole, random.Random(f"{name} {seed}")))
        with no_hang():
            refusal = refusal_of(read, path, f"{name}, seed {seed}")
        assert "\n" not in refusal, (name, seed, refusal)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * 1024 < MOST_BYTES, (name, grown)


NAMES = (
    *("csv", "manifest", "notes", "policy", "ledger", "the campaign's ledger", "verdict"),
    "evidence",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_document_is_read_or_refused(name: str, tmp_path: Path) -> None:
    unharmed(tmp_path, name, FEW)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_document_is_read_or_refused_every_time(name: str, tmp_path: Path) -> None:
    unharmed(tmp_path, name, MANY)
