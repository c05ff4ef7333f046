"""Brings the files that people read up to date with ledger and evidence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from pytest_kopt.campaign import levels, tips
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history import memory
from pytest_kopt.campaign.state import Round
from pytest_kopt.cases.result import device_model_of
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.schema.table import write_atomically
from pytest_kopt.show.exports.output_files import benchmark_json
from pytest_kopt.show.files import logs
from pytest_kopt.show.files.summary import baseline_report, missing_text, summary, with_baseline
from pytest_kopt.show.rooflines import read_profiles
from pytest_kopt.show.terminal import result_lines


def refresh(campaign: Campaign) -> None:
    """Rewrite the files of rounds that the ledger says more of, and append to the logs.

    A file next to them counts the events that they show, and is written last. So the next call
    completes what a kill cut off; without the count everything is written again.
    """
    if not campaign.state.events:
        return
    events = _shown(campaign)
    news = [round for round in campaign.state.rounds.values() if round.last_event > events]
    for round in news:
        if round.verdict is not None:
            _round_files(campaign, round)
    first = campaign.state.baseline
    table = memory.table_of(campaign, 1) if first in news else None
    if first and table:
        write_atomically(campaign.layout.baseline_report, baseline_report(campaign, table))
        lines, readme = first.last.verdict().rooflines, campaign.layout.readme
        if readme.is_file():
            device, text = (
                device_model_of(campaign.state.rounds[1].last.results()),
                readme.read_text(),
            )
            completed = with_baseline(text, campaign.manifest, device, lines)
            if completed != text:
                write_atomically(readme, completed)
    for round in news:
        if not round.is_open:
            _memory(campaign, round)
    append_logs(campaign)
    if are_behind(campaign):
        write_atomically(campaign.layout.shown, f"{campaign.state.events}\n")


def are_behind(campaign: Campaign) -> bool:
    """Say whether the files show less than the ledger tells: a session was killed before."""
    return _shown(campaign) != campaign.state.events


def _shown(campaign: Campaign) -> int:
    """Return how many events of the ledger the files show, 0 where nothing tells."""
    path = campaign.layout.shown
    text = path.read_bytes().strip() if path.is_file() else b""
    count = int(text) if text.isdigit() and len(text) < 16 else 0
    return count if count <= campaign.state.events else 0


def append_logs(campaign: Campaign) -> None:
    path = tips.path_of(campaign.home, campaign.manifest)
    is_new = not path.exists()
    source = (campaign.name, campaign.manifest, campaign.state)
    append(path, lambda text: tips.missing_text(text, *source))
    if is_new and path.exists() and campaign.repository:
        # Nobody asked for a file in the repository; `git add -f` shares it.
        campaign.repository.exclude(path.parent)
    append(campaign.layout.trend, lambda text: missing_text(text, campaign.state))
    append(campaign.layout.optimize_log, lambda text: logs.missing_entries(text, campaign))
    performance(campaign)


def performance(campaign: Campaign) -> list[Path]:
    """Append to performance.md what it lacks; return it where a round's policy wants it."""
    wishes = [decided.performance_log for _, _, decided in campaign.state.decided()]
    if not any([*wishes, *(wait.event.performance_log for wait in campaign.state.waits)]):
        return []
    # A workspace keeps its own: upstream gets the kernel and nothing else.
    workspace = campaign.manifest.upstream is not None
    path = (campaign.layout.directory if workspace else campaign.root) / logs.PERFORMANCE
    append(path, lambda text: logs.missing_performance(text, campaign))
    return [path]


def _memory(campaign: Campaign, round: Round) -> None:
    profiles = read_profiles(campaign.layout, round.number, round.last.number)
    text = json.dumps(memory.document(campaign, round, profiles), indent=1) + "\n"
    write_atomically(campaign.layout.memory(round.version), text)


def _round_files(campaign: Campaign, round: Round) -> None:
    attempt, layout = round.last, campaign.layout
    verdict, artifacts = attempt.verdict(), layout.artifacts(round.number)
    write_atomically(layout.verdict(round.number), verdict.model_dump_json(indent=1) + "\n")
    write_atomically(layout.summary(round.number), summary(campaign, round, verdict))
    for name in ("benchmark.csv", "pairs.csv", "benchmark_command.log"):
        if (text := attempt.text(name)) is not None:
            write_atomically(artifacts / name, text)
    results = attempt.results()
    commit = verdict.applied.git_commit if verdict.decision.keeps else None
    text = benchmark_json(results, attempt.started, commit)
    write_atomically(artifacts / "benchmark.json", text)
    if verdict.decision is Decision.BASELINE:
        ids = levels.quick_ids(campaign.manifest, levels.names(results))
        lines = result_lines([result for result in results if result.nodeid in ids], None)
        # The table that quick_test_bench.py ends with.
        write_atomically(layout.quick_baseline, "".join(f"{line}\n" for line in lines))
    attempt.kernel().write(layout.snapshot(round.number))


def append(path: Path, missing: Callable[[str], str]) -> None:
    """Append what `missing` says that a file's text lacks; nothing is ever rewritten."""
    # Bytes, so that line ends somebody else wrote stay what they are.
    text = path.read_bytes().decode() if path.exists() else ""
    more = missing(text)
    if more:
        more = more if not text or text.endswith("\n") else f"\n{more}"
        # Old text and new in one rename: a kill leaves the file without the entry or with it.
        write_atomically(path, text + more)
