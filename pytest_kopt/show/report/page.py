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
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history.trend import over_baseline
from pytest_kopt.campaign.outlook.status import status
from pytest_kopt.campaign.state import Round
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.verdict import Aggregate, Verdict
from pytest_kopt.errors import BadInput, of_extra
from pytest_kopt.figures import changed, ends, interval
from pytest_kopt.roofline import Roofline
from pytest_kopt.schema.metrics import WEIGHTED_TIME
from pytest_kopt.show.files.projections import outlook
from pytest_kopt.show.report import charts
from pytest_kopt.show.report.charts import LAST, case_table, shown
from pytest_kopt.show.rooflines import why_unknown
from pytest_kopt.show.templates import rendered
from pytest_kopt.show.words import (
    CANDIDATES,
    CASES,
    CLASSES,
    COSTS,
    GEOMEANS,
    POINTS,
    SUMS,
    TextColumn,
    all_visible,
    kernel_rows,
    rows,
    visible,
    with_text,
)

#: What a report shows of a verdict as it stands there.
_OF_VERDICT = {
    *("level", "decision", "reason", "compare", "engine", "policy", "flags"),
    *("aggregate", "shapes", "rooflines"),
}
_POINTS = {
    *("operating_point", "operating_points", "is_steady", "clock_is_locked", "points_differ"),
    "cache",
}
_ONLY_IN_TABLES = {"shapes": {"__all__": {"first_call_ms", *_POINTS}}}
_IN_TABLES = {"aggregate", "shapes", "rooflines"}
_DEVICE = TextColumn("Device", "device", lambda device: device or "")
_OF_ATTEMPT = {"attempt", "time", "decision", "reason"}
_KERNELS = ("Kernel", "Change (code size and memory in bytes, others: instructions)", "First in")
#: A report stays below this many bytes; the pairs of the oldest rounds go first.
LIMIT = 2_000_000
#: The line of all cases together.
_ALL = "all cases"


def document(campaign: Campaign) -> dict[str, Any]:
    """Return a campaign's report as JSON-able data; BadInput without a round or its evidence."""
    rounds = list(_rounds(campaign))
    if not rounds:
        fix = f"pytest --kopt-campaign {campaign.name} --kopt-round 1"
        raise BadInput("no round is decided yet", where=f"campaign {campaign.name}", fix=fix)
    final, best = campaign.state.last_final, campaign.state.incumbent_round
    report = final.report if final else None
    return {
        "campaign": campaign.name,
        "status": status(campaign).model_dump(mode="json"),
        "manifest": campaign.manifest.model_dump(mode="json", by_alias=True, exclude_none=True),
        "metric": next((round["metric"] for round in rounds if round["metric"]), ""),
        "rounds": rounds,
        # The kept gains multiplied.
        "gain": next((r["over_baseline"] for r in reversed(rounds) if r["keeps"]), 0.0),
        "quick_gains": any(round["keeps"] and round["level"] == "quick" for round in rounds),
        **_rooflines(rounds, best),
        "final": final.model_dump(mode="json") if final and report else None,
        "outlook": outlook(report) if report else [],
        "environment": (conditions := environment(campaign)),
        "measured_on": _measured_on(conditions, campaign.manifest.target_gpu),
    }


def _rooflines(rounds: Sequence[dict[str, Any]], best: int | None) -> dict[str, Any]:
    """Return the current best's rooflines with their round, else the last round's with a bound."""
    having = [round for round in rounds if any(map(_is_known, round["rooflines"]))]
    shown = next((round for round in having if round["number"] == best), having and having[-1])
    if not shown:
        lines = [Roofline(**line) for round in rounds for line in round["rooflines"]]
        return {"rooflines": [], "roofline_round": None, "no_roofline": why_unknown(lines)}
    return {"rooflines": shown["rooflines"], "roofline_round": shown["number"]}


def _is_known(line: dict[str, Any]) -> bool:
    return bool(line["bound"] != "UNKNOWN")


def environment(campaign: Campaign) -> list[tuple[str, str]]:
    """Return where and with what the last session ran that measured; a discarded round has none."""
    for _, round in sorted(campaign.state.rounds.items(), reverse=True):
        for number in sorted(round.attempts, reverse=True):
            path = campaign.layout.attempt(round.number, number) / "evidence.json"
            try:
                evidence = json.loads(path.read_text(encoding="utf-8"))
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                return [("evidence", f"cannot be read: {error}")]
            if evidence["results"]:
                return _conditions(campaign, evidence, f"round {round.number}, attempt {number}")
    return [("evidence", "not kept with this campaign")]


def _conditions(
    campaign: Campaign, evidence: dict[str, Any], session_name: str
) -> list[tuple[str, str]]:
    session = dict(evidence["session"])
    texts: dict[str, set[str]] = {}
    for text in evidence["results"]:
        case = CaseResult.from_json(text).evidence
        for key in ("device", "device_model", "engine", "torch", "threads"):
            if (value := getattr(case, key)) is not None:
                texts.setdefault(key, set()).add(str(value))
    names = ("started", "ended", "host", "python", "pytest_kopt")
    rows = [("measured in", session_name)]
    rows += [(name, str(session[name])) for name in names if name in session]
    rows += [(name, ", ".join(sorted(values))) for name, values in texts.items()]
    return rows + [(f"env {name}", value) for name, value in campaign.manifest.env.items()]


def _measured_on(conditions: Sequence[tuple[str, str]], gpu: str) -> str:
    """Return the device, torch and the day of the last round, as far as its evidence is kept."""
    known = dict(conditions)
    torch = f"torch {known['torch']}" if "torch" in known else ""
    day = known.get("started", "")[:10]
    return ", ".join(filter(None, (known.get("device_model") or gpu, torch, day)))


def _rounds(campaign: Campaign) -> Iterator[dict[str, Any]]:
    judged = [round for _, round in sorted(campaign.state.rounds.items()) if round.verdict]
    attempts = [(round, round.last.verdict()) for round in judged]
    gains = over_baseline(verdict for _, verdict in attempts)
    for (round, verdict), gain in zip(attempts, gains, strict=True):
        names = ("over_baseline", "over_baseline_low", "over_baseline_high")
        yield {**_round(round, verdict), **dict(zip(names, gain, strict=True))}


def _round(round: Round, verdict: Verdict) -> dict[str, Any]:
    notes, total, applied = round.notes, verdict.aggregate, verdict.applied
    # An arrow of two characters may be broken at the end of a line.
    kernels = [[text.replace("->", "→") for text in row] for row in kernel_rows(verdict)]
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
    )
    return {
        **verdict.model_dump(mode="json", include=_OF_VERDICT, exclude=_ONLY_IN_TABLES),
        "number": round.number,
        "time": round.last.started,
        "keeps": verdict.decision.keeps,
        "metric": total.metric if total else "",
        "change": changed(ends(total)[0]),
        "interval": interval(*ends(total)),
        "tables": [
            *(
                [[*table[0]], *([*row.values()] for row in table)]
                for table in map(with_text, tables)
                if table
            ),
            *([[_KERNELS, *kernels]] if kernels else ()),
        ],
        "summary": notes.title or "",
        "commit": (applied.git_commit or "")[:12] if verdict.decision.keeps else "",
        "restored": applied.restored,
        "attempts": [
            attempt.decided.model_dump(mode="json", include=_OF_ATTEMPT)
            for attempt in round.attempts.values()
            if attempt.decided
        ],
    }


def campaign_page(campaign: Campaign) -> str:
    """Return a campaign's report."""
    page = all_visible(document(campaign))
    rounds = page["rounds"]
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
        "data": packed({"rounds": [_for_script(round) for round in rounds], "charts": specs}),
        "kernels": packed(all_visible(kernels(campaign, numbers))),
    }
    frame = filled("campaign.html.j2", **values, pairs={}, left_out=[])
    room = LIMIT - len(frame.encode()) - 10_000
    packed_pairs: dict[int, str] = {}
    left_out: list[int] = []
    for number in reversed(numbers):
        measured = {visible(case): rows for case, rows in pairs(campaign, number).items()}
        text = packed(measured) if measured else ""
        room -= len(text) + 100 if text else 0
        if text and room < 0:
            left_out.append(number)
        elif text:
            packed_pairs[number] = text
    return filled("campaign.html.j2", **values, pairs=packed_pairs, left_out=sorted(left_out))


def _for_script(round: dict[str, Any]) -> dict[str, Any]:
    """Return what page.js shows of a round; its tables and the charts have the rest.

    `changes`: the change of each case and the ends of its interval in percent, by label.
    """
    names = {"gain": "change_pct", "low": "low_pct", "high": "high_pct"}
    changes = {
        shape["label"]: {name: shape[key] for name, key in names.items()}
        for shape in round["shapes"]
        if shape["low_pct"] is not None
    }
    kept = {key: value for key, value in round.items() if key not in _IN_TABLES}
    return {**kept, "changes": changes}


def index_page(campaigns: Sequence[Campaign], files: Sequence[str]) -> str:
    """Return the page over several campaigns, each with a link to its own file."""
    pages = [all_visible(document(campaign)) for campaign in campaigns]
    chart = {"comparison": charts.comparison(pages)}
    return filled(
        "index.html.j2",
        pages=list(zip(pages, files, strict=True)),
        data=packed({"rounds": [], "charts": chart}),
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
