"""Files of a campaign for people, made from ledger and evidence.

logs/optimize.md and performance.md are only ever appended to. The first ends with the Final Report.
The second has the baseline and what was kept, and the Stop Summary. It lies in the project's root
and goes into the commit of its round, so a row cannot name its own commit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from pytest_kopt.campaign import levels, tips
from pytest_kopt.campaign.attempt import Attempt
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history import stops
from pytest_kopt.campaign.history.trend import NEXT_DIRECTIONS
from pytest_kopt.campaign.layout import hide_from_git
from pytest_kopt.campaign.ledger import Decided, Final, FinalReport, NoIdleGpu
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.campaign.state import Round
from pytest_kopt.cases.result import names
from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.errors import BadInput
from pytest_kopt.figures import changed, figure, thousandths
from pytest_kopt.roofline import TARGET_PCT
from pytest_kopt.schema.metrics import STEP, time_ms
from pytest_kopt.schema.table import Row, read_csv, write_atomically
from pytest_kopt.show.files.summary import baseline_report, missing_text, summary, with_baseline
from pytest_kopt.show.rooflines import launched, read_profiles
from pytest_kopt.show.templates import rendered
from pytest_kopt.show.terminal import result_lines
from pytest_kopt.show.words import AUDIT, REGRESSIONS, TextColumn, end_to_end, markdown_table, rows

PERFORMANCE = "performance.md"
#: A row of its results.
_ROW = re.compile(r"^\| .* \| (baseline|keep) \|")


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
            _write_round(campaign, round)
    first, readme = campaign.state.baseline, campaign.layout.readme
    if first and first in news:
        write_atomically(campaign.layout.baseline_report, baseline_report(campaign))
        text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
        completed = with_baseline(text, campaign.manifest, first.last)
        if completed != text:
            write_atomically(readme, completed)
    for round in news:
        if not round.is_open:
            write_atomically(campaign.layout.memory(round.version), memory(campaign, round))
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


def memory(campaign: Campaign, round: Round) -> str:
    """Return the content of `memory/vN.json`; what nothing tells is null or empty."""
    verdict, path = round.last.verdict(), campaign.layout.artifacts(round.number) / "benchmark.csv"
    cases = read_csv(path).passed if path.is_file() else []
    profiles = read_profiles(campaign.layout, round.number, round.last.number)
    times = {case.label: time_ms(case, STEP) for case in cases}
    snrs = _numbers(cases, "out_snr")
    return rendered(
        "memory.json.j2",
        round=round,
        decided=round.last.outcome(),
        verdict=verdict,
        notes=round.notes,
        masked=round.version in campaign.state.masked,
        latencies={label: ms * 1e3 for label, ms in times.items() if ms},
        tflops=_numbers(cases, "Forward TFLOPS"),
        bandwidth=_numbers(cases, "Forward GB/s"),
        # The largest relative root-mean-square error: an SNR of s dB is 10^(-s/20).
        rel_err=float(10 ** (-min(snrs) / 20)) if snrs else None,
        tools={case.tool for case in profiles},
        bounds={f"{line.bound}_bound" for line in verdict.rooflines},
        hottest=[f"{case.label}: {launched(case.hottest)}" for case in profiles if case.hottest],
        pitfalls=[*_pitfalls(round, verdict)],
        sources=sorted({text for line in verdict.rooflines for text in line.sources}),
        target=TARGET_PCT,
    )


def _numbers(cases: Iterable[Row], column: str) -> list[float]:
    """Return the numbers in the cells of this column that there are."""
    having = (case for case in cases if column in case.cells)
    return [number for case in having if (number := case.number(column)) is not None]


def _pitfalls(round: Round, verdict: Verdict) -> Iterator[dict[str, str | None]]:
    """Yield what went wrong: failed attempts, the roll-back's lesson, facts that are UNKNOWN."""
    for attempt in round.attempts.values():
        if (tried := attempt.decided) and tried.decision.leaves_open:
            kind = "accuracy" if tried.decision is Decision.REPAIR else "runtime"
            yield {"error_type": kind, "error_message": tried.reason}
    if not verdict.decision.keeps:
        why = {"root_cause": round.notes.root_cause, "lesson": round.notes.lesson}
        yield {"error_type": "performance", "error_message": verdict.reason, **why}
    for text in sorted({text for line in verdict.rooflines for text in line.unknown}):
        yield {"error_type": "hardware fact", "error_message": text}


def append_logs(campaign: Campaign) -> None:
    path = tips.path_of(campaign.root, campaign.manifest)
    is_new = not path.exists()
    source = (campaign.name, campaign.manifest, campaign.state)
    append(path, lambda text: tips.missing_text(text, *source))
    if is_new and path.exists():
        # Nobody asked for a file in the repository; `git add -f` shares it.
        hide_from_git(path.parent)
    append(campaign.layout.trend, lambda text: missing_text(text, campaign.state))
    append(campaign.layout.optimize_log, lambda text: missing_entries(text, campaign))
    performance(campaign)


def performance(campaign: Campaign) -> list[Path]:
    """Append to performance.md what it lacks; return it where the policy wants it."""
    if not campaign.policy().performance_log:
        return []
    path = campaign.root / PERFORMANCE
    append(path, lambda text: missing_performance(text, campaign))
    return [path]


def _write_round(campaign: Campaign, round: Round) -> None:
    """Write the files of a round, none of them where evidence cannot be read."""
    attempt, layout = round.last, campaign.layout
    verdict, results, kernel = attempt.verdict(), attempt.results(), attempt.kernel()
    texts = {
        layout.verdict(round.number): attempt.page().decode(),
        layout.summary(round.number): summary(campaign, round, verdict),
    }
    for name in ("benchmark.csv", "pairs.csv", "benchmark_command.log"):
        if (text := attempt.text(name)) is not None:
            texts[layout.artifacts(round.number) / name] = text
    if verdict.decision is Decision.BASELINE:
        ids = levels.quick_ids(campaign.manifest, names(results))
        lines = result_lines([result for result in results if result.nodeid in ids], None)
        # The table that quick_test_bench.py ends with.
        texts[layout.quick_baseline] = "".join(f"{line}\n" for line in lines)
    _put_records_back(round)
    for path, text in texts.items():
        write_atomically(path, text)
    kernel.write(layout.snapshot(round.number))


def _put_records_back(round: Round) -> None:
    """Write a record that only the round's page holds, which is about to be replaced."""
    for attempt in round.attempts.values():
        if attempt.decided and not attempt.record.exists():
            with suppress(BadInput):  # the page is another attempt's
                write_atomically(attempt.record, attempt.recorded().decode())


def append(path: Path, missing: Callable[[str], str]) -> None:
    """Append what `missing` says that a file's text lacks; nothing is ever rewritten."""
    # Bytes, so that line ends somebody else wrote stay what they are.
    text = path.read_bytes().decode() if path.exists() else ""
    more = missing(text)
    if more:
        more = more if not text or text.endswith("\n") else f"\n{more}"
        # Old text and new in one rename: a kill leaves the file without the entry or with it.
        write_atomically(path, text + more)


def missing_entries(text: str, campaign: Campaign) -> str:
    """Return what `text` lacks; the anchor of each entry says what a run before a kill appended."""
    entries = ((f"<!-- {anchor} -->", entry) for anchor, entry in _entries(campaign))
    new = "".join(f"\n{anchor}\n{entry}" for anchor, entry in entries if anchor not in text)
    title = (
        "" if text else rendered("log_title.md.j2", name=campaign.name, manifest=campaign.manifest)
    )
    return title + new


def _entries(campaign: Campaign) -> Iterator[tuple[str, str]]:
    """Yield each entry's anchor and text."""
    state, conditions = campaign.state, dict[str, str]()
    for _, attempt, decided in state.decided():
        conditions = decided.stops
        yield f"round-{attempt.round} attempt-{attempt.number}", _entry(campaign, attempt)
    for number, final in enumerate(state.finals, start=1):
        yield f"final-{number}", final_text(campaign.name, final)
    for number, (wait, after) in enumerate(state.waits, start=1):
        check = stops.lines({stops.NO_IDLE_GPU: str(wait)})
        summary = wait_summary(campaign, wait, after)
        yield (
            f"no-idle-gpu-{number}",
            rendered("log_stop.md.j2", check=check, stop_summary=summary),
        )
    if state.ended:
        check = stops.lines({**conditions, "T4": state.ended})
        yield "ended", rendered("log_stop.md.j2", check=check, stop_summary="")


def _entry(campaign: Campaign, attempt: Attempt) -> str:
    decided = attempt.outcome()
    decision = decided.decision
    is_undecided = decision.leaves_open or decision is Decision.INCONCLUSIVE
    return rendered(
        "log_entry.md.j2",
        attempt=attempt,
        decided=decided,
        notes=attempt.notes,
        best=campaign.state.incumbent_as_of(attempt.round),
        is_ineffective=not (decision.keeps or is_undecided),
        check=stops.lines(decided.stops) if decided.stops else [],
        stop_summary=stop_summary(campaign, decided),
    )


def outlook(report: FinalReport) -> list[str]:
    """Return what the terminal says of a report: the re-attribution and where to look next."""
    following = [f"next direction: {text}" for text in report.next_directions]
    if not report.is_attributed:
        return following
    return [
        f"benchmark gain with fresh tensors {changed(report.real_pct)}: kernel changes "
        f"{changed(report.s_real_pct)}, weight caches {changed(report.w_real_pct)}; "
        f"{thousandths(report.gap_pct)} points below the product of the accepted gains",
        *following,
    ]


def final_text(campaign: str, final: Final) -> str:
    """Return the Final Report of a comparison of best and baseline."""
    audit = final.report.audit if final.report else []
    return rendered(
        "final_report.md.j2",
        campaign=campaign,
        final=final,
        report=final.report,
        e2e=end_to_end(final),
        audit=rows(audit, *AUDIT),
        unclaimed=[audited.round for audited in audit if audited.bucket is None],
        next_directions=NEXT_DIRECTIONS,
    )


def missing_performance(text: str, campaign: Campaign) -> str:
    """Return what has to be appended to the file's `text`; several campaigns may share it."""
    added = ""
    for round, attempt, decided in campaign.state.decided():
        if round.is_open:
            continue
        place = f"| {campaign.name} round-{round.number} |"
        if decided.decision.keeps and place not in text:
            begins = not _ROW.search((text + added).rstrip("\n").rpartition("\n")[2])
            row = markdown_table(rows([round], *_performance_columns(campaign)), begins=begins)
            added += "\n" * begins + f"{row}\n"
        if summary := stop_summary(campaign, decided):
            added += _stopped(
                text, campaign, f"round-{round.number} attempt-{attempt.number}", summary
            )
    for number, wait in enumerate(campaign.state.waits, start=1):
        added += _stopped(text, campaign, f"no-idle-gpu-{number}", wait_summary(campaign, *wait))
    return added if text or not added else f"# Performance\n{added}"


def _performance_columns(campaign: Campaign) -> tuple[TextColumn, ...]:
    """Return the columns of rounds that were kept."""

    def commit(attempt: Attempt) -> str:
        applied = attempt.applied
        if attempt.outcome().decision is Decision.BASELINE:
            return ((applied and applied.git_commit) or "-")[:12]
        # A row cannot name the commit that adds it.
        is_committed = campaign.committed_to and (applied or not attempt.settled)
        return "the one that adds this line" if is_committed else "-"

    benchmark = campaign.manifest.benchmark_command
    tests = f"pytest --kopt-campaign {campaign.name} --kopt-round"
    return (
        TextColumn("Date", "verdict.time"),
        TextColumn("Commit", "last", commit),
        TextColumn("Status", "number", lambda number: "keep" if number > 1 else "baseline"),
        TextColumn("Round", "number", f"{campaign.name} round-{{}}".format),
        TextColumn("Benchmark command", "number", lambda number: benchmark or f"{tests} {number}"),
        TextColumn("Target", "notes.target_class", lambda name: name or "global"),
        TextColumn("Kernel", "verdict.kernel_time.hottest", lambda name: name or "-"),
        TextColumn("Benchmark", written=_best_metric),
        TextColumn("GPU time (us)", "verdict.kernel_time.candidate_us", figure),
        TextColumn("vs best", "verdict.aggregate.change_pct", changed),
        TextColumn("Explanation", "notes", _explanation),
    )


def _best_metric(round: Round) -> str:
    total = round.last.outcome().aggregate
    return f"{total.metric} {figure(total.candidate)}" if total else "-"


def _explanation(notes: Notes) -> str:
    return "; ".join(filter(None, (notes.tried, notes.key_finding))) or "-"


def _stopped(text: str, campaign: Campaign, where: str, summary: str) -> str:
    anchor = f"<!-- {campaign.name} {where} -->"
    return "" if anchor in text else f"\n{anchor}\n## Stop Summary: {campaign.name}\n\n{summary}"


def stop_summary(campaign: Campaign, decided: Decided) -> str:
    if stops.REGRESSIONS not in decided.stops:
        return ""
    return _summary(campaign, decided.time, (decided.round, decided.attempt))


def wait_summary(campaign: Campaign, wait: NoIdleGpu, after: tuple[int, int]) -> str:
    return _summary(campaign, wait.time, after, f"no idle GPU, {wait}")


def _summary(campaign: Campaign, time: str, until: tuple[int, int], why: str = "") -> str:
    regressions = stops.regressions_in_a_row(campaign.state, campaign.policy(), until)
    number = campaign.state.incumbent_as_of(until[0])
    best = campaign.state.rounds[number].last if number else None
    return rendered(
        "stop_summary.md.j2",
        time=time,
        reason=why or f"{len(regressions)} measured regressions in a row",
        best=best,
        metric=_best_metric(campaign.state.rounds[number]) if number else "-",
        regressions=rows(regressions[-stops.KEPT :], *REGRESSIONS),
    )
