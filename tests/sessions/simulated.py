"""A campaign under scripted timings, played through the plugin, with S4's counting beside it."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from pytest_kopt import policies
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history.stops import regressions_in_a_row
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.campaign.state import chain_breaks

from .project import KERNEL, Project, Run
from .sources import doubled_kernel

POLICY = "simulated.yaml"
#: A round's kind: the candidate's cost by the incumbent's, its factors one a run, the exit codes.
KINDS: dict[str, tuple[float, tuple[float, ...], tuple[int, ...]]] = {
    "keep": (0.97, (2.0,), (0,)),
    "repaired": (0.97, (2.5, 2.0), (1, 0)),
    "tie": (1.005, (2.0,), (8,)),
    "regression": (1.1, (2.0,), (8,)),
    "failed repairs": (0.9, (2.5, 3.0), (1, 8)),
    "bench failure": (0.9, (2.0,), (11,)),
}


class Simulation:
    """Plays rounds and looks, after each, at what has to hold after any."""

    def __init__(self, project: Project, *, max_regressions: int, **manifest: object) -> None:
        project.write(
            POLICY, f"base: kernel-opt\nmax_repairs: 1\nmax_regressions: {max_regressions}\n"
        )
        project.edit_manifest(policy=POLICY, **manifest)
        self.project = project
        self.cost = 250.0
        self.played: list[str] = []
        self._logs: dict[str, bytes] = {}

    @property
    def campaign(self) -> Campaign:
        """The campaign as it is on disk now."""
        return Campaign(Layout(self.project.campaign), self.project.root)

    @property
    def accepted(self) -> int:
        """How many rounds were kept after the baseline."""
        return sum(kind in ("keep", "repaired") for kind in self.played)

    def baseline(self) -> None:
        """Play round 1."""
        run = self.project.round(1)
        assert run.code == 0, run.text
        self.check()

    def play(self, kind: str, *words: str) -> Run:
        """Play a round of some kind, all its runs, and return the last."""
        cost, factors, codes = KINDS[kind]
        filtered = ("-k", "4") if kind == "bench failure" else ()
        for factor, code in zip(factors, codes, strict=True):
            text = doubled_kernel(self.cost * cost, factor=factor)
            self.project.write(KERNEL, text + f"PLAYED = {len(self.played)}\n")
            session = self.project.round if filtered else self.project.play
            run = session("next", *filtered, *words)
            assert run.code == code, f"{kind}\n{run.text}"
        self.played.append(kind)
        if kind in ("keep", "repaired"):
            self.cost *= cost
        self.check()
        return run

    def refused(self, *parts: str) -> None:
        """Ask for a further round, which has to be refused with nothing changed."""
        before = self.project.contents()
        run = self.project.play("next")
        assert run.code == 4, run.text
        for part in parts:
            assert part in run.refusal
        assert self.project.contents() == before

    def check(self) -> None:
        """Hold counters, logs, chain and history against what was played."""
        campaign = self.campaign
        policy = policies.load(str(self.project.root / POLICY))
        found = regressions_in_a_row(campaign.state, policy)
        row = itertools.takewhile(lambda kind: kind == "regression", reversed(self.played))
        assert len(found) == len(list(row)), self.played
        logs = {path.name: path.read_bytes() for path in self._files()}
        assert all(logs[name].startswith(text) for name, text in self._logs.items())
        self._logs = logs
        assert chain_breaks(campaign.state, noise_pct=0.0) == []
        closed = [item.number for item in campaign.state.decided_rounds()]
        assert closed == list(range(1, len(closed) + 1))
        trend = logs["performance_trend.md"].decode()
        assert [int(n) for n in re.findall(r"^\| (\d+) \|", trend, re.MULTILINE)] == closed
        rows = re.compile(r"^\| \d{4}-[^|]+\|[^|]+\| (baseline|keep) +\|", re.MULTILINE)
        kept = rows.findall(logs["performance.md"].decode())
        assert kept == ["baseline", *["keep"] * self.accepted]

    def _files(self) -> list[Path]:
        layout = self.campaign.layout
        return [layout.trend, layout.optimize_log, self.project.root / "performance.md"]
