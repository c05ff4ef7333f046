"""What the paired rule does with recorded processes, by the very functions that decide.

python benchmarks/paired_power.py [verdicts] [write]
python benchmarks/paired_power.py fit

Every verdict draws eight replicates of one record without replacement, centred, as the record is of
identical code. A true change is added to the candidate's log-ratios, a bias to those of candidate
and copy: a machine that treats later versions differently. `write` puts the tables into
docs/paired-evidence.md. `fit` fits the default priors to the variances of the recorded rounds.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from tabulate import tabulate

from pytest_kopt import policies
from pytest_kopt.decide.inference import FINAL_LOOK, LOOKS, log_ratio, percent, student_quantile
from pytest_kopt.decide.known_noise import DEVICE_TIMED, HOST_TIMED, Noise
from pytest_kopt.decide.paired import decide
from pytest_kopt.decide.series import Series, SeriesTable
from pytest_kopt.decide.verdict import Verdict
from pytest_kopt.schema.table import NO_CLASSES, Classes

DOCS = Path(__file__).parent.parent / "docs"
RECORDS = {
    "card A": "paired_noise_h200.json",
    "card B": "paired_noise_checked_h200.json",
    "busy CPU": "paired_noise_cpu.json",
}
OTHER = {"card A": "card B", "card B": "card A"}
POLICY = policies.load("primus")
#: Log-ratios by arm (comparison, A/A control), case and process.
Drawn = npt.NDArray[np.float64]


@cache
def recorded(name: str) -> Drawn:
    """Return a record's log-ratios, each arm of each case centred."""
    found = json.loads((DOCS / "results" / RECORDS[name]).read_text())["log_ratios"].values()
    values = np.array([[case[arm] for case in found] for arm in ("main", "placebo")])
    return np.asarray(values - values.mean(axis=2, keepdims=True))


@dataclass(frozen=True)
class Cell:
    """One entry of a table: whose processes, how many cases, which prior, which truth."""

    source: str = "card A"
    prior: str = "record"
    cases: int = 5
    change: tuple[float, ...] = (0.0,)
    gate: Literal["improve", "no-regression"] = "improve"
    classes: Classes = NO_CLASSES
    scatter: float = 1.0
    outliers: float = 0.0
    #: Percent by which every version but the first is faster, whatever its code.
    bias: float = 0.0


@dataclass
class Tally:
    """What became of a cell's verdicts."""

    decisions: Counter[str] = field(default_factory=Counter)
    regressed: int = 0
    replicates: int = 0

    def share(self, *decisions: str) -> float:
        return 100 * sum(self.decisions[name] for name in decisions) / self.decisions.total()

    @property
    def accepted(self) -> float:
        return self.share("ACCEPTED", "ACCEPTED_WITH_NOTE")

    @property
    def mean_replicates(self) -> float:
        return self.replicates / self.decisions.total()


class Simulation:
    """Draws processes and has them judged, look after look."""

    def __init__(self, cell: Cell, seed: int) -> None:
        self.cell = cell
        self.dice = np.random.default_rng(seed)

    def play(self, verdicts: int) -> Tally:
        tally = Tally()
        for _ in range(verdicts):
            look, verdict = self._judge()
            tally.decisions[str(verdict.decision)] += 1
            tally.regressed += any(shape.status == "regressed" for shape in verdict.shapes)
            tally.replicates += look
        return tally

    def _draw(self, source: str, columns: list[tuple[int, int]], count: int) -> Drawn:
        """Return `count` processes; cases of one copy come from the same, copies from others."""
        everything = recorded(source)
        copies = {copy for copy, _ in columns}
        places = {copy: self.dice.permutation(everything.shape[2])[:count] for copy in copies}
        parts = [everything[:, case, places[copy]] for copy, case in columns]
        return np.stack(parts, axis=1)

    def _judge(self) -> tuple[int, Verdict]:
        cell, kinds = self.cell, recorded(self.cell.source).shape[1]
        columns: list[tuple[int, int]] = []
        while len(columns) < cell.cases:
            order = self.dice.permutation(kinds)[: cell.cases - len(columns)]
            columns += [(len(columns) // kinds, int(case)) for case in order]
        names = [f"case {i}" for i in range(cell.cases)]
        noise = self._noise(columns, names)
        drawn = self._draw(cell.source, columns, FINAL_LOOK)
        drawn[0] *= cell.scatter
        drawn += 0.05 * (self.dice.random(drawn.shape) < cell.outliers)
        changes = [cell.change[i % len(cell.change)] for i in range(cell.cases)]
        drawn[0] += np.log1p(np.array(changes) / 100)[:, None]
        drawn += log_ratio(cell.bias)
        main, placebo = drawn.tolist()
        for look in LOOKS:
            cases = tuple(
                Series(
                    name=name,
                    label=name,
                    dims={"half": i % 2},
                    new=tuple(main[i][:look]),
                    copy=tuple(placebo[i][:look]),
                    noise=noise,
                )
                for i, name in enumerate(names)
            )
            if verdict := decide(SeriesTable(cases, cell.gate, classes=cell.classes), POLICY):
                return look, verdict
        raise AssertionError("the last look always decides")

    def _noise(self, columns: list[tuple[int, int]], names: list[str]) -> Noise | None:
        cell = self.cell
        default = HOST_TIMED if cell.source == "busy CPU" else DEVICE_TIMED
        if cell.prior in ("none", "default"):
            return Noise((), default) if cell.prior == "default" else None
        source, count, factor = {
            "another card's": (OTHER.get(cell.source, cell.source), 8, 1.0),
            "record": (cell.source, 8, 1.0),
            "4 processes": (cell.source, 4, 1.0),
            "3 times too small": (cell.source, 8, 1 / 3),
        }[cell.prior]
        arms = self._draw(source, columns, count) * factor
        series = tuple(dict(zip(names, arm, strict=True)) for arm in arms.tolist())
        return Noise(series, default)


TRUTHS = {
    "identical": (0.0,),
    "+0.25 %": (0.25,),
    "+0.5 %": (0.5,),
    "+1 %": (1.0,),
    "+2 %": (2.0,),
    "-1 %": (-1.0,),
    "one -6 %, others +2 %": (-6.0, 2.0, 2.0, 2.0, 2.0),
}
LIMITS = "One case at or near its limit"
BIASED = "A machine that treats its copies differently"
PRIORS = ("none", "default", "another card's", "4 processes", "record", "3 times too small")


def plan() -> Iterator[tuple[str, str, str, Cell]]:
    """Yield table, row and column of every cell."""
    at_gate = percent(-log_ratio(POLICY.shape_gate_pct))
    for source in ("card A", "card B"):
        for prior in PRIORS:
            for title, change in TRUTHS.items():
                cell = Cell(source, prior, change=change)
                yield "Five cases", f"{source}, {prior}", title, cell
    for count in (1, 3, 16):
        for prior in ("default", "record", "3 times too small"):
            for title, change in TRUTHS.items():
                for source in ("card A", "card B"):
                    cell = Cell(source, prior, count, change)
                    # A single case has no others.
                    if count > 1 or len(change) == 1:
                        row = f"{count} cases, {source}, {prior}"
                        yield "One, three and sixteen cases", row, title, cell
    for prior in ("default", "4 processes", "record", "3 times too small"):
        for title, change in {**TRUTHS, "+50 %": (50.0,), "-50 %": (-50.0,)}.items():
            cell = Cell("busy CPU", prior, 3, change)
            yield "A busy CPU, three cases", prior, title, cell
    for source, others in (("card A", 2.0), ("card B", 2.0), ("busy CPU", 50.0)):
        count = recorded(source).shape[1]
        for prior in ("default", "record"):
            for title, loss in {"-6 %": -6.0, "at the limit": at_gate, "-2 %": -2.0}.items():
                cell = Cell(source, prior, count, (loss, *[others] * (count - 1)))
                yield LIMITS, f"{source}, {prior}", f"one {title}, others faster", cell
    changes = {"identical": 0.0, "+1 %": 1.0, "-1 %": -1.0, "-5 %": -5.0, "-50 %": -50.0}
    for source, count, classes, bias in (
        *(("card A", 5, (), bias) for bias in (0.2, 0.4)),
        *(("card B", 5, (), bias) for bias in (0.2, 0.4)),
        *(("card B", 1, (), bias) for bias in (0.2, 0.4)),
        ("card B", 16, ("half",), 0.4),
        *(("busy CPU", 3, (), bias) for bias in (2.0, 6.0)),
    ):
        row = f"{source}, {count} cases{', two classes' * len(classes)}, {bias:g} %"
        for title, change in changes.items():
            cell = Cell(source, "default", count, (change,), classes=Classes(classes), bias=bias)
            yield BIASED, row, title, cell
    base = Cell()
    odd = {
        "the candidate scatters twice as much": replace(base, scatter=2.0),
        "1 in 20 of all timings is off by 5 %": replace(base, outliers=0.05),
        "two classes": replace(base, classes=Classes(("half",)), cases=16),
    }
    for row, cell in odd.items():
        for title in ("identical", "+0.5 %", "-1 %", "one -6 %, others +2 %"):
            for prior in ("default", "record"):
                changed = replace(cell, prior=prior, change=TRUTHS[title])
                yield "Odd cases", f"{row}, {prior}", title, changed
        if cell.classes is not NO_CLASSES:
            for prior in ("default", "record"):
                changed = replace(cell, prior=prior, change=(2.0, -2.0))
                yield "Odd cases", f"{row}, {prior}", "+2 and -2 %", changed
    for source, prior in (("card A", "default"), ("card B", "default"), ("busy CPU", "default")):
        count = recorded(source).shape[1]
        for title in ("identical", "-1 %", "-6 %", "one -6 %, others +2 %"):
            cell = Cell(source, prior, count, TRUTHS.get(title, (-6.0,)), "no-regression")
            yield "A gate asks for no regression: % accepted", f"{source}, {prior}", title, cell


def shown(title: str, cell: Cell, tally: Tally) -> str:
    """Return the share that the truth asks about, and what it took."""
    if title == "identical" or cell.bias:
        return (
            f"{tally.accepted:.2f} ({tally.share('ROLLED_BACK', 'SPLIT'):.2f}, "
            f"{tally.share('INCOMPLETE'):.2f}); {tally.mean_replicates:.1f}"
        )
    lost = title.startswith("-") and cell.gate == "improve"
    share = tally.share("ROLLED_BACK", "SPLIT") if lost else tally.accepted
    return f"{share:.2f}; {tally.mean_replicates:.1f}"


def tables(verdicts: int) -> str:
    """Return every table of the plan, identical code with five times as many verdicts."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for table, row, column, cell in plan():
        tally = Simulation(cell, 2026).play(verdicts * 5 if column == "identical" else verdicts)
        found.setdefault(table, {}).setdefault(row, {})[column] = shown(column, cell, tally)
    parts = [
        f"{verdicts} verdicts a cell, of identical code {5 * verdicts}; looks {dict(LOOKS)}. A "
        "cell shows % accepted (at losses: % rolled back or split) and the mean number of "
        "replicates. For identical code and under a bias it shows % accepted (% rolled back, "
        "% INCOMPLETE: only one copy of the current best shows the change)."
    ]
    for title, rows in found.items():
        columns = list(dict.fromkeys(name for row in rows.values() for name in row))
        body = [[name, *(row.get(column, "") for column in columns)] for name, row in rows.items()]
        header = [title, *columns]
        parts.append(tabulate(body, headers=header, tablefmt="github", disable_numparse=True))
    return "\n\n".join(parts) + "\n"


def rounds(name: str) -> Iterator[tuple[int, float]]:
    """Yield processes and standard deviation in % of each recorded round of identical code."""
    levels: Mapping[int, float] = {4: 0.0003, 6: 0.0007, 8: 0.0015}
    found = json.loads((DOCS / "results" / name).read_text())
    number = r"([-+.\d]+)"
    said = re.compile(rf"after (\d) (?:processes|replicas) .* by {number} % \[{number}, {number}\]")
    for verdict in found.get("verdicts") or found["aa"]:
        match = said.match(verdict["reason"])
        if match and not verdict.get("truth_pct"):
            count = int(match[1])
            low, high = (math.log1p(float(match[i]) / 100) for i in (3, 4))
            confidence = (verdict.get("aggregate") or {}).get("confidence")
            level = (1 - confidence) / 2 if confidence else levels[count]
            t = student_quantile(count - 1, 1 - level)
            yield count, 100 * (high - low) / 2 / t * math.sqrt(count)


def fit(found: list[tuple[int, float]]) -> tuple[float, float]:
    """Return the prior of scaled inverse chi-squared variances: sd and degrees of freedom.

    By the moments of their logarithms, as limma does.
    """
    from scipy.optimize import brentq
    from scipy.special import digamma, polygamma

    halves = [(count - 1) / 2 for count, _ in found]
    logs = [
        2 * math.log(sd) - digamma(half) + math.log(half)
        for half, (_, sd) in zip(halves, found, strict=True)
    ]
    rest = statistics.variance(logs) - statistics.fmean(
        float(polygamma(1, half)) for half in halves
    )
    if rest <= 0:
        return math.exp(statistics.fmean(logs) / 2), math.inf
    solve: Callable[..., float] = brentq
    half = solve(lambda x: float(polygamma(1, x)) - rest, 1e-3, 1e6)
    log = statistics.fmean(logs) + float(digamma(half)) - math.log(half)
    return math.exp(log / 2), 2 * half


def main() -> None:
    if "fit" in sys.argv:
        for name in ("paired_aa_h200.json", "paired_aa_checked_h200.json", "paired_cpu.json"):
            found = list(rounds(name))
            sd, freedom = fit(found)
            print(f"{name}: {len(found)} rounds, sd {sd:.3f} %, {freedom:.1f} degrees of freedom")
        return
    counts = [int(word) for word in sys.argv[1:] if word.isdigit()]
    text = tables(counts[0] if counts else 400)
    print(text)
    if "write" in sys.argv:
        page, name = DOCS / "paired-evidence.md", "# (paired_power)\n"
        before, begin, rest = page.read_text().partition(f"[begin]: {name}")
        _, end, after = rest.partition(f"[end]: {name}")
        page.write_text(f"{before}{begin}{text}{end}{after}")


if __name__ == "__main__":
    main()
