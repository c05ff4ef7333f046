"""The report: a campaign's data in one HTML file.

Vega-Lite draws the charts.
"""

from __future__ import annotations

import base64
import csv
import functools
import gzip
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history.trend import over_baseline
from pytest_kopt.campaign.outlook.status import status
from pytest_kopt.campaign.state import Round
from pytest_kopt.decide.verdict import Aggregate, Verdict
from pytest_kopt.errors import BadInput, of_extra
from pytest_kopt.figures import NONE, ends
from pytest_kopt.schema.metrics import WEIGHTED_TIME
from pytest_kopt.show.files.projections import outlook
from pytest_kopt.show.report import charts
from pytest_kopt.show.report.charts import LAST, case_table, shown
from pytest_kopt.show.rooflines import DRAWN, why_unknown
from pytest_kopt.show.templates import rendered
from pytest_kopt.show.words import (
    AUDIT,
    CANDIDATES,
    CASES,
    CHANGE,
    CLASSES,
    COSTS,
    GEOMEANS,
    INTERVAL,
    POINTS,
    SUMS,
    TextColumn,
    all_visible,
    html_table,
    kernel_rows,
    rows,
    with_text,
)

#: What page.js says of a verdict in words of its own.
_OF_VERDICT = ("level", "decision", "reason", "compare", "engine", "policy", "flags")
_DEVICE = TextColumn("Device", "device")
#: A report stays below this many bytes; the pairs of the oldest rounds go first.
LIMIT = 2_000_000


def document(campaign: Campaign) -> dict[str, Any]:
    """Return what a campaign's report shows; BadInput without a round or its evidence."""
    judged = campaign.state.judged_rounds()
    if not judged:
        fix = f"pytest --kopt-campaign {campaign.name} --kopt-round 1"
        raise BadInput("no round is decided yet", where=f"campaign {campaign.name}", fix=fix)
    verdicts = [round.last.verdict() for round in judged]
    rounds = [*map(_round, judged, verdicts, over_baseline(verdicts))]
    final = campaign.state.last_final
    report = final.report if final else None
    return {
        "campaign": campaign.name,
        "status": status(campaign),
        "manifest": campaign.manifest.model_dump(mode="json", by_alias=True, exclude_none=True),
        "metric": next((v.aggregate.metric for v in verdicts if v.aggregate), ""),
        "rounds": rounds,
        # The kept gains multiplied.
        "gain": next((r["over_baseline"] for r in reversed(rounds) if r["keeps"]), 0.0),
        "quick_gains": any(v.decision.keeps and v.level == "quick" for v in verdicts),
        **_rooflines(verdicts, campaign.state.incumbent_round),
        "final": final,
        "audit": rows(report.audit, *AUDIT) if report else [],
        "outlook": outlook(report) if report else [],
        **_measured_with(campaign),
    }


def _rooflines(verdicts: Sequence[Verdict], best: int | None) -> dict[str, Any]:
    """Return the current best's rooflines with their round, else the last round's with a bound."""
    drawable = [v for v in verdicts if any(line.bound != "UNKNOWN" for line in v.rooflines)]
    chosen = next((v for v in drawable if v.round == best), drawable[-1] if drawable else None)
    if chosen is None:
        missing = why_unknown([line for verdict in verdicts for line in verdict.rooflines])
        return {"rooflines": [], "roofline_round": None, "no_roofline": missing}
    return {"rooflines": chosen.rooflines, "roofline_round": chosen.round}


def _measured_with(campaign: Campaign) -> dict[str, Any]:
    """Return how the last session measured: its conditions, and in short device, torch and day."""
    environment, conditions = [("evidence", "not kept with this campaign")], dict[str, str]()
    rounds = campaign.state.rounds.values()
    attempts = (attempt for round in rounds for attempt in round.attempts.values())
    latest = sorted(attempts, key=lambda attempt: (-attempt.round, -attempt.number))
    for attempt in latest:
        try:
            if (attempt.directory / "evidence.json").exists():
                conditions = attempt.conditions()
        except BadInput as error:
            environment = [("evidence", str(error))]
            break
        if not conditions:
            continue
        variables = ((f"env {name}", text) for name, text in campaign.manifest.env.items())
        session = ("measured in", f"round {attempt.round}, attempt {attempt.number}")
        environment = [session, *conditions.items(), *variables]
        break
    torch = f"torch {conditions['torch']}" if "torch" in conditions else ""
    device = conditions.get("device_model") or campaign.manifest.target_gpu
    in_short = filter(None, (device, torch, conditions.get("started", "")[:10]))
    return {"environment": environment, "measured_on": ", ".join(in_short)}


def _round(round: Round, verdict: Verdict, gain: Sequence[float | None]) -> dict[str, Any]:
    """Return what is shown of a round, its verdict where page.js needs none of it.

    `changes`: the change of each case and the ends of its interval in percent, by label.
    """
    notes, applied, total = round.notes, verdict.applied, verdict.aggregate
    # On one device the environment names it.
    has_devices = len({shape.device for shape in verdict.shapes}) > 1

    def is_sum(figures: Aggregate) -> bool:
        return figures.metric.startswith(WEIGHTED_TIME.name)

    tables = (
        rows([mean for mean in verdict.totals if not is_sum(mean)], *GEOMEANS),
        rows(filter(is_sum, verdict.totals), *SUMS),
        rows(verdict.classes, *CLASSES),
        rows(verdict.shapes, *CASES, *COSTS, *POINTS, *((_DEVICE,) if has_devices else ())),
        rows(verdict.candidates, *CANDIDATES),
        [{"Notes": name, "": str(value)} for name, value in notes.given().items()],
        # An arrow of two characters may be broken at the end of a line.
        [{k: text.replace("->", "→") for k, text in row.items()} for row in kernel_rows(verdict)],
    )
    return {
        **{name: getattr(verdict, name) for name in _OF_VERDICT},
        "verdict": verdict,
        "number": round.number,
        "time": round.last.started,
        "keeps": verdict.decision.keeps,
        "change": CHANGE.of(total) if total else NONE,
        "interval": INTERVAL.of(total),
        "tables": [html_table(table) for table in map(with_text, tables) if table],
        "summary": notes.title or "",
        "commit": (applied.git_commit or "")[:12] if verdict.decision.keeps else "",
        "restored": applied.restored,
        "attempts": [
            {"attempt": earlier.number, "decision": decided.decision, "reason": decided.reason}
            for earlier in round.attempts.values()
            if (decided := earlier.decided)
        ],
        "changes": {
            shape.label: dict(zip(("gain", "low", "high"), ends(shape), strict=True))
            for shape in verdict.shapes
            if shape.low_pct is not None
        },
        **dict(
            zip(("over_baseline", "over_baseline_low", "over_baseline_high"), gain, strict=True)
        ),
    }


def campaign_page(campaign: Campaign) -> str:
    """Return a campaign's report."""
    page = document(campaign)
    rounds = page["rounds"]
    documents = [{key: round[key] for key in round if key != "verdict"} for round in rounds]
    specs = {
        "trend": charts.trend(rounds, page["metric"]),
        "roofline": charts.rooflines(page["rooflines"]),
        "pairs": charts.pairs(),
    }
    numbers = [round["number"] for round in rounds]
    columns, cases = case_table(rounds)
    values = {
        "page": page,
        "columns": columns,
        "hidden": len(rounds) - len(shown(rounds)),
        "last": LAST,
        "cases": cases,
        "roofline_table": rows(page["rooflines"], *DRAWN),
        "data": packed(all_visible({"rounds": documents, "charts": specs})),
        "kernels": packed(all_visible(kernels(campaign, numbers))),
    }
    frame = filled("campaign.html.j2", **values, pairs={}, left_out=[])
    room = LIMIT - len(frame.encode()) - 10_000
    packed_pairs: dict[int, str] = {}
    left_out: list[int] = []
    for number in reversed(numbers):
        measured = all_visible(pairs(campaign, number))
        text = packed(measured) if measured else ""
        room -= len(text) + 100 if text else 0
        if text and room < 0:
            left_out.append(number)
        elif text:
            packed_pairs[number] = text
    return filled("campaign.html.j2", **values, pairs=packed_pairs, left_out=sorted(left_out))


def index_page(campaigns: Sequence[Campaign], files: Sequence[str]) -> str:
    """Return the page over several campaigns, each with a link to its own file."""
    pages = [document(campaign) for campaign in campaigns]
    chart = {"comparison": charts.comparison(pages)}
    return filled(
        "index.html.j2",
        pages=list(zip(pages, files, strict=True)),
        data=packed(all_visible({"rounds": [], "charts": chart})),
    )


def filled(name: str, **values: Any) -> str:
    """Return a page from a template, with what draws its charts."""
    return rendered(name, bundle=_bundle(), **values)


@functools.cache
def _bundle() -> str:
    """Return Vega, Vega-Lite and Vega-Embed, packed, as one script that sets `vegaEmbed`."""
    vega = of_extra("report", "vl_convert", "vl-convert-python")
    return packed_text(vega.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def packed(data: Any) -> str:
    """Return data as JSON, gzip and base64: text that cannot end a script element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return packed_text(text)


def packed_text(text: str) -> str:
    """Return text as gzip and base64; the same text gives the same result."""
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def pairs(campaign: Campaign, number: int) -> dict[str, list[list[int]]]:
    """Return a round's pairs: by case, and for each process a list of whole numbers.

    A number is 2·g + o with the pair's gain g = current best / candidate − 1 in 0.01 %. o is 1
    where the current best went first. Pairs of the A/A control are left out. Empty without a
    comparison.
    """
    path = campaign.layout.artifacts(number) / "pairs.csv"
    cases: dict[str, dict[str, list[int]]] = {}
    try:
        with open(path, encoding="utf-8", newline="") as stream:
            for row in csv.DictReader(stream):
                if row["comparison"] == "candidate":
                    ratio = float(row["incumbent_ms"]) / float(row["candidate_ms"])
                    value = 2 * round((ratio - 1) * 1e4) + (row["position"] == "BA")
                    case = cases.setdefault(row["label"], {})
                    case.setdefault(row["round_of_inference"], []).append(value)
    except (OSError, KeyError, ValueError, TypeError, ZeroDivisionError, OverflowError):
        # Evidence that cannot be read is missing from the picture; the verdict stands by itself.
        return {}
    return {name: list(processes.values()) for name, processes in cases.items()}


def kernels(campaign: Campaign, numbers: Sequence[int]) -> dict[str, Any]:
    """Return the kernel files of rounds: texts by hash, and for each round the hash by path."""
    texts: dict[str, str] = {}
    rounds: dict[str, dict[str, str]] = {str(number): {} for number in numbers}
    for number in numbers:
        directory = campaign.layout.snapshot(number)
        for path in sorted(path for path in directory.rglob("*") if path.is_file()):
            content = path.read_bytes()
            key = hashlib.sha256(content).hexdigest()[:16]
            texts.setdefault(key, content.decode(errors="replace"))
            rounds[str(number)][path.relative_to(directory).as_posix()] = key
    return {"texts": texts, "rounds": rounds}
